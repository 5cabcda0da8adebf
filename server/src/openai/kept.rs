//! What a request to `/v1/responses` has to do with stored responses: the conversation that it goes on with, and what
//! of it is to be kept. Knows no store.

use bytes::Bytes;
use serde_json::{Value, json};

/// What is to be kept of a request.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its own items, a JSON list.
    pub input: Bytes,
    /// The response that it goes on from.
    pub previous: Option<String>,
    /// Whether the client does not wait for the answer.
    pub is_background: bool,
}

/// A request of a conversation and its answer.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The items of the request, a JSON list.
    pub input: Bytes,
    /// The response, JSON.
    pub response: Bytes,
}

/// The turns before a request.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    turns: Vec<Turn>,
}

impl Conversation {
    /// These, in their order.
    pub fn new(turns: Vec<Turn>) -> Self {
        Conversation { turns }
    }

    /// Bytes of JSON in it.
    pub fn num_bytes(&self) -> usize {
        let bytes = |turn: &Turn| turn.input.len() + turn.response.len();
        self.turns.iter().map(bytes).sum()
    }

    /// Its items, asked and answered.
    pub fn items(&self) -> Vec<Value> {
        let list = |text: &Bytes| serde_json::from_slice::<Value>(text).unwrap_or_default();
        let both = |turn: &Turn| [list(&turn.input), list(&turn.response)["output"].take()];
        let lists = self.turns.iter().flat_map(both);
        let items = lists.flat_map(|list| match list {
            Value::Array(items) => items,
            _ => Vec::new(),
        });
        items.collect()
    }
}

/// The items of `input`, a text or a list of items; each has an id.
pub fn input_items(input: &Value) -> Vec<Value> {
    let mut items = match input {
        Value::String(text) => {
            vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})]
        }
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    };
    for item in &mut items {
        if let Value::Object(fields) = item {
            let kind = fields.get("type").and_then(Value::as_str);
            let prefix = match kind {
                Some("reasoning") => "rs",
                Some("function_call") => "fc",
                Some("function_call_output") => "fco",
                _ => "msg",
            };
            if !fields.contains_key("type") {
                fields.insert("type".to_owned(), Value::from("message"));
            }
            if !fields.get("id").is_some_and(Value::is_string) {
                let id = format!("{prefix}_{}", uuid::Uuid::new_v4().simple());
                fields.insert("id".to_owned(), Value::from(id));
            }
        }
    }
    items
}
