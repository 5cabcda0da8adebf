//! The decode kernel: split-KV attention of few query tokens a sequence on matrix units, plain or with norms, rotation
//! and `kv_write` in it.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::ops::{Attention, Rope, RopeStyle};
use halyard_platform_api::{DType, Error, Result};

use super::call::{Call, head_bytes, heads_args, is_aligned};
use super::teams::{FindCommon, TILE, least_of_team, may_keep};
use crate::driver::{Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Preparation, both};
use crate::ops::names::{borrowed, float_name, kv_code_bits, kv_name};
use crate::policy::Policy;
use crate::view::View;

/// Most blocks of a launch: bounds the scratch, and the counters, without asking the device.
const MAX_BLOCKS: u32 = 320;
/// Counters that it uses, from 0 on: one a block, and three more.
pub(super) const COUNTERS: u32 = MAX_BLOCKS + 3;
/// Most buffers of a warp.
const MAX_RING: u32 = 5;
/// Bytes on their way that keep a multiprocessor's share of memory busy: with half as many again, an H200 takes 157 us
/// instead of 154 for 256 sequences of 500 to 640 keys of an 8B model, and 492 instead of 480 for 16 of 32,768.
const ENOUGH_BYTES: u32 = 128 << 10;
/// Up to this many sequences are a small batch: their blocks hold a tile or two, and what matters is how soon they
/// start.
const SMALL_BATCH_SEQS: u32 = 8;
/// Shared memory with which a block of a small batch fits onto a multiprocessor together with the blocks of the product
/// before it, in the division of a multiprocessor's memory that the product asks for (100 KiB): it then starts while
/// that one ends. A 135M model's decode step on an H200: 0.384 ms instead of 0.397.
const SMALL_BATCH_SHARED_BYTES: u32 = 80 << 10;
const SMALL_BATCH_CARVEOUT_BYTES: u32 = 100 << 10;
/// Threads of a block of a small batch that may hold all keys and values of an item in registers (`ONCE` of the
/// kernel), and the longest heads for which it can.
const HELD_THREADS: u32 = 288;
const HELD_HEAD_DIM: u32 = 64;
/// Longest heads for which a warp's registers hold 16 query heads, over keys that sequences have in common (`COMMON` of
/// the kernel).
const COMMON_HEAD_DIM: u32 = 128;
/// Least `common_rows` of the kernel: 16 parts of the keys that 32 sequences have in common.
const COMMON_ROWS: u32 = 512;
/// Shared memory that a resident block takes in addition to what it asks for, bytes.
const RESERVED_SHARED_BYTES: u32 = 1024;

/// Rotation of q and k in the decode kernel, and their norms before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct FusedRope {
    /// Values of a head that are rotated.
    pub rotary_dim: u32,
    /// Pairs are neighbours.
    pub interleaved: bool,
    /// Per-head norms come first.
    pub norm: bool,
}

impl FusedRope {
    /// Where the pairs of `rope` lie as the kernel wants them: both values in one lane.
    pub(in crate::ops) fn of(rope: &Rope, norm: bool) -> Option<FusedRope> {
        let interleaved = rope.style == RopeStyle::Interleaved;
        let multiple = if interleaved { 16 } else { 32 };
        (rope.rotary_dim > 0 && rope.rotary_dim.is_multiple_of(multiple)).then_some(FusedRope {
            rotary_dim: rope.rotary_dim,
            interleaved,
            norm,
        })
    }
}

/// The definitions of the kernel.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Form {
    act: DType,
    kv: DType,
    head_dim: u32,
    num_kv_heads: u32,
    group: u32,
    block_size: u32,
    scale: f32,
    softcap: f32,
    window: u32,
    max_seqs: u32,
    max_kv_len: u32,
    rope: Option<FusedRope>,
    /// Keys that sequences have in common are read once (`COMMON` of the kernel).
    common: bool,
}

