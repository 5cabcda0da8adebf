//! HTTP: routes, keys, limits, errors, streams. Owns what a client sees; leaves what a body means to `openai`.

mod abort;
pub mod abortable;
pub mod accept;
pub mod admin;
pub mod auth;
mod background;
pub mod body;
pub mod body_error;
pub mod body_memory;
pub mod connection;
#[cfg(test)]
mod connection_tests;
pub mod connections;
pub mod conversion;
pub mod cors;
mod exchange;
pub mod generate;
mod guides;
mod handshake;
#[cfg(test)]
mod handshake_tests;
pub mod host_check;
pub mod info;
pub mod layers;
pub mod limits;
pub mod listeners;
pub mod logits;
pub mod lora;
pub mod panics;
pub mod peer;
pub mod reload;
pub mod request_body;
pub mod request_id;
pub mod response_store;
mod responses;
pub mod root_path;
pub mod routes;
pub mod serve;
pub mod state;
pub mod text_work;
pub mod tls;
pub mod transport;
mod trim;
mod ui;
pub mod unix_socket;
pub mod wrapped_body;
