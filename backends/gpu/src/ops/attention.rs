//! `kv_write` and `attention` over paged KV: which spec runs, on which kernel, and what it needs. The block layout is that of the kernels'
//! `kv.cuh`; the split into files follows the kernels.
//!
//! A call is dispatched by its shapes alone, as a recording is replayed with other contents: one token a sequence goes to the decode kernel;
//! more tokens than sequences go to the prefill kernel (sequences of several tokens) and the decode kernel (the others), each of which skips
//! what is the other's. What the matrix units do not take runs on the plain kernel.

pub(super) mod decode;
mod kv_write;
mod plain;
mod prefill;
pub(crate) mod trial;

use halyard_platform_api::ops::{Attention, KvWrite};
use halyard_platform_api::{AttentionPlan, DType, Error, OpSpec, Result};

use super::float_name;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

pub(super) use kv_write::{borrowed, cache_defines};

/// KV blocks that the kernels are built for, tokens. 64 suits the matrix units best.
pub(crate) const BLOCK_SIZES: [u32; 5] = [8, 16, 32, 64, 128];

/// Most values of a head: the plain kernel keeps a head's sums in registers.
const MAX_HEAD_DIM: u32 = 512;

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    match spec {
        OpSpec::KvWrite(op) => Some(kv_write::KvWriteKernel::new(op).map(|kernel| Box::new(kernel) as Box<dyn Kernel>)),
        OpSpec::Attention(op) => Some(AttentionKernel::new(op).map(|kernel| Box::new(kernel) as Box<dyn Kernel>)),
        _ => None,
    }
}

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
fn cache_reasons(backend: u32, act: DType, kv: DType, head_dim: u32, block_size: u32) -> Vec<String> {
    let mut reasons = Vec::new();
    if backend != 0 {
        reasons.push(format!("attention backend {backend}: this platform has one, index 0"));
    }
    if float_name(act).is_none() {
        reasons.push(format!("activations in {act:?}: this platform takes F32, F16 or BF16"));
    }
    if kv_name(kv).is_none() {
        reasons.push(format!(
            "a KV cache in {kv:?}: this platform holds F32, F16, BF16 or F8E4M3"
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

fn joined(reasons: &[String]) -> Result<()> {
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Error::unsupported(reasons.join("\n")))
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

/// Bytes of a KV block of one layer (`KvLayout` of `kv.cuh`).
fn block_bytes(kv: DType, num_kv_heads: u32, head_dim: u32, block_size: u32) -> u64 {
    let row = 16 / kv.bytes() as u32;
    let key_units = head_dim.div_ceil(row) * block_size.div_ceil(8);
    let value_units = block_size.div_ceil(row) * head_dim.div_ceil(8);
    u64::from(num_kv_heads) * u64::from(key_units + value_units) * 128
}

/// A kernel definition's name of a type that the cache can hold.
pub(super) fn kv_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F8E4M3 => Some("e4m3"),
        other => float_name(other),
    }
}

/// The views of an attention call, by name.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// \[T, num_heads, head_dim\].
    pub q: View,
    /// \[num_pages, block_bytes\].
    pub cache: View,
    /// \[R, max_blocks\].
    pub block_table: View,
    /// \[S\].
    pub step_rows: View,
    /// \[S + 1\].
    pub query_start_loc: View,
    /// \[S\].
    pub seq_lens: View,
    /// \[num_heads\], optional.
    pub sinks: View,
    /// \[T, num_heads, head_dim\].
    pub out: View,
}

impl Call {
    /// From the operands in their documented order.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of operands; `Unsupported` for heads that are not contiguous.
    pub(super) fn of(operands: &[View]) -> Result<Call> {
        let &[q, cache, block_table, step_rows, query_start_loc, seq_lens, sinks, out] = operands else {
            return Err(Error::invalid(format!(
                "attention has 8 operands, not {}",
                operands.len()
            )));
        };
        for (name, view) in [
            ("q", &q),
            ("out", &out),
            ("cache", &cache),
            ("block_table", &block_table),
        ] {
            contiguous_heads("attention", name, view)?;
        }
        Ok(Call {
            q,
            cache,
            block_table,
            step_rows,
            query_start_loc,
            seq_lens,
            sinks,
            out,
        })
    }

    /// The views as the decode and the plain kernel take them first.
    fn view_args(&self) -> Vec<Arg> {
        let mut args = Vec::with_capacity(40);
        args.extend(heads_args(&self.q));
        args.extend(cache_args(&self.cache));
        args.extend([
            Arg::Ptr(self.block_table.ptr),
            Arg::U32(self.block_table.row_stride()),
            Arg::Ptr(self.step_rows.ptr),
            Arg::Ptr(self.query_start_loc.ptr),
            Arg::Ptr(self.seq_lens.ptr),
            Arg::Ptr(self.sinks.ptr),
        ]);
        args.extend(heads_args(&self.out));
        args
    }

    fn num_tokens(&self) -> u32 {
        self.q.len()
    }

    fn num_seqs(&self) -> u32 {
        self.step_rows.len()
    }
}

/// Refuses a view whose innermost axis has gaps.
fn contiguous_heads(op: &str, name: &str, view: &View) -> Result<()> {
    if view.is_none() {
        return Err(Error::invalid(format!("{op}: {name} is absent, and it must be there")));
    }
    if view.is_inner_contiguous() {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "{op}: the innermost axis of {name} has stride {}, this platform takes 1 (copy it together first)",
        view.strides[view.rank as usize - 1]
    )))
}

