//! Structured output through the real router: whole and streamed, on both routes, and what is refused with 400.

use std::path::PathBuf;

use crate::common::{Options, TestServer, fixture, until};
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A request of a route with these fields more; random at temperature 1.
fn ask(route: &str, fields: &Value) -> Value {
    let mut body = match route {
        CHAT => json!({"messages": [{"role": "user", "content": "hi"}]}),
        _ => json!({"prompt": [5, 6, 7]}),
    };
    let all = body.as_object_mut().expect("an object");
    all.insert("max_tokens".to_owned(), json!(60));
    all.insert("temperature".to_owned(), json!(1));
    all.extend(fields.as_object().expect("an object").clone());
    body
}

fn text_of(route: &str, choice: &Value) -> String {
    let text = if route == CHAT {
        &choice["message"]["content"]
    } else {
        &choice["text"]
    };
    text.as_str().expect("a text").to_owned()
}

/// Whether a text is what was asked for.
type Judge = fn(&str) -> bool;

fn point() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"}},
        "required": ["x", "ok"], "additionalProperties": false})
}

fn is_point(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| {
        value["x"].as_u64().is_some_and(|x| x < 100)
            && value["ok"].is_boolean()
            && value.as_object().is_some_and(|all| all.len() == 2)
    })
}

#[tokio::test]
async fn every_kind_is_served_on_both_routes_whole_and_streamed() {
    let server = TestServer::new();
    let compact = json!({"disable_any_whitespace": true});
    let with = |mut fields: Value, more: &Value| {
        fields
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        fields
    };
    let kinds: [(Value, Judge); 8] = [
        (
            json!({"structured_outputs": with(json!({"json": point()}), &compact)}),
            |text| is_point(text) && !text.contains(' '),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": point(),
                "strict": true}}}),
            is_point,
        ),
        (json!({"structured_outputs": {"regex": "[a-c]{3}"}}), |text| {
            text.len() == 3
        }),
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), |text| {
            text == "yes" || text == "no"
        }),
        (
            json!({"structured_outputs": {"grammar": "root ::= \"a\" (\"b\" | \"c\")"}}),
            |text| text == "ab" || text == "ac",
        ),
        (
            json!({"structured_outputs": {"grammar": "start: \"a\" /[bc]/"}}),
            |text| text == "ab" || text == "ac",
        ),
        (
            json!({"structured_outputs": {"structural_tag": json!({"type": "structural_tag", "format": {"type": "tag",
                "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</n>"}}).to_string()}}),
            |text| text.starts_with("<n>") && text.len() == 9,
        ),
        (
            json!({"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "set"}}}),
            |text| text == "set",
        ),
    ];
    for (fields, judge) in kinds {
        for route in [CHAT, COMPLETIONS] {
            let body = ask(route, &fields);
            let choice = server.post(route, &body).await.ok()["choices"][0].clone();
            let text = text_of(route, &choice);
            match choice["finish_reason"].as_str() {
                Some("stop") => assert!(judge(&text), "{text:?} for {fields}"),
                reason => assert_eq!(reason, Some("length"), "{choice}"),
            }
            let streamed = ask(route, &with(fields.clone(), &json!({"stream": true, "n": 2})));
            let mut texts = [String::new(), String::new()];
            let mut ends = 0;
            for event in server.post(route, &streamed).await.events() {
                let choice = &event["choices"][0];
                let piece = if route == CHAT {
                    &choice["delta"]["content"]
                } else {
                    &choice["text"]
                };
                let index = choice["index"].as_u64().expect("an index") as usize;
                texts[index].push_str(piece.as_str().unwrap_or_default());
                if choice["finish_reason"] == "stop" {
                    ends += 1;
                    assert!(judge(&texts[index]), "{:?} for {fields}", texts[index]);
                }
            }
            assert!(ends <= 2);
        }
    }
}

