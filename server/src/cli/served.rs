//! What `halyard serve` and `halyard run-batch` share: the flags of a model that answers requests, and its start.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::Args;
use halyard_engine::KvEventSink;
use halyard_request_hooks::{IoProcessors, LogitsProcessors};
use halyard_scheduler::Policy;

use super::args::{EngineArgs, LogArgs};
use super::chosen_hook::IoProcessorArgs;
use super::engine::ChosenDevice;
use super::kv_events_args::KvEventsArgs;
use super::logits_processor::{LoadedProcessors, LogitsProcessorArgs};
use super::lora::{LoadedResolvers, LoraServeArgs, start_resolvers};
use super::parser_args::ParserArgs;
use super::serving::ServingArgs;
use super::units::parse_bytes;
use crate::clock::unix_seconds;
use crate::error::ServerError;
use crate::hooks::ChosenSink;
use crate::http::auth::ApiKeys;
use crate::http::response_store::ResponseStore;
use crate::http::state::{AppState, LoraState};
use crate::http::text_work::TextWork;
use crate::http::transport::Transport;
use crate::isolation::IsolationMode;
use crate::openai::policy::{Limits, ServingDefaults};
use crate::source::ResolvedModel;
use crate::ui::{Ui, sink};

/// Flags of a model that answers requests.
#[derive(Args, Debug)]
pub struct ServedArgs {
    /// The model for clients, and bounds of their requests.
    #[command(flatten)]
    pub requests: RequestArgs,
    /// The engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Stat loggers that always run.
    #[command(flatten)]
    pub stats: StatsArgs,
    #[command(flatten)]
    io: IoProcessorArgs,
    #[command(flatten)]
    logits: LogitsProcessorArgs,
    #[command(flatten)]
    lora: LoraServeArgs,
    #[command(flatten)]
    kv_events: KvEventsArgs,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    #[command(flatten)]
    serving: ServingArgs,
    /// How answers are read.
    #[command(flatten)]
    pub parsers: ParserArgs,
}

/// Flags of requests.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
pub struct RequestArgs {
    /// Name of the model for clients; may be repeated, the first one is used in answers
    #[arg(
        long = "served-model-name",
        value_name = "NAME",
        env = "HALYARD_SERVED_MODEL_NAME",
        value_delimiter = ','
    )]
    served_model_names: Vec<String>,
    /// Largest body of a request
    #[arg(long, value_name = "BYTES", env = "HALYARD_MAX_BODY_BYTES", default_value = "16MiB",
        value_parser = parse_bytes)]
    max_body_bytes: u64,
    /// Most prompts of one completion request
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_PROMPTS", default_value_t = Limits::default().prompts)]
    max_prompts: usize,
    /// Write prompts into the log
    #[arg(long, env = "HALYARD_LOG_PROMPTS", default_value_t = false)]
    log_prompts: bool,
}

impl ServedArgs {
    /// Loads the hooks of requests.
    ///
    /// # Errors
    /// A hook that does not load.
    pub(super) fn load_hooks(&self, chosen: &ChosenDevice) -> Result<RequestHooks, ServerError> {
        Ok(RequestHooks {
            io: self.io.start(chosen.catalog())?,
            logits: self.logits.load(chosen.catalog())?,
            resolvers: self.lora.load(chosen.catalog())?,
        })
    }

