//! `latent_attention` on the matrix units of `Facts::matrix_units`: tiles of 16 or 64 (token, head) rows, whose work is
//! divided evenly among as many blocks as there are multiprocessors (`latent_work.cuh`).
//!
//! A call is dispatched by its shapes alone, as a recording is replayed with other contents. How much each block does
//! is found on the device, from the lengths.

use halyard_kernels_gpu::{LATENT_DECODE, LATENT_JOIN, LATENT_TILES};
use halyard_platform_api::Result;
use halyard_platform_api::ops::LatentAttention;

use super::call::Call;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::attention::call::is_aligned;
use crate::ops::names::{borrowed, float_name};

/// Rows of a tile of the decode kernel, and of the other one.
const FEW_ROWS: u32 = 16;
const MANY_ROWS: u32 = 64;
/// Threads of a block, and of one that joins.
const THREADS: u32 = 256;
const JOIN_THREADS: u32 = 512;
/// Most blocks of a launch: bounds the scratch without asking the device.
const MAX_BLOCKS: u32 = 192;
/// Most values of a latent: the sums of a row group stay in registers.
const MAX_LATENT: u32 = 512;
/// Keys of a stage of the decode kernel, and most stages in flight: more do not fit any device.
const DECODE_KEYS: u32 = 32;
const MAX_STAGES: u32 = 5;
/// A block takes at least so many stages of 32 or 64 keys.
const LEAST_STAGES: u32 = 1;

/// The definitions of the kernels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Form {
    act: &'static str,
    latent: u32,
    rope: u32,
    block_size: u32,
    num_heads: u32,
    scale: f32,
}

impl Form {
    /// The form of a spec that the kernels take: 16-bit activations over a cache of the same type, latents of a
    /// multiple of 64 up to 512, keys of a multiple of 16.
    pub(super) fn of(spec: &LatentAttention) -> Option<Form> {
        let act = float_name(spec.act)?;
        let fits = spec.act.bytes() == 2
            && spec.act == spec.kv
            && spec.latent_dim.is_multiple_of(64)
            && (64..=MAX_LATENT).contains(&spec.latent_dim)
            && spec.rope_dim.is_multiple_of(16)
            && (16..=MAX_LATENT).contains(&spec.rope_dim);
        fits.then_some(Form {
            act,
            latent: spec.latent_dim,
            rope: spec.rope_dim,
            block_size: spec.block_size,
            num_heads: spec.num_heads,
            scale: spec.scale,
        })
    }

    /// Panels of 64 values (128 bytes) of a row.
    fn panels(&self) -> u32 {
        (self.latent + self.rope).div_ceil(64)
    }

    /// Dynamic shared memory of the decode kernel.
    fn decode_bytes(&self, stages: u32) -> u32 {
        stages * DECODE_KEYS * 128 * self.panels() + 12800
    }

    /// Dynamic shared memory of the other kernel, with stages of `keys`.
    fn tile_bytes(&self, keys: u32) -> u32 {
        self.panels() * 128 * (MANY_ROWS + 2 * keys) + 9216
    }

    /// Most stages that shared memory holds.
    fn stages(&self, max_shared_bytes: u32) -> Option<u32> {
        (2..=MAX_STAGES)
            .rev()
            .find(|&stages| self.decode_bytes(stages) <= max_shared_bytes)
    }

    /// Most keys of a stage that shared memory holds; `None`: the decode kernel takes every call.
    fn tile_keys(&self, max_shared_bytes: u32) -> Option<u32> {
        [64, 32]
            .into_iter()
            .find(|&keys| self.tile_bytes(keys) <= max_shared_bytes)
    }

    /// Whether a call's sequences have few rows each, on average.
    fn is_few(&self, num_tokens: u32, num_seqs: u32) -> bool {
        u64::from(num_tokens) * u64::from(self.num_heads) <= u64::from(num_seqs) * u64::from(FEW_ROWS)
    }

    /// The parts of the scratch.
    fn scratch(&self, rows: u32, blocks: u32) -> Scratch {
        let (rows, pieces) = (u64::from(rows), 2 * u64::from(blocks));
        let marks = pieces * rows * u64::from(self.latent) * 4;
        let cuts = marks + pieces * rows * 8;
        Scratch {
            marks,
            cuts,
            bytes: cuts + u64::from(blocks) * 16,
        }
    }

    /// The most scratch that any device takes.
    pub(super) fn most_scratch_bytes(&self) -> u64 {
        self.scratch(MANY_ROWS, MAX_BLOCKS).bytes
    }
}

/// Where in the scratch maxima and cut tiles lie, behind the sums of pieces.
#[derive(Debug, PartialEq)]
struct Scratch {
    marks: u64,
    cuts: u64,
    bytes: u64,
}

