//! LoRA adapters on a device, against Hugging Face PEFT: a base model and its adapters in the same steps,
//! teacher-forced and, in f32, running free; with a slot for each adapter, and with one slot that they take in turn
//! while steps run. The base is a folder of Hugging Face's, or a GGUF file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use halyard_engine::{AdapterSource, EngineConfig, Llm, LoraConfig};
use halyard_platform_api::{DType, Device};

use crate::goldens::{self, Bounds, Free};
use crate::recording::{Outcome, applies};

/// A tiny model and its adapters.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The model, below the fixtures.
    pub base: &'static str,
    /// What Hugging Face says without an adapter.
    golden: &'static str,
    /// The folder of its adapters.
    folder: &'static str,
    /// Their names.
    pub adapters: &'static [&'static str],
}

/// Ranks 4, 8 (rank-stabilised) and 16 (with ranks and scales of their own for some linears).
pub const LLAMA: Family = Family {
    base: "llama",
    golden: "llama/goldens.json",
    folder: "llama-lora",
    adapters: &["rank4", "rslora8", "rank16"],
};
/// Quantised weights, and rows of q and k in another order than the adapter's.
pub const GGUF: Family = Family {
    base: "gguf/llama-gguf.gguf",
    golden: "gguf/llama-gguf.golden.json",
    folder: "gguf-lora",
    adapters: &["rank8"],
};

impl Family {
    /// The folder of an adapter.
    pub fn adapter(&self, fixtures: &Path, name: &str) -> PathBuf {
        fixtures.join(self.folder).join(name)
    }

    /// All of them from the start, with `max_loras` slots.
    pub fn config(&self, fixtures: &Path, max_loras: u32) -> LoraConfig {
        let source = |name: &&str| (name.to_string(), AdapterSource::Folder(self.adapter(fixtures, name)));
        LoraConfig {
            adapters: self.adapters.iter().map(source).collect(),
            max_loras,
            ..LoraConfig::default()
        }
    }

    /// Base and every adapter in the same steps, against the goldens of each; in words, what it showed.
    ///
    /// # Errors
    /// The first position that is out of bounds, naming the adapter.
    pub fn check_mixed(&self, llm: &Llm, fixtures: &Path, bounds: Bounds, free: Free) -> Result<String, String> {
        let golden = |name: &&'static str| (Some(*name), self.adapter(fixtures, name).join("goldens.json"));
        let files = std::iter::once((None, fixtures.join(self.golden)));
        let files: Vec<_> = files.chain(self.adapters.iter().map(golden)).collect();
        let all: Vec<_> = files.iter().map(|(name, file)| (*name, file.as_path())).collect();
        let cases = goldens::check_adapters(llm, &all, bounds, free)?;
        let positions: usize = cases.iter().map(|case| case.positions).sum();
        let worst = cases.iter().map(|case| case.worst).fold(0.0, f64::max);
        Ok(format!("{positions} positions, worst logprob difference {worst:.2e}"))
    }
}

/// Checks mixed batches in those of the types that the device computes in; `configure` makes a model's configuration.
pub fn check(
    device: &Arc<dyn Device>,
    fixtures: &Path,
    types: &[(DType, Bounds)],
    configure: impl Fn(&Path) -> EngineConfig,
) -> Vec<Outcome> {
    let info = device.info();
    let mut outcomes = Vec::new();
    for &(dtype, bounds) in types {
        if !info.compute_dtypes.contains(dtype) || !info.kv_dtypes.contains(dtype) {
            continue;
        }
        for (family, slots) in [(LLAMA, 3), (LLAMA, 1), (GGUF, 1)] {
            let mut config = configure(&fixtures.join(family.base));
            (config.model.dtype, config.cache.kv_cache_dtype) = (Some(dtype), Some(dtype));
            config.lora = Some(family.config(fixtures, slots));
            let outcome = one(device, config, family, fixtures, (dtype, bounds));
            let plural = if slots == 1 { "" } else { "s" };
            outcomes.push((format!("lora {} {slots} slot{plural} {dtype:?}", family.base), outcome));
        }
    }
    outcomes
}

fn one(
    device: &Arc<dyn Device>,
    config: EngineConfig,
    family: Family,
    fixtures: &Path,
    (dtype, bounds): (DType, Bounds),
) -> Result<String, String> {
    // In half precision near ties fall either way, so only f32 runs free.
    let free = match dtype {
        DType::F32 => Free::All,
        _ => Free::Only(&[]),
    };
    let llm = Llm::open(config, Arc::clone(device)).map_err(|e| e.to_string())?;
    let words = family.check_mixed(&llm, fixtures, bounds, free)?;
    let loads: u64 = llm.engine().adapters().iter().map(|one| one.device_loads_total).sum();
    if loads < family.adapters.len() as u64 {
        return Err(format!(
            "{loads} copies into slots for {} adapters",
            family.adapters.len()
        ));
    }
    let replayed = llm.engine().stats().replayed_steps_total;
    // What runs free is decoded, and decode steps are recorded where the device can.
    if dtype == DType::F32 && applies(&**device).is_ok() && replayed == 0 {
        return Err("no step was replayed; the log says which recordings were refused".to_string());
    }
    Ok(format!("{words}; {loads} copies into slots, {replayed} steps replayed"))
}
