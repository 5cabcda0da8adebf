//! The contract between Halyard and everything it loads: traits, op catalogue, wire tables, export macros.
//!
//! The same traits stand at both ends. A backend implements [`Device`] and its neighbours; the C tables of [`abi`]
//! carry them across the library boundary; the host gets back something that implements the same traits. This crate
//! must never open a library, start a thread or name a vendor.
//!
//! Reading order: [`device`] (objects), [`ops`] (what they compute), [`program`] (composites), [`attention`], [`abi`].

pub mod abi;
pub mod attention;
pub mod communicator;
pub mod device;
pub mod dtype;
pub mod e4m3;
mod export;
pub mod hooks;
pub mod info;
pub mod io_processor;
pub mod log;
pub mod logits_processor;
pub mod lora_resolver;
pub mod manifest;
pub mod open;
pub mod ops;
pub mod prepared;
pub mod program;
pub mod slots;
pub mod status;
pub mod submit_mark;
pub mod tensor;
pub mod weight_format;

pub use attention::{AttentionBackendInfo, AttentionPlan, AttentionRegistry, NoAttention};
pub use communicator::{Collective, CollectiveKind, Communicator, CommunicatorDesc, CommunicatorId};
pub use device::{
    Buffer, BufferKind, CommandBuffer, CommandId, Device, Encoder, EncoderMode, MAX_STEP_WRITE_BYTES, OpRegistry,
    OpSupport, Platform, Queue, QueueId, QueueKind, QueueWait, StepWrite,
};
pub use dtype::DType;
pub use info::{Capabilities, DTypeSet, DeviceInfo, MemoryInfo};
pub use manifest::LinkedPlugin;
pub use open::OpenOptions;
pub use ops::{Access, OpSpec, Operand};
pub use prepared::{OpId, PreparedInfo, PreparedOp, WeightRows};
pub use program::{Claim, ClaimReport, Node, Program, TensorDecl};
pub use slots::Slots;
pub use status::{Error, Result, Status};
pub use submit_mark::SubmitMark;
pub use tensor::{BufferId, Tensor};
pub use weight_format::WeightFormat;
