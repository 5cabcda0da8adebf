//! How a product's activations are laid out: exactly, or rounded where the op allows it and this processor is faster
//! so.

use halyard_kernels_cpu::{ActMode, Isa, WeightFormat, act_bytes, linear_supports};

/// From so many tokens on, integer products go to matrix units where there are some: those multiply 16 tokens at a
/// time, of which the last may be missing. The bits are the same.
const INT8_TILES_FROM: usize = 16;

/// The layouts of one op's activations.
#[derive(Clone, Copy)]
pub(crate) struct Acts {
    mode: ActMode,
    has_tiles: bool,
}

impl Acts {
    /// For products with weights of `format`; `may_round` is the op's permission.
    pub(crate) fn of(isa: Isa, format: WeightFormat, may_round: bool) -> Acts {
        // Without dot products of bf16 pairs, rounding to them costs time and gives nothing.
        let wanted = match may_round {
            true if isa.has_tiles() => [ActMode::Int8, ActMode::Tiles],
            true if isa.has_bf16_dot() => [ActMode::Int8, ActMode::Bf16],
            true => [ActMode::Int8, ActMode::F32],
            false => [ActMode::F32; 2],
        };
        let mode = wanted.into_iter().find(|&mode| linear_supports(format, mode));
        Acts {
            mode: mode.unwrap_or(ActMode::F32),
            has_tiles: isa.has_tiles(),
        }
    }

    /// How activations of so many tokens are laid out. A token's result is the same in each.
    pub(crate) fn mode(self, tokens: usize) -> ActMode {
        match self.mode {
            ActMode::Int8 if self.has_tiles && tokens >= INT8_TILES_FROM => ActMode::Int8Tiles,
            mode => mode,
        }
    }

    /// Bytes that `tokens` rows of `k` values take as they are laid out.
    pub(crate) fn bytes(self, tokens: usize, k: usize) -> usize {
        act_bytes(self.mode(tokens), tokens, k)
    }
}
