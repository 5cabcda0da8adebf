//! Answers that take long: a slow device, and a server in development mode with thousands of tokens to go on it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use halyard_delayed::DelayedPlatform;
use halyard_platform_api::{Device, Platform};
use halyard_server::openai::policy::ServingDefaults;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::common::{Answer, Options, TestServer, fixture};

/// A device whose steps take about 50 ms: a request of some hundred tokens outlives any stall of a test. Of depth 0, as
/// a row that is counted has a token then.
pub fn slow_device() -> Arc<dyn Device> {
    let platform = DelayedPlatform::new(0, 5).with_half_latency_us(50_000);
    platform.open(0).expect("opens")
}

/// Tokens of a context.
pub const LONGEST: u32 = 4096;

/// The server; `name` is the test's own.
pub fn server(name: &str) -> Arc<TestServer> {
    server_with(name, ServingDefaults::default())
}

/// The server with an operator's settings for requests.
pub fn server_with(name: &str, serving: ServingDefaults) -> Arc<TestServer> {
    let folder = std::env::temp_dir().join(format!("halyard-long-answers-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("made");
    for file in std::fs::read_dir(fixture("llama")).expect("the fixture") {
        let file = file.expect("a file").path();
        std::fs::copy(&file, folder.join(file.file_name().expect("a name"))).expect("copied");
    }
    let config = folder.join("config.json");
    let text = std::fs::read_to_string(&config).expect("text");
    let longer = text.replace("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 65536");
    std::fs::write(&config, longer).expect("writes");
    let server = TestServer::with(Options {
        dev_mode: true,
        sleep_mode: true,
        device: Some(slow_device()),
        model: Some(folder.clone()),
        max_model_len: Some(LONGEST),
        serving,
        ..Options::default()
    });
    std::fs::remove_dir_all(&folder).expect("was there");
    Arc::new(server)
}

/// Asks for as much as the context holds.
pub fn ask(server: &Arc<TestServer>, route: &'static str, id: &'static str, stream: bool) -> JoinHandle<Answer> {
    let server = Arc::clone(server);
    tokio::spawn(async move {
        let mut body = json!({"max_tokens": LONGEST - 96, "ignore_eos": true, "stream": stream});
        match route {
            "/v1/completions" => body["prompt"] = json!([5]),
            _ => body["messages"] = json!([{"role": "user", "content": "x"}]),
        }
        let request = Request::post(route)
            .header("content-type", "application/json")
            .header("x-request-id", id);
        server
            .send(request.body(Body::from(body.to_string())).expect("a request"))
            .await
    })
}

/// An answer's first finish reason.
pub fn finish(answer: &Value) -> &str {
    answer["choices"][0]["finish_reason"].as_str().unwrap_or("none")
}