impl Form {
    /// The form of a spec that the kernel takes: 16-bit activations over a cache of the same type, of E4M3 or of codes;
    /// heads of a multiple of 16 up to 256; at most 16 query heads a KV head; blocks of 16 to 128, of codes to 64.
    pub(in crate::ops) fn of(spec: &Attention) -> Option<Form> {
        let group = spec.num_heads / spec.num_kv_heads.max(1);
        let codes = kv_code_bits(spec.kv).is_some();
        let fits = matches!(spec.act, DType::F16 | DType::BF16)
            && (spec.act == spec.kv || spec.kv == DType::F8E4M3 || codes && spec.block_size <= TILE)
            && spec.head_dim.is_multiple_of(16)
            && (16..=256).contains(&spec.head_dim)
            && (1..=16).contains(&group)
            && matches!(spec.block_size, 16 | 32 | 64 | 128);
        fits.then(|| Form {
            act: spec.act,
            kv: spec.kv,
            head_dim: spec.head_dim,
            num_kv_heads: spec.num_kv_heads,
            group,
            block_size: spec.block_size,
            scale: spec.scale,
            softcap: spec.softcap,
            window: spec.window,
            max_seqs: spec.max_seqs.max(1),
            max_kv_len: spec.max_kv_len,
            rope: None,
            common: false,
        })
    }

    /// Whether the kernel has a fused form of it: it does not write codes.
    pub(in crate::ops) fn may_write(&self) -> bool {
        kv_code_bits(self.kv).is_none()
    }

    /// The fused form.
    pub(in crate::ops) fn with_rope(self, rope: FusedRope) -> Form {
        Form {
            rope: Some(rope),
            ..self
        }
    }

    /// Bytes of a buffer: the keys or values of a tile (`UNIT_BYTES` of the kernel).
    fn unit_bytes(&self) -> u32 {
        match kv_code_bits(self.kv) {
            Some(_) => TILE / self.block_size * (head_bytes(self.kv, self.head_dim, self.block_size) / 2) as u32,
            None => TILE * self.head_dim * self.kv.bytes() as u32,
        }
    }

    /// Bytes of the keys and values of a tile, of all KV heads.
    fn tile_bytes(&self) -> u64 {
        2 * u64::from(self.unit_bytes()) * u64::from(self.num_kv_heads)
    }

    /// Whether blocks of a small batch may hold all keys and values of a short item in registers.
    fn may_hold(&self) -> bool {
        self.rope.is_some_and(|rope| !rope.norm)
            && self.kv == self.act
            && self.head_dim <= HELD_HEAD_DIM
            && self.group <= 8
    }

    /// Whether keys that many sequences have in common could be read once for all of them.
    fn may_share(&self) -> bool {
        self.window == 0 && self.head_dim <= COMMON_HEAD_DIM && may_keep(self.max_seqs)
    }

    /// Most sequences that read keys together, with so many warps (`TEAM` of the kernel).
    fn team(&self, warps: u32) -> u32 {
        warps * (16 / self.group)
    }

    /// Tiles of all KV heads from which on it pays to read them once.
    fn least_tiles(&self, policy: &Policy) -> u32 {
        u32::try_from(policy.common_key_bytes / self.tile_bytes()).unwrap_or(u32::MAX)
    }

    /// The form for a device: with common keys where teams can be large enough, and where that leaves the shape as it
    /// is.
    fn for_device(&self, facts: &Facts, policy: &Policy) -> Form {
        let with = Form {
            common: true,
            ..self.clone()
        };
        let [shape, shape_with] = [self, &with].map(|form| form.shape(facts.max_shared_bytes));
        let most_tiles = u64::from(self.max_seqs) * u64::from(self.max_kv_len / TILE);
        let pays = shape.is_some_and(|(warps, ..)| {
            let team = self.team(warps);
            team > 1 && self.max_seqs >= least_of_team(team) && most_tiles >= u64::from(self.least_tiles(policy))
        });
        match self.may_share() && pays && shape == shape_with {
            true => with,
            false => self.clone(),
        }
    }

    /// Sums over common keys that scratch has room for, of all query heads (`common_rows` of the kernel).
    fn common_rows(&self) -> u32 {
        if self.may_share() {
            self.max_seqs.max(COMMON_ROWS)
        } else {
            0
        }
    }

    /// Most sequences of a small batch.
    fn small_batch_seqs(&self) -> u32 {
        SMALL_BATCH_SEQS.min(self.max_seqs)
    }

    /// Whether few sequences run in blocks of their own, where all others run in blocks of this shape: in the fused
    /// form, if they are small enough, and another function, as a function has one division of a multiprocessor's
    /// memory.
    fn has_small_batches(&self, (warps, ring, _): (u32, u32, u32)) -> bool {
        let bytes = self.fixed_shared_bytes(warps, 2, false) + sequence_bytes(self.small_batch_seqs(), false);
        self.rope.is_some() && bytes <= SMALL_BATCH_SHARED_BYTES && (ring != 2 || self.may_hold())
    }

