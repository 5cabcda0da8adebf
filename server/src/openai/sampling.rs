//! The sampling fields that completions and chat share: read leniently (null is absent), converted strictly. A value
//! out of range is an error with value, range and field.

use halyard_engine::SamplingParams;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::lenient::{Flag, Float, Int, integers, is_set, ranged};
use super::model::ModelContext;
use crate::api_error::{ApiError, clip};

/// vLLM's bound and OpenAI's; the engine itself takes more.
const MAX_TEMPERATURE: f64 = 2.0;

/// Sampling fields of a body, as sent. Names are OpenAI's and vLLM's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SamplingFields {
    n: Option<Int>,
    temperature: Option<Float>,
    top_k: Option<Int>,
    top_p: Option<Float>,
    min_p: Option<Float>,
    seed: Option<Int>,
    presence_penalty: Option<Float>,
    frequency_penalty: Option<Float>,
    repetition_penalty: Option<Float>,
    logit_bias: Option<Map<String, Value>>,
    allowed_token_ids: Option<Vec<Int>>,
    bad_words: Option<Vec<String>>,
    min_tokens: Option<Int>,
    stop: Value,
    stop_token_ids: Option<Vec<Int>>,
    include_stop_str_in_output: Option<Flag>,
    ignore_eos: Option<Flag>,
    skip_special_tokens: Option<Flag>,
    prompt_logprobs: Option<Int>,
    /// Not used, but its type is checked, as in vLLM.
    #[serde(rename = "user")]
    _user: Option<String>,
}

impl SamplingFields {
    /// The engine's parameters. `logprobs` and the token limit come from the route, whose fields for them differ.
    ///
    /// # Errors
    /// 400 for the first field out of its range.
    pub fn into_params(self, model: ModelContext<'_>) -> Result<SamplingParams, ApiError> {
        let default = SamplingParams::default();
        let authors = model.defaults;
        let number = |sent: Option<Float>, model: Option<f32>, fallback: f32| {
            sent.map(|Float(value)| value as f32).or(model).unwrap_or(fallback)
        };
        if let Some(Float(sent)) = self.temperature
            && !(0.0..=MAX_TEMPERATURE).contains(&sent)
        {
            let message = format!("temperature is {sent}; it must be between 0 and {MAX_TEMPERATURE}");
            return Err(ApiError::field("temperature", message));
        }
        // -1 and 0 both mean "all tokens" in vLLM.
        let top_k = match self.top_k {
            Some(Int(-1)) => 0,
            Some(Int(k)) => ranged("top_k", k, 0, i64::from(i32::MAX))?,
            None => authors.top_k.unwrap_or(default.top_k),
        };
        Ok(SamplingParams {
            n: self.n.map_or(Ok(1), |Int(n)| {
                ranged("n", n, 1, i64::from(halyard_engine::params::MAX_N))
            })?,
            temperature: number(self.temperature, authors.temperature, default.temperature),
            top_k,
            top_p: number(self.top_p, authors.top_p, default.top_p),
            min_p: number(self.min_p, authors.min_p, default.min_p),
            seed: self.seed.map(|Int(seed)| seed as u64),
            presence_penalty: number(
                self.presence_penalty,
                authors.presence_penalty,
                default.presence_penalty,
            ),
            frequency_penalty: number(
                self.frequency_penalty,
                authors.frequency_penalty,
                default.frequency_penalty,
            ),
            repetition_penalty: number(
                self.repetition_penalty,
                authors.repetition_penalty,
                default.repetition_penalty,
            ),
            logit_bias: logit_bias(self.logit_bias.unwrap_or_default(), model.vocab_size)?,
            allowed_token_ids: self
                .allowed_token_ids
                .map(|ids| token_ids("allowed_token_ids", &integers(&ids), model.vocab_size))
                .transpose()?,
            bad_words_token_ids: bad_words(&self.bad_words.unwrap_or_default(), model)?,
            min_tokens: self
                .min_tokens
                .map_or(Ok(0), |Int(min)| ranged("min_tokens", min, 0, i64::from(u32::MAX)))?,
            max_tokens: None,
            stop: stop_strings("stop", &self.stop, model)?,
            stop_token_ids: token_ids(
                "stop_token_ids",
                &integers(&self.stop_token_ids.unwrap_or_default()),
                model.vocab_size,
            )?,
            include_stop_str_in_output: is_set(self.include_stop_str_in_output),
            ignore_eos: is_set(self.ignore_eos),
            skip_special_tokens: self.skip_special_tokens.is_none_or(|Flag(skip)| skip),
            structured_outputs: None,
            kept_special_tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: self
                .prompt_logprobs
                .map(|Int(n)| num_logprobs("prompt_logprobs", n, model))
                .transpose()?,
        })
    }
}

