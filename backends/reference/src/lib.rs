//! The reference backend: every catalogue op in plain f32, obvious before fast. It is the oracle of every test, the
//! template that a vendor copies and the host fallback. It must never contain `unsafe`, hidden state or a clever
//! algorithm.
//!
//! Reading order: [`platform`](ReferencePlatform), `device`, `memory`, `encoder`, `queue`, `prepared`, then `ops/*`,
//! one family a file. Every op has the same shape: load the operands as `Vec<f32>` or `Vec<i32>`, compute with loops,
//! store.

#![deny(unsafe_code)]

mod attention_registry;
mod communicator;
mod composite;
mod device;
mod element;
mod encoder;
mod export;
mod handles;
mod held;
mod memory;
mod operand;
mod ops;
pub mod philox;
mod platform;
mod prepared;
mod queue;
mod support;

pub use attention_registry::KvLayout;
pub use export::plugin;
pub use platform::{ReferenceOptions, ReferencePlatform};
