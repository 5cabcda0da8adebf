//! `kv_write` and `attention` over paged KV: which specs run, on which kernel, with which scratch memory. The block
//! layout is that of the kernels' `kv.cuh`; the split into files follows the kernels.
//!
//! A call is dispatched by its shapes alone, as a recording is replayed with other contents: one token a sequence goes
//! to the decode kernel; more tokens than sequences go to the prefill kernel (sequences of several tokens) and the
//! decode kernel (the others). Each kernel skips the other's sequences. Specs that matrix units do not take run on the
//! plain kernel.

mod call;
pub(super) mod decode;
mod kv_write;
mod latent;
mod launch;
mod plain;
mod prefill;
mod reasons;
pub(crate) mod self_test;
mod teams;

use halyard_platform_api::ops::Attention;
use halyard_platform_api::{AttentionPlan, Error, OpSpec, Result};

use crate::encoding::Encoding;
use crate::kernel::{Kernel, Preparation, both, boxed};
use crate::view::View;

use self::call::block_bytes;
pub(super) use self::call::{Call, cache_args, heads_args};
pub(super) use self::kv_write::cache_defines;
pub(crate) use self::latent::{plan as latent_plan, reasons as latent_reasons};
pub(crate) use self::reasons::{BLOCK_SIZES, reasons};

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    match spec {
        OpSpec::KvWrite(op) => Some(kv_write::KvWriteKernel::new(op).map(|kernel| Box::new(kernel) as Box<dyn Kernel>)),
        OpSpec::Attention(op) => Some(AttentionKernel::new(op).map(|kernel| Box::new(kernel) as Box<dyn Kernel>)),
        OpSpec::LatentWrite(op) => Some(boxed(latent::WriteKernel::new(op))),
        OpSpec::LatentAttention(op) => Some(boxed(latent::AttentionKernel::new(op))),
        _ => None,
    }
}

/// What it needs.
pub(crate) fn plan(spec: &Attention) -> Result<AttentionPlan> {
    reasons(spec)?;
    Ok(AttentionPlan {
        block_bytes: block_bytes(spec.kv, spec.num_kv_heads, spec.head_dim, spec.block_size),
        scratch_bytes: decode::Form::of(spec).map_or(0, |form| form.scratch_bytes()),
        record_decode: true,
        record_mixed_tokens: spec.max_tokens,
    })
}

/// `attention` as one op: on the kernels that the spec and the device allow.
pub(super) struct AttentionKernel {
    spec: Attention,
    kernels: Option<Kernels>,
}

/// The compiled kernels.
enum Kernels {
    /// On the matrix units of `Facts::matrix_units`.
    MatrixUnits {
        decode: decode::Decode,
        prefill: Option<prefill::Prefill>,
    },
    Plain(plain::Plain),
}

impl AttentionKernel {
    /// Checks the spec.
    ///
    /// # Errors
    /// `Unsupported` with all reasons.
    pub(super) fn new(spec: &Attention) -> Result<AttentionKernel> {
        reasons(spec)?;
        Ok(AttentionKernel {
            spec: spec.clone(),
            kernels: None,
        })
    }

    /// Refuses more sequences than memory was set aside for.
    ///
    /// # Errors
    /// `InvalidArgument` with both numbers.
    pub(super) fn check_bounds(&self, call: &Call) -> Result<()> {
        let most = self.spec.max_seqs.max(1);
        if call.num_seqs() <= most {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "attention over {} sequences was prepared for {most} at most (max_seqs)",
            call.num_seqs()
        )))
    }

    /// Appends the launches of a call.
    ///
    /// # Errors
    /// `Unsupported` for strides that the kernels cannot take; `InvalidArgument` past the bounds.
    pub(super) fn encode_call(&self, encoding: &mut Encoding, call: &Call) -> Result<()> {
        self.check_bounds(call)?;
        if call.num_tokens() == 0 || call.num_seqs() == 0 {
            return Ok(());
        }
        let (decode, prefill) = match &self.kernels {
            Some(Kernels::MatrixUnits { decode, prefill }) => (decode, prefill),
            Some(Kernels::Plain(plain)) => return plain.encode(encoding, call),
            None => return Err(Error::invalid("attention was encoded before it was prepared")),
        };
        let several = call.num_tokens() > call.num_seqs();
        match prefill {
            Some(prefill) if several && prefill.takes(call) => {
                prefill.encode(encoding, call);
                decode.encode(encoding, call, prefill::MIN_QUERY_LEN)
            }
            _ => decode.encode(encoding, call, u32::MAX),
        }
    }
}

impl Kernel for AttentionKernel {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let kernels = match decode::Form::of(&self.spec) {
            Some(form) => {
                let prefill = || prefill::Prefill::prepare(cx, &self.spec);
                let (decode, prefill) = both(|| decode::Decode::prepare(cx, &form), prefill)?;
                decode.map(|decode| Kernels::MatrixUnits { decode, prefill })
            }
            None => None,
        };
        self.kernels = Some(match kernels {
            Some(kernels) => kernels,
            None => Kernels::Plain(plain::Plain::prepare(cx, &self.spec)?),
        });
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        match &self.kernels {
            Some(Kernels::MatrixUnits { decode, .. }) => decode.scratch_bytes(),
            Some(Kernels::Plain(plain)) => plain.scratch_bytes(),
            None => 0,
        }
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        self.encode_call(encoding, &Call::of(operands)?)
    }
}

#[cfg(test)]
mod tests;
