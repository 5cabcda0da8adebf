//! The prefill kernels: sequences of several query tokens on matrix units, Hopper's own where spec and device allow,
//! else those of sm_80.

use halyard_kernels_gpu::{self as kernels, Source};
use halyard_platform_api::ops::Attention;
use halyard_platform_api::{DType, Result};

use super::call::{Call, head_bytes, is_aligned};
use super::decode::COUNTERS;
use crate::driver::{Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{float_name, kv_code_bits, kv_name};
use crate::view::View;

/// Sequences with fewer query tokens are the decode kernel's.
pub(super) const MIN_QUERY_LEN: u32 = 2;

/// The parameters of a launch.
struct Shape {
    source: Source,
    entry: &'static str,
    /// Rows (query tokens times heads of a group) of a block.
    rows: u32,
    /// Cache blocks in flight.
    stages: u32,
    threads: u32,
    shared_bytes: u32,
    /// Blocks that a multiprocessor holds at once.
    per_sm: u32,
}

impl Shape {
    /// The kernel for a spec on a device; `None`: neither takes it.
    fn of(spec: &Attention, facts: &Facts) -> Option<Shape> {
        let group = spec.num_heads / spec.num_kv_heads;
        let same = spec.act == spec.kv;
        let common = matches!(spec.act, DType::F16 | DType::BF16)
            && (same || spec.kv == DType::F8E4M3 || kv_code_bits(spec.kv).is_some())
            && group <= 16
            && spec.scale > 0.0;
        let of_sequences = 12 * max_seqs(spec);
        let (dim, block) = (spec.head_dim, spec.block_size);
        let of_head = head_bytes(spec.kv, dim, block) as u32;
        let hopper = || {
            // A stage holds a head's keys and values of a block as the products take them: 4 · block · dim bytes.
            // Narrower ones arrive in two buffers as they are, and are widened into the stages.
            let (consumers, stages) = match (dim, same) {
                (128, true) => (2, 4),
                (128, false) => (2, 3),
                (_, true) => (3, 6),
                (_, false) => (3, 5),
            };
            let arrivals = if same { 0 } else { 2 * of_head };
            let rows = 64 * consumers;
            Shape {
                source: kernels::ATTENTION_PREFILL,
                entry: "attention_prefill",
                rows,
                stages,
                threads: 128 * (consumers + 1),
                shared_bytes: 2 * rows * (2 * dim + 16) + stages * 4 * block * dim + arrivals + of_sequences + 512,
                per_sm: 1,
            }
        };
        let warps = || Shape {
            source: kernels::ATTENTION_PREFILL_MMA,
            entry: "attention_prefill_mma",
            rows: 64,
            stages: 1,
            threads: 128,
            shared_bytes: 64 * (2 * dim + 16) + of_head + of_sequences + 16,
            per_sm: 2,
        };
        let fits = |shape: &Shape| shape.shared_bytes <= facts.max_shared_bytes;
        let on_hopper = common && facts.arch == "sm_90a" && matches!(dim, 64 | 128) && block == 64;
        let on_warps =
            common && facts.matrix_units && matches!(dim, 32 | 64 | 96 | 128) && matches!(block, 32 | 64 | 128);
        let first = on_hopper.then(hopper).filter(fits);
        first.or_else(|| on_warps.then(warps).filter(fits))
    }
}

fn max_seqs(spec: &Attention) -> u32 {
    spec.max_seqs.max(1).next_multiple_of(32)
}

/// A compiled kernel and its fixed parameters.
pub(super) struct Prefill {
    function: Function,
    shape: Shape,
    num_sms: u32,
    num_kv_heads: u32,
    group: u32,
    scale: f32,
    softcap: f32,
    window: u32,
}

impl Prefill {
    /// Compiles the kernel for a spec, where there is one.
    ///
    /// # Errors
    /// Errors of compiler and driver.
    pub(super) fn prepare(cx: &Preparation<'_>, spec: &Attention) -> Result<Option<Prefill>> {
        let facts = cx.facts();
        let (Some(shape), Some(act), Some(kv)) = (Shape::of(spec, facts), float_name(spec.act), kv_name(spec.kv))
        else {
            return Ok(None);
        };
        let group = spec.num_heads / spec.num_kv_heads;
        let numbers = [
            spec.head_dim,
            group,
            spec.block_size,
            shape.rows / 64,
            u32::from(spec.softcap > 0.0),
            max_seqs(spec),
            shape.stages,
        ]
        .map(|n| n.to_string());
        let defines = [
            ("ACT", act),
            ("KV", kv),
            ("HEAD_DIM", &numbers[0]),
            ("GROUP", &numbers[1]),
            ("BLOCK", &numbers[2]),
            ("CONSUMERS", &numbers[3]),
            ("SOFTCAP", &numbers[4]),
            ("MAX_SEQS", &numbers[5]),
            ("STAGES", &numbers[6]),
        ];
        Ok(Some(Prefill {
            function: cx.function(shape.source, &defines, shape.entry, shape.shared_bytes)?,
            shape,
            num_sms: facts.num_sms,
            num_kv_heads: spec.num_kv_heads,
            group,
            scale: spec.scale,
            softcap: spec.softcap,
            window: spec.window,
        }))
    }

    /// Whether the views' alignment suits the kernel.
    pub(super) fn takes(&self, call: &Call) -> bool {
        is_aligned(&call.q, 16) && is_aligned(&call.out, 16)
    }

    /// Appends the launch.
    pub(super) fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let heads = |view: &View| {
            [
                Arg::Ptr(view.ptr),
                Arg::U64(u64::from(view.strides[0])),
                Arg::U64(u64::from(view.strides[1])),
            ]
        };
        let mut args = Vec::with_capacity(21);
        args.extend(heads(&call.q));
        args.extend([
            Arg::Ptr(call.cache.ptr),
            Arg::U64(u64::from(call.cache.row_stride())),
            Arg::Ptr(call.block_table.ptr),
            Arg::U64(u64::from(call.block_table.row_stride())),
            Arg::Ptr(call.step_rows.ptr),
            Arg::Ptr(call.query_start_loc.ptr),
            Arg::Ptr(call.seq_lens.ptr),
            Arg::Ptr(call.sinks.ptr),
        ]);
        args.extend(heads(&call.out));
        args.extend([
            Arg::Counter(COUNTERS),
            Arg::I32(call.num_seqs() as i32),
            Arg::I32(self.num_kv_heads as i32),
            Arg::F32(self.scale),
            Arg::F32(self.softcap),
            Arg::I32(self.window.min(1 << 29) as i32),
            Arg::I32(MIN_QUERY_LEN as i32),
        ]);
        let shape = &self.shape;
        let tiles = (u64::from(call.num_tokens()) * u64::from(self.group)).div_ceil(u64::from(shape.rows))
            + u64::from(call.num_seqs());
        let at_once = u64::from(self.num_sms * shape.per_sm);
        let blocks = (tiles * u64::from(self.num_kv_heads)).min(at_once) as u32;
        encoding.launch(self.function, [blocks, 1, 1], shape.threads, shape.shared_bytes, &args);
    }
}