/// How cut tiles are noted and joined.
#[derive(Debug, PartialEq)]
struct Cuts {
    /// Most of them: the tiles that there may be, or the blocks where these are fewer.
    count: u32,
    /// Whether a cut's number is its tile's; else it is that of the block in which it begins.
    by_tile: bool,
    /// Items (128 columns of a row) of a block that joins: one for all its warps, or one for each.
    items_each: u32,
    /// Blocks that join a cut.
    joins: u32,
}

impl Cuts {
    fn of(form: &Form, num_tokens: u32, num_seqs: u32, rows: u32, blocks: u32) -> Cuts {
        let num_heads = form.num_heads;
        let all = u64::from(num_tokens) * u64::from(num_heads);
        // Each sequence may end in a tile that is not full.
        let ends = if num_heads.is_multiple_of(rows) { 0 } else { num_seqs };
        let tiles = all / u64::from(rows) + u64::from(ends);
        let by_tile = tiles <= u64::from(blocks);
        let count = tiles.min(u64::from(blocks)) as u32;
        let items = rows * form.latent.div_ceil(128);
        let items_each = if count * items <= 8 * blocks {
            1
        } else {
            JOIN_THREADS / 32
        };
        Cuts {
            count,
            by_tile,
            items_each,
            joins: items / items_each,
        }
    }
}

/// A compiled kernel.
struct Variant {
    function: Function,
    join: Function,
    rows: u32,
    blocks: u32,
    shared_bytes: u32,
}

/// The compiled kernels.
pub(super) struct Tiles {
    form: Form,
    few: Variant,
    many: Option<Variant>,
}

impl Tiles {
    /// Compiles them; `None` where the device has no such matrix units or too little shared memory.
    ///
    /// # Errors
    /// Errors of compiler and driver.
    pub(super) fn prepare(cx: &Preparation<'_>, form: Form) -> Result<Option<Tiles>> {
        let facts = cx.facts();
        let Some(stages) = form.stages(facts.max_shared_bytes).filter(|_| facts.matrix_units) else {
            return Ok(None);
        };
        let numbers = [form.latent, form.rope, form.block_size].map(|number| number.to_string());
        let [latent, rope, block] = numbers;
        let common = [
            ("ACT", form.act.to_string()),
            ("LATENT", latent),
            ("ROPE", rope),
            ("BLOCK", block),
        ];
        let with = |numbers: &[(&'static str, u32)]| {
            let mut defines = common.to_vec();
            defines.extend(numbers.iter().map(|&(name, value)| (name, value.to_string())));
            defines
        };
        let blocks = facts.num_sms.clamp(1, MAX_BLOCKS);
        let join = |rows| {
            let [act, latent, ..] = common.clone();
            cx.function(
                LATENT_JOIN,
                &borrowed(&[act, latent, ("ROWS", u32::to_string(&rows))]),
                "latent_join",
                0,
            )
        };
        let shared_bytes = form.decode_bytes(stages);
        let few = Variant {
            function: cx.function(
                LATENT_DECODE,
                &borrowed(&with(&[("STAGES", stages), ("MIN_BLOCKS", 1)])),
                "latent_decode",
                shared_bytes,
            )?,
            join: join(FEW_ROWS)?,
            rows: FEW_ROWS,
            blocks,
            shared_bytes,
        };
        let many = match form.tile_keys(facts.max_shared_bytes) {
            None => None,
            Some(keys) => {
                let shared_bytes = form.tile_bytes(keys);
                Some(Variant {
                    function: cx.function(
                        LATENT_TILES,
                        &borrowed(&with(&[("KEYS", keys)])),
                        "latent_tiles",
                        shared_bytes,
                    )?,
                    join: join(MANY_ROWS)?,
                    rows: MANY_ROWS,
                    blocks,
                    shared_bytes,
                })
            }
        };
        Ok(Some(Tiles { form, few, many }))
    }

    /// Scratch while it runs: what the pieces of cut tiles leave.
    pub(super) fn scratch_bytes(&self) -> u64 {
        let kernels = [Some(&self.few), self.many.as_ref()];
        let bytes = |kernel: &Variant| self.form.scratch(kernel.rows, kernel.blocks).bytes;
        kernels.into_iter().flatten().map(bytes).max().unwrap_or(0)
    }

    /// Whether the kernels can read and write a call's views: 16 and 4 bytes at a time.
    pub(super) fn takes(&self, call: &Call) -> bool {
        is_aligned(&call.q_latent, 16)
            && is_aligned(&call.q_rope, 16)
            && is_aligned(&call.out, 4)
            && call.cache.ptr.is_multiple_of(16)
            && (call.cache.len() < 2 || call.cache.strides[0].is_multiple_of(16))
    }

    /// Appends the launches of a call.
    pub(super) fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let (num_tokens, num_seqs, num_heads) = (call.out.len(), call.step_rows.len(), self.form.num_heads);
        let kernel = match &self.many {
            Some(many) if !self.form.is_few(num_tokens, num_seqs) => many,
            _ => &self.few,
        };
        let cuts = Cuts::of(&self.form, num_tokens, num_seqs, kernel.rows, kernel.blocks);
        let scratch = self.form.scratch(kernel.rows, kernel.blocks);
        let parts = [Arg::Scratch(0), Arg::Scratch(scratch.marks), Arg::Scratch(scratch.cuts)];
        let mut args = call.args();
        args.extend(parts);
        args.extend([
            Arg::U32(cuts.count),
            Arg::U32(u32::from(cuts.by_tile)),
            Arg::U32(num_seqs),
            Arg::U32(num_heads),
            Arg::U32(LEAST_STAGES),
            Arg::F32(self.form.scale),
        ]);
        let grid = [kernel.blocks, 1, 1];
        encoding.launch(kernel.function, grid, THREADS, kernel.shared_bytes, &args);
        let mut args = parts.to_vec();
        args.extend(call.out_args());
        args.extend([Arg::U32(num_heads), Arg::U32(cuts.items_each)]);
        let grid = [cuts.count, cuts.joins, 1];
        encoding.launch(kernel.join, grid, JOIN_THREADS, 0, &args);
    }
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::DType;

