//! The policy of a device: which kernels it has and from which sizes each is used, as its driver knows or has measured.
//! Plain data, made once when the device is opened; it prints as one line.

use std::ffi::OsString;
use std::fmt;

use halyard_kernels_gpu::Source;
use halyard_platform_api::ops::Attention;
use halyard_platform_api::{DType, Error, Result};

/// A shape in which `linear_tiled` runs: blocks of 64 output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Tokens of a block.
    pub tokens: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// How `linear_tiled` computes for some types of operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// One more definition for the kernel file.
    pub define: Option<(&'static str, String)>,
    /// The smaller shape, and one for calls whose blocks fill the device.
    pub tiles: [Tile; 2],
    /// In what it computes, as a bug report says it: "in f32".
    pub means: String,
}

impl Tiling {
    /// 64 tokens by 256 threads, whatever the call.
    pub fn plain(means: &str) -> Tiling {
        Tiling {
            define: None,
            tiles: [Tile {
                tokens: 64,
                threads: 256,
            }; 2],
            means: means.to_string(),
        }
    }
}

/// Products of a few tokens, for matrices of whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockProduct {
    /// Output rows of a block.
    pub rows: u32,
    /// Depths of a block.
    pub depths: u32,
    /// Fewest tokens for which the product does better than the plain kernel.
    pub from_tokens: u32,
}

/// The kernel `attention_tiles`, which takes prompts of 16-bit heads over a KV cache of the same type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionTiles {
    /// The file.
    pub source: Source,
    /// Types that the device's matrix units take.
    pub types: Vec<DType>,
    /// Head sizes are multiples of this, from it on.
    pub head_dim_step: u32,
    /// Largest head size.
    pub max_head_dim: u32,
    /// KV blocks are multiples of this, in tokens.
    pub block_step: u32,
}

impl AttentionTiles {
    /// Whether the kernel takes such heads.
    pub fn takes(&self, spec: &Attention) -> bool {
        self.types.contains(&spec.act)
            && spec.kv == spec.act
            && spec.head_dim.is_multiple_of(self.head_dim_step)
            && (self.head_dim_step..=self.max_head_dim).contains(&spec.head_dim)
            && spec.block_size.is_multiple_of(self.block_step)
    }
}

/// Measured on an H200, µs a layer for sequences of 80 to 200 keys of their own behind 1,024 in common, read once and
/// by each: 64 and 256 of an 8B model (201 and 805 MB by this count) 36 and 96, 46 and 165; of Qwen3-30B-A3B (101 and
/// 403 MB) 37 and 69, 34 and 85; 256 of a 135M model (151 MB) 37, 37; 16 of 8B (50 MB) 25, 18.
const COMMON_KEY_BYTES: u64 = 160 << 20;

/// The choices of a device. [`Policy::default`] is for GPUs of which no more is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Output rows and threads of a block of the plain products, which takes 8 tokens.
    pub plain_block: (u32, u32),
    /// Fewest tokens for which [`Driver::product`](crate::Driver::product) of plain weights does better than the plain
    /// kernel.
    pub product_from: u32,
    /// Matrices for which that is so from fewer tokens on.
    pub block_product: Option<BlockProduct>,
    /// Formats in blocks lie as records; else as planes.
    pub records: bool,
    /// Fewest tokens for which such a product of GGUF weights, unpacked for it, does better than the kernel that reads
    /// them as they are; more than 33 counts as that.
    pub unpack_from: u32,
    /// Whether there is a kernel file `linear_dots`, and the device multiplies and adds four pairs of signed bytes fast
    /// enough that products of tokens rounded to 8 bits beat those in f32, where an op allows them.
    pub integer_dots: bool,
    /// `linear_tiled` on matrix units, of 16-bit activations and weights of the same type.
    pub matrix_tiling: Option<Tiling>,
    /// Up to some hundred tokens over plain and 8-bit weights run on `linear_hopper`, on devices that have it.
    pub dense_tiles: bool,
    /// Sequences of a step read keys and values that they have in common once, where those beyond the first 256,
    /// counted for each sequence, are so many bytes in a layer.
    pub common_key_bytes: u64,
    /// Prompts' attention on matrix units, where the kernels of `Facts::matrix_units` do not run.
    pub attention_tiles: Option<AttentionTiles>,
    /// An image holds one entry point only: each is compiled by itself, with `ENTRY_<name>` among the definitions.
    pub separate_entries: bool,
    /// Commands that share no memory may run at once: [`Driver::mark_independent`](crate::Driver::mark_independent) is
    /// worth its cost.
    pub concurrent_commands: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            plain_block: (8, 256),
            product_from: 9,
            block_product: None,
            records: true,
            unpack_from: 33,
            integer_dots: false,
            matrix_tiling: None,
            dense_tiles: true,
            common_key_bytes: COMMON_KEY_BYTES,
            attention_tiles: None,
            separate_entries: false,
            concurrent_commands: false,
        }
    }
}

impl Policy {
    /// Fewest tokens for which a product of plain weights does better than the plain kernel.
    pub fn product_from(&self, in_features: u32, out_features: u32) -> u32 {
        match self.block_product {
            Some(BlockProduct {
                rows,
                depths,
                from_tokens,
            }) if out_features.is_multiple_of(rows) && in_features.is_multiple_of(depths) => from_tokens,
            _ => self.product_from,
        }
    }

