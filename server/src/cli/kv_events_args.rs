//! The flag `--kv-events-config`, and vLLM's variable beside it.

use std::sync::Arc;

use clap::Args;

use crate::error::ServerError;
use crate::kv_events::{KvEventPublisher, KvEventsConfig};

/// vLLM's variable: 0 names blocks by the 32 bytes of their hash, anything else by the last 64 bits.
const INT_HASHES_VARIABLE: &str = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES";

/// Events of the prefix cache.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "KV cache")]
pub struct KvEventsArgs {
    /// Publish over ZeroMQ which blocks the prefix cache gains and loses, for routers that send requests where their
    /// prefix is; vLLM's messages. JSON or key by key (--kv-events-config.KEY VALUE): enable_kv_cache_events, publisher
    /// (zmq, null), endpoint (tcp://*:5557), replay_endpoint, topic, buffer_steps (10000), hwm (100000), max_queue_size
    /// (100000). The messages hold the tokens of prompts, and nothing guards the ports: docs/operator-guide.md
    #[arg(long, value_name = "JSON", env = "HALYARD_KV_EVENTS_CONFIG", value_parser = KvEventsConfig::parse)]
    kv_events_config: Option<KvEventsConfig>,
}

impl KvEventsArgs {
    /// A publisher for each of `ranks`, if somebody can listen: its sockets are open.
    ///
    /// # Errors
    /// A place that cannot be listened on.
    pub async fn publishers(
        &self,
        has_prefix_cache: bool,
        ranks: impl Iterator<Item = u32>,
    ) -> Result<Vec<Arc<KvEventPublisher>>, ServerError> {
        let Some(config) = self.kv_events_config.as_ref().filter(|config| config.publishes()) else {
            return Ok(Vec::new());
        };
        if !has_prefix_cache {
            tracing::warn!("--kv-events-config: prefix caching is off, so there will be no events");
        }
        let int_hashes = std::env::var(INT_HASHES_VARIABLE).map_or(true, |value| value.trim() != "0");
        let mut publishers = Vec::new();
        for rank in ranks {
            let publisher = KvEventPublisher::open(config, int_hashes, rank).await?;
            publisher.start();
            publishers.push(Arc::new(publisher));
        }
        Ok(publishers)
    }
}
