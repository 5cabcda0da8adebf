//! One client: requests of every kind, one after the other, each answer checked.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use halyard_models::SplitMix64;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::process::fixtures;

/// Longest wait for an answer: far more than any takes, so that a hang is a fault and not the end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Faults that are kept in words.
const MAX_FAULTS: usize = 20;
/// Requests after which a client opens new connections.
const RECONNECT: u64 = 500;

/// Counts of all clients.
#[derive(Default)]
pub struct Tally {
    /// Set: no new requests.
    pub stop: AtomicBool,
    /// Requests that have ended in whatever way.
    pub requests: AtomicU64,
    kinds: Mutex<BTreeMap<&'static str, u64>>,
    faults: Mutex<Vec<String>>,
    num_faults: AtomicU64,
}

impl Tally {
    fn count(&self, kind: &'static str) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        *self
            .kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(kind)
            .or_default() += 1;
    }

    fn fault(&self, words: String) {
        self.num_faults.fetch_add(1, Ordering::Relaxed);
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < MAX_FAULTS {
            faults.push(words);
        }
    }

    /// Wrong answers, the first ones in words.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = self.num_faults.load(Ordering::Relaxed) as usize;
        if all > faults.len() {
            faults.push(format!("and {} more wrong answers", all - faults.len()));
        }
        faults
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests:", self.requests.load(Ordering::Relaxed))?;
        for (kind, count) in self.kinds.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            write!(f, " {kind} {count}")?;
        }
        Ok(())
    }
}

/// A client's wants and where it sends them.
struct Asker<'t> {
    url: String,
    client: Client,
    random: SplitMix64,
    tally: &'t Tally,
}

/// Sends requests until it is stopped.
pub async fn client(url: String, seed: u64, tally: std::sync::Arc<Tally>) {
    let mut asker = Asker {
        client: connections(),
        url,
        random: SplitMix64(seed),
        tally: &tally,
    };
    let mut number = 0;
    while !tally.stop.load(Ordering::Relaxed) {
        number += 1;
        if number % RECONNECT == 0 {
            asker.client = connections();
        }
        let kind = match asker.random.below(100) {
            0..50 => asker.completion().await,
            50..66 => asker.stream().await,
            66..76 => asker.chat().await,
            76..84 => asker.cancel().await,
            84..93 => asker.bad().await,
            93..97 => asker.text().await,
            97 | 98 => asker.adapter().await,
            _ => asker.half_a_request().await,
        };
        tally.count(kind);
    }
}

fn connections() -> Client {
    let client = Client::builder().no_proxy().timeout(ANSWER_TIMEOUT).build();
    client.expect("a client without TLS")
}

