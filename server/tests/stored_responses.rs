//! Stored responses through the real router: conversations that go on, reading and deleting, the background, bounds,
//! and whom a response belongs to. The model's words are written down.

use std::time::Duration;

use crate::common::{Answer, Options, TestServer, fixture, until};
use crate::long_answers::slow_device;
use crate::scripted_server::Scripted;
use crate::scripted_server::scripted::ScriptedModel;
use axum::body::Body;
use axum::http::{Method, Request};
use halyard_server::http::response_store::StoreLimits;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

const ROUTE: &str = "/v1/responses";
const CALL: &str = "<think>\nRain?\n</think>\n\n\
                    <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";

fn scripted(options: Options, lines: &[(&str, &str)]) -> Scripted {
    let lines: Vec<(String, String)> = lines
        .iter()
        .map(|(after, say)| ((*after).to_owned(), format!("{say}<|im_end|>")))
        .collect();
    let lines: Vec<(&str, &str)> = lines
        .iter()
        .map(|(after, say)| (after.as_str(), say.as_str()))
        .collect();
    let model = ScriptedModel::with_template_of(&fixture(".."), "qwen3", &lines);
    Scripted::with(model, options)
}

fn stores() -> Options {
    Options {
        parsers: (Some("hermes"), Some("qwen3")),
        responses: Some(StoreLimits::default()),
        ..Options::default()
    }
}

/// A server on which a response that [`lasting`] asks for goes on until it is ended.
fn slow(limits: StoreLimits) -> TestServer {
    TestServer::with(Options {
        device: Some(slow_device()),
        responses: Some(limits),
        ..Options::default()
    })
}

fn lasting() -> Value {
    json!({"input": "Rain?", "background": true, "max_output_tokens": 200, "ignore_eos": true})
}

/// What a client asks with an API key.
struct Client<'a>(&'a TestServer, &'static str);

impl Client<'_> {
    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        let request = match self.1 {
            "" => request,
            key => request.header("authorization", format!("Bearer {key}")),
        };
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        self.0.send(request.body(body).expect("a request")).await
    }

    async fn ask(&self, body: Value) -> Answer {
        self.send(Method::POST, ROUTE, Some(body)).await
    }

    async fn get(&self, id: &str) -> Answer {
        self.send(Method::GET, &format!("{ROUTE}/{id}"), None).await
    }

    async fn cancel(&self, id: &str) -> Answer {
        self.send(Method::POST, &format!("{ROUTE}/{id}/cancel"), None).await
    }

    async fn delete(&self, id: &str) -> Answer {
        self.send(Method::DELETE, &format!("{ROUTE}/{id}"), None).await
    }

    /// A response that is over.
    async fn end(&self, id: &str) -> Value {
        let is_over = |response: &Value| !matches!(response["status"].as_str(), Some("queued" | "in_progress"));
        until("over", async || self.get(id).await.ok(), is_over).await
    }
}

fn id(response: &Value) -> String {
    response["id"].as_str().expect("an id").to_owned()
}

fn text(response: &Value) -> &str {
    let items = response["output"].as_array().expect("items").iter();
    let mut texts = items.filter(|item| item["type"] == "message");
    texts.next_back().expect("a message")["content"][0]["text"]
        .as_str()
        .expect("a text")
}

/// The events of a stream.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let data = answer.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

