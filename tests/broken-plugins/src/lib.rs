//! Misbehaving stat loggers, for tests of the server: `panics`, `errors`, `sleeps` (for ever), `garbage` (numbers that
//! mean nothing) and `short` (a table that ends early). All in one library.

mod garbage;

use std::time::Duration;

use halyard_platform_api::hooks::{Batch, StatLogger, StatLoggerFactory};
use halyard_platform_api::{Error, Result, Status};

/// Panics on every batch.
mod panics {
    halyard_platform_api::export_stat_logger! {
        name: "panics", version: "1", about: "panics on every batch",
        factory: super::Making(|| Box::new(super::Panics)),
    }
}

/// Answers an error to every batch.
mod errors {
    halyard_platform_api::export_stat_logger! {
        name: "errors", version: "1", about: "answers an error to every batch",
        factory: super::Making(|| Box::new(super::Errors)),
    }
}

/// Never comes back from its first batch.
mod sleeps {
    halyard_platform_api::export_stat_logger! {
        name: "sleeps", version: "1", about: "sleeps for ever in its first batch",
        factory: super::Making(|| Box::new(super::Sleeps)),
    }
}

/// Makes loggers of one type.
struct Making(fn() -> Box<dyn StatLogger>);

impl StatLoggerFactory for Making {
    fn create(&self, _config: &str) -> Result<Box<dyn StatLogger>> {
        Ok((self.0)())
    }
}

struct Panics;

impl StatLogger for Panics {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        panic!("{} records are too many for me", batch.records.len());
    }
}

struct Errors;

impl StatLogger for Errors {
    fn log_batch(&mut self, _batch: &Batch<'_>) -> Result<()> {
        Err(Error::new(Status::Unavailable, "the database is away"))
    }
}

struct Sleeps;

impl StatLogger for Sleeps {
    fn log_batch(&mut self, _batch: &Batch<'_>) -> Result<()> {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
}
