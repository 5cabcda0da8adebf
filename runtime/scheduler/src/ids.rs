//! Newtypes for ids. They carry identity and order, and nothing else.

/// A request, named by the caller; unique among the requests that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A device row, `0..max_num_seqs`. A request owns one from admission to its end or preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowIndex(pub u32);

/// A page of the one KV pool, `0..num_blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A block of host memory, `0..num_host_blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostBlockId(pub u32);

/// A planned step. Steps are numbered from 1 without gaps, in the order of planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StepId(pub u64);

/// Blocks that something outside the scheduler holds (see [`crate::Scheduler::hold_blocks`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub u64);

/// Index of a request in the scheduler's own storage; it outlives the id when steps are still in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(pub(crate) u32);
