//! Admission: which waiting requests get a row in this step, in the policy's order. Two kinds may be passed over:
//! requests that wait for their adapter ([`crate::lora_slots`]), and long prompts while another long prompt uses the
//! share of the step for long prompts.
//!
//! A plan looks at the first request of each lane ([`crate::queue`]) and at a bounded number of adapters that are not
//! on the device. So its time does not grow with the number of requests that wait.

use crate::ids::{RowIndex, Slot};
use crate::kv_groups::Tiers;
use crate::lora_slots::{MAX_OVERTAKEN, MAX_SKIPPED};
use crate::output::Admitted;
use crate::plan::{Chunk, Draft};
use crate::queue::{Lane, LaneHead, QueueKey};
use crate::request::State;
use crate::scheduler::Scheduler;

/// Requests of one plan that turn out to be longer than was known, which puts them into another lane. Looking up a
/// prefix takes time; more of them wait for the next plan.
const MAX_MOVED: usize = 16;

/// The outcome for a waiting request.
enum Admission {
    /// It has a row and tokens.
    Done,
    /// It is long, and the share of long prompts is used up. Others of its lane are as long.
    TooLong,
    /// It is longer than was known, and is in another lane now.
    Moved,
    /// Rows, blocks or tokens are short: no request behind it is admitted either.
    Blocked,
}

/// What a plan's first admission left.
#[derive(Debug, Default)]
pub(crate) struct PassedOver {
    /// Long prompts wait for tokens that nobody else wants.
    has_long: bool,
    /// The request that could not be admitted, if one could not: none behind it is.
    before: Option<QueueKey>,
}

impl Scheduler {
    /// Admits waiting requests in the policy's order while tokens, rows and blocks last. The first that cannot be
    /// admitted ends it, except those that others may overtake.
    pub(crate) fn admit_waiting(&mut self, now_ns: u64, draft: &mut Draft<'_>) -> PassedOver {
        let mut passed = PassedOver::default();
        let mut heads = self.lane_heads(draft, &mut passed);
        if heads.is_empty() && self.waiting.len() == 0 {
            self.heads = heads;
            return passed;
        }
        self.loras.open_all();
        let mut adapter = self.waiting.adapter_after(None);
        let (mut num_moved, mut slots_are_full) = (0, false);
        while draft.budget.prompt_left() > 0 && !self.free_rows.is_empty() {
            let first = first_of(&heads);
            if let Some((key, lora)) = adapter
                && first.is_none_or(|at| key < heads[at].key)
            {
                self.ask_for_adapter(lora, &mut slots_are_full, draft);
                let goes_on = self.skipped.len() < MAX_SKIPPED;
                adapter = self.waiting.adapter_after(Some(key)).filter(|_| goes_on);
                continue;
            }
            let Some(at) = first else { break };
            let head = heads[at];
            if head
                .lora_slot
                .is_some_and(|slot| !self.loras.takes(slot, head.lane.lora))
            {
                heads.swap_remove(at);
                continue;
            }
            let goes_on = match self.try_admit(head, now_ns, draft) {
                Admission::Done => true,
                Admission::TooLong => {
                    passed.has_long = true;
                    false
                }
                Admission::Moved => {
                    passed.has_long = true;
                    num_moved += 1;
                    num_moved < MAX_MOVED
                }
                Admission::Blocked => {
                    passed.before = Some(head.key);
                    break;
                }
            };
            self.go_on(&mut heads, at, goes_on);
        }
        self.note_overtaken(draft.out.admitted.len() as u32);
        self.heads = heads;
        passed
    }

    /// Admits long prompts that were passed over, into tokens that no other request wants.
    pub(crate) fn admit_passed_over(&mut self, passed: &PassedOver, now_ns: u64, draft: &mut Draft<'_>) {
        if !passed.has_long {
            return;
        }
        let mut heads = self.lane_heads(draft, &mut PassedOver::default());
        while draft.budget.prompt_left() > 0
            && let Some(at) = first_of(&heads)
        {
            let head = heads[at];
            if passed.before.is_some_and(|before| head.key >= before) {
                break;
            }
            if head
                .lora_slot
                .is_some_and(|slot| !self.loras.takes(slot, head.lane.lora))
            {
                heads.swap_remove(at);
                continue;
            }
            if !matches!(self.try_admit(head, now_ns, draft), Admission::Done) {
                break;
            }
            self.go_on(&mut heads, at, true);
        }
        self.heads = heads;
    }

    /// The first request of each lane that could be admitted: its adapter is on the device, or it needs none, and it is
    /// not too long. Notes in `passed` if some are.
    fn lane_heads(&mut self, draft: &Draft<'_>, passed: &mut PassedOver) -> Vec<LaneHead> {
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        if self.waiting.len() > 0 && draft.budget.prompt_left() > 0 && !self.free_rows.is_empty() {
            let ready = self.loras.ready().map(|(slot, lora)| (Some(lora), Some(slot)));
            for adapter in std::iter::once((None, None)).chain(ready) {
                let takes = |class| draft.budget.takes(class);
                passed.has_long |= !self.waiting.add_heads(adapter, takes, &mut heads);
            }
        }
        heads
    }

