//! The page's stat logger: hands each record to the figures and to the request log. Never blocks, never fails.

use std::sync::Arc;

use halyard_hooks::{Isolation, SinkSource, SinkSpec};
use halyard_platform_api::Result;
use halyard_platform_api::hooks::{Batch, StatLogger, StatRecord};

use super::page::Ui;

/// The name of the page's stat logger, as reports and `/metrics` show it.
pub const SINK_NAME: &str = "ui";

/// The logger of one engine.
struct UiSink {
    ui: Arc<Ui>,
    engine: usize,
}

/// The stat logger that fills the page with the records of engine `engine`, counted from 0. It is linked into the
/// program and cannot be reloaded.
pub fn sink(ui: &Arc<Ui>, engine: usize) -> SinkSpec {
    let ui = Arc::clone(ui);
    SinkSpec {
        name: SINK_NAME.to_owned(),
        source: SinkSource {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            path: None,
            isolation: Isolation::Thread,
            make: Arc::new(move || {
                Ok(Box::new(UiSink {
                    ui: Arc::clone(&ui),
                    engine,
                }))
            }),
        },
    }
}

impl StatLogger for UiSink {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut live = self.ui.live();
        for record in batch.records {
            match record {
                // The first engine stands for all: they are alike.
                StatRecord::Start(record) if self.engine == 0 => self.ui.set_start(record),
                StatRecord::Start(_) => {}
                StatRecord::Iteration(record) => live.iteration(record),
                StatRecord::Scheduler(record) => live.scheduler(self.engine, record),
                StatRecord::Cache(record) => live.cache(self.engine, record),
                StatRecord::Finished(record) => {
                    live.finished(record);
                    self.ui.requests.finished(record);
                }
                // Refused requests are noted by their routes, adapters and the end are asked of the engine.
                StatRecord::Rejected(_) | StatRecord::Lora(_) | StatRecord::Shutdown(_) => {}
            }
        }
        Ok(())
    }
}
