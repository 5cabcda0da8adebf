//! The scheduler's outputs and inputs: the plan of a step, the results of a step, and the events that follow from them.
//! Plain data.

use std::sync::Arc;

use crate::ids::{BlockId, HostBlockId, RequestId, RowIndex, StepId};

/// The plan of one step. Apply it to the device in this order: copies to the host, copies from the host, admissions,
/// table writes, then the rows.
///
/// The vectors keep their capacity over [`crate::Scheduler::schedule_into`] calls.
#[derive(Debug, Clone, Default)]
pub struct SchedulerOutput {
    /// Number of this step.
    pub step: StepId,
    /// Tokens computed in this step: the sum of all `query_len`.
    pub num_tokens: u32,
    /// Requests that lost their row and blocks since the last plan, oldest preemption first. They wait and will be
    /// admitted again (perhaps in this very plan) with `resumed` set. Results of steps in flight still count.
    pub preempted: Vec<RequestId>,
    /// Rows that get a new owner in this step: upload their history, length and sampling state.
    pub admitted: Vec<Admitted>,
    /// Rows to compute. Decodes and short prompts are in the policy's order (oldest first under FCFS); long prompts
    /// that got the remaining tokens may follow them. Results come back in this order.
    pub scheduled: Vec<Scheduled>,
    /// Changes of the device's block tables; the blocks are read with [`Self::blocks`].
    pub table_writes: Vec<TableWrite>,
    /// The blocks of all `table_writes`, one after another.
    pub table_blocks: Vec<BlockId>,
    /// Blocks to copy to host memory, before anything of this step changes them. Neither a block nor a block of host
    /// memory is named twice.
    pub host_stores: Vec<HostCopy>,
    /// Blocks to fill from host memory: after all of `host_stores`, which may free these blocks or bring what is read
    /// here, and before the rows.
    pub host_loads: Vec<HostCopy>,
}

impl SchedulerOutput {
    /// The blocks that `write` puts into the row's table, from entry `write.first` on.
    pub fn blocks(&self, write: &TableWrite) -> &[BlockId] {
        &self.table_blocks[write.offset as usize..(write.offset + write.len) as usize]
    }

    pub(crate) fn clear(&mut self) {
        self.num_tokens = 0;
        self.preempted.clear();
        self.admitted.clear();
        self.scheduled.clear();
        self.table_writes.clear();
        self.table_blocks.clear();
        self.host_stores.clear();
        self.host_loads.clear();
    }
}

/// A KV block in host memory and one on the device; which way the copy goes says the list that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostCopy {
    /// On the device.
    pub block: BlockId,
    /// In host memory.
    pub host: HostBlockId,
}

/// A request gets a device row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The request.
    pub id: RequestId,
    /// Its row from now on. No step in flight names it.
    pub row: RowIndex,
    /// The device slot of its adapter, while it owns the row.
    pub lora_slot: Option<u32>,
    /// Tokens whose keys and values are already in the cache: the row starts at this length.
    pub num_computed: u32,
    /// Of these, the tokens whose blocks only host memory had: the ones behind what the device could serve.
    pub num_from_host: u32,
    /// Whether it ran before and was preempted.
    pub resumed: bool,
    /// Nanoseconds from its arrival to this admission (0 if the clock ran backwards).
    pub waited_ns: u64,
    /// The row's token history, first part: the prompt, `[prompt_len]`.
    pub prompt: Arc<[u32]>,
    /// The row's token history, second part: what was generated before a preemption, `[num_generated]`.
    pub generated: Vec<u32>,
}

/// A row that takes part in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduled {
    /// The request.
    pub id: RequestId,
    /// Its row.
    pub row: RowIndex,
    /// Tokens to compute, drafts included; at least 1.
    pub query_len: u32,
    /// Upper bound of the tokens computed before this step. The device's own length may be lower, by what steps in
    /// flight reject. `num_computed_upper + query_len` bounds the KV length.
    pub num_computed_upper: u32,
    /// This chunk reaches the end of the known tokens, so the device samples: 0 to `num_drafts` + 1 tokens come back.
    pub emits: bool,
    /// Drafted tokens at the end of the query that the device verifies.
    pub num_drafts: u32,
}

/// New entries of one row's block table.
///
/// Entries in front of a window group's window go stale and are **not** rewritten: no later query reads them. The
/// same holds for what a former owner of the row left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableWrite {
    /// The row.
    pub row: RowIndex,
    /// The KV group, an index into the configuration's `groups`.
    pub group: u32,
    /// First entry to write: the block of the tokens `first * block_size..`.
    pub first: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// The result of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowResult<'a> {
    /// The row's request.
    pub id: RequestId,
    /// Sampled tokens: accepted drafts and one more; empty if the device sampled nothing, which computes the last
    /// known token again.
    pub tokens: &'a [u32],
}

/// The effect of a row's result. Rows of requests that have ended give none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update {
    /// The request.
    pub id: RequestId,
    /// Tokens that were added to it: all of the row's result.
    pub num_new_tokens: u32,
    /// Set if the request ended with these tokens.
    pub finished: Option<FinishReason>,
}

/// Why the scheduler itself ended a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It reached `max_tokens` or `max_model_len`.
    Length,
}

/// What plans may hold. Requests can be added and ended in every state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PauseState {
    /// Everything.
    #[default]
    Unpaused,
    /// Requests that own a row go on; none is admitted. One that is preempted meanwhile waits for the end of the pause.
    PausedNew,
    /// Nothing: requests that own a row keep it, with their blocks.
    PausedAll,
}
