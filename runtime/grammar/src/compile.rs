//! From what a client asks to a grammar of the library, compiled and tried once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use halyard_text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};

use crate::check::Limits;
use crate::constraint::{Constraint, StructuredOutputs};
use crate::error::{GrammarError, shortened};
use crate::gbnf;
use crate::lark;
use crate::schema::{self, SchemaOptions};
use crate::structural_tag::{self, SpecialTokens};
use crate::vocabulary::Vocabulary;

/// Copies of lexers that are kept for the next sequence, of all constraints together: each may have learnt
/// [`Limits::max_states`].
const MAX_IDLE: usize = 16;

/// What all constraints of a model share.
pub(crate) struct Compiler {
    factory: ParserFactory,
    special: Special,
    limits: Limits,
    max_time: Duration,
    max_copies: usize,
    /// Copies that no sequence uses.
    idle: Arc<AtomicUsize>,
}

impl Compiler {
    /// Reads a model's tokens: a fraction of a second for a large vocabulary.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        size: u32,
        ends: &[u32],
        limits: Limits,
        max_time: Duration,
        max_copies: usize,
    ) -> Result<Compiler, GrammarError> {
        let vocabulary = Vocabulary::new(tokenizer, size, ends)?;
        let env: TokEnv = Arc::new(vocabulary);
        let capabilities = InferenceCapabilities::default();
        let mut factory = ParserFactory::new(&env, capabilities, &SlicedBiasComputer::general_slices())
            .map_err(|error| GrammarError::Model(error.to_string()))?;
        factory.quiet();
        let bounds = factory.limits_mut();
        bounds.verbose_errors = false;
        bounds.max_lexer_states = limits.max_states;
        Ok(Compiler {
            factory,
            special: Special::of(tokenizer, size),
            limits,
            max_time,
            max_copies: max_copies.max(1),
            idle: Arc::default(),
        })
    }

    /// Compiles a constraint, and computes its first mask: one that no text fits is found out here.
    pub(crate) fn compile(&self, asked: &StructuredOutputs) -> Result<Compiled, GrammarError> {
        let field = asked.constraint.field();
        let grammar = self.grammar(asked)?;
        let started = Instant::now();
        let mut matcher = Matcher::new(self.factory.create_parser(grammar)).into_cancellable();
        if let Some(error) = matcher.get_error() {
            let reason = shortened(&error);
            // The place in a grammar that the library makes of a regex says nothing to its author.
            let fault = match &asked.constraint {
                Constraint::Regex(_) => reason.split_once("(in regex): ").map(|(_, fault)| fault.to_string()),
                _ => None,
            };
            return Err(GrammarError::invalid(field, fault.unwrap_or(reason)));
        }
        // The library says no more than that its parser has stopped.
        let left = self.max_time.saturating_sub(started.elapsed());
        within(left, &mut matcher).map_err(|error| {
            if matcher.is_cancelled() {
                return GrammarError::Late {
                    field,
                    limit: self.max_time,
                };
            }
            GrammarError::invalid(field, shortened(&error))
        })?;
        Ok(Compiled {
            first: matcher,
            copies: Mutex::default(),
            max_copies: self.max_copies,
            idle: Arc::clone(&self.idle),
            is_broken: AtomicBool::new(false),
        })
    }

    fn grammar(&self, asked: &StructuredOutputs) -> Result<TopLevelGrammar, GrammarError> {
        let limits = &self.limits;
        let field = asked.constraint.field();
        let options = SchemaOptions::of(asked);
        let of_schema = |schema| {
            let schema = schema::prepared(field, schema, &options)?;
            Ok(TopLevelGrammar::from_json_schema(schema))
        };
        match &asked.constraint {
            Constraint::Json(text) => of_schema(limits.read_json(field, text)?),
            Constraint::JsonObject => of_schema(serde_json::json!({"type": "object"})),
            Constraint::Regex(pattern) if pattern.contains("<stop>") => Err(GrammarError::invalid(
                field,
                "a group may not be named `stop`; give it another name",
            )),
            Constraint::Regex(pattern) => Ok(TopLevelGrammar::from_regex(pattern)),
            Constraint::Choice(choices) => {
                let choices: Vec<String> = choices.iter().map(|choice| lark::literal(choice)).collect();
                let text = format!("start: CHOICE\nCHOICE: {}\n", choices.join(" | "));
                Ok(TopLevelGrammar::from_lark(text))
            }
            Constraint::Grammar(text) if text.trim_start().starts_with('{') => Err(GrammarError::invalid(
                field,
                "a list of grammars in JSON is not supported; send one grammar in Lark or GBNF",
            )),
            Constraint::Grammar(text) if gbnf::is_gbnf(text) => Ok(TopLevelGrammar::from_lark(gbnf::to_lark(text)?)),
            Constraint::Grammar(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
            Constraint::StructuralTag(text) => {
                let tag = limits.read_json(field, text)?;
                let text = structural_tag::to_lark(&tag, &options, limits, &self.special)?;
                Ok(TopLevelGrammar::from_lark(text))
            }
        }
    }
}

/// Makes the first mask, which another thread cancels when its time is over.
fn within(left: Duration, matcher: &mut Matcher) -> Result<(), String> {
    let Some(handle) = matcher.cancellation_handle() else {
        return Err("it cannot be cancelled".to_string());
    };
    let (done, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                handle.cancel();
            }
        });
        let mask = matcher.compute_mask_or_eos();
        drop(done);
        mask.map(drop).map_err(|error| error.to_string())
    })
}

/// A compiled constraint.
pub(crate) struct Compiled {
    /// At the beginning of a text, with a lexer that has learnt the first mask only.
    first: Matcher,
    copies: Mutex<Copies>,
    max_copies: usize,
    idle: Arc<AtomicUsize>,
    /// A matcher of it failed: it is not given to other requests.
    is_broken: AtomicBool,
}

