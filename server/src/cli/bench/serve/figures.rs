//! The figures of a run, under the names and fields of `vllm bench serve`.

use serde_json::{Value, json};

use super::load::{Outcome, Seen};
use super::options::{Metric, ServeBenchArgs};
use crate::cli::bench::report::Spread;

impl Metric {
    fn key(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2el => "e2el",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Metric::Ttft => "Time to First Token",
            Metric::Tpot => "Time per Output Token (excl. 1st token)",
            Metric::Itl => "Inter-token Latency",
            Metric::E2el => "End-to-end Latency",
        }
    }

    /// Values of requests, in seconds.
    fn of(self, seen: &[Seen]) -> Vec<f64> {
        match self {
            Metric::Ttft => seen.iter().map(|s| s.first_token).collect(),
            Metric::Tpot => seen.iter().filter(|s| s.output_tokens > 1).map(per_token).collect(),
            Metric::Itl => seen.iter().flat_map(|s| s.gaps.clone()).collect(),
            Metric::E2el => seen.iter().map(|s| s.total).collect(),
        }
    }
}

/// Seconds for each token after the first; 0 of one token.
fn per_token(seen: &Seen) -> f64 {
    match seen.output_tokens {
        0 | 1 => 0.0,
        tokens => (seen.total - seen.first_token) / (tokens - 1) as f64,
    }
}

/// Prints the figures and gives them as JSON.
pub(super) fn summarize(args: &ServeBenchArgs, outcome: &Outcome) -> Value {
    let Outcome {
        seconds,
        seen,
        failures,
    } = outcome;
    let input: u64 = seen.iter().map(|s| s.input_tokens).sum();
    let output: u64 = seen.iter().map(|s| s.output_tokens).sum();
    let per_second = |count: u64| count as f64 / seconds;
    let good = seen.iter().filter(|s| keeps(args, s)).count() as u64;
    let goodput = (!args.goodput.is_empty()).then(|| per_second(good));
    let (peak_tokens, peak_requests) = peaks(seen);
    let completed = seen.len() as u64;
    say!("{:=^50}", " Serving Benchmark Result ");
    line("Successful requests:", completed);
    line("Failed requests:", failures.len());
    if let Some(most) = args.max_concurrency {
        line("Maximum request concurrency:", most);
    }
    if args.request_rate.is_finite() {
        number("Request rate configured (RPS):", args.request_rate);
    }
    number("Benchmark duration (s):", *seconds);
    line("Total input tokens:", input);
    line("Total generated tokens:", output);
    number("Request throughput (req/s):", per_second(completed));
    if let Some(goodput) = goodput {
        number("Request goodput (req/s):", goodput);
    }
    number("Output token throughput (tok/s):", per_second(output));
    number("Peak output token throughput (tok/s):", peak_tokens);
    number("Peak concurrent requests:", peak_requests);
    number("Total token throughput (tok/s):", per_second(input + output));
    let mut figures = json!({
        "duration": seconds,
        "completed": completed,
        "failed": failures.len(),
        "total_input_tokens": input,
        "total_output_tokens": output,
        "request_throughput": per_second(completed),
        "request_goodput": goodput,
        "output_throughput": per_second(output),
        "total_token_throughput": per_second(input + output),
        "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests,
        "latencies": seen.iter().map(|s| s.total).collect::<Vec<f64>>(),
        "queue_times": seen.iter().map(|s| s.queued).collect::<Vec<f64>>(),
    });
    if args.save_detailed {
        let counts = |of: fn(&Seen) -> u64| json!(seen.iter().map(of).collect::<Vec<u64>>());
        figures["input_lens"] = counts(|s| s.input_tokens);
        figures["output_lens"] = counts(|s| s.output_tokens);
        figures["ttfts"] = json!(seen.iter().map(|s| s.first_token).collect::<Vec<f64>>());
        figures["itls"] = json!(seen.iter().map(|s| &s.gaps).collect::<Vec<_>>());
        figures["start_times"] = json!(seen.iter().map(|s| s.start).collect::<Vec<f64>>());
        figures["generated_texts"] = json!(seen.iter().map(|s| &s.text).collect::<Vec<_>>());
        figures["errors"] = json!(failures);
    }
    for metric in &args.percentile_metrics {
        tell(args, *metric, seen, &mut figures);
    }
    say!("{:=^50}", "");
    figures
}

