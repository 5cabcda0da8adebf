//! The generation APIs that are served.

use super::api::Api;
use super::{chat, completion, messages};

/// All of them.
pub const APIS: [&Api; 3] = [&completion::API, &chat::API, &messages::API];
