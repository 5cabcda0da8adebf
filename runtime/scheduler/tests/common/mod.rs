//! A shadow device: it applies the plans' deltas as a real device would, writes a fingerprint of (group, prefix) into
//! each KV slot, and checks every slot that an attention kernel would read. So a block that is shared wrongly, reused
//! too early or missing from a table shows as a wrong fingerprint. It must never look into the scheduler.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{BTreeMap, VecDeque};

use halyard_scheduler::*;

pub const VOCABULARY: u64 = 3;

/// A small deterministic generator (splitmix64, Steele et al. 2014).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Fingerprint of a prefix: of the one before, and its last token.
fn extend(prefix: u64, token: u32) -> u64 {
    mix(prefix ^ mix(u64::from(token) + 0x1234))
}

/// What salt and adapter make of an empty prefix.
fn root(request: &NewRequest) -> u64 {
    let salt = request.cache_salt.iter().flat_map(|salt| salt.iter());
    let salted = salt.fold(u64::from(request.cache_salt.is_some()), |acc, byte| {
        mix(acc ^ u64::from(*byte))
    });
    mix(salted ^ mix(request.lora.map_or(0, |lora| u64::from(lora) + 1)))
}

/// The token that the model gives behind a prefix: a pure function, so outputs cannot depend on batching.
fn model(prefix: u64) -> u32 {
    (mix(prefix ^ 0x77) % VOCABULARY) as u32
}

/// What a request generates when nothing but its prompt decides.
pub fn expected_tokens(request: &NewRequest, max_model_len: u32) -> Vec<u32> {
    let mut prefix = request
        .prompt
        .iter()
        .fold(root(request), |prefix, token| extend(prefix, *token));
    let limit = max_model_len as usize - request.prompt.len();
    let mut tokens = Vec::new();
    while tokens.len() < limit.min(request.max_tokens as usize) {
        let token = model(prefix);
        prefix = extend(prefix, token);
        tokens.push(token);
    }
    tokens
}

#[derive(Debug, Clone)]
struct DeviceRow {
    id: RequestId,
    history: Vec<u32>,
    /// `prefixes[n]` is the fingerprint of the first n tokens that were computed or uploaded.
    prefixes: Vec<u64>,
    num_computed: usize,
}

/// A step that the device ran and the host has not read back.
#[derive(Debug)]
pub struct RunStep {
    pub plan: SchedulerOutput,
    pub results: Vec<(RequestId, Vec<u32>)>,
    /// Blocks that each row may read or write.
    blocks: BTreeMap<RequestId, Vec<BlockId>>,
}

#[derive(Debug)]
pub struct Device {
    config: SchedulerConfig,
    rows: Vec<Option<DeviceRow>>,
    /// `[row][group][entry]`, never cleared: stale entries stay, as on a device.
    tables: Vec<Vec<Vec<BlockId>>>,
    /// `[block][offset]`
    slots: Vec<Vec<u64>>,
    /// The same in host memory.
    host: Vec<Vec<u64>>,
    pub requests: BTreeMap<RequestId, NewRequest>,
    pub in_flight: VecDeque<RunStep>,
    random: Random,
    /// One in so many emitting rows samples nothing; 0 = never.
    pub empty_result_one_in: u64,
    /// Drafts that were not accepted so far.
    pub rejected_drafts: usize,
}

impl Device {
    pub fn new(config: &SchedulerConfig, seed: u64) -> Self {
        let largest = config.groups.iter().map(|group| group.block_size).max().unwrap_or(1) as usize;
        let entries = config.max_model_len as usize + 1;
        let row = vec![vec![BlockId(u32::MAX); entries]; config.groups.len()];
        Self {
            config: config.clone(),
            rows: vec![None; config.max_num_seqs as usize],
            tables: vec![row; config.max_num_seqs as usize],
            slots: vec![vec![0; largest]; config.num_blocks as usize],
            host: vec![vec![0; largest]; config.num_host_blocks as usize],
            requests: BTreeMap::new(),
            in_flight: VecDeque::new(),
            random: Random(seed),
            empty_result_one_in: 0,
            rejected_drafts: 0,
        }
    }

    pub fn know(&mut self, request: &NewRequest) {
        self.requests.insert(request.id, request.clone());
    }

