//! Good requests through the real router and a tiny real model: shapes, streams, samples, log-probabilities, usage, and
//! the greedy tokens that Hugging Face gives.

use crate::common::{Answer, Options, TestServer, fixture, until};
use crate::long_answers::slow_device;
use crate::structured::{copied, edit};
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn golden() -> Value {
    let text = std::fs::read_to_string(fixture("llama").join("goldens.json")).expect("goldens");
    serde_json::from_str(&text).expect("JSON")
}

/// Text of one choice of a stream.
fn text_of(events: &[Value], index: u64) -> String {
    let choices = events
        .iter()
        .flat_map(|event| event["choices"].as_array().expect("a list"));
    let own = choices.filter(|choice| choice["index"] == index);
    own.map(|choice| {
        choice["delta"]["content"]
            .as_str()
            .or(choice["text"].as_str())
            .unwrap_or_default()
    })
    .collect()
}

#[tokio::test]
async fn greedy_tokens_are_those_of_hugging_face() {
    let server = TestServer::new();
    let golden = golden();
    let cases = golden["cases"].as_array().expect("cases");
    let mut compared = 0;
    for case in cases.iter().filter(|case| case["prompt_text"].is_string()) {
        let (route, body) = match &case["messages"] {
            Value::Null => (COMPLETIONS, json!({"prompt": case["prompt_text"]})),
            messages => (CHAT, json!({"messages": messages})),
        };
        let mut body = body;
        for (key, value) in [
            ("temperature", json!(0)),
            ("max_tokens", json!(24)),
            ("return_token_ids", json!(true)),
        ] {
            body[key] = value;
        }
        let answer = server.post(route, &body).await.ok();
        let prompt = if route == CHAT {
            &answer["prompt_token_ids"]
        } else {
            &answer["choices"][0]["prompt_token_ids"]
        };
        assert_eq!(*prompt, case["prompt_ids"], "{}", case["name"]);
        assert_eq!(
            answer["choices"][0]["token_ids"], case["hf_fp32"]["ids"],
            "{}",
            case["name"]
        );
        compared += 1;
    }
    assert!(compared >= 3, "{compared} cases");
}

