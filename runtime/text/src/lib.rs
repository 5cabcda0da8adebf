//! Text on both sides of the model: messages become a prompt, a prompt becomes token ids, and generated ids become
//! text.
//!
//! Owns the tokenizer, the chat template, incremental detokenisation, stop strings and the parser of answers. It never
//! touches a device, a socket, the clock or the environment: the time a template may print is an argument.

mod answer;
mod chat_message;
mod chat_template;
mod detokenizer;
mod error;
mod gguf;
mod long_text;
mod pre_tokenizer;
mod python_format;
mod python_methods;
mod stop;
mod strftime;
mod tekken;
mod template_engine;
mod template_host;
mod template_source;
mod token_bytes;
mod tokenizer;
mod tokenizer_config;
mod tokenizer_file;

pub use answer::{
    AnswerEvent, AnswerFormat, AnswerParser, CallFault, ReasoningPhase, ResponseTemplate, ToolTypes, propose_formats,
    reasoning_formats, tool_formats,
};
pub use chat_template::{ChatInput, ChatTemplate};
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use gguf::GgufTokenizer;
pub use long_text::{CancelFlag, EncodeLimits};
pub use pre_tokenizer::known_pre_tokenizers;
pub use stop::{StopChecker, StopOutcome};
pub use strftime::LocalTime;
pub use tekken::Tekken;
pub use template_host::{HostFailure, TemplateHost, opens_template, serve_templates};
pub use tokenizer::Tokenizer;
pub use tokenizer_config::{SpecialTokens, TokenizerConfig};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, TextError>;
