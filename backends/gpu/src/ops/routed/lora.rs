//! `lora_shrink` and `lora_expand`: a block a token in small steps, tiles of neighbouring tokens beyond, on matrix
//! units where they take the op.

use halyard_kernels_gpu::{LORA, LORA_MATRIX};
use halyard_platform_api::{DType, Error, Result, ops};

use super::support::{Entry, MAX_GRID_Y, THREADS, check_extents, check_inner, float, wrong_count};
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

/// Tokens of a block of the LoRA ops: the engine puts tokens of one adapter side by side, and a block reads its
/// matrices once for all of them.
const LORA_TOKENS: u32 = 8;
/// Up to so many tokens a block a token: fewer blocks would leave most of the device idle.
const LORA_FEW_TOKENS: u32 = 16;
/// Ranks of a block of `lora_shrink`.
const LORA_RANKS: u32 = 4;
/// Threads of a block of `lora_shrink` where a multiprocessor runs so many at once with registers for their loads.
const SHRINK_THREADS: u32 = 512;
/// Ranks of a block of shrink on matrix units, and a multiple of which expand takes.
const TILE_RANKS: u32 = 16;
/// Blocks that share out the width of a tile where there are clusters.
const SLICES: u32 = 8;
/// What the width is a multiple of in shrink on matrix units: two products of a lane's eight values.
const CHUNK: u32 = 32;
/// Features of a warp of expand on matrix units; parts begin at multiples of it.
const WARP_FEATURES: u32 = 32;
/// Least alignment of what the kernels on matrix units read and write, bytes.
const ALIGNMENT: u64 = 16;
/// Largest rank, of all parts together: `lora_expand` keeps its tokens' x in 48 KiB of shared memory.
const MAX_RANK: u32 = 1536;

/// A LoRA op's entry points: for a token a block, and for [`LORA_TOKENS`].
struct LoraEntries {
    few: Entry,
    many: Entry,
}

impl LoraEntries {
    fn new(few: &'static str, many: &'static str, act: &'static str, weight: &'static str) -> LoraEntries {
        LoraEntries {
            few: Entry::new(few, LORA, act, weight),
            many: Entry::new(many, LORA, act, weight),
        }
    }

    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.few.prepare(cx)?;
        self.many.prepare(cx)
    }

    /// The one for a call, and tokens of its blocks.
    fn get(&self, tokens: u32) -> Result<(Function, u32)> {
        if tokens <= LORA_FEW_TOKENS {
            Ok((self.few.get()?, 1))
        } else {
            Ok((self.many.get()?, LORA_TOKENS))
        }
    }
}

/// Whether a call is for matrix units: tokens enough, and rows of `views` that can be read 16 bytes at a time.
fn suits(tokens: u32, views: &[&View]) -> bool {
    let is_aligned = |view: &&View| {
        let size = view.dtype.bytes() as u64;
        let mut outer = view.strides[..view.rank as usize - 1].iter();
        view.ptr.is_multiple_of(ALIGNMENT) && outer.all(|&stride| (u64::from(stride) * size).is_multiple_of(ALIGNMENT))
    };
    tokens > LORA_FEW_TOKENS && views.iter().all(is_aligned)
}

/// Whether `views` may be read before the previous launch has ended.
fn reads_early(encoding: &Encoding, views: &[&View]) -> bool {
    views.iter().all(|view| encoding.is_settled(view))
}

pub(super) struct Shrink {
    op: ops::LoraShrink,
    entries: LoraEntries,
    threads: u32,
    /// On matrix units, and the blocks that share out a width.
    matrix: Option<(Function, u32)>,
}

impl Shrink {
    const NAME: &str = "lora_shrink";

    pub(super) fn new(op: &ops::LoraShrink) -> Result<Shrink> {
        let act = float(Self::NAME, "activations", op.act)?;
        let weight = float(Self::NAME, "weights", op.weight)?;
        check_extents(
            Self::NAME,
            &[
                ("in_features", op.in_features),
                ("max_rank", op.max_rank),
                ("num_slots", op.num_slots),
            ],
        )?;
        Ok(Shrink {
            op: op.clone(),
            entries: LoraEntries::new("lora_shrink_few", "lora_shrink_many", act, weight),
            threads: THREADS,
            matrix: None,
        })
    }
}

impl Kernel for Shrink {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let (facts, op) = (cx.facts(), &self.op);
        if facts.matrix_units {
            self.threads = SHRINK_THREADS;
        }
        if facts.matrix_units
            && (op.act, op.weight) == (DType::BF16, DType::BF16)
            && op.in_features.is_multiple_of(CHUNK)
        {
            let slices = if facts.capability >= 90 { SLICES } else { 1 };
            self.matrix = Some((cx.function(LORA_MATRIX, &[], "lora_shrink_matrix", 0)?, slices));
        }
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [x, a, slots, out] = operands else {
            return Err(wrong_count(Self::NAME, 4, operands));
        };
        check_inner(Self::NAME, &[("x", x), ("a", a), ("out", out)])?;
        let mut args = vec![
            Arg::Ptr(x.ptr),
            Arg::U32(x.row_stride()),
            Arg::Ptr(a.ptr),
            Arg::U32(a.strides[0]),
            Arg::U32(a.strides[1]),
            Arg::Ptr(slots.ptr),
            Arg::U32(slots.row_stride()),
            Arg::Ptr(out.ptr),
            Arg::U32(out.row_stride()),
            Arg::U32(out.len()),
            Arg::U32(self.op.num_slots),
            Arg::U32(self.op.in_features),
            Arg::U32(self.op.max_rank),
        ];
        let matrix = self.matrix.filter(|_| suits(out.len(), &[x, a]));
        if let Some((function, slices)) = matrix {
            args.push(Arg::U32(u32::from(reads_early(encoding, &[slots, a]))));
            let grid = [
                slices,
                self.op.max_rank.div_ceil(TILE_RANKS),
                out.len().div_ceil(LORA_TOKENS),
            ];
            encoding.launch(function, grid, THREADS, 0, &args);
        } else {
            let (function, tokens) = self.entries.get(out.len())?;
            let grid = [out.len().div_ceil(tokens), self.op.max_rank.div_ceil(LORA_RANKS), 1];
            encoding.launch(function, grid, self.threads, 0, &args);
        }
        encoding.settles();
        Ok(())
    }
}

