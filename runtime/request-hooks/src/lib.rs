//! Hooks on the path of a request: IO processors around it, LoRA resolvers before it, logits processors before each of
//! its tokens. Foreign code runs on blocking threads (what is called before each token, on the engine's threads for
//! that), each call with a deadline; a call that fails, hangs or panics fails the requests that wait for it and nothing
//! else.
//!
//! Reading order: `guard` (a call with a deadline), `instance` (what is made anew after a panic), `entry` (a processor
//! with its `metrics`), `io`, `logits`, `lora`.

mod entry;
mod guard;
mod instance;
mod io;
mod logits;
mod lora;
mod metrics;

pub use entry::{Failed, ProcessorFailure, ProcessorKind};
pub use guard::{CallFailure, Guard};
pub use io::{IoProcessors, IoRun, IoSettings};
pub use logits::{LogitsProcessors, OpenedLogits, SampleLogits};
pub use lora::{AdapterLocation, LoraResolvers, ResolveError, ResolverSettings};
