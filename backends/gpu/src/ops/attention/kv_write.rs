//! `kv_write`, and its fused form that norms and rotates q and k first.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::ops::KvWrite;
use halyard_platform_api::{Error, Result};

use super::call::{cache_args, contiguous_heads, heads_args};
use super::reasons::check_kv_write;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::ops::names::{borrowed, float_name, kv_name};
use crate::view::View;

/// Threads of a block, which stores one token.
pub(super) const THREADS: u32 = 128;

/// The definitions that say what a cache holds: type of k and v, type in the cache, head size, block size.
pub(in crate::ops) fn cache_defines(op: &KvWrite) -> Result<Vec<(&'static str, String)>> {
    let (Some(act), Some(kv)) = (float_name(op.act), kv_name(op.kv)) else {
        return Err(Error::unsupported(format!("kv_write of {:?} as {:?}", op.act, op.kv)));
    };
    Ok(vec![
        ("ACT", act.to_string()),
        ("KV", kv.to_string()),
        ("HEAD_DIM", op.head_dim.to_string()),
        ("BLOCK", op.block_size.to_string()),
    ])
}

/// `kv_write` as an op.
pub(super) struct KvWriteKernel {
    op: KvWrite,
    function: Option<Function>,
}

impl KvWriteKernel {
    /// Checks the spec.
    ///
    /// # Errors
    /// `Unsupported` with all reasons.
    pub(super) fn new(op: &KvWrite) -> Result<KvWriteKernel> {
        check_kv_write(op)?;
        Ok(KvWriteKernel {
            op: op.clone(),
            function: None,
        })
    }
}

impl Kernel for KvWriteKernel {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let defines = cache_defines(&self.op)?;
        self.function = Some(cx.function(kernels::KV_WRITE, &borrowed(&defines), "kv_write", 0)?);
        Ok(())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let (&[k, v, slots, cache], Some(function)) = (operands, self.function) else {
            return Err(Error::invalid(
                "kv_write has 4 operands and is prepared before it is encoded",
            ));
        };
        for (name, view) in [("k", &k), ("v", &v), ("cache", &cache)] {
            contiguous_heads("kv_write", name, view)?;
        }
        let mut args = Vec::with_capacity(11);
        args.extend(heads_args(&k));
        args.extend(heads_args(&v));
        args.push(Arg::Ptr(slots.ptr));
        args.extend(cache_args(&cache));
        args.extend([Arg::U32(slots.len()), Arg::U32(self.op.num_kv_heads)]);
        encoding.launch(function, [slots.len(), 1, 1], THREADS, 0, &args);
        Ok(())
    }
}
