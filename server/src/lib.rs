//! The `halyard` server as a library, so that tests reach the parts that the binary joins. The environment is read here
//! (by the command line and the model sources) and nowhere below.

mod api_error;
pub mod batch;
pub mod cli;
pub mod client;
mod clock;
mod error;
pub mod hooks;
pub mod http;
pub mod isolation;
pub mod kv_events;
pub mod logging;
pub mod low_priority;
mod metrics;
pub mod openai;
pub mod openapi;
mod option_error;
pub mod source;
pub mod templates;
pub mod ui;
pub mod zmtp;
