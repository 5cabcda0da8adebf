//! Tensor parallelism on real devices: tiny models of each family over two and four ranks, against Hugging Face as one device is.

use std::path::Path;
use std::sync::Arc;

use halyard_engine::{EngineConfig, Llm};
use halyard_platform_api::{DType, Device};

use crate::goldens::{self, BF16, Bounds, F32, Free};

/// Families whose heads four ranks can share; with four, pairs of ranks hold the same KV head.
const FAMILIES: [&str; 5] = ["llama3-rope", "mistral", "qwen2", "qwen3", "gemma3"];

/// A check's name, and what it showed or why it failed.
pub type Outcome = (String, Result<String, String>);

/// Runs every family over 2 and 4 of the devices, as far as there are so many; `configure` makes a model's configuration.
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
    let llm = Llm::open_on(config, ranks).map_err(|e| e.to_string())?;
    let cases = goldens::check(&llm, golden, bounds, free)?;
    let positions: usize = cases.iter().map(|case| case.positions).sum();
    let worst = cases.iter().map(|case| case.worst).fold(0.0, f64::max);
    let stats = llm.engine().stats();
    Ok(format!(
        "{positions} positions, worst logprob difference {worst:.2e}, {} of {} steps replayed",
        stats.replayed_steps_total, stats.steps_total
    ))
}
