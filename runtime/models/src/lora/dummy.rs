//! Adapters of random values, for measuring without files.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::check_rank;
use super::{LoraAdapter, LoraLimits, LoraModule, encode};
use crate::config::ModelDescription;
use crate::error::Result;
use crate::weights::{Part, Role};

/// Small enough that the changed model still computes with ordinary values.
const HALF_WIDTH: f32 = 0.02;

pub(super) fn adapter(model: &ModelDescription, limits: &LoraLimits, rank: u32, seed: u64) -> Result<LoraAdapter> {
    check_rank(Path::new("dummy adapter"), "rank", u64::from(rank), limits)?;
    let mut modules = BTreeMap::new();
    let mut state = seed;
    for role in Role::all(model) {
        if let Role::Layer(layer, Part::Weight(linear)) = role
            && limits.targets.has(linear)
        {
            let shape = role.shape(model);
            let mut values = |count: usize| -> Vec<f32> { (0..count).map(|_| next(&mut state)).collect() };
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

/// SplitMix64 (Steele et al. 2014), its upper bits as a value around 0.
fn next(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z >> 40) as f32 / (1 << 23) as f32 - 1.0) * HALF_WIDTH
}
