//! Planning of a step: who computes how many tokens, who is admitted, who is preempted. It looks at counts only and
//! must never wait for a token value.

use crate::ids::{RowIndex, Slot, StepId};
use crate::lora::MAX_SKIPPED;
use crate::output::{Admitted, Scheduled, SchedulerOutput, TableWrite};
use crate::request::{Request, State};
use crate::scheduler::{InFlightRow, InFlightStep, Scheduler};

/// The part of a request that one step computes.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    query_len: u32,
    num_drafts: u32,
    emits: bool,
}

impl Scheduler {
    /// Plans the next step, or says that there is nothing to plan now: nobody has work that can be done before a
    /// step in flight comes back, a hold ends or a request is added, or `max_steps_in_flight` steps are in flight.
    /// `now_ns` is on the clock of the requests' arrivals and only dates admissions.
    pub fn schedule(&mut self, now_ns: u64) -> Option<SchedulerOutput> {
        let mut out = SchedulerOutput::default();
        self.schedule_into(now_ns, &mut out).then_some(out)
    }

    /// [`Self::schedule`] into an output that keeps its allocations. False: nothing was planned, `out` is empty.
    pub fn schedule_into(&mut self, now_ns: u64, out: &mut SchedulerOutput) -> bool {
        out.clear();
        if self.in_flight.len() >= self.config.max_steps_in_flight as usize {
            return false;
        }
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        rows.clear();
        let mut tokens_left = self.config.max_num_batched_tokens;
        let blocks_are_short = self.plan_running(&mut tokens_left, &mut rows, out);
        if !blocks_are_short {
            self.admit_waiting(now_ns, &mut tokens_left, &mut rows, out);
        }
        if rows.is_empty() {
            self.spare_rows.push(rows);
            return false;
        }
        self.last_step = StepId(self.last_step.0 + 1);
        out.step = self.last_step;
        out.num_tokens = self.config.max_num_batched_tokens - tokens_left;
        out.preempted.append(&mut self.unreported_preemptions);
        self.in_flight.push_back(InFlightStep { step: out.step, rows });
        true
    }

    /// Gives the running requests their tokens, the policy's first one first. True if somebody waits for blocks: then
    /// nobody is admitted, who would only take what an older request waits for.
    fn plan_running(&mut self, tokens_left: &mut u32, rows: &mut Vec<InFlightRow>, out: &mut SchedulerOutput) -> bool {
        let mut short = false;
        let mut index = 0;
        while index < self.running.len() && *tokens_left > 0 {
            let slot = self.running[index];
            index += 1;
            let request = &self.requests[slot];
            let Some(chunk) = self.next_chunk(request, *tokens_left) else {
                continue;
            };
            let end = self.config.with_lookahead(request.num_computed_upper + chunk.query_len);
            let missing = self.kv.missing_blocks(&request.tables, end);
            if missing > 0 && (short || !self.make_room(slot, missing)) {
                // Later requests may go on in the blocks they have, but take no new ones before this one.
                short = true;
                continue;
            }
            *tokens_left -= chunk.query_len;
            self.plan_row(slot, chunk, false, rows, out);
        }
        short
    }

