//! Drafted tokens on a device: two a step by prompt lookup, verified by the model, wrong ones rolled back. What comes
//! out is what comes out without them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use halyard_engine::{
    EngineConfig, FinishReason, Llm, PauseMode, Request, SamplingParams, SpeculativeConfig, StatsSnapshot,
};
use halyard_platform_api::{DType, Device};

/// A tiny model with layers of two kinds, one of which keeps a window of keys only.
pub const MODEL: &str = "gemma3";
/// Prompts behind which it repeats itself, and its two best candidates are never nearer to each other than 0.014.
const SEEDS: [u32; 5] = [10, 13, 16, 19, 20];
/// The largest difference of a log-probability: drafts change how many rows a product has.
const LOGPROB_BOUND: f32 = 2e-3;

/// Tokens, the reason of their end, and each chosen token with its log-probability where they were asked for.
pub type Answer = (Vec<u32>, FinishReason, Vec<(u32, f32)>);

/// Few tokens need to have come before, so that many drafts are made and many of them are wrong.
pub fn two_drafts(config: &mut EngineConfig) {
    config.speculative = Some(SpeculativeConfig {
        num_speculative_tokens: 2,
        prompt_lookup_min: 1,
        prompt_lookup_max: 3,
    });
}

/// Some tokens come again, so that there is something to look up from the first token on.
pub fn prompt(seed: u32) -> Vec<u32> {
    (0..14).map(|i| (17 * seed + 5 * (i % 6)) % 200 + 3).collect()
}

/// Requests of several kinds side by side: greedy ones, which draft, and others, which do not.
fn requests() -> Vec<Request> {
    let greedy = |seed, max_tokens| {
        let params = SamplingParams {
            ignore_eos: true,
            ..SamplingParams::greedy(max_tokens)
        };
        Request::new(format!("greedy {seed}"), prompt(seed), params)
    };
    let mut requests: Vec<Request> = SEEDS.iter().map(|&seed| greedy(seed, 55 + seed % 5)).collect();
    requests[1].params.logprobs = Some(3);
    let mut drawn = greedy(7, 20);
    drawn.params = SamplingParams {
        temperature: 0.9,
        seed: Some(3),
        ..drawn.params
    };
    let mut processed = greedy(8, 20);
    processed.params.repetition_penalty = 1.2;
    processed.params.prompt_logprobs = Some(1);
    requests.extend([drawn, processed]);
    requests
}

/// Serves the requests and shuts the engine down.
///
/// # Errors
/// A request that was refused.
pub fn answers(llm: &Llm) -> Result<(Vec<Answer>, StatsSnapshot), String> {
    let engine = llm.engine();
    // All begin in one step, so that two runs have the same batches.
    let held = engine.pause(PauseMode::Keep, false).blocking_wait();
    held.map_err(|e| e.to_string())?;
    let submit = |request| engine.submit(request).map_err(|e| e.to_string());
    let streams = requests().into_iter().map(submit).collect::<Result<Vec<_>, _>>()?;
    engine.resume().blocking_wait().map_err(|e| e.to_string())?;
    let answers = streams
        .into_iter()
        .map(|stream| {
            let output = stream.blocking_collect().outputs.remove(0);
            let logprobs = output.logprobs.unwrap_or_default();
            let logprobs = logprobs.iter().map(|l| (l.chosen.token, l.chosen.logprob)).collect();
            (output.token_ids, output.finish, logprobs)
        })
        .collect();
    llm.engine().shutdown(Duration::from_secs(60));
    Ok((answers, llm.engine().stats()))
}

/// Whether answers are the same: tokens and ends exactly, log-probabilities but for rounding.
///
/// # Errors
/// The first difference.
pub fn same(found: &[Answer], expected: &[Answer]) -> Result<(), String> {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        if (&found.0, &found.1, found.2.len()) != (&expected.0, &expected.1, expected.2.len()) {
            return Err(format!("request {i}: {found:?} and {expected:?}"));
        }
        for (found, expected) in found.2.iter().zip(&expected.2) {
            // NaN is not near.
            let is_near = (found.1 - expected.1).abs() < LOGPROB_BOUND;
            if found.0 != expected.0 || !is_near {
                return Err(format!("request {i}: {found:?} and {expected:?}"));
            }
        }
    }
    Ok(())
}

/// Serves the requests with drafts and without them on one device, in f32; `configure` makes the model's configuration.
///
/// # Errors
/// A difference, or too few drafts that were right or wrong.
pub fn check(
    device: &Arc<dyn Device>,
    fixtures: &Path,
    configure: impl Fn(&Path) -> EngineConfig,
) -> Result<String, String> {
    let run = |drafts: bool| {
        let mut config = configure(&fixtures.join(MODEL));
        (config.model.dtype, config.cache.kv_cache_dtype) = (Some(DType::F32), Some(DType::F32));
        if drafts {
            two_drafts(&mut config);
        }
        answers(&Llm::open(config, Arc::clone(device)).map_err(|e| e.to_string())?)
    };
    let ((expected, plain), (found, stats)) = (run(false)?, run(true)?);
    same(&found, &expected)?;
    if plain.draft_tokens_total != 0 {
        return Err(format!(
            "{} tokens were drafted without being asked for",
            plain.draft_tokens_total
        ));
    }
    let (drafted, right) = (stats.draft_tokens_total, stats.accepted_tokens_total);
    let counts = format!(
        "{right} of {drafted} drafts were right, {} steps for {}",
        stats.steps_total, plain.steps_total
    );
    match right > 20 && drafted > right + 20 {
        true => Ok(counts),
        false => Err(format!("{counts}: 20 and more of each kind are wanted")),
    }
}