#[tokio::test]
async fn any_object_and_a_list_of_prompts() {
    let server = TestServer::new();
    let fields =
        json!({"response_format": {"type": "json_object"}, "prompt": [[5, 6], [7, 8]], "n": 2, "max_tokens": 200});
    let answer = server.post(COMPLETIONS, &ask(COMPLETIONS, &fields)).await.ok();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    for choice in choices {
        let text = text_of(COMPLETIONS, choice);
        assert!(text.starts_with('{'), "{text:?}");
        if choice["finish_reason"] == "stop" {
            assert!(
                serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object()),
                "{text:?}"
            );
        }
    }
}

#[tokio::test]
async fn what_cannot_be_is_a_400_that_names_field_and_remedy() {
    let server = TestServer::new();
    let schema = |schema: Value| {
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n",
        "schema": schema}}})
    };
    let deep = (0..60).fold(json!({}), |inner, _| json!({"items": inner}));
    let deeper = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    for (fields, param, words) in [
        (
            schema(json!({"not": {}})),
            "response_format.json_schema.schema",
            "\"not\"",
        ),
        (schema(deeper), "response_format.json_schema.schema", "at most 64"),
        (
            schema(json!({"$ref": "http://example.com/x"})),
            "response_format.json_schema.schema",
            "http://example.com/x",
        ),
        (
            json!({"structured_outputs": {"regex": "(a"}}),
            "structured_outputs.regex",
            "unclosed group",
        ),
        (
            json!({"structured_outputs": {"regex": "a{1000}".repeat(80_000)}}),
            "structured_outputs.regex",
            "at most 524288",
        ),
        (
            json!({"structured_outputs": {"choice": []}}),
            "structured_outputs.choice",
            "empty list",
        ),
        (
            json!({"structured_outputs": {"grammar": "root ::= nothing"}}),
            "structured_outputs.grammar",
            "`nothing`",
        ),
        (
            json!({"structured_outputs": {"json": "{"}}),
            "structured_outputs.json",
            "no JSON",
        ),
        (
            json!({"structured_outputs": {"structural_tag": "{}"}}),
            "structured_outputs.structural_tag",
            "type must be",
        ),
        (
            json!({"structured_outputs": {"json_object": false}}),
            "structured_outputs.json_object",
            "must be true",
        ),
        (
            json!({"structured_outputs": {"json_object": true, "regex": "a"}}),
            "structured_outputs",
            "only one",
        ),
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
            "xml",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "structured_outputs",
            "only one",
        ),
    ] {
        for route in [CHAT, COMPLETIONS] {
            let error = server.post(route, &ask(route, &fields)).await.error(400);
            assert_eq!(error["param"], param, "{error}");
            assert!(error["message"].as_str().expect("a text").contains(words), "{error}");
        }
    }
    // Deep, and no deeper than is taken.
    server.post(CHAT, &ask(CHAT, &schema(deep))).await.ok();
    // JSON that no parser should have to read.
    let bomb = format!(
        "{{\"prompt\": [5], \"structured_outputs\": {{\"json\": {}1{}}}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(server.post_bytes(COMPLETIONS, bomb.into_bytes()).await.status, 400);
    let contradiction = json!({"structured_outputs": {"choice": ["a"]}, "min_tokens": 20});
    let error = server
        .post(COMPLETIONS, &ask(COMPLETIONS, &contradiction))
        .await
        .error(400);
    assert_eq!(error["code"], "no_token_allowed");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("min_tokens") && text.contains("the grammar of the structured output")),
        "{error}"
    );
}

