//! `latent_write` and `latent_attention`: which specs run, and their launches. Attention runs on matrix units where
//! spec, device and views allow (`tiles`), else on a plain kernel: a block for a token and four heads.

mod call;
mod tiles;

use halyard_kernels_gpu::LATENT;
use halyard_platform_api::ops::{LatentAttention, LatentWrite};
use halyard_platform_api::{AttentionPlan, DType, Error, Result};

use self::call::Call;
use self::tiles::{Form, Tiles};
use super::call::{cache_args, contiguous_heads};
use super::reasons::{cache_reasons, joined};
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::ops::names::{borrowed, float_name, kv_code_bits, kv_name};
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
        scratch_bytes: Form::of(spec).map_or(0, |form| form.most_scratch_bytes()),
        record_decode: true,
        record_mixed_tokens: spec.max_tokens,
    })
}

fn row_reasons(backend: u32, act: DType, kv: DType, (latent, rope): (u32, u32), block_size: u32) -> Vec<String> {
    // The kernels for heads have a bound of their own.
    let mut reasons = cache_reasons(backend, act, kv, 1, block_size);
    if kv_code_bits(kv).is_some() {
        reasons.push(format!(
            "a KV cache in {kv:?}: latents are held in F32, F16, BF16 or F8E4M3 (one scale for latent and rope part \
             loses one of them)"
        ));
    }
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
    kernels: Option<Kernels>,
}

/// The compiled kernels.
struct Kernels {
    tiles: Option<Tiles>,
    plain: Function,
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
            kernels: None,
        })
    }
}

impl Kernel for AttentionKernel {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let spec = &self.spec;
        let defines = defines(spec.act, spec.kv, (spec.latent_dim, spec.rope_dim), spec.block_size)?;
        let tiles = match Form::of(spec) {
            Some(form) => Tiles::prepare(cx, form)?,
            None => None,
        };
        self.kernels = Some(Kernels {
            tiles,
            plain: cx.function(LATENT, &borrowed(&defines), "latent_attention", 0)?,
        });
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        let tiles = self.kernels.as_ref().and_then(|kernels| kernels.tiles.as_ref());
        tiles.map_or(0, Tiles::scratch_bytes)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let call = Call::of(operands)?;
        let Some(kernels) = &self.kernels else {
            return Err(Error::invalid("latent_attention was encoded before it was prepared"));
        };
        if call.out.is_empty() || call.step_rows.is_empty() {
            return Ok(());
        }
        if let Some(tiles) = kernels.tiles.as_ref().filter(|tiles| tiles.takes(&call)) {
            tiles.encode(encoding, &call);
            return Ok(());
        }
        let mut args = call.args();
        args.extend([
            Arg::U32(call.step_rows.len()),
            Arg::U32(self.spec.num_heads),
            Arg::F32(self.spec.scale),
        ]);
        let blocks = call.out.len() * self.spec.num_heads.div_ceil(HEADS);
        encoding.launch(kernels.plain, [blocks, 1, 1], THREADS, 0, &args);
        Ok(())
    }
}
