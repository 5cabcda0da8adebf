//! The front door: starting an engine, submitting requests, and shutting down. Cheap to clone, for any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use halyard_grammar::{GrammarError, Grammars, StructuredOutputs};
use halyard_hooks::RecordSender;
use halyard_models::{GenerationDefaults, LoraLimits, ModelFacts, ModelFiles, SplitMix64};
use halyard_platform_api::hooks::{RejectedRecord, StatRecord};
use halyard_platform_api::{DType, Device};
use halyard_runner::{LoadProgress, ModelInfo, RowOutput, kv_dtype};
use halyard_scheduler::{NewRequest, RequestId, Scheduler, SchedulerConfig};
use halyard_text::{ChatTemplate, Tokenizer};
use tokio::sync::mpsc::unbounded_channel;

use crate::command::Command;
use crate::config::{EngineConfig, LoraConfig};
use crate::core::{Core, CoreParts};
use crate::drafts::Drafting;
use crate::error::{EngineError, ParamError, SubmitError};
use crate::facts::{RequestFacts, SequenceFacts, unix_ns};
use crate::guide::GuideFactory;
use crate::guide_workers::SequenceGuide;
use crate::lora::adapter::Adapter;
use crate::lora::core::CoreLora;
use crate::lora::loader::LoraLoader;
use crate::lora::registry::Adapters;
use crate::lora::{AdapterError, AdapterSource, AdapterStatus};
use crate::model_source::{ModelSource, Preparation};
use crate::model_text::open_text;
use crate::params::{MAX_STOP_TOKENS, Request};
use crate::residence::{OnDevice, Residence, lora_memories};
use crate::sequence::{Sequence, constraints, row_spec};
use crate::shared::Shared;
use crate::stats::{Records, StatsSnapshot};
use crate::step_pace::StepPace;
use crate::stream::OutputStream;

