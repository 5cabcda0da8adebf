//! `halyard bench latency`: batches of equal requests, submitted at once, for each batch size and output length asked
//! for. With output lengths 1 and n it also gives the time of a decode step: (best of n − best of 1) / (n − 1).

use clap::Args;
use serde_json::{Value, json};

use super::report::{Spread, write_json};
use super::workload::{Prompts, greedy, run_all};
use super::{EngineBenchArgs, progress};
use crate::error::ServerError;

const PERCENTS: [f64; 6] = [10.0, 25.0, 50.0, 75.0, 90.0, 99.0];

/// Flags of `halyard bench latency`.
#[derive(Args, Debug)]
pub struct LatencyArgs {
    /// Tokens of each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 32, help_heading = "Bench")]
    input_len: u32,
    /// Tokens to generate for each prompt; several, separated by commas, are measured in turn
    #[arg(
        long,
        value_name = "TOKENS",
        default_value = "128",
        value_delimiter = ',',
        help_heading = "Bench",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    output_len: Vec<u32>,
    /// Requests of a batch; several, separated by commas, are measured in turn
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "8",
        value_delimiter = ',',
        help_heading = "Bench",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    batch_size: Vec<u32>,
    /// Batches that run before the measured ones
    #[arg(long, value_name = "COUNT", default_value_t = 10, help_heading = "Bench")]
    num_iters_warmup: u32,
    /// Measured batches
    #[arg(long, value_name = "COUNT", default_value_t = 30, help_heading = "Bench",
        value_parser = clap::value_parser!(u32).range(1..))]
    num_iters: u32,
    #[command(flatten)]
    common: EngineBenchArgs,
}

/// One batch size and output length.
struct Measured {
    batch_size: u32,
    output_len: u32,
    seconds: Vec<f64>,
}

pub(super) fn run(args: &LatencyArgs) -> Result<(), ServerError> {
    let most = args.common.engine.scheduling.max_num_seqs;
    if let Some(&batch) = args.batch_size.iter().find(|&&batch| batch > most) {
        let message =
            format!("{batch} requests do not run at the same time; give at most --max-num-seqs, which is {most}");
        return Err(ServerError::Option {
            option: "--batch-size",
            message,
        });
    }
    let engine = args.common.start_engine()?;
    let mut prompts = Prompts::new(args.common.engine.model.seed, engine.info().vocab_size);
    let mut all = Vec::new();
    for &batch_size in &args.batch_size {
        for &output_len in &args.output_len {
            let iterations = args.num_iters_warmup + args.num_iters;
            let bar = progress(u64::from(iterations), "batches");
            let mut seconds = Vec::new();
            for i in 0..iterations {
                let batch = (0..batch_size).map(|_| prompts.next(args.input_len)).collect();
                let run = run_all(&engine, batch, &greedy(output_len), args.common.num_loras(), || {})?;
                if i >= args.num_iters_warmup {
                    seconds.push(run.elapsed.as_secs_f64());
                }
                bar.inc(1);
            }
            bar.finish_and_clear();
            let measured = Measured {
                batch_size,
                output_len,
                seconds,
            };
            measured.print(args.input_len);
            all.push(measured);
        }
    }
    let steps = decode_steps(&all);
    for step in &steps {
        say!(
            "batch {}: {:.3} ms a decode step ({:.0} tokens/s)",
            step["batch_size"],
            step["decode_step_ms"].as_f64().unwrap_or(0.0),
            step["output_tokens_per_second"].as_f64().unwrap_or(0.0)
        );
    }
    let mut figures = json!({
        "input_len": args.input_len,
        "results": all.iter().map(Measured::json).collect::<Vec<_>>(),
        "decode_steps": steps,
    });
    // The keys of one result, as vLLM's file has them.
    if let ([only], Some(object)) = (&all[..], figures.as_object_mut())
        && let Value::Object(keys) = only.json()
    {
        object.extend(keys);
    }
    write_json(args.common.output_json.as_deref(), &figures)
}

impl Measured {
    fn print(&self, input_len: u32) {
        let spread = Spread::of(self.seconds.clone());
        say!(
            "batch {}, {input_len} in, {} out: avg {:.4} s, best {:.4} s, p50 {:.4} s, p99 {:.4} s",
            self.batch_size,
            self.output_len,
            spread.mean(),
            spread.best(),
            spread.at(50.0),
            spread.at(99.0)
        );
    }

    fn json(&self) -> Value {
        let spread = Spread::of(self.seconds.clone());
        json!({
            "batch_size": self.batch_size,
            "output_len": self.output_len,
            "avg_latency": spread.mean(),
            "best_latency": spread.best(),
            "latencies": self.seconds,
            "percentiles": spread.percentiles(&PERCENTS),
        })
    }
}

/// The time of a decode step for each batch size that was measured with output length 1 and a greater one.
fn decode_steps(all: &[Measured]) -> Vec<Value> {
    let best = |m: &Measured| Spread::of(m.seconds.clone()).best();
    let mut steps = Vec::new();
    for first in all.iter().filter(|m| m.output_len == 1) {
        let longer = all.iter().filter(|m| m.batch_size == first.batch_size);
        for long in longer.filter(|m| m.output_len > 1) {
            let step_s = (best(long) - best(first)) / f64::from(long.output_len - 1);
            // Where noise is longer than a step, no figure is better than a wrong one.
            if step_s <= 0.0 {
                continue;
            }
            steps.push(json!({
                "batch_size": first.batch_size,
                "output_len": long.output_len,
                "decode_step_ms": step_s * 1e3,
                "output_tokens_per_second": f64::from(first.batch_size) / step_s,
            }));
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_step_is_what_the_longer_run_takes_more() {
        let measured = |batch_size, output_len, seconds: &[f64]| Measured {
            batch_size,
            output_len,
            seconds: seconds.to_vec(),
        };
        let all = [
            measured(4, 1, &[0.3, 0.1]),
            measured(4, 11, &[0.6, 0.7]),
            measured(8, 11, &[9.0]),
        ];
        let steps = decode_steps(&all);
        assert_eq!(steps.len(), 1, "batch 8 has no run of one token");
        let ms = steps[0]["decode_step_ms"].as_f64().expect("a number");
        assert!((ms - 50.0).abs() < 1e-9, "{ms}");
    }
}