pub(super) struct Expand {
    op: ops::LoraExpand,
    entries: LoraEntries,
    matrix: Option<Function>,
}

impl Expand {
    const NAME: &str = "lora_expand";

    /// Columns of x.
    fn x_width(op: &ops::LoraExpand) -> u32 {
        (op.part_starts().len() as u32 - 1).saturating_mul(op.max_rank)
    }

    pub(super) fn new(op: &ops::LoraExpand) -> Result<Expand> {
        let out = float(Self::NAME, "outputs", op.out)?;
        let weight = float(Self::NAME, "weights", op.weight)?;
        check_extents(
            Self::NAME,
            &[
                ("out_features", op.out_features),
                ("max_rank", op.max_rank),
                ("num_slots", op.num_slots),
            ],
        )?;
        op.check_parts()?;
        if Self::x_width(op) > MAX_RANK {
            return Err(Error::unsupported(format!(
                "{} of rank {} in {} parts: at most {MAX_RANK} together here",
                Self::NAME,
                op.max_rank,
                Self::x_width(op) / op.max_rank
            )));
        }
        if op.out_features.div_ceil(THREADS) > MAX_GRID_Y {
            return Err(Error::unsupported(format!(
                "{} to {} features: at most {} here",
                Self::NAME,
                op.out_features,
                MAX_GRID_Y * THREADS
            )));
        }
        Ok(Expand {
            op: op.clone(),
            entries: LoraEntries::new("lora_expand_few", "lora_expand_many", out, weight),
            matrix: None,
        })
    }
}

impl Kernel for Expand {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let op = &self.op;
        let mut starts = [op.out_features, op.second_part, op.third_part].into_iter();
        let fits = cx.facts().matrix_units
            && (op.out, op.weight) == (DType::BF16, DType::BF16)
            && op.max_rank.is_multiple_of(TILE_RANKS)
            && starts.all(|start| start.is_multiple_of(WARP_FEATURES));
        if fits {
            self.matrix = Some(cx.function(LORA_MATRIX, &[], "lora_expand_matrix", 0)?);
        }
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [x, b, scales, slots, out] = operands else {
            return Err(wrong_count(Self::NAME, 5, operands));
        };
        check_inner(Self::NAME, &[("x", x), ("b", b), ("out", out)])?;
        let x_width = Self::x_width(&self.op);
        // A missing part has no features.
        let start = |part: u32| if part == 0 { u32::MAX } else { part };
        let mut args = vec![
            Arg::Ptr(x.ptr),
            Arg::U32(x.row_stride()),
            Arg::Ptr(b.ptr),
            Arg::U32(b.strides[0]),
            Arg::U32(b.strides[1]),
            Arg::Ptr(scales.ptr),
            Arg::U32(scales.row_stride()),
            Arg::Ptr(slots.ptr),
            Arg::U32(slots.row_stride()),
            Arg::Ptr(out.ptr),
            Arg::U32(out.row_stride()),
            Arg::U32(out.len()),
            Arg::U32(self.op.num_slots),
            Arg::U32(self.op.out_features),
            Arg::U32(self.op.max_rank),
        ];
        let parts = [self.op.second_part, self.op.third_part].map(|part| Arg::U32(start(part)));
        let features = self.op.out_features.div_ceil(THREADS);
        if let Some(function) = self.matrix.filter(|_| suits(out.len(), &[x, b, out])) {
            args.extend(parts);
            args.push(Arg::U32(u32::from(reads_early(encoding, &[slots, b, scales, out]))));
            let grid = [out.len().div_ceil(LORA_TOKENS), features, 1];
            encoding.launch(function, grid, THREADS, 0, &args);
        } else {
            let (function, tokens) = self.entries.get(out.len())?;
            args.push(Arg::U32(x_width));
            args.extend(parts);
            let grid = [out.len().div_ceil(tokens), features, 1];
            encoding.launch(function, grid, THREADS, tokens * x_width * 4, &args);
        }
        encoding.settles();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tokens_take_a_block_each() {
        let entry = |name, at| Entry {
            function: Some(Function(at)),
            ..Entry::new(name, LORA, "f32", "f32")
        };
        let entries = LoraEntries {
            few: entry("few", 1),
            many: entry("many", 2),
        };
        assert_eq!(entries.get(LORA_FEW_TOKENS).unwrap(), (Function(1), 1));
        assert_eq!(entries.get(LORA_FEW_TOKENS + 1).unwrap(), (Function(2), LORA_TOKENS));
    }
}
