//! A model on a device: weights and KV memory loaded, steps encoded, recorded and submitted, results read. Knows device
//! rows and token ids; no request, no text, no client.
//!
//! Reading order: `runner` (a step, from plan to results), `flight` (a step under way), `device_model` (programs,
//! memory, and how a step is written), `step_encode` (the ops around the programs), `recording` and `self_test`
//! (decode steps recorded once), `ranks` and `group` (several devices), [`load`] (from files to a runner), `plan` (what
//! loading settles first), `compile` (programs to ops), `weight_loader`, `kv_memory`, `host_tier` and `host_copies` (KV
//! blocks in host memory).

mod buckets;
mod compile;
mod config;
mod device_model;
mod error;
mod flight;
mod group;
mod host_copies;
mod host_memory;
mod host_tier;
mod kv_memory;
pub mod load;
mod lora_memory;
mod memory;
mod model_tensors;
mod parallel;
mod plan;
mod preparer;
mod ranks;
mod read_ahead;
mod read_back;
mod recording;
mod result;
pub mod row;
mod runner;
mod scratch;
mod self_test;
mod step_encode;
mod step_ops;
mod template;
mod warm_up;
mod weight_formats;
mod weight_loader;

pub use config::{CacheConfig, LoraSlots, RecordingConfig, RunnerConfig};
pub use error::RunnerError;
pub use flight::{Flight, StepRow};
pub use group::RankGroup;
pub use host_memory::check_host_memory;
pub use load::{LoadProgress, Loaded, LoadedWeights, ModelInfo, load, load_weights};
pub use lora_memory::LoraMemory;
pub use plan::{kv_dtype, kv_dtype_name};
pub use ranks::{PanicGuard, Ranks};
pub use result::{Logprob, NoToken, Place, REMEDY, RowFault, StepResult, TokenLogprobs};
pub use row::{Constraints, LogitChanges, RowOutput, RowSpec, Sampler};
pub use runner::{Runner, StepInput};