    /// Scratch: what two cut items of every block leave, and sums over common keys behind it.
    pub(in crate::ops) fn scratch_bytes(&self) -> u64 {
        let heads = u64::from(self.num_kv_heads) * u64::from(self.group);
        self.partial_bytes() + u64::from(self.common_rows()) * heads * u64::from(self.head_dim + 2) * 4
    }

    fn partial_bytes(&self) -> u64 {
        2 * u64::from(MAX_BLOCKS) * u64::from(self.group) * u64::from(self.head_dim + 4) * 4
    }

    /// Dynamic shared memory without the sequences (`SHARED_BYTES` of the kernel).
    fn fixed_shared_bytes(&self, warps: u32, ring: u32, common: bool) -> u32 {
        let rings = warps * ring * self.unit_bytes();
        let query_and_key = self.group.div_ceil(8) * self.head_dim * 16 + self.head_dim * 4;
        let cut = self.group * (self.head_dim + 4) * 4 + 2 * (self.group * 8 + 16) + 4;
        let common_queries = if common { 32 * self.head_dim } else { 0 };
        let desk = (query_and_key + cut).max(common_queries).next_multiple_of(128);
        let barriers = (1 + u32::from(common)) * warps * ring;
        rings + warps * desk + barriers * 8 / 16 * 16 + 16
    }

    /// Warps, buffers of each, and blocks a multiprocessor: two blocks side by side where three buffers of each warp
    /// fit twice, and no more buffers than keep memory busy.
    fn shape(&self, max_shared_bytes: u32) -> Option<(u32, u32, u32)> {
        let of_sequences = sequence_bytes(self.max_seqs, self.common);
        let bytes = |warps, ring| self.fixed_shared_bytes(warps, ring, self.common) + of_sequences;
        let busy = |warps| ENOUGH_BYTES.div_ceil(warps * self.unit_bytes()).clamp(2, MAX_RING);
        if 2 * (bytes(4, 3) + RESERVED_SHARED_BYTES) <= max_shared_bytes {
            let fits = |&ring: &u32| 2 * (bytes(4, ring) + RESERVED_SHARED_BYTES) <= max_shared_bytes;
            return (2..=busy(8)).rev().find(fits).map(|ring| (4, ring, 2));
        }
        (1..=4).rev().find_map(|warps| {
            let ring = (2..=busy(warps))
                .rev()
                .find(|&ring| bytes(warps, ring) <= max_shared_bytes)?;
            Some((warps, ring, 1))
        })
    }
}

/// Shared memory of the sequences of a call, and of what they have in common.
fn sequence_bytes(num_seqs: u32, common: bool) -> u32 {
    16 * (num_seqs + 1) + if common { 2 * num_seqs } else { 0 }
}

/// The compiled kernel.
pub(in crate::ops) struct Decode {
    form: Form,
    /// Of any number of sequences.
    any: Variant,
    /// Of at most [`SMALL_BATCH_SEQS`] sequences, where its blocks are small enough.
    small_batch: Option<Variant>,
    find_common: Option<FindCommon>,
}

/// What a variant may do besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Short items in registers.
    Once,
    /// Common keys once for many sequences.
    Common,
}

/// The kernel with one number of warps and buffers.
struct Variant {
    function: Function,
    threads: u32,
    fixed_shared_bytes: u32,
    blocks: u32,
    /// Most sequences that read keys together (`TEAM` of the kernel); 0: none do.
    team: u32,
}

/// Operands of the fused form besides the call's.
pub(in crate::ops) struct RopeCall {
    /// \[T, num_kv_heads, head_dim\], as projected.
    pub k: View,
    /// \[T, num_kv_heads, head_dim\].
    pub v: View,
    /// \[T\].
    pub positions: View,
    /// \[T\].
    pub slots: View,
    /// \[max_positions, rotary_dim\].
    pub table: View,
    /// Norm of q: weight \[head_dim\] or none, eps, offset.
    pub q_norm: (View, f32, f32),
    /// Norm of k.
    pub k_norm: (View, f32, f32),
}

