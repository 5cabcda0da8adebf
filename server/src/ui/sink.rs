//! The page's stat logger: hands each record to the figures and to the request log. Never blocks, never fails.

use std::sync::Arc;

use halyard_platform_api::Result;
use halyard_platform_api::hooks::{Batch, StatLogger, StatRecord};

use super::Ui;

/// The logger.
pub(super) struct UiSink {
    ui: Arc<Ui>,
}

impl UiSink {
    /// A logger that fills `ui`.
    pub(super) fn new(ui: Arc<Ui>) -> UiSink {
        UiSink { ui }
    }
}

impl StatLogger for UiSink {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut live = self.ui.live();
        for record in batch.records {
            match record {
                StatRecord::Start(record) => self.ui.set_start(record),
                StatRecord::Iteration(record) => live.iteration(record),
                StatRecord::Scheduler(record) => live.scheduler(record),
                StatRecord::Cache(record) => live.cache(record),
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
