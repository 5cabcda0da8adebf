//! The engine: a model on a device, requests in, tokens and text out. Knows no vendor, no HTTP and no environment.
//!
//! Reading order: `handle` (the front door), [`params`] and `output` (what goes in and comes out), `core` (the
//! thread), `live` (sequences and what goes to their readers), `sequence` (a request's sample), `masks` and `drafts`
//! (what its next token may be), `stream` (its reader), `lora` (adapters), `pauses`, `sleeping` and `residence` (the
//! model leaves its devices and comes back), `replicas` (several engines behind one front). What touches the device is
//! `halyard-runner`.

mod command;
mod config;
mod control;
mod core;
mod drafts;
mod error;
mod facts;
mod gather;
mod guide;
mod guide_chain;
mod guide_workers;
mod handle;
mod kv_events;
mod live;
mod llm;
mod lora;
mod masks;
mod model_source;
mod model_text;
mod no_token;
mod output;
pub mod params;
mod pause;
mod pauses;
mod placement;
mod records;
mod replicas;
mod residence;
mod sequence;
mod shared;
mod sleep;
mod sleeping;
mod stats;
mod step_pace;
mod stream;

pub use config::{
    DEFAULT_MAX_MASK_TIME, DEFAULT_MAX_STEP, EngineConfig, GuideConfig, LoraConfig, ModelConfig, SchedulingConfig,
    SpeculativeConfig,
};
pub use error::{EngineError, ParamError, SubmitError};
pub use guide::{GuideFactory, GuideWatch, LogitChanges, TokenGuide};
pub use halyard_grammar::{
    Constraint, Function, GrammarConfig, GrammarError, StructuredOutputs, named_call, required_calls,
};
pub use halyard_hooks::RecordSender;
pub use halyard_runner::{
    CacheConfig, LoadProgress, ModelInfo, RecordingConfig, RunnerError, check_host_memory, kv_dtype_name,
};
pub use handle::EngineHandle;
pub use kv_events::{KvBlockHash, KvEvent, KvEventSink, KvMedium, KvStored};
pub use llm::{GenerateError, Llm};
pub use lora::{AdapterError, AdapterSource, AdapterStatus, Residency};
pub use output::{CompletionOutput, FinishReason, Logprob, OutputChunk, RequestOutput, TokenLogprobs};
pub use params::{Request, SamplingParams};
pub use pause::{ControlError, PauseMode, Reply};
pub use replicas::Replicas;
pub use sleep::{SleepLevel, SleepState, WakeTags};
pub use stats::StatsSnapshot;
pub use stream::OutputStream;
