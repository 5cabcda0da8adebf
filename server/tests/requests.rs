//! Effects of request fields and of the operator's defaults, through the real router: roles, tools in the prompt,
//! truncation, ids, metrics in two formats, and the routes with facts about the server.

use crate::common::{Answer, Options, TestServer, fixture, until};
use axum::body::Body;
use axum::http::Request;
use halyard_server::openai::policy::ServingDefaults;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn hi() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

fn with(serving: ServingDefaults) -> TestServer {
    TestServer::with(Options {
        serving,
        ..Options::default()
    })
}

#[tokio::test]
async fn a_developer_message_has_the_tokens_of_a_system_message() {
    let server = TestServer::new();
    let mut found = Vec::new();
    for role in ["system", "developer"] {
        let messages = json!([{"role": role, "content": "be brief"}, {"role": "user", "content": "hi"}]);
        let tokens = server.post("/tokenize", &json!({"messages": messages})).await.ok()["tokens"].clone();
        let answer = server
            .post(
                CHAT,
                &json!({"messages": messages, "max_tokens": 1, "return_token_ids": true}),
            )
            .await
            .ok();
        assert_eq!(answer["prompt_token_ids"], tokens, "{role}");
        found.push(tokens);
    }
    assert_eq!(found[0], found[1]);
}

#[tokio::test]
async fn a_prompt_that_fills_the_context_names_its_field() {
    let server = TestServer::new();
    let chat = json!({"messages": [{"role": "user", "content": "one two ".repeat(150)}]});
    for (route, body, field) in [
        (CHAT, chat, "messages"),
        (COMPLETIONS, json!({"prompt": vec![5; 300]}), "prompt"),
    ] {
        let answer = server.post(route, &body).await;
        let error = answer.error(400);
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(field), &json!("context_length_exceeded"))
        );
        let message = error["message"].as_str().expect("text");
        assert!(message.contains("which leaves no room for an answer"), "{message}");
    }
}

#[tokio::test]
async fn a_prompt_is_truncated_where_it_was_asked() {
    let server = TestServer::new();
    let ids = |answer: Value| answer["choices"][0]["prompt_token_ids"].clone();
    for (fields, kept) in [
        (json!({"truncate_prompt_tokens": 2}), json!([7, 8])),
        (
            json!({"truncate_prompt_tokens": "2", "truncation_side": "left"}),
            json!([7, 8]),
        ),
        (
            json!({"truncate_prompt_tokens": 2, "truncation_side": "right"}),
            json!([5, 6]),
        ),
        (json!({"truncate_prompt_tokens": 9}), json!([5, 6, 7, 8])),
        (json!({"truncate_prompt_tokens": -1}), json!([5, 6, 7, 8])),
    ] {
        let mut body = json!({"prompt": [5, 6, 7, 8], "max_tokens": 1, "return_token_ids": true});
        body.as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("an object").clone());
        assert_eq!(ids(server.post(COMPLETIONS, &body).await.ok()), kept, "{fields}");
    }
    // -1 leaves room for the answer that was asked, or for one token.
    let mut body = json!({"prompt": vec![5; 300], "truncate_prompt_tokens": -1, "max_tokens": 6, "ignore_eos": true});
    assert_eq!(
        server.post(COMPLETIONS, &body).await.ok()["usage"],
        json!({"prompt_tokens": 250, "completion_tokens": 6, "total_tokens": 256,
            "prompt_tokens_details": {"cached_tokens": 0}})
    );
    body["max_tokens"] = Value::Null;
    assert_eq!(
        server.post(COMPLETIONS, &body).await.ok()["usage"]["prompt_tokens"],
        255
    );
    // What an echo shows is what was scored.
    let body =
        json!({"prompt": "The river", "truncate_prompt_tokens": 1, "echo": true, "max_tokens": 0, "logprobs": 0});
    let choice = server.post(COMPLETIONS, &body).await.ok()["choices"][0].clone();
    let tokens: String = choice["logprobs"]["tokens"]
        .as_array()
        .expect("tokens")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(choice["text"], tokens);
    let all = server.post("/tokenize", &json!({"messages": hi()})).await.ok()["tokens"].clone();
    let all = all.as_array().expect("a list");
    let last = server
        .post("/tokenize", &json!({"messages": hi(), "truncate_prompt_tokens": 3}))
        .await
        .ok();
    assert_eq!(last["tokens"].as_array().expect("a list"), &all[all.len() - 3..]);
    let body = json!({"messages": hi(), "truncate_prompt_tokens": 3, "max_tokens": 1, "return_token_ids": true});
    assert_eq!(server.post(CHAT, &body).await.ok()["prompt_token_ids"], last["tokens"]);
}

