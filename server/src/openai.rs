//! OpenAI's wire types with vLLM's extra fields, and their conversions to and from the engine's types. No I/O and no
//! waiting: a body's JSON comes in, a checked request or an answer's JSON goes out.

pub mod chat;
pub mod completion;
pub mod context;
pub mod lenient;
pub mod logprobs;
pub mod prompt;
pub mod sampling;
pub mod tokenize;
pub mod tools;
pub mod unsupported;
pub mod usage;

use halyard_models::GenerationDefaults;
use halyard_text::{ChatTemplate, Tokenizer};

use crate::http::state::{Limits, ServingDefaults};

/// What conversions need to know of the model.
#[derive(Clone, Copy)]
pub struct ModelContext<'a> {
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Its chat template, if it has one.
    pub chat_template: Option<&'a ChatTemplate>,
    /// Sampling defaults that its authors ship.
    pub defaults: &'a GenerationDefaults,
    /// Ids run from 0 to one less.
    pub vocab_size: u32,
    /// Context in tokens.
    pub max_model_len: u32,
    /// Bounds of a request.
    pub limits: Limits,
    /// What the operator chose for requests.
    pub serving: &'a ServingDefaults,
}
