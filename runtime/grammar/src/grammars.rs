//! A model's compiled constraints: compiled on threads of their own with a deadline, kept by content, and shared by
//! requests that ask for the same.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use halyard_text::Tokenizer;

use crate::check::Limits;
use crate::compile::{Compiled, Compiler};
use crate::constraint::StructuredOutputs;
use crate::error::GrammarError;
use crate::matcher::Matcher;

/// Stack of a compiling thread: chains of references and of definitions are followed recursively, as many as
/// [`Limits::max_references`]. Memory is used as the stack is.
const STACK_BYTES: usize = 512 << 20;
/// An idle thread ends after this time.
const IDLE: Duration = Duration::from_secs(10);
/// How often a waiting caller looks whether a thread is late and another one is needed.
const LOOK: Duration = Duration::from_millis(100);

/// Most threads that make masks.
const MAX_MASK_THREADS: usize = 24;

/// Threads that should make the masks of a model: three of four processors. With 64 sequences under a schema of short
/// strings and 128,256 tokens, four threads made a step of an H200 1.43 times as long, twelve 1.02 times.
pub fn mask_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors - processors / 4).min(MAX_MASK_THREADS)
}

/// Bounds of compiling and keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarConfig {
    /// Limits of a constraint.
    pub limits: Limits,
    /// Longest time for compiling one, with the wait for a thread.
    pub max_compile_time: Duration,
    /// Threads that compile. Each that takes longer than `max_compile_time` gets a replacement.
    pub num_threads: usize,
    /// Threads in all.
    pub max_threads: usize,
    /// Constraints that wait for a thread.
    pub max_waiting: usize,
    /// Constraints that are kept.
    pub max_kept: usize,
    /// Bytes of their texts.
    pub max_kept_bytes: usize,
    /// Copies of a constraint's lexer: masks of as many sequences are made at the same time.
    pub max_copies: usize,
    /// [`StructuredOutputs::disable_any_whitespace`] for all requests.
    pub disable_any_whitespace: bool,
    /// [`StructuredOutputs::disable_additional_properties`] for all requests.
    pub disable_additional_properties: bool,
}

impl Default for GrammarConfig {
    fn default() -> Self {
        GrammarConfig {
            limits: Limits::default(),
            max_compile_time: Duration::from_secs(5),
            num_threads: 2,
            max_threads: 6,
            max_waiting: 256,
            max_kept: 256,
            max_kept_bytes: 8 << 20,
            max_copies: mask_threads(),
            disable_any_whitespace: false,
            disable_additional_properties: false,
        }
    }
}

/// A compiled constraint of a model.
#[derive(Clone)]
pub struct Grammar {
    compiled: Arc<Compiled>,
    ends: Arc<[u32]>,
}

impl Grammar {
    /// The same for a request with tokens of its own that end a text. They may come where the model's own may.
    ///
    /// # Errors
    /// Neither the model nor the request has such a token.
    pub fn with_stops(self, stops: &[u32]) -> Result<Grammar, GrammarError> {
        let ends: Arc<[u32]> = match stops {
            [] => self.ends,
            stops => self.ends.iter().chain(stops).copied().collect(),
        };
        if ends.is_empty() {
            let reason = "it names no token that ends a text; send stop_token_ids".to_string();
            return Err(GrammarError::Model(reason));
        }
        Ok(Grammar { ends, ..self })
    }

    /// The masks of one text.
    pub fn matcher(&self) -> Matcher {
        Matcher::new(Arc::clone(&self.compiled), Arc::clone(&self.ends))
    }
}

/// A model's constraints. Cheap to clone, for any thread.
#[derive(Clone)]
pub struct Grammars(Arc<Shared>);

