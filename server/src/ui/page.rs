//! What the page shows and the server does not know otherwise: figures, the request log, devices, the start's facts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use halyard_platform_api::DeviceInfo;
use halyard_platform_api::hooks::StartRecord;
use halyard_plugin_host::Rejection;

use super::clock::unix_ms;
use super::live::{Live, LiveFigures};
use super::plugin_facts::DeviceFacts;
use super::request_log::RequestLog;

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

    /// The figures after the second `after` (seconds since 1970), and those of the last five minutes together.
    pub fn figures(&self, after: Option<u64>) -> LiveFigures {
        self.live().figures(after, unix_ms())
    }

    /// The facts of the engine's start, once there are any.
    pub fn start(&self) -> Option<StartRecord> {
        self.start.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_start(&self, record: &StartRecord) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(record.clone());
    }

    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
