//! Bodies of requests, sent to the real router over the reference platform and a tiny model, without a socket.
//!
//! Every answer has a status below 500 and says what is wrong in an error object; the engine lives on.

use std::path::Path;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use halyard_engine::{AdapterSource, LoraConfig};
use halyard_server::http::state::LoraState;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::target::{Case, Outcome, fixture};

#[path = "../../../../server/tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests of the server have more needs")]
mod common;

use common::{Options, TestServer};

/// Longest sequence of the model: a case generates at most this.
const MAX_MODEL_LEN: u32 = 48;

fn seeds(bodies: &[Value]) -> Vec<Vec<u8>> {
    bodies.iter().map(|body| body.to_string().into_bytes()).collect()
}

pub fn completion_seeds() -> Vec<Vec<u8>> {
    seeds(&[
        json!({"model": "tiny", "prompt": "The river", "max_tokens": 3, "temperature": 0}),
        json!({"prompt": [5, 6, 7], "max_tokens": 2, "n": 2, "seed": 7, "temperature": 1.2, "top_p": 0.9, "top_k": 20,
            "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1}),
        json!({"prompt": ["a", "b"], "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true,
            "continuous_usage_stats": true}, "stop": ["x", "yz"], "include_stop_str_in_output": true}),
        json!({"prompt": [[1, 2], [3]], "max_tokens": 1, "logprobs": 2, "prompt_logprobs": 1, "echo": true,
            "return_token_ids": true, "logit_bias": {"5": 1.5, "17": -100}}),
        json!({"prompt": "b", "max_tokens": 4, "min_tokens": 2, "stop_token_ids": [3], "ignore_eos": true,
            "bad_words": ["q", "no"], "allowed_token_ids": [4, 5, 6, 7, 8, 9], "skip_special_tokens": false,
            "spaces_between_special_tokens": true, "add_special_tokens": false, "detokenize": true}),
        json!({"model": "rank4", "prompt": "c", "max_tokens": 2, "user": "u", "priority": 0, "cache_salt": "s",
            "best_of": 1, "suffix": null, "request_id": "r", "truncate_prompt_tokens": 4, "structured_outputs": null}),
    ])
}

pub fn chat_seeds() -> Vec<Vec<u8>> {
    seeds(&[
        json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}),
        json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text",
            "text": "Hi"}]}, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Go"}],
            "max_completion_tokens": 2, "stream": true, "stream_options": {"include_usage": true}}),
        json!({"messages": [{"role": "user", "content": "a", "name": "n"}], "max_tokens": 2, "logprobs": true,
            "top_logprobs": 3, "n": 2, "seed": 1, "stop": "x", "logit_bias": {"9": 2},
                "response_format": {"type": "text"}}),
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "max_tokens": 2,
            "add_generation_prompt": false, "continue_final_message": true, "echo": true,
            "chat_template_kwargs": {"enable_thinking": false}, "documents": [{"title": "t", "text": "x"}]}),
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [{
            "id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"}], "max_tokens": 1, "tool_choice": "none",
            "tools": null, "parallel_tool_calls": true, "modalities": ["text"], "metadata": {}, "store": false}),
        json!({"messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": "a"}], "max_tokens": 1,
            "reasoning_effort": "low", "service_tier": "auto", "user": "u", "min_p": 0.1, "top_k": -1}),
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "reasoning": "b"}], "max_tokens": 4,
            "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": true,
            "parameters": {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}}}],
            "tool_choice": "auto", "parallel_tool_calls": false, "include_reasoning": false, "stream": true}),
        json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "n": 2, "logprobs": true,
            "tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ])
}

pub fn tokenize_seeds() -> Vec<Vec<u8>> {
    seeds(&[
        json!({"model": "tiny", "prompt": "Hello <s> world", "add_special_tokens": false, "return_token_strs": true}),
        json!({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": true,
            "continue_final_message": false, "chat_template_kwargs": {"x": 1}, "tools": null}),
    ])
}

pub fn detokenize_seeds() -> Vec<Vec<u8>> {
    seeds(&[
        json!({"model": "tiny", "tokens": [1, 2, 3, 400]}),
        json!({"tokens": []}),
    ])
}

