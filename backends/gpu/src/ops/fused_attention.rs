//! rope → kv_write → attention of a layer as one op, with the per-head norms of q and k before them where a model has
//! those.
//!
//! One token a sequence, on matrix units: one launch, in which the decode kernel norms and rotates q and k itself, and
//! stores the new keys and values. That leaves q and k as they were, so it needs a program that says that no later op
//! reads them. Other calls, and all over a cache of codes, take a launch that norms, rotates in place and stores, and
//! then attention's own. Operands that are no neighbouring slices of one product run the region's ops one after
//! another.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::ops::{Attention, KvWrite, RmsNorm, Rope, RopeStyle};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{Error, OpSpec, Program, Result};

use super::attention::decode::{Decode, Form, FusedRope, RopeCall};
use super::attention::{AttentionKernel, Call, cache_args, cache_defines, heads_args};
use super::names::borrowed;
use super::parts::prepare_all;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation, both};
use crate::view::View;

/// Threads of a block of `rope_kv_write`, which takes one token.
const THREADS: u32 = 128;

/// Number of nodes from `first` on that run as one op; `None`: not such a region.
pub(crate) fn matches(program: &Program, first: usize) -> Option<usize> {
    let region = Region::of(program, first)?;
    let runs = super::attention::reasons(&region.attention).is_ok()
        && program.nodes[first..first + region.count]
            .iter()
            .all(|node| super::build(&node.spec).is_ok());
    runs.then_some(region.count)
}

/// The kernel of a region that [`matches`] whole.
pub(crate) fn build(program: &Program) -> Result<Box<dyn Kernel>> {
    let region =
        Region::of(program, 0).ok_or_else(|| Error::unsupported("no rope, kv_write and attention in a row"))?;
    let before = program.nodes[..region.count - 1].iter();
    Ok(Box::new(FusedAttention {
        parts: before
            .map(|node| Ok((super::build(&node.spec)?, node.operands.clone())))
            .collect::<Result<_>>()?,
        attention: AttentionKernel::new(&region.attention)?,
        region,
        num_tensors: program.tensors.len(),
        rope_and_store: None,
        decode: None,
    }))
}

/// A per-head norm, in place.
struct HeadNorm {
    spec: RmsNorm,
    weight: u16,
}

/// The region: its ops, and the tensors by number.
struct Region {
    count: usize,
    norms: Option<(HeadNorm, HeadNorm)>,
    rope: Rope,
    kv_write: KvWrite,
    attention: Attention,
    positions: u16,
    table: u16,
    qk: u16,
    k: u16,
    v: u16,
    slots: u16,
    /// Operands of the attention node.
    attended: Vec<u16>,
    /// No later op reads the rotated q and k.
    qk_is_internal: bool,
}

