//! The scheduler's state, and the calls that add or remove requests: add, abort, finish, hold. Planning a step is in
//! `plan.rs`, its results in `update.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::budget::StepBudget;
use crate::config::SchedulerConfig;
use crate::error::Error;
use crate::host_tier::HostTier;
use crate::ids::{BlockId, HoldId, RequestId, RowIndex, Slot, StepId};
use crate::kv_events::{KvEvent, KvEventLog};
use crate::kv_groups::{KvCache, Tiers};
use crate::lora_slots::LoraSlots;
use crate::output::PauseState;
use crate::queue::{Lane, LaneHead, PROBED_TOKENS, QueueKey, WaitingQueue};
use crate::request::{NewRequest, Request, Requests, State};

/// Blocks held from outside, for instance while a KV transfer reads or fills them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Give this to [`Scheduler::release_blocks`].
    pub id: HoldId,
    /// The blocks; no other request gets them while the hold lasts.
    pub blocks: Vec<BlockId>,
}

/// Gauges and counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests that own a row.
    pub running: usize,
    /// Requests that wait, preempted ones included.
    pub waiting: usize,
    /// Steps planned and not yet updated.
    pub steps_in_flight: usize,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Blocks that can be taken, cached content or not.
    pub free_blocks: u32,
    /// Blocks with an owner: `total_blocks - free_blocks`.
    pub used_blocks: u32,
    /// Blocks whose content the prefix cache can find, owned or not.
    pub cached_blocks: usize,
    /// Blocks in holds (one held twice counts twice).
    pub held_blocks: usize,
    /// Waiting requests that plans looked at since the start, admitted ones included. It does not grow with what waits.
    pub waiting_visits: u64,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache by admitted requests since the start.
    pub prefix_queries: u64,
    /// Tokens found there since the start, on the device.
    pub prefix_hits: u64,
    /// Tokens looked up in the second tier since the start: those that were not found on the device.
    pub host_prefix_queries: u64,
    /// Tokens found there since the start.
    pub host_prefix_hits: u64,
    /// Blocks of the second tier.
    pub host_blocks: u32,
    /// Of these, those that hold something.
    pub host_cached_blocks: usize,
    /// Blocks copied to the second tier since the start.
    pub host_stored_blocks: u64,
    /// Blocks copied back since the start.
    pub host_loaded_blocks: u64,
    /// Blocks of the second tier that lost their content to another one since the start.
    pub host_evicted_blocks: u64,
}

/// A row of a step in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlightRow {
    pub(crate) slot: Slot,
    pub(crate) id: RequestId,
    pub(crate) query_len: u32,
    pub(crate) num_drafts: u32,
    pub(crate) emits: bool,
}

/// A step that was planned and not yet updated.
#[derive(Debug)]
pub(crate) struct InFlightStep {
    pub(crate) step: StepId,
    pub(crate) rows: Vec<InFlightRow>,
}

/// The state machine; see the crate's documentation for its loop.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) requests: Requests,
    /// Only asked by id: its order never reaches a plan.
    pub(crate) by_id: HashMap<RequestId, Slot>,
    pub(crate) waiting: WaitingQueue,
    /// Requests with a row, in the policy's order: the last one is preempted first.
    pub(crate) running: Vec<Slot>,
    /// Blocks of preempted and ended requests that wait for steps in flight (shared ones counted, too).
    pub(crate) num_draining_blocks: u32,
    pub(crate) free_rows: BTreeSet<RowIndex>,
    pub(crate) kv: KvCache,
    pub(crate) loras: LoraSlots,
    /// Adapters without a slot that the current plan passed over, with the number of requests admitted before; empty
    /// between plans.
    pub(crate) skipped: Vec<(u32, u32)>,
    /// Memory for the first requests of the lanes.
    pub(crate) heads: Vec<LaneHead>,
    pub(crate) waiting_visits: u64,
    /// Most prompt tokens of a step; 0: no bound.
    pub(crate) max_prompt_tokens: u32,
    pub(crate) pause: PauseState,
    /// Whether the next plan takes requests that wait.
    pub(crate) admits: bool,
    /// First new entry of each planned row's block tables, one a KV group; empty between plans.
    pub(crate) first_entries: Vec<u32>,
    pub(crate) in_flight: VecDeque<InFlightStep>,
    /// Row lists of updated steps, for the next ones.
    pub(crate) spare_rows: Vec<Vec<InFlightRow>>,
    pub(crate) last_step: StepId,
    pub(crate) unreported_preemptions: Vec<RequestId>,
    /// The head of the queue that could not be admitted (its place in the order of adding) and the pool's release
    /// count then: as long as nothing was freed, trying again is useless.
    pub(crate) blocked_head: Option<(u64, u64)>,
    pub(crate) holds: BTreeMap<HoldId, Vec<BlockId>>,
    next_hold: u64,
    next_seq: u64,
    pub(crate) preemptions: u64,
    pub(crate) prefix_queries: u64,
    pub(crate) prefix_hits: u64,
    pub(crate) host_prefix_queries: u64,
    pub(crate) host_prefix_hits: u64,
}

