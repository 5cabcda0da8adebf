//! Every kind of bad input that HTTP can carry: the answer has the right status, names the field, and says value and
//! limit; afterwards the server still serves.

use crate::common::{Answer, Options, TestServer};
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_bad_field_of_a_completion_is_named_with_value_and_limit() {
    let server = TestServer::new();
    let long: Vec<u32> = vec![5; 300];
    let many: Vec<&str> = vec!["x"; 257];
    let stops: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let cases: Vec<(Value, &str, &[&str])> = vec![
        (json!({"prompt": ""}), "prompt", &["empty"]),
        (json!({"prompt": []}), "prompt", &["empty"]),
        (json!({"prompt": ["a", ""]}), "prompt", &["prompt[1]", "empty"]),
        (json!({"prompt": [[]]}), "prompt", &["empty"]),
        (json!({}), "prompt", &["missing"]),
        (json!({"prompt": 5}), "prompt", &["string"]),
        (json!({"prompt": ["a", 5]}), "prompt", &["string"]),
        (json!({"prompt": [1, "a"]}), "prompt", &["string"]),
        (json!({"prompt": [1, 2.5]}), "prompt", &["string"]),
        (
            json!({"prompt": long}),
            "prompt",
            &["This model's maximum context length is 256 tokens", "300"],
        ),
        (json!({"prompt": many}), "prompt", &["257", "256"]),
        (json!({"prompt": [448]}), "prompt", &["448", "447"]),
        (json!({"prompt": [-1]}), "prompt", &["-1", "447"]),
        (
            json!({"prompt": [1, 18_446_744_073_709_551_615u64]}),
            "prompt",
            &["prompt[1]"],
        ),
        (json!({"prompt": "a", "temperature": -1}), "temperature", &["-1", "0"]),
        (json!({"prompt": "a", "temperature": "hot"}), "temperature", &["hot"]),
        (json!({"prompt": "a", "top_p": 2}), "top_p", &["2", "at most 1"]),
        (json!({"prompt": "a", "top_p": 0}), "top_p", &["above 0"]),
        (json!({"prompt": "a", "top_k": -2}), "top_k", &["-2"]),
        (json!({"prompt": "a", "min_p": 1.5}), "min_p", &["1.5"]),
        (json!({"prompt": "a", "n": 0}), "n", &["0", "128"]),
        (json!({"prompt": "a", "n": 1_000_000_000}), "n", &["1000000000", "128"]),
        (json!({"prompt": vec!["x"; 9], "n": 128}), "n", &["1152", "64"]),
        (json!({"prompt": "a", "n": 1.5}), "n", &["1.5"]),
        (
            json!({"prompt": "a", "logprobs": 1_000_000}),
            "logprobs",
            &["1000000", "20"],
        ),
        (
            json!({"prompt": "a", "prompt_logprobs": 21}),
            "prompt_logprobs",
            &["21", "20"],
        ),
        (
            json!({"prompt": "a", "prompt_logprobs": 1, "stream": true}),
            "prompt_logprobs",
            &["stream"],
        ),
        (json!({"prompt": "a", "max_tokens": 0}), "max_tokens", &["0"]),
        (json!({"prompt": "a", "max_tokens": -5}), "max_tokens", &["-5"]),
        (
            json!({"prompt": "a", "max_tokens": 1000}),
            "prompt",
            &[
                "This model's maximum context length is 256 tokens",
                "1000 in the completion",
            ],
        ),
        (
            json!({"prompt": "a", "min_tokens": 9, "max_tokens": 4}),
            "min_tokens",
            &["9"],
        ),
        (
            json!({"prompt": "a", "stop": "x".repeat(500_000)}),
            "stop",
            &["500000", "1024"],
        ),
        (json!({"prompt": "a", "stop": stops}), "stop", &["17", "16"]),
        (
            json!({"prompt": "a", "stop": ["ok", ""]}),
            "stop",
            &["stop[1]", "empty"],
        ),
        (json!({"prompt": "a", "stop": 7}), "stop", &["string"]),
        (
            json!({"prompt": "a", "stop_token_ids": [448]}),
            "stop_token_ids",
            &["448"],
        ),
        (
            json!({"prompt": "a", "repetition_penalty": 0}),
            "repetition_penalty",
            &["0.01", "100"],
        ),
        (
            json!({"prompt": "a", "presence_penalty": 3}),
            "presence_penalty",
            &["3", "2"],
        ),
        (json!({"prompt": "a", "logit_bias": {"448": 1}}), "logit_bias", &["448"]),
        (json!({"prompt": "a", "logit_bias": {"4": 101}}), "logit_bias", &["101"]),
        (
            json!({"prompt": "a", "allowed_token_ids": []}),
            "allowed_token_ids",
            &["empty"],
        ),
        (json!({"prompt": "a", "bad_words": [" "]}), "bad_words", &["empty"]),
        (json!({"prompt": "a", "model": 5}), "model", &["string"]),
        (json!({"prompt": "a", "priority": "high"}), "priority", &["high"]),
        (
            json!({"prompt": "a", "priority": 2}),
            "priority",
            &["2", "--scheduling-policy"],
        ),
        (json!({"prompt": "a", "cache_salt": ""}), "cache_salt", &["empty"]),
        (json!({"prompt": "a", "stream": "perhaps"}), "stream", &["perhaps"]),
        (
            json!({"prompt": "a", "stream": true, "stream_options": {"include_usage": 2}}),
            "stream_options.include_usage",
            &["2"],
        ),
        (
            json!({"prompt": "a", "stream": true, "stream_options": []}),
            "stream_options",
            &["an object"],
        ),
        (
            json!({"prompt": "a", "stream_options": {"include_usage": true}}),
            "stream_options",
            &["stream"],
        ),
        (json!({"prompt": "a", "temperature": 3}), "temperature", &["3", "2"]),
        (json!({"prompt": "a", "best_of": ""}), "best_of", &["integer"]),
        (json!({"prompt": "a", "modalities": "audio"}), "modalities", &["list"]),
        (json!({"prompt": "a", "suffix": ""}), "suffix", &["not supported yet"]),
        (
            json!({"prompt": "a", "truncate_prompt_tokens": 257}),
            "truncate_prompt_tokens",
            &["257", "256", "-1"],
        ),
        (
            json!({"prompt": "a", "truncate_prompt_tokens": 0}),
            "truncate_prompt_tokens",
            &["0", "1"],
        ),
        (
            json!({"prompt": "a", "truncate_prompt_tokens": 5, "truncation_side": "middle"}),
            "truncation_side",
            &["middle", "left"],
        ),
        (
            json!({"prompt": "a", "thinking_token_budget": 5}),
            "thinking_token_budget",
            &["--logits-processor thinking-budget"],
        ),
        (json!({"prompt": "a", "request_id": "a b"}), "request_id", &["128"]),
        (json!({"prompt": "a", "user": 5}), "user", &["5"]),
        (json!({"prompt": "a", "suffix": "b"}), "suffix", &["not supported yet"]),
        (
            json!({"prompt": "a", "guided_regex": "a+"}),
            "guided_regex",
            &["not supported yet"],
        ),
    ];
    for (body, param, words) in cases {
        let shown: String = body.to_string().chars().take(120).collect();
        let answer = server.post(COMPLETIONS, &body).await;
        let error = answer.error(400);
        assert_eq!(error["param"], param, "{shown}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{shown}");
        let message = error["message"].as_str().expect("text");
        for word in words {
            assert!(message.contains(word), "{shown}: `{word}` is not in `{message}`");
        }
        assert!(message.len() < 600, "{shown}: a message must not echo its input");
    }
    server
        .post(COMPLETIONS, &json!({"prompt": "The river", "max_tokens": 2}))
        .await
        .ok();
    assert_eq!(server.get("/load").await.ok()["server_load"], 0);
}

