//! Tensor parallelism on real devices: tiny models of each family over two and four ranks, against Hugging Face as one
//! device is, and against one device in batches that grow and shrink, recorded steps included.

use std::path::Path;
use std::sync::Arc;

use halyard_engine::{EngineConfig, Llm};
use halyard_platform_api::{DType, Device};

use crate::goldens::{self, BF16, Bounds, F32, Free};
use crate::recording::{KINDS, REQUESTS, applies, least_equal, serve};

/// Families whose heads four ranks can share; with four, pairs of ranks hold the same KV head.
const FAMILIES: [&str; 5] = ["llama3-rope", "mistral", "qwen2", "qwen3", "gemma3"];

/// A check's name, and what it showed or why it failed.
pub type Outcome = (String, Result<String, String>);

/// Runs every family over 2 and 4 of the devices, as far as there are so many; `configure` makes a model's
/// configuration.
pub fn check(devices: &[Arc<dyn Device>], fixtures: &Path, configure: impl Fn(&Path) -> EngineConfig) -> Vec<Outcome> {
    let types: [(DType, Bounds); 2] = [(DType::F32, F32), (DType::BF16, BF16)];
    let mut outcomes = Vec::new();
    for size in [2, 4] {
        let Some(ranks) = devices.get(..size) else {
            continue;
        };
        for (dtype, bounds) in types {
            let info = ranks[0].info();
            if !info.compute_dtypes.contains(dtype) || !info.kv_dtypes.contains(dtype) {
                continue;
            }
            for family in FAMILIES {
                let mut config = configure(&fixtures.join(family));
                (config.model.dtype, config.cache.kv_cache_dtype) = (Some(dtype), Some(dtype));
                let golden = fixtures.join(family).join("goldens.json");
                let outcome = one(ranks, config, &golden, dtype, bounds);
                outcomes.push((format!("tensor parallel {size} {family} {dtype:?}"), outcome));
            }
        }
    }
    outcomes
}

fn one(
    ranks: &[Arc<dyn Device>],
    config: EngineConfig,
    golden: &Path,
    dtype: DType,
    bounds: Bounds,
) -> Result<String, String> {
    // In half precision near ties fall either way, so only f32 runs free.
    let free = match dtype {
        DType::F32 => Free::All,
        _ => Free::Only(&[]),
    };
    let llm = Llm::open_on(config.clone(), ranks).map_err(|e| e.to_string())?;
    let cases = goldens::check(&llm, golden, bounds, free)?;
    let positions: usize = cases.iter().map(|case| case.positions).sum();
    let worst = cases.iter().map(|case| case.worst).fold(0.0, f64::max);
    drop(llm);
    let batches = as_one_device(ranks, &config, dtype)?;
    Ok(format!(
        "{positions} positions, worst logprob difference {worst:.2e}; {batches}"
    ))
}

/// Serves the same requests on all ranks and on the first one's device alone.
fn as_one_device(ranks: &[Arc<dyn Device>], config: &EngineConfig, dtype: DType) -> Result<String, String> {
    let (mut fewest, mut replayed) = (REQUESTS as usize, 0);
    for kind in KINDS {
        let run = |devices: &[Arc<dyn Device>]| {
            let llm = Llm::open_on(config.clone(), devices).map_err(|e| e.to_string())?;
            Ok::<_, String>((serve(&llm, kind)?, llm.engine().stats().replayed_steps_total))
        };
        let ((many, steps), (one, _)) = (run(ranks)?, run(&ranks[..1])?);
        let equal = many.iter().zip(&one).filter(|(a, b)| a == b).count();
        // Ranks sum in another order. In half precision that moves logits by a rounding, and sampled tokens soon with
        // them: there the bounds against Hugging Face hold, and here only that steps run and are replayed.
        if dtype == DType::F32 && equal < least_equal(dtype) {
            return Err(format!(
                "{kind}: {equal} of {REQUESTS} requests got one device's tokens"
            ));
        }
        (fewest, replayed) = (fewest.min(equal), replayed + steps);
    }
    if replayed == 0 && applies(&*ranks[0]).is_ok() {
        return Err("no step was replayed; the log says which recordings were refused".to_string());
    }
    Ok(format!(
        "at least {fewest} of {REQUESTS} requests with one device's tokens, {replayed} steps replayed"
    ))
}
