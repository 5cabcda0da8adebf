//! The whole engine on the delayed device: real threads, random requests, readers that are slow or leave, adapters
//! whose files go away,
//! a device that fails at a submit or has no memory left.
//!
//! Requests are seeded; the order of threads is not. So the checks hold in any order: every request ends exactly once,
//! its
//! tokens are those that it gets alone, nothing stays in use, and a failed engine says one reason everywhere.

use std::collections::{BTreeSet, HashMap};
use std::future::Future as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use halyard_delayed::{DelayedPlatform, Fault};
use halyard_engine::{
    AdapterError, AdapterSource, EngineConfig, FinishReason, Llm, LoraConfig, OutputChunk, OutputStream, PauseMode,
    Request, SamplingParams, SubmitError,
};
use halyard_models::SplitMix64;
use halyard_platform_api::{Device, Platform};
use halyard_reference::ReferencePlatform;

/// Steps of one engine, after which it ends and another one starts.
const WORLD_STEPS: u64 = 400;
/// Adapters of the fixtures.
const ADAPTERS: [&str; 3] = ["rank4", "rslora8", "rank16"];
/// The one whose files go away.
const FLEETING: &str = "rank16";
/// Entries of the catalogue of requests.
const NUM_KINDS: u64 = 48;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models")
}

/// A request of the catalogue: its number decides everything.
fn request(kind: u64) -> Request {
    let mut random = SplitMix64(kind.wrapping_mul(0x1234_5677));
    let longest = if random.one_in(3) { 60 } else { 12 };
    let len = 1 + random.below(longest);
    // Few beginnings: equal prefixes are common.
    let first = random.below(3);
    let prompt = (0..len).map(|at| (5 + (at * (first + 1)) % 90) as u32).collect();
    let sampled = random.one_in(2);
    let params = SamplingParams {
        n: if random.one_in(6) { 2 } else { 1 },
        temperature: if sampled { 0.9 } else { 0.0 },
        top_p: if random.one_in(3) { 0.9 } else { 1.0 },
        seed: Some(kind),
        repetition_penalty: if random.one_in(4) { 1.2 } else { 1.0 },
        presence_penalty: if random.one_in(5) { 0.5 } else { 0.0 },
        max_tokens: Some(1 + random.below(24) as u32),
        ignore_eos: random.one_in(2),
        logprobs: random.one_in(5).then_some(2),
        prompt_logprobs: random.one_in(9).then_some(1),
        ..SamplingParams::default()
    };
    let mut request = Request::new(format!("kind-{kind}"), prompt, params);
    let adapter = random.below(2 * ADAPTERS.len() as u64) as usize;
    request.lora = ADAPTERS.get(adapter).map(|name| (*name).to_owned());
    request.cache_salt = random.one_in(5).then(|| "tenant".to_owned());
    request
}

/// What one world's folder of adapters holds; `FLEETING` may be moved away.
struct Adapters {
    folder: PathBuf,
    gone: bool,
}

impl Adapters {
    fn new(seed: u64) -> Adapters {
        let name = format!("halyard-simulation-{}-{seed}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for adapter in ADAPTERS {
            let to = folder.join(adapter);
            std::fs::create_dir_all(&to).expect("a temporary folder");
            for file in ["adapter_config.json", "adapter_model.safetensors"] {
                std::fs::copy(fixtures().join("llama-lora").join(adapter).join(file), to.join(file))
                    .expect("a fixture");
            }
        }
        Adapters { folder, gone: false }
    }

    fn toggle(&mut self) {
        let (here, away) = (self.folder.join(FLEETING), self.folder.join("away"));
        let (from, to) = if self.gone { (away, here) } else { (here, away) };
        std::fs::rename(from, to).expect("a folder that is there");
        self.gone = !self.gone;
    }
}

