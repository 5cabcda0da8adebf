//! Tensor and expert parallelism on real devices: tiny models over two and four ranks, against Hugging Face as one
//! device is, and against one device in batches that grow and shrink, recorded steps included.

use std::path::Path;
use std::sync::Arc;

use halyard_engine::{EngineConfig, Llm};
use halyard_platform_api::{DType, Device};

use crate::goldens::{self, BF16, Bounds, F32, Free};
use crate::recording::{KINDS, REQUESTS, applies, least_equal, serve};

/// Families whose heads four ranks can share; with four, pairs of ranks hold the same KV head.
const FAMILIES: [&str; 5] = ["llama3-rope", "mistral", "qwen2", "qwen3", "gemma3"];

/// Families with experts, which run a second time with whole experts on each rank (`--enable-expert-parallel`). In f32
/// alone: see [`goldens::NOT_IN_BF16`].
const WITH_EXPERTS: [&str; 4] = ["qwen3-moe", "glm4-moe", "deepseek-v3", "gpt-oss"];

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
            let with_experts = WITH_EXPERTS.iter().filter(|_| dtype == DType::F32);
            let divided = FAMILIES
                .iter()
                .chain(with_experts.clone())
                .map(|family| (family, false));
            for (family, whole_experts) in divided.chain(with_experts.map(|family| (family, true))) {
                // Sums of ranks can turn a near tie between two experts (seen: one request of 24 on two H100s).
                let may_turn = if WITH_EXPERTS.contains(family) { 2 } else { 0 };
                let mut config = configure(&fixtures.join(family));
                (config.model.dtype, config.cache.kv_cache_dtype) = (Some(dtype), Some(dtype));
                config.model.enable_expert_parallel = whole_experts;
                let golden = fixtures.join(family).join("goldens.json");
                let outcome = one(ranks, config, &golden, (dtype, bounds), may_turn);
                let kind = if whole_experts { "expert" } else { "tensor" };
                outcomes.push((format!("{kind} parallel {size} {family} {dtype:?}"), outcome));
            }
        }
    }
    outcomes
}

fn one(
    ranks: &[Arc<dyn Device>],
    config: EngineConfig,
    golden: &Path,
    (dtype, bounds): (DType, Bounds),
    may_turn: usize,
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
    let batches = as_one_device(ranks, &config, dtype, may_turn)?;
    Ok(format!(
        "{positions} positions, worst logprob difference {worst:.2e}; {batches}"
    ))
}

/// Serves the same requests on all ranks and on the first one's device alone; in f32 up to `may_turn` of a kind may
/// differ.
fn as_one_device(
    ranks: &[Arc<dyn Device>],
    config: &EngineConfig,
    dtype: DType,
    may_turn: usize,
) -> Result<String, String> {
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
        if dtype == DType::F32 && equal + may_turn < least_equal(dtype) {
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
