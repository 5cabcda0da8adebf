//! The dataset `timed_trace`: requests of a recorded service, such as Mooncake's or Qwen's traces, sent at the times at
//! which they came. A line has a time, lengths, and an id for each piece of the prompt; the same id stands for the
//! same tokens, so what requests had in common they have in common here.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use halyard_models::SplitMix64;
use serde_json::{Map, Value};

use super::dataset_file::DatasetFile;
use crate::error::ServerError;

/// The latest request of a trace: a month after the first moment.
const MAX_SECONDS: f64 = 31.0 * 86_400.0;

/// How a trace is read, with vLLM's defaults.
#[derive(Args, Debug)]
pub struct TimedTraceArgs {
    /// Tokens that an id of a trace stands for: 512 in Mooncake's traces, 16 in Qwen's
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    timed_trace_chunk_hash_size: u32,
    /// What a trace's times are multiplied with to be seconds: 0.001 for milliseconds
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = parse_multiplier)]
    timed_trace_sec_multiplier: f64,
    /// A trace's field of the time
    #[arg(long, value_name = "FIELD", default_value = "timestamp")]
    timed_trace_label_timestamp: String,
    /// A trace's field of the prompt's tokens
    #[arg(long, value_name = "FIELD", default_value = "input_length")]
    timed_trace_label_input_length: String,
    /// A trace's field of the answer's tokens
    #[arg(long, value_name = "FIELD", default_value = "output_length")]
    timed_trace_label_output_length: String,
    /// A trace's field of the ids of the prompt's pieces
    #[arg(long, value_name = "FIELD", default_value = "hash_ids")]
    timed_trace_label_hash_ids: String,
    /// Send requests at the times of the trace, as timed_trace does by itself
    #[arg(long, overrides_with = "no_self_timed")]
    self_timed: bool,
    /// Send the requests of timed_trace at --request-rate
    #[arg(long, overrides_with = "self_timed")]
    no_self_timed: bool,
}

fn parse_multiplier(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor > 0.0 => Ok(factor),
        _ => Err(format!("`{text}` is no number above 0")),
    }
}

/// A line of a trace.
#[derive(Debug, PartialEq)]
pub(super) struct Traced {
    pub at: Duration,
    pub prompt: Vec<u32>,
    pub output_len: u32,
}

impl TimedTraceArgs {
    /// Whether requests come at their own times.
    pub(super) fn is_self_timed(&self) -> bool {
        !self.no_self_timed
    }

    /// The flag of these two that was given.
    pub(super) fn timing_flag(&self) -> Option<&'static str> {
        match (self.self_timed, self.no_self_timed) {
            (true, _) => Some("--self-timed"),
            (_, true) => Some("--no-self-timed"),
            _ => None,
        }
    }

    /// The first `count` requests; no line behind them is read.
    ///
    /// # Errors
    /// A line that is no JSON, lacks a field, or whose ids stand for fewer tokens than it has.
    pub(super) fn read(
        &self,
        path: Option<&Path>,
        count: usize,
        seed: u64,
        vocab_size: u32,
    ) -> Result<Vec<Traced>, ServerError> {
        let file = DatasetFile::new(path);
        let (mut all, mut tokens) = (Vec::new(), 0);
        for line in file.lines()?.take(count) {
            let (number, line) = line?;
            let line = self.parse(&line).map_err(|reason| file.bad_line(number, &reason))?;
            tokens += u64::from(line.input_len);
            file.check_tokens(tokens)?;
            let prompt = self.expand(&line, seed, vocab_size);
            all.push(Traced {
                at: line.at,
                prompt: prompt.map_err(|reason| file.bad_line(number, &reason))?,
                output_len: line.output_len,
            });
        }
        Ok(all)
    }

    fn parse(&self, line: &str) -> Result<Line, String> {
        let fields: Map<String, Value> = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let field = |label: &str, flag: &str| {
            fields.get(label).ok_or_else(|| {
                let names = fields
                    .keys()
                    .take(12)
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(", ");
                format!("no field `{label}`; the line has: {names}. Name it with {flag}")
            })
        };
        let tokens = |label: &str, flag: &str| {
            let value = field(label, flag)?;
            let tokens = value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
            tokens
                .filter(|&tokens| tokens > 0)
                .ok_or_else(|| format!("`{label}` is {value}, no number of tokens from 1 on"))
        };
        let label = &self.timed_trace_label_timestamp;
        let time = field(label, "--timed-trace-label-timestamp")?;
        // Some traces have numbers as text.
        let given = time.as_f64().or_else(|| time.as_str()?.parse().ok());
        let seconds = given.map(|time| time * self.timed_trace_sec_multiplier);
        let Some(seconds) = seconds.filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds)) else {
            return Err(format!(
                "`{label}` is {time}, no time from 0 to {MAX_SECONDS} seconds after the start; times that are no \
                 seconds need --timed-trace-sec-multiplier, such as 0.001 for milliseconds"
            ));
        };
        let label = &self.timed_trace_label_hash_ids;
        let ids = field(label, "--timed-trace-label-hash-ids")?;
        Ok(Line {
            at: Duration::from_secs_f64(seconds),
            input_len: tokens(&self.timed_trace_label_input_length, "--timed-trace-label-input-length")?,
            output_len: tokens(
                &self.timed_trace_label_output_length,
                "--timed-trace-label-output-length",
            )?,
            ids: ids.as_array().cloned().ok_or_else(|| format!("`{label}` is no list"))?,
        })
    }

    /// The tokens that the ids stand for, up to the prompt's length.
    fn expand(&self, line: &Line, seed: u64, vocab_size: u32) -> Result<Vec<u32>, String> {
        let chunk = self.timed_trace_chunk_hash_size as usize;
        let (wanted, covered) = (line.input_len as usize, line.ids.len().saturating_mul(chunk));
        if covered < wanted {
            return Err(format!(
                "a prompt of {wanted} tokens has {} ids of {chunk} tokens each, which are {covered}; \
                 --timed-trace-chunk-hash-size says how many one stands for",
                line.ids.len()
            ));
        }
        let mut prompt = Vec::with_capacity(wanted);
        for id in &line.ids {
            let mut random = SplitMix64(seed ^ fnv(&id.to_string()));
            let more = chunk.min(wanted - prompt.len());
            prompt.extend((0..more).map(|_| random.below(u64::from(vocab_size)) as u32));
            if prompt.len() == wanted {
                break;
            }
        }
        Ok(prompt)
    }
}

