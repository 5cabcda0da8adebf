//! Flags of stored responses (`/v1/responses`).

use std::time::Duration;

use clap::{Args, value_parser};

use super::units::parse_bytes;
use crate::http::response_store::{ResponseStore, StoreLimits};

/// Whether responses are stored, and how many.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct ResponsesArgs {
    /// Keep answers of /v1/responses in memory: previous_response_id, background, and reading, cancelling and deleting
    /// them. A response belongs to the API key that asked for it. VLLM_ENABLE_RESPONSES_API_STORE=1 does the same
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_RESPONSES_STORE", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_responses_store: bool,
    /// Most responses that are kept; then those go that were not used for longest
    #[arg(long, value_name = "COUNT", env = "HALYARD_RESPONSES_STORE_MAX_RESPONSES", default_value_t = 4096,
        value_parser = value_parser!(u32).range(1..))]
    responses_store_max_responses: u32,
    /// Most bytes of them, as JSON
    #[arg(long, value_name = "BYTES", env = "HALYARD_RESPONSES_STORE_MAX_BYTES", default_value = "256MiB",
        value_parser = parse_bytes)]
    responses_store_max_bytes: u64,
    /// Seconds for which a response is kept after its last use in a conversation
    #[arg(long, value_name = "SECONDS", env = "HALYARD_RESPONSES_STORE_MAX_AGE", default_value_t = 86_400,
        value_parser = value_parser!(u32).range(1..))]
    responses_store_max_age: u32,
}

/// vLLM's way to ask for the store.
const VLLM_VARIABLE: &str = "VLLM_ENABLE_RESPONSES_API_STORE";

impl ResponsesArgs {
    /// The store that is asked for.
    pub fn store(&self) -> Option<ResponseStore> {
        let limits = StoreLimits {
            max_responses: self.responses_store_max_responses as usize,
            max_bytes: usize::try_from(self.responses_store_max_bytes).unwrap_or(usize::MAX),
            max_age: Duration::from_secs(self.responses_store_max_age.into()),
        };
        let by_vllm = std::env::var(VLLM_VARIABLE).is_ok_and(|value| value.trim() == "1");
        (self.enable_responses_store || by_vllm).then(|| ResponseStore::new(limits))
    }
}
