//! Planning of a step: which requests compute how many tokens, and which are preempted. It looks at counts only and
//! must never wait for a token value. Admission is in `admit.rs`, the sharing of tokens in `budget.rs`.
//!
//! A step is planned in four passes: running requests, where long prompts get their share of the tokens; short waiting
//! requests, and long ones while that share lasts; then what is left goes to the running long prompts, and last to the
//! long ones that were passed over. So a long prompt takes a whole step only when no other request wants the tokens.

use crate::budget::StepBudget;
use crate::ids::{Slot, StepId};
use crate::output::{PauseState, Scheduled, SchedulerOutput, TableWrite};
use crate::queue::Lane;
use crate::request::{Request, State};
use crate::scheduler::{InFlightRow, InFlightStep, Scheduler};

/// The part of a request that one step computes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) query_len: u32,
    pub(crate) num_drafts: u32,
    pub(crate) emits: bool,
}

/// A plan in the making.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) budget: StepBudget,
    pub(crate) rows: &'a mut Vec<InFlightRow>,
    pub(crate) out: &'a mut SchedulerOutput,
}

impl Scheduler {
    /// Plans the next step, or says that there is nothing to plan now: no request has work that can be done before a
    /// step in flight comes back, a hold or a pause ends, a request is added or plans take those that wait again, or
    /// `max_steps_in_flight` steps are in flight. `now_ns` is on the clock of the requests' arrivals and only dates
    /// admissions.
    pub fn schedule(&mut self, now_ns: u64) -> Option<SchedulerOutput> {
        let mut out = SchedulerOutput::default();
        self.schedule_into(now_ns, &mut out).then_some(out)
    }

    /// [`Self::schedule`] into an output that keeps its allocations. False: nothing was planned, `out` is empty.
    pub fn schedule_into(&mut self, now_ns: u64, out: &mut SchedulerOutput) -> bool {
        out.clear();
        let is_full = self.in_flight.len() >= self.config.max_steps_in_flight as usize;
        if is_full || self.pause == PauseState::PausedAll {
            return false;
        }
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        rows.clear();
        let budget = self.step_budget();
        let all_tokens = budget.tokens_left;
        let mut draft = Draft {
            budget,
            rows: &mut rows,
            out: &mut *out,
        };
        let blocks_are_short = self.plan_running(&mut draft);
        if !blocks_are_short {
            let admits = self.admits && self.pause == PauseState::Unpaused;
            let passed = admits.then(|| self.admit_waiting(now_ns, &mut draft));
            self.fill_up(&mut draft);
            if let Some(passed) = passed {
                self.admit_passed_over(&passed, now_ns, &mut draft);
            }
        }
        out.num_tokens = all_tokens - draft.budget.tokens_left;
        self.write_tables(&rows, out);
        self.first_entries.clear();
        if let Some(host) = &mut self.kv.host {
            host.end_plan(&mut out.host_stores, &mut out.host_loads);
        }
        if rows.is_empty() {
            self.spare_rows.push(rows);
            return false;
        }
        self.last_step = self.next_step();
        out.step = self.last_step;
        out.preempted.append(&mut self.unreported_preemptions);
        self.in_flight.push_back(InFlightStep { step: out.step, rows });
        true
    }

    /// The step that is planned next.
    fn next_step(&self) -> StepId {
        StepId(self.last_step.0 + 1)
    }

    /// The tokens of the next step. Decode tokens are never cut: each running request gets its own.
    fn step_budget(&self) -> StepBudget {
        let decodes = self.running.iter().filter(|slot| is_decode(&self.requests[**slot]));
        StepBudget::new(&self.config, self.max_prompt_tokens, decodes.count() as u32)
    }

