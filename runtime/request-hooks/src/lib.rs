//! Hooks on the path of a request: IO processors around it, LoRA resolvers before it. Foreign code runs on
//! blocking threads only, each call with a deadline; a call that fails, hangs or panics fails the requests that wait
//! for it and nothing else.
//!
//! Reading order: `guard` (a call with a deadline), `instance` (what is made anew after a panic), `io` with its
//! `metrics`, `lora`.

mod guard;
mod instance;
mod io;
mod lora;
mod metrics;

pub use guard::{CallFailure, Guard};
pub use io::{IoFailure, IoProcessors, IoRun, IoSettings};
pub use lora::{AdapterLocation, LoraResolvers, ResolveError, ResolverSettings};
