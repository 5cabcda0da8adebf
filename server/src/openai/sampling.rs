//! The sampling fields that completions and chat share: read leniently (null is absent), converted strictly. A value out
//! of range is an error with value, range and field; a field that is known but not acted on yet is an error too.

use halyard_engine::SamplingParams;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::ModelContext;
use crate::http::error::ApiError;
use crate::http::state::clip;

/// Sampling fields of a body, as sent. Names are OpenAI's and vLLM's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SamplingFields {
    n: Option<i64>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    logit_bias: Option<Map<String, Value>>,
    allowed_token_ids: Option<Vec<i64>>,
    bad_words: Option<Vec<String>>,
    min_tokens: Option<i64>,
    stop: Value,
    stop_token_ids: Option<Vec<i64>>,
    include_stop_str_in_output: Option<bool>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    prompt_logprobs: Option<i64>,
}

/// Fields that would change the output and are not acted on yet, with what to do instead.
const UNSUPPORTED: [(&str, &str); 17] = [
    ("best_of", "send n samples and choose among them"),
    ("use_beam_search", "leave it out to sample"),
    ("logits_processors", "leave it out"),
    ("truncate_prompt_tokens", "send a shorter prompt"),
    ("prompt_embeds", "send text or token ids"),
    ("structured_outputs", "leave it out and check the text yourself"),
    ("guided_json", "leave it out and check the text yourself"),
    ("guided_regex", "leave it out and check the text yourself"),
    ("guided_choice", "leave it out and check the text yourself"),
    ("guided_grammar", "leave it out and check the text yourself"),
    ("functions", "leave it out"),
    ("function_call", "leave it out"),
    ("tools", "leave it out"),
    ("audio", "leave it out: this server generates text"),
    ("prediction", "leave it out"),
    ("suffix", "leave it out"),
    (
        "chat_template",
        "render the prompt yourself and send it to /v1/completions",
    ),
];

/// Refuses fields that this server knows and does not act on. Values that change nothing (null, false, an empty list,
/// `best_of` equal to `n`, a text response format) pass.
///
/// # Errors
/// 400 that names the field.
pub fn refuse_unsupported(body: &Value) -> Result<(), ApiError> {
    for (name, remedy) in UNSUPPORTED {
        let value = &body[name];
        let changes_nothing = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(entries) => entries.is_empty(),
            Value::String(text) => text.is_empty() || (name == "function_call" && text == "none"),
            Value::Number(_) => name == "best_of" && *value == *body.get("n").unwrap_or(&Value::from(1)),
            _ => false,
        };
        if !changes_nothing {
            return Err(ApiError::unsupported(name, remedy));
        }
    }
    let format = &body["response_format"];
    let kind = format["type"].as_str();
    if !format.is_null() && kind != Some("text") {
        let kind = clip(kind.unwrap_or("an unnamed type"));
        return Err(ApiError::unsupported(
            "response_format",
            &format!("`{kind}` was asked, only `text` is served"),
        ));
    }
    if let Some(modality) = body["modalities"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| *entry != "text")
    {
        return Err(ApiError::unsupported(
            "modalities",
            &format!("{modality} was asked, only \"text\" is served"),
        ));
    }
    Ok(())
}