    /// Takes a plan: checks it, runs it, keeps the results until they are read.
    pub fn run(&mut self, plan: SchedulerOutput) {
        assert!(!plan.scheduled.is_empty(), "an empty step was planned");
        let total: u32 = plan.scheduled.iter().map(|row| row.query_len).sum();
        assert_eq!(total, plan.num_tokens);
        assert!(
            total <= self.config.max_num_batched_tokens,
            "{total} tokens are over the budget"
        );
        self.copy_blocks(&plan);
        self.admit(&plan);
        for write in &plan.table_writes {
            let table = &mut self.tables[write.row.0 as usize][write.group as usize];
            let first = write.first as usize;
            let blocks = plan.blocks(write);
            table[first..first + blocks.len()].copy_from_slice(blocks);
        }
        let blocks: BTreeMap<_, _> = plan
            .scheduled
            .iter()
            .map(|row| (row.id, self.used_blocks(row)))
            .collect();
        self.check_exclusive_writes(&plan, &blocks);
        let results = plan
            .scheduled
            .iter()
            .filter_map(|row| Some((row.id, self.run_row(row)?)))
            .collect();
        self.in_flight.push_back(RunStep { plan, results, blocks });
    }

    /// Moves blocks between the device and host memory, all stores first; each list in an order of its own.
    fn copy_blocks(&mut self, plan: &SchedulerOutput) {
        for copies in [&plan.host_stores, &plan.host_loads] {
            let (mut blocks, mut hosts): (Vec<_>, Vec<_>) = copies.iter().map(|copy| (copy.block, copy.host)).unzip();
            blocks.sort_unstable();
            hosts.sort_unstable();
            let twice = |what: &[u32]| what.windows(2).any(|pair| pair[0] == pair[1]);
            assert!(
                !twice(&blocks.iter().map(|block| block.0).collect::<Vec<_>>()),
                "{copies:?}"
            );
            assert!(
                !twice(&hosts.iter().map(|host| host.0).collect::<Vec<_>>()),
                "{copies:?}"
            );
        }
        for copy in plan.host_stores.iter().rev() {
            self.host[copy.host.0 as usize].clone_from(&self.slots[copy.block.0 as usize]);
        }
        for copy in plan.host_loads.iter().rev() {
            let mut touched = self.in_flight.iter().flat_map(|step| step.blocks.values().flatten());
            assert!(
                touched.all(|block| *block != copy.block),
                "{copy:?} is filled while a step in flight may use it"
            );
            self.slots[copy.block.0 as usize].clone_from(&self.host[copy.host.0 as usize]);
        }
    }

    fn admit(&mut self, plan: &SchedulerOutput) {
        for admitted in &plan.admitted {
            let named = |step: &RunStep| step.plan.scheduled.iter().any(|row| row.row == admitted.row);
            assert!(
                !self.in_flight.iter().any(named),
                "{:?} is reused while in flight",
                admitted.row
            );
            let request = &self.requests[&admitted.id];
            assert_eq!(request.prompt, admitted.prompt);
            let history: Vec<u32> = admitted.prompt.iter().chain(&admitted.generated).copied().collect();
            let num_computed = admitted.num_computed as usize;
            assert!(num_computed < history.len(), "nothing is left to compute");
            let mut prefixes = vec![root(request)];
            prefixes.extend(history[..num_computed].iter().scan(root(request), |prefix, token| {
                *prefix = extend(*prefix, *token);
                Some(*prefix)
            }));
            self.rows[admitted.row.0 as usize] = Some(DeviceRow {
                id: admitted.id,
                history,
                prefixes,
                num_computed,
            });
        }
    }

    /// First position that a query at `position` reads in this group.
    fn first_read(&self, group: usize, position: usize) -> usize {
        match self.config.groups[group].kind {
            KvKind::Full => 0,
            KvKind::Window { tokens } => (position + 1).saturating_sub(tokens as usize),
        }
    }

    /// All blocks that the row may touch, between its actual and its greatest possible length.
    fn used_blocks(&self, scheduled: &Scheduled) -> Vec<BlockId> {
        let row = self.rows[scheduled.row.0 as usize].as_ref().expect("an admitted row");
        let last = (scheduled.num_computed_upper + scheduled.query_len) as usize - 1;
        let mut blocks = Vec::new();
        for (group, spec) in self.config.groups.iter().enumerate() {
            let size = spec.block_size as usize;
            let entries = self.first_read(group, row.num_computed) / size..=last / size;
            blocks.extend_from_slice(&self.tables[scheduled.row.0 as usize][group][entries]);
        }
        blocks
    }

