//! The methods of [`Kernels`]: the crate's door. Owns the checks that make the methods safe to call; computes nothing.

use std::ops::Range;

use half::{bf16, f16};

use crate::act::{ActJob, ActMode, act_bytes, num_act_parts};
use crate::activation::Activation;
use crate::attention_bf16::MAX_HEAD_DIM;
use crate::attention_job::Attention;
use crate::format::WeightFormat;
use crate::kv_coded::MAX_U4_HEAD_DIM;
use crate::kv_layout::KvDtype;
use crate::latent::LatentAttention;
use crate::linear::{LINEAR_SCRATCH, Linear, linear_supports};
use crate::linear_f32::{self, few_tokens};
use crate::pack::{num_panels, packed_bytes};
use crate::reduce::Largest;
use crate::rope::RopeStyle;
use crate::table::Kernels;

/// Lengths that a kernel takes for granted.
macro_rules! check_len {
    ($a:expr, $b:expr) => {
        assert_eq!(
            $a.len(),
            $b.len(),
            concat!("length of ", stringify!($a), " and ", stringify!($b))
        )
    };
}

impl Kernels {
    /// Lays out `parts` (of `num_act_parts(mode, tokens)`) of x \[tokens, k\] f32, rows `stride` elements apart, for
    /// [`Kernels::linear`]. Calls on distinct parts may run at once.
    ///
    /// # Safety
    /// `x` is readable for `tokens` rows, `dst` writable for `act_bytes(mode, tokens, k)`; no other thread touches
    /// these parts of `dst`.
    ///
    /// # Panics
    /// If `parts` passes the last one, or `dst` is not aligned to 4 bytes.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn prepare_act(
        &self,
        mode: ActMode,
        x: *const f32,
        stride: usize,
        tokens: usize,
        k: usize,
        parts: Range<usize>,
        dst: *mut u8,
    ) {
        assert!(
            parts.end <= num_act_parts(mode, tokens),
            "parts {parts:?} of {}",
            num_act_parts(mode, tokens)
        );
        assert!(
            dst.cast::<u32>().is_aligned(),
            "prepared activations at {dst:p} need 4-byte alignment"
        );
        let job = ActJob {
            mode,
            x,
            stride,
            k,
            tokens,
            parts,
            dst,
        };
        // SAFETY: the caller's promise; the table exists only where its instructions run.
        unsafe { (self.prepare_act)(&job) }
    }

    /// out\[:, 16·panels\] = \[out +\] act · Wᵀ \[+ bias\]. Calls on distinct panels may run at once.
    ///
    /// # Safety
    /// `out` is valid for `tokens` rows of `n` f32, `out_stride` apart, and no other thread touches the columns of
    /// `panels`; `weight` was packed from `format` and `act` prepared for `mode`, `tokens` and `k`.
    ///
    /// # Panics
    /// If a buffer is too short or `act` not aligned to 4 bytes, `panels` passes the last panel, or the mode does not
    /// exist for the format.
    pub unsafe fn linear(&self, mut job: Linear<'_>) {
        let Linear {
            format,
            mode,
            n,
            k,
            tokens,
            ..
        } = job;
        assert!(linear_supports(format, mode), "no {mode:?} product of {format:?}");
        assert!(
            job.panels.end <= num_panels(n),
            "panels {:?} of {}",
            job.panels,
            num_panels(n)
        );
        assert!(
            job.weight.len() >= packed_bytes(format, n, k),
            "a packed weight of {} bytes",
            job.weight.len()
        );
        assert!(
            job.act.len() >= act_bytes(mode, tokens, k),
            "prepared activations of {} bytes",
            job.act.len()
        );
        assert!(
            job.act.as_ptr().cast::<u32>().is_aligned(),
            "prepared activations need 4-byte alignment"
        );
        assert!(
            job.scratch.len() >= LINEAR_SCRATCH,
            "scratch of {} elements",
            job.scratch.len()
        );
        assert!(job.bias.is_none_or(|bias| bias.len() >= n), "a bias shorter than {n}");
        // SAFETY: checked above, and the caller's promise; the table exists only where its instructions run.
        unsafe {
            match mode {
                ActMode::F32 if tokens <= few_tokens(self.isa, format) => self.few[format as usize](&mut job),
                ActMode::F32 => linear_f32::many(&mut job, self.decode[format as usize], self.multiply),
                ActMode::Bf16 => (self.linear_bf16)(&mut job),
                ActMode::Tiles => (self.linear_tiles)(&mut job),
                ActMode::Int8 => self.linear_int8[int8_index(format)](&mut job),
                ActMode::Int8Tiles => self.linear_int8_tiles[int8_index(format)](&mut job),
            }
        }
    }

    /// Attention of one sequence's queries over latents, some heads. Calls on distinct queries or heads may run at
    /// once.
    ///
    /// # Safety
    /// The blocks of `block_table` up to the last query's position are readable at `pool`, and no other thread writes
    /// them; queries are readable and `out` is writable for `queries` and `heads`, at the given strides.
    ///
    /// # Panics
    /// If the block table ends before the last query's position or holds a negative block, the scratch is short, or
    /// the layout's type is one of codes.
    pub unsafe fn latent_attention(&self, mut job: LatentAttention<'_>) {
        assert!(!job.layout.dtype.is_coded(), "latents in {:?}", job.layout.dtype);
        let end = job.first_position + job.queries.end;
        let blocks = &job.block_table[..end.div_ceil(job.layout.block_size)];
        assert!(
            blocks.iter().all(|&block| block >= 0),
            "blocks {blocks:?} of {end} keys"
        );
        let needed = job.layout.scratch(job.queries.len() * job.heads.len());
        assert!(
            job.scratch.len() >= needed,
            "scratch of {} for {needed}",
            job.scratch.len()
        );
        // SAFETY: the caller's promise; this table runs on this CPU.
        unsafe { (self.latent_attention)(&mut job) }
    }

    /// Attention of one sequence's queries, one KV head. Calls on distinct queries or heads may run at once.
    ///
    /// # Safety
    /// The blocks of `block_table` that hold `kv_len` tokens are readable at `pool`, and no other thread writes them;
    /// `q` is readable and `out` writable for `queries`, the group's heads and head_dim, at the given strides.
    ///
    /// # Panics
    /// If the block table is shorter than `kv_len` tokens, holds a negative block inside the window, `sinks` is shorter
    /// than the group, the KV head is out of range, or a head in bf16 has more than `MAX_BF16_HEAD_DIM` elements, or in
    /// U4 more than `MAX_U4_HEAD_DIM`.
    pub unsafe fn attention(&self, job: &Attention<'_>) {
        let blocks = job.kv_len.div_ceil(job.layout.block_size);
        assert!(
            job.block_table.len() >= blocks,
            "a table of {} blocks for {blocks}",
            job.block_table.len()
        );
        let seen_from = job
            .window
            .map_or(0, |w| (job.first_position + job.queries.start + 1).saturating_sub(w));
        let seen = &job.block_table[(seen_from / job.layout.block_size).min(blocks)..blocks];
        assert!(seen.iter().all(|&id| id >= 0), "a negative block in {seen:?}");
        assert!(job.kv_head < job.layout.num_kv_heads, "KV head {}", job.kv_head);
        assert!(
            job.layout.dtype != KvDtype::Bf16 || job.layout.head_dim <= MAX_HEAD_DIM,
            "heads of {} elements in bf16",
            job.layout.head_dim
        );
        assert!(
            job.layout.dtype != KvDtype::U4 || job.layout.head_dim <= MAX_U4_HEAD_DIM,
            "heads of {} elements in U4",
            job.layout.head_dim
        );
        assert!(
            job.sinks.is_none_or(|sinks| sinks.len() >= job.group),
            "sinks shorter than {}",
            job.group
        );
        // SAFETY: checked above, and the caller's promise; the table exists only where its instructions run.
        unsafe { (self.attention)(job) }
    }

    /// out = x / √(mean(x²) + eps) · (weight + offset), one row; `offset` is 1 for Gemma, else 0.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], offset: f32, eps: f32, out: &mut [f32]) {
        check_len!(x, weight);
        check_len!(x, out);
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.rms_norm)(x, weight, offset, eps, out) }
    }

    /// out = (x − mean) / √(variance + eps) · weight \[+ bias\], one row.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        check_len!(x, weight);
        check_len!(x, out);
        if let Some(bias) = bias {
            check_len!(x, bias);
        }
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.layer_norm)(x, weight, bias, eps, out) }
    }

    /// Rotates the first `cos_sin.len()` elements of one head in place. `cos_sin` \[rotary_dim\] is the row of the
    /// token's position: rotary_dim / 2 cosines, then as many sines.
    ///
    /// # Panics
    /// If rotary_dim is odd or larger than the head.
    pub fn rope(&self, x: &mut [f32], cos_sin: &[f32], style: RopeStyle) {
        let dim = cos_sin.len();
        assert!(
            dim.is_multiple_of(2) && dim <= x.len(),
            "rotary_dim {dim} of a head of {}",
            x.len()
        );
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.rope)(x, cos_sin, style) }
    }

    /// out = f(x).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn activate(&self, f: Activation, x: &[f32], out: &mut [f32]) {
        check_len!(x, out);
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.activate)(f, x.as_ptr(), None, out.as_mut_ptr(), out.len()) }
    }

    /// out = f(gate) · up: silu_mul, gelu_mul.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn activate_mul(&self, f: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        check_len!(gate, out);
        check_len!(up, out);
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.activate)(f, gate.as_ptr(), Some(up.as_ptr()), out.as_mut_ptr(), out.len()) }
    }

    /// out += x.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, out: &mut [f32], x: &[f32]) {
        check_len!(x, out);
        // SAFETY: the table exists only where its instructions run.
        unsafe { (self.add)(out, x) }
    }

    /// out\[i\] += scale · Σₖ x\[k\]·rows\[i·K + k\], with K = x.len().
    ///
    /// # Panics
    /// If `rows` does not hold K values for each of `out`.
    pub fn add_products(&self, rows: &[f32], x: &[f32], scale: f32, out: &mut [f32]) {
        assert_eq!(rows.len(), x.len() * out.len(), "rows of x's length");
        // SAFETY: the table exists only where its instructions run; the lengths are those.
        unsafe { (self.add_products)(rows, x, scale, out) }
    }

    /// columns\[k·N + i\] = rows\[i·K + k\]: N rows of `k` values become K columns of N.
    ///
    /// # Panics
    /// If `rows` is not whole rows, or `columns` has another length.
    pub fn transpose(&self, rows: &[f32], k: usize, columns: &mut [f32]) {
        assert!(k > 0 && rows.len().is_multiple_of(k), "whole rows of {k} values");
        assert_eq!(rows.len(), columns.len(), "columns of the same values");
        // SAFETY: the table exists only where its instructions run; the lengths are those.
        unsafe { (self.transpose)(rows, k, columns) }
    }

    /// out\[i\] += scale · Σₖ x\[k\]·columns\[k·N + i\], with N = out.len().
    ///
    /// # Panics
    /// If `columns` does not hold N values for each of `x`.
    pub fn add_columns(&self, columns: &[f32], x: &[f32], scale: f32, out: &mut [f32]) {
        assert_eq!(columns.len(), x.len() * out.len(), "columns of out's length");
        // SAFETY: the table exists only where its instructions run; the lengths are those.
        unsafe { (self.add_columns)(columns, x, scale, out) }
    }

    /// x *= factor.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        // SAFETY: the table exists only where its instructions run.
        unsafe { (self.scale)(x, factor) }
    }

    /// x = cap · tanh(x / cap), for cap > 0.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: the table exists only where its instructions run.
        unsafe { (self.softcap)(x, cap) }
    }

    /// x = e^x / Σ e^x, one row.
    pub fn softmax(&self, x: &mut [f32]) {
        // SAFETY: the table exists only where its instructions run.
        unsafe { (self.softmax)(x) }
    }

    /// ln Σ e^x of one row: −∞ if empty, NaN if there is a NaN.
    pub fn logsumexp(&self, x: &[f32]) -> f32 {
        // SAFETY: the table exists only where its instructions run.
        unsafe { (self.logsumexp)(x) }
    }

    /// Index of the largest element: the lowest among equals; or why there is none.
    pub fn argmax(&self, x: &[f32]) -> Largest {
        // SAFETY: the table exists only where its instructions run.
        unsafe { (self.argmax)(x) }
    }

    /// f32 to f16, rounded to nearest even.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f32_to_f16(&self, x: &[f32], out: &mut [f16]) {
        check_len!(x, out);
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.f32_to_f16)(x, out) }
    }

    /// f16 to f32, exact.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f16_to_f32(&self, x: &[f16], out: &mut [f32]) {
        check_len!(x, out);
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.f16_to_f32)(x, out) }
    }

    /// f32 to bf16, rounded to nearest even.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f32_to_bf16(&self, x: &[f32], out: &mut [bf16]) {
        check_len!(x, out);
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.f32_to_bf16)(x, out) }
    }

    /// bf16 to f32, exact.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn bf16_to_f32(&self, x: &[bf16], out: &mut [f32]) {
        check_len!(x, out);
        // SAFETY: lengths checked; the table exists only where its instructions run.
        unsafe { (self.bf16_to_f32)(x, out) }
    }
}

/// Where a format's kernel is in `linear_int8`: of all formats of quants; 8-bit floats stand between them.
const fn int8_index(format: WeightFormat) -> usize {
    let past_floats = format as usize > WeightFormat::F8E4M3 as usize;
    format as usize - WeightFormat::Q4_0 as usize - past_floats as usize
}