/// Copies with lexers of their own, which learn as they are used. Sequences of one copy wait for each other.
#[derive(Default)]
struct Copies {
    list: Vec<Copy>,
    next: u64,
}

struct Copy {
    number: u64,
    matcher: Matcher,
    /// Sequences that use it.
    users: usize,
}

/// A sequence's use of a copy.
pub(crate) struct User {
    compiled: Arc<Compiled>,
    number: u64,
}

impl Drop for User {
    fn drop(&mut self) {
        let surplus = self.compiled.give_back(self.number);
        if let Some(surplus) = surplus {
            // Freeing a large lexer takes long, and this may be the engine's thread.
            let thread = std::thread::Builder::new().name("halyard-grammar".into());
            // Without a thread it is freed here.
            let _freed = thread.spawn(move || drop(surplus));
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let copies = self.copies.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.idle.fetch_sub(copies.list.len(), Ordering::Relaxed);
    }
}

impl Compiled {
    /// A matcher at the beginning of a text, of the copy that is used least.
    pub(crate) fn matcher(self: &Arc<Self>) -> Option<(Matcher, User)> {
        let mut copies = self.copies();
        let least = copies.list.iter().map(|copy| copy.users).min();
        if least.is_none_or(|users| users > 0) && copies.list.len() < self.max_copies {
            // The oldest has learnt most.
            let oldest = copies.list.first().map_or(&self.first, |copy| &copy.matcher);
            let (matcher, number) = (oldest.deep_clone(), copies.next);
            copies.next += 1;
            copies.list.push(Copy {
                number,
                matcher,
                users: 0,
            });
            self.idle.fetch_add(1, Ordering::Relaxed);
        }
        let copy = copies.list.iter_mut().min_by_key(|copy| copy.users)?;
        if copy.users == 0 {
            self.idle.fetch_sub(1, Ordering::Relaxed);
        }
        copy.users += 1;
        let user = User {
            compiled: Arc::clone(self),
            number: copy.number,
        };
        Some((copy.matcher.clone(), user))
    }

    /// A sequence has ended. A copy without users stays while few others do.
    fn give_back(&self, number: u64) -> Option<Copy> {
        let mut copies = self.copies();
        let at = copies.list.iter().position(|copy| copy.number == number)?;
        copies.list[at].users -= 1;
        if copies.list[at].users > 0 || self.idle.fetch_add(1, Ordering::Relaxed) < MAX_IDLE {
            return None;
        }
        self.idle.fetch_sub(1, Ordering::Relaxed);
        Some(copies.list.remove(at))
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_failure(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }
}

/// A model's special tokens by their spelling.
struct Special {
    /// Longest first.
    tokens: Vec<(String, u32)>,
    tokenizer: Tokenizer,
    size: u32,
}

impl Special {
    fn of(tokenizer: &Tokenizer, size: u32) -> Special {
        let special = (0..size).filter(|id| tokenizer.is_special(*id));
        let mut tokens: Vec<(String, u32)> = special
            .filter_map(|id| Some((String::from_utf8(tokenizer.token_bytes(id).ok()?).ok()?, id)))
            .filter(|(text, _)| !text.is_empty())
            .collect();
        tokens.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Special {
            tokens,
            tokenizer: tokenizer.clone(),
            size,
        }
    }
}

impl SpecialTokens for Special {
    fn find(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self
            .tokens
            .iter()
            .filter_map(|(token, id)| Some((text.find(token.as_str())?, token.len(), *id)));
        found.min_by_key(|(at, len, _)| (*at, std::cmp::Reverse(*len)))
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    fn has(&self, id: u32) -> bool {
        id < self.size && self.tokenizer.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn compiler(max_copies: usize) -> Compiler {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = here.join("../../tests/fixtures/models/llama/tokenizer.json");
        let tokenizer = Tokenizer::from_file(&file).expect("a tokenizer");
        let (size, minute) = (tokenizer.vocab_size() as u32, Duration::from_secs(60));
        Compiler::new(&tokenizer, size, &[1], Limits::default(), minute, max_copies).expect("a vocabulary")
    }

    fn constraint(number: usize) -> StructuredOutputs {
        Constraint::Regex(format!("[ab]{{{}}}", number + 1)).into()
    }

    #[test]
    fn sequences_share_a_few_copies_and_few_are_kept_without_one() {
        let compiler = compiler(3);
        let compiled = Arc::new(compiler.compile(&constraint(1)).expect("a constraint"));
        let users: Vec<_> = (0..5).map(|_| compiled.matcher().expect("a matcher")).collect();
        let mut shared: Vec<usize> = compiled.copies().list.iter().map(|copy| copy.users).collect();
        shared.sort_unstable();
        assert_eq!(shared, [1, 2, 2]);
        assert_eq!(compiler.idle.load(Ordering::Relaxed), 0);
        drop(users);
        assert_eq!(compiler.idle.load(Ordering::Relaxed), 3);
        let others: Vec<_> = (2..40)
            .map(|number| Arc::new(compiler.compile(&constraint(number)).expect("a constraint")))
            .collect();
        for other in &others {
            drop(other.matcher().expect("a matcher"));
        }
        assert_eq!(compiler.idle.load(Ordering::Relaxed), MAX_IDLE);
        let kept = others.iter().chain([&compiled]);
        assert_eq!(kept.map(|one| one.copies().list.len()).sum::<usize>(), MAX_IDLE);
        // What was given back is made anew.
        assert!(others[30].copies().list.is_empty() && others[30].matcher().is_some());
        drop((others, compiled));
        assert_eq!(compiler.idle.load(Ordering::Relaxed), 0);
    }
}