struct Front {
    commands: Sender<Command>,
    records: RecordSender,
    shared: Arc<Shared>,
    info: ModelInfo,
    /// LoRA adapters, where they are served.
    adapters: Option<Arc<Adapters>>,
    tokenizer: Tokenizer,
    grammars: Grammars,
    chat_template: Option<ChatTemplate>,
    response_template: Option<String>,
    generation: GenerationDefaults,
    source: Arc<ModelSource>,
    next_id: AtomicU64,
    max_waiting: usize,
    seed: u64,
    /// Tokens may be drafted.
    drafts: bool,
    /// Requests may ask for hidden states.
    hidden_states: bool,
    prefix_caching: bool,
    /// Somebody listens to events of the prefix cache.
    has_kv_events: bool,
    started: Instant,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// A running engine.
#[derive(Clone)]
pub struct EngineHandle {
    front: Arc<Front>,
}

impl EngineHandle {
    /// Loads `files` onto `device` and starts the engine thread. Blocks while loading.
    ///
    /// # Errors
    /// Every op that the device lacks, memory that does not fit, a tokenizer that cannot be read.
    pub fn start(
        config: EngineConfig,
        device: Arc<dyn Device>,
        files: ModelFiles,
        records: RecordSender,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<EngineHandle, EngineError> {
        Self::start_on(config, &[device], files, records, progress)
    }

    /// The same on several devices of one platform, tensor parallel: each holds a part of every layer.
    ///
    /// # Errors
    /// As [`EngineHandle::start`], by rank; a model that so many devices cannot share.
    pub fn start_on(
        config: EngineConfig,
        devices: &[Arc<dyn Device>],
        mut files: ModelFiles,
        records: RecordSender,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<EngineHandle, EngineError> {
        let runner_config = config.runner()?;
        let facts = ModelFacts::of(&files)?;
        let preparation = Preparation {
            // The others hold every key and value.
            kv_in_8_bits: devices
                .first()
                .is_some_and(|device| kv_dtype(&runner_config, device.info()) == DType::F8E4M3),
            cuts_columns: devices.len() > 1,
            has_adapters: runner_config.lora.is_some(),
        };
        preparation.apply(&mut files)?;
        // The vocabulary takes one thread about as long as the weights of a small model, which leave threads free.
        let (text, loaded) = std::thread::scope(|scope| {
            let text = std::thread::Builder::new()
                .name("halyard-text".into())
                .spawn_scoped(scope, || open_text(&config, &files));
            let loaded = halyard_runner::load(&runner_config, devices, &files, progress);
            let text = match text {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // The system gave no thread.
                Err(_) => open_text(&config, &files),
            };
            (text, loaded)
        });
        let ((tokenizer, chat_template), loaded) = (text?, loaded?);
        let max_in_flight = loaded.scheduler.max_steps_in_flight;
        let scheduler = Scheduler::new(SchedulerConfig {
            policy: config.scheduler.policy,
            long_prefill_token_threshold: config.scheduler.long_prefill_token_threshold,
            enable_kv_cache_events: config.kv_events.is_some(),
            ..loaded.scheduler.clone()
        })?;
        let (commands, receiver) = channel();
        let shared = Arc::new(Shared::new(loaded.info.name.clone()));
        let started = Instant::now();
        let for_refusals = records.clone();
        let records = Records::new(records);
        let memories = lora_memories(&loaded);
        let on_device = OnDevice::start(loaded.runner, loaded.others, max_in_flight, &shared)?;
        let source = Arc::new(ModelSource::new(
            (config.model.clone(), runner_config, config.sleep_mode),
            (facts, tokenizer.vocab_size()),
            preparation,
            &loaded.info,
        ));
        let adapters = config
            .lora
            .as_ref()
            .map(|lora| open_adapters(lora, &files, loaded.info.dtype))
            .transpose()?;
        let lora = match &adapters {
            Some(adapters) => {
                let num_slots = scheduler.config().num_lora_slots;
                let loader = LoraLoader::start(adapters.clone(), memories, commands.clone())?;
                Some(CoreLora::new(adapters.clone(), loader, num_slots))
            }
            None => None,
        };
        let pace = StepPace::new(config.scheduler.max_step, loaded.info.async_depth == 0);
        let response_template = files.response_template.clone();
        let generation = files.generation.clone();
        let core = Core::new(CoreParts {
            model: Residence::new(
                on_device,
                (source.clone(), files),
                max_in_flight,
                shared.clone(),
                devices.to_vec(),
            ),
            vocab: loaded.info.vocab_size,
            scheduler,
            lora,
            commands: receiver,
            shared: shared.clone(),
            records,
            started,
            pace,
            speculative: config.speculative,
            guides: config.guides,
            kv_events: config.kv_events.clone(),
            block_bytes: loaded.info.block_bytes * u64::from(loaded.info.tensor_parallel_size),
        });
        let thread = std::thread::Builder::new()
            .name("halyard-engine".into())
            .spawn(move || core.run())
            .map_err(|e| EngineError::Thread(e.to_string()))?;
        let ends: Vec<u32> = loaded
            .info
            .eos_token_ids
            .iter()
            .copied()
            .filter(|id| *id < loaded.info.vocab_size)
            .collect();
        let grammars = Grammars::new(&tokenizer, loaded.info.vocab_size, &ends, config.grammars);
        grammars.warm_up();
        let front = Front {
            commands,
            records: for_refusals,
            shared,
            info: loaded.info,
            adapters,
            tokenizer,
            grammars,
            chat_template,
            response_template,
            generation,
            source,
            next_id: AtomicU64::new(1),
            max_waiting: config.scheduler.max_waiting as usize,
            seed: config.model.seed,
            drafts: config.speculative.is_some(),
            hidden_states: config.hidden_states,
            prefix_caching: config.cache.enable_prefix_caching,
            has_kv_events: config.kv_events.is_some(),
            started,
            thread: Mutex::new(Some(thread)),
        };
        Ok(EngineHandle { front: Arc::new(front) })
    }

    /// Queues a request. Dropping the stream cancels it. Blocks while a new structured output is compiled; callers that
    /// may not block set [`Request::guide`] from [`EngineHandle::guide`] before.
    ///
    /// # Errors
    /// A fault of the request, or the reason why the engine takes none now. Nothing is queued then.
    pub fn submit(&self, request: Request) -> Result<OutputStream, SubmitError> {
        let records = &self.front.records;
        if !records.wanted() {
            return self.admit(request);
        }
        let (id, prompt_tokens): (Arc<str>, u64) = (request.id.as_str().into(), request.prompt.len() as u64);
        self.admit(request).inspect_err(|error| {
            records.send(StatRecord::Rejected(RejectedRecord {
                reason: error.record_reason(),
                unix_ns: unix_ns(),
                prompt_tokens,
                request_id: id,
                detail: error.to_string().into(),
            }));
        })
    }

    fn admit(&self, mut request: Request) -> Result<OutputStream, SubmitError> {
        let f = &*self.front;
        self.check(&request)?;
        if let Some(asked) = request
            .params
            .structured_outputs
            .as_ref()
            .filter(|_| request.guide.is_none())
        {
            request.guide = Some(self.guide(asked, &request.params.stop_token_ids)?);
        }
        if let Some(reason) = f.shared.stopped() {
            return Err(SubmitError::Dead { reason });
        }
        if f.shared.draining.load(Ordering::Relaxed) {
            return Err(SubmitError::ShuttingDown);
        }
        let adapter = match &request.lora {
            Some(name) => Some(f.find_adapter(name).map_err(|e| SubmitError::Adapter(e.to_string()))?),
            None => None,
        };
        let n = request.params.n;
        if n as usize > f.max_waiting {
            let high = f.max_waiting as f64;
            return Err(ParamError::Between {
                name: "n",
                value: f64::from(n),
                low: 1.0,
                high,
            }
            .into());
        }
        f.shared
            .reserve(n as usize, f.max_waiting)
            .map_err(|waiting| SubmitError::QueueFull {
                waiting,
                retry_after_s: 1,
            })?;
        let (messages, receiver) = unbounded_channel();
        let facts = RequestFacts::new(&request);
        let params = Arc::new(request.params);
        let prompt: Arc<[u32]> = request.prompt.into();
        let first = f.next_id.fetch_add(u64::from(n), Ordering::Relaxed);
        let spread = |seed| SplitMix64(seed).word();
        let seed = params.seed.unwrap_or_else(|| spread(f.seed ^ spread(first)));
        let mut stops = if params.ignore_eos {
            Vec::new()
        } else {
            f.info.eos_token_ids.clone()
        };
        let num_eos = stops.len();
        stops.extend(&params.stop_token_ids);
        let constraints = constraints(&params, stops);
        let max_new_tokens = f.info.max_model_len - prompt.len() as u32;
        let max_tokens = match request.hidden_state {
            true => 1,
            false => params.max_tokens.unwrap_or(max_new_tokens).min(max_new_tokens),
        };
        let now = Instant::now();
        let arrival_ns = now.duration_since(f.started).as_nanos() as u64;
        let salt: Option<Arc<[u8]>> = request.cache_salt.map(|salt| salt.into_bytes().into());
        let sequences = (0..n).map(|index| {
            let id = RequestId(first + u64::from(index));
            let scores_prompt = index == 0 && params.prompt_logprobs.is_some();
            let seed = seed.wrapping_add(u64::from(index));
            let mut row = row_spec(&params, prompt.clone(), seed, constraints.clone());
            row.prompt_logprobs = row.prompt_logprobs.filter(|_| scores_prompt);
            row.output = match request.guide {
                _ if request.hidden_state => RowOutput::HiddenState,
                Some(_) => RowOutput::MaskedToken,
                None => RowOutput::Token,
            };
            let mut sequence = Sequence {
                index,
                params: params.clone(),
                row: Arc::new(row),
                num_eos,
                messages: messages.clone(),
                arrival: now,
                first_token: None,
                queue_ns: 0,
                num_output: 0,
                num_cached: 0,
                facts: SequenceFacts::new(facts.clone()),
                lora: adapter.clone(),
                guide: request
                    .guide
                    .as_ref()
                    .map(|guide| SequenceGuide::new(guide.make(index))),
                admitted: false,
                drafting: None,
                prompt_logprobs: scores_prompt.then(|| vec![None; prompt.len()]),
            };
            sequence.drafting = f.drafts.then(|| Drafting::of(&sequence.row)).flatten();
            let new = NewRequest {
                id,
                prompt: prompt.clone(),
                max_tokens,
                priority: request.priority,
                arrival_ns,
                cache_salt: salt.clone(),
                lora: adapter.as_ref().map(|adapter| adapter.number),
                lora_name: adapter
                    .as_ref()
                    .filter(|_| f.has_kv_events)
                    .map(|adapter| adapter.name.as_str().into()),
                cacheable: !scores_prompt,
            };
            (id, sequence, new)
        });
        let sequences: Vec<_> = sequences.collect();
        tracing::debug!(request = %request.id, prompt_tokens = prompt.len(), max_tokens, n, "submitted");
        if f.commands.send(Command::Submit(sequences)).is_err() {
            let reason = f
                .shared
                .stopped()
                .unwrap_or_else(|| "the engine thread is gone".to_string());
            return Err(SubmitError::Dead { reason });
        }
        Ok(OutputStream::new(
            request.id,
            &f.tokenizer,
            prompt,
            params,
            first,
            receiver,
            (f.commands.clone(), Arc::clone(&f.shared)),
        ))
    }

    /// Reads a LoRA adapter and makes it known by a name. Blocks for its files.
    ///
    /// # Errors
    /// A name that is taken, files that are wrong for this server or this model; or this server has no LoRA.
    pub fn add_adapter(&self, name: &str, source: AdapterSource) -> Result<(), AdapterError> {
        let adapter = self.front.adapters()?.add(name, source)?;
        let _ = self.front.commands.send(Command::AddedAdapter(adapter));
        Ok(())
    }

    /// Sends stat loggers a record for each adapter that was there from the start. Call it after their `start` record,
    /// which must be the first.
    pub fn tell_adapters(&self) {
        for adapter in self.front.adapters.iter().flat_map(|adapters| adapters.all()) {
            let _ = self.front.commands.send(Command::AddedAdapter(adapter));
        }
    }

    /// Takes an adapter's name away. Requests that have it go on to their end, after which its memory is free.
    ///
    /// # Errors
    /// There is none of that name; or this server has no LoRA.
    pub fn remove_adapter(&self, name: &str) -> Result<(), AdapterError> {
        let adapter = self.front.adapters()?.retire(name)?;
        let _ = self.front.commands.send(Command::RetireAdapter(adapter));
        Ok(())
    }

    /// Whether there is an adapter of this name.
    pub fn has_adapter(&self, name: &str) -> bool {
        self.front
            .adapters
            .as_ref()
            .is_some_and(|adapters| adapters.contains(name))
    }

    /// Every LoRA adapter with its counters, by name; empty without LoRA.
    pub fn adapters(&self) -> Vec<AdapterStatus> {
        self.front
            .adapters
            .as_ref()
            .map_or_else(Vec::new, |adapters| adapters.status())
    }

    /// The guide of a structured output, for a request that ends at `stop_token_ids` too. Blocks while a new one is
    /// compiled, up to [`halyard_grammar::GrammarConfig::max_compile_time`].
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn guide(&self, asked: &StructuredOutputs, stop_token_ids: &[u32]) -> Result<GuideFactory, GrammarError> {
        let grammar = self.front.grammars.compile(asked)?;
        grammar.with_stops(stop_token_ids).map(GuideFactory::of_grammar)
    }

    /// The same without blocking; `None`: it is new and must be compiled.
    pub fn kept_guide(
        &self,
        asked: &StructuredOutputs,
        stop_token_ids: &[u32],
    ) -> Option<Result<GuideFactory, GrammarError>> {
        let kept = self.front.grammars.kept(asked)?;
        Some(kept.and_then(|grammar| grammar.with_stops(stop_token_ids).map(GuideFactory::of_grammar)))
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let info = &self.front.info;
        request.params.check(info.vocab_size)?;
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if request.prompt.len() >= info.max_model_len as usize {
            return Err(SubmitError::PromptTooLong {
                found: request.prompt.len(),
                limit: info.max_model_len,
            });
        }
        if request.hidden_state {
            let refused = match request.params.n {
                _ if !self.front.hidden_states => Err("is refused: the engine was not started for it"),
                _ if request.guide.is_some() || request.params.structured_outputs.is_some() => {
                    Err("has no tokens to guide")
                }
                1 => Ok(()),
                _ => Err("has one sample"),
            };
            refused.map_err(SubmitError::HiddenState)?;
        }
        let stops = info.eos_token_ids.len() + request.params.stop_token_ids.len();
        if stops > MAX_STOP_TOKENS {
            return Err(ParamError::Count {
                name: "stop_token_ids and end tokens",
                found: stops,
                limit: MAX_STOP_TOKENS,
            }
            .into());
        }
        let eos = (!request.params.ignore_eos).then_some(&info.eos_token_ids);
        let stops = eos.into_iter().flatten().chain(&request.params.stop_token_ids);
        request.params.check_allowed(stops.copied())?;
        let outside = request.prompt.iter().position(|&id| id >= info.vocab_size);
        match outside {
            Some(position) => {
                let id = request.prompt[position];
                Err(SubmitError::PromptVocabulary {
                    id,
                    position,
                    vocab_size: info.vocab_size,
                })
            }
            None => Ok(()),
        }
    }

    /// What asks the engine's thread, and what it shares.
    pub(crate) fn control(&self) -> (&Sender<Command>, &Arc<Shared>) {
        (&self.front.commands, &self.front.shared)
    }

    /// Where the weights come from.
    pub(crate) fn source(&self) -> &ModelSource {
        &self.front.source
    }

    /// Facts of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.front.info
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.front.tokenizer
    }

    /// The chat template, where the model has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.front.chat_template.as_ref()
    }