#[tokio::test]
async fn numbers_and_flags_mean_the_same_in_each_spelling() {
    let server = TestServer::new();
    let text = |answer: Value| answer["choices"][0]["text"].clone();
    let strict = json!({"prompt": "The river", "max_tokens": 6, "temperature": 0.5, "seed": 7, "logprobs": 1,
        "ignore_eos": true});
    let loose = json!({"prompt": "The river", "max_tokens": 6.0, "temperature": "0.5", "seed": "7", "logprobs": true,
        "ignore_eos": "yes"});
    let strict = server.post(COMPLETIONS, &strict).await.ok();
    let loose = server.post(COMPLETIONS, &loose).await.ok();
    assert_eq!(strict["choices"][0]["logprobs"], loose["choices"][0]["logprobs"]);
    assert_eq!(text(strict), text(loose));
}

#[tokio::test]
async fn a_body_may_name_its_request() {
    let server = TestServer::new();
    let body = json!({"prompt": "a", "max_tokens": 1, "request_id": "job-17"});
    let answer = server.post(COMPLETIONS, &body).await;
    assert_eq!(answer.headers["x-request-id"], "job-17");
    assert_eq!(answer.ok()["id"], "cmpl-job-17");
    let request = Request::post(CHAT)
        .header("content-type", "application/json")
        .header("x-request-id", "by-header");
    let body = json!({"messages": hi(), "max_tokens": 1, "request_id": "job-17", "stream": true});
    let answer = server
        .send(request.body(Body::from(body.to_string())).expect("a request"))
        .await;
    assert_eq!(answer.headers["x-request-id"], "by-header");
    assert_eq!(answer.events()[0]["id"], "chatcmpl-by-header");
}

#[tokio::test]
async fn an_echoed_chat_begins_with_the_last_message_of_its_role() {
    let server = TestServer::new();
    let messages = json!([{"role": "user", "content": "The"}, {"role": "assistant", "content": "river"}]);
    let mut body =
        json!({"messages": messages, "max_tokens": 4, "temperature": 0, "continue_final_message": true, "echo": true});
    let whole = server.post(CHAT, &body).await.ok()["choices"][0]["message"].clone();
    body["echo"] = json!(false);
    let alone = server.post(CHAT, &body).await.ok()["choices"][0]["message"].clone();
    let text = format!("river{}", alone["content"].as_str().expect("text"));
    assert_eq!(whole["content"], text.as_str());
    assert!(
        whole.get("tool_calls").is_none(),
        "an answer without calls has no list of them"
    );
    body["echo"] = json!(true);
    body["stream"] = json!(true);
    let events = server.post(CHAT, &body).await.events();
    let streamed: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(streamed, text);
}

#[tokio::test]
async fn the_operators_defaults_hold_where_a_request_says_nothing() {
    let server = with(ServingDefaults {
        max_logprobs: 2,
        return_tokens_as_token_ids: true,
        force_include_usage: true,
        response_role: "bot".to_owned(),
        ..ServingDefaults::default()
    });
    let body = json!({"prompt": "The river", "max_tokens": 1, "logprobs": 2});
    let token = server.post(COMPLETIONS, &body).await.ok()["choices"][0]["logprobs"]["tokens"][0].clone();
    assert!(
        token.as_str().is_some_and(|text| text.starts_with("token_id:")),
        "{token}"
    );
    let body = json!({"prompt": "The river", "max_tokens": 1, "logprobs": 2, "return_tokens_as_token_ids": false});
    let token = server.post(COMPLETIONS, &body).await.ok()["choices"][0]["logprobs"]["tokens"][0].clone();
    assert!(
        token.as_str().is_some_and(|text| !text.starts_with("token_id:")),
        "{token}"
    );
    for body in [
        json!({"prompt": "a", "logprobs": 3}),
        json!({"prompt": "a", "prompt_logprobs": 3}),
    ] {
        let error = server.post(COMPLETIONS, &body).await.error(400);
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| text.contains("between 0 and 2")),
            "{error}"
        );
    }
    let events = server
        .post(CHAT, &json!({"messages": hi(), "max_tokens": 2, "stream": true}))
        .await
        .events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "bot");
    assert!(
        events.iter().all(|event| event["usage"]["prompt_tokens"].is_u64()),
        "{events:?}"
    );
    let answer = server
        .post(CHAT, &json!({"messages": hi(), "max_tokens": 2}))
        .await
        .ok();
    assert_eq!(answer["choices"][0]["message"]["role"], "bot");
}