fn tell(args: &ServeBenchArgs, metric: Metric, seen: &[Seen], figures: &mut Value) {
    let (key, name) = (metric.key(), metric.key().to_uppercase());
    let spread = Spread::of(metric.of(seen));
    say!("{:-^50}", metric.title());
    let mut report = |word: &str, field: String, seconds: f64| {
        number(&format!("{word} {name} (ms):"), seconds * 1e3);
        figures[field] = json!(seconds * 1e3);
    };
    report("Mean", format!("mean_{key}_ms"), spread.mean());
    report("Median", format!("median_{key}_ms"), spread.at(50.0));
    for percent in &args.metric_percentiles {
        report(
            &format!("P{percent}"),
            format!("p{percent}_{key}_ms"),
            spread.at(*percent),
        );
    }
    figures[format!("std_{key}_ms")] = json!(spread.deviation() * 1e3);
}

/// Whether a request keeps every bound of `--goodput`.
fn keeps(args: &ServeBenchArgs, seen: &Seen) -> bool {
    args.goodput.iter().all(|(metric, ms)| {
        let seconds = match metric {
            Metric::Ttft => seen.first_token,
            Metric::E2el => seen.total,
            Metric::Tpot | Metric::Itl => per_token(seen),
        };
        seconds * 1e3 <= *ms
    })
}

/// The most tokens that came within one second of the bench, and the most requests that were under way in one.
fn peaks(seen: &[Seen]) -> (f64, f64) {
    let end = seen.iter().map(|s| s.start + s.total).fold(0.0, f64::max);
    let mut tokens = vec![0.0f64; end as usize + 1];
    let mut requests = vec![0.0f64; end as usize + 1];
    for one in seen {
        let mut at = one.start + one.first_token;
        // A piece may hold several tokens, and counts as so many.
        let each = one.output_tokens as f64 / (one.gaps.len() + 1) as f64;
        tokens[(at as usize).min(end as usize)] += each;
        for gap in &one.gaps {
            at += gap;
            tokens[(at as usize).min(end as usize)] += each;
        }
        for second in &mut requests[one.start as usize..=(one.start + one.total) as usize] {
            *second += 1.0;
        }
    }
    let most = |list: Vec<f64>| list.into_iter().fold(0.0, f64::max);
    (most(tokens), most(requests))
}

fn line(name: &str, value: impl std::fmt::Display) {
    say!("{name:<40} {value:<10}");
}

fn number(name: &str, value: f64) {
    say!("{name:<40} {value:<10.2}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_those_of_a_second() {
        let one = |start: f64| Seen {
            start,
            first_token: 0.1,
            gaps: vec![0.1, 1.0],
            total: 1.2,
            output_tokens: 6,
            ..Seen::default()
        };
        // Each piece holds two tokens: 4 in the first second of each, 2 in its next one.
        assert_eq!(peaks(&[one(0.0), one(0.5)]), (8.0, 2.0));
        assert_eq!(peaks(&[one(0.0), one(3.0)]), (4.0, 1.0));
        assert_eq!(peaks(&[]), (0.0, 0.0));
    }

    #[test]
    fn a_token_alone_has_no_time_per_token() {
        let seen = Seen {
            output_tokens: 1,
            total: 1.0,
            ..Seen::default()
        };
        assert_eq!(per_token(&seen), 0.0);
        assert!(Metric::Tpot.of(&[seen]).is_empty());
    }
}
