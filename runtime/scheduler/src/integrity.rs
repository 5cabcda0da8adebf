//! Checks every invariant of the whole state, for tests and for a debug switch. It changes nothing. It counts from the
//! block tables and never trusts the pool's own numbers.

use crate::error::IntegrityError;
use crate::ids::{BlockId, RowIndex, Slot};
use crate::kv_groups::first_needed_block;
use crate::request::{Request, State};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Checks that free and used blocks add up, reference counts agree with owners, no request writes a block that
    /// another table names, tables have the right lengths, and rows, queues and counters agree. Cost: linear in
    /// blocks and requests.
    ///
    /// # Errors
    /// The first broken invariant: a bug in this crate.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        let mut in_tables = vec![0_u32; self.kv.pool.total() as usize];
        for (_, request) in self.requests.iter() {
            for block in request.tables.iter().flat_map(|table| &table.blocks) {
                in_tables[block.0 as usize] += 1;
            }
        }
        let mut owners = in_tables.clone();
        for block in self.holds.values().flatten() {
            owners[block.0 as usize] += 1;
        }
        self.kv.pool.check(&owners)?;
        self.check_cache()?;
        if let Some(tier) = &self.kv.host {
            tier.check()?;
        }
        self.check_rows()?;
        self.check_loras()?;
        self.check_sums()?;
        for (slot, request) in self.requests.iter() {
            self.check_tables(request, &in_tables)?;
            self.check_counters(slot, request)?;
            self.check_queues(slot, request)?;
        }
        Ok(())
    }

    fn check_cache(&self) -> Result<(), IntegrityError> {
        let entries = self.kv.cache.len();
        let all = (0..self.kv.pool.total()).map(BlockId);
        let named = all.filter_map(|block| Some((block, self.kv.pool.cache_key(block)?)));
        let mut blocks = 0;
        for (block, key) in named {
            blocks += 1;
            if self.kv.cache.find(key) != Some(block) {
                return Err(IntegrityError::PrefixCache { entries, blocks });
            }
        }
        if entries == blocks {
            Ok(())
        } else {
            Err(IntegrityError::PrefixCache { entries, blocks })
        }
    }

    fn check_loras(&self) -> Result<(), IntegrityError> {
        for (index, (lora, is_ready, users)) in self.loras.users().enumerate() {
            let uses = |request: &&Request| request.lora_slot == Some(index as u32);
            let owners: Vec<_> = self.requests.iter().map(|(_, request)| request).filter(uses).collect();
            let wrong = |request: &&Request| request.lora != lora || request.row.is_none() || !is_ready;
            let counted = owners.len() as u32;
            if owners.iter().any(wrong) || counted != users {
                return Err(IntegrityError::LoraSlot {
                    slot: index as u32,
                    users,
                    counted,
                });
            }
        }
        Ok(())
    }

    fn check_sums(&self) -> Result<(), IntegrityError> {
        if !self.waiting.is_sound() {
            let len = self.waiting.len();
            return Err(IntegrityError::WaitingQueue { len });
        }
        let draining = self.requests.iter().filter(|(_, request)| request.is_draining);
        let (counted, found) = (
            self.num_draining_blocks,
            draining.map(|(_, request)| request.num_blocks()).sum(),
        );
        match counted == found {
            true => Ok(()),
            false => Err(IntegrityError::Draining { counted, found }),
        }
    }

    fn check_rows(&self) -> Result<(), IntegrityError> {
        let mut owners = vec![0; self.config.max_num_seqs as usize];
        let owned = self.requests.iter().filter_map(|(_, request)| request.row);
        for row in owned.chain(self.free_rows.iter().copied()) {
            owners[row.0 as usize] += 1;
        }
        match owners.iter().position(|owners| *owners != 1) {
            Some(row) => Err(IntegrityError::Row {
                row: RowIndex(row as u32),
                owners: owners[row],
            }),
            None => Ok(()),
        }
    }

    fn check_tables(&self, request: &Request, in_tables: &[u32]) -> Result<(), IntegrityError> {
        let owns = request.row.is_some();
        for (group, table) in request.tables.iter().enumerate() {
            let spec = self.kv.group_spec(group);
            let (first, end) = (table.first, table.end());
            let in_range = match owns {
                true => {
                    first <= first_needed_block(spec, request.num_computed)
                        && end >= request.num_computed_upper.div_ceil(spec.block_size)
                        && end <= self.config.max_model_len.div_ceil(spec.block_size)
                }
                false => table.blocks.is_empty(),
            };
            if !in_range {
                return Err(IntegrityError::TableLength {
                    id: request.id,
                    group: group as u32,
                    first,
                    end,
                    computed: request.num_computed,
                    upper: request.num_computed_upper,
                });
            }
            let first_written = (request.num_computed / spec.block_size).saturating_sub(first) as usize;
            for &block in table.blocks.iter().skip(first_written) {
                let tables = in_tables[block.0 as usize];
                if tables != 1 {
                    return Err(IntegrityError::SharedWrite {
                        block,
                        id: request.id,
                        tables,
                    });
                }
            }
        }
        Ok(())
    }

    fn check_counters(&self, slot: Slot, request: &Request) -> Result<(), IntegrityError> {
        let (mut steps, mut tokens) = (0, 0);
        for row in self
            .in_flight
            .iter()
            .flat_map(|step| &step.rows)
            .filter(|row| row.slot == slot)
        {
            steps += 1;
            tokens += if row.emits { row.num_drafts + 1 } else { 0 };
        }
        // An ended request drops its tokens unread.
        let pending_is_right = request.state == State::Ended || request.num_pending == tokens;
        if request.num_in_flight != steps || !pending_is_right {
            let (counted, pending) = (request.num_in_flight, request.num_pending);
            return Err(IntegrityError::InFlight {
                id: request.id,
                counted,
                pending,
                steps,
                tokens,
            });
        }
        let (known, computed, upper) = (request.num_known(), request.num_computed, request.num_computed_upper);
        let ordered = computed < known && computed <= upper && upper < request.num_known_upper();
        if request.state == State::Running && !(ordered && known < request.max_len) {
            return Err(IntegrityError::Tokens {
                id: request.id,
                known,
                computed,
                upper,
            });
        }
        Ok(())
    }

    fn check_queues(&self, slot: Slot, request: &Request) -> Result<(), IntegrityError> {
        let waits = self.waiting.contains(request.key, request.lane);
        let runs = self
            .running_index(request.key)
            .is_ok_and(|index| self.running[index] == slot);
        let named = self.by_id.get(&request.id) == Some(&slot);
        let drains = request.is_draining;
        let is_right = match request.state {
            State::Waiting => waits && !runs && named && drains == request.row.is_some(),
            State::Running => !waits && runs && named && !drains && request.row.is_some(),
            State::Ended => !waits && !runs && !named && drains && request.num_in_flight > 0,
        };
        if is_right {
            Ok(())
        } else {
            Err(IntegrityError::Queue { id: request.id })
        }
    }
}