pub fn lora_seeds() -> Vec<Vec<u8>> {
    let path = |name: &str| fixture("models/llama-lora").join(name).to_string_lossy().into_owned();
    seeds(&[
        json!({"lora_name": "new", "lora_path": path("rslora8"), "load_inplace": false}),
        json!({"lora_name": "rank4"}),
        json!({"lora_name": "new", "lora_int_id": 3}),
        json!({"lora_name": "gone", "lora_path": "nowhere"}),
    ])
}

pub fn admin_seeds() -> Vec<Vec<u8>> {
    seeds(&[
        json!({}),
        json!({"name": "prometheus"}),
        json!({"plugin": "prometheus", "config": {}}),
    ])
}

pub fn completion(_: &Path) -> Case {
    to_routes(&["/v1/completions"])
}

pub fn chat(_: &Path) -> Case {
    to_routes(&["/v1/chat/completions"])
}

pub fn tokenize(_: &Path) -> Case {
    to_routes(&["/tokenize"])
}

pub fn detokenize(_: &Path) -> Case {
    to_routes(&["/detokenize"])
}

pub fn lora(_: &Path) -> Case {
    to_routes(&["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
}

pub fn admin(_: &Path) -> Case {
    to_routes(&["/admin/plugins/reload"])
}

/// A server with adapters that may be changed, and a short context.
fn server() -> TestServer {
    let adapter = fixture("models/llama-lora/rank4");
    TestServer::with(Options {
        max_model_len: Some(MAX_MODEL_LEN),
        lora_config: Some(LoraConfig {
            adapters: vec![("rank4".to_owned(), AdapterSource::Folder(adapter))],
            max_loras: 2,
            ..LoraConfig::default()
        }),
        lora: LoraState::new(true, None),
        parsers: (Some("hermes"), Some("qwen3")),
        ..Options::default()
    })
}

fn to_routes(routes: &'static [&'static str]) -> Case {
    let runtime = Runtime::new().expect("threads");
    let server = runtime.block_on(async { server() });
    let mut number = 0_usize;
    Box::new(move |input| {
        let route = routes[number % routes.len()];
        number += 1;
        if number.is_multiple_of(16) {
            runtime.block_on(leave_early(&server, route, input));
        }
        runtime.block_on(queue_is_empty(&server));
        let taken = runtime.block_on(ask(&server, route, input));
        let health = runtime.block_on(server.get("/health"));
        assert_eq!(health.status, StatusCode::OK, "after {route}: {}", health.text);
        taken
    })
}

/// Sends a body and drops the answer before it is read.
async fn leave_early(server: &TestServer, route: &str, input: &[u8]) {
    use tower::ServiceExt as _;
    let request = request(route, input);
    let answer = server.router.clone().oneshot(request).await;
    drop(answer);
}

/// Requests that nobody waits for leave the queue soon, and with them the reason to refuse the next ones: those of an
/// answer that was dropped, and those of a body that was refused when some of its prompts were already submitted.
async fn queue_is_empty(server: &TestServer) {
    while server.state.engine.stats().num_waiting > 0 {
        tokio::task::yield_now().await;
    }
}

fn request(route: &str, input: &[u8]) -> Request<Body> {
    let request = Request::post(route).header("content-type", "application/json");
    request.body(Body::from(input.to_vec())).expect("a request")
}

async fn ask(server: &TestServer, route: &str, input: &[u8]) -> Outcome {
    let answer = server.send(request(route, input)).await;
    let status = answer.status;
    assert!(status.as_u16() < 500, "{route}: {status}: {}", answer.text);
    let streamed = is_stream(&answer.headers);
    if status == StatusCode::OK {
        if streamed {
            assert!(
                answer.text.ends_with("data: [DONE]\n\n"),
                "{route}: no end: {}",
                answer.text
            );
            assert!(!answer.text.contains("\"code\":500"), "{route}: {}", answer.text);
        }
        return Outcome::Accepted;
    }
    let body: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(
        !message.is_empty(),
        "{route}: {status} without a message: {}",
        answer.text
    );
    // The body was understood, and what it asks for is not possible now: a linked stat logger cannot be replaced.
    if matches!(status, StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY) {
        return Outcome::Accepted;
    }
    Outcome::Refused
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get("content-type").and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}
