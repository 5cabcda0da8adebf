//! Why a measurement could not be made.

use std::path::PathBuf;

/// Errors of the benches.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The command line.
    #[error(
        "{found}\nusage: halyard-bench [encode|schedule|step|version|startup|idle|all]… [--binary FILE] [--model \
         MODEL] [--check] [--json FILE]\n       halyard-bench perplexity --model MODEL… [--plugin FILE] [--tokens \
         COUNT] [--kv-cache-dtype TYPE] [--json FILE]\n       halyard-bench compare --model MODEL [--binary \
         FILE] [--plugin FILE] [--serve ARGUMENTS] [--cpu-isa portable|avx2|avx512|…] [--peer \
         \"COMMAND … {{model}} … {{port}}\"] [--peer-model NAME] [--at ADDRESS] [--peer-at ADDRESS] [--rounds \
         COUNT] [--concurrency 1,4,16,64] [--max-len TOKENS] [--warm-up TOKENS] [--layer-parameters COUNT] \
         [--peak-gops NUMBER] [--json FILE [--row NAME] [--peer-version NAME]]\n       halyard-bench growth \
         [--only ID,…] [--rounds COUNT] [--json FILE] [--before FILE]\n       halyard-bench gpu --figures \
         FOLDER --model SHAPE --json FILE [--row NAME]\n       halyard-bench side-by-side --figures FOLDER --json \
         FILE\n       halyard-bench page"
    )]
    Usage {
        /// The fault.
        found: String,
    },
    /// A file of figures that is none.
    #[error("{}: {source}", path.display())]
    Figures {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The page of figures.
    #[error("docs/performance.md: {message}")]
    Page {
        /// What is wrong with its marks.
        message: String,
    },
    /// A text that cannot be scored.
    #[error("the text: {message}")]
    Text {
        /// Why.
        message: String,
    },
    /// The plugin host refused a platform.
    #[error("the platform: {0}")]
    Plugin(#[from] halyard_plugin_host::PluginError),
    /// A device refused a call.
    #[error("the device: {0}")]
    Device(#[from] halyard_platform_api::Error),
    /// The engine did not start.
    #[error("the engine: {0}")]
    Engine(#[from] halyard_engine::EngineError),
    /// The engine refused a request.
    #[error("the engine: {0}")]
    Submit(#[from] halyard_engine::SubmitError),
    /// The scheduler refused its configuration or a request.
    #[error("the scheduler: {0}")]
    Scheduler(#[from] halyard_scheduler::Error),
    /// The server's binary is not there.
    #[error(
        "{} is missing: build it (cargo build --release -p halyard -p halyard-backend-cpu) or give --binary FILE",
        path.display()
    )]
    NoBinary {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The server ended by itself.
    #[error("`{command}` ended with {status} before it was ready:\n{output}")]
    Ended {
        /// What was run.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of its standard error.
        output: String,
    },
    /// The server never answered.
    #[error("`{command}` was not ready after {seconds} s")]
    NotReady {
        /// What was run.
        command: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Files, processes, sockets.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl BenchError {
    /// An I/O error with what was tried.
    pub fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
        let action = action.into();
        move |source| BenchError::Io { action, source }
    }
}
