//! How ops run on a device: matrix units of CDNA 2 and newer take tiles and prompts' attention.

use halyard_gpu::{ATTENTION_TILES, AttentionTiles, Facts, Policy, Tiling};
use halyard_platform_api::DType;

/// Architectures whose matrix units `mfma.cuh` knows.
const MATRIX_UNITS: [&str; 5] = ["gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"];

/// The choices of a device; `attention`: prompts' attention may run on matrix units.
pub(crate) fn policy(facts: &Facts, attention: bool) -> Policy {
    // An architecture's features follow its name.
    let arch = facts.arch.split(':').next().unwrap_or(&facts.arch);
    if !MATRIX_UNITS.contains(&arch) {
        return Policy::default();
    }
    Policy {
        matrix_tiling: Some(Tiling::plain("on matrix units")),
        attention_tiles: attention.then(|| AttentionTiles {
            source: ATTENTION_TILES,
            types: vec![DType::F16, DType::BF16],
            head_dim_step: 8,
            max_head_dim: 256,
            block_step: 8,
        }),
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arch: &str, attention: bool) -> Policy {
        let facts = Facts {
            name: String::new(),
            detail: String::new(),
            arch: arch.to_string(),
            capability: 0,
            num_sms: 304,
            warp_size: 64,
            matrix_units: false,
            struct_params: true,
            max_shared_bytes: 64 << 10,
            l2_bytes: 0,
            total_memory_bytes: 0,
        };
        policy(&facts, attention)
    }

    /// The tables of `backends/gpu` are made with these policies.
    #[test]
    fn policies_are_those_of_the_tables() {
        let listed = include_str!("../../gpu/src/ops/tests/policies.txt");
        let is_listed = |name: &str, policy: &Policy| listed.lines().any(|line| line == format!("{name}: {policy}"));
        for arch in ["gfx90a:sramecc+:xnack-", "gfx942", "gfx950:sramecc+"] {
            assert!(is_listed("HIP, gfx942, waves of 64", &of(arch, true)), "{arch}");
        }
        for arch in ["gfx906", "gfx908", "gfx1100", "gfx90c:xnack-", "gfx-on-sm_90"] {
            assert!(is_listed("HIP, gfx1100, waves of 32", &of(arch, true)), "{arch}");
        }
    }

    #[test]
    fn attention_can_be_kept_off_matrix_units() {
        let policy = of("gfx942", false);
        assert!(policy.attention_tiles.is_none() && policy.matrix_tiling.is_some());
    }
}