impl Scheduler {
    /// A scheduler with an empty pool and no requests.
    ///
    /// # Errors
    /// What [`SchedulerConfig::validate`] says.
    pub fn new(config: SchedulerConfig) -> Result<Self, Error> {
        config.validate()?;
        Ok(Self {
            requests: Requests::default(),
            by_id: HashMap::new(),
            waiting: WaitingQueue::default(),
            running: Vec::new(),
            num_draining_blocks: 0,
            free_rows: (0..config.max_num_seqs).map(RowIndex).collect(),
            kv: KvCache::new(&config),
            loras: LoraSlots::new(config.num_lora_slots),
            skipped: Vec::new(),
            heads: Vec::new(),
            waiting_visits: 0,
            first_entries: Vec::new(),
            max_prompt_tokens: 0,
            pause: PauseState::Unpaused,
            admits: true,
            in_flight: VecDeque::new(),
            spare_rows: Vec::new(),
            last_step: StepId(0),
            unreported_preemptions: Vec::new(),
            blocked_head: None,
            holds: BTreeMap::new(),
            next_hold: 0,
            next_seq: 0,
            preemptions: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            host_prefix_queries: 0,
            host_prefix_hits: 0,
            config,
        })
    }

    /// Bounds the prompt tokens of the next steps, because steps take too long; 0: no bound. Tokens of decodes are not
    /// bounded by it.
    pub fn set_max_prompt_tokens(&mut self, tokens: u32) {
        self.max_prompt_tokens = tokens;
    }

    /// Whether the next plans take requests that wait; true at first.
    pub fn set_admits(&mut self, admits: bool) {
        self.admits = admits;
    }

    /// Whether requests wait.
    pub fn has_waiting(&self) -> bool {
        self.waiting.len() > 0
    }

