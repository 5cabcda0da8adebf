//! The targets, one file for each kind of untrusted source: a model folder, a tokenizer or template, a model, a
//! plugin, a client, a server.

pub mod answer;
pub mod client;
pub mod grammar;
pub mod http;
pub mod models;
pub mod plugins;
pub mod response_template;
pub mod text;
pub mod zmtp;