impl Region {
    fn of(program: &Program, first: usize) -> Option<Region> {
        let nodes = program.nodes.get(first..)?;
        let norm = |at: usize| match &nodes.get(at)?.spec {
            OpSpec::RmsNorm(spec) if nodes[at].operands[0] == nodes[at].operands[2] => Some((
                nodes[at].operands[0],
                HeadNorm {
                    spec: spec.clone(),
                    weight: nodes[at].operands[1],
                },
            )),
            _ => None,
        };
        let norms = norm(0).zip(norm(1));
        let at = if norms.is_some() { 2 } else { 0 };
        let [rope_node, write_node, attention_node] = nodes.get(at..at + 3)? else {
            return None;
        };
        let (OpSpec::Rope(rope), OpSpec::KvWrite(kv_write), OpSpec::Attention(attention)) =
            (&rope_node.spec, &write_node.spec, &attention_node.spec)
        else {
            return None;
        };
        let (&[positions, table, qk], &[k, v, slots, cache]) = (&rope_node.operands[..], &write_node.operands[..])
        else {
            return None;
        };
        let attended = attention_node.operands.clone();
        let q = attended[0];
        let same_shapes = rope.head_dim == attention.head_dim
            && rope.dtype == attention.act
            && rope.rotary_dim <= rope.head_dim
            && rope.rotary_dim.is_multiple_of(2)
            && same_cache(kv_write, attention)
            && attended[1] == cache;
        let storage = |t: u16| program.tensors.get(usize::from(t)).map(|decl| decl.storage);
        let one_product = storage(q).is_some() && storage(q) == storage(k) && storage(q) == storage(qk);
        let out_apart = storage(attended[7]) != storage(q) && storage(attended[7]) != storage(v);
        let norms_fit = norms.as_ref().is_none_or(|((of_q, q_norm), (of_k, k_norm))| {
            let fits = |norm: &HeadNorm| norm.spec.width == attention.head_dim && norm.spec.dtype == attention.act;
            *of_q == q && *of_k == k && fits(q_norm) && fits(k_norm)
        });
        let internal = |t: u16| program.tensors[usize::from(t)].internal;
        (same_shapes && one_product && out_apart && norms_fit).then(|| Region {
            count: at + 3,
            norms: norms.map(|((_, q_norm), (_, k_norm))| (q_norm, k_norm)),
            rope: rope.clone(),
            kv_write: kv_write.clone(),
            attention: attention.clone(),
            positions,
            table,
            qk,
            k,
            v,
            slots,
            qk_is_internal: [q, k, qk].into_iter().all(internal),
            attended,
        })
    }
}

fn same_cache(kv_write: &KvWrite, attention: &Attention) -> bool {
    kv_write.num_kv_heads == attention.num_kv_heads
        && kv_write.head_dim == attention.head_dim
        && kv_write.act == attention.act
        && kv_write.kv == attention.kv
        && kv_write.block_size == attention.block_size
        && kv_write.backend == attention.backend
}

/// The region as one op.
struct FusedAttention {
    region: Region,
    num_tensors: usize,
    /// The nodes before attention, each with its operands.
    parts: Vec<(Box<dyn Kernel>, Vec<u16>)>,
    attention: AttentionKernel,
    rope_and_store: Option<Function>,
    decode: Option<Decode>,
}

impl FusedAttention {
    /// Whether q and k are neighbouring slices with equal strides, and rotation reaches exactly them.
    fn is_one_product(&self, q: &View, [k, v]: [&View; 2], qk: &View, table: &View) -> bool {
        let spec = &self.region.attention;
        let q_bytes = u64::from(spec.num_heads) * u64::from(q.strides[1]) * q.dtype.bytes() as u64;
        qk.ptr == q.ptr
            && k.ptr == q.ptr + q_bytes
            && qk.shape[1] == spec.num_heads + spec.num_kv_heads
            && [k, qk].iter().all(|view| view.strides[..2] == q.strides[..2])
            && [q, k, v, qk, table].iter().all(|view| view.is_inner_contiguous())
            && table.row_stride() == self.region.rope.rotary_dim
    }

    fn norm_values(&self, operands: &[View]) -> [(View, f32, f32); 2] {
        match &self.region.norms {
            Some((q, k)) => [q, k].map(|norm| {
                (
                    operands[usize::from(norm.weight)],
                    norm.spec.eps,
                    norm.spec.weight_offset,
                )
            }),
            None => [(View::NONE, 0.0, 0.0); 2],
        }
    }

    /// Norms and rotates q and k in place and stores k and v: one launch.
    fn encode_rope_and_store(&self, encoding: &mut Encoding, function: Function, operands: &[View], cache: &View) {
        let region = &self.region;
        let at = |t: u16| &operands[usize::from(t)];
        let [q_norm, k_norm] = self.norm_values(operands);
        let tokens = at(region.slots).len();
        let mut args = Vec::with_capacity(20);
        args.extend(heads_args(at(region.qk)));
        args.extend(heads_args(at(region.v)));
        args.extend([
            Arg::Ptr(at(region.positions).ptr),
            Arg::Ptr(at(region.table).ptr),
            Arg::Ptr(q_norm.0.ptr),
            Arg::Ptr(k_norm.0.ptr),
            Arg::F32(q_norm.1),
            Arg::F32(k_norm.1),
            Arg::F32(q_norm.2),
            Arg::F32(k_norm.2),
            Arg::Ptr(at(region.slots).ptr),
        ]);
        args.extend(cache_args(cache));
        args.extend([
            Arg::U32(tokens),
            Arg::U32(region.attention.num_heads),
            Arg::U32(region.attention.num_kv_heads),
        ]);
        encoding.launch(function, [tokens, 1, 1], THREADS, 0, &args);
    }
}