/// Whether token rows and heads of a view start at multiples of `bytes`.
pub(super) fn is_aligned(view: &View, bytes: u64) -> bool {
    let size = view.dtype.bytes() as u64;
    let strides = [u64::from(view.strides[0]) * size, u64::from(view.strides[1]) * size];
    let used = [view.shape[0] > 1, view.shape[1] > 1];
    view.ptr.is_multiple_of(bytes) && (0..2).all(|axis| !used[axis] || strides[axis].is_multiple_of(bytes))
}

/// Pointer, row stride and head stride: how kernels take q, k, v and out.
pub(super) fn heads_args(view: &View) -> [Arg; 3] {
    [Arg::Ptr(view.ptr), Arg::U32(view.strides[0]), Arg::U32(view.strides[1])]
}

/// A KV cache: pointer and distance of pages in bytes.
pub(super) fn cache_args(view: &View) -> [Arg; 2] {
    [Arg::Ptr(view.ptr), Arg::U64(u64::from(view.strides[0]))]
}

/// `attention` as one op: on the kernels that the spec and the device allow.
pub(super) struct AttentionKernel {
    spec: Attention,
    plain: Option<plain::Plain>,
    decode: Option<decode::Decode>,
    prefill: Option<prefill::Prefill>,
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
            plain: None,
            decode: None,
            prefill: None,
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
        let Some(decode) = &self.decode else {
            return match &self.plain {
                Some(plain) => plain.encode(encoding, call),
                None => Err(Error::invalid("attention was encoded before it was prepared")),
            };
        };
        let several = call.num_tokens() > call.num_seqs();
        match &self.prefill {
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
        self.decode = match decode::Form::of(&self.spec) {
            Some(form) => decode::Decode::prepare(cx, &form)?,
            None => None,
        };
        match self.decode {
            Some(_) => self.prefill = prefill::Prefill::prepare(cx, &self.spec)?,
            None => self.plain = Some(plain::Plain::prepare(cx, &self.spec)?),
        }
        Ok(())
    }

    fn implementation(&self) -> String {
        match (&self.decode, &self.prefill) {
            (Some(_), Some(_)) => "split-KV decode and prefill on matrix units",
            (Some(_), None) => "split-KV decode on matrix units",
            _ if self.plain.as_ref().is_some_and(plain::Plain::has_tiles) => "plain; prompts on matrix units",
            _ => "plain",
        }
        .to_string()
    }

    fn scratch_bytes(&self) -> u64 {
        let decode = decode::Form::of(&self.spec).filter(|_| self.decode.is_some());
        let plain = self.plain.as_ref().map_or(0, plain::Plain::scratch_bytes);
        decode.map_or(plain, |form| form.scratch_bytes())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        self.encode_call(encoding, &Call::of(operands)?)
    }
}

/// Checks a `kv_write` spec.
fn check_kv_write(op: &KvWrite) -> Result<()> {
    let mut reasons = cache_reasons(op.backend, op.act, op.kv, op.head_dim, op.block_size);
    if op.num_kv_heads == 0 {
        reasons.push("no KV heads".to_string());
    }
    joined(&reasons)
}

#[cfg(test)]
mod tests;