/// A number of alternatives to report log-probabilities for.
///
/// # Errors
/// 400 past the operator's bound or the engine's.
pub fn num_logprobs(name: &str, value: i64, model: ModelContext<'_>) -> Result<u32, ApiError> {
    let limit = model.serving.max_logprobs.min(halyard_engine::params::MAX_LOGPROBS);
    ranged(name, value, 0, i64::from(limit))
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

fn logit_bias(fields: Map<String, Value>, vocab_size: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let convert = |(id, bias): (String, Value)| {
        let parsed: i64 = id.trim().parse().map_err(|_| {
            ApiError::field(
                "logit_bias",
                format!("logit_bias has the key `{}`; keys are token ids", clip(&id)),
            )
        })?;
        let token = token_ids("logit_bias", &[parsed], vocab_size)?[0];
        let bias: Float = serde_json::from_value(bias).map_err(|_| {
            ApiError::field(
                "logit_bias",
                format!("logit_bias of token {parsed} is not a number; send -100 to 100"),
            )
        })?;
        Ok((token, bias.0 as f32))
    };
    fields.into_iter().map(convert).collect()
}

/// The stop strings of the field `name`.
///
/// # Errors
/// 400 for what is no string, an empty one, and the limits.
pub fn stop_strings(name: &str, sent: &Value, model: ModelContext<'_>) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::field(name, format!("{name} must be a string or a list of strings"));
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
            "{name} has {} strings; at most {} are taken",
            stops.len(),
            limits.stop_strings
        );
        return Err(ApiError::field(name, message));
    }
    for (index, stop) in stops.iter().enumerate() {
        if stop.is_empty() {
            return Err(ApiError::field(name, format!("{name}[{index}] is empty; leave it out")));
        }
        if stop.len() > limits.stop_string_bytes {
            let message = format!(
                "{name}[{index}] has {} bytes; at most {} are taken",
                stop.len(),
                limits.stop_string_bytes
            );
            return Err(ApiError::field(name, message));
        }
    }
    Ok(stops)
}

/// Counts words and their bytes before any of them is encoded: each has a token at least.
fn check_bad_words(words: &[String]) -> Result<(), ApiError> {
    const MAX_BYTES: usize = 64 << 10;
    let most = halyard_engine::params::MAX_BAD_WORD_TOKENS;
    if words.len() > most {
        let message = format!("bad_words has {} words; at most {most} are taken", words.len());
        return Err(ApiError::field("bad_words", message));
    }
    let bytes: usize = words.iter().map(String::len).sum();
    if bytes > MAX_BYTES {
        let message = format!("bad_words has {bytes} bytes; at most {MAX_BYTES} are taken");
        return Err(ApiError::field("bad_words", message));
    }
    Ok(())
}

/// Words become token sequences as vLLM makes them: as written, and with a space before where that is another sequence
/// of the same length with another first token.
fn bad_words(words: &[String], model: ModelContext<'_>) -> Result<Vec<Vec<u32>>, ApiError> {
    check_bad_words(words)?;
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
    fn bad_words_are_counted_before_they_are_encoded() {
        check_bad_words(&vec!["a".to_owned(); 512]).expect("512 words");
        for (words, limit) in [
            (vec!["a".to_owned(); 1_000_000], "at most 512"),
            (vec!["a".repeat(65_537)], "at most 65536"),
        ] {
            let error = check_bad_words(&words).expect_err(limit);
            assert_eq!(error.param.as_deref(), Some("bad_words"));
            assert!(error.message.contains(limit), "{}", error.message);
        }
    }

    #[test]
    fn logit_bias_takes_ids_and_numbers_only() {
        let bias = |value: Value| logit_bias(value.as_object().expect("an object").clone(), 64);
        assert_eq!(bias(json!({"5": -100})).expect("good"), vec![(5, -100.0)]);
        assert_eq!(bias(json!({"5": "1.5"})).expect("good"), vec![(5, 1.5)]);
        for bad in [
            json!({"x": 1}),
            json!({"64": 1}),
            json!({"-1": 1}),
            json!({"1": "much"}),
            json!({"1": null}),
        ] {
            assert_eq!(
                bias(bad.clone()).expect_err("bad").param.as_deref(),
                Some("logit_bias"),
                "{bad}"
            );
        }
    }
}