impl Kernel for FusedAttention {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let region = &self.region;
        let mut defines = cache_defines(&region.kv_write)?;
        let interleaved = u32::from(region.rope.style == RopeStyle::Interleaved);
        defines.push(("ROTARY_DIM", region.rope.rotary_dim.to_string()));
        defines.push(("INTERLEAVED", interleaved.to_string()));
        defines.push(("NORM", u32::from(region.norms.is_some()).to_string()));
        let rope_and_store = || cx.function(kernels::KV_WRITE, &borrowed(&defines), "rope_kv_write", 0);
        let rope = FusedRope::of(&region.rope, region.norms.is_some()).filter(|_| region.qk_is_internal);
        let form = Form::of(&region.attention).filter(Form::may_write);
        let decode = || match form.zip(rope) {
            Some((form, rope)) => Decode::prepare(cx, &form.with_rope(rope)),
            None => Ok(None),
        };
        let (parts, attention) = (&mut self.parts, &mut self.attention);
        let parts = || prepare_all(parts.iter_mut().map(|(part, _)| part), cx);
        let own = || both(decode, rope_and_store);
        let ((), ((), (decode, rope_and_store))) = both(parts, || both(|| attention.prepare(cx), own))?;
        (self.decode, self.rope_and_store) = (decode, Some(rope_and_store));
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        let parts = self.parts.iter().map(|(part, _)| part.scratch_bytes());
        parts.max().unwrap_or(0).max(self.attention.scratch_bytes())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let (region, Some(rope_and_store)) = (&self.region, self.rope_and_store) else {
            return Err(Error::invalid(
                "rope, kv_write and attention were encoded before they were prepared",
            ));
        };
        if operands.len() != self.num_tensors {
            return Err(Error::invalid(format!(
                "{} operands for a region of {} tensors",
                operands.len(),
                self.num_tensors
            )));
        }
        let at = |t: u16| match t {
            ABSENT => View::NONE,
            t => operands[usize::from(t)],
        };
        let attended: Vec<View> = region.attended.iter().map(|&t| at(t)).collect();
        let call = Call::of(&attended)?;
        let keys_and_values = [&at(region.k), &at(region.v)];
        if !self.is_one_product(&call.q, keys_and_values, &at(region.qk), &at(region.table)) {
            for (part, tensors) in &self.parts {
                let views: Vec<View> = tensors.iter().map(|&t| at(t)).collect();
                part.encode(encoding, &views)?;
            }
            return self.attention.encode_call(encoding, &call);
        }
        let [q_norm, k_norm] = self.norm_values(operands);
        let rope = RopeCall {
            k: at(region.k),
            v: at(region.v),
            positions: at(region.positions),
            slots: at(region.slots),
            table: at(region.table),
            q_norm,
            k_norm,
        };
        if call.q.is_empty() || call.step_rows.is_empty() {
            return Ok(());
        }
        self.attention.check_bounds(&call)?;
        match &self.decode {
            Some(decode) if call.q.len() == call.step_rows.len() && decode.takes(&call, &rope) => {
                decode.encode_with_rope(encoding, &call, &rope)
            }
            _ => {
                self.encode_rope_and_store(encoding, rope_and_store, operands, &call.cache);
                self.attention.encode_call(encoding, &call)
            }
        }
    }
}

#[cfg(test)]
mod tests;