impl Variant {
    /// For up to `max_seqs` sequences; `None` for types that the kernel does not know.
    fn prepare(
        cx: &Preparation<'_>,
        form: &Form,
        (warps, ring, per_sm): (u32, u32, u32),
        max_seqs: u32,
        kind: Kind,
    ) -> Result<Option<Variant>> {
        let (Some(act), Some(kv)) = (float_name(form.act), kv_name(form.kv)) else {
            return Ok(None);
        };
        let mut defines = vec![("ACT", act.to_string()), ("KV", kv.to_string())];
        let mut define = |name, value: u32| defines.push((name, value.to_string()));
        define("HEAD_DIM", form.head_dim);
        define("GROUP", form.group);
        define("BLOCK", form.block_size);
        define("WARPS", warps);
        define("RING", ring);
        define("SOFTCAP", u32::from(form.softcap > 0.0));
        define("ROPE", u32::from(form.rope.is_some()));
        if let Some(rope) = form.rope {
            define("ROTARY_DIM", rope.rotary_dim);
            define("INTERLEAVED", u32::from(rope.interleaved));
            define("NORM", u32::from(rope.norm));
        }
        let (once, common) = (kind == Kind::Once, kind == Kind::Common);
        define("ONCE", u32::from(once));
        define("COMMON", u32::from(common));
        let fixed_shared_bytes = form.fixed_shared_bytes(warps, ring, common);
        let shared_bytes = fixed_shared_bytes + sequence_bytes(max_seqs, common);
        let defines = borrowed(&defines);
        let blocks = (cx.facts().num_sms * per_sm).min(MAX_BLOCKS);
        Ok(Some(Variant {
            function: cx.function(kernels::ATTENTION_DECODE, &defines, "attention_decode", shared_bytes)?,
            threads: if once { HELD_THREADS } else { 32 * warps },
            fixed_shared_bytes,
            blocks,
            team: if common { form.team(warps) } else { 0 },
        }))
    }
}

impl Decode {
    /// Compiles it; `None` where the device has no such matrix units or too little shared memory.
    ///
    /// # Errors
    /// Errors of compiler and driver.
    pub(in crate::ops) fn prepare(cx: &Preparation<'_>, form: &Form) -> Result<Option<Decode>> {
        let facts = cx.facts();
        let form = &form.for_device(facts, cx.policy());
        let Some(shape) = form.shape(facts.max_shared_bytes).filter(|_| facts.matrix_units) else {
            return Ok(None);
        };
        let kind = if form.common { Kind::Common } else { Kind::Plain };
        let any = || Variant::prepare(cx, form, shape, form.max_seqs, kind);
        let kind = if form.may_hold() { Kind::Once } else { Kind::Plain };
        let small_batch = || match form.has_small_batches(shape) {
            true => Variant::prepare(cx, form, (shape.0, 2, 1), form.small_batch_seqs(), kind),
            false => Ok(None),
        };
        let least_tiles = form.least_tiles(cx.policy());
        let find_common = || match form.common {
            true => FindCommon::prepare(cx, form.max_seqs, form.block_size, least_tiles).map(Some),
            false => Ok(None),
        };
        let (any, (small_batch, find_common)) = both(any, || both(small_batch, find_common))?;
        let Some(any) = any else {
            return Ok(None);
        };
        if let Some(variant) = &small_batch {
            cx.driver.prefer_shared(variant.function, SMALL_BATCH_CARVEOUT_BYTES)?;
        }
        Ok(Some(Decode {
            form: form.clone(),
            any,
            small_batch,
            find_common,
        }))
    }

    /// Whether the fused form can read its operands: 16 bytes at a time.
    pub(in crate::ops) fn takes(&self, call: &Call, rope: &RopeCall) -> bool {
        let norms = [&rope.q_norm.0, &rope.k_norm.0];
        [&call.q, &rope.k, &rope.v].iter().all(|view| is_aligned(view, 16))
            && rope.v.is_inner_contiguous()
            && norms.iter().all(|weight| weight.ptr.is_multiple_of(16))
            && rope.table.ptr.is_multiple_of(16)
            && rope.table.row_stride() == self.form.rope.map_or(0, |rope| rope.rotary_dim)
    }

    /// Scratch while it runs.
    pub(super) fn scratch_bytes(&self) -> u64 {
        self.form.scratch_bytes()
    }

    /// Appends the launch; sequences of `query_len_end` tokens and more are left out.
    ///
    /// # Errors
    /// `Unsupported` for odd strides.
    pub(in crate::ops) fn encode(&self, encoding: &mut Encoding, call: &Call, query_len_end: u32) -> Result<()> {
        let (args, _) = self.args(encoding, call, query_len_end, false)?;
        self.launch(encoding, call, &args, false);
        Ok(())
    }

