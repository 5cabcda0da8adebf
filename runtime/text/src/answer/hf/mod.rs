//! `hf`: answers as the declarative response template in a model's `tokenizer_config.json` says, which is
//! Transformers' (decision 0065).

mod pattern;
mod reader;
mod scan;
mod stream;
mod template;
mod value;

pub(super) use reader::TemplateReader;
pub use template::ResponseTemplate;

/// The name of the format, for tool calls and for reasoning.
pub(super) const NAME: &str = "hf";
/// Other names of it.
pub(super) const ALIASES: &[&str] = &["beam"];
