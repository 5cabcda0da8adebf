//! A device that is lost while requests run: each of them gets an error with the reason, and so do later requests.

use crate::common::{Answer, Options, TestServer, until, until_waiting};
use halyard_delayed::{DelayedPlatform, Fault};
use halyard_platform_api::Platform;
use halyard_server::http::response_store::StoreLimits;
use serde_json::{Value, json};

const WHY: &str = "the device was lost, as the test planned";

/// A server whose device fails at the given submit.
fn server(submit: u64) -> TestServer {
    let platform = DelayedPlatform::new(1, 5).with_fault(Fault::LostAt(submit));
    TestServer::with(Options {
        device: Some(platform.open(0).expect("opens")),
        dev_mode: true,
        ..Options::default()
    })
}

#[tokio::test]
async fn requests_in_flight_and_later_ones_are_told_why_and_health_says_it() {
    let server = server(40);
    assert_eq!(server.get("/health").await.status, 200);
    let body = |prompt| json!({"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": true});
    let (one, two, three) = (body("The river"), body("a"), body("Once upon a time"));
    // None comes after the device was lost.
    server.post_empty("/pause?mode=keep&clear_cache=false").await.ok();
    let all_wait = async {
        until_waiting(&server, 3).await;
        server.post_empty("/resume").await.ok()
    };
    let answers = tokio::join!(
        server.post("/v1/completions", &one),
        server.post("/v1/completions", &two),
        server.post("/v1/completions", &three),
        all_wait
    );
    for answer in [answers.0, answers.1, answers.2] {
        let error = answer.error(500);
        assert_eq!(error["code"], "engine_error");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(WHY)),
            "{error}"
        );
    }
    for route in ["/health", "/ping"] {
        let error = server.get(route).await.error(503);
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(WHY)),
            "{error}"
        );
    }
    let error = server.post("/v1/completions", &body("late")).await.error(503);
    assert_eq!(error["code"], "engine_dead");
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains(WHY)),
        "{error}"
    );
    assert_eq!(
        server.get("/v1/models").await.status,
        200,
        "what needs no device goes on"
    );
}

#[tokio::test]
async fn a_stream_ends_with_the_reason() {
    let server = server(40);
    let body = json!({"prompt": "The river", "max_tokens": 200, "temperature": 0, "ignore_eos": true, "stream": true});
    let answer = server.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "the stream had begun");
    assert!(answer.text.contains(WHY), "{}", answer.text);
}

/// The data of a stream's last events, and whether an answer had begun before them.
fn end_of(answer: &Answer, begun: &str, num_last: usize) -> Vec<Value> {
    assert_eq!(answer.status, 200, "the stream had begun: {}", answer.text);
    assert!(answer.text.contains(begun), "{}", answer.text);
    let data: Vec<&str> = answer
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    let last = data[data.len() - num_last..].iter();
    last.map(|data| serde_json::from_str(data).unwrap_or(Value::from(*data)))
        .collect()
}

fn tells_why(error: &Value) -> bool {
    error["message"].as_str().is_some_and(|text| text.contains(WHY))
}

#[tokio::test]
async fn each_api_tells_the_reason_in_its_own_form() {
    let messages = json!([{"role": "user", "content": "Once upon a time"}]);
    let fields = json!({"messages": messages, "max_tokens": 200, "temperature": 0, "stream": true});

    let mut chat = fields.clone();
    chat["ignore_eos"] = json!(true);
    let answer = server(40).post("/v1/chat/completions", &chat).await;
    let last = end_of(&answer, "\"content\":\"", 2);
    assert!(tells_why(&last[0]["error"]), "{}", answer.text);
    assert_eq!(
        (&last[0]["error"]["code"], &last[1]),
        (&json!("engine_error"), &json!("[DONE]"))
    );

    let answer = server(40).post("/v1/messages", &fields).await;
    let last = end_of(&answer, "event: content_block_delta", 1);
    assert!(answer.text.contains("\n\nevent: error\ndata: "), "{}", answer.text);
    assert!(tells_why(&last[0]["error"]), "{}", answer.text);
    assert_eq!(
        (&last[0]["type"], &last[0]["error"]["type"]),
        (&json!("error"), &json!("api_error"))
    );
    assert!(!answer.text.contains("message_stop"), "it is not over: {}", answer.text);

    let body = json!({"input": "Once upon a time", "max_output_tokens": 200, "temperature": 0, "stream": true,
        "ignore_eos": true});
    let answer = server(40).post("/v1/responses", &body).await;
    let last = end_of(&answer, "event: response.output_text.delta", 1);
    let response = &last[0]["response"];
    assert!(tells_why(&response["error"]), "{}", answer.text);
    assert_eq!(
        (&last[0]["type"], &response["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    let events = answer.text.matches("\ndata: ").count();
    assert_eq!(last[0]["sequence_number"], events - 1, "it has its number");
}

#[tokio::test]
async fn a_response_in_the_background_fails_with_the_reason() {
    for stream in [false, true] {
        let platform = DelayedPlatform::new(1, 5).with_fault(Fault::LostAt(40));
        let server = TestServer::with(Options {
            device: Some(platform.open(0).expect("opens")),
            responses: Some(StoreLimits::default()),
            ..Options::default()
        });
        let body = json!({"input": "Once upon a time", "max_output_tokens": 200, "temperature": 0, "stream": stream,
            "ignore_eos": true, "background": true});
        let answer = server.post("/v1/responses", &body).await;
        let id = match stream {
            true => end_of(&answer, "event: response.output_text.delta", 1)[0]["response"]["id"].clone(),
            false => answer.ok()["id"].clone(),
        };
        let path = format!("/v1/responses/{}", id.as_str().expect("an id"));
        let is_over = |response: &Value| !matches!(response["status"].as_str(), Some("queued" | "in_progress"));
        let response = until("over", async || server.get(&path).await.ok(), is_over).await;
        assert_eq!(response["status"], "failed", "{response}");
        assert!(tells_why(&response["error"]), "{response}");
    }
}

#[test]
fn a_device_that_is_lost_while_loading_refuses_the_start() {
    let lost = std::panic::catch_unwind(|| server(1));
    let why = lost.err().and_then(|panic| panic.downcast::<String>().ok());
    assert!(why.is_some_and(|why| why.contains(WHY)), "loading names the reason");
}