async fn scrape(server: &TestServer, accept: Option<&str>) -> Answer {
    let mut request = Request::get("/metrics");
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    server.send(request.body(Body::empty()).expect("a request")).await
}

/// The families of a text in format 0.0.4, checked line by line: name, type, help, number of samples.
fn families(text: &str) -> Vec<(String, String, bool, usize)> {
    let mut families: Vec<(String, String, bool, usize)> = Vec::new();
    let mut help = None;
    for line in text.lines() {
        assert!(!line.trim().is_empty());
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(name, _)| name.to_owned());
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(
                ["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind),
                "{line}"
            );
            assert!(families.iter().all(|(other, ..)| other != name), "{name} comes twice");
            families.push((
                name.to_owned(),
                kind.to_owned(),
                help.take().as_deref() == Some(name),
                0,
            ));
            continue;
        }
        assert!(!line.starts_with('#'), "{line}");
        let (series, value) = line.rsplit_once(' ').expect("a value");
        value.parse::<f64>().unwrap_or_else(|error| panic!("{line}: {error}"));
        let name = series.split('{').next().expect("a name");
        let (family, kind, _, samples) = families.last_mut().expect("a type comes first");
        let suffix = name
            .strip_prefix(family.as_str())
            .unwrap_or_else(|| panic!("{name} is not of {family}"));
        let allowed: &[&str] = match kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(allowed.contains(&suffix), "{line}");
        *samples += 1;
    }
    families
}

#[tokio::test]
async fn metrics_come_in_the_format_that_was_asked() {
    let server = TestServer::new();
    server
        .post(COMPLETIONS, &json!({"prompt": "The river", "max_tokens": 2}))
        .await
        .ok();
    let in_text = |answer: &Answer| answer.text.contains("\nvllm:generation_tokens_total{");
    let text = until("all metrics", async || scrape(&server, None).await, in_text).await;
    assert_eq!(text.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let found = families(&text.text);
    let counter = found.iter().find(|(name, ..)| name == "vllm:generation_tokens_total");
    assert_eq!(
        counter.map(|(_, kind, help, samples)| (kind.as_str(), *help, *samples)),
        Some(("counter", true, 1))
    );
    assert!(
        found.iter().all(|(_, kind, help, _)| kind != "untyped" && *help),
        "{found:?}"
    );
    assert!(found.len() > 30, "{}", found.len());

    let accepted = Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    let as_many = |answer: &Answer| answer.text.matches("# TYPE ").count() == found.len();
    let openmetrics = until("as many metrics", async || scrape(&server, accepted).await, as_many).await;
    assert!(
        openmetrics.headers["content-type"]
            .to_str()
            .expect("text")
            .starts_with("application/openmetrics-text")
    );
    assert!(openmetrics.text.ends_with("# EOF\n"));
    assert_eq!(openmetrics.headers["vary"], "accept");
}

#[tokio::test]
async fn metrics_need_a_key_unless_the_operator_opens_them() {
    for (metrics_without_key, status) in [(false, 401), (true, 200)] {
        let server = TestServer::with(Options {
            api_keys: vec!["sesame"],
            serving: ServingDefaults {
                metrics_without_key,
                ..ServingDefaults::default()
            },
            ..Options::default()
        });
        assert_eq!(scrape(&server, None).await.status, status);
        for guarded in [
            "/v1/models",
            "/metrics/",
            "/load",
            "/server_info",
            "/kv_event_sources",
            "/tokenizer_info",
        ] {
            assert_eq!(server.get(guarded).await.status, 401, "{guarded}");
        }
    }
}

#[tokio::test]
async fn tools_that_ask_for_server_model_and_tokenizer_find_them() {
    let server = with(ServingDefaults {
        tokenizer_info: true,
        ..ServingDefaults::default()
    });
    // What SGLang's router reads.
    for route in ["/server_info", "/get_server_info"] {
        let info = server.get(route).await.ok();
        assert_eq!(info["model_id"], "tiny", "{route}");
        assert_eq!(info["served_model_name"], "tiny");
        assert_eq!(info["model_path"], "fixture");
        assert_eq!(info["max_model_len"], 256);
        // By this and /kv_event_sources vLLM's router follows KV cache events.
        assert_eq!(info["kv_block_size"], server.state.engine.info().block_size);
        for number in [
            "dp_size",
            "tp_size",
            "max_total_tokens",
            "max_prefill_tokens",
            "max_running_requests",
            "max_num_reqs",
        ] {
            assert!(info[number].as_u64().is_some_and(|value| value > 0), "{number}: {info}");
        }
        assert!(info["version"].is_string());
    }
    for route in ["/model_info", "/get_model_info"] {
        let info = server.get(route).await.ok();
        assert_eq!(info["is_generation"], true, "{route}");
        assert_eq!(info["model_path"], "fixture");
        assert!(info["model_type"].is_string());
        assert_eq!(info["architectures"][0], info["model_type"]);
    }
    // What lm-eval's remote tokenizer reads.
    let info = server.get("/tokenizer_info").await.ok();
    for text in ["tokenizer_class", "eos_token", "bos_token", "chat_template"] {
        assert!(
            info[text].as_str().is_some_and(|text| !text.is_empty()),
            "{text}: {info}"
        );
    }
    assert!(info.as_object().expect("an object").contains_key("pad_token"));
    let off = TestServer::new().get("/tokenizer_info").await.error(404);
    assert!(
        off["message"]
            .as_str()
            .is_some_and(|text| text.contains("--enable-tokenizer-info-endpoint")),
        "{off}"
    );
}

#[tokio::test]
async fn answers_carry_one_fingerprint() {
    let server = TestServer::new();
    let whole = server
        .post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 2}))
        .await
        .ok()["system_fingerprint"]
        .clone();
    assert!(
        whole.as_str().is_some_and(|text| text.starts_with("halyard-")),
        "{whole}"
    );
    let body = json!({"messages": hi(), "max_tokens": 2, "stream": true, "n": 2});
    let events = server.post(CHAT, &body).await.events();
    let (ends, others): (Vec<&Value>, Vec<&Value>) = events
        .iter()
        .partition(|event| event["choices"][0]["finish_reason"].is_string());
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|end| end["system_fingerprint"] == whole), "{ends:?}");
    assert!(
        others.iter().all(|event| event.get("system_fingerprint").is_none()),
        "as in vLLM, the last piece only"
    );
}

