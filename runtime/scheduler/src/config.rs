//! The scheduler's configuration, and the arithmetic of how many blocks a sequence takes. Immutable once checked.

use crate::error::Error;

/// Which request goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// In the order of [`crate::Scheduler::add`]. Only long prompts that wait for their share of a step, and requests
    /// that wait for their adapter, are overtaken.
    #[default]
    Fcfs,
    /// Lower `priority` first, then the earlier arrival, then the order of adding.
    Priority,
}

/// The tokens that the layers of a KV group keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvKind {
    /// Every past token.
    Full,
    /// A sliding window: the query at position p reads the keys p-tokens+1..=p (Hugging Face's `sliding_window`).
    Window {
        /// Keys that a query reads, its own included; at least 1.
        tokens: u32,
    },
}

/// Layers with one KV spec; they share a block table per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroup {
    /// The tokens that are kept.
    pub kind: KvKind,
    /// Tokens in one block (one page of the pool) of this group.
    pub block_size: u32,
}

/// All settings of a [`crate::Scheduler`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Device rows: requests that run at one time. Default 256.
    pub max_num_seqs: u32,
    /// Tokens computed in one step, over all rows. Default 8192.
    pub max_num_batched_tokens: u32,
    /// Longest sequence in tokens, prompt and generated. Default 8192.
    pub max_model_len: u32,
    /// Pages in the one pool that all groups share. Default 0, which is refused: only the device knows.
    pub num_blocks: u32,
    /// The model's KV groups. Default: one full group with 16 tokens a block.
    pub groups: Vec<KvGroup>,
    /// Whether requests share the blocks of equal prefixes. Default true.
    pub enable_prefix_caching: bool,
    /// Blocks of host memory for what the pool takes away from the prefix cache; 0: there is no such second tier. It
    /// needs prefix caching. Default 0.
    pub num_host_blocks: u32,
    /// Bound of the waiting queue, in requests. Default 4096.
    pub max_waiting: usize,
    /// Which request goes first. Default FCFS.
    pub policy: Policy,
    /// A prompt with more tokens to compute is long: long prompts share half of a step while others want the rest, and
    /// none of them computes more than this in one step. 0: half of a step makes a prompt long, and a long prompt that
    /// is alone fills the step. Up to an eighth more is not long: sizes are compared in classes. Default 0.
    pub long_prefill_token_threshold: u32,
    /// Slots kept allocated past the planned tokens, for a drafter that writes ahead. Default 0.
    pub num_lookahead_tokens: u32,
    /// Steps that may be planned and not yet updated: the device's asynchronous depth + 1. Default 1.
    pub max_steps_in_flight: u32,
    /// Adapters that the device holds at one time; 0: the caller places adapters itself, or has none. Default 0.
    pub num_lora_slots: u32,
    /// Key of the prefix cache's hash. Give a random one per process, so that a client cannot construct two prompts
    /// with one hash; a fixed one where runs must repeat (it never changes a plan). Default zeros.
    pub hash_key: [u64; 2],
    /// Keeps changes of the prefix cache for [`crate::Scheduler::take_kv_events`]; 32 bytes a block, and a SHA-256 of
    /// every full block. Default false: nothing is kept, hashed or allocated.
    pub enable_kv_cache_events: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            max_model_len: 8192,
            num_blocks: 0,
            groups: vec![KvGroup {
                kind: KvKind::Full,
                block_size: 16,
            }],
            enable_prefix_caching: true,
            num_host_blocks: 0,
            max_waiting: 4096,
            policy: Policy::Fcfs,
            long_prefill_token_threshold: 0,
            num_lookahead_tokens: 0,
            max_steps_in_flight: 1,
            num_lora_slots: 0,
            hash_key: [0; 2],
            enable_kv_cache_events: false,
        }
    }
}

/// Token counts stay below this, so that sums of a few of them fit in 32 bits.
const MAX_TOKENS: u32 = 1 << 30;

impl SchedulerConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::ZeroLimit`], [`Error::LimitTooLarge`] or [`Error::NoGroups`], naming the field.
    pub fn validate(&self) -> Result<(), Error> {
        let limits = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("num_blocks", self.num_blocks),
            ("max_steps_in_flight", self.max_steps_in_flight),
        ];
        for (field, value) in limits {
            at_least_one(field, value)?;
            at_most(field, value, MAX_TOKENS)?;
        }
        at_most("num_lookahead_tokens", self.num_lookahead_tokens, MAX_TOKENS)?;
        at_most("num_host_blocks", self.num_host_blocks, MAX_TOKENS)?;
        at_most("num_lora_slots", self.num_lora_slots, 1 << 16)?;
        if self.max_waiting == 0 {
            return Err(Error::ZeroLimit { field: "max_waiting" });
        }
        if self.groups.is_empty() {
            return Err(Error::NoGroups);
        }
        for group in &self.groups {
            at_least_one("groups.block_size", group.block_size)?;
            at_most("groups.block_size", group.block_size, MAX_TOKENS)?;
            if let KvKind::Window { tokens } = group.kind {
                at_least_one("groups.kind.window", tokens)?;
                at_most("groups.kind.window", tokens, MAX_TOKENS)?;
            }
        }
        Ok(())
    }

    /// Most tokens that one request computes in one step.
    pub(crate) fn max_chunk(&self) -> u32 {
        match self.long_prefill_token_threshold {
            0 => self.max_num_batched_tokens,
            threshold => threshold.min(self.max_num_batched_tokens),
        }
    }

    /// Blocks that a request with `tokens` computed tokens takes over all groups, at its worst moment: all of them
    /// in a full group, one step's chunk and the window behind it in a window group. A configuration serves
    /// `max_model_len` when this, at `max_model_len`, is at most `num_blocks`.
    pub fn blocks_for(&self, tokens: u32) -> u64 {
        self.groups
            .iter()
            .map(|group| self.group_blocks_for(group, tokens))
            .sum()
    }

    pub(crate) fn group_blocks_for(&self, group: &KvGroup, tokens: u32) -> u64 {
        let tokens = u64::from(self.with_lookahead(tokens));
        let block_size = u64::from(group.block_size);
        let all = tokens.div_ceil(block_size);
        match group.kind {
            KvKind::Full => all,
            KvKind::Window { tokens: window } => {
                let span = u64::from(window) - 1 + u64::from(self.max_chunk()) + u64::from(self.num_lookahead_tokens);
                // A span of s tokens that starts anywhere in a block touches at most this many blocks.
                all.min((span + block_size - 2) / block_size + 1)
            }
        }
    }

    /// `tokens` and the slots that a drafter may write past them.
    pub(crate) fn with_lookahead(&self, tokens: u32) -> u32 {
        (tokens + self.num_lookahead_tokens).min(self.max_model_len.max(tokens))
    }
}

fn at_least_one(field: &'static str, value: u32) -> Result<(), Error> {
    if value == 0 {
        Err(Error::ZeroLimit { field })
    } else {
        Ok(())
    }
}

fn at_most(field: &'static str, value: u32, limit: u32) -> Result<(), Error> {
    if value > limit {
        Err(Error::LimitTooLarge { field, value, limit })
    } else {
        Ok(())
    }
}
