//! How this server reads what its model writes: the formats of tool calls and of reasoning that its operator chose.

use std::sync::Arc;

use halyard_text::{AnswerFormat, Tokenizer};

use super::marker_tokens::MarkerTokens;

/// A way to read answers.
#[derive(Clone, Debug)]
pub struct AnswerWay {
    /// The formats.
    pub format: AnswerFormat,
    /// Special tokens that the parser has to see.
    pub special_tokens: Vec<u32>,
    /// Tokens at the markers of reasoning.
    pub markers: Arc<MarkerTokens>,
}

/// The format in which a grammar writes calls that are forced: a list of names and parameters.
const FORCED: &str = "xlam";

/// The ways to read answers, of requests that may call tools and of others.
#[derive(Clone, Debug, Default)]
pub struct Parsers {
    with_calls: Option<Arc<AnswerWay>>,
    without_calls: Option<Arc<AnswerWay>>,
    /// Reads forced calls, with the reasoning before them.
    forced: Option<Arc<AnswerWay>>,
    /// Grammars bind from the first token on.
    binds_reasoning: bool,
}

impl Parsers {
    /// Reads answers in `format`; a format of tool calls in it means that calls are served.
    pub fn new(format: &AnswerFormat, tokenizer: &Tokenizer) -> Self {
        let format = format.clone().for_tokenizer(tokenizer);
        let markers = Arc::new(MarkerTokens::new(&format, tokenizer));
        let way = |format: AnswerFormat| {
            let reads = |id: &u32| {
                let text = tokenizer.is_special(*id).then(|| tokenizer.token_bytes(*id).ok());
                let text = text.flatten().and_then(|bytes| String::from_utf8(bytes).ok());
                text.is_some_and(|text| format.reads_special(&text))
            };
            let vocab_size = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
            Arc::new(AnswerWay {
                special_tokens: (0..vocab_size).filter(reads).collect(),
                markers: Arc::clone(&markers),
                format,
            })
        };
        let without_calls = format.reasoning().map(|_| way(format.clone().without_tools()));
        // Messages have headers of their own, which no forced call has; so may a response template.
        // Where reasoning stays in the text, text before a call could not be told from it.
        let forced = format
            .reasoning()
            .filter(|_| !format.has_messages() && !format.is_by_template() && !format.keeps_reasoning());
        let forced = AnswerFormat::new(Some(FORCED), forced).ok().map(|format| {
            let format = format.for_tokenizer(tokenizer);
            Arc::new(AnswerWay {
                // All behind reasoning is calls, so that no other special token says anything.
                special_tokens: match format.reasoning() {
                    Some(_) => without_calls
                        .as_ref()
                        .map_or(&[][..], |way| &way.special_tokens)
                        .to_vec(),
                    None => Vec::new(),
                },
                markers: Arc::clone(&markers),
                format,
            })
        });
        Parsers {
            with_calls: format.tools().map(|_| way(format.clone())),
            without_calls,
            forced,
            binds_reasoning: false,
        }
    }

    /// The same for a server whose grammars bind from the first token on: `binds`, vLLM's `enable_in_reasoning`.
    #[must_use]
    pub fn binding_reasoning(self, binds: bool) -> Self {
        Parsers {
            binds_reasoning: binds,
            ..self
        }
    }

    /// Whether a model may reason before a grammar binds its answer: where its reasoning ends has to be known at once.
    pub fn reasons_before_grammars(&self) -> bool {
        let is_known = |way: &Arc<AnswerWay>| !way.format.is_by_template() || !way.markers.close.is_empty();
        self.without_calls.as_ref().is_some_and(is_known) && !self.binds_reasoning
    }

    /// The way to read calls that a grammar forces, with the reasoning that may come before them.
    pub fn forced(&self) -> Option<&Arc<AnswerWay>> {
        self.forced.as_ref()
    }

    /// Whether tool calls are served.
    pub fn has_calls(&self) -> bool {
        self.with_calls.is_some()
    }

    /// The format of tool calls.
    pub fn calls(&self) -> Option<&'static str> {
        self.with_calls.as_ref().and_then(|way| way.format.tools())
    }

    /// Whether reasoning is kept apart.
    pub fn has_reasoning(&self) -> bool {
        self.without_calls.is_some()
    }

    /// The way to read answers that may or may not call tools; `None`: all text is the answer's.
    pub fn way(&self, may_call: bool) -> Option<&Arc<AnswerWay>> {
        if may_call {
            self.with_calls.as_ref()
        } else {
            self.without_calls.as_ref()
        }
    }
}
