//! What the page at `/ui` shows, kept while the server runs: the figures of the last five minutes, a bounded log of
//! requests, the platform and its devices. All of it comes from stat records and from the generation routes; nothing
//! here runs while no request does. Knows no route and no HTTP.

pub mod assets;
mod histogram;
mod live;
mod plugin_facts;
mod request_log;
mod sink;
mod timeline;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use halyard_hooks::{Isolation, SinkSource, SinkSpec};
use halyard_platform_api::DeviceInfo;
use halyard_platform_api::hooks::StartRecord;
use halyard_plugin_host::Rejection;

pub use live::{LatencyFigures, LiveFigures, SeriesColumns};
pub use plugin_facts::{DeviceFacts, PluginFacts, PluginUse, plugin_facts};
pub use request_log::{MAX_REQUESTS, RequestLog, Submitted, Ticket};
pub use timeline::RequestEntry;

use live::Live;
use sink::UiSink;

/// The name of the page's stat logger, as reports and `/metrics` show it.
pub const SINK_NAME: &str = "ui";

/// Everything that the page shows and that only this module knows.
pub struct Ui {
    /// The request log.
    pub requests: Arc<RequestLog>,
    /// The devices that the model is on, in the order of ranks.
    pub devices: Vec<DeviceFacts>,
    /// Platforms that were looked at and not chosen.
    pub rejected: Vec<Rejection>,
    live: Mutex<Live>,
    start: Mutex<Option<StartRecord>>,
}

impl Ui {
    /// A page about a model on `devices`; `rejected`: the platforms that were not chosen.
    pub fn new<'a>(devices: impl IntoIterator<Item = &'a DeviceInfo>, rejected: Vec<Rejection>) -> Arc<Ui> {
        Arc::new(Ui {
            requests: Arc::new(RequestLog::new()),
            devices: devices.into_iter().map(DeviceFacts::new).collect(),
            rejected,
            live: Mutex::new(Live::new()),
            start: Mutex::new(None),
        })
    }

    /// The stat logger that fills the page. It is linked into the program and cannot be reloaded.
    pub fn sink(self: &Arc<Self>) -> SinkSpec {
        let ui = Arc::clone(self);
        SinkSpec {
            name: SINK_NAME.to_owned(),
            source: SinkSource {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                path: None,
                isolation: Isolation::Thread,
                make: Arc::new(move || Ok(Box::new(UiSink::new(Arc::clone(&ui))))),
            },
        }
    }

    /// The figures after the second `after` (seconds since 1970), and those of the last five minutes together.
    pub fn figures(&self, after: Option<u64>) -> LiveFigures {
        self.live().figures(after, unix_ms())
    }

    /// The facts of the engine's start, once there are any.
    pub fn start(&self) -> Option<StartRecord> {
        self.start.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_start(&self, record: &StartRecord) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(record.clone());
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