#[tokio::test]
async fn a_conversation_goes_on_from_its_last_response() {
    let tools = json!([{"type": "function", "name": "weather"}]);
    let lines = [
        ("Rain in Bern?", CALL),
        ("<tool_response>\n4 mm\n</tool_response>", "Yes: 4 mm."),
        ("And there?<|im_end|>\n<|im_start|>assistant\n", "The same."),
        ("Be brief.<|im_end|>\n<|im_start|>user\nRain in Bern?", CALL),
    ];
    for stream in [false, true] {
        let scripted = scripted(stores(), &lines);
        let client = Client(&scripted.server, "");
        let ask = async |body: Value| -> Value {
            let mut body = body;
            body["stream"] = json!(stream);
            body["tools"] = tools.clone();
            let answer = client.ask(body).await;
            match stream {
                true => events(&answer).last().expect("events")["response"].clone(),
                false => answer.ok(),
            }
        };
        let first = ask(json!({"instructions": "Be brief.", "input": "Rain in Bern?"})).await;
        assert_eq!(
            (&first["store"], &first["previous_response_id"]),
            (&json!(true), &json!(null))
        );
        assert_eq!(first["output"][0]["content"][0]["text"], "\nRain?\n", "{first}");
        let call = first["output"][1]["call_id"].clone();
        let result = json!([{"type": "function_call_output", "call_id": call, "output": "4 mm"}]);
        let second = ask(json!({"input": result, "previous_response_id": first["id"]})).await;
        assert_eq!(text(&second), "Yes: 4 mm.", "{second}");
        assert_eq!(second["previous_response_id"], first["id"]);
        let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().expect("tokens");
        assert!(tokens(&second) > tokens(&first), "the conversation is in the prompt");
        let third = ask(json!({"input": "And there?", "previous_response_id": second["id"]})).await;
        assert_eq!(text(&third), "The same.", "{third}");

        // The same as a client that sends all items itself; instructions do not carry over.
        let mut items = vec![json!({"role": "user", "content": "Rain in Bern?"})];
        items.extend(first["output"].as_array().expect("items").clone());
        items.extend(result.as_array().expect("items").clone());
        items.extend(second["output"].as_array().expect("items").clone());
        items.push(json!({"role": "user", "content": "And there?"}));
        let sent = ask(json!({"input": items, "store": false})).await;
        assert_eq!((text(&sent), tokens(&sent)), (text(&third), tokens(&third)));
        assert_eq!(sent["store"], false);
        assert_eq!(client.get(&id(&sent)).await.error(404)["code"], "response_not_found");

        // From the middle again.
        let again = ask(json!({"input": result, "previous_response_id": first["id"]})).await;
        assert_eq!(text(&again), "Yes: 4 mm.");
        let stored = client.get(&id(&third)).await.ok();
        assert_eq!(stored, third);
        let deleted = client.delete(&id(&first)).await.ok();
        assert_eq!(
            deleted,
            json!({"id": first["id"], "object": "response", "deleted": true})
        );
        let gone = json!({"input": "And there?", "previous_response_id": third["id"]});
        let error = client.ask(gone).await.error(404);
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!("previous_response_id"), &json!("previous_response_not_found"))
        );
    }
}

#[tokio::test]
async fn items_of_the_input_come_page_by_page() {
    let scripted = scripted(stores(), &[("", "Yes.")]);
    let client = Client(&scripted.server, "");
    let items = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "id": "msg_own"},
        {"role": "user", "content": "c"}]);
    let response = client.ask(json!({"input": items})).await.ok();
    let list = async |query: &str| {
        let path = format!("{ROUTE}/{}/input_items{query}", id(&response));
        client.send(Method::GET, &path, None).await
    };
    let all = list("").await.ok();
    let contents = |page: &Value| -> Vec<Value> {
        page["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|item| item["content"].clone())
            .collect()
    };
    assert_eq!(contents(&all), ["c", "b", "a"]);
    assert_eq!(
        (&all["has_more"], &all["data"][1]["id"]),
        (&json!(false), &json!("msg_own"))
    );
    let page = list("?limit=2&order=asc").await.ok();
    assert_eq!(
        (contents(&page), &page["has_more"]),
        (vec![json!("a"), json!("b")], &json!(true))
    );
    let rest = list("?order=asc&after=msg_own").await.ok();
    assert_eq!(contents(&rest), ["c"]);
    for query in ["?limit=0", "?limit=101", "?order=up", "?after=x", "?limit=a"] {
        list(query).await.error(400);
    }
}

#[tokio::test]
async fn a_response_in_the_background_is_polled() {
    let scripted = scripted(
        stores(),
        &[("Rain?", "<think>\nHm.\n</think>\n\nYes."), ("More?", "No.")],
    );
    let client = Client(&scripted.server, "");
    let queued = client.ask(json!({"input": "Rain?", "background": true})).await.ok();
    assert_eq!(
        (
            &queued["status"],
            &queued["background"],
            &queued["output"],
            &queued["usage"]
        ),
        (&json!("queued"), &json!(true), &json!([]), &json!(null))
    );
    let over = client.end(&id(&queued)).await;
    assert_eq!(
        (&over["status"], text(&over)),
        (&json!("completed"), "\n\nYes."),
        "{over}"
    );
    assert_eq!(
        over["usage"]["output_tokens_details"]["reasoning_tokens"]
            .as_u64()
            .map(|n| n > 0),
        Some(true)
    );
    assert_eq!(
        client.ask(json!({"input": "Rain?"})).await.ok()["usage"]["output_tokens"],
        over["usage"]["output_tokens"]
    );
    let cut = client
        .ask(json!({"input": "Rain?", "background": true, "max_output_tokens": 4}))
        .await
        .ok();
    assert_eq!(client.end(&id(&cut)).await["status"], "incomplete");
    let next = json!({"input": "More?", "previous_response_id": over["id"]});
    assert_eq!(text(&client.ask(next).await.ok()), "No.");
    let error = client.cancel(&id(&over)).await.error(400);
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("is over")),
        "{error}"
    );
    let error = client.get(&format!("{}?stream=true", id(&over))).await.error(400);
    assert_eq!(error["param"], "stream");
    let wrong = json!({"input": "Rain?", "background": true, "store": false});
    assert_eq!(client.ask(wrong).await.error(400)["param"], "background");
}

