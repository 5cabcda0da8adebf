//! The generation APIs that are served.

use super::api::Api;
use super::{chat, completion, messages, responses};

/// All of them.
pub const APIS: [&Api; 4] = [&completion::API, &chat::API, &messages::API, &responses::API];
