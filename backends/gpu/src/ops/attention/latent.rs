//! `latent_write` and `latent_attention`: which specs run, and their launches. One kernel for every call: a block for a
//! token and four heads.

use halyard_kernels_gpu::LATENT;
use halyard_platform_api::ops::{LatentAttention, LatentWrite};
use halyard_platform_api::{AttentionPlan, DType, Error, Result};

use super::call::{cache_args, contiguous_heads, heads_args};
use super::reasons::{cache_reasons, joined};
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::ops::names::{borrowed, float_name, kv_name};
use crate::view::View;

/// Threads of a block.
const THREADS: u32 = 128;
/// Heads of a block of attention.
const HEADS: u32 = 4;
/// Most values of a row: twelve rows and queries lie in shared memory as f32, of which 48 KiB are everywhere.
const MAX_WIDTH: u32 = 960;

/// All reasons why a spec does not run, one a line.
pub(crate) fn reasons(spec: &LatentAttention) -> Result<()> {
    let row = (spec.latent_dim, spec.rope_dim);
    let mut reasons = row_reasons(spec.backend, spec.act, spec.kv, row, spec.block_size);
    if spec.num_heads == 0 {
        reasons.push("no heads".to_string());
    }
    if !spec.scale.is_finite() {
        reasons.push(format!("scale {} is no finite number", spec.scale));
    }
    joined(&reasons)
}

/// What it needs.
pub(crate) fn plan(spec: &LatentAttention) -> Result<AttentionPlan> {
    reasons(spec)?;
    let row_bytes = u64::from(spec.latent_dim + spec.rope_dim) * spec.kv.bytes() as u64;
    Ok(AttentionPlan {
        block_bytes: u64::from(spec.block_size) * row_bytes,
        scratch_bytes: 0,
        record_decode: true,
        record_mixed_tokens: spec.max_tokens,
    })
}

fn row_reasons(backend: u32, act: DType, kv: DType, (latent, rope): (u32, u32), block_size: u32) -> Vec<String> {
    // The kernels for heads have a bound of their own.
    let mut reasons = cache_reasons(backend, act, kv, 1, block_size);
    let width = latent.saturating_add(rope);
    if latent == 0 || rope == 0 || width > MAX_WIDTH {
        reasons.push(format!(
            "latents of {latent} and keys of {rope}: this platform takes 1 and more of each, together {MAX_WIDTH} at \
             most"
        ));
    }
    reasons
}

/// The definitions that say what a cache holds.
fn defines(act: DType, kv: DType, (latent, rope): (u32, u32), block_size: u32) -> Result<Vec<(&'static str, String)>> {
    let (Some(act), Some(kv)) = (float_name(act), kv_name(kv)) else {
        return Err(Error::unsupported(format!("latents of {act:?} as {kv:?}")));
    };
    Ok(vec![
        ("ACT", act.to_string()),
        ("KV", kv.to_string()),
        ("LATENT", latent.to_string()),
        ("ROPE", rope.to_string()),
        ("BLOCK", block_size.to_string()),
    ])
}

/// `latent_write` as an op.
pub(super) struct WriteKernel {
    op: LatentWrite,
    function: Option<Function>,
}

impl WriteKernel {
    /// Checks the spec.
    ///
    /// # Errors
    /// `Unsupported` with all reasons.
    pub(super) fn new(op: &LatentWrite) -> Result<WriteKernel> {
        let row = (op.latent_dim, op.rope_dim);
        joined(&row_reasons(op.backend, op.act, op.kv, row, op.block_size))?;
        Ok(WriteKernel {
            op: op.clone(),
            function: None,
        })
    }
}

impl Kernel for WriteKernel {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let op = &self.op;
        let defines = defines(op.act, op.kv, (op.latent_dim, op.rope_dim), op.block_size)?;
        self.function = Some(cx.function(LATENT, &borrowed(&defines), "latent_write", 0)?);
        Ok(())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let (&[latent, key, slots, cache], Some(function)) = (operands, self.function) else {
            return Err(Error::invalid(
                "latent_write has 4 operands and is prepared before it is encoded",
            ));
        };
        for (name, view) in [("latent", &latent), ("key", &key), ("cache", &cache)] {
            contiguous_heads("latent_write", name, view)?;
        }
        if slots.is_empty() {
            return Ok(());
        }
        let mut args = vec![
            Arg::Ptr(latent.ptr),
            Arg::U32(latent.row_stride()),
            Arg::Ptr(key.ptr),
            Arg::U32(key.row_stride()),
            Arg::Ptr(slots.ptr),
        ];
        args.extend(cache_args(&cache));
        encoding.launch(function, [slots.len(), 1, 1], THREADS, 0, &args);
        Ok(())
    }
}

/// `latent_attention` as an op.
pub(super) struct AttentionKernel {
    spec: LatentAttention,
    function: Option<Function>,
}

impl AttentionKernel {
    /// Checks the spec.
    ///
    /// # Errors
    /// `Unsupported` with all reasons.
    pub(super) fn new(spec: &LatentAttention) -> Result<AttentionKernel> {
        reasons(spec)?;
        Ok(AttentionKernel {
            spec: spec.clone(),
            function: None,
        })
    }
}

impl Kernel for AttentionKernel {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let spec = &self.spec;
        let defines = defines(spec.act, spec.kv, (spec.latent_dim, spec.rope_dim), spec.block_size)?;
        self.function = Some(cx.function(LATENT, &borrowed(&defines), "latent_attention", 0)?);
        Ok(())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let (&[q_latent, q_rope, cache, table, rows, starts, lens, out], Some(function)) = (operands, self.function)
        else {
            return Err(Error::invalid(
                "latent_attention has 8 operands and is prepared before it is encoded",
            ));
        };
        for (name, view) in [
            ("q_latent", &q_latent),
            ("q_rope", &q_rope),
            ("cache", &cache),
            ("block_table", &table),
            ("out", &out),
        ] {
            contiguous_heads("latent_attention", name, view)?;
        }
        if out.is_empty() || rows.is_empty() {
            return Ok(());
        }
        let mut args = Vec::with_capacity(20);
        args.extend(heads_args(&q_latent));
        args.extend(heads_args(&q_rope));
        args.extend(cache_args(&cache));
        args.extend([
            Arg::Ptr(table.ptr),
            Arg::U32(table.row_stride()),
            Arg::Ptr(rows.ptr),
            Arg::Ptr(starts.ptr),
            Arg::Ptr(lens.ptr),
        ]);
        args.extend(heads_args(&out));
        args.extend([
            Arg::U32(rows.len()),
            Arg::U32(self.spec.num_heads),
            Arg::F32(self.spec.scale),
        ]);
        let blocks = out.len() * self.spec.num_heads.div_ceil(HEADS);
        encoding.launch(function, [blocks, 1, 1], THREADS, 0, &args);
        Ok(())
    }
}
