//! Log-probabilities in the three shapes of the wire: legacy completions, chat, and vLLM's prompt log-probabilities.

use halyard_engine::{Logprob, TokenLogprobs};
use halyard_text::Tokenizer;
use serde_json::{Map, Value, json};

/// JSON has no infinity; vLLM sends this for impossible tokens.
const LEAST: f32 = -9999.0;

/// How tokens are written.
#[derive(Clone, Copy)]
pub struct TokenNames<'a> {
    /// Knows the spelling.
    pub tokenizer: &'a Tokenizer,
    /// vLLM's `return_tokens_as_token_ids`: `token_id:17` in place of the text.
    pub as_ids: bool,
}

impl TokenNames<'_> {
    /// The token's text; bytes that are no UTF-8 by themselves show as U+FFFD.
    pub fn name(self, token: u32) -> String {
        if self.as_ids {
            format!("token_id:{token}")
        } else {
            String::from_utf8_lossy(&self.bytes(token)).into_owned()
        }
    }

    fn bytes(self, token: u32) -> Vec<u8> {
        // An id of a padded vocabulary may have no token; its text is empty, as the detokenizer has it.
        self.tokenizer.token_bytes(token).unwrap_or_default()
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_nan() { LEAST } else { logprob.max(LEAST) }
}

/// One entry of chat's `logprobs.content`, with the `top` most likely.
pub fn chat_entry(entry: &TokenLogprobs, top: usize, names: TokenNames<'_>) -> Value {
    let one = |logprob: &Logprob| json!({"token": names.name(logprob.token), "logprob": finite(logprob.logprob), "bytes": names.bytes(logprob.token)});
    let mut value = one(&entry.chosen);
    value["top_logprobs"] = entry.top.iter().take(top).map(one).collect();
    value
}

/// Completions' `logprobs`, built piece by piece.
#[derive(Default)]
pub struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl CompletionLogprobs {
    /// Adds a token; `offset` is where its text begins, in characters, and grows by its length.
    pub fn push(
        &mut self,
        token: u32,
        entry: Option<&TokenLogprobs>,
        top: usize,
        offset: &mut usize,
        names: TokenNames<'_>,
    ) {
        let name = names.name(token);
        let length = if names.as_ids {
            String::from_utf8_lossy(&names.bytes(token)).chars().count()
        } else {
            name.chars().count()
        };
        self.text_offset.push(json!(*offset));
        *offset += length;
        self.tokens.push(Value::from(name));
        self.token_logprobs
            .push(entry.map_or(Value::Null, |entry| json!(finite(entry.chosen.logprob))));
        // OpenAI: up to logprobs + 1 entries, since the chosen token is always among them.
        self.top_logprobs.push(entry.map_or(Value::Null, |entry| {
            let chosen = std::iter::once(&entry.chosen);
            let all = entry.top.iter().take(top).chain(chosen);
            Value::Object(
                all.map(|one| (names.name(one.token), json!(finite(one.logprob))))
                    .collect(),
            )
        }));
    }

    /// The object of the wire.
    pub fn into_json(self) -> Value {
        json!({"text_offset": self.text_offset, "token_logprobs": self.token_logprobs, "tokens": self.tokens, "top_logprobs": self.top_logprobs})
    }
}

/// vLLM's `prompt_logprobs`: for each prompt token a map from token id to log-probability, rank and text; null first.
pub fn prompt_logprobs(entries: &[Option<TokenLogprobs>], tokenizer: &Tokenizer) -> Value {
    let names = TokenNames {
        tokenizer,
        as_ids: false,
    };
    let one = |logprob: &Logprob, rank: u32| {
        let value =
            json!({"logprob": finite(logprob.logprob), "rank": rank, "decoded_token": names.name(logprob.token)});
        (logprob.token.to_string(), value)
    };
    let position = |entry: &Option<TokenLogprobs>| {
        let Some(entry) = entry else { return Value::Null };
        let mut map = Map::new();
        map.extend([one(&entry.chosen, entry.rank)]);
        map.extend(
            (1..)
                .zip(&entry.top)
                .filter(|(_, top)| top.token != entry.chosen.token)
                .map(|(rank, top)| one(top, rank)),
        );
        Value::Object(map)
    };
    entries.iter().map(position).collect()
}