impl Drop for Adapters {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn config(adapters: &Path, random: &mut SplitMix64) -> EngineConfig {
    let mut config = EngineConfig::for_model(fixtures().join("llama"));
    config.cache.block_size = Some(16);
    // A block of 16 tokens takes 4 KiB (2 layers, one head of 16 values, keys and values): little more than one
    // request's.
    config.cache.kv_cache_memory_bytes = Some((10 + random.below(16)) << 12);
    config.cache.enable_prefix_caching = !random.one_in(4);
    if config.cache.enable_prefix_caching && random.one_in(2) {
        config.cache.kv_offloading_bytes = (1 + random.below(40)) << 12;
    }
    config.model.max_model_len = Some(96);
    config.scheduler.max_num_seqs = 1 + random.below(6) as u32;
    config.scheduler.max_num_batched_tokens = Some(8 + random.below(56) as u32);
    config.scheduler.max_waiting = 24;
    config.scheduler.long_prefill_token_threshold = if random.one_in(2) {
        0
    } else {
        1 + random.below(16) as u32
    };
    config.recording.from_step = 1 + random.below(6) as u32;
    config.recording.enforce_eager = random.one_in(4);
    let max_loras = 1 + random.below(2) as u32;
    config.lora = Some(LoraConfig {
        adapters: ADAPTERS
            .map(|name| (name.to_owned(), AdapterSource::Folder(adapters.join(name))))
            .to_vec(),
        max_loras,
        // As few in host memory as on the device: the others come from their files each time.
        max_cpu_loras: Some(max_loras),
        ..LoraConfig::default()
    });
    config
}

/// Tokens of each sample of each kind, alone on the reference device.
type Expected = HashMap<u64, Vec<Vec<u32>>>;

fn expected() -> Expected {
    let adapters = Adapters::new(u64::MAX);
    let mut config = config(&adapters.folder, &mut SplitMix64(0));
    config.cache.kv_cache_memory_bytes = Some(4 << 20);
    let device = ReferencePlatform::new().open(0).expect("the host");
    let llm = Llm::open(config, device).expect("the fixture");
    let alone = |kind| {
        let stream = llm.engine().submit(request(kind)).expect("a good request");
        let output = stream.blocking_collect();
        (
            kind,
            output.outputs.into_iter().map(|sample| sample.token_ids).collect(),
        )
    };
    (0..NUM_KINDS).map(alone).collect()
}

#[derive(Debug, Default)]
struct Happened {
    steps: u64,
    replayed: u64,
    preemptions: u64,
    offloaded: u64,
    restored: u64,
    requests: u64,
    complete: u64,
    left: u64,
    adapter_failures: u64,
    full: u64,
    pauses: u64,
    resets: u64,
    paused: u64,
    device_failures: u64,
    start_failures: u64,
}

/// A request and what came of it so far.
struct Open {
    kind: u64,
    stream: OutputStream,
    samples: Vec<(Vec<u32>, Option<FinishReason>)>,
}

struct World<'e> {
    llm: Llm,
    random: SplitMix64,
    adapters: Adapters,
    expected: &'e Expected,
    open: Vec<Open>,
    /// What failed requests say.
    reasons: BTreeSet<String>,
    happened: Happened,
    fault: Option<Fault>,
}

