//! Every way in which a call can be refused, with the value, the limit and the remedy in its text.

use crate::ids::{BlockId, HoldId, RequestId, RowIndex, StepId};

/// A refused call. The scheduler's state is what it was before the call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A count in the configuration is zero where at least one is needed.
    #[error("{field} is 0: it must be at least 1")]
    ZeroLimit {
        /// The configuration's field.
        field: &'static str,
    },
    /// The model has no KV group.
    #[error("groups is empty: name at least one KV group")]
    NoGroups,
    /// A limit is above what the scheduler's counters hold.
    #[error("{field} is {value}, above the limit of {limit}: lower it")]
    LimitTooLarge {
        /// The configuration's field.
        field: &'static str,
        /// The value given.
        value: u32,
        /// The largest accepted value.
        limit: u32,
    },
    /// The prompt has no token.
    #[error("request {id:?} has an empty prompt: send at least one token")]
    EmptyPrompt {
        /// The refused request.
        id: RequestId,
    },
    /// Nothing is to be generated.
    #[error("request {id:?} asks for max_tokens 0: ask for at least 1")]
    ZeroMaxTokens {
        /// The refused request.
        id: RequestId,
    },
    /// After the prompt not one generated token fits.
    #[error(
        "the prompt of request {id:?} has {tokens} tokens, but max_model_len {max_model_len} leaves room for at most \
         {}: \
         shorten the prompt or raise max_model_len", max_model_len - 1
    )]
    PromptTooLong {
        /// The refused request.
        id: RequestId,
        /// Tokens in the prompt.
        tokens: usize,
        /// The configured longest sequence, prompt and generated tokens together.
        max_model_len: u32,
    },
    /// The request could not run even alone in an empty pool.
    #[error(
        "request {id:?} needs up to {needed} KV blocks, but the pool has {total}: shorten the prompt, lower \
         max_tokens, \
         or give the KV cache more memory"
    )]
    NeverFits {
        /// The refused request.
        id: RequestId,
        /// Blocks at its greatest length, over all groups.
        needed: u64,
        /// Blocks in the pool.
        total: u32,
    },
    /// The waiting queue is at its bound.
    #[error("{waiting} requests are waiting, the limit (max_waiting) is {limit}: try again later or raise the limit")]
    QueueFull {
        /// Requests that wait now.
        waiting: usize,
        /// The configured bound.
        limit: usize,
    },
    /// A live request has this id.
    #[error("request {id:?} is already known: use a fresh id")]
    DuplicateId {
        /// The refused id.
        id: RequestId,
    },
    /// No live request has this id.
    #[error("request {id:?} is not known: it was never added or has ended")]
    UnknownRequest {
        /// The id asked for.
        id: RequestId,
    },
    /// Steps are updated in the order of planning.
    #[error("results of step {got:?} came, but the oldest step in flight is {expected:?}: update steps in order")]
    StepOutOfOrder {
        /// The step named in the call.
        got: StepId,
        /// The step whose results are due; none if nothing is in flight.
        expected: Option<StepId>,
    },
    /// A row that samples has no result.
    #[error(
        "step {step:?} samples for request {id:?}, but its result is missing: give one (it may be empty) or abort the \
         request"
    )]
    MissingResult {
        /// The step being updated.
        step: StepId,
        /// The row's request.
        id: RequestId,
    },
    /// A result belongs to no row of the step, or comes out of the step's order.
    #[error(
        "step {step:?} has no row for the result of request {id:?} at this place: give results in the order of \
         `scheduled`"
    )]
    UnexpectedResult {
        /// The step being updated.
        step: StepId,
        /// The result's request.
        id: RequestId,
    },
    /// More tokens than the row could sample.
    #[error("the result of request {id:?} in step {step:?} has {got} tokens, the row can return at most {limit}")]
    TooManyTokens {
        /// The step being updated.
        step: StepId,
        /// The result's request.
        id: RequestId,
        /// Tokens in the result.
        got: usize,
        /// Drafts plus one for a row that emits, 0 for one that does not.
        limit: u32,
    },
    /// A hold asks for more than is free.
    #[error("{asked} blocks were asked to be held, {free} are free: hold fewer or wait for requests to end")]
    NotEnoughFreeBlocks {
        /// Blocks asked for.
        asked: u32,
        /// Blocks free now.
        free: u32,
    },
    /// No such hold.
    #[error("hold {id:?} is not known: it was released or never made")]
    UnknownHold {
        /// The id asked for.
        id: HoldId,
    },
}

