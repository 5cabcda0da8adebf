//! The requests of `data/vllm_parity.json` through the real router: each has the status that vLLM 0.32 gave the same
//! request, or another one and the reason for it. The file says how vLLM was asked.

use crate::common::{Answer, Options, TestServer, fixture};
use axum::body::Body;
use axum::http::Request;
use halyard_server::openai::policy::ServingDefaults;
use serde::Deserialize;
use serde_json::{Value, json};

/// Requests that the first comparison had; the list only grows.
const AT_LEAST: usize = 179;

#[derive(Deserialize)]
struct Table {
    vllm: String,
    requests: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    method: String,
    route: String,
    #[serde(default)]
    body: Option<Value>,
    /// vLLM's status.
    vllm: u16,
    /// This server's, where it is another one.
    #[serde(default)]
    halyard: Option<u16>,
    /// Why it is.
    #[serde(default)]
    reason: Option<String>,
}

fn table() -> Table {
    let path = fixture("../../../server/tests/data/vllm_parity.json");
    serde_json::from_slice(&std::fs::read(path).expect("the table is committed")).expect("the table parses")
}

async fn ask(server: &TestServer, case: &Case) -> Answer {
    let request = Request::builder().method(case.method.as_str()).uri(&case.route);
    let (request, body) = match &case.body {
        Some(body) => (
            request.header("content-type", "application/json"),
            Body::from(body.to_string()),
        ),
        None => (request, Body::empty()),
    };
    server.send(request.body(body).expect("a request")).await
}

#[tokio::test]
async fn each_request_is_answered_as_vllm_answers_it_or_with_a_reason() {
    let table = table();
    assert!(table.vllm.starts_with("0.32"), "{}", table.vllm);
    assert!(table.requests.len() >= AT_LEAST, "{} requests", table.requests.len());
    let server = TestServer::with(Options {
        serving: ServingDefaults {
            tokenizer_info: true,
            ..ServingDefaults::default()
        },
        // As vLLM was started.
        parsers: (Some("hermes"), None),
        ..Options::default()
    });
    let mut wrong = Vec::new();
    let mut names = std::collections::HashSet::new();
    for case in &table.requests {
        assert!(names.insert(&case.name), "{} stands twice", case.name);
        let differs = case.halyard.is_some_and(|status| status != case.vllm);
        let reason = case.reason.as_deref().unwrap_or_default();
        assert_eq!(
            differs,
            !reason.is_empty(),
            "{}: a reason belongs to a status that differs, and to no other",
            case.name
        );
        let expected = case.halyard.unwrap_or(case.vllm);
        let answer = ask(&server, case).await;
        if answer.status != expected {
            let text: String = answer.text.chars().take(200).collect();
            wrong.push(format!(
                "{}: {} in place of {expected}: {text}",
                case.name, answer.status
            ));
        }
        if answer.status.is_client_error() && answer.status != 405 {
            let error = answer.error(answer.status.as_u16());
            let message = error["message"].as_str().expect("text");
            assert!((10..700).contains(&message.len()), "{}: {message}", case.name);
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        names.len(),
        wrong.join("\n")
    );
    server
        .post("/v1/completions", &json!({"prompt": "The river", "max_tokens": 2}))
        .await
        .ok();
}
