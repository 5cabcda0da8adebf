//! The scheduler: a pure state machine that decides which tokens of which requests the next step computes.
//!
//! It owns the request queues, the step plan, the one pool of KV blocks with a block table per KV group, and the
//! prefix cache with its second tier in host memory. It must never read a clock (`now` is an argument), do I/O, touch a
//! device or look at a token value to plan: steps are planned from **counts**, so step N+1 may be planned while step N
//! is in flight.
//!
//! The loop of its caller:
//! ```
//! use halyard_scheduler::{NewRequest, RequestId, RowResult, Scheduler, SchedulerConfig};
//! # fn main() -> Result<(), halyard_scheduler::Error> {
//! let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 64, ..SchedulerConfig::default() })?;
//! scheduler.add(NewRequest::new(RequestId(1), vec![3, 5, 8], 2))?;
//! while let Some(step) = scheduler.schedule(0) {
//!     // The device would upload `step`'s deltas, run it, and return 0 to k+1 tokens for each row that emits.
//!     let emits = step.scheduled.iter().filter(|row| row.emits);
//!     let results: Vec<_> = emits.map(|row| RowResult { id: row.id, tokens: &[7] }).collect();
//!     for update in scheduler.update(step.step, &results)? {
//!         println!("{:?}: {} new, finished: {:?}", update.id, update.num_new_tokens, update.finished);
//!     }
//! }
//! assert_eq!(scheduler.counts().free_blocks, 64);
//! # Ok(())
//! # }
//! ```
//!
//! Words used everywhere: *known* tokens are the prompt and what was sampled and read back; the *upper bound* adds
//! what steps in flight may still return; *computed* tokens have their keys and values in the cache.

mod admit;
mod block_pool;
mod block_table;
mod budget;
mod config;
mod error;
mod host_tier;
mod ids;
mod integrity;
mod kv_events;
mod kv_groups;
mod lora;
mod lora_slots;
mod output;
mod pause;
mod plan;
mod prefix_cache;
mod queue;
mod request;
mod scheduler;
mod siphash;
mod update;

pub use config::{KvGroup, KvKind, Policy, SchedulerConfig};
pub use error::{Error, IntegrityError};
pub use ids::{BlockId, HoldId, HostBlockId, RequestId, RowIndex, StepId};
pub use kv_events::{KvBlockHash, KvEvent, KvMedium, KvStored};
pub use lora_slots::{LoraLoad, LoraResident};
pub use output::{
    Admitted, FinishReason, HostCopy, PauseState, RowResult, Scheduled, SchedulerOutput, TableWrite, Update,
};
pub use request::NewRequest;
pub use scheduler::{Counts, Hold, Scheduler};