struct Line {
    at: Duration,
    input_len: u32,
    output_len: u32,
    ids: Vec<Value>,
}

/// FNV-1a of 64 bits: the same on every machine.
fn fnv(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::super::dataset_file::tests::Written;
    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: TimedTraceArgs,
    }

    fn read(flags: &[&str], lines: &str, count: usize) -> Result<Vec<Traced>, String> {
        let args = Flags::parse_from([&["x"], flags].concat()).args;
        let name = format!("trace-{:x}", fnv(&format!("{flags:?}{lines}")));
        let file = Written::new(&name, lines.as_bytes());
        args.read(Some(file.0.path()), count, 7, 1000)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_same_ids_are_the_same_tokens() {
        let line = |time: Value, input: u32, output: u32, ids: &[u32]| {
            json!({"timestamp": time, "input_length": input, "output_length": output, "hash_ids": ids}).to_string()
                + "\n"
        };
        let lines = [
            line(json!(0), 10, 3, &[1, 2, 9]),
            line(json!(1500), 7, 1, &[1, 3]),
            // Some traces have numbers as text.
            line(json!("2000"), 8, 1, &[1, 2]),
            "no JSON".to_owned(),
        ]
        .concat();
        let flags = [
            "--timed-trace-chunk-hash-size",
            "4",
            "--timed-trace-sec-multiplier",
            "0.001",
        ];
        let all = read(&flags, &lines, 3).expect("only what is asked for is read");
        let of = |at: usize| &all[at].prompt;
        assert_eq!([of(0).len(), of(1).len(), of(2).len()], [10, 7, 8]);
        assert_eq!(of(0)[..4], of(1)[..4]);
        assert_ne!(of(0)[4..7], of(1)[4..7]);
        assert_eq!(of(0)[..8], of(2)[..]);
        assert_eq!(
            (all[1].at, all[2].at),
            (Duration::from_millis(1500), Duration::from_secs(2))
        );
        assert_eq!((all[0].output_len, all[1].output_len), (3, 1));
        assert!(of(0).iter().all(|id| *id < 1000));
        let error = read(&flags, &lines, 4).expect_err("the last line");
        assert!(error.contains("line 4: "), "{error}");
    }

    #[test]
    fn what_a_line_lacks_is_told_with_its_flag() {
        let line = |change: &str| format!("{{\"timestamp\": 1, \"input_length\": 20, \"output_length\": 3, {change}}}");
        for (text, flags, words) in [
            (
                line("\"hashes\": [1]"),
                &[][..],
                "no field `hash_ids`; the line has: timestamp, input_length, output_length, hashes. Name it",
            ),
            (line("\"hash_ids\": 4"), &[], "`hash_ids` is no list"),
            (
                line("\"hash_ids\": [4]"),
                &[],
                "a prompt of 20 tokens has 1 ids of 16 tokens each, which are 16",
            ),
            (
                line("\"hash_ids\": [4, 5], \"input_length\": 0"),
                &[],
                "`input_length` is 0, no number of tokens",
            ),
            (
                line("\"hash_ids\": [4, 5], \"output_length\": -1"),
                &[],
                "`output_length` is -1",
            ),
            (
                line("\"hash_ids\": [4, 5], \"timestamp\": -1"),
                &[],
                "--timed-trace-sec-multiplier",
            ),
            (
                line("\"hash_ids\": [4, 5], \"timestamp\": 1e300"),
                &[],
                "no time from 0 to 2678400",
            ),
            (
                line("\"hash_ids\": [4, 5], \"timestamp\": null"),
                &[],
                "`timestamp` is null",
            ),
            (
                line("\"hash_ids\": [4, 5]"),
                &["--timed-trace-label-timestamp", "at"],
                "Name it with --timed-trace-label-timestamp",
            ),
            ("[]".to_owned(), &[], "line 1: "),
            (
                line("\"hash_ids\": [4, 5], \"input_length\": 4000000000"),
                &["--timed-trace-chunk-hash-size", "4000000000"],
                "more than 268435456 tokens",
            ),
        ] {
            let error = read(flags, &text, 9).expect_err(words);
            assert!(error.contains(words), "{words}: {error}");
        }
        assert!(read(&[], &line("\"hash_ids\": [\"a\", \"b\", \"c\"]"), 9).is_ok());
        assert_eq!(parse_multiplier("0.001"), Ok(0.001));
        for bad in ["0", "-1", "inf", "nan", "x"] {
            assert!(parse_multiplier(bad).is_err(), "{bad}");
        }
    }
}
