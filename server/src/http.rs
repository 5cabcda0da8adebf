//! HTTP: routes, keys, limits, errors, streams. Owns what a client sees; leaves what a body means to `openai`.

pub mod admin;
pub mod auth;
pub mod body;
pub mod error;
pub mod generate;
pub mod info;
pub mod lora;
pub mod request_id;
pub mod routes;
pub mod serve;
pub mod state;
pub mod text_work;