    /// Appends the launch of the fused form.
    ///
    /// # Errors
    /// As [`Decode::encode`].
    pub(in crate::ops) fn encode_with_rope(&self, encoding: &mut Encoding, call: &Call, rope: &RopeCall) -> Result<()> {
        let read_early = [
            &call.cache,
            &call.block_table,
            &call.step_rows,
            &call.query_start_loc,
            &call.seq_lens,
            &rope.positions,
            &rope.slots,
        ];
        let early = read_early.into_iter().all(|view| encoding.is_settled(view));
        let (mut args, early) = self.args(encoding, call, u32::MAX, early)?;
        args.extend(heads_args(&rope.k));
        args.extend(heads_args(&rope.v));
        args.extend([
            Arg::Ptr(rope.positions.ptr),
            Arg::Ptr(rope.slots.ptr),
            Arg::Ptr(rope.table.ptr),
            Arg::Ptr(rope.q_norm.0.ptr),
            Arg::Ptr(rope.k_norm.0.ptr),
            Arg::F32(rope.q_norm.1),
            Arg::F32(rope.k_norm.1),
            Arg::F32(rope.q_norm.2),
            Arg::F32(rope.k_norm.2),
            Arg::U32(rope.table.len()),
        ]);
        self.launch(encoding, call, &args, early);
        Ok(())
    }

    /// The arguments that both forms take. `early`: step data and the cache may be read before the previous launch has
    /// ended; the result is whether that holds of all that is read then.
    fn args(&self, encoding: &mut Encoding, call: &Call, query_len_end: u32, early: bool) -> Result<(Vec<Arg>, bool)> {
        for (name, view, bytes) in [("q", &call.q, 16), ("out", &call.out, 4)] {
            if !is_aligned(view, bytes) {
                return Err(Error::unsupported(format!(
                    "attention: rows and heads of {name} (strides {} and {}) must start at multiples of {bytes} bytes",
                    view.strides[0], view.strides[1]
                )));
            }
        }
        let (teams, settled) = match (&self.find_common, self.variant(call).team) {
            (Some(find), team @ 1..) => find.append(encoding, call, team),
            _ => (Arg::Ptr(0), true),
        };
        let early = early && settled;
        let mut args = call.view_args();
        args.extend([
            Arg::Scratch(0),
            Arg::Counter(0),
            Arg::U32(call.num_seqs()),
            Arg::U32(self.form.num_kv_heads),
            Arg::F32(self.form.scale),
            Arg::F32(self.form.softcap),
            Arg::U32(self.form.window),
            Arg::U32(query_len_end),
            Arg::U32(u32::from(early)),
            teams,
            if self.form.common {
                Arg::Scratch(self.form.partial_bytes())
            } else {
                Arg::Ptr(0)
            },
            Arg::U32(self.form.common_rows()),
        ]);
        Ok((args, early))
    }

    fn variant(&self, call: &Call) -> &Variant {
        match &self.small_batch {
            Some(variant) if call.num_seqs() <= SMALL_BATCH_SEQS => variant,
            _ => &self.any,
        }
    }

