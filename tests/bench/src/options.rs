//! The command line: which benches, of which binary, with which model.

use std::net::SocketAddr;
use std::path::PathBuf;

use halyard_platform_api::DType;

use crate::error::BenchError;

/// A bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Nanoseconds an encoded op, host to null plugin.
    Encode,
    /// Microseconds to schedule and update a step.
    Schedule,
    /// Microseconds of host time for a step of the whole engine.
    Step,
    /// Milliseconds of `halyard --version`.
    Version,
    /// Seconds from start to ready.
    Startup,
    /// CPU seconds of an idle server.
    Idle,
    /// Perplexity of models over a fixed text, exact and rounded.
    Perplexity,
    /// Halyard compared with a peer.
    Compare,
    /// How cost grows with what there is.
    Growth,
    /// No bench: figures of a machine with a GPU.
    Gpu,
    /// No bench: figures of a machine on which Halyard and a peer ran in turn.
    SideBySide,
    /// No bench: docs/performance.md from the files of figures.
    Page,
}

/// Benches without a budget, which run only when named.
const NAMED: [(&str, Bench); 6] = [
    ("perplexity", Bench::Perplexity),
    ("compare", Bench::Compare),
    ("growth", Bench::Growth),
    ("gpu", Bench::Gpu),
    ("side-by-side", Bench::SideBySide),
    ("page", Bench::Page),
];

const ALL: [(&str, Bench); 6] = [
    ("encode", Bench::Encode),
    ("schedule", Bench::Schedule),
    ("step", Bench::Step),
    ("version", Bench::Version),
    ("startup", Bench::Startup),
    ("idle", Bench::Idle),
];

/// The parsed command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The benches, in order.
    pub benches: Vec<Bench>,
    /// The server; `None`: `halyard` in this program's folder.
    pub binary: Option<PathBuf>,
    /// `--model` for the server; `None`: its demo model.
    pub model: Option<String>,
    /// Every `--model`, for `perplexity`.
    pub models: Vec<String>,
    /// The platform's library; `None`: where the plugin host looks.
    pub plugin: Option<PathBuf>,
    /// Type of the KV cache for `perplexity`; `None`: f32, and the platform's choice with rounded activations.
    pub kv: Option<DType>,
    /// Tokens of the text that `perplexity` scores, at most.
    pub tokens: usize,
    /// More arguments for `halyard serve`, split at spaces.
    pub serve: Vec<String>,
    /// The peer's command line: `{port}` and `{model}` are filled in, leading `NAME=VALUE` words are its environment.
    pub peer: Option<String>,
    /// A Halyard server that already runs, which `compare` then asks instead of starting one.
    pub at: Option<SocketAddr>,
    /// The same of the peer.
    pub peer_at: Option<SocketAddr>,
    /// The peer's name of the model.
    pub peer_model: String,
    /// Rounds of A B.
    pub rounds: usize,
    /// Numbers of requests at once.
    pub concurrency: Vec<usize>,
    /// Longest sequence that both sides hold.
    pub max_len: usize,
    /// Parameters of the layers, which a prompt's token multiplies with; for the floor.
    pub layer_parameters: Option<u64>,
    /// Measured peak of all threads in 10⁹ multiplications and additions a second; for the floor.
    pub peak_gops: f64,
    /// Tokens that both sides compute before they are measured.
    pub warm_up: usize,
    /// Instruction set whose kernels the CPU platform takes (the value of its `HALYARD_CPU_ISA`).
    pub cpu_isa: Option<String>,
    /// The file of figures to which what was measured is written.
    pub json: Option<PathBuf>,
    /// The folder that `tests/gpu/run` or `tests/gpu/side-by-side` filled.
    pub figures: Option<PathBuf>,
    /// The row's name there; `None`: the model's.
    pub row: Option<String>,
    /// The peer's name and version there; `None`: its program's name.
    pub peer_version: Option<String>,
    /// The curves that `growth` measures, by the first letters of their ids; empty: all.
    pub only: Vec<String>,
    /// Curves of an earlier commit, which `growth` lays under these.
    pub before: Option<PathBuf>,
    /// Exit with status 1 when a budget is exceeded.
    pub check: bool,
}