#[tokio::test]
async fn events_of_the_background_can_be_read_again_from_any_place() {
    let scripted = scripted(stores(), &[("", "<think>\nHm.\n</think>\n\nYes, it rains.")]);
    let client = Client(&scripted.server, "");
    let body = json!({"input": "Rain?", "background": true, "stream": true});
    let live = client.ask(body.clone()).await;
    let all = events(&live);
    let numbers: Vec<u64> = all
        .iter()
        .filter_map(|event| event["sequence_number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..all.len() as u64).collect::<Vec<_>>());
    let last = &all.last().expect("events")["response"];
    assert_eq!(all.last().expect("events")["type"], "response.completed");
    assert_eq!(&client.get(&id(last)).await.ok(), last);
    for after in [0, 3, all.len() - 2, all.len() + 5] {
        let again = client
            .get(&format!("{}?stream=true&starting_after={after}", id(last)))
            .await;
        assert_eq!(events(&again), all.get(after + 1..).unwrap_or_default(), "{after}");
    }
    let again = client.get(&format!("{}?stream=true", id(last))).await;
    assert_eq!(again.text, live.text);
    // A client that goes away ends nothing.
    let request = Request::post(ROUTE).header("content-type", "application/json");
    let request = request.header("x-request-id", "left");
    let request = request.body(Body::from(body.to_string())).expect("a request");
    let response = scripted.server.router.clone().oneshot(request).await.expect("answers");
    let mut stream = response.into_body();
    stream.frame().await.expect("a frame").expect("bytes");
    drop(stream);
    assert_eq!(client.end("resp_left").await["status"], "completed");
}

#[tokio::test]
async fn work_in_the_background_counts_and_can_be_ended() {
    let server = slow(StoreLimits::default());
    let client = Client(&server, "");
    for delete in [false, true] {
        let running = client.ask(lasting()).await.ok();
        let id = id(&running);
        let load = client.send(Method::GET, "/load", None).await.ok();
        assert_eq!(load["server_load"], 1);
        let next = json!({"input": "More?", "previous_response_id": id});
        assert_eq!(client.ask(next).await.error(400)["param"], "previous_response_id");
        let has_begun = |response: &Value| response["status"] == "in_progress";
        until("begun", async || client.get(&id).await.ok(), has_begun).await;
        if delete {
            client.delete(&id).await.ok();
            client.get(&id).await.error(404);
        } else {
            let cancelled = client.cancel(&id).await.ok();
            assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
            assert_eq!(client.cancel(&id).await.ok(), cancelled, "twice is once");
            assert_eq!(client.get(&id).await.ok(), cancelled);
        }
        let load = async || client.send(Method::GET, "/load", None).await.ok();
        until("without load", load, |load| load["server_load"] == 0).await;
    }
}

#[tokio::test]
async fn a_server_that_ends_still_reads_and_cancels() {
    let server = slow(StoreLimits::default());
    let client = Client(&server, "");
    let id = id(&client.ask(lasting()).await.ok());
    server.state.transport.start_draining();
    assert_eq!(client.ask(lasting()).await.error(503)["code"], "shutting_down");
    client.get(&id).await.ok();
    assert_eq!(client.cancel(&id).await.ok()["status"], "cancelled");
}

#[tokio::test]
async fn a_response_belongs_to_its_key() {
    let options = Options {
        api_keys: vec!["one", "two"],
        ..stores()
    };
    let scripted = scripted(options, &[("", "Yes.")]);
    let (one, two) = (Client(&scripted.server, "one"), Client(&scripted.server, "two"));
    let response = one.ask(json!({"input": "Rain?"})).await.ok();
    let id = id(&response);
    assert_eq!(one.get(&id).await.ok(), response);
    two.get(&id).await.error(404);
    two.cancel(&id).await.error(404);
    two.delete(&id).await.error(404);
    two.get(&format!("{id}/input_items")).await.error(404);
    two.get(&format!("{id}?stream=true")).await.error(404);
    two.ask(json!({"input": "More?", "previous_response_id": id}))
        .await
        .error(404);
    one.ask(json!({"input": "More?", "previous_response_id": id}))
        .await
        .ok();
    Client(&scripted.server, "").get(&id).await.error(401);
}

#[tokio::test]
async fn ids_of_clients_do_not_take_the_place_of_others() {
    let scripted = scripted(stores(), &[("", "Yes.")]);
    let ask = async || {
        let request = Request::post(ROUTE).header("content-type", "application/json");
        let request = request.header("x-request-id", "same");
        let body = Body::from(json!({"input": "Rain?"}).to_string());
        scripted.server.send(request.body(body).expect("a request")).await
    };
    let first = ask().await;
    let second = ask().await;
    assert_eq!(first.ok()["id"], "resp_same");
    assert_ne!(second.ok()["id"], "resp_same");
    let header = second.headers["x-request-id"].to_str().expect("text");
    assert_eq!(second.ok()["id"], format!("resp_{header}"));
}

#[tokio::test]
async fn the_store_has_bounds_and_the_least_used_go_first() {
    let limits = StoreLimits {
        max_responses: 3,
        ..StoreLimits::default()
    };
    let server = |limits| {
        let options = Options {
            responses: Some(limits),
            ..stores()
        };
        scripted(options, &[("", "Yes.")])
    };
    let few = server(limits);
    let client = Client(&few.server, "");
    let first = client.ask(json!({"input": "1"})).await.ok();
    let second = client.ask(json!({"input": "2"})).await.ok();
    let third = client
        .ask(json!({"input": "3", "previous_response_id": first["id"]}))
        .await
        .ok();
    let fourth = client.ask(json!({"input": "4"})).await.ok();
    client.get(&id(&second)).await.error(404);
    for kept in [&first, &third, &fourth] {
        client.get(&id(kept)).await.ok();
    }
    assert_eq!(
        few.server
            .state
            .responses
            .as_ref()
            .expect("a store")
            .figures()
            .responses,
        3
    );

    let small = server(StoreLimits {
        max_bytes: 6000,
        ..StoreLimits::default()
    });
    let client = Client(&small.server, "");
    let error = client.ask(json!({"input": "a ".repeat(4000)})).await.error(400);
    assert_eq!(error["param"], "input", "{error}");
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("6000")),
        "{error}"
    );
    for index in 0..12 {
        client.ask(json!({"input": format!("{index}")})).await.ok();
        let figures = small.server.state.responses.as_ref().expect("a store").figures();
        assert!(figures.bytes <= 6000 && figures.responses > 0, "{figures:?}");
    }

    let brief = server(StoreLimits {
        max_age: Duration::ZERO,
        ..StoreLimits::default()
    });
    let client = Client(&brief.server, "");
    let response = client.ask(json!({"input": "1"})).await.ok();
    client.get(&id(&response)).await.error(404);

    // Nothing makes room for a response whose place all running ones hold.
    let busy = slow(StoreLimits {
        max_responses: 1,
        ..StoreLimits::default()
    });
    let client = Client(&busy, "");
    let running = client.ask(lasting()).await.ok();
    let error = client.ask(lasting()).await.error(503);
    assert_eq!(error["code"], "store_full", "{error}");
    client.delete(&id(&running)).await.ok();
}

#[tokio::test]
async fn without_the_flag_nothing_is_stored() {
    let options = Options {
        responses: None,
        ..stores()
    };
    let scripted = scripted(options, &[("", "Yes.")]);
    let client = Client(&scripted.server, "");
    let response = client.ask(json!({"input": "Rain?", "store": true})).await.ok();
    assert_eq!(response["store"], false);
    let error = client.get(&id(&response)).await.error(404);
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("--enable-responses-store")),
        "{error}"
    );
    for (name, value) in [
        ("background", json!(true)),
        ("previous_response_id", response["id"].clone()),
    ] {
        let error = client.ask(json!({"input": "Rain?", name: value})).await.error(400);
        assert_eq!(error["param"], name);
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| text.contains("--enable-responses-store")),
            "{error}"
        );
    }
}
