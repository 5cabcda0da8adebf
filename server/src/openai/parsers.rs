//! How this server reads what its model writes: the formats of tool calls and of reasoning that its operator chose.

use std::sync::Arc;

use halyard_text::{AnswerFormat, Tokenizer};

/// A way to read answers.
#[derive(Clone, Debug)]
pub struct AnswerWay {
    /// The formats.
    pub format: AnswerFormat,
    /// Special tokens that the parser has to see.
    pub special_tokens: Vec<u32>,
}

/// The ways to read answers, of requests that may call tools and of others.
#[derive(Clone, Debug, Default)]
pub struct Parsers {
    with_calls: Option<Arc<AnswerWay>>,
    without_calls: Option<Arc<AnswerWay>>,
}

impl Parsers {
    /// Reads answers in `format`; a format of tool calls in it means that calls are served.
    pub fn new(format: &AnswerFormat, tokenizer: &Tokenizer) -> Self {
        let way = |format: AnswerFormat| {
            let reads = |id: &u32| {
                let text = tokenizer.is_special(*id).then(|| tokenizer.token_bytes(*id).ok());
                let text = text.flatten().and_then(|bytes| String::from_utf8(bytes).ok());
                text.is_some_and(|text| format.reads_special(&text))
            };
            let vocab_size = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
            Arc::new(AnswerWay {
                special_tokens: (0..vocab_size).filter(reads).collect(),
                format,
            })
        };
        Parsers {
            with_calls: format.tools().map(|_| way(format.clone())),
            without_calls: format.reasoning().map(|_| way(format.clone().without_tools())),
        }
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
