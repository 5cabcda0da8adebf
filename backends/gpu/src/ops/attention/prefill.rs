//! The prefill kernel: sequences of several query tokens, on Hopper's matrix units.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::ops::Attention;
use halyard_platform_api::{DType, Result};

use super::decode::Counters;
use super::{Call, act_name, is_aligned};
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::view::View;

/// Sequences with fewer query tokens are the decode kernel's.
pub(super) const MIN_QUERY_LEN: u32 = 2;

/// The KV block that the kernel is built for, tokens.
const BLOCK: u32 = 64;

/// The compiled kernel and its fixed parameters.
pub(super) struct Prefill {
    function: Function,
    counter: Counters,
    num_sms: u32,
    num_kv_heads: u32,
    group: u32,
    consumers: u32,
    shared_bytes: u32,
    scale: f32,
    softcap: f32,
    window: u32,
}

impl Prefill {
    /// Compiles it, where spec and device allow.
    pub(super) fn prepare(cx: &Preparation<'_>, spec: &Attention) -> Result<Option<Prefill>> {
        let facts = cx.facts();
        let group = spec.num_heads / spec.num_kv_heads;
        let fits = facts.arch == "sm_90a"
            && matches!(spec.act, DType::F16 | DType::BF16)
            && spec.act == spec.kv
            && matches!(spec.head_dim, 64 | 128)
            && spec.block_size == BLOCK
            && group <= 16
            && spec.scale > 0.0;
        let Some(act) = act_name(spec.act).filter(|_| fits) else {
            return Ok(None);
        };
        let (consumers, stages) = if spec.head_dim == 128 { (2, 5) } else { (3, 6) };
        let max_seqs = spec.max_seqs.next_multiple_of(32);
        let rows = 64 * consumers;
        let shared_bytes = rows * (2 * spec.head_dim + 16) + stages * 4 * BLOCK * spec.head_dim + 12 * max_seqs + 512;
        if shared_bytes > facts.max_shared_bytes {
            return Ok(None);
        }
        let numbers = [
            spec.head_dim,
            group,
            BLOCK,
            consumers,
            u32::from(spec.softcap > 0.0),
            max_seqs,
        ]
        .map(|n| n.to_string());
        let defines = [
            ("ACT", act),
            ("HEAD_DIM", &numbers[0]),
            ("GROUP", &numbers[1]),
            ("BLOCK", &numbers[2]),
            ("CONSUMERS", &numbers[3]),
            ("SOFTCAP", &numbers[4]),
            ("MAX_SEQS", &numbers[5]),
        ];
        Ok(Some(Prefill {
            function: cx.function(kernels::ATTENTION_PREFILL, &defines, "attention_prefill", shared_bytes)?,
            counter: Counters::zeroed(cx, 1)?,
            num_sms: facts.num_sms,
            num_kv_heads: spec.num_kv_heads,
            group,
            consumers,
            shared_bytes,
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
            Arg::Ptr(self.counter.ptr()),
            Arg::I32(call.num_seqs() as i32),
            Arg::I32(self.num_kv_heads as i32),
            Arg::F32(self.scale),
            Arg::F32(self.softcap),
            Arg::I32(self.window.min(1 << 29) as i32),
            Arg::I32(MIN_QUERY_LEN as i32),
        ]);
        let rows = u64::from(64 * self.consumers);
        let tiles = (u64::from(call.num_tokens()) * u64::from(self.group)).div_ceil(rows) + u64::from(call.num_seqs());
        let blocks = (tiles * u64::from(self.num_kv_heads)).min(u64::from(self.num_sms)) as u32;
        encoding.launch(
            self.function,
            [blocks, 1, 1],
            128 * (self.consumers + 1),
            self.shared_bytes,
            &args,
        );
    }
}