impl World<'_> {
    fn submit(&mut self) {
        let kind = self.random.below(NUM_KINDS);
        match self.llm.engine().submit(request(kind)) {
            Ok(stream) => {
                self.happened.requests += 1;
                let samples = vec![(Vec::new(), None); self.expected[&kind].len()];
                self.open.push(Open { kind, stream, samples });
            }
            Err(SubmitError::QueueFull { .. }) => self.happened.full += 1,
            Err(SubmitError::Dead { reason }) => drop(self.reasons.insert(reason)),
            // Between being removed and being added again.
            Err(SubmitError::Adapter(words)) => assert!(words.contains(FLEETING), "{words}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes what is there for a request; true once it has ended.
    fn read(&mut self, at: usize, wait: bool) -> bool {
        loop {
            let open = &mut self.open[at];
            let chunk = if wait {
                open.stream.blocking_next()
            } else {
                match pin!(open.stream.next()).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(chunk) => chunk,
                    Poll::Pending => return false,
                }
            };
            match chunk {
                Some(chunk) => self.take(at, chunk),
                None => {
                    let open = self.open.swap_remove(at);
                    self.check_end(&open);
                    return true;
                }
            }
        }
    }

    fn take(&mut self, at: usize, chunk: OutputChunk) {
        let (tokens, finish) = &mut self.open[at].samples[chunk.index as usize];
        assert_eq!(*finish, None, "a sample goes on after its end");
        tokens.extend(&chunk.token_ids);
        *finish = chunk.finish;
    }

    fn check_end(&mut self, open: &Open) {
        let expected = &self.expected[&open.kind];
        for ((tokens, finish), expected) in open.samples.iter().zip(expected) {
            let kind = open.kind;
            match finish
                .as_ref()
                .unwrap_or_else(|| panic!("kind {kind} ended without a reason"))
            {
                FinishReason::Eos | FinishReason::Length => {
                    assert_eq!(tokens, expected, "kind {kind} has other tokens than alone");
                    self.happened.complete += 1;
                }
                FinishReason::Abort(reason) => {
                    assert!(
                        expected.starts_with(tokens),
                        "kind {kind}: {tokens:?} and alone {expected:?}"
                    );
                    assert!(reason.contains(FLEETING), "kind {kind} was ended: {reason}");
                    self.happened.adapter_failures += 1;
                }
                FinishReason::Error(reason) => {
                    assert!(
                        expected.starts_with(tokens),
                        "kind {kind}: {tokens:?} and alone {expected:?}"
                    );
                    assert!(self.fault.is_some(), "kind {kind} failed without a fault: {reason}");
                    self.reasons.insert(reason.clone());
                }
                FinishReason::Paused => {
                    assert!(
                        expected.starts_with(tokens),
                        "kind {kind}: {tokens:?} and alone {expected:?}"
                    );
                    self.happened.paused += 1;
                }
                other => panic!("kind {kind} ended by {other:?}"),
            }
        }
    }

    fn call(&mut self) {
        let some = (!self.open.is_empty()).then(|| self.random.below(self.open.len().max(1) as u64) as usize);
        match (self.random.below(32), some) {
            (0..12, _) => self.submit(),
            // A slow reader is one that is seldom chosen here.
            (12..22, Some(at)) => drop(self.read(at, false)),
            (22..27, Some(at)) => drop(self.read(at, true)),
            (27, Some(at)) => {
                self.happened.left += 1;
                drop(self.open.swap_remove(at));
            }
            (28, _) if self.random.one_in(3) => self.adapters.toggle(),
            (29, _) if self.random.one_in(4) => self.rename_adapter(),
            (30, _) if self.random.one_in(4) => self.pause(),
            (31, _) if self.random.one_in(4) => self.reset_cache(),
            _ => {}
        }
        // Readers that fall behind for ever would make this program's memory the test.
        if self.open.len() > 40 {
            self.read(0, true);
        }
    }

    /// The adapter loses its name, as by the unload route, and gets it back where its files are there.
    fn rename_adapter(&mut self) {
        let engine = self.llm.engine();
        if engine.has_adapter(FLEETING) {
            engine.remove_adapter(FLEETING).expect("it has the name");
        }
        let source = AdapterSource::Folder(self.adapters.folder.join(FLEETING));
        let added: Result<(), AdapterError> = engine.add_adapter(FLEETING, source);
        assert!(added.is_ok() || self.adapters.gone, "{added:?}");
    }

    /// A pause of some mode, in which requests come and are read. Its end may come before it is complete.
    fn pause(&mut self) {
        let modes = [PauseMode::Abort, PauseMode::Wait, PauseMode::Keep];
        let mode = modes[self.random.below(3) as usize];
        let pause = self.llm.engine().pause(mode, self.random.one_in(2));
        if mode == PauseMode::Keep || self.random.one_in(2) {
            let paused = pause.blocking_wait();
            assert!(paused.is_ok() || self.fault.is_some(), "{mode:?}: {paused:?}");
            let steps = self.llm.engine().stats().steps_total;
            for _ in 0..self.random.below(4) {
                self.submit();
                self.reset_cache();
            }
            let later = self.llm.engine().stats().steps_total;
            assert_eq!(later, steps, "{mode:?}");
            self.happened.pauses += 1;
        }
        let resumed = self.llm.engine().resume().blocking_wait();
        assert!(resumed.is_ok() || self.fault.is_some(), "{resumed:?}");
    }

    fn reset_cache(&mut self) {
        let takes_blocks = self.random.one_in(2);
        let reset = self.llm.engine().reset_prefix_cache(takes_blocks).blocking_wait();
        match reset {
            Ok(was_reset) => {
                assert!(was_reset || !takes_blocks);
                self.happened.resets += u64::from(was_reset);
            }
            Err(error) => assert!(self.fault.is_some(), "{error}"),
        }
    }

    fn is_dead(&self) -> bool {
        self.llm.engine().health().is_err()
    }

    fn run(mut self) -> Happened {
        while self.llm.engine().stats().steps_total < WORLD_STEPS && !self.is_dead() {
            self.call();
        }
        while !self.open.is_empty() {
            self.read(0, true);
        }
        if self.is_dead() {
            self.check_dead();
        } else {
            self.check_idle();
        }
        let stats = self.llm.engine().stats();
        self.happened.steps = stats.steps_total;
        self.happened.replayed = stats.replayed_steps_total;
        self.happened.preemptions = stats.preemptions_total;
        self.happened.offloaded = stats.kv_offload_store_blocks_total;
        self.happened.restored = stats.kv_offload_load_blocks_total;
        self.llm.engine().shutdown(Duration::ZERO);
        self.happened
    }

    /// Everything has ended, so nothing is in use. The engine says so when it goes to sleep, which may be a moment
    /// after the last token.
    fn check_idle(&self) {
        assert!(
            self.reasons.is_empty(),
            "failures of an engine that lives: {:?}",
            self.reasons
        );
        let stats = || self.llm.engine().stats();
        let in_use = || {
            let stats = stats();
            stats.num_running != 0 || stats.num_waiting != 0 || stats.kv_cache_usage != 0.0
        };
        let mut looks = 0;
        while in_use() {
            looks += 1;
            assert!(looks < 60_000, "still in use: {:?}", stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn check_dead(&mut self) {
        let reason = self.llm.engine().health().expect_err("it is dead");
        self.submit();
        self.reasons.insert(reason);
        let reasons = &self.reasons;
        assert_eq!(reasons.len(), 1, "one failure, one reason: {reasons:?}");
        assert!(
            reasons.iter().all(|reason| reason.contains("as the test planned")),
            "{reasons:?}"
        );
        assert!(self.fault.is_some());
        self.happened.device_failures += 1;
    }
}

fn world(seed: u64, expected: &Expected) -> Happened {
    let mut random = SplitMix64(seed);
    let fault = match random.below(8) {
        0 => Some(Fault::LostAt(20 + random.below(400))),
        1 => Some(Fault::RefusesAt(20 + random.below(400))),
        2 => Some(Fault::MemoryAfter(random.below(120))),
        _ => None,
    };
    let adapters = Adapters::new(seed);
    let config = config(&adapters.folder, &mut random);
    let mut platform = DelayedPlatform::new(random.below(4) as u32, seed).with_half_latency_us(1 + random.below(60));
    if let Some(fault) = fault {
        platform = platform.with_fault(fault);
    }
    let device: Arc<dyn Device> = platform.open(0).expect("it opens");
    let llm = match Llm::open(config, device) {
        Ok(llm) => llm,
        Err(error) => {
            // It fails to start, in words, and only where the device had no memory.
            assert!(matches!(fault, Some(Fault::MemoryAfter(_))), "{error}");
            assert!(error.to_string().contains("as the test planned"), "{error}");
            return Happened {
                start_failures: 1,
                ..Happened::default()
            };
        }
    };
    let world = World {
        llm,
        random,
        adapters,
        expected,
        open: Vec::new(),
        reasons: BTreeSet::new(),
        happened: Happened::default(),
        fault,
    };
    world.run()
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[test]
fn an_engine_with_faults_ends_every_request_once_and_keeps_nothing() {
    let total = number("HALYARD_SIMULATION_ENGINE_STEPS").unwrap_or(20_000);
    let mut seed = number("HALYARD_SIMULATION_SEED").unwrap_or(0);
    let expected = expected();
    let mut all = Happened::default();
    let mut worlds = 0;
    while all.steps < total {
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| world(seed, &expected)));
        let happened = run.unwrap_or_else(|panic| {
            println!(
                "repeat it: HALYARD_SIMULATION_SEED={seed} HALYARD_SIMULATION_ENGINE_STEPS=1 cargo test -p \
                 halyard-simulation --test engine"
            );
            std::panic::resume_unwind(panic)
        });
        all.steps += happened.steps;
        all.replayed += happened.replayed;
        all.preemptions += happened.preemptions;
        all.offloaded += happened.offloaded;
        all.restored += happened.restored;
        all.requests += happened.requests;
        all.complete += happened.complete;
        all.left += happened.left;
        all.adapter_failures += happened.adapter_failures;
        all.full += happened.full;
        all.pauses += happened.pauses;
        all.resets += happened.resets;
        all.paused += happened.paused;
        all.device_failures += happened.device_failures;
        all.start_failures += happened.start_failures;
        seed += 1;
        worlds += 1;
    }
    println!("{worlds} engines: {all:?}");
    // A run in which a fault never comes proves nothing about it.
    if total >= 20_000 {
        for (event, times) in [
            ("replayed steps", all.replayed),
            ("preemptions", all.preemptions),
            ("blocks to the host", all.offloaded),
            ("blocks from the host", all.restored),
            ("complete", all.complete),
            ("readers that left", all.left),
            ("adapter failures", all.adapter_failures),
            ("full queues", all.full),
            ("complete pauses", all.pauses),
            ("resets of the cache", all.resets),
            ("samples that a pause ended", all.paused),
            ("device failures", all.device_failures),
            ("failures to start", all.start_failures),
        ] {
            assert!(times > 0, "{event}: never");
        }
    }
}