impl SamplingFields {
    /// The engine's parameters. `logprobs` and the token limit come from the route, whose fields for them differ.
    ///
    /// # Errors
    /// 400 for the first field out of its range.
    pub fn into_params(self, model: ModelContext<'_>) -> Result<SamplingParams, ApiError> {
        let default = SamplingParams::default();
        let authors = model.defaults;
        let number = |sent: Option<f64>, model: Option<f32>, fallback: f32| {
            sent.map(|value| value as f32).or(model).unwrap_or(fallback)
        };
        // -1 and 0 both mean "all tokens" in vLLM.
        let top_k = match self.top_k {
            Some(-1) => 0,
            Some(k) => ranged("top_k", k, 0, i64::from(i32::MAX))?,
            None => authors.top_k.unwrap_or(default.top_k),
        };
        Ok(SamplingParams {
            n: self
                .n
                .map_or(Ok(1), |n| ranged("n", n, 1, i64::from(halyard_engine::params::MAX_N)))?,
            temperature: number(self.temperature, authors.temperature, default.temperature),
            top_k,
            top_p: number(self.top_p, authors.top_p, default.top_p),
            min_p: number(self.min_p, authors.min_p, default.min_p),
            seed: self.seed.map(|seed| seed as u64),
            presence_penalty: number(self.presence_penalty, None, default.presence_penalty),
            frequency_penalty: number(self.frequency_penalty, None, default.frequency_penalty),
            repetition_penalty: number(
                self.repetition_penalty,
                authors.repetition_penalty,
                default.repetition_penalty,
            ),
            logit_bias: logit_bias(self.logit_bias.unwrap_or_default(), model.vocab_size)?,
            allowed_token_ids: self
                .allowed_token_ids
                .map(|ids| token_ids("allowed_token_ids", &ids, model.vocab_size))
                .transpose()?,
            bad_words_token_ids: bad_words(&self.bad_words.unwrap_or_default(), model)?,
            min_tokens: self
                .min_tokens
                .map_or(Ok(0), |min| ranged("min_tokens", min, 0, i64::from(u32::MAX)))?,
            max_tokens: None,
            stop: stop_strings(&self.stop, model)?,
            stop_token_ids: token_ids(
                "stop_token_ids",
                &self.stop_token_ids.unwrap_or_default(),
                model.vocab_size,
            )?,
            include_stop_str_in_output: self.include_stop_str_in_output.unwrap_or(false),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            logprobs: None,
            prompt_logprobs: self
                .prompt_logprobs
                .map(|n| num_logprobs("prompt_logprobs", n))
                .transpose()?,
        })
    }
}

/// An integer field inside its range.
///
/// # Errors
/// 400 with value and range.
pub fn ranged(name: &str, value: i64, low: i64, high: i64) -> Result<u32, ApiError> {
    match u32::try_from(value) {
        Ok(number) if (low..=high).contains(&value) => Ok(number),
        _ => Err(ApiError::field(
            name,
            format!("{name} is {value}; it must be between {low} and {high}"),
        )),
    }
}

/// A number of alternatives to report log-probabilities for.
///
/// # Errors
/// 400 past the engine's bound.
pub fn num_logprobs(name: &str, value: i64) -> Result<u32, ApiError> {
    ranged(name, value, 0, i64::from(halyard_engine::params::MAX_LOGPROBS))
}

/// Ids that lie in the vocabulary.
///
/// # Errors
/// 400 with the first id that does not, and its position.
pub fn token_ids(name: &str, ids: &[i64], vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    let convert = |(position, id): (usize, &i64)| {
        u32::try_from(*id).ok().filter(|id| *id < vocab_size).ok_or_else(|| {
            let last = vocab_size.saturating_sub(1);
            ApiError::field(
                name,
                format!("{name}[{position}] is {id}, outside the vocabulary of ids 0 to {last}"),
            )
        })
    };
    ids.iter().enumerate().map(convert).collect()
}

/// The token limit of an answer: what was asked, if the context holds it after the prompt, or all that is left.
///
/// # Errors
/// 400 when the asked number does not fit: the answer is never shortened silently.
pub fn max_tokens(
    name: &str,
    asked: Option<i64>,
    default: Option<u32>,
    prompt_tokens: usize,
    max_model_len: u32,
) -> Result<Option<u32>, ApiError> {
    let room = max_model_len.saturating_sub(u32::try_from(prompt_tokens).unwrap_or(u32::MAX));
    let Some(asked) = asked else {
        return Ok(default.map(|limit| limit.min(room.max(1))));
    };
    let value = ranged(name, asked, 1, i64::from(u32::MAX))?;
    if value > room && room > 0 {
        let message = format!(
            "{name} is {value}, but the context holds {max_model_len} tokens and the prompt takes {prompt_tokens} of them: send at most {room} or a shorter prompt"
        );
        return Err(ApiError::field(name, message).with_code("context_length_exceeded"));
    }
    Ok(Some(value))
}

fn logit_bias(fields: Map<String, Value>, vocab_size: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let convert = |(id, bias): (String, Value)| {
        let parsed: i64 = id.trim().parse().map_err(|_| {
            ApiError::field(
                "logit_bias",
                format!("logit_bias has the key `{}`; keys are token ids", clip(&id)),
            )
        })?;
        let token = token_ids("logit_bias", &[parsed], vocab_size)?[0];
        let bias = bias.as_f64().ok_or_else(|| {
            ApiError::field(
                "logit_bias",
                format!("logit_bias of token {parsed} is not a number; send -100 to 100"),
            )
        })?;
        Ok((token, bias as f32))
    };
    fields.into_iter().map(convert).collect()
}

