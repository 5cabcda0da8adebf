//! Admission: which waiting requests get a row in this step, in the policy's order. Two kinds may be passed over:
//! requests that wait for their adapter ([`crate::lora_slots`]), and long prompts while another long prompt uses the
//! share of the step for long prompts.

use crate::ids::{RowIndex, Slot};
use crate::lora_slots::MAX_SKIPPED;
use crate::output::Admitted;
use crate::plan::{Chunk, Draft};
use crate::request::State;
use crate::scheduler::Scheduler;

/// Long prompts that one plan passes over: bounds the time of planning. A short prompt behind more of them waits.
const MAX_PASSED_OVER: usize = 64;

/// The outcome for a waiting request.
enum Admission {
    /// It has a row and tokens.
    Done,
    /// It is long, and the share of long prompts is used up.
    TooLong,
    /// It waits for its adapter.
    NoAdapter,
    /// Rows, blocks or tokens are short: no request behind it is admitted either.
    Blocked,
}

impl Scheduler {
    /// Admits waiting requests in the policy's order while tokens, rows and blocks last. The first that cannot be
    /// admitted ends it, except those that others may overtake.
    pub(crate) fn admit_waiting(&mut self, now_ns: u64, draft: &mut Draft<'_>) {
        self.loras.open_all();
        let mut behind = None;
        while draft.budget.prompt_left() > 0
            && self.skipped.len() < MAX_SKIPPED
            && self.passed_over.len() < MAX_PASSED_OVER
            && let Some(slot) = self.waiting.after(behind)
        {
            let key = self.requests[slot].key;
            match self.try_admit(slot, now_ns, draft) {
                Admission::Done => {}
                Admission::TooLong => {
                    behind = Some(key);
                    self.passed_over.push(slot);
                }
                Admission::NoAdapter => {
                    behind = Some(key);
                    self.skipped.push((slot, draft.out.admitted.len() as u32));
                }
                Admission::Blocked => break,
            }
        }
        self.note_overtaken(draft.out.admitted.len() as u32);
    }

    /// Admits long prompts that were passed over, into tokens that no other request wants.
    pub(crate) fn admit_passed_over(&mut self, now_ns: u64, draft: &mut Draft<'_>) {
        for slot in std::mem::take(&mut self.passed_over) {
            if draft.budget.prompt_left() == 0 || !matches!(self.try_admit(slot, now_ns, draft), Admission::Done) {
                break;
            }
        }
    }

    fn try_admit(&mut self, slot: Slot, now_ns: u64, draft: &mut Draft<'_>) -> Admission {
        let Some(&row) = self.free_rows.first() else {
            return Admission::Blocked;
        };
        // Looking up a long prompt's prefix takes long: only when it can be admitted.
        let request = &self.requests[slot];
        if request
            .wanted_hint
            .is_some_and(|wanted| draft.budget.for_prompt(wanted) == 0)
        {
            return Admission::TooLong;
        }
        if request.num_in_flight > 0 {
            // A preempted request's last tokens belong to its history.
            return Admission::Blocked;
        }
        let Ok(lora_slot) = self.lora_slot_for(slot) else {
            return Admission::NoAdapter;
        };
        let request = &mut self.requests[slot];
        let attempt = Some((request.key.seq, self.kv.pool.num_releases()));
        if self.blocked_head == attempt {
            return Admission::Blocked;
        }
        let hit = self.kv.find_prefix(request);
        let wanted = request.num_known() - hit;
        request.wanted_hint = Some(wanted);
        let query_len = wanted.min(self.config.max_chunk()).min(draft.budget.for_prompt(wanted));
        if query_len == 0 {
            return Admission::TooLong;
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

    /// Moves a request from the waiting queue to the running list, with the blocks of its prefix hit.
    fn admit(&mut self, slot: Slot, row: RowIndex, lora_slot: Option<u32>, hit: u32, now_ns: u64) -> Admitted {
        self.free_rows.remove(&row);
        if let Some(lora) = lora_slot {
            self.loras.take(lora);
        }
        let request = &mut self.requests[slot];
        let key = request.key;
        self.waiting.remove(key);
        self.kv.adopt_prefix(request, hit);
        if self.config.enable_prefix_caching && request.cacheable {
            self.prefix_queries += u64::from(request.num_known());
            self.prefix_hits += u64::from(hit);
        }
        request.state = State::Running;
        request.row = Some(row);
        request.lora_slot = lora_slot;
        request.wanted_hint = None;
        request.num_overtaken = 0;
        request.num_computed = hit;
        request.num_computed_upper = hit;
        let admitted = Admitted {
            id: request.id,
            row,
            lora_slot,
            num_computed: hit,
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