    /// What the request can compute now: everything up to its known tokens, those in flight counted as known.
    /// None if it can have no more tokens than steps in flight may already return.
    fn next_chunk(&self, request: &Request, tokens_left: u32) -> Option<Chunk> {
        let known = request.num_known_upper();
        if known >= request.max_len {
            return None;
        }
        let wanted = known - request.num_computed_upper;
        let query_len = wanted.min(self.config.max_chunk()).min(tokens_left);
        let is_decode = wanted == 1 && known > request.prompt.len() as u32;
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
            if last == slot || missing <= self.kv.pool.num_free() + self.num_draining_blocks() {
                return false;
            }
            self.running.pop();
            self.preempt(last);
        }
        true
    }

    /// Sends a request back to the waiting queue; what it generated stays known.
    fn preempt(&mut self, slot: Slot) {
        let request = &mut self.requests[slot];
        request.state = State::Waiting;
        self.waiting.insert(request.key, slot);
        self.unreported_preemptions.push(request.id);
        self.preemptions += 1;
        self.release_if_drained(slot);
    }

    /// Blocks that may become free when steps in flight are updated (shared ones counted, too).
    fn num_draining_blocks(&self) -> u32 {
        let tables = self.draining.iter().flat_map(|slot| &self.requests[*slot].tables);
        tables.map(|table| table.blocks.len() as u32).sum()
    }

    /// Admits waiting requests in the policy's order while tokens, rows and blocks last. The first that cannot be
    /// admitted ends it: nobody overtakes, except those that wait for their adapter ([`crate::lora`]).
    fn admit_waiting(
        &mut self,
        now_ns: u64,
        tokens_left: &mut u32,
        rows: &mut Vec<InFlightRow>,
        out: &mut SchedulerOutput,
    ) {
        self.loras.open_all();
        self.admit_in_order(now_ns, tokens_left, rows, out);
        self.note_overtaken(out.admitted.len() as u32);
    }

    fn admit_in_order(
        &mut self,
        now_ns: u64,
        tokens_left: &mut u32,
        rows: &mut Vec<InFlightRow>,
        out: &mut SchedulerOutput,
    ) {
        let mut behind = None;
        while *tokens_left > 0 && self.skipped.len() < MAX_SKIPPED {
            let (Some(slot), Some(&row)) = (self.waiting.after(behind), self.free_rows.first()) else {
                return;
            };
            if self.requests[slot].num_in_flight > 0 {
                // A preempted request's last tokens belong to its history.
                return;
            }
            let Ok(lora_slot) = self.lora_slot_for(slot) else {
                behind = Some(self.requests[slot].key);
                self.skipped.push((slot, out.admitted.len() as u32));
                continue;
            };
            let request = &mut self.requests[slot];
            let attempt = Some((request.key.seq, self.kv.pool.num_releases()));
            if self.blocked_head == attempt {
                return;
            }
            let hit = self.kv.find_prefix(request);
            let query_len = (request.num_known() - hit)
                .min(self.config.max_chunk())
                .min(*tokens_left);
            let chunk_end = self.config.with_lookahead(hit + query_len);
            let cost = self.kv.admission_cost(&self.config, request, hit, chunk_end);
            if cost > u64::from(self.kv.pool.num_free()) {
                self.blocked_head = attempt;
                return;
            }
            let emits = hit + query_len == request.num_known();
            out.admitted.push(self.admit(slot, row, lora_slot, hit, now_ns));
            *tokens_left -= query_len;
            self.plan_row(
                slot,
                Chunk {
                    query_len,
                    num_drafts: 0,
                    emits,
                },
                true,
                rows,
                out,
            );
        }
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

    /// Writes one row into the plan, with its new blocks, and counts it as in flight. The blocks are there.
    fn plan_row(
        &mut self,
        slot: Slot,
        chunk: Chunk,
        whole_table: bool,
        rows: &mut Vec<InFlightRow>,
        out: &mut SchedulerOutput,
    ) {
        let request = &mut self.requests[slot];
        let Some(row) = request.row else {
            debug_assert!(false, "a running request owns a row");
            return;
        };
        let num_computed_upper = request.num_computed_upper;
        let end = self.config.with_lookahead(num_computed_upper + chunk.query_len);
        for (group, table) in request.tables.iter_mut().enumerate() {
            let first = if whole_table { table.first } else { table.end() };
            self.kv.grow(group, table, end);
            let new = &table.blocks[(first - table.first) as usize..];
            if !new.is_empty() {
                let (offset, len) = (out.table_blocks.len() as u32, new.len() as u32);
                out.table_blocks.extend_from_slice(new);
                out.table_writes.push(TableWrite {
                    row,
                    group: group as u32,
                    first,
                    offset,
                    len,
                });
            }
        }
        let Chunk {
            query_len,
            num_drafts,
            emits,
        } = chunk;
        request.num_computed_upper += query_len;
        request.num_in_flight += 1;
        request.num_pending += if emits { num_drafts + 1 } else { 0 };
        let id = request.id;
        out.scheduled.push(Scheduled {
            id,
            row,
            query_len,
            num_computed_upper,
            emits,
            num_drafts,
        });
        rows.push(InFlightRow {
            slot,
            id,
            query_len,
            num_drafts,
            emits,
        });
    }
}