struct Shared {
    config: GrammarConfig,
    tokenizer: Tokenizer,
    vocab_size: u32,
    ends: Arc<[u32]>,
    /// Made at the first use, or by [`Grammars::warm_up`].
    compiler: OnceLock<Result<Compiler, GrammarError>>,
    state: Mutex<State>,
    /// Something was compiled, or there is work.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    kept: HashMap<Arc<StructuredOutputs>, Slot>,
    /// Bytes of the texts that are kept.
    bytes: usize,
    /// Counts uses.
    clock: u64,
    waiting: VecDeque<Arc<StructuredOutputs>>,
    /// What each thread does, since when.
    threads: HashMap<u64, Option<Instant>>,
    next_thread: u64,
}

enum Slot {
    /// It waits for a thread, or is compiled.
    Pending,
    /// With the time of its last use.
    Done(Result<Arc<Compiled>, GrammarError>, u64),
}

impl Grammars {
    /// For a model whose logits have `vocab_size` places and which ends its texts with one of `ends`.
    pub fn new(tokenizer: &Tokenizer, vocab_size: u32, ends: &[u32], config: GrammarConfig) -> Grammars {
        Grammars(Arc::new(Shared {
            config,
            tokenizer: tokenizer.clone(),
            vocab_size,
            ends: ends.into(),
            compiler: OnceLock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Reads the model's tokens on a thread of its own, so that the first request does not wait for it.
    pub fn warm_up(&self) {
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("halyard-grammar".into());
        let started = thread.spawn(move || {
            if let Err(error) = shared.compiler() {
                tracing::info!("{error}");
            }
        });
        if let Err(error) = started {
            tracing::warn!("no thread for the vocabulary of grammars: {error}");
        }
    }

    /// A constraint that was compiled before. Does not block.
    pub fn kept(&self, asked: &StructuredOutputs) -> Option<Result<Grammar, GrammarError>> {
        let asked = self.0.with_defaults(asked);
        let result = self.0.state().find(&asked)?;
        Some(result.map(|compiled| self.0.grammar(compiled)))
    }

    /// Compiles a constraint, or finds it. Blocks until it is there, [`GrammarConfig::max_compile_time`] at most.
    ///
    /// # Errors
    /// What is wrong with it, in the client's words.
    pub fn compile(&self, asked: &StructuredOutputs) -> Result<Grammar, GrammarError> {
        let shared = &self.0;
        let asked = shared.with_defaults(asked);
        shared.config.limits.check(&asked)?;
        let field = asked.constraint.field();
        let limit = shared.config.max_compile_time;
        let deadline = Instant::now() + limit;
        let asked = Arc::new(asked);
        let mut state = shared.state();
        loop {
            if let Some(result) = state.find(&asked) {
                return result.map(|compiled| shared.grammar(compiled));
            }
            if !state.kept.contains_key(&asked) {
                let waiting = state.waiting.len();
                if waiting >= shared.config.max_waiting {
                    return Err(GrammarError::Busy { waiting });
                }
                state.kept.insert(Arc::clone(&asked), Slot::Pending);
                state.waiting.push_back(Arc::clone(&asked));
                shared.changed.notify_all();
            }
            self.start_threads(&mut state);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(GrammarError::Late { field, limit });
            }
            let waited = shared.changed.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Starts threads while there is work and too few of them are in time.
    fn start_threads(&self, state: &mut State) {
        let config = &self.0.config;
        loop {
            let in_time = state.threads_in_time(config.max_compile_time);
            let idle = state.threads.values().filter(|since| since.is_none()).count();
            let has_enough = in_time >= config.num_threads || state.threads.len() >= config.max_threads;
            if has_enough || idle >= state.waiting.len() {
                return;
            }
            let number = state.next_thread;
            state.next_thread += 1;
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new()
                .name("halyard-grammar".into())
                .stack_size(STACK_BYTES)
                .spawn(move || shared.run(number));
            match thread {
                Ok(_) => state.threads.insert(number, None),
                // Those that wait give up at their deadline.
                Err(error) => return tracing::error!("no thread for compiling grammars: {error}"),
            };
        }
    }
}

impl State {
    /// The result for a constraint, which is used now.
    fn find(&mut self, asked: &StructuredOutputs) -> Option<Result<Arc<Compiled>, GrammarError>> {
        self.clock += 1;
        let clock = self.clock;
        let is_broken = match self.kept.get_mut(asked)? {
            Slot::Pending => return None,
            Slot::Done(Ok(compiled), _) if compiled.is_broken() => true,
            Slot::Done(result, used) => {
                *used = clock;
                return Some(result.clone());
            }
        };
        if is_broken {
            self.remove(asked);
        }
        None
    }

    fn remove(&mut self, asked: &StructuredOutputs) {
        if let Some((asked, Slot::Done(..))) = self.kept.remove_entry(asked) {
            self.bytes -= asked.constraint.num_bytes();
        }
    }

    /// Keeps a result, and drops those that were not used for longest.
    fn keep(
        &mut self,
        asked: &Arc<StructuredOutputs>,
        result: Result<Arc<Compiled>, GrammarError>,
        config: &GrammarConfig,
    ) {
        self.clock += 1;
        self.bytes += asked.constraint.num_bytes();
        self.kept.insert(Arc::clone(asked), Slot::Done(result, self.clock));
        while self.kept.len() > config.max_kept || self.bytes > config.max_kept_bytes {
            let used = |(asked, slot): (&Arc<StructuredOutputs>, &Slot)| match slot {
                Slot::Pending => None,
                Slot::Done(_, used) => Some((*used, Arc::clone(asked))),
            };
            // The newest stays: those that wait for it have not looked yet.
            let oldest = self.kept.iter().filter_map(used).min_by_key(|(used, _)| *used);
            match oldest.filter(|(used, _)| *used < self.clock) {
                Some((_, oldest)) => self.remove(&oldest),
                None => return,
            }
        }
    }

    fn threads_in_time(&self, limit: Duration) -> usize {
        let is_in_time = |since: &&Option<Instant>| since.is_none_or(|since| since.elapsed() < limit);
        self.threads.values().filter(is_in_time).count()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grammar(&self, compiled: Arc<Compiled>) -> Grammar {
        Grammar {
            compiled,
            ends: Arc::clone(&self.ends),
        }
    }

    fn with_defaults(&self, asked: &StructuredOutputs) -> StructuredOutputs {
        let mut asked = asked.clone();
        asked.disable_any_whitespace |= self.config.disable_any_whitespace;
        asked.disable_additional_properties |= self.config.disable_additional_properties;
        asked
    }

    fn compiler(&self) -> Result<&Compiler, GrammarError> {
        let made = self.compiler.get_or_init(|| {
            let started = Instant::now();
            let compiler = Compiler::new(
                &self.tokenizer,
                self.vocab_size,
                &self.ends,
                self.config.limits,
                self.config.max_compile_time,
                self.config.max_copies,
            );
            tracing::debug!(
                ms = started.elapsed().as_millis() as u64,
                "the vocabulary of grammars is read"
            );
            compiler
        });
        made.as_ref().map_err(GrammarError::clone)
    }

    /// A thread: one constraint after another.
    fn run(&self, number: u64) {
        let mut state = self.state();
        loop {
            let Some(asked) = state.waiting.pop_front() else {
                let waited = self.changed.wait_timeout(state, IDLE);
                let (locked, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                state = locked;
                if waited.timed_out() && state.waiting.is_empty() {
                    state.threads.remove(&number);
                    return;
                }
                continue;
            };
            state.threads.insert(number, Some(Instant::now()));
            drop(state);
            let result = self.compile(&asked);
            state = self.state();
            state.keep(&asked, result, &self.config);
            self.changed.notify_all();
            state.threads.insert(number, None);
            // A replacement may have taken its place.
            if state.threads_in_time(self.config.max_compile_time) > self.config.num_threads {
                state.threads.remove(&number);
                return;
            }
        }
    }

    fn compile(&self, asked: &StructuredOutputs) -> Result<Arc<Compiled>, GrammarError> {
        let compiled = catch_unwind(AssertUnwindSafe(|| self.compiler()?.compile(asked)));
        let field = asked.constraint.field();
        let failed = |_| Err(GrammarError::invalid(field, "the grammar library fails on it"));
        compiled.unwrap_or_else(failed).map(Arc::new)
    }
}