    /// No block that this step writes is touched by another request in this or any step in flight.
    fn check_exclusive_writes(&self, plan: &SchedulerOutput, blocks: &BTreeMap<RequestId, Vec<BlockId>>) {
        for scheduled in &plan.scheduled {
            let row = self.rows[scheduled.row.0 as usize].as_ref().expect("an admitted row");
            for (group, spec) in self.config.groups.iter().enumerate() {
                let size = spec.block_size as usize;
                let last = (scheduled.num_computed_upper + scheduled.query_len) as usize - 1;
                for entry in row.num_computed / size..=last / size {
                    let block = self.tables[scheduled.row.0 as usize][group][entry];
                    let steps = self.in_flight.iter().map(|step| &step.blocks).chain([blocks]);
                    for (other, _) in steps.flatten().filter(|(_, touched)| touched.contains(&block)) {
                        assert_eq!(
                            *other, scheduled.id,
                            "{block:?} is written and in use by another request"
                        );
                    }
                }
            }
        }
    }

    /// Computes one row; the sampled tokens if it emits.
    fn run_row(&mut self, scheduled: &Scheduled) -> Option<Vec<u32>> {
        let mut row = self.rows[scheduled.row.0 as usize].clone().expect("an admitted row");
        assert_eq!(row.id, scheduled.id, "the row has another owner");
        assert!(
            row.num_computed <= scheduled.num_computed_upper as usize,
            "the upper bound is too low"
        );
        let (start, query_len) = (row.num_computed, scheduled.query_len as usize);
        let (drafts, end) = (scheduled.num_drafts as usize, start + query_len);
        let known = row.history.len();
        assert!(end <= self.config.max_model_len as usize);
        match scheduled.emits {
            true => assert_eq!(end - drafts, known, "the chunk must end with the known tokens"),
            false => assert!(end < known && drafts == 0),
        }
        // Drafts are mostly right, so that 0 to k of them are accepted.
        let mut tokens = row.history.clone();
        row.prefixes.truncate(start + 1);
        for position in start..end {
            if position >= tokens.len() {
                let right = model(row.prefixes[position]);
                tokens.push(if self.random.one_in(3) {
                    (right + 1) % VOCABULARY as u32
                } else {
                    right
                });
            }
            row.prefixes.push(extend(row.prefixes[position], tokens[position]));
        }
        self.write_and_read_slots(scheduled, &row, start, end);
        if !scheduled.emits {
            row.num_computed = end;
            self.rows[scheduled.row.0 as usize] = Some(row);
            return None;
        }
        let mut sampled = Vec::new();
        if self.empty_result_one_in == 0 || !self.random.one_in(self.empty_result_one_in) {
            for position in known..=end {
                let right = model(row.prefixes[position]);
                sampled.push(right);
                if tokens.get(position) != Some(&right) {
                    break;
                }
            }
        }
        self.rejected_drafts += drafts + 1 - sampled.len();
        row.num_computed = (end - drafts + sampled.len()) - 1;
        row.history.extend(&sampled);
        self.rows[scheduled.row.0 as usize] = Some(row);
        Some(sampled)
    }

    fn write_and_read_slots(&mut self, scheduled: &Scheduled, row: &DeviceRow, start: usize, end: usize) {
        for (group, spec) in self.config.groups.iter().enumerate() {
            let size = spec.block_size as usize;
            let table = &self.tables[scheduled.row.0 as usize][group];
            for position in start..end {
                let block = table[position / size];
                self.slots[block.0 as usize][position % size] = row.prefixes[position + 1] ^ group as u64;
            }
            for position in self.first_read(group, start)..end {
                let block = table[position / size];
                let content = self.slots[block.0 as usize][position % size];
                let right = row.prefixes[position + 1] ^ group as u64;
                assert_eq!(
                    content, right,
                    "{:?} reads a wrong key at {position} of group {group}",
                    row.id
                );
            }
        }
    }
}

/// Scheduler and device together, checked after every call.
#[derive(Debug)]
pub struct Rig {
    pub scheduler: Scheduler,
    pub device: Device,
    pub config: SchedulerConfig,
    pub outputs: BTreeMap<RequestId, Vec<u32>>,
    pub finished: Vec<RequestId>,
    /// First admissions in their order.
    pub admissions: Vec<RequestId>,
    /// Rows planned while an earlier step had not returned their last token.
    pub planned_over_flight: usize,
    /// The time that the next plan gets.
    pub now_ns: u64,
}