/// A model without ends needs the request's own; a vocabulary without bytes has no structured output.
#[tokio::test]
async fn models_that_cannot_say_so() {
    let folder = copied("no-end", |folder| {
        std::fs::remove_file(folder.join("generation_config.json")).expect("it is there");
        edit(&folder.join("config.json"), |config| {
            config.as_object_mut().expect("an object").remove("eos_token_id");
        });
        edit(&folder.join("tokenizer_config.json"), |config| {
            config.as_object_mut().expect("an object").remove("eos_token");
        });
    });
    let server = TestServer::with(Options {
        model: Some(folder),
        ..Options::default()
    });
    let asked = ask(COMPLETIONS, &json!({"structured_outputs": {"choice": ["a"]}}));
    let error = server.post(COMPLETIONS, &asked).await.error(400);
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("stop_token_ids")),
        "{error}"
    );
    let own = ask(
        COMPLETIONS,
        &json!({"structured_outputs": {"choice": ["a"]}, "stop_token_ids": [2]}),
    );
    let choice = server.post(COMPLETIONS, &own).await.ok()["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("a"), &json!(2)));
    let folder = copied("no-bytes", |folder| {
        edit(&folder.join("tokenizer.json"), |file| {
            file["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true})
        });
    });
    let server = TestServer::with(Options {
        model: Some(folder),
        ..Options::default()
    });
    let error = server.post(COMPLETIONS, &asked).await.error(400);
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("decoder")),
        "{error}"
    );
    server.post(COMPLETIONS, &ask(COMPLETIONS, &json!({}))).await.ok();
}

/// A copy of the model `llama` with changed files.
pub fn copied(name: &str, change: impl FnOnce(&PathBuf)) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("halyard-structured-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for file in std::fs::read_dir(fixture("llama")).expect("the fixture").flatten() {
        std::fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
    }
    change(&folder);
    folder
}

/// Changes a file that is JSON.
pub fn edit(path: &PathBuf, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("written");
}

/// Sixty-four streams of which every second client goes away: the others end well, and nothing is left.
#[tokio::test]
async fn clients_that_go_away_leave_nothing() {
    let server = TestServer::with(Options {
        max_waiting: Some(256),
        ..Options::default()
    });
    let streams = (0..64_u64).map(|seed| {
        let router = server.router.clone();
        let fields = json!({"stream": true, "seed": seed, "structured_outputs": {"regex": format!("[a-z]{{{}}}",
            10 + seed % 5)}});
        let body = ask(CHAT, &fields).to_string();
        async move {
            let request = Request::post(CHAT).header("content-type", "application/json");
            let response = router
                .oneshot(request.body(Body::from(body)).expect("a request"))
                .await
                .expect("an answer");
            assert_eq!(response.status(), 200);
            let mut body = response.into_body();
            if seed % 2 == 0 {
                let _first = body.frame().await;
                return None;
            }
            let bytes = body.collect().await.expect("the whole body").to_bytes();
            Some(String::from_utf8(bytes.to_vec()).expect("UTF-8"))
        }
    });
    let answers = futures::future::join_all(streams).await;
    let whole: Vec<String> = answers.into_iter().flatten().collect();
    assert_eq!(whole.len(), 32);
    assert!(
        whole
            .iter()
            .all(|text| text.contains("\"finish_reason\":\"stop\"") && text.ends_with("data: [DONE]\n\n"))
    );
    let stats = async || server.state.engine.stats();
    until("none left", stats, |stats| stats.num_running + stats.num_waiting == 0).await;
}

/// A regular expression that compiles, and that no library follows for long: the request is at fault, not the engine.
#[tokio::test]
async fn a_constraint_that_cannot_be_followed_is_the_request_s_fault() {
    let bomb = "(((a{1,1000}){1,1000}){1,1000}){1,1000}";
    // The answer must not end before the library gives up.
    let fields = json!({"max_tokens": 200, "min_tokens": 200, "structured_outputs": {"regex": bomb}});
    let error = TestServer::new()
        .post(COMPLETIONS, &ask(COMPLETIONS, &fields))
        .await
        .error(400);
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("structured output cannot go on"), "{message}");
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("invalid_request_error"), &json!("no_token_allowed"))
    );
}
