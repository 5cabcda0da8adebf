//! Log-probabilities in the three shapes of the wire: legacy completions, chat, and vLLM's prompt log-probabilities.

use halyard_engine::{Logprob, TokenLogprobs};
use halyard_text::Tokenizer;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

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

/// As JSON holds it. Written as an f64, digits and all, as vLLM's are.
fn finite(logprob: f32) -> f64 {
    f64::from(if logprob.is_nan() { LEAST } else { logprob.max(LEAST) })
}

/// Chat's `logprobs`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprobs {
    content: Vec<ChatLogprob>,
    /// OpenAI's place for a refusal's tokens: null.
    refusal: Option<()>,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ChatLogprob {
    #[serde(flatten)]
    chosen: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

/// A possible token at a position.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct TokenLogprob {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// The entries of generated tokens, each with the `top` most likely.
    pub fn new(entries: &[TokenLogprobs], top: u32, names: TokenNames<'_>) -> Self {
        let one = |logprob: &Logprob| TokenLogprob {
            token: names.name(logprob.token),
            logprob: finite(logprob.logprob),
            bytes: names.bytes(logprob.token),
        };
        let content = entries.iter().map(|entry| ChatLogprob {
            chosen: one(&entry.chosen),
            top_logprobs: entry.top.iter().take(top as usize).map(one).collect(),
        });
        ChatLogprobs {
            content: content.collect(),
            refusal: None,
        }
    }
}

/// Completions' `logprobs`: lists of equal lengths, built token by token.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f64>>,
    tokens: Vec<String>,
    /// From a token's text to its log-probability. Tokens of the same text share an entry.
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

impl CompletionLogprobs {
    /// Adds a token; `offset` is where its text begins, in characters, and grows by its length.
    pub fn push(
        &mut self,
        token: u32,
        entry: Option<&TokenLogprobs>,
        top: u32,
        offset: &mut usize,
        names: TokenNames<'_>,
    ) {
        let name = names.name(token);
        let length = if names.as_ids {
            String::from_utf8_lossy(&names.bytes(token)).chars().count()
        } else {
            name.chars().count()
        };
        self.text_offset.push(*offset);
        *offset += length;
        self.tokens.push(name);
        self.token_logprobs
            .push(entry.map(|entry| finite(entry.chosen.logprob)));
        // OpenAI: up to logprobs + 1 entries, since the chosen token is always among them.
        self.top_logprobs.push(entry.map(|entry| {
            let all = entry.top.iter().take(top as usize).chain([&entry.chosen]);
            all.map(|one| (names.name(one.token), finite(one.logprob).into()))
                .collect()
        }));
    }
}

/// vLLM's `prompt_logprobs`: one entry for each prompt token, null for the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PromptLogprobs(Vec<Option<Alternatives>>);

/// Possible tokens at a position of the prompt: token id to log-probability and rank.
#[derive(Clone, Debug, PartialEq)]
struct Alternatives(Vec<(u32, PromptLogprob)>);

#[derive(Clone, Debug, PartialEq, Serialize)]
struct PromptLogprob {
    logprob: f64,
    rank: u32,
    decoded_token: String,
}

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, known)| (token, known)))
    }
}

impl PromptLogprobs {
    /// The entries of a prompt.
    pub fn new(entries: &[Option<TokenLogprobs>], tokenizer: &Tokenizer) -> Self {
        let names = TokenNames {
            tokenizer,
            as_ids: false,
        };
        let one = |logprob: &Logprob, rank: u32| {
            let known = PromptLogprob {
                logprob: finite(logprob.logprob),
                rank,
                decoded_token: names.name(logprob.token),
            };
            (logprob.token, known)
        };
        let position = |entry: &TokenLogprobs| {
            let others = (1..).zip(&entry.top);
            let others = others.filter(|(_, top)| top.token != entry.chosen.token);
            let mut all = vec![one(&entry.chosen, entry.rank)];
            all.extend(others.map(|(rank, top)| one(top, rank)));
            Alternatives(all)
        };
        PromptLogprobs(entries.iter().map(|entry| entry.as_ref().map(position)).collect())
    }
}
