//! Random weights of any shape, for measuring speed without a checkpoint (`--load-format dummy`).
//! Every value is a function of (seed, weight, index) alone: neither the order of loading nor a split
//! into parts changes it.

use std::borrow::Cow;

use half::bf16;
use halyard_platform_api::WeightFormat;

use super::WeightTensor;
use super::role::{LayerWeight, Role};
use crate::config::ModelDescription;

/// Half width of the interval of matrices and biases: a standard deviation of 0.02, the usual initialisation.
const HALF_WIDTH: f32 = 0.034_641_016;

/// How dummy matrices are stored. Norms and biases are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DummyFormat {
    /// bfloat16.
    #[default]
    Bf16,
    /// 32-bit floats.
    F32,
}

/// A recipe for weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DummyWeights {
    /// Same seed, same weights.
    pub seed: u64,
    /// Format of matrices.
    pub format: DummyFormat,
}

impl DummyWeights {
    pub(super) fn format_of(self, role: Role) -> WeightFormat {
        let is_matrix = match role {
            Role::Embedding | Role::LmHead => true,
            Role::FinalNorm => false,
            Role::Layer(_, weight) => is_matrix(weight),
        };
        match (is_matrix, self.format) {
            (true, DummyFormat::Bf16) => WeightFormat::BF16,
            _ => WeightFormat::F32,
        }
    }

    /// Norm weights give a factor of 1; everything else is uniform around 0.
    pub(super) fn tensor(
        self,
        name: String,
        role: Role,
        shape: Vec<usize>,
        model: &ModelDescription,
    ) -> WeightTensor<'static> {
        let num_values: usize = shape.iter().product();
        let key = mix(self.seed ^ mix(role_number(role)));
        let value = |i: usize| {
            if role.is_norm() {
                1.0 - model.norm.weight_offset
            } else {
                uniform(key, i as u64)
            }
        };
        let format = self.format_of(role);
        let mut bytes = vec![0; num_values * format.block_bytes()];
        if format == WeightFormat::BF16 {
            for (i, out) in bytes.chunks_exact_mut(2).enumerate() {
                out.copy_from_slice(&bf16::from_f32(value(i)).to_le_bytes());
            }
        } else {
            for (i, out) in bytes.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&value(i).to_le_bytes());
            }
        }
        WeightTensor {
            name,
            bytes: Cow::Owned(bytes),
            format,
            shape,
        }
    }
}

fn is_matrix(weight: LayerWeight) -> bool {
    use LayerWeight::{DownProj, GateProj, KProj, OProj, QProj, UpProj, VProj};
    matches!(weight, QProj | KProj | VProj | OProj | GateProj | UpProj | DownProj)
}

/// A number of its own for each weight of a model.
fn role_number(role: Role) -> u64 {
    match role {
        Role::Embedding => 1,
        Role::FinalNorm => 2,
        Role::LmHead => 3,
        Role::Layer(i, weight) => (i as u64 + 1) << 8 | weight as u64,
    }
}

/// Uniform in ±[`HALF_WIDTH`].
fn uniform(key: u64, index: u64) -> f32 {
    let bits = mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 40;
    (bits as f32 / (1 << 23) as f32 - 1.0) * HALF_WIDTH
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