impl Asker<'_> {
    /// Fields of a short request.
    fn body(&mut self) -> Value {
        let random = &mut self.random;
        let mut body = json!({"max_tokens": 1 + random.below(8)});
        if random.one_in(2) {
            body["temperature"] = json!(1.5 * (random.below(1001) as f64 / 1000.0));
            body["seed"] = json!(random.below(1000));
        } else {
            body["temperature"] = json!(0);
        }
        let mut maybe = |name: &str, one_in: u64, value: Value| {
            if random.one_in(one_in) {
                body[name] = value;
            }
        };
        maybe("top_p", 4, json!(0.9));
        maybe("top_k", 4, json!(20));
        maybe("min_p", 8, json!(0.02));
        maybe("repetition_penalty", 8, json!(1.1));
        maybe("presence_penalty", 8, json!(0.3));
        maybe("frequency_penalty", 8, json!(-0.2));
        maybe("logit_bias", 12, json!({"17": -100, "9": 3}));
        maybe("stop", 6, json!(["xy", "q"]));
        maybe("n", 12, json!(2));
        maybe("min_tokens", 12, json!(1));
        maybe("ignore_eos", 6, json!(true));
        let model = ["tiny", "tiny", "tiny", "rank4", "rslora8"][random.below(5) as usize];
        body["model"] = model.into();
        body
    }

    fn completion_body(&mut self) -> Value {
        let mut body = self.body();
        let random = &mut self.random;
        body["prompt"] = match random.below(4) {
            0 => json!("The river was wide and the boat was small."),
            1 => json!(
                (0..1 + random.below(40))
                    .map(|at| 5 + (at * 7) % 300)
                    .collect::<Vec<_>>()
            ),
            2 => json!(["a", "Once upon a time"]),
            _ => json!(format!("{} ", random.below(100_000)).repeat(1 + random.below(6) as usize)),
        };
        if random.one_in(8) {
            body["logprobs"] = json!(2);
        }
        if random.one_in(16) {
            body["echo"] = json!(true);
        }
        body
    }

    async fn post(&self, route: &str, body: &Value) -> Option<Response> {
        let sent = self.client.post(format!("{}{route}", self.url)).json(body).send().await;
        sent.inspect_err(|error| self.tally.fault(format!("{route}: {error}: {body}")))
            .ok()
    }

    /// The JSON of a good answer; anything else is a fault, but for a name that another client has taken away.
    async fn good(&self, route: &str, body: &Value) -> Option<Value> {
        let answer = self.post(route, body).await?;
        let status = answer.status();
        let text = answer.text().await.unwrap_or_default();
        let value = serde_json::from_str::<Value>(&text).ok();
        if status != 200 || value.is_none() {
            self.tally.fault(format!("{route}: {status}: {text}: {body}"));
        }
        value
    }

    async fn completion(&mut self) -> &'static str {
        let body = self.completion_body();
        if let Some(answer) = self.good("/v1/completions", &body).await
            && !answer["choices"]
                .as_array()
                .is_some_and(|choices| choices.iter().all(|c| c["finish_reason"].is_string()))
        {
            self.tally.fault(format!("a choice without finish_reason: {answer}"));
        }
        "completion"
    }

    async fn stream(&mut self) -> &'static str {
        let mut body = self.completion_body();
        body["stream"] = true.into();
        // With logprobs and n this is refused in a stream.
        body["echo"] = false.into();
        let Some(answer) = self.post("/v1/completions", &body).await else {
            return "stream";
        };
        let status = answer.status();
        let text = answer.text().await.unwrap_or_default();
        if status != 200 || !text.ends_with("data: [DONE]\n\n") || text.contains("\"error\"") {
            self.tally.fault(format!("stream: {status}: {text}: {body}"));
        }
        "stream"
    }

    async fn chat(&mut self) -> &'static str {
        let mut body = self.body();
        let word = self.random.below(1000);
        body["messages"] = json!([{"role": "user", "content": format!("Say {word}.")}]);
        self.good("/v1/chat/completions", &body).await;
        "chat"
    }

    /// Leaves a stream after some of it, or before the first token.
    async fn cancel(&mut self) -> &'static str {
        let mut body = self.completion_body();
        body["stream"] = true.into();
        body["echo"] = false.into();
        body["max_tokens"] = json!(64);
        body["ignore_eos"] = json!(true);
        if self.random.one_in(3) {
            let request = self.client.post(format!("{}/v1/completions", self.url)).json(&body);
            let wait = Duration::from_millis(self.random.below(5));
            let _ = tokio::time::timeout(wait, request.send()).await;
        } else if let Some(mut answer) = self.post("/v1/completions", &body).await {
            for _ in 0..self.random.below(4) {
                let _ = answer.chunk().await;
            }
        }
        "cancelled"
    }

    /// A body that is refused, with an error object.
    async fn bad(&mut self) -> &'static str {
        let mut body = self.completion_body();
        match self.random.below(8) {
            0 => body["prompt"] = json!({"no": "text"}),
            1 => body["max_tokens"] = json!(-1),
            2 => body["temperature"] = json!("hot"),
            3 => body["model"] = json!("nobody"),
            4 => body["prompt"] = json!(vec![5; 20_000]),
            5 => body["prompt"] = json!([1_000_000]),
            6 => body["top_p"] = json!(7),
            _ => body["stop"] = json!(vec!["x"; 1000]),
        }
        let Some(answer) = self.post("/v1/completions", &body).await else {
            return "bad";
        };
        let status = answer.status().as_u16();
        let value: Value = answer.json().await.unwrap_or_default();
        if !(400..500).contains(&status) || !value["error"]["message"].is_string() {
            let mut shown = body.to_string();
            shown.truncate(300);
            self.tally.fault(format!("a bad body: {status}: {value}: {shown}"));
        }
        "bad"
    }

    async fn text(&mut self) -> &'static str {
        let body =
            json!({"model": "tiny", "prompt": "The river was wide.", "add_special_tokens": self.random.one_in(2)});
        if let Some(answer) = self.good("/tokenize", &body).await {
            self.good("/detokenize", &json!({"model": "tiny", "tokens": answer["tokens"]}))
                .await;
        }
        "text"
    }

    /// Loads an adapter under a name that many use, asks it, unloads it: each may find that another client was faster.
    async fn adapter(&mut self) -> &'static str {
        let name = ["one", "two"][self.random.below(2) as usize];
        let path = fixtures().join("llama-lora/rank16");
        let steps = [
            ("/v1/load_lora_adapter", json!({"lora_name": name, "lora_path": path})),
            (
                "/v1/completions",
                json!({"model": name, "prompt": "a", "max_tokens": 3}),
            ),
            ("/v1/unload_lora_adapter", json!({"lora_name": name})),
        ];
        for (route, body) in steps {
            let Some(answer) = self.post(route, &body).await else {
                continue;
            };
            let status = answer.status().as_u16();
            if ![200, 400, 404, 409].contains(&status) {
                let text = answer.text().await.unwrap_or_default();
                self.tally.fault(format!("{route}: {status}: {text}"));
            }
        }
        "adapter"
    }

    /// A connection that sends a part of a request and goes away.
    async fn half_a_request(&mut self) -> &'static str {
        let address = self.url.trim_start_matches("http://");
        match TcpStream::connect(address).await {
            Ok(mut stream) => {
                let text = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: \
                    application/json\r\nContent-Length: 900\r\n\r\n{";
                let end = self.random.below(text.len() as u64) as usize;
                let _ = stream.write_all(&text.as_bytes()[..end]).await;
            }
            Err(error) => self.tally.fault(format!("no connection: {error}")),
        }
        "half a request"
    }
}
