//! The policy of a device: which kernels its ops use, from its facts and the operator's choices.

use halyard_gpu::{ATTENTION_TILES, AttentionTiles, BlockProduct, Policy, Rounding};
use halyard_platform_api::DType;

use crate::physical::Physical;
use crate::product;

/// Rows, and threads, of a workgroup of plain products where a thread has rows to itself.
const VECTOR_BLOCK: (u32, u32) = (32, 8);
/// The same where 32 threads have two rows.
const ROWS_BLOCK: (u32, u32) = (4, 64);
/// Shared memory that attention on matrix units may take.
const TILES_SHARED_BYTES: u32 = 40 << 10;

/// The choices of a device; `attention`: prompts' attention may run on matrix units.
pub(crate) fn policy(physical: &Physical, rounding: Rounding, attention: bool) -> Policy {
    let mut types = vec![DType::F16, DType::BF16];
    types.retain(|&act| product::multiplies(physical, act));
    let attention = attention && !types.is_empty() && physical.facts.max_shared_bytes >= TILES_SHARED_BYTES;
    Policy {
        plain_block: match physical.passes_in_vectors {
            true => VECTOR_BLOCK,
            false => ROWS_BLOCK,
        },
        block_product: Some(BlockProduct {
            rows: product::SMALL_BATCH_ROWS,
            depths: product::SMALL_BATCH_DEPTHS,
            from_tokens: 2,
        }),
        records: false,
        unpack_from: 9,
        integer_dots: match rounding {
            Rounding::Never => false,
            Rounding::WhereFast => physical.dots.accelerated,
            Rounding::Always => physical.dots.native,
        },
        attention_tiles: attention.then_some(AttentionTiles {
            source: ATTENTION_TILES,
            types,
            head_dim_step: 16,
            max_head_dim: 128,
            block_step: 32,
        }),
        separate_entries: true,
        concurrent_commands: true,
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests {
    use ash::vk;
    use halyard_gpu::Facts;

    use super::*;
    use crate::physical::{Dots, Matrices};

    fn physical() -> Physical {
        Physical {
            handle: vk::PhysicalDevice::null(),
            kind: vk::PhysicalDeviceType::DISCRETE_GPU,
            facts: Facts {
                name: String::new(),
                detail: String::new(),
                arch: String::new(),
                capability: 0,
                num_sms: 132,
                warp_size: 32,
                matrix_units: false,
                struct_params: false,
                max_shared_bytes: 48 << 10,
                l2_bytes: 0,
                total_memory_bytes: 0,
            },
            required_subgroup: None,
            full_subgroups: true,
            passes_in_vectors: false,
            has_subgroup_extension: false,
            queue_family: 0,
            num_queues: 1,
            has_memory_budget: false,
            matrices: Matrices::default(),
            wide: Vec::new(),
            dots: Dots::default(),
            max_allocation_bytes: 0,
            max_group_count: [0; 3],
            max_group_size: 256,
            identity: String::new(),
        }
    }

    /// The tables of `backends/gpu` are made with these policies.
    #[test]
    fn policies_are_those_of_the_tables() {
        let listed = include_str!("../../gpu/src/ops/tests/policies.txt");
        let hold = |name: &str, policy: Policy| {
            let line = format!("{name}: {policy}");
            assert!(listed.lines().any(|known| known == line), "{line}");
        };
        let matrices = Matrices { f16: true, bf16: true };
        let with_matrices = Physical { matrices, ..physical() };
        let fast = Dots {
            native: true,
            by_extension: false,
            accelerated: true,
        };
        let processor = Physical {
            passes_in_vectors: true,
            ..physical()
        };
        hold("Vulkan, no matrix units", policy(&physical(), Rounding::Always, true));
        hold(
            "Vulkan, no matrix units",
            policy(&with_matrices, Rounding::Never, false),
        );
        hold(
            "Vulkan, matrix units",
            policy(&with_matrices, Rounding::WhereFast, true),
        );
        hold("Vulkan, a processor", policy(&processor, Rounding::Never, true));
        let with_dots = Physical {
            dots: fast,
            ..with_matrices
        };
        let name = "Vulkan, matrix units, products of bytes";
        hold(name, policy(&with_dots, Rounding::WhereFast, true));
        hold("Vulkan, matrix units", policy(&with_dots, Rounding::Never, true));
    }

    #[test]
    fn attention_on_matrix_units_needs_shared_memory_and_takes_the_device_s_types() {
        let matrices = Matrices { f16: true, bf16: false };
        let mut physical = Physical { matrices, ..physical() };
        let tiles = policy(&physical, Rounding::Never, true).attention_tiles;
        assert_eq!(tiles.map(|tiles| tiles.types), Some(vec![DType::F16]));
        physical.facts.max_shared_bytes = 32 << 10;
        assert_eq!(policy(&physical, Rounding::Never, true).attention_tiles, None);
    }
}