fn stop_strings(sent: &Value, model: ModelContext<'_>) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::field("stop", "stop must be a string or a list of strings");
    let stops: Vec<String> = match sent {
        Value::Null => Vec::new(),
        Value::String(stop) => vec![stop.clone()],
        Value::Array(entries) => entries
            .iter()
            .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong()),
    };
    let limits = model.limits;
    if stops.len() > limits.stop_strings {
        let message = format!(
            "stop has {} strings; at most {} are taken",
            stops.len(),
            limits.stop_strings
        );
        return Err(ApiError::field("stop", message));
    }
    for (index, stop) in stops.iter().enumerate() {
        if stop.is_empty() {
            return Err(ApiError::field("stop", format!("stop[{index}] is empty; leave it out")));
        }
        if stop.len() > limits.stop_string_bytes {
            let message = format!(
                "stop[{index}] has {} bytes; at most {} are taken",
                stop.len(),
                limits.stop_string_bytes
            );
            return Err(ApiError::field("stop", message));
        }
    }
    Ok(stops)
}

/// Words become token sequences as vLLM makes them: as written, and with a space before where that is another sequence
/// of the same length with another first token.
fn bad_words(words: &[String], model: ModelContext<'_>) -> Result<Vec<Vec<u32>>, ApiError> {
    let mut sequences = Vec::new();
    for word in words {
        let bare = word.trim_start();
        if bare.is_empty() {
            return Err(ApiError::field(
                "bad_words",
                "bad_words holds an empty word; leave it out",
            ));
        }
        let plain = model.tokenizer.encode(bare, false)?;
        let spaced = model.tokenizer.encode(&format!(" {bare}"), false)?;
        let differs = spaced.len() == plain.len() && spaced.first() != plain.first();
        sequences.push(plain);
        if differs {
            sequences.push(spaced);
        }
    }
    Ok(sequences)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn refuses_what_would_change_the_output() {
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        for (field, value) in [
            ("tools", tool),
            ("response_format", json!({"type": "json_object"})),
            ("guided_json", json!({})),
            ("guided_choice", json!(["a"])),
            ("best_of", json!(3)),
            ("use_beam_search", json!(true)),
            ("suffix", json!("end")),
            ("modalities", json!(["text", "audio"])),
        ] {
            let error = refuse_unsupported(&json!({field: value})).expect_err(field);
            assert_eq!(error.param.as_deref(), Some(field));
            assert!(error.message.contains("not supported yet"), "{}", error.message);
        }
    }

    #[test]
    fn passes_what_changes_nothing() {
        let body = json!({"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "n": 2, "best_of": 2,
            "use_beam_search": false, "guided_json": null, "suffix": "", "modalities": ["text"], "unheard_of": 1});
        refuse_unsupported(&body).expect("nothing here changes the output");
    }

    #[test]
    fn asked_tokens_must_fit_and_defaults_shrink() {
        let error = max_tokens("max_tokens", Some(91), None, 10, 100).expect_err("90 are left");
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error.message.contains("at most 90"), "{}", error.message);
        assert_eq!(
            max_tokens("max_tokens", Some(90), None, 10, 100).expect("fits"),
            Some(90)
        );
        assert_eq!(
            max_tokens("max_tokens", None, Some(16), 95, 100).expect("default"),
            Some(5)
        );
        assert_eq!(
            max_tokens("max_tokens", None, None, 95, 100).expect("all that is left"),
            None
        );
        for bad in [0, -1, 1 << 40] {
            assert!(max_tokens("max_tokens", Some(bad), None, 10, 100).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_outside_the_vocabulary_are_named() {
        for bad in [-1, 64, i64::MAX] {
            let error = token_ids("prompt", &[1, bad], 64).expect_err("outside");
            assert!(
                error.message.contains(&format!("prompt[1] is {bad}")),
                "{}",
                error.message
            );
        }
        assert_eq!(token_ids("prompt", &[0, 63], 64).expect("inside"), vec![0, 63]);
    }

    #[test]
    fn logit_bias_takes_ids_and_numbers_only() {
        let bias = |value: Value| logit_bias(value.as_object().expect("an object").clone(), 64);
        assert_eq!(bias(json!({"5": -100})).expect("good"), vec![(5, -100.0)]);
        for bad in [
            json!({"x": 1}),
            json!({"64": 1}),
            json!({"-1": 1}),
            json!({"1": "much"}),
        ] {
            assert_eq!(
                bias(bad.clone()).expect_err("bad").param.as_deref(),
                Some("logit_bias"),
                "{bad}"
            );
        }
    }
}