#[tokio::test]
async fn a_bad_field_of_a_chat_is_named() {
    let server = TestServer::new();
    let hi = json!([{"role": "user", "content": "hi"}]);
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let cases: Vec<(Value, &str)> = vec![
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": [5]}), "messages"),
        (json!({"messages": [{"content": "no role"}]}), "messages"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "messages",
        ),
        (json!({"messages": hi, "top_logprobs": 2}), "top_logprobs"),
        (
            json!({"messages": hi, "logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (json!({"messages": hi, "tools": tool}), "tool_choice"),
        (
            json!({"messages": hi, "tools": tool, "tool_choice": "required",
                "structured_outputs": {"regex": "a"}}),
            "structured_outputs.regex",
        ),
        (
            json!({"messages": hi, "tools": tool, "parallel_tool_calls": "both"}),
            "parallel_tool_calls",
        ),
        (
            json!({"messages": hi, "include_reasoning": [true]}),
            "include_reasoning",
        ),
        (json!({"messages": hi, "tools": []}), "tools"),
        (json!({"messages": hi, "tool_choice": "required"}), "tool_choice"),
        (json!({"messages": hi, "reasoning_effort": "huge"}), "reasoning_effort"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}),
            "messages",
        ),
        (
            json!({"messages": hi, "response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.name",
        ),
        (json!({"messages": hi, "max_completion_tokens": 5000}), "messages"),
        (
            json!({"messages": hi, "add_generation_prompt": true, "continue_final_message": true}),
            "continue_final_message",
        ),
        (
            json!({"messages": hi, "chat_template": "{{ messages }}"}),
            "chat_template",
        ),
    ];
    for (body, param) in cases {
        let error = server.post(CHAT, &body).await.error(400);
        assert_eq!(error["param"], param, "{body}: {error}");
    }
    let missing = server.post(CHAT, &json!({})).await.error(400);
    assert!(
        missing["message"]
            .as_str()
            .is_some_and(|text| text.contains("messages")),
        "{missing}"
    );
}

#[tokio::test]
async fn bodies_that_are_no_json_object_are_refused() {
    let server = TestServer::with(Options {
        body_bytes: Some(4096),
        ..Options::default()
    });
    for (body, status, word) in [
        (b"".to_vec(), 400, "empty"),
        (b"{\"prompt\": ".to_vec(), 400, "JSON"),
        (b"{\"prompt\": \"\xff\xfe\"}".to_vec(), 400, "JSON"),
        (b"[]".to_vec(), 400, "object"),
        (b"{\"prompt\": \"a\", \"temperature\": 1e999}".to_vec(), 400, "JSON"),
        (
            format!("{}1{}", "[".repeat(2000), "]".repeat(2000)).into_bytes(),
            400,
            "JSON",
        ),
        (vec![b' '; 5000], 413, "4096"),
    ] {
        let error = server.post_bytes(COMPLETIONS, body).await.error(status);
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(word)),
            "{word}: {error}"
        );
    }
    let form = Request::post(COMPLETIONS).header("content-type", "application/x-www-form-urlencoded");
    let error = server
        .send(form.body(Body::from("{}")).expect("a request"))
        .await
        .error(415);
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("Content-Type: application/json")),
        "{error}"
    );
}

