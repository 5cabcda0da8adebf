//! A stat logger that writes one JSON object a line, to a file or to standard error. Also the example to copy for a sink of one's own.
//!
//! Configuration: `{"path": "stats.jsonl"}` appends to that file; `{}` writes to standard error. Each line has a `type`: `step` after an
//! engine step, `finished` at a request's end; its other keys are the record's fields.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use halyard_platform_api::hooks::{FinishedRecord, StatLogger, StatLoggerFactory, StatRecord, StepRecord};
use halyard_platform_api::{Error, Result, Status};
use serde::{Deserialize, Serialize};

halyard_platform_api::export_stat_logger! {
    name: "json-lines",
    version: env!("CARGO_PKG_VERSION"),
    about: "one JSON object a line, to a file or to standard error",
    factory: JsonLinesFactory,
}

/// Makes the loggers.
pub struct JsonLinesFactory;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    path: Option<PathBuf>,
}

impl StatLoggerFactory for JsonLinesFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        let config: Config = serde_json::from_str(config)
            .map_err(|e| Error::invalid(format!("configuration {config}: {e}; the only key is `path`, a text")))?;
        let Some(path) = config.path else {
            return Ok(Box::new(JsonLines {
                name: "standard error".to_string(),
                out: BufWriter::new(Box::new(std::io::stderr())),
            }));
        };
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(|e| {
            let message = format!(
                "configuration key `path`: {} cannot be opened for appending: {e}",
                path.display()
            );
            Error {
                status: Status::InvalidArgument,
                vendor_code: vendor_code(&e),
                message,
            }
        })?;
        Ok(Box::new(JsonLines {
            name: path.display().to_string(),
            out: BufWriter::new(Box::new(file)),
        }))
    }
}

fn vendor_code(error: &std::io::Error) -> i64 {
    error.raw_os_error().map_or(0, i64::from)
}

struct JsonLines {
    // For errors.
    name: String,
    out: BufWriter<Box<dyn Write + Send>>,
}

impl JsonLines {
    fn failed(&self, error: &std::io::Error) -> Error {
        Error {
            status: Status::Internal,
            vendor_code: vendor_code(error),
            message: format!("writing to {}: {error}", self.name),
        }
    }

    fn write(&mut self, line: &Line) -> std::io::Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }
}

impl StatLogger for JsonLines {
    fn record(&mut self, records: &[StatRecord]) -> Result<()> {
        for record in records {
            let line = Line::from(record);
            self.write(&line).map_err(|e| self.failed(&e))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|e| self.failed(&e))
    }
}

/// A record as it is written.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Step {
        unix_ns: u64,
        step_index: u64,
        step_ns: u64,
        num_running: u32,
        num_waiting: u32,
        num_preempted: u32,
        prompt_tokens: u64,
        generation_tokens: u64,
        kv_cache_usage: f64,
        prefix_cache_queries: u64,
        prefix_cache_hits: u64,
        dropped_records: u64,
    },
    Finished {
        unix_ns: u64,
        request: u64,
        reason: &'static str,
        prompt_tokens: u64,
        cached_tokens: u64,
        generation_tokens: u64,
        queue_ns: u64,
        /// Absent when no token came.
        #[serde(skip_serializing_if = "Option::is_none")]
        first_token_ns: Option<u64>,
        total_ns: u64,
    },
}

impl From<&StatRecord> for Line {
    fn from(record: &StatRecord) -> Line {
        match record {
            StatRecord::Step(step) => Line::step(step),
            StatRecord::Finished(finished) => Line::finished(finished),
        }
    }
}

impl Line {
    fn step(step: &StepRecord) -> Line {
        Line::Step {
            unix_ns: step.unix_ns,
            step_index: step.step_index,
            step_ns: step.step_ns,
            num_running: step.num_running,
            num_waiting: step.num_waiting,
            num_preempted: step.num_preempted,
            prompt_tokens: step.prompt_tokens,
            generation_tokens: step.generation_tokens,
            kv_cache_usage: step.kv_cache_usage,
            prefix_cache_queries: step.prefix_cache_queries,
            prefix_cache_hits: step.prefix_cache_hits,
            dropped_records: step.dropped_records,
        }
    }

    fn finished(finished: &FinishedRecord) -> Line {
        Line::Finished {
            unix_ns: finished.unix_ns,
            request: finished.request,
            reason: match finished.reason {
                0 => "stop",
                1 => "length",
                2 => "abort",
                3 => "error",
                _ => "unknown",
            },
            prompt_tokens: finished.prompt_tokens,
            cached_tokens: finished.cached_tokens,
            generation_tokens: finished.generation_tokens,
            queue_ns: finished.queue_ns,
            first_token_ns: Some(finished.first_token_ns).filter(|&ns| ns != 0),
            total_ns: finished.total_ns,
        }
    }
}
