//! The plain attention kernel: any type and size, slow.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::ops::Attention;
use halyard_platform_api::{Error, Result};

use super::{Call, kv_name};
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::float_name;

/// Warps of a block: a (token, query head) each.
const WARPS: u32 = 4;

/// The compiled kernel and its fixed parameters.
pub(super) struct Plain {
    function: Function,
    num_heads: u32,
    group: u32,
    scale: f32,
    softcap: f32,
    window: u32,
}

impl Plain {
    /// Compiles it.
    pub(super) fn prepare(cx: &Preparation<'_>, spec: &Attention) -> Result<Plain> {
        let (Some(act), Some(kv)) = (float_name(spec.act), kv_name(spec.kv)) else {
            return Err(Error::unsupported(format!(
                "attention in {:?} over {:?}",
                spec.act, spec.kv
            )));
        };
        let (head_dim, block) = (spec.head_dim.to_string(), spec.block_size.to_string());
        let defines = [
            ("ACT", act),
            ("KV", kv),
            ("HEAD_DIM", head_dim.as_str()),
            ("BLOCK", block.as_str()),
        ];
        Ok(Plain {
            function: cx.function(kernels::ATTENTION_PLAIN, &defines, "attention_plain", 0)?,
            num_heads: spec.num_heads,
            group: spec.num_heads / spec.num_kv_heads,
            scale: spec.scale,
            softcap: spec.softcap,
            window: spec.window,
        })
    }

    /// Appends the launch.
    pub(super) fn encode(&self, encoding: &mut Encoding, call: &Call) -> Result<()> {
        let tokens = call.num_tokens();
        let mut args = call.view_args();
        args.extend([
            Arg::U32(tokens),
            Arg::U32(call.num_seqs()),
            Arg::U32(self.num_heads),
            Arg::U32(self.group),
            Arg::F32(self.scale),
            Arg::F32(self.softcap),
            Arg::U32(self.window),
        ]);
        let jobs = u64::from(tokens) * u64::from(self.num_heads);
        let grid = [jobs.div_ceil(u64::from(WARPS)) as u32, 1, 1];
        encoding.launch(self.function, grid, WARPS * 32, 0, &args);
        Ok(())
    }
}
