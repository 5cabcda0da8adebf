//! Requests that get no token, over HTTP: because a damaged model's logits are not numbers, or because the request's
//! constraints allow no token.

use crate::common::{Options, TestServer};
use crate::damaged::Damaged;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const PROMPT: [u32; 2] = [297, 368];

fn body(prompt: &[u32]) -> Value {
    json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true, "return_token_ids": true})
}

/// The tokens that the model as it should be gives to `PROMPT`.
async fn good_tokens() -> Vec<u32> {
    let answer = TestServer::new().post(COMPLETIONS, &body(&PROMPT)).await.ok();
    let ids = answer["choices"][0]["token_ids"].as_array().expect("ids");
    ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn on(model: &Damaged) -> TestServer {
    TestServer::with(Options {
        model: Some(model.path().to_path_buf()),
        ..Options::default()
    })
}

#[tokio::test]
async fn logits_that_are_no_numbers_are_an_error_with_its_place_and_remedy_and_are_counted() {
    let good = good_tokens().await;
    // The third token is generated and then computed: the fourth is none.
    let at = (2..11)
        .find(|&at| !good[..at].contains(&good[at]))
        .expect("a new token");
    let model = Damaged::embeddings("llama", 48, &[good[at]]);
    let server = on(&model);
    let metric = async |server: &TestServer| {
        let text = server.get("/metrics").await.text;
        let line = text
            .lines()
            .find(|line| line.starts_with("halyard:nonfinite_logits_total"));
        line.expect("the metric").to_owned()
    };
    assert_eq!(metric(&server).await, "halyard:nonfinite_logits_total 0");

    let error = server.post(COMPLETIONS, &body(&[5, good[at], 7])).await.error(500);
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("nonfinite_logits"), &json!("server_error"))
    );
    let message = error["message"].as_str().expect("a message");
    for part in ["output position 0", "NaN or +infinity", "--dtype", "--kv-cache-dtype"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    // A whole answer that breaks off is no answer.
    let error = server.post(COMPLETIONS, &body(&PROMPT)).await.error(500);
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains(&format!("output position {}", at + 1)))
    );

    let mut streamed = body(&PROMPT);
    streamed["stream"] = json!(true);
    let answer = server.post(COMPLETIONS, &streamed).await;
    assert_eq!(answer.status, 200, "the stream had begun");
    let events: Vec<&str> = answer
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let events: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect();
    let (error, pieces) = events.split_last().expect("events");
    assert_eq!(error["error"]["code"], "nonfinite_logits");
    let ids: Vec<u64> = pieces
        .iter()
        .flat_map(|piece| piece["choices"][0]["token_ids"].as_array().expect("ids"))
        .map(|id| id.as_u64().expect("an id"))
        .collect();
    let before: Vec<u64> = good[..=at].iter().map(|&id| u64::from(id)).collect();
    assert_eq!(ids, before, "what was right is sent");

    // Others are served, and the server is well.
    let answer = server
        .post(
            COMPLETIONS,
            &json!({"prompt": [5, 6], "max_tokens": 1, "temperature": 0}),
        )
        .await;
    assert_eq!(answer.ok()["usage"]["completion_tokens"], 1);
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(metric(&server).await, "halyard:nonfinite_logits_total 3");
}

#[tokio::test]
async fn constraints_that_leave_no_token_are_the_clients_error() {
    let server = TestServer::new();
    // What can be known from the request alone names both fields.
    for (body, fields) in [
        (
            json!({"prompt": [5], "allowed_token_ids": [17], "bad_words": ["/"], "max_tokens": 3}),
            ["allowed_token_ids", "bad_words"],
        ),
        (
            json!({"prompt": [5], "allowed_token_ids": [2], "min_tokens": 5, "max_tokens": 6}),
            ["allowed_token_ids", "min_tokens"],
        ),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = json!(stream);
            let error = server.post(COMPLETIONS, &body).await.error(400);
            assert_eq!(
                (&error["code"], &error["param"]),
                (&json!("no_token_allowed"), &json!("allowed_token_ids"))
            );
            for field in fields {
                assert!(
                    error["message"].as_str().is_some_and(|text| text.contains(field)),
                    "{error}"
                );
            }
        }
    }
    for penalty in [1e-45, 1e-38, 0.0, 0.009, 1e9] {
        let body = json!({"prompt": [5, 6, 7, 8], "repetition_penalty": penalty, "temperature": 1, "seed": 1});
        let error = server.post(COMPLETIONS, &body).await.error(400);
        assert_eq!(error["param"], "repetition_penalty");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| text.contains("0.01 and 100")),
            "{error}"
        );
    }
    // What cannot: the bad word is complete only behind the prompt.
    let word = server
        .state
        .engine
        .tokenizer()
        .decode(&[297, 368], false)
        .expect("text");
    let tokens = server
        .post("/tokenize", &json!({"prompt": word, "add_special_tokens": false}))
        .await
        .ok();
    let tokens = tokens["tokens"].as_array().expect("ids").clone();
    let (last, before) = tokens.split_last().expect("tokens");
    assert!(!before.is_empty(), "a word of several tokens");
    let body = json!({"prompt": before, "allowed_token_ids": [last], "bad_words": [word], "max_tokens": 3});
    let error = server.post(COMPLETIONS, &body).await.error(400);
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("no_token_allowed"), &json!("invalid_request_error"))
    );
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("allowed_token_ids and bad_words")),
        "{error}"
    );
    let _ = server
        .post(COMPLETIONS, &json!({"prompt": [5, 6], "max_tokens": 1}))
        .await
        .ok();
    let text = server.get("/metrics").await.text;
    assert!(text.contains("halyard:empty_distributions_total 1"), "{text}");
    assert!(text.contains("halyard:nonfinite_logits_total 0"), "{text}");
}
