//! `halyard run-batch`: an engine in this process answers the requests of a file, then the process ends. Flags are
//! vLLM's.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::served::{Door, ServedArgs};
use crate::batch::{self, BatchLimits, Output};
use crate::error::ServerError;
use crate::http::routes::router;
use crate::http::serve::stop_signal;
use crate::logging;

/// What a line may have besides the request's body.
const LINE_EXTRA_BYTES: usize = 64 << 10;

/// Flags of `halyard run-batch`. If a flag is given twice the last one counts, as in vLLM; lists grow.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub struct RunBatchArgs {
    /// File of requests, one JSON object a line: custom_id, method (POST), url (/v1/chat/completions, /v1/completions,
    /// /v1/embeddings, /v1/responses), body
    #[arg(
        short = 'i',
        long,
        value_name = "FILE",
        env = "HALYARD_INPUT_FILE",
        help_heading = "Batch"
    )]
    input_file: PathBuf,
    /// File of answers, one a line, in the order in which they come; it has .partial behind its name until all are
    /// there
    #[arg(
        short = 'o',
        long,
        value_name = "FILE",
        env = "HALYARD_OUTPUT_FILE",
        help_heading = "Batch"
    )]
    output_file: PathBuf,
    /// Requests at the same time; without it twice those that run together
    #[arg(long, value_name = "COUNT", env = "HALYARD_BATCH_CONCURRENCY", help_heading = "Batch",
        value_parser = clap::value_parser!(u32).range(1..))]
    batch_concurrency: Option<u32>,
    #[command(flatten)]
    served: ServedArgs,
}

/// Runs `halyard run-batch`.
///
/// # Errors
/// [`ServerError`]; lines that are refused are none, they have their error in the file of answers.
pub fn run(args: RunBatchArgs, accepted: &[(String, &'static str)]) -> Result<(), ServerError> {
    logging::start(&args.served.log.log_level, args.served.log.log_format)?;
    for (name, why) in accepted {
        tracing::info!("{name} is accepted, needs nothing here: {why}");
    }
    args.served.parsers.check()?;
    let input = std::fs::File::open(&args.input_file).map_err(|error| ServerError::Option {
        option: "--input-file",
        message: format!("{}: {error}", args.input_file.display()),
    })?;
    let output = Output::create(&args.output_file).map_err(|error| ServerError::Option {
        option: "--output-file",
        message: error.to_string(),
    })?;
    let chosen = args.served.engine.choose_device()?;
    let hooks = args.served.load_hooks(&chosen)?;
    let runtime = super::runtime()?;
    let result = runtime.block_on(async {
        let mut stop = Box::pin(stop_signal().map_err(ServerError::io("installing signal handlers"))?);
        let prepared = tokio::select! {
            prepared = args.served.prepare(chosen, hooks, Door::default()) => prepared?,
            () = &mut stop => return Err(interrupted(&output)),
        };
        answer(&args, prepared, input, output, stop).await
    });
    runtime.shutdown_background();
    result
}

async fn answer(
    args: &RunBatchArgs,
    prepared: super::served::Prepared,
    input: std::fs::File,
    mut output: Output,
    stop: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let state = prepared.state;
    let copies = u32::try_from(state.engine.engines().len()).unwrap_or(u32::MAX);
    let running = state
        .engine
        .info()
        .max_num_seqs
        .saturating_mul(copies)
        .saturating_mul(2);
    let asked = args.batch_concurrency.unwrap_or(running);
    let limits = BatchLimits {
        in_flight: usize::try_from(asked).unwrap_or(usize::MAX),
        line_bytes: state.limits.body_bytes.saturating_add(LINE_EXTRA_BYTES),
    };
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{pos} answers, {elapsed}, {per_sec} {msg}") {
        bar.set_style(style);
    }
    let start = Instant::now();
    let routes = router(std::sync::Arc::clone(&state));
    let counts = {
        let batch = batch::run(
            &routes,
            tokio::fs::File::from_std(input),
            &mut output,
            limits,
            |counts| {
                bar.set_position(counts.answered + counts.failed);
                if counts.failed > 0 {
                    bar.set_message(format!("({} refused)", counts.failed));
                }
            },
        );
        tokio::select! {
            counts = batch => Some(counts),
            () = stop => None,
        }
    };
    bar.finish_and_clear();
    let (engine, hooks) = (state.engine.clone(), state.hooks.clone());
    let ended = tokio::task::spawn_blocking(move || {
        engine.shutdown(std::time::Duration::ZERO);
        hooks.shutdown();
    });
    if let Err(error) = ended.await {
        tracing::error!("the engine's shutdown failed: {error}");
    }
    let Some(counts) = counts else {
        return Err(interrupted(&output));
    };
    let counts = counts
        .map_err(|error| ServerError::Batch(format!("{error}; whole lines are in {}", output.path().display())))?;
    output.finish().map_err(|error| ServerError::Batch(error.to_string()))?;
    say!(
        "{} requests: {} answered, {} refused, in {:.1} s; {}",
        counts.answered + counts.failed,
        counts.answered,
        counts.failed,
        start.elapsed().as_secs_f64(),
        args.output_file.display()
    );
    Ok(())
}

fn interrupted(output: &Output) -> ServerError {
    ServerError::Batch(format!(
        "interrupted; the answers so far are whole lines in {}",
        output.path().display()
    ))
}