/// A broken invariant found by [`crate::Scheduler::check_integrity`]: a bug in the scheduler, never a user's error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IntegrityError {
    /// Free and used blocks do not add up.
    #[error("{free} free and {used} used blocks do not add up to {total}")]
    BlocksLost {
        /// Blocks on the free list.
        free: u32,
        /// Blocks with an owner.
        used: u32,
        /// Blocks in the pool.
        total: u32,
    },
    /// The second tier's index and its blocks disagree, or a plan left copies behind.
    #[error("the host tier finds {entries} blocks, {blocks} hold something")]
    HostTier {
        /// Entries of the index.
        entries: usize,
        /// Blocks that say what they hold.
        blocks: usize,
    },
    /// An adapter slot's users are not the requests that name it, or it is in use while it is being loaded.
    #[error("adapter slot {slot} counts {users} users, {counted} requests with a row and its adapter name it")]
    LoraSlot {
        /// The slot.
        slot: u32,
        /// What the slot says.
        users: u32,
        /// Requests that name it.
        counted: u32,
    },
    /// A block with an owner is on the free list, or its links are broken.
    #[error("the free list is broken at block {block:?}")]
    FreeList {
        /// Where.
        block: BlockId,
    },
    /// A block's reference count is not its number of owners.
    #[error("block {block:?} counts {counted} references, its owners are {owners}")]
    ReferenceCount {
        /// The block.
        block: BlockId,
        /// What the pool says.
        counted: u32,
        /// Table entries and holds that name it.
        owners: u32,
    },
    /// A block that a request will write is in another block table, too.
    #[error("block {block:?} will be written by request {id:?} but stands in {tables} block tables")]
    SharedWrite {
        /// The block.
        block: BlockId,
        /// The writer.
        id: RequestId,
        /// Tables that name it.
        tables: u32,
    },
    /// A block table is too short for the computed tokens, or starts after the tokens that the next step reads.
    #[error(
        "group {group} of request {id:?} has blocks {first}..{end}, but {computed} confirmed and {upper} planned \
         tokens need more"
    )]
    TableLength {
        /// The request.
        id: RequestId,
        /// The KV group.
        group: u32,
        /// First entry of the table.
        first: u32,
        /// One past the last entry.
        end: u32,
        /// Tokens computed by updated steps.
        computed: u32,
        /// Upper bound of computed tokens after all planned steps.
        upper: u32,
    },
    /// The prefix cache names a block that does not know it, or the other way round.
    #[error("the prefix cache has {entries} entries, {blocks} blocks say they are in it")]
    PrefixCache {
        /// Entries in the cache.
        entries: usize,
        /// Blocks whose entry leads back to them.
        blocks: usize,
    },
    /// A row is owned twice, or lost.
    #[error("row {row:?} has {owners} owners")]
    Row {
        /// The row.
        row: RowIndex,
        /// Requests and free entries that name it (one is right).
        owners: u32,
    },
    /// A request's counters disagree with the steps in flight.
    #[error(
        "request {id:?} counts {counted} steps in flight and {pending} pending tokens, the steps say {steps} and \
         {tokens}"
    )]
    InFlight {
        /// The request.
        id: RequestId,
        /// Its own count of steps.
        counted: u32,
        /// Its own count of tokens to come.
        pending: u32,
        /// Steps that name it.
        steps: u32,
        /// Tokens that these may return.
        tokens: u32,
    },
    /// Known and computed tokens are in an order that cannot be.
    #[error("request {id:?} has {known} known tokens, {computed} computed, {upper} at most computed")]
    Tokens {
        /// The request.
        id: RequestId,
        /// Known tokens.
        known: u32,
        /// Tokens computed by updated steps.
        computed: u32,
        /// Upper bound after all planned steps.
        upper: u32,
    },
    /// A request is in a queue that its state contradicts, or in none.
    #[error("request {id:?} is in a queue that its state contradicts")]
    Queue {
        /// The request.
        id: RequestId,
    },
    /// The waiting queue's own order or count disagrees with its requests.
    #[error("the waiting queue counts {len} requests, and its lanes or its order of adapters say otherwise")]
    WaitingQueue {
        /// Its count.
        len: usize,
    },
    /// Blocks that wait for steps in flight were counted wrongly.
    #[error("{counted} blocks are counted as draining, {found} were found")]
    Draining {
        /// The counter.
        counted: u32,
        /// In the tables of requests that drain.
        found: u32,
    },
}