    fn launch(&self, encoding: &mut Encoding, call: &Call, args: &[Arg], early: bool) {
        let variant = self.variant(call);
        let shared_bytes = variant.fixed_shared_bytes + sequence_bytes(call.num_seqs(), variant.team > 0);
        encoding.launch(
            variant.function,
            [variant.blocks, 1, 1],
            variant.threads,
            shared_bytes,
            args,
        );
        // It waits before it lets its successor start: what is found before the first layer's may be read early by all
        // others.
        if !early && variant.team > 0 {
            encoding.settles();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::facts;

    fn form(head_dim: u32, group: u32, max_seqs: u32) -> Form {
        Form {
            act: DType::BF16,
            kv: DType::BF16,
            head_dim,
            num_kv_heads: 2,
            group,
            block_size: 64,
            scale: 1.0,
            softcap: 0.0,
            window: 0,
            max_seqs,
            max_kv_len: 1 << 17,
            rope: None,
            common: false,
        }
    }

    fn rope(norm: bool) -> FusedRope {
        FusedRope {
            rotary_dim: 64,
            interleaved: false,
            norm,
        }
    }

    #[test]
    fn shapes_fit_in_shared_memory_of_each_generation() {
        // 9.0: 227 KiB a block; 8.0: 163; 8.6 and 8.9: 99.
        for limit in [227 << 10, 163 << 10, 99 << 10] {
            for head_dim in (16..=256).step_by(16) {
                for (group, max_seqs, kv) in [
                    (1, 1, DType::BF16),
                    (4, 512, DType::BF16),
                    (16, 1024, DType::BF16),
                    (4, 512, DType::F8E4M3),
                    (16, 1024, DType::F8E4M3),
                    (4, 512, DType::I8),
                    (16, 1024, DType::U4),
                ] {
                    let form = Form {
                        kv,
                        ..form(head_dim, group, max_seqs)
                    };
                    let Some((warps, ring, per_sm)) = form.shape(limit) else {
                        assert!(
                            head_dim > 112 * 2 / kv.bytes() as u32,
                            "no shape for {head_dim} in {limit}"
                        );
                        continue;
                    };
                    let bytes = form.fixed_shared_bytes(warps, ring, false) + sequence_bytes(max_seqs, false);
                    assert!(bytes * per_sm <= limit, "{bytes} bytes of {limit} for {head_dim}");
                    assert!(ring >= 2);
                }
            }
        }
    }

    #[test]
    fn short_heads_of_the_cache_s_type_may_be_held_in_registers() {
        let held = form(64, 3, 512).with_rope(rope(false));
        assert!(held.may_hold());
        assert!(!form(64, 3, 512).may_hold(), "not the fused form");
        assert!(!form(64, 3, 512).with_rope(rope(true)).may_hold());
        assert!(!form(128, 3, 512).with_rope(rope(false)).may_hold());
        assert!(!form(64, 9, 512).with_rope(rope(false)).may_hold());
        let narrow = Form {
            kv: DType::F8E4M3,
            ..held
        };
        assert!(!narrow.may_hold());
    }

    #[test]
    fn few_sequences_have_a_function_of_their_own_or_none() {
        let (held, normed) = (
            form(64, 3, 256).with_rope(rope(false)),
            form(64, 3, 256).with_rope(rope(true)),
        );
        assert_eq!(held.shape(227 << 10), Some((4, 2, 2)));
        assert_eq!(normed.shape(227 << 10), Some((4, 2, 2)));
        assert!(held.has_small_batches((4, 2, 2)), "it holds keys in registers");
        assert!(!normed.has_small_batches((4, 2, 2)), "it would be the same function");
        assert!(normed.has_small_batches((4, 3, 2)), "two buffers instead of three");
        let large = form(128, 4, 256).with_rope(rope(false));
        assert!(!large.has_small_batches((4, 3, 1)), "too large");
        assert!(!form(64, 3, 256).has_small_batches((4, 3, 2)), "not the fused form");
    }

    #[test]
    fn sequences_share_where_teams_are_worth_it_and_the_shape_stays() {
        let shares = |form: Form, max_shared_bytes: u32| {
            let facts = facts("sm_90a", 132, max_shared_bytes);
            form.for_device(&facts, &Policy::default()).common
        };
        let large = |max_seqs| Form {
            num_kv_heads: 8,
            ..form(128, 4, max_seqs)
        };
        assert!(shares(large(256), 227 << 10));
        assert!(
            shares(large(6), 227 << 10) && !shares(large(5), 227 << 10),
            "a team has six"
        );
        assert!(may_keep(2729) && !may_keep(2730));
        assert!(!shares(large(2730), 227 << 10));
        let short = Form {
            max_kv_len: 1024,
            ..large(16)
        };
        assert!(!shares(short, 227 << 10), "so little is not worth it");
        let windowed = Form {
            window: 512,
            ..large(256)
        };
        assert!(!shares(windowed, 227 << 10));
        // One warp a block: a team would have one member.
        assert_eq!(form(128, 16, 1024).shape(99 << 10), Some((1, 4, 1)));
        assert!(!shares(form(128, 16, 1024), 99 << 10));
        assert!(
            !shares(form(64, 1, 512), 227 << 10),
            "larger desks would take the second block"
        );
        assert!(large(2729).common_rows() >= 2729 && large(6).common_rows() >= 16 * 32);
    }

    #[test]
    fn eight_billion_shape_keeps_two_buffers_of_four_warps() {
        assert_eq!(form(128, 4, 512).shape(227 << 10), Some((4, 2, 1)));
        // Bytes on their way count, not tiles: those of half the size come in more buffers.
        let narrow = Form {
            kv: DType::F8E4M3,
            ..form(128, 4, 512)
        };
        assert_eq!(narrow.shape(227 << 10), Some((4, 4, 1)));
    }
}