    /// Gives the running requests their tokens, in the policy's order. True if a request waits for blocks: then the
    /// plan is done, as others would only take what an older request waits for.
    fn plan_running(&mut self, draft: &mut Draft<'_>) -> bool {
        let mut short = false;
        let mut index = 0;
        while index < self.running.len() && draft.budget.tokens_left > 0 {
            let slot = self.running[index];
            index += 1;
            let request = &self.requests[slot];
            let Some(chunk) = self.next_chunk(request, &draft.budget) else {
                continue;
            };
            let end = self.config.with_lookahead(request.num_computed_upper + chunk.query_len);
            let missing = self.kv.missing_blocks(&request.tables, end);
            if missing > 0 && (short || !self.make_room(slot, missing)) {
                // Later requests may go on in the blocks they have, but take no new ones before this one.
                short = true;
                continue;
            }
            self.spend(&mut draft.budget, slot, chunk.query_len);
            self.plan_row(slot, chunk, false, draft);
        }
        short
    }

    /// Takes a chunk's tokens from the budget, before the chunk counts as computed.
    pub(crate) fn spend(&self, budget: &mut StepBudget, slot: Slot, query_len: u32) {
        let request = &self.requests[slot];
        match is_decode(request) {
            true => budget.spend_decode(query_len),
            false => budget.spend_prompt(request.num_known_upper() - request.num_computed_upper, query_len),
        }
    }

    /// Gives the remaining tokens to running prompts that could compute more, in the policy's order. No request is
    /// preempted for it.
    fn fill_up(&mut self, draft: &mut Draft<'_>) {
        draft.budget.open();
        let mut index = 0;
        while index < self.running.len() && draft.budget.prompt_left() > 0 {
            let slot = self.running[index];
            index += 1;
            let request = &self.requests[slot];
            let known = request.num_known_upper();
            let missing_tokens = known - request.num_computed_upper;
            if missing_tokens == 0 || known >= request.max_len || is_decode(request) {
                continue;
            }
            let planned = request.planned.filter(|(step, _)| *step == self.next_step());
            let planned = planned.map(|(_, at)| at);
            let taken = planned.map_or(0, |at| draft.rows[at].query_len);
            let more = missing_tokens
                .min(self.config.max_chunk() - taken)
                .min(draft.budget.prompt_left());
            let end = self.config.with_lookahead(request.num_computed_upper + more);
            if more == 0 || self.kv.missing_blocks(&request.tables, end) > self.kv.pool.num_free() {
                continue;
            }
            self.spend(&mut draft.budget, slot, more);
            let emits = more == missing_tokens;
            match planned {
                Some(at) => self.extend_row(at, more, emits, draft),
                None => {
                    let chunk = Chunk {
                        query_len: more,
                        num_drafts: 0,
                        emits,
                    };
                    self.plan_row(slot, chunk, false, draft);
                }
            }
        }
    }

    /// What the request can compute now: everything up to its known tokens, those in flight counted as known.
    /// None if it can have no more tokens than steps in flight may already return.
    fn next_chunk(&self, request: &Request, budget: &StepBudget) -> Option<Chunk> {
        let known = request.num_known_upper();
        if known >= request.max_len {
            return None;
        }
        let wanted = known - request.num_computed_upper;
        let is_decode = is_decode(request);
        let tokens_left = match is_decode {
            true => budget.tokens_left,
            false => budget.for_prompt(wanted),
        };
        let query_len = wanted.min(self.config.max_chunk()).min(tokens_left);
        if query_len == 0 {
            return None;
        }
        let num_drafts = match is_decode {
            // A draft and the token behind it must both stay within the request's length, and the whole query
            // within the chunk for which `SchedulerConfig::blocks_for` counts blocks.
            true => request
                .num_drafts
                .min(request.max_len - known - 1)
                .min(self.config.max_chunk().min(tokens_left) - 1),
            false => 0,
        };
        Some(Chunk {
            query_len: query_len + num_drafts,
            num_drafts,
            emits: query_len == wanted,
        })
    }

    /// Preempts requests behind `slot` until `missing` blocks are free. False if it must wait: for blocks of
    /// requests that drain, for a hold, or for requests in front of it. It is never preempted for its own sake, so
    /// a lone request keeps what it computed.
    fn make_room(&mut self, slot: Slot, missing: u32) -> bool {
        while missing > self.kv.pool.num_free() {
            let Some(&last) = self.running.last() else {
                return false;
            };
            if last == slot || missing <= self.kv.pool.num_free() + self.num_draining_blocks {
                return false;
            }
            self.running.pop();
            self.preempt(last);
        }
        true
    }

