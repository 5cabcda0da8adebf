//! Errors of the engine: bad parameters, refused requests, and models that do not fit.

use halyard_grammar::GrammarError;
use thiserror::Error;

/// A sampling parameter outside its range.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ParamError {
    /// Outside an interval.
    #[error("{name} is {value}; it must be between {low} and {high}")]
    Between {
        /// Field.
        name: &'static str,
        /// The value that was sent.
        value: f64,
        /// Least.
        low: f64,
        /// Most.
        high: f64,
    },
    /// Outside a range in words.
    #[error("{name} is {value}; it must be {limit}")]
    Range {
        /// Field.
        name: &'static str,
        /// The value that was sent.
        value: f64,
        /// The range.
        limit: &'static str,
    },
    /// Too many entries.
    #[error("{name} has {found} entries; at most {limit} are taken")]
    Count {
        /// Field.
        name: &'static str,
        /// The value that was sent.
        found: usize,
        /// Most.
        limit: usize,
    },
    /// An empty entry.
    #[error("{name} must not be empty or hold an empty entry; leave it out instead")]
    Empty {
        /// Field.
        name: &'static str,
    },
    /// Constraints that together allow no token.
    #[error(
        "allowed_token_ids leaves no token to give: each of its {allowed} ids is {others}; allow another id or leave \
         out one of the fields"
    )]
    NothingAllowed {
        /// Entries of `allowed_token_ids`.
        allowed: usize,
        /// What rules them out, by field.
        others: String,
    },
    /// A token id past the vocabulary.
    #[error("{name}: token id {id} is outside the vocabulary of {vocab_size} (0 to {})", .vocab_size - 1)]
    Vocabulary {
        /// Field.
        name: &'static str,
        /// The id.
        id: u32,
        /// Size.
        vocab_size: u32,
    },
}

/// Why a request was not taken.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SubmitError {
    /// Bad parameters.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// A structured output that is not possible.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// No prompt tokens.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// After the prompt not one new token fits.
    #[error(
        "the prompt has {found} tokens; this model's context holds {limit}, of which at least one must be left for \
         the answer: shorten the prompt or serve with a larger --max-model-len"
    )]
    PromptTooLong {
        /// Tokens sent.
        found: usize,
        /// The context.
        limit: u32,
    },
    /// A prompt id past the vocabulary.
    #[error("prompt token id {id} at position {position} is outside the vocabulary of {vocab_size}")]
    PromptVocabulary {
        /// The id.
        id: u32,
        /// Where.
        position: usize,
        /// Size.
        vocab_size: u32,
    },
    /// The waiting queue is full.
    #[error(
        "{waiting} requests are waiting, the limit; retry after {retry_after_s} s or serve with a larger --max-waiting"
    )]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// Advice in seconds.
        retry_after_s: u32,
    },
    /// No such adapter.
    #[error("{0}")]
    Adapter(String),
    /// A hidden state that this engine does not give, or not with what else the request asks for.
    #[error("a request for a hidden state {0}")]
    HiddenState(&'static str),
    /// The engine is ending.
    #[error("the engine is shutting down and takes no new requests")]
    ShuttingDown,
    /// The engine has failed.
    #[error("the engine has stopped: {reason}")]
    Dead {
        /// Why.
        reason: String,
    },
}

impl SubmitError {
    /// Its code in `RejectedRecord::reason`.
    pub(crate) fn record_reason(&self) -> u32 {
        match self {
            SubmitError::QueueFull { .. } => 0,
            SubmitError::ShuttingDown => 1,
            SubmitError::Dead { .. } => 2,
            SubmitError::EmptyPrompt | SubmitError::PromptTooLong { .. } | SubmitError::PromptVocabulary { .. } => 3,
            SubmitError::Param(_) | SubmitError::Grammar(_) | SubmitError::HiddenState(_) => 4,
            SubmitError::Adapter(_) => 5,
        }
    }
}

/// Why an engine could not start, or ended.
#[derive(Debug, Error)]
pub enum EngineError {
    /// From the device half: the device, the model files, memory, ranks.
    #[error(transparent)]
    Runner(#[from] halyard_runner::RunnerError),
    /// From the model files.
    #[error(transparent)]
    Model(#[from] halyard_models::ModelError),
    /// From the tokenizer or chat template.
    #[error(transparent)]
    Text(#[from] halyard_text::TextError),
    /// From the scheduler.
    #[error(transparent)]
    Scheduler(#[from] halyard_scheduler::Error),
    /// A configuration value.
    #[error("{name}: {message}")]
    Config {
        /// Option.
        name: &'static str,
        /// Value, limit, remedy.
        message: String,
    },
    /// A LoRA adapter that was to be there from the start.
    #[error("--lora-modules {name}: {error}")]
    Adapter {
        /// Its name.
        name: String,
        /// The fault.
        error: Box<crate::lora::AdapterError>,
    },
    /// Too many threads are in guides that do not answer.
    #[error(
        "{stuck} threads are stuck in guides that took longer than max_mask_time; no more may be (max_stuck_threads), \
         so requests with a guide are refused until one of them returns"
    )]
    GuidesStuck {
        /// Stuck threads.
        stuck: usize,
    },
    /// The engine thread could not be started or ended early.
    #[error("engine thread: {0}")]
    Thread(String),
}