impl Rig {
    pub fn new(config: SchedulerConfig) -> Self {
        let device = Device::new(&config, 1);
        let scheduler = Scheduler::new(config.clone()).expect("a valid configuration");
        let (outputs, finished, admissions) = Default::default();
        Self {
            scheduler,
            device,
            config,
            outputs,
            finished,
            admissions,
            planned_over_flight: 0,
            now_ns: 0,
        }
    }

    pub fn check(&self) {
        if let Err(error) = self.scheduler.check_integrity() {
            panic!("{error}\n{:#?}", self.scheduler);
        }
    }

    pub fn add(&mut self, request: NewRequest) -> Result<(), Error> {
        let result = self.scheduler.add(request.clone());
        if result.is_ok() {
            self.device.know(&request);
            self.outputs.insert(request.id, Vec::new());
        }
        self.check();
        result
    }

    /// Adds a request with this prompt.
    pub fn prompt(&mut self, id: u64, prompt: &[u32], max_tokens: u32) {
        self.add(NewRequest::new(RequestId(id), prompt, max_tokens))
            .expect("an accepted request");
    }

    /// Plans and runs a step; its plan, or none.
    pub fn plan(&mut self) -> Option<SchedulerOutput> {
        let plan = self.scheduler.schedule(self.now_ns);
        self.check();
        let plan = plan?;
        let first_admissions = plan.admitted.iter().filter(|admitted| !admitted.resumed);
        self.admissions.extend(first_admissions.map(|admitted| admitted.id));
        let emitting = self
            .device
            .in_flight
            .iter()
            .flat_map(|step| &step.plan.scheduled)
            .filter(|row| row.emits);
        let pending: Vec<_> = emitting.map(|row| row.id).collect();
        self.planned_over_flight += plan.scheduled.iter().filter(|row| pending.contains(&row.id)).count();
        self.device.run(plan.clone());
        Some(plan)
    }

    /// Reads the oldest step back.
    pub fn read(&mut self) -> Vec<Update> {
        let step = self.device.in_flight.pop_front().expect("a step in flight");
        let results: Vec<_> = step
            .results
            .iter()
            .map(|(id, tokens)| RowResult { id: *id, tokens })
            .collect();
        let updates = self
            .scheduler
            .update(step.plan.step, &results)
            .expect("accepted results");
        self.check();
        for update in &updates {
            let (_, tokens) = step.results.iter().find(|(id, _)| *id == update.id).expect("a result");
            assert_eq!(tokens.len(), update.num_new_tokens as usize);
            self.outputs
                .get_mut(&update.id)
                .expect("a known request")
                .extend(tokens);
            if update.finished == Some(FinishReason::Length) {
                self.finished.push(update.id);
            }
        }
        updates
    }

    /// Plans and reads one step at a time until nothing is left to do.
    pub fn run_to_end(&mut self) {
        for _ in 0..10_000 {
            let planned = self.plan().is_some();
            if self.device.in_flight.is_empty() {
                assert!(!planned);
                return;
            }
            self.read();
        }
        panic!("the requests do not end: {:?}", self.scheduler.counts());
    }

    /// Every request that finished by length has exactly the model's tokens, and nothing is left in use.
    pub fn check_ended(&self, aborted: &[RequestId]) {
        for (id, request) in &self.device.requests {
            let expected = expected_tokens(request, self.config.max_model_len);
            let output = &self.outputs[id];
            if aborted.contains(id) {
                assert!(expected.starts_with(output), "{id:?}");
            } else {
                assert_eq!(output, &expected, "{id:?}");
                assert!(self.finished.contains(id), "{id:?} did not finish");
            }
        }
        let counts = self.scheduler.counts();
        assert!(self.scheduler.is_idle(), "{counts:?}");
        assert_eq!((counts.running, counts.waiting), (0, 0));
        assert_eq!(counts.used_blocks as usize, counts.held_blocks);
    }
}

/// A small configuration: 4 tokens a block, one full group, one step at a time.
pub fn small(num_blocks: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        max_model_len: 64,
        num_blocks,
        groups: vec![KvGroup {
            kind: KvKind::Full,
            block_size: 4,
        }],
        ..SchedulerConfig::default()
    }
}

/// `len` tokens that start with `first`.
pub fn tokens(first: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|index| first * 1000 + index).collect()
}

pub fn ids(ids: impl IntoIterator<Item = u64>) -> Vec<RequestId> {
    ids.into_iter().map(RequestId).collect()
}

pub fn scheduled_ids(plan: &SchedulerOutput) -> Vec<u64> {
    plan.scheduled.iter().map(|row| row.id.0).collect()
}