    /// Fetches the model, loads it, and makes what the routes share.
    ///
    /// # Errors
    /// [`ServerError`].
    pub(super) async fn prepare(
        &self,
        chosen: ChosenDevice,
        RequestHooks { io, logits, resolvers }: RequestHooks,
        door: Door,
    ) -> Result<Prepared, ServerError> {
        let model = self.engine.resolve_model().await?;
        let model_names = self.requests.model_names(&model);
        let ui = door
            .has_ui
            .then(|| Ui::new(chosen.devices(), chosen.rejected().to_vec()));
        let own = |copy| ui.as_ref().map(|ui| sink(ui, copy));
        let hooks = Arc::new(self.engine.hooks(&chosen, self.stats.always()?, own)?);
        let has_prefix_cache = !self.engine.cache.no_enable_prefix_caching;
        let ranks = (0..chosen.num_copies()).map(|copy| self.engine.platform.rank_of(copy));
        let kv_events = self.kv_events.publishers(has_prefix_cache, ranks).await?;
        let listeners = kv_events.iter().cloned();
        let listeners: Vec<_> = listeners.map(|publisher| publisher as Arc<dyn KvEventSink>).collect();
        let (engine_args, task_model, task_hooks) = (self.engine.clone(), model.clone(), hooks.clone());
        let served_name = model_names[0].clone();
        let platform = format!("{}: {}", chosen.platform, chosen.device_name);
        let loading = tokio::task::spawn_blocking(move || {
            engine_args.start_with(&chosen, &task_model, &task_hooks, &served_name, &listeners)
        });
        let engine = loading
            .await
            .map_err(|error| ServerError::Refused(format!("loading the model failed: {error}")))??;
        let has_template = engine.chat_template().is_some();
        let transport = door.transport;
        let http = &self.requests;
        let body_bytes = usize::try_from(http.max_body_bytes).unwrap_or(usize::MAX);
        let mut state = AppState {
            text_work: TextWork::new(body_bytes, Arc::clone(&transport.body_memory)),
            model_root: model.path.display().to_string(),
            model_names,
            created: unix_seconds(),
            api_keys: door.api_keys,
            transport: Arc::new(transport),
            limits: Limits {
                body_bytes,
                prompts: http.max_prompts,
                samples: Limits::default().samples.max(http.max_prompts),
                ..Limits::default()
            }
            .within(self.engine.scheduling.max_waiting),
            serving: ServingDefaults {
                exclude_tools_when_tool_choice_none: self.parsers.excludes_tools(),
                ..self.serving.defaults()
            },
            responses: door.responses,
            parsers: self
                .parsers
                .parsers(engine.first())?
                .binding_reasoning(self.engine.structured.binds_reasoning()),
            hooks,
            priority_scheduling: self.engine.scheduling.scheduling_policy == Policy::Priority,
            log_prompts: http.log_prompts,
            in_flight: AtomicU64::new(0),
            abortable: Arc::default(),
            dev_mode: door.dev_mode,
            has_docs: door.has_docs,
            io,
            logits: LogitsProcessors::default(),
            kv_events,
            lora: LoraState::default(),
            ui,
            first_rank: self.engine.platform.rank_of(0),
            engine,
        };
        if let Some(adapter) = state
            .engine
            .adapters()
            .iter()
            .find(|a| state.model_names.contains(&a.name))
        {
            return Err(ServerError::Option {
                option: "--lora-modules",
                message: format!("`{}` is a name of the base model; choose another", adapter.name),
            });
        }
        state.logits = self.logits.start(logits, state.engine.first())?;
        let resolvers = start_resolvers(resolvers, &state.model_names[0])?;
        state.lora = LoraState::new(self.lora.allows_updates(), resolvers);
        if self.lora.allows_updates() && state.api_keys.is_empty() {
            tracing::warn!(
                "--allow-runtime-lora-updating without --api-key: everyone who reaches this server can load adapters"
            );
        }
        let state = Arc::new(state);
        Ok(Prepared {
            state,
            platform,
            is_demo: model.is_demo,
            has_template,
        })
    }
}

/// Hooks of requests, loaded before the model is.
pub struct RequestHooks {
    io: IoProcessors,
    logits: LoadedProcessors,
    resolvers: LoadedResolvers,
}

/// The served model, and facts for the operator.
pub struct Prepared {
    /// What the routes share.
    pub state: Arc<AppState>,
    /// The platform and its device.
    pub platform: String,
    /// No model was named.
    pub is_demo: bool,
    /// It has a chat template.
    pub has_template: bool,
}

/// What stands between clients and the model.
#[derive(Default)]
pub struct Door {
    /// Accepted keys.
    pub api_keys: ApiKeys,
    /// Connections.
    pub transport: Transport,
    /// Stored responses.
    pub responses: Option<ResponseStore>,
    /// The page is served.
    pub has_ui: bool,
    /// Routes for development are served.
    pub dev_mode: bool,
    /// The OpenAPI document and its page are served.
    pub has_docs: bool,
}

impl RequestArgs {
    /// Names of the model for clients, at least one.
    fn model_names(&self, model: &ResolvedModel) -> Vec<String> {
        let names = self.served_model_names.iter().map(|name| name.trim().to_owned());
        let mut model_names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        if model_names.is_empty() {
            model_names.push(model.name.clone());
        }
        model_names
    }
}

/// Flags of statistics.
#[derive(Args, Debug)]
#[command(next_help_heading = "Statistics")]
pub struct StatsArgs {
    /// Bounds of histograms at /metrics by family, as JSON: {"request_latency": [0.1, 0.5, 1.0]}. Families:
    /// request_latency, time_to_first_token, inter_token_latency, iteration_tokens, request_params_n,
    /// request_num_preemptions, request_tokens
    #[arg(long, value_name = "JSON", env = "HALYARD_CUSTOM_HISTOGRAM_BUCKETS")]
    custom_histogram_buckets: Option<String>,
    /// No line about throughput and cache in the log every ten seconds
    #[arg(long, env = "HALYARD_DISABLE_LOG_STATS", default_value_t = false)]
    disable_log_stats: bool,
}

impl StatsArgs {
    /// The stat loggers that a server runs unless they are named and configured otherwise.
    fn always(&self) -> Result<Vec<ChosenSink>, ServerError> {
        let buckets: Option<serde_json::Value> = self
            .custom_histogram_buckets
            .as_deref()
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| ServerError::Option {
                option: "--custom-histogram-buckets",
                message: format!(
                    "it is not JSON: {error}; write an object of lists, such as {{\"request_latency\": [0.1, 1.0]}}"
                ),
            })?;
        let config = buckets.map_or_else(
            || "{}".to_owned(),
            |buckets| serde_json::json!({"custom_histogram_buckets": buckets}).to_string(),
        );
        let sink = |name: &str, config: String| ChosenSink {
            name: name.to_owned(),
            config,
            isolation: IsolationMode::None,
        };
        let mut always = vec![sink("prometheus", config)];
        if !self.disable_log_stats {
            always.push(sink("log-line", "{}".to_owned()));
        }
        Ok(always)
    }
}