    /// Sends a request back to the waiting queue; what it generated stays known.
    pub(crate) fn preempt(&mut self, slot: Slot) {
        let request = &mut self.requests[slot];
        request.state = State::Waiting;
        // Its blocks may still be cached.
        request.wanted_hint = 1;
        request.lane = Lane::new(request.lane.lora, 1);
        self.waiting.insert(request.key, slot, request.lane);
        self.unreported_preemptions.push(request.id);
        self.preemptions += 1;
        self.release_if_drained(slot);
    }

    /// Writes one row into the plan, with its new blocks, and counts it as in flight. The blocks are there.
    pub(crate) fn plan_row(&mut self, slot: Slot, chunk: Chunk, whole_table: bool, draft: &mut Draft<'_>) {
        let request = &mut self.requests[slot];
        let Some(row) = request.row else {
            debug_assert!(false, "a running request owns a row");
            return;
        };
        let num_computed_upper = request.num_computed_upper;
        let end = self.config.with_lookahead(num_computed_upper + chunk.query_len);
        let tables = request.tables.iter();
        let firsts = tables.map(|table| if whole_table { table.first } else { table.end() });
        self.first_entries.extend(firsts);
        self.grow_tables(slot, end);
        let step = self.next_step();
        let request = &mut self.requests[slot];
        request.planned = Some((step, draft.rows.len()));
        let Chunk {
            query_len,
            num_drafts,
            emits,
        } = chunk;
        request.num_computed_upper += query_len;
        request.num_in_flight += 1;
        request.num_pending += if emits { num_drafts + 1 } else { 0 };
        let id = request.id;
        draft.out.scheduled.push(Scheduled {
            id,
            row,
            query_len,
            num_computed_upper,
            emits,
            num_drafts,
        });
        draft.rows.push(InFlightRow {
            slot,
            id,
            query_len,
            num_drafts,
            emits,
        });
    }

    /// Adds tokens to a prompt's row that this plan already has. Their blocks are there.
    fn extend_row(&mut self, at: usize, more: u32, emits: bool, draft: &mut Draft<'_>) {
        let slot = draft.rows[at].slot;
        let request = &mut self.requests[slot];
        request.num_computed_upper += more;
        request.num_pending += u32::from(emits);
        let end = self.config.with_lookahead(request.num_computed_upper);
        self.grow_tables(slot, end);
        draft.rows[at].query_len += more;
        draft.rows[at].emits = emits;
        draft.out.scheduled[at].query_len += more;
        draft.out.scheduled[at].emits = emits;
    }

    /// Grows the request's block tables to `end` tokens. The blocks are there.
    fn grow_tables(&mut self, slot: Slot, end: u32) {
        for (group, table) in self.requests[slot].tables.iter_mut().enumerate() {
            self.kv.grow(group, table, end);
        }
    }

    /// Writes the new entries of the planned rows' block tables into the plan.
    fn write_tables(&self, rows: &[InFlightRow], out: &mut SchedulerOutput) {
        let num_groups = self.config.groups.len();
        for (row, firsts) in rows.iter().zip(self.first_entries.chunks_exact(num_groups)) {
            let request = &self.requests[row.slot];
            let Some(device_row) = request.row else {
                debug_assert!(false, "a planned request owns a row");
                continue;
            };
            for (group, (table, &first)) in request.tables.iter().zip(firsts).enumerate() {
                let new = &table.blocks[(first - table.first) as usize..];
                if !new.is_empty() {
                    let (offset, len) = (out.table_blocks.len() as u32, new.len() as u32);
                    out.table_blocks.extend_from_slice(new);
                    out.table_writes.push(TableWrite {
                        row: device_row,
                        group: group as u32,
                        first,
                        offset,
                        len,
                    });
                }
            }
        }
    }
}

/// Whether all the request computes next is the token behind what it has computed: no prompt is left.
fn is_decode(request: &Request) -> bool {
    let known = request.num_known_upper();
    known - request.num_computed_upper == 1 && known > request.prompt.len() as u32
}