    /// How the model's answers are to be read, where it says so: `response_template` of its tokenizer_config.json.
    pub fn response_template(&self) -> Option<&str> {
        self.front.response_template.as_deref()
    }

    /// Sampling defaults of the model's authors.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.front.generation
    }

    /// Counters and gauges.
    pub fn stats(&self) -> StatsSnapshot {
        let shared = &self.front.shared;
        let mut stats = shared.stats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        stats.num_waiting = stats.num_waiting.max(u64::from(shared.waiting()));
        stats
    }

    /// Whether the engine runs; otherwise why not.
    ///
    /// # Errors
    /// The reason.
    pub fn health(&self) -> Result<(), String> {
        self.front.shared.stopped().map_or(Ok(()), Err)
    }

    /// Whether equal prefixes share KV blocks.
    pub(crate) fn prefix_caching(&self) -> bool {
        self.front.prefix_caching
    }

    /// Whether `count` sequences more would be queued now.
    pub(crate) fn takes(&self, count: u32) -> bool {
        let f = &*self.front;
        let is_open = f.shared.stopped().is_none() && !f.shared.draining.load(Ordering::Relaxed);
        is_open && f.shared.waiting() as usize + count as usize <= f.max_waiting
    }

    /// Takes no new requests, waits for the running ones until `deadline`, then aborts the rest. Blocks.
    pub fn shutdown(&self, deadline: Duration) {
        self.front.shared.draining.store(true, Ordering::Relaxed);
        let now = Instant::now();
        let end = now
            .checked_add(deadline)
            .unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
        self.front.shared.end_by(end);
        let _ = self.front.commands.send(Command::Shutdown(end));
        let thread = self.front.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the engine thread panicked");
        }
    }
}

impl Front {
    fn adapters(&self) -> Result<&Arc<Adapters>, AdapterError> {
        self.adapters.as_ref().ok_or(AdapterError::Disabled)
    }

    fn find_adapter(&self, name: &str) -> Result<Arc<Adapter>, AdapterError> {
        self.adapters()?.find(name)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shared.end_by(Instant::now());
        let _ = self.commands.send(Command::Shutdown(Instant::now()));
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the engine thread panicked");
        }
    }
}

/// The adapters that are there from the start, read and checked.
fn open_adapters(config: &LoraConfig, files: &ModelFiles, act: DType) -> Result<Arc<Adapters>, EngineError> {
    let limits = LoraLimits {
        max_rank: config.max_rank,
        targets: config.targets,
        dtype: config.dtype.unwrap_or(act),
    };
    let adapters = Adapters::new(files.description.clone(), limits, config.max_host());
    for (name, source) in &config.adapters {
        adapters
            .add(name, source.clone())
            .map_err(|error| EngineError::Adapter {
                name: name.clone(),
                error: Box::new(error),
            })?;
    }
    Ok(Arc::new(adapters))
}
