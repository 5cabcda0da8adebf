//! The engine: a model on a device, requests in, tokens and text out. Knows no vendor, no HTTP and no environment.
//!
//! Reading order: [`handle`] (the front door), [`params`] and [`output`] (what goes in and comes out), `core` (the thread),
//! `runner` (a step on the device), `recording` (steps recorded and replayed), `plan` and `load` (from files to a runner), `state` (device rows), `compile` (programs to ops), `parallel` and `rank` (several devices), `lora` (adapters).

mod collective;
mod compile;
pub mod config;
mod core;
pub mod error;
pub mod handle;
mod kv_memory;
mod life;
mod llm;
mod load;
mod lora;
mod no_token;
pub mod output;
mod parallel;
pub mod params;
mod plan;
mod rank;
mod recording;
mod runner;
mod self_check;
mod sequence;
mod state;
mod stats;
mod step_encode;
mod step_ops;
mod step_pace;
mod stream;
mod warm_up;
mod weight_loader;

pub use config::{
    CacheConfig, DEFAULT_MAX_STEP, EngineConfig, LoraConfig, ModelConfig, RecordingConfig, SchedulingConfig,
};
pub use error::{EngineError, ParamError, SubmitError};
pub use halyard_hooks::RecordSender;
pub use handle::EngineHandle;
pub use llm::{GenerateError, Llm};
pub use load::{LoadProgress, ModelInfo};
pub use lora::{AdapterError, AdapterSource, AdapterStatus, Residency};
pub use output::{CompletionOutput, FinishReason, Logprob, OutputChunk, RequestOutput, TokenLogprobs};
pub use params::{Request, SamplingParams};
pub use stats::StatsSnapshot;
pub use stream::OutputStream;
