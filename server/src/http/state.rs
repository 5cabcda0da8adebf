//! State that all routes share: the engine, its served names, limits, keys and metrics. Immutable while serving.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use halyard_engine::Replicas;
use halyard_request_hooks::{IoProcessors, LogitsProcessors, LoraResolvers};

use super::abortable::Abortable;
use super::auth::ApiKeys;
use super::response_store::ResponseStore;
use super::text_work::TextWork;
use super::transport::Transport;
use crate::api_error::{ApiError, clip};
use crate::hooks::Hooks;
use crate::kv_events::KvEventPublisher;
use crate::openai::parsers::Parsers;
use crate::openai::policy::{Limits, ServingDefaults};
use crate::ui::Ui;

/// Adapters that an error lists.
const SHOWN_ADAPTERS: usize = 16;

/// What the server keeps about adapters; the engine has its own part.
#[derive(Default)]
pub struct LoraState {
    /// Whether clients may load and unload.
    pub allow_updates: bool,
    /// The resolvers, asked for unknown names.
    pub resolvers: Option<LoraResolvers>,
    /// One lock for each name that is being read because a resolver knew it.
    loading: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl LoraState {
    /// Adapters with these rights and resolvers.
    pub fn new(allow_updates: bool, resolvers: Option<LoraResolvers>) -> LoraState {
        LoraState {
            allow_updates,
            resolvers,
            ..LoraState::default()
        }
    }

    /// The locks, by name.
    pub(super) fn loading(&self) -> MutexGuard<'_, HashMap<String, Arc<tokio::sync::Mutex<()>>>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shared by all routes.
pub struct AppState {
    /// The engine.
    pub engine: Replicas,
    /// Number of the first copy of the model, in metrics.
    pub first_rank: u32,
    /// Names of the model; the first one is used in answers.
    pub model_names: Vec<String>,
    /// Where the model was loaded from, for `/v1/models`.
    pub model_root: String,
    /// Start of serving, seconds since 1970.
    pub created: u64,
    /// Accepted keys.
    pub api_keys: ApiKeys,
    /// Bounds.
    pub limits: Limits,
    /// The operator's limits and defaults for requests.
    pub serving: ServingDefaults,
    /// How answers are read.
    pub parsers: Parsers,
    /// Stat loggers.
    pub hooks: Arc<Hooks>,
    /// Whether the scheduler looks at priorities.
    pub priority_scheduling: bool,
    /// Whether prompts may be logged.
    pub log_prompts: bool,
    /// Generation requests being answered now.
    pub in_flight: AtomicU64,
    /// Generation requests that the operator can end.
    pub abortable: Arc<Abortable>,
    /// Routes for development are served, as vLLM's with VLLM_SERVER_DEV_MODE.
    pub dev_mode: bool,
    /// The OpenAPI document and its page are served.
    pub has_docs: bool,
    /// The IO processors of generation requests and their answers.
    pub io: IoProcessors,
    /// The logits processors of generation requests.
    pub logits: LogitsProcessors,
    /// Who publishes events of the prefix cache.
    pub kv_events: Vec<Arc<KvEventPublisher>>,
    /// Adapters: the routes that change them, and the resolvers.
    pub lora: LoraState,
    /// Stored responses, where they are stored.
    pub responses: Option<ResponseStore>,
    /// The bounds on long bodies and templates in work.
    pub text_work: TextWork,
    /// Connections, and what is counted of them.
    pub transport: Arc<Transport>,
    /// What the page at `/ui` shows, where it is served.
    pub ui: Option<Arc<Ui>>,
}

impl AppState {
    /// The adapter that a name of [`AppState::model_name`] means; `None`: the base model.
    pub fn adapter(&self, name: &str) -> Option<String> {
        let is_base = self.model_names.iter().any(|known| known == name);
        (!is_base).then(|| name.to_owned())
    }

    /// The name to answer with when a request asks for `model`. A missing name means the served model, as in vLLM.
    ///
    /// # Errors
    /// 404 with the names that are served.
    pub fn model_name(&self, asked: Option<&str>) -> Result<String, ApiError> {
        match asked {
            None | Some("") => Ok(self.model_names[0].clone()),
            Some(name) if self.model_names.iter().any(|known| known == name) => Ok(name.to_owned()),
            Some(name) if self.engine.has_adapter(name) => Ok(name.to_owned()),
            Some(name) => {
                let mut served = self.model_names.join("`, `");
                for adapter in self.engine.adapters().iter().take(SHOWN_ADAPTERS) {
                    served.push_str(&format!("`, `{}", adapter.name));
                }
                let message = format!("the model `{}` does not exist; served here: `{served}`", clip(name));
                let error = ApiError::new(StatusCode::NOT_FOUND, message).with_code("model_not_found");
                Err(ApiError {
                    param: Some("model".to_owned()),
                    ..error
                })
            }
        }
    }
}

/// Counts a generation request in [`AppState::in_flight`] for as long as it lives.
pub struct InFlight(Arc<AppState>);

impl InFlight {
    /// Counts one more.
    pub fn enter(state: &Arc<AppState>) -> Self {
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(state))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