    /// Whether at least half of the running requests have come to their end but for `steps` steps, by their lengths,
    /// and prompts as long as theirs fit into a step and a half (those that are cached count too). False while a prompt
    /// is computed: a plan without what waits would give that prompt all of its tokens.
    pub fn half_end_within(&self, steps: u32) -> bool {
        let (mut ends, mut tokens) = (0, 0);
        for slot in &self.running {
            let request = &self.requests[*slot];
            let known = request.num_known_upper();
            if known - request.num_computed_upper > 1 {
                return false;
            }
            // One that was never longer is not at its end but at its beginning.
            let was_longer = request.max_len - request.prompt.len() as u32 > steps;
            if was_longer && request.max_len - known <= steps {
                ends += 1;
                tokens += request.prompt.len();
            }
        }
        let most = StepBudget::new(&self.config, self.max_prompt_tokens, 0).prompt_left() as usize;
        ends > 0 && 2 * ends >= self.running.len() && tokens <= most + most / 2
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Puts a request into the waiting queue.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::ZeroMaxTokens`], [`Error::PromptTooLong`], [`Error::NeverFits`],
    /// [`Error::DuplicateId`] for the request itself; [`Error::QueueFull`] when it may be tried again later.
    pub fn add(&mut self, new: NewRequest) -> Result<(), Error> {
        let max_len = self.check_new(&new)?;
        let seq = self.next_seq;
        self.next_seq += 1;
        let key = QueueKey::new(self.config.policy, new.priority, new.arrival_ns, seq);
        let slot = self.requests.insert(Request {
            id: new.id,
            prompt: new.prompt,
            generated: Vec::new(),
            max_len,
            key,
            arrival_ns: new.arrival_ns,
            cache_salt: new.cache_salt,
            lora: new.lora,
            lora_name: new.lora_name,
            cacheable: new.cacheable,
            num_drafts: 0,
            state: State::Waiting,
            was_admitted: false,
            row: None,
            lora_slot: None,
            lane: Lane::new(None, 1),
            wanted_hint: 1,
            is_draining: false,
            planned: None,
            tables: self.kv.empty_tables(),
            num_computed: 0,
            num_computed_upper: 0,
            num_pending: 0,
            num_in_flight: 0,
            chains: Vec::new(),
            cache_epoch: 0,
        });
        self.by_id.insert(new.id, slot);
        let request = &mut self.requests[slot];
        let hit = self.kv.find_prefix(request, PROBED_TOKENS, Tiers::DeviceAndHost);
        if hit.saturating_add(self.kv.alignment()) <= PROBED_TOKENS {
            request.wanted_hint = request.num_known() - hit;
        }
        // Without slots of the scheduler's own, requests do not wait for adapters.
        request.lane = Lane::new(new.lora.filter(|_| self.loras.is_on()), request.wanted_hint);
        self.waiting.insert(key, slot, request.lane);
        Ok(())
    }

    /// The request's greatest length in tokens, or why it is refused.
    fn check_new(&self, new: &NewRequest) -> Result<u32, Error> {
        let id = new.id;
        let max_model_len = self.config.max_model_len;
        let tokens = new.prompt.len();
        if tokens == 0 {
            return Err(Error::EmptyPrompt { id });
        }
        if new.max_tokens == 0 {
            return Err(Error::ZeroMaxTokens { id });
        }
        if tokens >= max_model_len as usize {
            return Err(Error::PromptTooLong {
                id,
                tokens,
                max_model_len,
            });
        }
        let max_len = (tokens as u32).saturating_add(new.max_tokens).min(max_model_len);
        // The last token is sampled, never computed.
        let (needed, total) = (self.config.blocks_for(max_len - 1), self.kv.pool.total());
        if needed > u64::from(total) {
            return Err(Error::NeverFits { id, needed, total });
        }
        if self.by_id.contains_key(&id) {
            return Err(Error::DuplicateId { id });
        }
        let (waiting, limit) = (self.waiting.len(), self.config.max_waiting);
        if waiting >= limit {
            return Err(Error::QueueFull { waiting, limit });
        }
        Ok(max_len)
    }

    /// Ends a request in whatever state it is, because its output is no longer wanted. Results still in flight are
    /// dropped; its row and blocks return when the last step that names it was updated. False if it is not known.
    pub fn abort(&mut self, id: RequestId) -> bool {
        match self.by_id.get(&id) {
            Some(&slot) => {
                self.end(slot);
                true
            }
            None => false,
        }
    }

    /// Ends a request because the engine found its end (a stop token or string) in what it generated. The same as
    /// [`Self::abort`] for the scheduler: surplus tokens in flight are dropped. False if it is not known.
    pub fn finish(&mut self, id: RequestId) -> bool {
        self.abort(id)
    }

    /// Ends a request whose keys and values must not be used again, because what was computed from them is no number.
    /// As [`Self::abort`], and the prefix cache forgets every block of the request's tokens, also those that other
    /// requests computed: which of them is bad is not known. Requests that share some go on with what they
    /// have. False if the request is not known.
    pub fn discard(&mut self, id: RequestId) -> bool {
        match self.by_id.get(&id) {
            Some(&slot) => {
                self.kv.forget(&mut self.requests[slot]);
                self.end(slot);
                true
            }
            None => false,
        }
    }

    /// Sets how many tokens the request's decode steps draft from the next plan on (0 at first).
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_num_drafts(&mut self, id: RequestId, num_drafts: u32) -> Result<(), Error> {
        let slot = *self.by_id.get(&id).ok_or(Error::UnknownRequest { id })?;
        self.requests[slot].num_drafts = num_drafts;
        Ok(())
    }

    /// Takes `num_blocks` free blocks for something outside the scheduler. What they held is not moved to the second
    /// tier, as they may be written before the next step.
    ///
    /// # Errors
    /// [`Error::NotEnoughFreeBlocks`]; nothing is held then.
    pub fn hold_blocks(&mut self, num_blocks: u32) -> Result<Hold, Error> {
        let free = self.kv.pool.num_free();
        if num_blocks > free {
            return Err(Error::NotEnoughFreeBlocks {
                asked: num_blocks,
                free,
            });
        }
        let blocks = (0..num_blocks).filter_map(|_| self.kv.take_block(false)).collect();
        Ok(self.hold(blocks))
    }

    /// Holds the blocks that a request owns now, group by group in table order, beyond its end: none of them is
    /// given to another request before the release. The request itself still writes what it has not computed.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn hold_request_blocks(&mut self, id: RequestId) -> Result<Hold, Error> {
        let slot = *self.by_id.get(&id).ok_or(Error::UnknownRequest { id })?;
        let tables = &self.requests[slot].tables;
        let blocks: Vec<BlockId> = tables.iter().flat_map(|table| table.blocks.iter().copied()).collect();
        for block in &blocks {
            self.kv.pool.add_ref(*block);
        }
        Ok(self.hold(blocks))
    }

    fn hold(&mut self, blocks: Vec<BlockId>) -> Hold {
        let id = HoldId(self.next_hold);
        self.next_hold += 1;
        self.holds.insert(id, blocks.clone());
        Hold { id, blocks }
    }

    /// Gives the blocks of a hold back.
    ///
    /// # Errors
    /// [`Error::UnknownHold`].
    pub fn release_blocks(&mut self, id: HoldId) -> Result<(), Error> {
        let blocks = self.holds.remove(&id).ok_or(Error::UnknownHold { id })?;
        for block in blocks.into_iter().rev() {
            self.kv.pool.release(block);
        }
        Ok(())
    }

    /// Forgets all cached prefixes, in both tiers, for instance because the weights changed. Requests that run go on
    /// with what they have, but nothing of it is cached any more. Returns the number of forgotten blocks.
    pub fn reset_prefix_cache(&mut self) -> usize {
        self.blocked_head = None;
        self.kv.reset_prefix_cache()
    }

    /// The changes of the prefix cache since the last call, in their order; empty where
    /// [`SchedulerConfig::enable_kv_cache_events`] is false. Take them after every step: what is kept grows by what the
    /// steps since the last call changed.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        self.kv.events.as_mut().map_or_else(Vec::new, KvEventLog::take)
    }

    /// Requests that own a row, in the policy's order.
    pub fn running_ids(&self) -> impl Iterator<Item = RequestId> {
        self.running.iter().map(|slot| self.requests[*slot].id)
    }

    /// Whether no request is known and no step is in flight.
    pub fn is_idle(&self) -> bool {
        self.by_id.is_empty() && self.in_flight.is_empty()
    }

    /// Gauges and counters now.
    pub fn counts(&self) -> Counts {
        let (pool, host) = (&self.kv.pool, self.kv.host.as_ref());
        Counts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            steps_in_flight: self.in_flight.len(),
            total_blocks: pool.total(),
            free_blocks: pool.num_free(),
            used_blocks: pool.total() - pool.num_free(),
            cached_blocks: self.kv.cache.len(),
            held_blocks: self.holds.values().map(Vec::len).sum(),
            waiting_visits: self.waiting_visits,
            preemptions: self.preemptions,
            prefix_queries: self.prefix_queries,
            prefix_hits: self.prefix_hits,
            host_prefix_queries: self.host_prefix_queries,
            host_prefix_hits: self.host_prefix_hits,
            host_blocks: host.map_or(0, HostTier::total),
            host_cached_blocks: host.map_or(0, HostTier::len),
            host_stored_blocks: host.map_or(0, |tier| tier.num_stored),
            host_loaded_blocks: host.map_or(0, |tier| tier.num_loaded),
            host_evicted_blocks: host.map_or(0, |tier| tier.num_evicted),
        }
    }

    pub(crate) fn end(&mut self, slot: Slot) {
        let request = &mut self.requests[slot];
        let (id, key, lane, state) = (request.id, request.key, request.lane, request.state);
        request.state = State::Ended;
        self.by_id.remove(&id);
        self.unreported_preemptions.retain(|preempted| *preempted != id);
        match state {
            State::Waiting => self.waiting.remove(key, lane),
            State::Running => {
                if let Ok(index) = self.running_index(key) {
                    self.running.remove(index);
                }
            }
            State::Ended => {}
        }
        self.release_if_drained(slot);
    }

    /// The index of a key in the running list, or the index to insert it at.
    pub(crate) fn running_index(&self, key: QueueKey) -> Result<usize, usize> {
        self.running.binary_search_by_key(&key, |slot| self.requests[*slot].key)
    }

    /// Frees row and blocks of a request that does not run, unless steps in flight still name it.
    pub(crate) fn release_if_drained(&mut self, slot: Slot) {
        let request = &mut self.requests[slot];
        debug_assert!(request.state != State::Running);
        if request.num_in_flight > 0 {
            if !std::mem::replace(&mut request.is_draining, true) {
                self.num_draining_blocks += request.num_blocks();
            }
            return;
        }
        if std::mem::take(&mut request.is_draining) {
            self.num_draining_blocks -= request.num_blocks();
        }
        self.kv.free_tables(&mut request.tables);
        if let Some(row) = request.row.take() {
            self.free_rows.insert(row);
        }
        if let Some(lora) = request.lora_slot.take() {
            self.loras.release(lora);
        }
        request.num_computed = 0;
        request.num_computed_upper = 0;
        let ended = request.state == State::Ended;
        if ended {
            self.requests.remove(slot);
        }
    }
}