/// The tiny model with another chat template, in a folder of its own.
fn with_template(name: &str, template: &str) -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    for entry in std::fs::read_dir(fixture("llama")).expect("the fixture") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
    }
    let path = folder.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("is there")).expect("JSON");
    config["chat_template"] = json!(template);
    std::fs::write(&path, config.to_string()).expect("written");
    folder
}

#[tokio::test]
async fn templates_see_the_requests_variables_before_the_operators() {
    let template = "{{ tone }} {{ style }} {{ reasoning_effort }} {{ enable_thinking }} \
        {% if tools %}{{ tools | tojson }}{% endif %} \
        {% if documents %}{{ documents[0].title }}{% endif %} {{ messages[0].content }}";
    let defaults = json!({"tone": "plain", "style": "short"});
    let server = TestServer::with(Options {
        model: Some(with_template("variables", template)),
        serving: ServingDefaults {
            default_chat_template_kwargs: defaults.as_object().expect("an object").clone(),
            ..ServingDefaults::default()
        },
        ..Options::default()
    });
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let mut body = json!({"messages": hi(), "max_tokens": 1, "return_token_ids": true});
    for (fields, prompt) in [
        (json!({}), "plain short     hi"),
        (json!({"chat_template_kwargs": {"tone": "loud"}}), "loud short     hi"),
        (
            json!({"reasoning_effort": "low", "documents": [{"title": "T", "text": "x"}]}),
            "loud short low True  T hi",
        ),
        (
            json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": 7}, "documents": null}),
            "plain short none 7   hi",
        ),
        (
            json!({"reasoning_effort": null, "tools": [tool], "tool_choice": "none"}),
            "plain short  7 [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \
             \"parameters\": null}}]  hi",
        ),
    ] {
        body.as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("an object").clone());
        let ids = server.post(CHAT, &body).await.ok()["prompt_token_ids"].clone();
        let text = server.post("/detokenize", &json!({"tokens": ids})).await.ok()["prompt"].clone();
        assert_eq!(text, prompt, "{fields}");
    }
    let tokens = json!({"messages": hi(), "tools": [tool], "chat_template_kwargs": {"enable_thinking": 7}});
    let ids = server.post("/tokenize", &tokens).await.ok()["tokens"].clone();
    assert_eq!(ids, server.post(CHAT, &body).await.ok()["prompt_token_ids"]);
}
