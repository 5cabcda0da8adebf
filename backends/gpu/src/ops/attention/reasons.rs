//! The attention specs and KV caches that run on a device, and the reasons why others do not.

use halyard_platform_api::ops::{Attention, KvWrite};
use halyard_platform_api::{DType, Error, Result};

use crate::ops::names::{float_name, kv_name};

/// KV blocks that the kernels are built for, tokens. 64 suits the matrix units best.
pub(crate) const BLOCK_SIZES: [u32; 5] = [8, 16, 32, 64, 128];

/// Most values of a head: the plain kernel keeps a head's sums in registers.
const MAX_HEAD_DIM: u32 = 512;

/// All reasons why a spec does not run, one a line.
pub(crate) fn reasons(spec: &Attention) -> Result<()> {
    let mut reasons = cache_reasons(spec.backend, spec.act, spec.kv, spec.head_dim, spec.block_size);
    if spec.num_kv_heads == 0 || !spec.num_heads.is_multiple_of(spec.num_kv_heads) || spec.num_heads == 0 {
        reasons.push(format!(
            "{} query heads are no multiple of {} KV heads",
            spec.num_heads, spec.num_kv_heads
        ));
    }
    if !spec.scale.is_finite() {
        reasons.push(format!("scale {} is no finite number", spec.scale));
    }
    if !(spec.softcap.is_finite() && spec.softcap >= 0.0) {
        reasons.push(format!(
            "softcap {} is neither 0 (none) nor a positive number",
            spec.softcap
        ));
    }
    joined(&reasons)
}

/// What a KV cache of these types and sizes lacks.
pub(super) fn cache_reasons(backend: u32, act: DType, kv: DType, head_dim: u32, block_size: u32) -> Vec<String> {
    let mut reasons = Vec::new();
    if backend != 0 {
        reasons.push(format!("attention backend {backend}: this platform has one, index 0"));
    }
    if float_name(act).is_none() {
        reasons.push(format!("activations in {act:?}: this platform takes F32, F16 or BF16"));
    }
    if kv_name(kv).is_none() {
        reasons.push(format!(
            "a KV cache in {kv:?}: this platform holds F32, F16, BF16, F8E4M3, or I8 or U4 with scales"
        ));
    }
    if head_dim == 0 || head_dim > MAX_HEAD_DIM {
        reasons.push(format!("head_dim {head_dim}: this platform takes 1 to {MAX_HEAD_DIM}"));
    }
    if !BLOCK_SIZES.contains(&block_size) {
        reasons.push(format!(
            "block size {block_size}: this platform takes {BLOCK_SIZES:?}, best 64"
        ));
    }
    reasons
}

pub(super) fn joined(reasons: &[String]) -> Result<()> {
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Error::unsupported(reasons.join("\n")))
    }
}

/// Checks a `kv_write` spec.
pub(super) fn check_kv_write(op: &KvWrite) -> Result<()> {
    let mut reasons = cache_reasons(op.backend, op.act, op.kv, op.head_dim, op.block_size);
    if op.num_kv_heads == 0 {
        reasons.push("no KV heads".to_string());
    }
    joined(&reasons)
}
