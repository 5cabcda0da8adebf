//! From model files and devices to runners: attention chosen, programs compiled, weights loaded, KV memory sized.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halyard_models::program::{
    ModelProgram, ProgramOptions, TensorRole, WeightSpec, build_forward, build_head, build_hidden_states,
};
use halyard_models::{ModelFiles, Role};
use halyard_platform_api::{BufferKind, CommunicatorId, DType, Device, QueueKind, Tensor, WeightFormat};
use halyard_scheduler::{KvGroup, KvKind, SchedulerConfig};

use crate::buckets::bucket_sizes;
use crate::compile::{CompiledProgram, Cut, Places, WeightSource, compile};
use crate::config::RunnerConfig;
use crate::device_model::{DeviceModel, ModelMemory, Programs};
use crate::error::RunnerError;
use crate::group::RankGroup;
use crate::host_memory::{check_host_memory, show_bytes};
use crate::host_tier::{self, BlockCopier, HostTier};
use crate::kv_memory::{self, KvNeeds};
use crate::lora_memory::LoraMemory;
use crate::memory::{ResultRing, RowState, StepState};
use crate::model_tensors::ModelTensors;
use crate::parallel::{check_experts, experts_note, group_id, join, on_every_rank, plan_ranks};
use crate::plan::{MIN_LOGITS_ROWS, Plan};
use crate::preparer::Preparer;
use crate::read_ahead::ReadAhead;
use crate::recording::Recordings;
use crate::runner::Runner;
use crate::scratch::{SCRATCH_ROWS, Scratch, first_row};
use crate::step_ops::StepOps;
use crate::template::{Extent, Template};
use crate::warm_up::warm_up;
use crate::weight_formats::WeightFormats;
use crate::weight_loader::WeightLoader;

/// How far loading is.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// The present stage.
    pub stage: &'static str,
    /// Weight bytes done; of several devices, on the first one.
    pub done_bytes: u64,
    /// Weight bytes in all, there.
    pub total_bytes: u64,
}

/// Facts of a loaded model, for answers and logs.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The file's own name of the model.
    pub name: String,
    /// Architecture, as the file names it.
    pub architecture: String,
    /// Context in tokens.
    pub max_model_len: u32,
    /// Devices that each hold a part of every layer.
    pub tensor_parallel_size: u32,
    /// Vocabulary.
    pub vocab_size: u32,
    /// End-of-sequence ids.
    pub eos_token_ids: Vec<u32>,
    /// Activation type.
    pub dtype: DType,
    /// KV type.
    pub kv_cache_dtype: DType,
    /// Attention backend in use.
    pub attention_backend: String,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// Pages of the KV pool.
    pub num_blocks: u32,
    /// Bytes of a page, of a rank.
    pub block_bytes: u64,
    /// Pages in host memory, for what the prefix cache on the device loses; 0: none.
    pub num_host_blocks: u32,
    /// Bytes of the weights as stored.
    pub weight_bytes: u64,
    /// Requests that run at the same time.
    pub max_num_seqs: u32,
    /// Tokens of a step.
    pub max_num_batched_tokens: u32,
    /// Steps in flight beyond the first.
    pub async_depth: u32,
    /// Ops a forward step encodes, regions counted once.
    pub num_step_ops: usize,
    /// The same of steps with LoRA rows; `None`: LoRA is off.
    pub num_lora_step_ops: Option<usize>,
    /// Notes of the loading for the log (what was lowered or left, and why).
    pub notes: Vec<String>,
}

/// The result of loading.
pub struct Loaded {
    /// Rank 0.
    pub runner: Runner,
    /// With several devices: the state that all ranks share, and the runners of ranks 1 and up.
    pub others: Option<(Arc<RankGroup>, Vec<Runner>)>,
    /// The scheduler's configuration as far as the devices decide it; the rest is the default.
    pub scheduler: SchedulerConfig,
    /// Facts.
    pub info: ModelInfo,
}

