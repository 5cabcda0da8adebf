//! The generation APIs: OpenAI's request and answer types with vLLM's extra fields, and their conversions from and to
//! the engine's types. A body's JSON comes in and a checked request goes out; chunks come in and an answer's JSON
//! goes out. No I/O, no waiting, no transport: nothing here uses `http`.

pub mod answer;
pub mod api;
pub mod apis;
pub mod asked_chat;
pub mod blocks;
pub mod body;
pub mod chat;
mod chat_answer;
pub mod chat_prompt;
pub mod completion;
pub mod context;
pub mod envelope;
pub mod events;
#[cfg(test)]
mod fields_read;
#[cfg(test)]
mod fields_read_tests;
pub mod kept;
pub mod lenient;
pub mod logits_args;
pub mod logprobs;
pub mod marker_tokens;
pub mod messages;
mod messages_answer;
mod messages_history;
pub mod model;
pub mod models;
pub mod parsed_text;
pub mod parsers;
pub mod policy;
pub mod prompt;
pub mod refusals;
pub mod responses;
mod responses_answer;
mod responses_input;
pub mod sampling;
pub mod shaper;
pub mod shared;
pub mod structured;
pub mod thoughts;
pub mod tokenize;
pub mod tools;
pub mod truncation;
pub mod unsupported;
pub mod usage;
