//! Compares last hidden states on a device with Hugging Face's (`tests/fixtures/models/make_hidden_states.py`).

use std::path::Path;
use std::sync::Arc;

use halyard_engine::{EngineConfig, FinishReason, Llm, Request, SamplingParams};
use halyard_platform_api::{DType, Device};
use serde_json::Value;

use crate::goldens;

/// Dense families and one with experts, with windows and without.
pub const MODELS: [&str; 4] = ["llama", "qwen3", "qwen3-moe", "gemma3"];
/// The largest difference as a part of the largest value: f32 rounds in another order by less.
pub const BOUND: f32 = 2e-4;

/// A prompt and the hidden state behind its last token.
pub type Golden = (Vec<u32>, Vec<f32>);

/// Prompts and the hidden state behind the last token of each.
///
/// # Errors
/// A file that cannot be read or is not of the form that the script writes.
pub fn read_goldens(folder: &Path) -> Result<Vec<Golden>, String> {
    let golden = goldens::read(&folder.join("hidden-states.json"))?;
    let cases = golden["cases"].as_array().filter(|cases| !cases.is_empty());
    let case = |case: &Value| {
        let state = case["last_hidden_state"].as_array().ok_or("a case has no state")?;
        let state = state.iter().map(|value| Ok(goldens::number(value)? as f32));
        Ok((
            goldens::ids(&case["prompt_ids"])?,
            state.collect::<Result<_, String>>()?,
        ))
    };
    cases.ok_or("the golden file has no cases")?.iter().map(case).collect()
}

/// A request for the hidden state behind a prompt.
pub fn request(prompt: Vec<u32>) -> Request {
    Request {
        hidden_state: true,
        ..Request::new("vector", prompt, SamplingParams::greedy(1))
    }
}

/// The largest difference as a part of the largest value; infinite where the lengths differ.
pub fn distance(found: &[f32], expected: &[f32]) -> f32 {
    if found.len() != expected.len() {
        return f32::INFINITY;
    }
    let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
    let differences = found.iter().zip(expected).map(|(f, e)| (f - e).abs());
    // `max` would drop a NaN.
    differences.fold(
        0f32,
        |most, next| if next > most || next.is_nan() { next } else { most },
    ) / largest
}

/// Asks for every golden's state twice: prompts are longer than a step or come from the prefix cache, and several share
/// a step. Gives the largest distance.
///
/// # Errors
/// A request that was refused or has no state, or a state too far from the golden.
pub fn check(llm: &Llm, goldens: &[Golden]) -> Result<f32, String> {
    let mut worst = 0f32;
    for round in 0..2 {
        let submit = |(ids, _): &Golden| llm.engine().submit(request(ids.clone()));
        let streams = goldens.iter().map(submit).collect::<Result<Vec<_>, _>>();
        for (i, (stream, (_, expected))) in streams.map_err(|e| e.to_string())?.into_iter().zip(goldens).enumerate() {
            let output = stream.blocking_collect().outputs.remove(0);
            let state = match (&output.finish, output.hidden_state) {
                (FinishReason::Length, Some(state)) if output.token_ids.is_empty() => state,
                (finish, _) => return Err(format!("prompt {i}, round {round}: no state, {finish:?}")),
            };
            let distance = distance(&state, expected);
            if distance.is_nan() || distance >= BOUND {
                return Err(format!("prompt {i}, round {round}: {distance} from Hugging Face's"));
            }
            worst = worst.max(distance);
        }
    }
    Ok(worst)
}

/// Every model in f32 on one device; `configure` makes a model's configuration.
pub fn check_models(
    device: &Arc<dyn Device>,
    fixtures: &Path,
    configure: impl Fn(&Path) -> EngineConfig,
) -> Vec<(String, Result<String, String>)> {
    let one = |model: &str| {
        let folder = fixtures.join(model);
        let mut config = configure(&folder);
        config.hidden_states = true;
        (config.model.dtype, config.cache.kv_cache_dtype) = (Some(DType::F32), Some(DType::F32));
        let llm = Llm::open(config, Arc::clone(device)).map_err(|e| e.to_string())?;
        check(&llm, &read_goldens(&folder)?).map(|worst| format!("at most {worst:.1e} of the largest value away"))
    };
    MODELS
        .iter()
        .map(|model| (format!("hidden states {model}"), one(model)))
        .collect()
}