impl Options {
    /// Reads arguments. Without a bench: all.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, BenchError> {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let found = format!("{argument} has no value");
                arguments.next().ok_or(BenchError::Usage { found })
            };
            match argument.as_str() {
                "--json" => options.json = Some(value()?.into()),
                "--figures" => options.figures = Some(value()?.into()),
                "--row" => options.row = Some(value()?),
                "--peer-version" => options.peer_version = Some(value()?),
                "--only" => options.only.extend(value()?.split(',').map(str::to_string)),
                "--before" => options.before = Some(value()?.into()),
                "--check" => options.check = true,
                "--binary" => options.binary = Some(value()?.into()),
                "--model" => {
                    options.model = Some(value()?);
                    options.models.extend(options.model.clone());
                }
                "--plugin" => options.plugin = Some(value()?.into()),
                "--kv-cache-dtype" => options.kv = Some(kv_dtype(&value()?)?),
                "--tokens" => options.tokens = number(&argument, &value()?)?,
                "--serve" => options.serve.extend(value()?.split_whitespace().map(str::to_string)),
                "--peer" => options.peer = Some(value()?),
                "--at" => options.at = Some(address(&argument, &value()?)?),
                "--peer-at" => options.peer_at = Some(address(&argument, &value()?)?),
                "--peer-model" => options.peer_model = value()?,
                "--rounds" => options.rounds = number(&argument, &value()?)?,
                "--max-len" => options.max_len = number(&argument, &value()?)?,
                "--layer-parameters" => options.layer_parameters = Some(number(&argument, &value()?)? as u64),
                "--peak-gops" => options.peak_gops = number(&argument, &value()?)? as f64,
                "--warm-up" => options.warm_up = number(&argument, &value()?)?,
                "--cpu-isa" => options.cpu_isa = Some(value()?),
                "--concurrency" => {
                    let list = value()?;
                    let counts = list.split(',').map(|count| number(&argument, count));
                    options.concurrency = counts.collect::<Result<_, _>>()?;
                }
                "all" => options.benches.extend(ALL.map(|(_, bench)| bench)),
                name => match ALL.iter().chain(&NAMED).find(|(known, _)| *known == name) {
                    Some((_, bench)) => options.benches.push(*bench),
                    None => {
                        let found = format!("unknown argument `{name}`");
                        return Err(BenchError::Usage { found });
                    }
                },
            }
        }
        if options.benches.is_empty() {
            options.benches.extend(ALL.map(|(_, bench)| bench));
        }
        Ok(options)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            benches: Vec::new(),
            binary: None,
            model: None,
            models: Vec::new(),
            plugin: None,
            kv: None,
            tokens: usize::MAX,
            serve: Vec::new(),
            peer: None,
            at: None,
            peer_at: None,
            peer_model: "m".to_string(),
            rounds: 2,
            concurrency: vec![1, 4, 16, 64],
            max_len: 2560,
            layer_parameters: None,
            peak_gops: 0.0,
            warm_up: 0,
            cpu_isa: None,
            json: None,
            figures: None,
            row: None,
            peer_version: None,
            only: Vec::new(),
            before: None,
            check: false,
        }
    }
}

impl Options {
    /// Bytes of the model where it is one file.
    pub fn weight_bytes(&self) -> Option<u64> {
        let path = PathBuf::from(self.model.as_deref()?);
        path.metadata()
            .ok()
            .filter(|data| data.is_file())
            .map(|data| data.len())
    }
}

/// Where a server listens.
fn address(argument: &str, text: &str) -> Result<SocketAddr, BenchError> {
    text.parse().map_err(|_| BenchError::Usage {
        found: format!("{argument} {text}: not an address like 127.0.0.1:8000"),
    })
}

/// A type of the KV cache, by the server's names.
fn kv_dtype(text: &str) -> Result<DType, BenchError> {
    Ok(match text {
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "fp8" => DType::F8E4M3,
        "int8" => DType::I8,
        "int4" => DType::U4,
        _ => {
            return Err(BenchError::Usage {
                found: format!("--kv-cache-dtype {text}: not float32, float16, bfloat16, fp8, int8 or int4"),
            });
        }
    })
}

