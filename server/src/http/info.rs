//! Facts about this server under the routes that other tools ask for: `/tokenizer_info` (vLLM's, for lm-eval's remote
//! tokenizer), `/kv_event_sources` (vLLM's, for its router), and `/server_info` and `/model_info` (SGLang's, for its
//! router, also under their older names). None of them changes while serving.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::state::AppState;
use crate::api_error::ApiError;
use crate::kv_events::KvEventsConfig;

/// OpenAI's `system_fingerprint`: equal where version, model, types and kernels are, so that a client can tell
/// whether equal seeds can be expected to give equal answers. The form is vLLM's.
pub fn fingerprint(state: &AppState) -> String {
    let info = state.engine.info();
    let facts = format!(
        "{}|{}|{}|{:?}|{:?}|{}|{}|{}",
        state.model_root,
        info.architecture,
        info.max_model_len,
        info.dtype,
        info.kv_cache_dtype,
        info.attention_backend,
        info.tensor_parallel_size,
        info.weight_bytes
    );
    let digest = Sha256::digest(facts);
    let hex: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("halyard-{}-{hex}", env!("CARGO_PKG_VERSION"))
}

/// `GET /tokenizer_info`: what a `tokenizer_config.json` says, as far as it is known here.
///
/// # Errors
/// 404 unless the operator allows it: templates may be private.
pub async fn tokenizer(State(state): State<Arc<AppState>>) -> Result<Json<Value>, ApiError> {
    if !state.serving.tokenizer_info {
        let message = "GET /tokenizer_info is off; serve with --enable-tokenizer-info-endpoint";
        return Err(ApiError::new(StatusCode::NOT_FOUND, message).with_code("unknown_route"));
    }
    let (engine, info) = (&state.engine, state.engine.info());
    let template = engine.chat_template();
    let special = template
        .map(|template| template.special_tokens().clone())
        .unwrap_or_default();
    let of_id = |id: &u32| engine.tokenizer().id_to_token(*id);
    let eos = special.eos_token.or_else(|| info.eos_token_ids.first().and_then(of_id));
    Ok(Json(json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special.bos_token,
        "eos_token": eos,
        "pad_token": special.pad_token,
        "unk_token": special.unk_token,
        "vocab_size": engine.tokenizer().vocab_size(),
        "model_max_length": info.max_model_len,
        "truncation_side": "left",
        "chat_template": template.map(|template| template.source()),
    })))
}

/// `GET /server_info`: names, sizes and bounds.
pub async fn server(State(state): State<Arc<AppState>>) -> Json<Value> {
    let info = state.engine.info();
    let name = &state.model_names[0];
    Json(json!({
        "model_id": name,
        "model_path": state.model_root,
        "tokenizer_path": state.model_root,
        "served_model_name": name,
        "version": env!("CARGO_PKG_VERSION"),
        "max_model_len": info.max_model_len,
        "context_length": info.max_model_len,
        "kv_block_size": info.block_size,
        "max_total_tokens": u64::from(info.num_blocks) * u64::from(info.block_size),
        "max_prefill_tokens": info.max_num_batched_tokens,
        "max_running_requests": info.max_num_seqs,
        "max_num_reqs": info.max_num_seqs,
        "tp_size": info.tensor_parallel_size,
        "dp_size": state.engine.engines().len(),
        "is_embedding": false,
    }))
}

/// `GET /kv_event_sources`: where each copy of the model publishes its KV cache events, by its data-parallel rank;
/// empty where none does.
pub async fn kv_event_sources(State(state): State<Arc<AppState>>) -> Json<BTreeMap<u32, KvEventsConfig>> {
    let sources = state.kv_events.iter().map(|publisher| publisher.source());
    Json(sources.map(|(rank, config)| (rank, config.clone())).collect())
}

/// `GET /model_info`: what the model is.
pub async fn model(State(state): State<Arc<AppState>>) -> Json<Value> {
    let info = state.engine.info();
    Json(json!({
        "model_path": state.model_root,
        "tokenizer_path": state.model_root,
        "is_generation": true,
        "model_type": info.architecture,
        "architectures": [info.architecture],
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "preferred_sampling_params": null,
        "weight_version": "default",
    }))
}
