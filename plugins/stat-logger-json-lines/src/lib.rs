//! A stat logger that writes one JSON object a line, to a file or to standard error. Also the example to copy for a
//! sink of one's own.
//!
//! Configuration: `{"path": "stats.jsonl"}` appends to that file; `{}` writes to standard error. Each line has a `type`
//! (`start`, `scheduler`, `iteration`, `finished`, `cache`, `lora`, `rejected`, `shutdown`) and the number of its
//! engine (`engine_index`); its other keys are the record's fields (docs/hooks.md). One write appends a batch, so
//! lines of several engines stay whole in one file.

mod line;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use halyard_platform_api::hooks::{Batch, StatLogger, StatLoggerFactory, StatRecord};
use halyard_platform_api::{Error, Result, Status};
use serde::Deserialize;

pub use line::line;

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
            return Ok(Box::new(JsonLines::new(
                "standard error".to_string(),
                std::io::stderr(),
            )));
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
        Ok(Box::new(JsonLines::new(path.display().to_string(), file)))
    }
}

fn vendor_code(error: &std::io::Error) -> i64 {
    error.raw_os_error().map_or(0, i64::from)
}

struct JsonLines {
    // For errors.
    name: String,
    out: Box<dyn Write + Send>,
    engine_index: u32,
    /// The lines of a batch.
    lines: Vec<u8>,
}

impl JsonLines {
    fn new(name: String, out: impl Write + Send + 'static) -> JsonLines {
        JsonLines {
            name,
            out: Box::new(out),
            engine_index: 0,
            lines: Vec::new(),
        }
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error {
            status: Status::Internal,
            vendor_code: vendor_code(error),
            message: format!("writing to {}: {error}", self.name),
        }
    }

    fn write(&mut self, records: &[StatRecord]) -> std::io::Result<()> {
        self.lines.clear();
        for record in records {
            if let StatRecord::Start(start) = record {
                self.engine_index = start.engine_index;
            }
            let mut line = line(record);
            line["engine_index"] = self.engine_index.into();
            serde_json::to_writer(&mut self.lines, &line)?;
            self.lines.push(b'\n');
        }
        self.out.write_all(&self.lines)
    }
}

impl StatLogger for JsonLines {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.write(batch.records).map_err(|e| self.failed(&e))
    }

    fn flush(&mut self, _deadline: Duration) -> Result<()> {
        self.out.flush().map_err(|e| self.failed(&e))
    }
}