/// A whole number above 0.
fn number(argument: &str, text: &str) -> Result<usize, BenchError> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(BenchError::Usage {
            found: format!("{argument} {text}: not a whole number above 0"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, BenchError> {
        Options::parse(line.split_whitespace().map(str::to_string))
    }

    #[test]
    fn nothing_asked_means_all() {
        assert_eq!(parse("").expect("valid").benches.len(), ALL.len());
        assert_eq!(parse("all").expect("valid"), parse("").expect("valid"));
    }

    #[test]
    fn benches_and_options_are_read() {
        let options = parse("idle encode --binary b --check --model org/m --json f.json --row a --peer-version p-1");
        let options = options.expect("valid");
        assert_eq!(options.json, Some("f.json".into()));
        assert_eq!(
            (options.row.as_deref(), options.peer_version.as_deref()),
            (Some("a"), Some("p-1"))
        );
        assert_eq!(options.benches, [Bench::Idle, Bench::Encode]);
        assert_eq!(
            (options.binary, options.model),
            (Some("b".into()), Some("org/m".into()))
        );
        assert!(options.check);
    }

    #[test]
    fn what_has_no_budget_runs_only_when_named() {
        let options =
            parse("compare --concurrency 1,16 --rounds 3 --serve --block-size=16 --cpu-isa avx2").expect("valid");
        assert_eq!(options.cpu_isa.as_deref(), Some("avx2"));
        assert_eq!(
            (options.benches, options.concurrency, options.rounds),
            (vec![Bench::Compare], vec![1, 16], 3)
        );
        let growth = parse("growth --only plan,step-ranks --before old.json").expect("valid");
        assert_eq!(growth.only, ["plan", "step-ranks"]);
        assert_eq!(growth.before, Some("old.json".into()));
        assert!(!parse("all").expect("valid").benches.contains(&Bench::Perplexity));
        let perplexity = parse("perplexity --kv-cache-dtype int4").expect("valid");
        assert_eq!(perplexity.kv, Some(DType::U4));
    }

    #[test]
    fn servers_that_run_already_are_named_by_their_addresses() {
        let address = |text: &str| Some(text.parse::<SocketAddr>().expect("an address"));
        let both = parse("compare --at 127.0.0.1:8000 --peer-at [::1]:9000 --peer-model org/m").expect("valid");
        assert_eq!(
            (both.at, both.peer_at),
            (address("127.0.0.1:8000"), address("[::1]:9000"))
        );
        assert_eq!((both.peer_model.as_str(), both.peer), ("org/m", None));
        let ours = parse("compare --at 127.0.0.1:8000 --peer sv").expect("valid");
        assert_eq!((ours.at, ours.peer_at), (address("127.0.0.1:8000"), None));
        assert_eq!(ours.peer.as_deref(), Some("sv"), "the peer is started");
        let peers = parse("compare --peer-at 10.0.0.1:1").expect("valid");
        assert_eq!((peers.at, peers.peer_at), (None, address("10.0.0.1:1")));
        assert_eq!(peers.peer_model, "m", "what llama.cpp's server calls any model");
    }

    #[test]
    fn what_is_unknown_or_cut_is_named() {
        for (line, named) in [
            ("encod", "`encod`"),
            ("--binary", "--binary"),
            ("idle --modl x", "`--modl`"),
            ("compare --rounds 0", "--rounds 0"),
            ("perplexity --kv-cache-dtype int5", "--kv-cache-dtype int5"),
            ("compare --concurrency 1,x", "--concurrency x"),
            ("compare --peer-at localhost", "--peer-at localhost"),
            ("compare --at 8000", "--at 8000"),
            ("compare --at 127.0.0.1", "--at 127.0.0.1"),
            ("compare --at 127.0.0.1:70000", "--at 127.0.0.1:70000"),
            ("compare --at", "--at has no value"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(named) && error.contains("usage:"), "{error}");
        }
    }
}
