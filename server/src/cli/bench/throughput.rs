//! `halyard bench throughput`: submits all requests at once and measures tokens per second until the last one ends.

use clap::{Args, ValueEnum};
use serde_json::json;

use super::report::write_json;
use super::workload::{Prompts, greedy, run_all};
use super::{EngineBenchArgs, progress};
use crate::error::ServerError;

/// Where prompts come from.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Dataset {
    /// Random tokens.
    Random,
}

/// Flags of `halyard bench throughput`.
#[derive(Args, Debug)]
pub struct ThroughputArgs {
    /// Where prompts come from
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Dataset::Random, help_heading = "Bench")]
    dataset_name: Dataset,
    /// Tokens of each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, help_heading = "Bench")]
    input_len: u32,
    /// Tokens to generate for each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 128, help_heading = "Bench")]
    output_len: u32,
    /// Requests
    #[arg(long, value_name = "COUNT", default_value_t = 1000, help_heading = "Bench",
        value_parser = clap::value_parser!(u32).range(1..))]
    num_prompts: u32,
    /// Runs that are not measured, of the same size; without one the first use of every batch size is part of the
    /// figure
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Bench")]
    num_warmups: u32,
    #[command(flatten)]
    common: EngineBenchArgs,
}

pub(super) fn run(args: &ThroughputArgs) -> Result<(), ServerError> {
    let Dataset::Random = args.dataset_name;
    let engine = args.common.start_engine()?;
    let mut prompts = Prompts::new(args.common.engine.model.seed, engine.info().vocab_size);
    let mut once = || {
        let bar = progress(u64::from(args.num_prompts), "requests");
        let all = (0..args.num_prompts).map(|_| prompts.next(args.input_len)).collect();
        let run = run_all(&engine, all, &greedy(args.output_len), args.common.num_loras(), || {
            bar.inc(1)
        });
        bar.finish_and_clear();
        run
    };
    for _ in 0..args.num_warmups {
        once()?;
    }
    let run = once()?;
    let seconds = run.elapsed.as_secs_f64();
    let total = run.prompt_tokens + run.output_tokens;
    let per_second = |count: f64| count / seconds;
    say!(
        "Throughput: {:.2} requests/s, {:.2} total tokens/s, {:.2} output tokens/s",
        per_second(f64::from(args.num_prompts)),
        per_second(total as f64),
        per_second(run.output_tokens as f64)
    );
    say!(
        "{} prompt tokens, {} output tokens, {seconds:.3} s",
        run.prompt_tokens,
        run.output_tokens
    );
    let figures = json!({
        "elapsed_time": seconds,
        "num_requests": args.num_prompts,
        "total_num_tokens": total,
        "total_num_prompt_tokens": run.prompt_tokens,
        "total_num_output_tokens": run.output_tokens,
        "requests_per_second": per_second(f64::from(args.num_prompts)),
        "tokens_per_second": per_second(total as f64),
        "output_tokens_per_second": per_second(run.output_tokens as f64),
    });
    write_json(args.common.output_json.as_deref(), &figures)
}