    use super::*;

    fn spec() -> LatentAttention {
        LatentAttention {
            num_heads: 16,
            latent_dim: 512,
            rope_dim: 64,
            scale: 0.1,
            act: DType::BF16,
            kv: DType::BF16,
            block_size: 64,
            backend: 0,
            max_seqs: 256,
            max_tokens: 8192,
            max_query_len: 8192,
            max_kv_len: 32768,
        }
    }

    fn form() -> Form {
        Form::of(&spec()).expect("the common shape")
    }

    #[test]
    fn sixteen_bit_latents_of_whole_panels_are_taken() {
        let small = LatentAttention {
            act: DType::F16,
            kv: DType::F16,
            latent_dim: 64,
            rope_dim: 16,
            ..spec()
        };
        assert!(Form::of(&small).is_some());
        let others = [
            LatentAttention {
                act: DType::F32,
                kv: DType::F32,
                ..spec()
            },
            LatentAttention {
                kv: DType::F8E4M3,
                ..spec()
            },
            LatentAttention {
                kv: DType::F16,
                ..spec()
            },
            LatentAttention {
                latent_dim: 80,
                ..spec()
            },
            LatentAttention {
                latent_dim: 576,
                ..spec()
            },
            LatentAttention { rope_dim: 24, ..spec() },
        ];
        for other in others {
            assert_eq!(Form::of(&other), None, "{other:?}");
        }
    }

    #[test]
    fn stages_and_keys_fill_the_shared_memory_that_there_is() {
        let form = form();
        // Hopper, A100, cards with 99 KiB, and one with 64.
        assert_eq!((form.stages(232_448), form.tile_keys(232_448)), (Some(5), Some(64)));
        assert_eq!((form.stages(166_912), form.tile_keys(166_912)), (Some(4), Some(32)));
        assert_eq!((form.stages(101_376), form.tile_keys(101_376)), (Some(2), None));
        assert_eq!((form.stages(65_536), form.tile_keys(65_536)), (None, None));
    }

    #[test]
    fn decodes_and_chunks_go_to_kernels_of_their_own() {
        let form = form();
        assert!(form.is_few(1, 1) && form.is_few(64, 64));
        assert!(!form.is_few(2, 1) && !form.is_few(575, 64));
        let many_heads = Form { num_heads: 128, ..form };
        assert!(!many_heads.is_few(1, 1));
    }

    #[test]
    fn cuts_are_numbered_by_tiles_where_these_are_fewer_than_blocks() {
        let form = form();
        let shape = |cuts: Cuts| (cuts.count, cuts.by_tile, cuts.items_each, cuts.joins);
        let of = |tokens, seqs, rows| shape(Cuts::of(&form, tokens, seqs, rows, 132));
        // One sequence; 64; more than blocks; a prompt.
        assert_eq!(of(1, 1, 16), (1, true, 1, 64));
        assert_eq!(of(64, 64, 16), (64, true, 16, 4));
        assert_eq!(of(256, 256, 16), (132, false, 16, 4));
        assert_eq!(of(4096, 1, 64), (132, false, 16, 16));
        // Heads that do not fill a tile; a small latent.
        let small = Form {
            num_heads: 8,
            latent: 64,
            ..form.clone()
        };
        assert_eq!(shape(Cuts::of(&small, 3, 3, 16, 132)), (4, true, 1, 16));
    }

    #[test]
    fn scratch_holds_two_pieces_of_every_block() {
        let scratch = form().scratch(16, 132);
        assert_eq!(scratch.marks, 2 * 132 * 16 * 512 * 4);
        assert_eq!(scratch.cuts - scratch.marks, 2 * 132 * 16 * 2 * 4);
        assert_eq!(scratch.bytes - scratch.cuts, 132 * 16);
        assert!(form().most_scratch_bytes() < 52 << 20);
    }
}
