//! What the page at `/ui` shows, kept while the server runs: the figures of the last five minutes, a bounded log of
//! requests, the platform and its devices. All of it comes from stat records and from the generation routes; nothing
//! here runs while no request does. Knows no route and no HTTP.

pub mod assets;
mod clock;
mod histogram;
mod live;
mod page;
mod plugin_facts;
mod request_log;
mod sink;
mod timeline;

pub use live::{LatencyFigures, LiveFigures, SeriesColumns};
pub use page::Ui;
pub use plugin_facts::{DeviceFacts, PluginFacts, PluginUse, plugin_facts};
pub use request_log::{MAX_REQUESTS, RequestLog, Submitted, Ticket};
pub use sink::{SINK_NAME, sink};
pub use timeline::RequestEntry;
