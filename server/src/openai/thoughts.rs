//! Reasoning before a grammar: a guide that lets a model think as it likes, and then binds what comes behind the marker
//! that ends its reasoning. It follows the parser that also reads the answer, so both see the same end.

use std::sync::Arc;

use halyard_engine::{GuideFactory, GuideWatch, LogitChanges, TokenGuide};
use halyard_text::{AnswerParser, Detokenizer, ReasoningPhase, Tokenizer};

use super::parsers::AnswerWay;

/// The reasoning of a request whose answer a grammar binds.
#[derive(Clone, Debug)]
pub struct Thoughts {
    way: Arc<AnswerWay>,
    /// At the start of the answer.
    parser: AnswerParser,
    /// The beginning of the answer that stands in the prompt.
    begun: String,
}

impl Thoughts {
    /// The reasoning of an answer that `parser` reads; `None`: it has none, or its end stands in the prompt already.
    pub fn new(way: &Arc<AnswerWay>, parser: &AnswerParser, begun: &str) -> Option<Thoughts> {
        (parser.reasoning_phase() != ReasoningPhase::Over).then(|| Thoughts {
            way: Arc::clone(way),
            parser: parser.clone(),
            begun: begun.to_owned(),
        })
    }

    /// Guides that bind as `grammar` does, once reasoning is over. Reasoning does not end with a token of `ends`, those
    /// that end the model's texts, nor with one of the request's `stops`.
    pub fn before(self, grammar: GuideFactory, tokenizer: Tokenizer, ends: &[u32], stops: &[u32]) -> GuideFactory {
        let is_marker = |id: &&u32| self.way.special_tokens.contains(id);
        let stops = stops.iter().filter(|id| !is_marker(id));
        let ends: Arc<[u32]> = ends.iter().chain(stops).copied().collect();
        GuideFactory::new(move |sample| {
            Box::new(ThoughtsGuide {
                reader: Reader::new(&self, &tokenizer),
                ends: Arc::clone(&ends),
                phase: match self.parser.reasoning_phase() {
                    ReasoningPhase::MayBegin => Phase::MayBegin {
                        marker: Vec::new(),
                        bound: Some(Vec::new()),
                    },
                    _ => Phase::Open,
                },
                allowed: Vec::new(),
                bound: grammar.make(sample),
                grammar: grammar.clone(),
                sample,
            })
        })
    }
}

/// Reads an answer token by token.
struct Reader {
    parser: AnswerParser,
    detokenizer: Detokenizer,
    tokenizer: Tokenizer,
    way: Arc<AnswerWay>,
    /// The last bytes of the text, as many as a marker has.
    tail: Vec<u8>,
}

impl Reader {
    fn new(thoughts: &Thoughts, tokenizer: &Tokenizer) -> Reader {
        Reader {
            parser: thoughts.parser.clone(),
            detokenizer: Detokenizer::new(tokenizer, &[], true).keeping(&thoughts.way.special_tokens),
            tokenizer: tokenizer.clone(),
            way: Arc::clone(&thoughts.way),
            tail: thoughts.begun.clone().into_bytes(),
        }
    }

    /// The bytes that a token adds to the text.
    fn bytes(&self, token: u32) -> Vec<u8> {
        let is_left_out = self.tokenizer.is_special(token) && !self.way.special_tokens.contains(&token);
        match is_left_out {
            true => Vec::new(),
            false => self.tokenizer.token_bytes(token).unwrap_or_default(),
        }
    }

    fn push(&mut self, token: u32, bytes: &[u8]) -> Result<(), String> {
        let text = self.detokenizer.push(token).map_err(|error| error.to_string())?;
        self.parser.push(text, &mut Vec::new());
        self.tail.extend(bytes);
        Ok(())
    }
}

/// Where a sequence is.
enum Phase {
    /// The next tokens may begin reasoning, or what the grammar says.
    MayBegin {
        /// The bytes so far, which begin a marker.
        marker: Vec<u8>,
        /// Their tokens that the grammar has not seen; `None`: it does not allow them.
        bound: Option<Vec<u32>>,
    },
    /// The model thinks.
    Open,
    /// The grammar binds.
    Over,
}

struct ThoughtsGuide {
    reader: Reader,
    ends: Arc<[u32]>,
    phase: Phase,
    /// The grammar's last mask, while reasoning may begin.
    allowed: Vec<u32>,
    /// The grammar's guide, which has seen nothing of reasoning.
    bound: Box<dyn TokenGuide>,
    grammar: GuideFactory,
    sample: u32,
}

fn is_set(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32)
        .is_some_and(|word| word & (1 << (id % 32)) != 0)
}

