//! The `halyard` server as a library, so that tests reach the parts that the binary joins. The environment is read here
//! (by the command line and the model sources) and nowhere below.

pub mod api_error;
pub mod cli;
pub mod client;
pub mod clock;
pub mod error;
pub mod hooks;
pub mod http;
pub mod isolation;
pub mod logging;
pub mod metrics;
pub mod openai;
pub mod option_error;
pub mod source;
pub mod templates;
