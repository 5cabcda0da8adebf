//! Delivery of records to stat loggers: a bounded queue and a thread for each sink, so that the engine never waits for
//! one.
//!
//! A sink is something that takes a batch of records within a deadline ([`StatLogger`]), in this process or elsewhere.
//! A sink that fails (a panic, an error, a slow call, a call that never returns) harms nothing else: it is quarantined,
//! named in reports, and tried again later. For each sink, accepted = delivered + dropped + pending holds exactly. This
//! crate never opens a library and never looks at a clock where a test would have to wait for it.
//!
//! Reading order: `hub` (the front door), `sender` (the engine's end), `sink` (one sink's state), `worker` (its
//! thread), `quarantine` (when it rests).

mod hub;
mod quarantine;
mod report;
mod sender;
mod sink;
mod worker;

pub use halyard_platform_api::hooks::StatLogger;
pub use hub::{HookError, Hub, HubConfig, SinkSource, SinkSpec};
pub use report::{FailureCounts, HookReport, Isolation, Reloaded, SinkReport, SinkState};
pub use sender::RecordSender;
