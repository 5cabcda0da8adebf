//! Adapters of random values, for measuring without files.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::check_rank;
use super::{LoraAdapter, LoraLimits, LoraModule, encode};
use crate::config::ModelDescription;
use crate::error::Result;
use crate::split_mix::SplitMix64;
use crate::weights::{Part, Role};

/// Small enough that the changed model still computes with ordinary values.
const HALF_WIDTH: f32 = 0.02;

pub(super) fn adapter(model: &ModelDescription, limits: &LoraLimits, rank: u32, seed: u64) -> Result<LoraAdapter> {
    check_rank(Path::new("dummy adapter"), "rank", u64::from(rank), limits)?;
    let mut modules = BTreeMap::new();
    let mut random = SplitMix64(seed);
    for role in Role::all(model) {
        if let Role::Layer(layer, Part::Weight(linear)) = role
            && limits.targets.has(linear)
        {
            let shape = role.shape(model);
            let mut values = |count: usize| -> Vec<f32> { (0..count).map(|_| next(&mut random)).collect() };
            let (a, b) = (values(rank as usize * shape[1]), values(shape[0] * rank as usize));
            let module = LoraModule {
                rank,
                a: encode(limits.dtype, &a),
                b: encode(limits.dtype, &b),
            };
            modules.insert((layer, linear), module);
        }
    }
    Ok(LoraAdapter {
        rank,
        scale: 1.0,
        dtype: limits.dtype,
        modules,
    })
}

/// A value around 0 from the upper bits of the next number.
fn next(random: &mut SplitMix64) -> f32 {
    ((random.word() >> 40) as f32 / (1 << 23) as f32 - 1.0) * HALF_WIDTH
}