#[tokio::test]
async fn a_completion_has_its_fields() {
    let server = TestServer::new();
    let body =
        json!({"model": "also-tiny", "prompt": "The river", "max_tokens": 4, "temperature": 0, "user": "ignored"});
    let answer = server.post(COMPLETIONS, &body).await;
    let value = answer.ok();
    assert_eq!(value["object"], "text_completion");
    assert_eq!(value["model"], "also-tiny");
    assert!(value["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    assert_eq!(value["choices"][0]["finish_reason"], "length");
    assert_eq!(value["usage"]["prompt_tokens"], 2);
    assert_eq!(value["usage"]["completion_tokens"], 4);
    assert_eq!(value["usage"]["total_tokens"], 6);
}

#[tokio::test]
async fn request_ids_come_back() {
    let server = TestServer::new();
    let request = Request::post(COMPLETIONS)
        .header("content-type", "application/json")
        .header("x-request-id", "abc-1");
    let answer = server
        .send(
            request
                .body(Body::from(r#"{"prompt": "a", "max_tokens": 1}"#))
                .expect("a request"),
        )
        .await;
    assert_eq!(answer.headers["x-request-id"], "abc-1");
    assert_eq!(answer.ok()["id"], "cmpl-abc-1");
    assert_eq!(server.get("/health").await.headers["x-request-id"].len(), 32);
}

#[tokio::test]
async fn a_stream_says_the_same_as_a_whole_answer() {
    let server = TestServer::new();
    for (route, input) in [
        (COMPLETIONS, json!({"prompt": "The river"})),
        (CHAT, json!({"messages": [{"role": "user", "content": "The river"}]})),
    ] {
        let mut body = input;
        for (key, value) in [
            ("max_tokens", json!(12)),
            ("temperature", json!(0.9)),
            ("seed", json!(7)),
            ("n", json!(2)),
        ] {
            body[key] = value;
        }
        let whole = server.post(route, &body).await.ok();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let events = server.post(route, &body).await.events();
        for index in 0..2 {
            let choice = &whole["choices"][index as usize];
            let text = choice["message"]["content"]
                .as_str()
                .or(choice["text"].as_str())
                .expect("text");
            assert_eq!(text_of(&events, index), text, "{route} sample {index}");
        }
        assert_ne!(text_of(&events, 0), text_of(&events, 1), "samples differ");
        let (usage, pieces) = events.split_last().expect("events");
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
        assert!(pieces.iter().all(|piece| piece["usage"].is_null()));
        let ends = pieces
            .iter()
            .filter(|piece| piece["choices"][0]["finish_reason"].is_string());
        assert_eq!(ends.count(), 2, "each sample ends once");
    }
}

#[tokio::test]
async fn a_chat_stream_opens_with_the_role() {
    let server = TestServer::new();
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": true});
    let events = server.post(CHAT, &body).await.events();
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
}

#[tokio::test]
async fn several_prompts_answer_in_order() {
    let server = TestServer::new();
    let alone = |answer: &Value| answer["choices"][0]["text"].clone();
    let first = server
        .post(
            COMPLETIONS,
            &json!({"prompt": "The river", "temperature": 0, "max_tokens": 5}),
        )
        .await
        .ok();
    let second = server
        .post(
            COMPLETIONS,
            &json!({"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 5}),
        )
        .await
        .ok();
    let ids = server.post("/tokenize", &json!({"prompt": "The river"})).await.ok()["tokens"].clone();
    let both = json!({"prompt": [ids, [5, 6, 7]], "temperature": 0, "max_tokens": 5, "n": 2});
    let choices = server.post(COMPLETIONS, &both).await.ok()["choices"].clone();
    let texts: Vec<&Value> = choices
        .as_array()
        .expect("a list")
        .iter()
        .map(|choice| &choice["text"])
        .collect();
    assert_eq!(
        texts,
        [&alone(&first), &alone(&first), &alone(&second), &alone(&second)]
    );
    assert_eq!(choices[3]["index"], 3);
}

#[tokio::test]
async fn log_probabilities_have_both_shapes() {
    let server = TestServer::new();
    let body = json!({"prompt": "The river", "temperature": 0, "max_tokens": 3, "logprobs": 2, "echo": true});
    let choice = server.post(COMPLETIONS, &body).await.ok()["choices"][0].clone();
    let logprobs = &choice["logprobs"];
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            logprobs[key].as_array().map(Vec::len),
            Some(5),
            "{key}: two of the prompt, three new ones"
        );
    }
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(
        logprobs["text_offset"][2],
        "The river".len(),
        "the answer's text begins after the prompt's"
    );
    assert!(
        logprobs["token_logprobs"][0].is_null(),
        "nothing comes before the first token"
    );
    let golden = golden();
    let expected = golden["cases"][0]["hf_fp32"]["logprobs"][0].as_f64().expect("a number");
    let found = logprobs["token_logprobs"][2].as_f64().expect("a number");
    assert!(
        (found - expected).abs() < 1e-3,
        "{found} against Hugging Face's {expected}"
    );
    assert!(
        choice["text"]
            .as_str()
            .is_some_and(|text| text.starts_with("The river"))
    );

    let body = json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 2,
        "logprobs": true, "top_logprobs": 3});
    let entry = server.post(CHAT, &body).await.ok()["choices"][0]["logprobs"]["content"][0].clone();
    assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(3));
    assert_eq!(
        entry["top_logprobs"][0]["token"], entry["token"],
        "greedy takes the first"
    );
    assert!(entry["bytes"].is_array());
}

#[tokio::test]
async fn prompt_log_probabilities_have_the_shape_of_vllm() {
    let server = TestServer::new();
    let body = json!({"prompt": "The river", "max_tokens": 1, "prompt_logprobs": 1});
    let entries = server.post(COMPLETIONS, &body).await.ok()["choices"][0]["prompt_logprobs"].clone();
    assert!(entries[0].is_null());
    let chosen = &entries[1]["368"];
    assert!(chosen["rank"].as_u64().is_some_and(|rank| rank >= 1), "{entries}");
    assert!(chosen["logprob"].as_f64().is_some_and(|logprob| logprob < 0.0));
}

#[tokio::test]
async fn a_prompt_can_be_scored_alone() {
    let server = TestServer::new();
    let body = json!({"prompt": "The river", "max_tokens": 0, "echo": true, "logprobs": 1});
    let choice = server.post(COMPLETIONS, &body).await.ok()["choices"][0].clone();
    assert_eq!(choice["text"], "The river");
    assert_eq!(choice["logprobs"]["tokens"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it() {
    let server = TestServer::new();
    let body = |stop: Value| json!({"prompt": "The river", "temperature": 0, "max_tokens": 24, "stop": stop});
    let free = server.post(COMPLETIONS, &body(Value::Null)).await.ok()["choices"][0]["text"]
        .as_str()
        .expect("text")
        .to_owned();
    let stop = "was";
    let position = free.find(stop).expect("the golden text holds it");
    let choice = server.post(COMPLETIONS, &body(json!([stop]))).await.ok()["choices"][0].clone();
    assert_eq!(choice["text"], free[..position]);
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["stop_reason"], stop);
}

#[tokio::test]
async fn tokenize_and_detokenize_are_inverse() {
    let server = TestServer::new();
    let tokens = server
        .post("/tokenize", &json!({"prompt": "The river", "return_token_strs": true}))
        .await
        .ok();
    assert_eq!(tokens["tokens"], json!([297, 368]));
    assert_eq!(tokens["count"], 2);
    assert_eq!(tokens["max_model_len"], 256);
    assert_eq!(tokens["token_strs"].as_array().map(Vec::len), Some(2));
    let text = server
        .post("/detokenize", &json!({"tokens": tokens["tokens"]}))
        .await
        .ok();
    assert_eq!(text["prompt"], "The river");
    server.post("/detokenize", &json!({"tokens": [448]})).await.error(400);
    server.post("/tokenize", &json!({})).await.error(400);
    let chat = server
        .post(
            "/tokenize",
            &json!({"messages": [{"role": "user", "content": "The river"}]}),
        )
        .await
        .ok();
    assert!(
        chat["count"].as_u64().is_some_and(|count| count > 2),
        "the template adds its words"
    );
}

#[tokio::test]
async fn the_small_routes_answer() {
    let server = TestServer::new();
    assert_eq!(server.get("/health").await.text, "");
    assert_eq!(server.post("/ping", &json!({})).await.status, 200);
    assert!(server.get("/version").await.ok()["version"].is_string());
    let models = server.get("/v1/models").await.ok();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["max_model_len"], 256);
    assert_eq!(server.get("/v1/models/also-tiny").await.ok()["id"], "also-tiny");
}

/// The value of a metric; none where a scrape did not wait for it.
fn metric(answer: &Answer, start: &str) -> Option<f64> {
    let line = answer.text.lines().find(|line| line.starts_with(start))?;
    let value = line.rsplit(' ').next().expect("a value");
    Some(value.parse().expect("a number"))
}

/// The metrics, once these have their values.
async fn metrics_when(server: &TestServer, values: &[(&str, f64)]) -> Answer {
    let settled = |answer: &Answer| values.iter().all(|(name, value)| metric(answer, name) == Some(*value));
    until(&format!("{values:?}"), async || server.get("/metrics").await, settled).await
}

#[tokio::test]
async fn metrics_count_what_was_served() {
    let server = TestServer::new();
    server
        .post(
            COMPLETIONS,
            &json!({"prompt": "The river", "max_tokens": 5, "ignore_eos": true}),
        )
        .await
        .ok();
    let expected = [
        ("vllm:generation_tokens_total", 5.0),
        ("vllm:e2e_request_latency_seconds_count", 1.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("vllm:inter_token_latency_seconds_count", 4.0),
        ("vllm:request_prompt_tokens_sum", 2.0),
        ("vllm:num_requests_running", 0.0),
    ];
    let metrics = metrics_when(&server, &expected).await;
    assert!(
        metrics.headers["content-type"]
            .to_str()
            .expect("text")
            .starts_with("text/plain; version=0.0.4")
    );
}

#[tokio::test]
async fn what_is_ready_of_several_samples_leaves_in_one_write() {
    let server = TestServer::new();
    let body = json!({"prompt": "The river", "max_tokens": 8, "ignore_eos": true, "stream": true, "n": 4});
    let request = Request::post(COMPLETIONS)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .expect("a request");
    let response = server.router.clone().oneshot(request).await;
    let mut stream = response.expect("routers do not fail").into_body();
    metrics_when(&server, &[("vllm:generation_tokens_total", 32.0)]).await;
    let (mut writes, mut events) = (0, 0);
    while let Some(frame) = stream.frame().await {
        let bytes = frame.expect("a piece").into_data().expect("data");
        writes += 1;
        events += String::from_utf8_lossy(&bytes).matches("data: ").count();
    }
    // 8 steps and the end.
    assert!(writes <= 9 && events > 2 * writes, "{events} events in {writes} writes");
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_request() {
    let server = TestServer::with(Options {
        device: Some(slow_device()),
        ..Options::default()
    });
    let body = json!({"prompt": "The river", "max_tokens": 250, "ignore_eos": true, "stream": true, "n": 4});
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
    let mut stream = response.into_body();
    stream.frame().await.expect("a first piece").expect("bytes");
    drop(stream);
    assert_eq!(server.get("/load").await.ok()["server_load"], 0);
    let aborted = |metrics: &Answer| {
        let own = |line: &&str| line.starts_with("vllm:request_success_total") && line.contains("\"abort\"");
        metrics.text.lines().find(own).is_some_and(|line| line.ends_with(" 4"))
    };
    let idle = |metrics: &Answer| aborted(metrics) && metric(metrics, "vllm:num_requests_running") == Some(0.0);
    until("four aborted", async || server.get("/metrics").await, idle).await;
}

#[tokio::test]
async fn text_that_the_tokenizer_cannot_give_is_an_error_and_not_empty() {
    let folder = copied("no-text", |folder| {
        edit(&folder.join("tokenizer.json"), |file| {
            // The tokenizer library panics over a text that is nothing else, such as the prompt's.
            let strip = json!({"type": "Strip", "content": "#", "start": 5, "stop": 5});
            file["decoder"] = json!({"type": "Sequence", "decoders": [file["decoder"], strip]});
        });
    });
    let server = TestServer::with(Options {
        model: Some(folder),
        ..Options::default()
    });
    let mut body = json!({"prompt": [5], "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    let error = server.post(COMPLETIONS, &body).await.error(500);
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("has no text")),
        "{error}"
    );
    body["stream"] = json!(true);
    let streamed = server.post(COMPLETIONS, &body).await;
    assert!(streamed.text.contains("has no text"), "{}", streamed.text);
}