    /// Replaces a lane's first request by the next one, or takes the lane away.
    fn go_on(&self, heads: &mut Vec<LaneHead>, at: usize, goes_on: bool) {
        let LaneHead { lane, lora_slot, .. } = heads[at];
        match self.waiting.head(lane, lora_slot).filter(|_| goes_on) {
            Some(next) => heads[at] = next,
            None => drop(heads.swap_remove(at)),
        }
    }

    /// Does what can be done for an adapter that is not on the device.
    fn ask_for_adapter(&mut self, lora: u32, slots_are_full: &mut bool, draft: &Draft<'_>) {
        if self.loras.has(lora) {
            // Its lanes are among the heads, or it is being loaded.
            return;
        }
        self.waiting_visits += 1;
        let has_waited = self.waiting.num_overtaken(lora) >= MAX_OVERTAKEN;
        if !*slots_are_full || has_waited {
            *slots_are_full = !self.loras.place(lora, has_waited);
        }
        self.skipped.push((lora, draft.out.admitted.len() as u32));
    }

    fn try_admit(&mut self, head: LaneHead, now_ns: u64, draft: &mut Draft<'_>) -> Admission {
        let LaneHead { slot, lora_slot, .. } = head;
        self.waiting_visits += 1;
        let Some(&row) = self.free_rows.first() else {
            return Admission::Blocked;
        };
        // Looking up a long prompt's prefix takes long: only when it can be admitted.
        let request = &self.requests[slot];
        if draft.budget.for_prompt(request.wanted_hint) == 0 {
            return Admission::TooLong;
        }
        if request.num_in_flight > 0 {
            // A preempted request's last tokens belong to its history.
            return Admission::Blocked;
        }
        let request = &mut self.requests[slot];
        let attempt = Some((request.key.seq, self.kv.pool.num_releases()));
        if self.blocked_head == attempt {
            return Admission::Blocked;
        }
        let hit = self.kv.find_prefix(request, u32::MAX, Tiers::DeviceAndHost);
        let wanted = request.num_known() - hit;
        let query_len = wanted.min(self.config.max_chunk()).min(draft.budget.for_prompt(wanted));
        if query_len == 0 {
            return self.move_to_lane(slot, wanted);
        }
        let chunk_end = self.config.with_lookahead(hit + query_len);
        let cost = self.kv.admission_cost(&self.config, request, hit, chunk_end);
        if cost > u64::from(self.kv.pool.num_free()) {
            self.blocked_head = attempt;
            return Admission::Blocked;
        }
        let admitted = self.admit(slot, row, lora_slot, hit, now_ns);
        draft.out.admitted.push(admitted);
        draft.budget.spend_prompt(wanted, query_len);
        let chunk = Chunk {
            query_len,
            num_drafts: 0,
            emits: query_len == wanted,
        };
        self.plan_row(slot, chunk, true, draft);
        Admission::Done
    }

    /// Notes how long a waiting request is, now that its prefix was looked up.
    fn move_to_lane(&mut self, slot: Slot, wanted: u32) -> Admission {
        let request = &mut self.requests[slot];
        let lane = Lane::new(request.lane.lora, wanted);
        request.wanted_hint = wanted;
        if lane == request.lane {
            return Admission::TooLong;
        }
        self.waiting.remove(request.key, request.lane);
        self.waiting.insert(request.key, slot, lane);
        request.lane = lane;
        Admission::Moved
    }

    /// Moves a request from the waiting queue to the running list, with the blocks of its prefix hit.
    fn admit(&mut self, slot: Slot, row: RowIndex, lora_slot: Option<u32>, hit: u32, now_ns: u64) -> Admitted {
        self.free_rows.remove(&row);
        if let Some(lora) = lora_slot {
            self.loras.take(lora);
        }
        let request = &mut self.requests[slot];
        let (key, lane) = (request.key, request.lane);
        self.waiting.remove(key, lane);
        if let Some(lora) = lane.lora {
            self.waiting.reset_overtaken(lora);
        }
        let on_device = match self.kv.host {
            Some(_) => self.kv.find_prefix(request, hit, Tiers::Device),
            None => hit,
        };
        self.kv.adopt_prefix(request, hit);
        if self.config.enable_prefix_caching && request.cacheable {
            self.prefix_queries += u64::from(request.num_known());
            self.prefix_hits += u64::from(on_device);
            if self.kv.host.is_some() {
                self.host_prefix_queries += u64::from(request.num_known() - on_device);
                self.host_prefix_hits += u64::from(hit - on_device);
            }
        }
        request.state = State::Running;
        request.row = Some(row);
        request.lora_slot = lora_slot;
        request.num_computed = hit;
        request.num_computed_upper = hit;
        let admitted = Admitted {
            id: request.id,
            row,
            lora_slot,
            num_computed: hit,
            num_from_host: hit - on_device,
            resumed: request.was_admitted,
            waited_ns: now_ns.saturating_sub(request.arrival_ns),
            prompt: request.prompt.clone(),
            generated: request.generated.clone(),
        };
        request.was_admitted = true;
        let index = self.running_index(key).unwrap_or_else(|index| index);
        self.running.insert(index, slot);
        admitted
    }
}

/// The place of the first request in the policy's order.
fn first_of(heads: &[LaneHead]) -> Option<usize> {
    (0..heads.len()).min_by_key(|at| heads[*at].key)
}
