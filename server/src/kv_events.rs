//! Events of the prefix cache for routers, as vLLM publishes them: over ZeroMQ, in msgpack
//! (docs/decisions/0084-kv-cache-events.md). It stands between the engine and sockets, and never makes the engine wait.

pub mod config;
mod payload;
mod publisher;
mod sessions;
mod stream;

pub use config::KvEventsConfig;
pub use publisher::{KvEventFigures, KvEventPublisher};