impl ThoughtsGuide {
    /// Takes one token that comes before the grammar binds; gives those that the grammar has to see from then on.
    fn take(&mut self, token: u32) -> Result<Vec<u32>, String> {
        let bytes = self.reader.bytes(token);
        self.reader.push(token, &bytes)?;
        match &mut self.phase {
            Phase::MayBegin { marker, bound } => {
                let bytes = match marker.is_empty() {
                    true => bytes.trim_ascii_start(),
                    false => &bytes,
                };
                marker.extend(bytes);
                if let Some(seen) = bound.take().filter(|_| is_set(&self.allowed, token)) {
                    *bound = Some([seen, vec![token]].concat());
                }
                let opening = &self.reader.way.markers.open;
                if opening.iter().any(|(open, _)| open == marker) {
                    self.phase = Phase::Open;
                    self.bound = self.grammar.make(self.sample);
                } else if bytes.is_empty() || !opening.iter().any(|(open, _)| open.starts_with(marker.as_slice())) {
                    let seen = bound.take();
                    self.phase = Phase::Over;
                    return seen.ok_or_else(|| "the answer is neither reasoning nor what was asked for".to_owned());
                }
            }
            Phase::Open if self.reader.parser.reasoning_phase() == ReasoningPhase::Over => self.phase = Phase::Over,
            Phase::Open | Phase::Over => {}
        }
        Ok(Vec::new())
    }

    /// The mask of what may come while reasoning is open: all but what ends the text, or goes beyond the marker.
    fn open_mask(&mut self, mask: &mut [u32]) {
        mask.fill(u32::MAX);
        let mut forbid = |id: u32| {
            if let Some(word) = mask.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        };
        self.ends.iter().copied().for_each(&mut forbid);
        let tail = &mut self.reader.tail;
        let closing = &self.reader.way.markers.close;
        let longest = closing.iter().map(|(marker, _)| marker.len()).max();
        tail.drain(..tail.len().saturating_sub(longest.unwrap_or(0)));
        for (marker, by_bytes) in closing {
            for (from, ids) in by_bytes.iter().enumerate() {
                if tail.ends_with(&marker[..from]) {
                    ids.iter().copied().for_each(&mut forbid);
                }
            }
        }
    }