#[tokio::test]
async fn unknown_models_routes_and_methods_have_the_error_object() {
    let server = TestServer::new();
    let error = server
        .post(COMPLETIONS, &json!({"model": "gpt-9", "prompt": "a"}))
        .await
        .error(404);
    assert_eq!(error["code"], "model_not_found");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("gpt-9") && message.contains("tiny"), "{message}");
    assert_eq!(
        server.get("/v1/models/gpt-9").await.error(404)["code"],
        "model_not_found"
    );
    assert_eq!(server.get("/v1/nothing").await.error(404)["code"], "unknown_route");
    assert_eq!(server.get(COMPLETIONS).await.error(405)["code"], "method_not_allowed");
}

#[tokio::test]
async fn keys_guard_every_route_but_the_probes() {
    let server = TestServer::with(Options {
        api_keys: vec!["sesame", "other"],
        ..Options::default()
    });
    for route in [
        "/v1/models",
        "/v1/completions",
        "/metrics",
        "/version",
        "/load",
        "/tokenize",
        "/no/such/route",
        "/health/",
    ] {
        let error = server.get(route).await.error(401);
        assert_eq!(error["code"], "invalid_api_key", "{route}");
    }
    for route in ["/health", "/ping"] {
        assert_eq!(server.get(route).await.status, 200, "{route}");
    }
    for (key, status) in [("Bearer sesame", 200), ("Bearer other", 200), ("Bearer sesam", 401)] {
        let request = Request::get("/v1/models")
            .header("authorization", key)
            .body(Body::empty())
            .expect("a request");
        assert_eq!(server.send(request).await.status, status, "{key}");
    }
}

#[tokio::test]
async fn more_than_the_queue_ever_holds_is_400() {
    let server = TestServer::with(Options {
        max_waiting: Some(2),
        ..Options::default()
    });
    let body = json!({"prompt": [[1], [2], [3]], "max_tokens": 1});
    let error = server.post(COMPLETIONS, &body).await.error(400);
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("3 samples; at most 2"), "{message}");
    let fits = json!({"prompt": [[1], [2]], "max_tokens": 1});
    assert_eq!(server.post(COMPLETIONS, &fits).await.status, 200);
}

#[tokio::test]
async fn a_full_queue_is_503_with_retry_after() {
    let server = TestServer::with(Options {
        max_waiting: Some(2),
        ..Options::default()
    });
    // Streams that are held open fill the rows, then the queue.
    let body = json!({"prompt": "a", "n": 2, "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut open = Vec::new();
    let answer = loop {
        let request = Request::post(COMPLETIONS)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .expect("a request");
        let response = server
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("routers do not fail");
        if response.status() != 200 {
            break Answer::of(response).await;
        }
        open.push(response);
        assert!(open.len() < 1000, "the queue of 2 never filled");
    };
    assert_eq!(answer.error(503)["code"], "queue_full");
    assert!(
        answer.headers["retry-after"]
            .to_str()
            .expect("text")
            .parse::<u32>()
            .expect("seconds")
            >= 1
    );
}

#[tokio::test]
async fn after_shutdown_requests_are_refused_with_a_reason() {
    let server = TestServer::new();
    let engine = server.state.engine.clone();
    tokio::task::spawn_blocking(move || engine.shutdown(std::time::Duration::ZERO))
        .await
        .expect("ends");
    let answer = server.post(COMPLETIONS, &json!({"prompt": "a"})).await;
    assert!([500, 503].contains(&answer.status.as_u16()), "{}", answer.text);
    assert!(
        answer.json()["error"]["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
}
