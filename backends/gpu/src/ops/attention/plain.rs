//! The plain attention kernel: any type and size, slow. Where a call has too few (token, head) pairs for the device,
//! its keys are shared out too, if the driver's language has the kernel for it.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::ops::Attention;
use halyard_platform_api::{Error, Result};

use super::call::{Call, heads_args, is_aligned};
use super::launch::{TILE_THREADS, WARPS, plain_blocks, tile_blocks};
use super::self_test;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{float_name, kv_name};

/// Tokens that the sequences of a call must have on average to run there.
const TILED_TOKENS: u64 = 8;
/// Most parts of a sequence's keys.
const MAX_PARTS: u32 = 32;
/// Keys that a part should at least have where sequences are as long as they may be.
const PART_KEYS: u32 = 64;

/// The compiled kernel and its fixed parameters.
pub(super) struct Plain {
    function: Function,
    split: Option<Split>,
    tiles: Option<Function>,
    num_heads: u32,
    head_dim: u32,
    block_size: u32,
    group: u32,
    scale: f32,
    softcap: f32,
    window: u32,
}

/// The kernels that share out keys and join the parts' results.
struct Split {
    part: Function,
    join: Function,
    /// Blocks that fill the device.
    blocks: u32,
}

impl Split {
    /// Parts for so many blocks of (token, query head) pairs over sequences of at most `keys`; 1: not worth a second
    /// launch.
    fn parts(&self, blocks: u32, keys: u64) -> u32 {
        let most = keys.div_ceil(u64::from(PART_KEYS)).min(u64::from(MAX_PARTS)) as u32;
        (self.blocks / blocks.max(1)).clamp(1, most.max(1))
    }

    /// Bytes for the parts of a call, for any number of blocks: sums, the highest score and the weights of each.
    fn scratch_bytes(&self, head_dim: u32) -> u64 {
        u64::from(self.blocks) * u64::from(WARPS) * u64::from(head_dim + 2) * 4
    }
}

impl Plain {
    /// Compiles it.
    pub(super) fn prepare(cx: &Preparation<'_>, spec: &Attention) -> Result<Plain> {
        let (Some(act), Some(kv)) = (float_name(spec.act), kv_name(spec.kv)) else {
            return Err(Error::unsupported(format!(
                "attention in {:?} over {:?}",
                spec.act, spec.kv
            )));
        };
        let (head_dim, block) = (spec.head_dim.to_string(), spec.block_size.to_string());
        let defines = [
            ("ACT", act),
            ("KV", kv),
            ("HEAD_DIM", head_dim.as_str()),
            ("BLOCK", block.as_str()),
        ];
        let function = |name| cx.function(kernels::ATTENTION_PLAIN, &defines, name, 0);
        // Not every language has it.
        let text = cx.driver.kernel_text(kernels::ATTENTION_PLAIN)?.text;
        let split = match text.contains("attention_split") {
            true => Some(Split {
                part: function("attention_split")?,
                join: function("attention_join")?,
                blocks: 2 * cx.facts().num_sms.max(1),
            }),
            false => None,
        };
        let plain = function("attention_plain")?;
        let tiles = cx.policy().attention_tiles.as_ref().filter(|tiles| tiles.takes(spec));
        let tiles = match tiles.filter(|_| cx.driver.self_test_matrix_units(spec.act).is_ok()) {
            Some(tiles) => {
                let tiles = cx.function(tiles.source, &defines, "attention_tiles", 0)?;
                let subject = format!("attention of {act} on matrix units, heads of {head_dim}, blocks of {block}");
                cx.self_test(tiles, &subject, |tiles| {
                    self_test::attention(&**cx.driver, plain, tiles, spec)
                })
            }
            None => None,
        };
        Ok(Plain {
            function: plain,
            split,
            tiles,
            num_heads: spec.num_heads,
            head_dim: spec.head_dim,
            block_size: spec.block_size,
            group: spec.num_heads / spec.num_kv_heads,
            scale: spec.scale,
            softcap: spec.softcap,
            window: spec.window,
        })
    }

    /// Scratch while it runs.
    pub(super) fn scratch_bytes(&self) -> u64 {
        self.split
            .as_ref()
            .map_or(0, |split| split.scratch_bytes(self.head_dim))
    }

    /// Appends the launches.
    pub(super) fn encode(&self, encoding: &mut Encoding, call: &Call) -> Result<()> {
        let tokens = call.num_tokens();
        let blocks = plain_blocks(tokens, self.num_heads);
        let keys = match self.window {
            0 => u64::from(call.block_table.shape[1]) * u64::from(self.block_size),
            window => u64::from(window),
        };
        let parts = self.split.as_ref().map_or(1, |split| split.parts(blocks, keys));
        let mut args = call.view_args();
        args.extend([
            Arg::U32(tokens),
            Arg::U32(call.num_seqs()),
            Arg::U32(self.num_heads),
            Arg::U32(self.group),
            Arg::F32(self.scale),
            Arg::F32(self.softcap),
            Arg::U32(self.window),
        ]);
        // Sequences that share a tile follow each other through it, so few tokens each are better off apart.
        let prompts = u64::from(tokens) >= TILED_TOKENS * u64::from(call.num_seqs());
        if let Some(tiles) = self.tiles.filter(|_| prompts && is_aligned(&call.q, 16)) {
            let grid = tile_blocks(tokens, self.num_heads);
            encoding.launch(tiles, grid, TILE_THREADS, 0, &args);
            return Ok(());
        }
        let Some(split) = self.split.as_ref().filter(|_| parts > 1) else {
            encoding.launch(self.function, [blocks, 1, 1], WARPS * 32, 0, &args);
            return Ok(());
        };
        let [out, out_strides @ ..] = heads_args(&call.out);
        args[OUT] = Arg::Scratch(0);
        encoding.launch(split.part, [blocks, parts, 1], WARPS * 32, 0, &args);
        let mut args = vec![Arg::Scratch(0), Arg::U32(parts), Arg::Ptr(call.sinks.ptr), out];
        args.extend(out_strides);
        args.extend([Arg::U32(tokens), Arg::U32(self.num_heads)]);
        encoding.launch(split.join, [blocks, 1, 1], WARPS * 32, 0, &args);
        Ok(())
    }
}

/// Place of `out` among a call's arguments.
const OUT: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;

    fn split() -> Split {
        Split {
            part: Function(1),
            join: Function(2),
            blocks: 264,
        }
    }

    #[test]
    fn few_pairs_over_long_sequences_are_split_and_many_are_not() {
        assert_eq!(split().parts(8, 8192), 32);
        assert_eq!(split().parts(16, 8192), 16);
        assert_eq!(split().parts(8, 130), 3);
        assert_eq!(split().parts(8, 0), 1);
        assert_eq!(split().parts(133, 8192), 1);
    }

    #[test]
    fn scratch_holds_the_parts_of_every_call() {
        for blocks in 1..400 {
            let parts = split().parts(blocks, 1 << 20);
            let used = u64::from(blocks * WARPS * parts) * 130 * 4;
            assert!(
                parts == 1 || used <= split().scratch_bytes(128),
                "{blocks} blocks, {parts} parts"
            );
        }
    }
}