    /// What it does alone to logits that nothing has changed yet.
    fn change(&mut self, tokens: &[u32], own: &mut LogitChanges) -> Result<(), String> {
        let mut for_grammar = Vec::new();
        for &token in tokens {
            match self.phase {
                Phase::Over => for_grammar.push(token),
                _ => for_grammar.extend(self.take(token)?),
            }
        }
        match &mut self.phase {
            Phase::Over => return self.bound.next(&for_grammar, own),
            Phase::Open => {
                self.open_mask(&mut own.mask);
                return Ok(());
            }
            Phase::MayBegin { marker, bound } => {
                match bound {
                    Some(seen) => {
                        self.bound.next(seen, own)?;
                        seen.clear();
                        self.allowed.clone_from(&own.mask);
                    }
                    None => own.mask.fill(0),
                }
                for (open, by_bytes) in &self.reader.way.markers.open {
                    let ids = by_bytes
                        .get(marker.len())
                        .filter(|_| open.starts_with(marker.as_slice()));
                    for &id in ids.into_iter().flatten() {
                        if let Some(word) = own.mask.get_mut(id as usize / 32) {
                            *word |= 1 << (id % 32);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl TokenGuide for ThoughtsGuide {
    fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
        let mut own = LogitChanges {
            mask: vec![u32::MAX; changes.mask.len()],
            biases: Vec::new(),
        };
        self.change(tokens, &mut own)?;
        changes
            .mask
            .iter_mut()
            .zip(own.mask)
            .for_each(|(word, own)| *word &= own);
        changes.biases.extend(own.biases);
        Ok(())
    }

    fn watch(&self) -> Arc<dyn GuideWatch> {
        self.bound.watch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Mutex;

    use halyard_text::AnswerFormat;
    use serde_json::{Value, json};

    use crate::openai::parsers::Parsers;

    /// Tokens behind those of the fixture, which go beyond markers.
    const BEYOND: [&str; 5] = ["nse:{", "a</think>b", "ink>{", "ink>", "\n <thi"];
    const FIRST: u32 = 448;

    fn tokenizer() -> Tokenizer {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama/tokenizer.json");
        let text = std::fs::read(file).expect("the fixture");
        let mut all: Value = serde_json::from_slice(&text).expect("JSON");
        let tokens = all["added_tokens"].as_array_mut().expect("a list");
        for (id, content) in (FIRST..).zip(BEYOND) {
            tokens.push(
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": false}),
            );
        }
        Tokenizer::from_json(all.to_string().as_bytes(), "a test").expect("a tokenizer")
    }

    /// A grammar that allows one token and notes what it sees.
    struct Only(u32, Arc<Mutex<Vec<u32>>>);

    impl TokenGuide for Only {
        fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
            self.1.lock().expect("no panic").extend(tokens);
            changes.mask.fill(0);
            changes.mask[self.0 as usize / 32] |= 1 << (self.0 % 32);
            Ok(())
        }
    }

    /// A guide for answers of a format, a token that its grammar allows, and what the grammar has seen.
    struct Case {
        guide: Box<dyn TokenGuide>,
        tokenizer: Tokenizer,
        seen: Arc<Mutex<Vec<u32>>>,
    }

    impl Case {
        fn new(reasoning: &str, only: u32) -> Case {
            let tokenizer = tokenizer();
            let format = AnswerFormat::new(None, Some(reasoning)).expect("known");
            let parsers = Parsers::new(&format, &tokenizer);
            let way = parsers.way(false).expect("reasoning");
            let parser = AnswerParser::new(&way.format.clone().with_calls_after_reasoning(), &Arc::default(), None);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&seen);
            let grammar = GuideFactory::new(move |_| Box::new(Only(only, Arc::clone(&noted))));
            let thoughts = Thoughts::new(way, &parser, "").expect("it may reason");
            Case {
                guide: thoughts.before(grammar, tokenizer.clone(), &[2], &[7]).make(0),
                tokenizer,
                seen,
            }
        }

        fn ids(&self, text: &str) -> Vec<u32> {
            self.tokenizer.encode(text, false).expect("ids")
        }

        /// Which of these tokens may come behind more text.
        fn allows(&mut self, tokens: &[u32], of: &[u32]) -> Vec<bool> {
            let mut changes = LogitChanges::none(16 * 32);
            self.guide.next(tokens, &mut changes).expect("goes on");
            of.iter().map(|id| is_set(&changes.mask, *id)).collect()
        }
    }

    #[test]
    fn a_token_that_goes_beyond_the_end_of_reasoning_is_not_allowed_where_it_would() {
        let beyond = [FIRST, FIRST + 1, FIRST + 2, FIRST + 3];
        let mut case = Case::new("deepseek_r1", 9);
        assert_eq!(case.allows(&[], &beyond), [true, false, true, true], "never");
        let begun = case.ids("Hm.</th");
        assert_eq!(
            case.allows(&begun, &beyond),
            [true, false, false, true],
            "behind its start"
        );
        let other = case.ids("a");
        assert_eq!(
            case.allows(&other, &beyond),
            [true, false, true, true],
            "which was none"
        );
        let begun = case.ids("</th");
        assert_eq!(case.allows(&begun, &[9, 10]), [true, true]);
        assert_eq!(case.allows(&[FIRST + 3], &[9, 10]), [true, false], "the grammar binds");
        assert_eq!(case.allows(&[9], &[9, 10]), [true, false]);
        assert_eq!(*case.seen.lock().expect("no panic"), [9], "and has seen nothing before");

        let mut case = Case::new("granite", 9);
        let ids = case.ids("Here is my thought process: Hm. Here is my respo");
        let (last, rest) = ids.split_last().expect("ids");
        rest.iter().for_each(|id| drop(case.allows(&[*id], &[])));
        assert_eq!(case.allows(&[*last], &beyond[..1]), [false]);
    }

    #[test]
    fn reasoning_does_not_end_with_the_text() {
        let mut case = Case::new("deepseek_r1", 9);
        assert_eq!(case.allows(&[], &[2, 7, 8]), [false, false, true]);
    }

    #[test]
    fn a_marker_or_the_grammar_may_begin_and_the_first_that_differs_decides() {
        let mut case = Case::new("qwen3", 9);
        let ids = case.ids("<think>");
        assert!(ids.len() > 2, "the fixture spells it: {ids:?}");
        assert_eq!(case.allows(&[], &[9, ids[0], 10]), [true, true, false]);
        assert_eq!(case.allows(&ids[..1], &[9, ids[1], 10]), [false, true, false]);
        for id in &ids[1..] {
            case.allows(&[*id], &[]);
        }
        assert_eq!(case.allows(&[], &[9, 10, ids[0]]), [true; 3], "it thinks");
        // A marker behind white space, spelled in two tokens.
        let mut case = Case::new("qwen3", 9);
        assert_eq!(case.allows(&[], &[FIRST + 4]), [true]);
        let rest = case.ids("nk>");
        assert_eq!(case.allows(&[FIRST + 4], &[rest[0], 10]), [true, false]);
        rest.iter().for_each(|id| drop(case.allows(&[*id], &[])));
        assert_eq!(case.allows(&[], &[9, 10]), [true; 2], "it thinks");
        let mut case = Case::new("qwen3", 9);
        case.allows(&[], &[]);
        assert_eq!(case.allows(&[9], &[9, ids[0], 10]), [true, false, false], "it does not");
        assert_eq!(*case.seen.lock().expect("no panic"), [9]);
        // What the grammar would not have allowed, and begins no marker.
        let mut changes = LogitChanges::none(16 * 32);
        let mut case = Case::new("qwen3", 9);
        case.allows(&[], &[]);
        case.guide.next(&[10], &mut changes).expect_err("neither");
    }
}