    /// `linear_tiled` on matrix units over activations and weights of these types.
    pub fn matrix_tiling(&self, act: DType, weight: DType) -> Option<&Tiling> {
        let takes = [DType::F16, DType::BF16].contains(&act) && weight == act;
        self.matrix_tiling.as_ref().filter(|_| takes)
    }
}

/// "plain products in blocks of 8 rows and 256 threads; library products from 9 tokens, of unpacked weights from 33;
/// …".
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, threads) = self.plain_block;
        write!(
            f,
            "plain products in blocks of {rows} rows and {threads} threads; library products from {} tokens",
            self.product_from
        )?;
        if let Some(block) = &self.block_product {
            let (from, rows, depths) = (block.from_tokens, block.rows, block.depths);
            write!(f, " (from {from} for multiples of {rows} rows and {depths} depths)")?;
        }
        write!(f, ", of unpacked weights from {}; tiles ", self.unpack_from)?;
        match &self.matrix_tiling {
            Some(tiling) => {
                let [small, large] = tiling.tiles;
                write!(f, "{} ({} and {} tokens)", tiling.means, small.tokens, large.tokens)?;
            }
            None => f.write_str("in f32")?,
        }
        if let Some(tiles) = &self.attention_tiles {
            let (types, step, most) = (&tiles.types, tiles.head_dim_step, tiles.max_head_dim);
            let blocks = tiles.block_step;
            write!(
                f,
                "; prompts' attention on matrix units for {types:?}, heads of {step}, {}, … {most}, blocks of \
                 {blocks}·n",
                2 * step
            )?;
        }
        for (set, text) in [
            (self.integer_dots, "tokens rounded to 8 bits where an op allows it"),
            (!self.dense_tiles, "no dense tiles"),
            (
                self.common_key_bytes != COMMON_KEY_BYTES,
                "another bound for keys in common",
            ),
            (self.separate_entries, "one entry point an image"),
            (self.concurrent_commands, "commands that share nothing run at once"),
        ] {
            if set {
                write!(f, "; {text}")?;
            }
        }
        Ok(())
    }
}

/// What the operator says of a path that is on by itself: 0 or 1, in a platform's option or `variable`.
///
/// # Errors
/// `InvalidArgument` naming the variable and what it takes.
pub fn is_on(variable: &str, text: Option<OsString>) -> Result<bool> {
    match text.as_ref().map(|text| text.as_encoded_bytes().trim_ascii()) {
        None | Some(b"1") => Ok(true),
        Some(b"0") => Ok(false),
        Some(_) => Err(Error::invalid(format!(
            "{variable} is {text:?}; it takes 1 (as without it) or 0 (off)"
        ))),
    }
}

/// What the operator says of a number of bytes, in a platform's option or `variable`; `zero`: what 0 means.
///
/// # Errors
/// `InvalidArgument` naming the variable and what it takes.
pub fn number_of_bytes(variable: &str, text: Option<OsString>, zero: &str) -> Result<Option<u64>> {
    let Some(text) = text else {
        return Ok(None);
    };
    match text.to_str().and_then(|text| text.trim().parse().ok()) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(Error::invalid(format!(
            "{variable} is {text:?}; it takes a number of bytes, 0 {zero}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use halyard_kernels_gpu::ATTENTION_TILES;

    use super::*;

    #[test]
    fn a_path_is_on_off_or_an_error_that_names_the_variable() {
        let read = |text: &str| is_on("X_TILES", Some(text.into()));
        assert_eq!(
            (is_on("X_TILES", None), read("1"), read(" 0 ")),
            (Ok(true), Ok(true), Ok(false))
        );
        for text in ["", "yes", "2", "-0"] {
            let error = read(text).expect_err(text);
            assert!(
                error.message.contains("X_TILES") && error.message.contains("0 (off)"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_bound_is_a_number_or_an_error_that_names_the_variable() {
        let read = |text: &str| number_of_bytes("X_BYTES", Some(text.into()), "for none");
        assert_eq!(read(" 8192 "), Ok(Some(8192)));
        assert_eq!(number_of_bytes("X_BYTES", None, "for none"), Ok(None));
        for wrong in ["8k", "", "-1"] {
            let why = read(wrong).expect_err(wrong).message;
            assert!(why.contains(&format!("X_BYTES is {wrong:?}")), "{why}");
            assert!(why.ends_with("0 for none"), "{why}");
        }
    }

    #[test]
    fn tiles_take_16_bit_heads_over_kv_of_their_own_type() {
        use DType::{BF16, F8E4M3, F16, F32};
        let tiles = AttentionTiles {
            source: ATTENTION_TILES,
            types: vec![F16, BF16],
            head_dim_step: 8,
            max_head_dim: 256,
            block_step: 8,
        };
        let heads = |act, kv, head_dim, block_size| Attention {
            backend: 0,
            num_heads: 8,
            num_kv_heads: 2,
            head_dim,
            block_size,
            act,
            kv,
            window: 0,
            scale: 1.0,
            softcap: 0.0,
            has_sinks: false,
            max_tokens: 64,
            max_seqs: 4,
            max_query_len: 64,
            max_kv_len: 512,
        };
        assert!(tiles.takes(&heads(BF16, BF16, 128, 64)) && tiles.takes(&heads(F16, F16, 80, 8)));
        for other in [
            heads(F32, F32, 128, 64),
            heads(BF16, F8E4M3, 128, 64),
            heads(BF16, F16, 128, 64),
            heads(F16, F16, 36, 16),
            heads(BF16, BF16, 512, 16),
            heads(BF16, BF16, 128, 12),
        ] {
            assert!(!tiles.takes(&other), "{other:?}");
        }
    }
}