/// Loads `files` onto `devices`, each a rank with its part of the model.
///
/// # Errors
/// Every missing op; memory that does not fit, with the arithmetic; what device and files report.
pub fn load(
    config: &RunnerConfig,
    devices: &[Arc<dyn Device>],
    files: &ModelFiles,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, RunnerError> {
    load_weights(config, devices, files, progress)?.finish(config, files)
}

/// A model with its weights on the devices, and no KV cache: the first half of [`load`].
pub struct LoadedWeights {
    ranks: Vec<RankLoad>,
    /// Time that the first half took.
    elapsed: Duration,
}

/// The first half of [`load`]: programs, weights, and memory besides the KV cache.
///
/// # Errors
/// As [`load`].
pub fn load_weights(
    config: &RunnerConfig,
    devices: &[Arc<dyn Device>],
    files: &ModelFiles,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<LoadedWeights, RunnerError> {
    let start = Instant::now();
    check_host_memory(config.cache.kv_offloading_bytes)?;
    let plans = plan_ranks(config, devices, files)?;
    let id = group_id(devices)?;
    let inputs = plans.into_iter().zip(devices.iter().cloned()).collect();
    let ranks = on_every_rank(
        inputs,
        |(plan, device)| load_rank(config, plan, device, files, id.as_ref(), progress),
        |(plan, device)| load_rank(config, plan, device, files, id.as_ref(), &mut |_| {}),
    )?;
    Ok(LoadedWeights {
        ranks,
        elapsed: start.elapsed(),
    })
}

impl LoadedWeights {
    /// The second half of [`load`], with the same arguments: the KV cache, recordings and the first steps.
    ///
    /// # Errors
    /// As [`load`]; the weights are gone then.
    pub fn finish(self, config: &RunnerConfig, files: &ModelFiles) -> Result<Loaded, RunnerError> {
        let start = Instant::now();
        let LoadedWeights { mut ranks, elapsed } = self;
        let num_devices = ranks.len();
        // Every rank holds all of the scheduler's pages: the smallest memory decides.
        let mut smallest: Option<KvSized> = None;
        for rank in &ranks {
            let sized = size_kv(config, rank)?;
            if smallest
                .as_ref()
                .is_none_or(|s| sized.scheduler.num_blocks < s.scheduler.num_blocks)
            {
                smallest = Some(sized);
            }
        }
        let Some(KvSized { scheduler, note }) = smallest else {
            return Err(RunnerError::Internal("no rank was loaded"));
        };
        ranks[0].notes.extend(note);
        ranks[0].notes.extend(experts_note(config, num_devices));
        let group = (num_devices > 1).then(|| RankGroup::new(num_devices as u32));
        let finish = |mut rank: RankLoad| {
            let number = rank.plan.options.shard.rank;
            let outcome = finish_rank(config, &mut rank, &scheduler, group.as_ref(), &files.name);
            // Reported before the rank is dropped: the drop waits for its work, unless the group is known to have
            // failed.
            if let (Err(error), Some(group)) = (&outcome, &group) {
                group.fail(number, error);
            }
            outcome.map(|()| rank)
        };
        let mut ranks = on_every_rank(ranks, finish, finish)?.into_iter();
        let Some(mut first) = ranks.next() else {
            return Err(RunnerError::Internal("no rank was finished"));
        };
        first.notes.push(first.times(elapsed + start.elapsed()));
        Ok(Loaded {
            info: model_info(files, &first, &scheduler, num_devices),
            runner: first.into_runner(),
            others: group.map(|group| (group, ranks.map(RankLoad::into_runner).collect())),
            scheduler,
        })
    }
}

/// A rank before its KV memory is sized.
struct RankLoad {
    plan: Plan,
    model: DeviceModel,
    lora: Option<Arc<LoraMemory>>,
    recordings: Option<Recordings>,
    /// Blocks of host memory, and what copies them, where there is a second tier.
    host_blocks: u32,
    copier: Option<BlockCopier>,
    notes: Vec<String>,
    /// Time and bytes of packing weights.
    weights: Duration,
    weight_bytes: u64,
    /// Time of the first steps.
    warm_up: Duration,
}

impl RankLoad {
    fn into_runner(self) -> Runner {
        Runner::new(self.model, self.recordings, self.lora)
    }

    /// The times of a load by part; other ranks loaded at the same time.
    fn times(&self, all: Duration) -> String {
        let (weights, warm_up) = (self.weights, self.warm_up);
        format!(
            "loaded in {:.2} s: ops and memory {:.2}, weights {:.2} ({:.2} GB/s), warm-up {:.2}",
            all.as_secs_f64(),
            all.saturating_sub(weights + warm_up).as_secs_f64(),
            weights.as_secs_f64(),
            self.weight_bytes as f64 / 1e9 / weights.as_secs_f64().max(1e-9),
            warm_up.as_secs_f64(),
        )
    }
}

/// Joins the group and loads a rank's part of the model.
fn load_rank(
    config: &RunnerConfig,
    mut plan: Plan,
    device: Arc<dyn Device>,
    files: &ModelFiles,
    id: Option<&CommunicatorId>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<RankLoad, RunnerError> {
    let mut notes = Vec::new();
    let communicator = join(&*device, id, plan.options.shard)?;
    plan.options.communicator = communicator.as_ref().map_or(0, |group| group.number());
    let formats = WeightFormats::new(&*device, files, &plan.options);
    let format_of = |role| formats.of(role);
    let forward = build_forward(&files.description, &plan.kv, &plan.options, &format_of)?;
    let head = build_head(&files.description, &plan.options, &format_of)?;
    check_experts(&*device, &forward)?;
    check_experts(&*device, &head)?;
    let host_blocks = host_tier::num_blocks(&config.cache, &plan, &*device)?;
    let copier = match host_blocks {
        0 => None,
        _ => Some(BlockCopier::prepare(&*device, plan.block_bytes)?),
    };
    let queue = device.create_queue(QueueKind::Compute)?;
    let rows = RowState::allocate(&*device, &plan.capacities)?;
    let step = StepState::allocate(&*device, &plan.capacities)?;
    let ring = ResultRing::allocate(&*device, &plan.capacities)?;
    let mut memory = ModelTensors {
        device: &*device,
        plan: &plan,
        buffers: Vec::new(),
    };
    let forward_slots = memory.activations(&forward, &[])?;
    let head_slots = memory.activations(&head, &forward_slots[..2])?;
    let lora = lora_program(&plan, &device, files, &format_of)?;
    let lora_slots = match &lora {
        Some((program, _)) => memory.activations(program, &forward_slots)?,
        None => Vec::new(),
    };
    let logits = head_slots[head_slots.len() - 1].0;
    let raw_rows = plan.capacities.logits_chunk.min(MIN_LOGITS_ROWS);
    let raw_logits = memory.tensor(DType::F32, &[raw_rows, logits.shape[1]])?;
    let hidden = match plan.capacities.hidden_states {
        Some(_) => {
            let program = build_hidden_states(&files.description, &plan.options, &format_of)?;
            let slots = memory.activations(&program, &forward_slots[..2])?;
            Some((program, slots))
        }
        None => None,
    };
    let ropes = memory.rope_tables(files)?;
    let total_bytes = matrix_bytes(&forward) + matrix_bytes(&head);
    let mut done_bytes = 0;
    let mut shown = |bytes| {
        done_bytes += bytes;
        progress(LoadProgress {
            stage: "weights",
            done_bytes,
            total_bytes,
        });
    };
    shown(0);
    let ahead = ReadAhead::of(&files.weights, [&forward, &head]);
    // The other ranks read the same files at the same time.
    let ahead = (plan.options.shard.rank == 0).then_some(&ahead);
    let mut loader = WeightLoader::new(&*device, &*queue, &mut shown, ahead);
    let role = |role| match (&lora, role) {
        (Some((_, slots)), TensorRole::LoraA { .. } | TensorRole::LoraB { .. } | TensorRole::LoraScales) => {
            slots.place(role)
        }
        _ => place_of(role, &rows, &step, &ropes),
    };
    let mut preparer = Preparer::new(&*device, communicator.as_deref());
    let places = |activations| Places {
        activations,
        role: &role,
    };
    let mut compile_one = |cut: &Cut<'_>, slots, preparer: &mut Preparer<'_>| {
        let weights = WeightSource::Files(files, &mut loader);
        compile(&*device, cut, weights, &places(slots), preparer)
    };
    // All that is compiled, at once: the longest decides how long it takes.
    let cut = |program| Cut::of(&*device, program);
    let (forward, head) = (cut(&forward)?, cut(&head)?);
    let lora = match &lora {
        Some((program, memory)) => Some((cut(program)?, memory)),
        None => None,
    };
    let hidden = match &hidden {
        Some((program, slots)) => Some((cut(program)?, slots)),
        None => None,
    };
    let specs = StepOps::specs(&plan, &ring);
    let cuts = || {
        let others = lora.iter().map(|(cut, _)| cut).chain(hidden.iter().map(|(cut, _)| cut));
        [&forward, &head].into_iter().chain(others)
    };
    let (forward, head, ops) = std::thread::scope(|scope| {
        let _reading = ahead.map(|ahead| ahead.start(scope));
        let nodes = cuts().flat_map(Cut::specs);
        preparer.ahead(specs.iter().chain(nodes), cuts().flat_map(Cut::regions));
        let ops = StepOps::prepare(&plan, &specs, &mut preparer)?;
        let forward = compile_one(&forward, &forward_slots, &mut preparer)?;
        Ok::<_, RunnerError>((forward, compile_one(&head, &head_slots, &mut preparer)?, ops))
    })?;
    let lora_forward = match (&lora, &forward) {
        (Some((cut, _)), Some(forward)) => {
            let weights = WeightSource::Shared(forward);
            compile(&*device, cut, weights, &places(&lora_slots), &mut preparer)?
        }
        _ => None,
    };
    let hidden_states = match (&hidden, &head) {
        (Some((cut, slots)), Some(head)) => {
            let weights = WeightSource::Shared(head);
            let compiled = compile(&*device, cut, weights, &places(slots), &mut preparer)?;
            compiled.map(|compiled| (compiled, slots[2].0))
        }
        _ => None,
    };
    preparer.finish().map_err(|error| formats.explain(error))?;
    notes.extend(formats.notes());
    let (Some(forward), Some(head), Some(ops)) = (forward, head, ops) else {
        return Err(RunnerError::Internal("an op was missing and not listed"));
    };
    let lora_scratch = lora_forward.as_ref().map_or(0, |forward| forward.scratch_bytes);
    let lora = lora.map(|(_, memory)| memory.clone());
    if let (Some(options), Some(lora)) = (&plan.lora, &lora) {
        notes.push(format!(
            "lora: {} slots of rank {} in {:?}, {:.1} MB each; targets {}",
            options.num_slots,
            options.max_rank,
            options.dtype,
            lora.slot_bytes() as f64 / 1e6,
            options.targets
        ));
    }
    let (weights, weight_bytes) = (loader.elapsed, loader.bytes);
    drop(loader);
    notes.push(format!("composites: {} regions run as one op", forward.num_claims));
    notes.extend(forward.left.lines().map(|line| format!("composites: {line}")));
    let of_states = hidden_states.as_ref().map_or(0, |(program, _)| program.scratch_bytes);
    let scratch = forward
        .scratch_bytes
        .max(head.scratch_bytes)
        .max(lora_scratch)
        .max(of_states)
        .max(copier.as_ref().map_or(0, BlockCopier::scratch_bytes));
    queue.reserve_scratch(scratch.max(ops.scratch_bytes()))?;
    let programs = Programs {
        forward,
        head,
        hidden_states,
        lora_forward,
        ops,
    };
    let memory = ModelMemory {
        capacities: plan.capacities.clone(),
        rows,
        step,
        ring,
        logits,
        raw_logits,
        hidden: forward_slots[0].0,
        buffers: memory.buffers,
    };
    Ok(RankLoad {
        plan,
        model: DeviceModel::new(device, queue, communicator, programs, memory),
        lora,
        recordings: None,
        host_blocks,
        copier,
        notes,
        weights,
        weight_bytes,
        warm_up: Duration::ZERO,
    })
}

/// The program of steps with adapters and the slots it reads, where adapters are served.
fn lora_program(
    plan: &Plan,
    device: &Arc<dyn Device>,
    files: &ModelFiles,
    format_of: &dyn Fn(Role) -> halyard_models::Result<WeightFormat>,
) -> Result<Option<(ModelProgram, Arc<LoraMemory>)>, RunnerError> {
    let Some(lora) = plan.lora else {
        return Ok(None);
    };
    let options = ProgramOptions {
        lora: Some(lora),
        ..plan.options.clone()
    };
    let program = build_forward(&files.description, &plan.kv, &options, format_of)?;
    let memory = LoraMemory::allocate(device, &program, lora)?;
    Ok(Some((program, Arc::new(memory))))
}

/// Stored bytes of a program's matrices.
fn matrix_bytes(program: &ModelProgram) -> u64 {
    let bytes = |spec: &WeightSpec| match spec {
        WeightSpec::Matrix {
            format,
            in_features,
            parts,
            ..
        } => {
            let rows: u64 = parts.iter().map(|part| u64::from(part.rows)).sum();
            rows * format.row_bytes(*in_features as usize).unwrap_or(0) as u64
        }
        WeightSpec::Vector { .. } => 0,
    };
    program.weights.iter().map(bytes).sum()
}

/// Gives a rank its KV pages and, where all ranks can record, its recordings, and runs its first steps.
fn finish_rank(
    config: &RunnerConfig,
    rank: &mut RankLoad,
    scheduler: &SchedulerConfig,
    group: Option<&Arc<RankGroup>>,
    model: &str,
) -> Result<(), RunnerError> {
    rank.model.join(group.cloned());
    rank.bind_kv(scheduler)?;
    let mut recordings = recordings(config, rank, scheduler);
    if let Some(group) = group
        && !group.agree(recordings.is_some())?
        && recordings.take().is_some()
    {
        rank.notes
            .push("decode steps are encoded one by one: another rank cannot record".to_string());
    }
    rank.recordings = recordings;
    let start = Instant::now();
    let mut first = first_row(&rank.plan.capacities, rank.plan.options.block_size);
    let scratch = rank.recordings.as_mut().map_or(&mut first, Recordings::scratch);
    warm_up(&mut rank.model, scratch, model)?;
    rank.warm_up = start.elapsed();
    Ok(())
}

/// Recorded decode steps, where device and ops allow them; the notes say why not.
fn recordings(config: &RunnerConfig, rank: &mut RankLoad, scheduler: &SchedulerConfig) -> Option<Recordings> {
    let (plan, programs) = (&rank.plan, &rank.model.programs);
    let (c, notes) = (&plan.capacities, &mut rank.notes);
    let all = [&programs.forward, &programs.head]
        .into_iter()
        .chain(&programs.lora_forward);
    let program = all.into_iter().find_map(CompiledProgram::not_recordable);
    let refused = match plan.recording {
        Err(why) => Err(why.to_string()),
        Ok(()) => match program.or_else(|| programs.ops.not_recordable()) {
            Some(name) => Err(format!("{name} is not recordable")),
            None => Ok(bucket_sizes(c.max_seqs, &rank.model.device().info().shape_buckets)),
        },
    };
    match refused {
        Err(why) => {
            notes.push(format!("decode steps are encoded one by one: {why}"));
            None
        }
        Ok(sizes) => {
            notes.push(format!(
                "decode steps are recorded when they recur, for {sizes:?} sequences"
            ));
            let scratch = Scratch {
                first_row: c.max_seqs,
                num_rows: SCRATCH_ROWS,
                first_page: scheduler.num_blocks,
                num_tokens: plan.options.block_size.min(c.max_tokens).min(c.max_model_len),
                steps: 0,
            };
            Some(Recordings::new(sizes, scratch, &config.recording))
        }
    }
}

fn place_of(role: TensorRole, rows: &RowState, step: &StepState, ropes: &[Tensor]) -> Template {
    let tokens = |tensor| Template::new(tensor, Extent::Tokens);
    let seqs = |tensor| Template::new(tensor, Extent::Seqs);
    match role {
        TensorRole::TokenIds => tokens(step.token_ids),
        TensorRole::Positions => tokens(step.positions),
        TensorRole::Slots { group } => tokens(step.slots[group as usize]),
        TensorRole::StepRows => seqs(step.rows),
        TensorRole::SeqLens => seqs(step.seq_lens),
        TensorRole::QueryStartLoc => Template::new(step.query_start_loc, Extent::SeqsPlusOne),
        TensorRole::TokenLora => tokens(step.token_lora),
        TensorRole::BlockTable { group } => Template::fixed(rows.tables[group as usize]),
        TensorRole::RopeTable { index } => Template::fixed(ropes[index as usize]),
        TensorRole::LogitsIndex => Template::new(step.logits_index, Extent::LogitsIndex),
        TensorRole::Activation { .. }
        | TensorRole::Gathered { .. }
        | TensorRole::RankColumns { .. }
        | TensorRole::KvCache { .. }
        | TensorRole::Weight { .. }
        | TensorRole::LoraScales
        | TensorRole::LoraA { .. }
        | TensorRole::LoraB { .. } => Template::fixed(Tensor::NONE),
    }
}

/// A pool that fits a rank, and the numbers that were lowered for it.
struct KvSized {
    scheduler: SchedulerConfig,
    note: Option<String>,
}

/// How many pages fit, and whether they hold the context.
fn size_kv(config: &RunnerConfig, rank: &RankLoad) -> Result<KvSized, RunnerError> {
    let (plan, device) = (&rank.plan, &**rank.model.device());
    let groups = plan.kv.groups.iter().map(|group| KvGroup {
        kind: group.window.map_or(KvKind::Full, |tokens| KvKind::Window { tokens }),
        block_size: plan.options.block_size,
    });
    let mut scheduler = SchedulerConfig {
        max_num_seqs: plan.capacities.max_seqs,
        max_num_batched_tokens: plan.capacities.max_tokens,
        max_model_len: plan.capacities.max_model_len,
        num_blocks: 1,
        groups: groups.collect(),
        enable_prefix_caching: config.cache.enable_prefix_caching,
        num_host_blocks: rank.host_blocks,
        num_lora_slots: plan.lora.map_or(0, |lora| lora.num_slots),
        // `EngineHandle::submit` has the bound. In this queue preempted requests wait as well, and they must not be
        // refused.
        max_waiting: usize::MAX,
        max_steps_in_flight: plan.async_depth + 1,
        hash_key: random_key(),
        ..SchedulerConfig::default()
    };
    let needs = KvNeeds {
        page_bytes: plan.block_bytes * u64::from(plan.kv.page_slots),
        weight_bytes: rank.weight_bytes,
        memory: device.memory()?,
        max_pages: device.info().max_buffer_bytes.min(device.info().max_binding_bytes) / plan.block_bytes.max(1),
        unified: device.info().unified_memory,
        sharing: plan.options.shard.size,
        scratch_pages: plan.scratch_pages(),
    };
    let sized = kv_memory::size(config, &scheduler, &needs)?;
    scheduler.num_blocks = sized.num_pages;
    scheduler.max_model_len = sized.max_model_len;
    Ok(KvSized {
        scheduler,
        note: sized.note,
    })
}

/// A random key of this process, so that a client cannot make block hashes collide.
fn random_key() -> [u64; 2] {
    use std::hash::{BuildHasher, RandomState};
    let state = RandomState::new();
    [state.hash_one(0u64), state.hash_one(1u64)]
}

impl RankLoad {
    /// Allocates the pool's pages and those of checks, one buffer a page slot, and hands every layer its blocks. Then
    /// the second tier.
    fn bind_kv(&mut self, scheduler: &SchedulerConfig) -> Result<(), RunnerError> {
        let plan = &self.plan;
        let block_bytes = u32::try_from(plan.block_bytes).map_err(|_| RunnerError::Config {
            name: "--block-size",
            message: format!("a KV block takes {} bytes; choose a smaller block", plan.block_bytes),
        })?;
        let num_pages = scheduler.num_blocks + plan.scratch_pages();
        let mut slots = Vec::new();
        for _ in 0..plan.kv.page_slots {
            let bytes = u64::from(num_pages) * plan.block_bytes;
            let buffer = self.model.device().create_buffer(bytes, BufferKind::Device)?;
            slots.push(Tensor::contiguous(buffer.id(), 0, DType::U8, &[num_pages, block_bytes]));
            self.model.kv_pages.push(buffer);
        }
        let num_layers = plan.kv.groups.iter().map(|group| group.layers.len()).sum::<usize>();
        let caches: Vec<Tensor> = (0..num_layers as u32)
            .map(|layer| slots[plan.kv.place(layer).1 as usize])
            .collect();
        let programs = &mut self.model.programs;
        programs.forward.bind_kv(&caches);
        if let Some(forward) = &mut programs.lora_forward {
            forward.bind_kv(&caches);
        }
        if let Some(copier) = self.copier.take() {
            let device = self.model.device().clone();
            let tier = HostTier::allocate(&*device, copier, &slots, scheduler.num_host_blocks)?;
            self.model.host_tier = Some(Arc::new(tier));
            self.model.check_host_tier()?;
            let bytes = u64::from(scheduler.num_host_blocks) * self.plan.block_bytes * slots.len() as u64;
            self.notes.push(format!(
                "kv offloading: {} blocks of {} tokens in host memory, {}",
                scheduler.num_host_blocks,
                self.plan.options.block_size,
                show_bytes(bytes)
            ));
        }
        Ok(())
    }
}

fn model_info(files: &ModelFiles, rank: &RankLoad, scheduler: &SchedulerConfig, num_devices: usize) -> ModelInfo {
    let (plan, programs) = (&rank.plan, &rank.model.programs);
    ModelInfo {
        name: files.name.clone(),
        architecture: files.description.architecture.clone(),
        max_model_len: scheduler.max_model_len,
        tensor_parallel_size: num_devices as u32,
        vocab_size: plan.capacities.vocab,
        eos_token_ids: files.generation.eos_token_ids.clone(),
        dtype: plan.options.act,
        kv_cache_dtype: plan.options.kv,
        attention_backend: plan.attention_name.clone(),
        block_size: plan.options.block_size,
        num_blocks: scheduler.num_blocks,
        block_bytes: plan.block_bytes * u64::from(plan.kv.page_slots),
        num_host_blocks: scheduler.num_host_blocks,
        weight_bytes: files.weight_bytes,
        max_num_seqs: plan.capacities.max_seqs,
        max_num_batched_tokens: plan.capacities.max_tokens,
        async_depth: plan.async_depth,
        num_step_ops: programs.forward.num_ops(),
        num_lora_step_ops: programs.lora_forward.as_ref().map(CompiledProgram::num_ops),
        notes: rank.notes.clone(),
    }
}
