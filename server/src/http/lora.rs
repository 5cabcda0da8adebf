//! LoRA adapters over HTTP: the routes that load and unload them, and finding the adapter of a model name that is not
//! known yet by asking the resolvers. Files are read on blocking threads; an adapter that several requests wait for
//! is read once.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use halyard_engine::{AdapterError, AdapterSource};
use halyard_request_hooks::{LoraResolvers, ResolveError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::body::{SHORT_BYTES, read_object};
use super::state::AppState;
use crate::api_error::{ApiError, clip};
use crate::openai::body::Body;

/// `POST /v1/load_lora_adapter`.
#[derive(Deserialize)]
struct LoadFields {
    lora_name: String,
    lora_path: PathBuf,
}

/// `POST /v1/unload_lora_adapter`.
#[derive(Deserialize)]
struct UnloadFields {
    lora_name: String,
}

async fn fields<T: DeserializeOwned>(state: &AppState, http: Request) -> Result<T, ApiError> {
    if !state.lora.allow_updates {
        let message =
            "this server's adapters are fixed; serve with --allow-runtime-lora-updating to change them by request";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message).with_code("lora_updating_disabled"));
    }
    let (parts, body) = http.into_parts();
    let body = read_object(&parts.headers, body, SHORT_BYTES).await?;
    Body::new(body)?.take()
}

/// Reads an adapter from a folder of the server's machine and serves it under a name.
pub async fn load_adapter(State(state): State<Arc<AppState>>, http: Request) -> Result<String, ApiError> {
    let LoadFields { lora_name, lora_path } = fields(&state, http).await?;
    if state.model_names.contains(&lora_name) {
        let message = format!("lora_name `{lora_name}` is a name of the base model; choose another");
        return Err(ApiError::field("lora_name", message));
    }
    add(&state, lora_name.clone(), lora_path).await?;
    tracing::info!(adapter = lora_name, "LoRA adapter loaded by request");
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

/// Takes an adapter away; requests that have it go on to their end.
pub async fn unload_adapter(State(state): State<Arc<AppState>>, http: Request) -> Result<String, ApiError> {
    let UnloadFields { lora_name } = fields(&state, http).await?;
    state.engine.remove_adapter(&lora_name)?;
    tracing::info!(adapter = lora_name, "LoRA adapter unloaded by request");
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}

async fn add(state: &Arc<AppState>, name: String, path: PathBuf) -> Result<(), ApiError> {
    let engine = state.engine.clone();
    let read = move || engine.add_adapter(&name, AdapterSource::Folder(path));
    let added = tokio::task::spawn_blocking(read).await;
    added.map_err(|error| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))??;
    Ok(())
}

impl AppState {
    /// The model or adapter that a body names, under the name to answer with.
    ///
    /// # Errors
    /// 400 for a name that is no text or that a resolver refuses, 404 for an unknown one, 503 where a resolver failed
    /// or the adapter cannot be read.
    pub async fn find_model(self: &Arc<Self>, body: &Body) -> Result<String, ApiError> {
        let name = match body.get("model") {
            Value::Null => None,
            Value::String(name) => Some(name.as_str()),
            _ => return Err(ApiError::field("model", "model must be a string")),
        };
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            self.find_adapter(name).await?;
        }
        self.model_name(name)
    }

    /// Adds an unknown adapter if a resolver finds it. A name that stays unknown is no error yet.
    async fn find_adapter(self: &Arc<Self>, name: &str) -> Result<(), ApiError> {
        let Some(resolvers) = &self.lora.resolvers else {
            return Ok(());
        };
        if self.is_served(name) {
            return Ok(());
        }
        let lock = self.lora.loading().entry(name.to_owned()).or_default().clone();
        let outcome = match lock.try_lock() {
            Ok(_held) => self.resolve_and_add(resolvers, name).await,
            // Another request asks for it already. Only if that one fails, all that waited ask once more, together.
            Err(_) => {
                drop(lock.lock().await);
                match self.is_served(name) {
                    true => Ok(()),
                    false => self.resolve_and_add(resolvers, name).await,
                }
            }
        };
        self.lora.loading().remove(name);
        outcome
    }

    async fn resolve_and_add(self: &Arc<Self>, resolvers: &LoraResolvers, name: &str) -> Result<(), ApiError> {
        match resolvers.resolve(name).await? {
            Some(location) => self.add_resolved(name, location.path, &location.resolver).await,
            None => Ok(()),
        }
    }

    async fn add_resolved(self: &Arc<Self>, name: &str, path: PathBuf, resolver: &str) -> Result<(), ApiError> {
        let shown = path.display().to_string();
        match add(self, name.to_owned(), path).await {
            Ok(()) => {
                tracing::info!(
                    adapter = name,
                    resolver,
                    path = shown,
                    "LoRA adapter found by a resolver"
                );
                Ok(())
            }
            // Loaded by a request meanwhile.
            Err(_) if self.is_served(name) => Ok(()),
            Err(error) => {
                let message = format!(
                    "the adapter `{}` was found but cannot be served: {}",
                    clip(name),
                    error.message
                );
                tracing::warn!(resolver, path = shown, "{message}");
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("adapter_unavailable"))
            }
        }
    }

    /// Whether a name is the base model's or an adapter's.
    fn is_served(&self, name: &str) -> bool {
        self.model_names.iter().any(|known| known == name) || self.engine.has_adapter(name)
    }
}

impl From<ResolveError> for ApiError {
    fn from(error: ResolveError) -> Self {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        ApiError {
            param: Some("model".to_owned()),
            retry_after_s: (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1),
            ..ApiError::new(status, error.to_string()).with_code("adapter_not_resolved")
        }
    }
}

impl From<AdapterError> for ApiError {
    fn from(error: AdapterError) -> Self {
        let message = error.to_string();
        match error {
            AdapterError::Unknown { .. } => ApiError {
                param: Some("lora_name".to_owned()),
                ..ApiError::new(StatusCode::NOT_FOUND, message).with_code("adapter_not_found")
            },
            AdapterError::Disabled => ApiError::new(StatusCode::NOT_FOUND, message).with_code("lora_disabled"),
            AdapterError::BadName { .. } => ApiError::field("lora_name", message),
            AdapterError::Exists { .. } => ApiError::field("lora_name", message).with_code("adapter_exists"),
            AdapterError::Files(_) | AdapterError::Changed { .. } => ApiError::field("lora_path", message),
            AdapterError::Device { .. } | AdapterError::Panicked { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("adapter_unavailable")
            }
        }
    }
}
