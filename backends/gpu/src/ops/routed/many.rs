//! Products of many choices an expert on Hopper's matrix units, two blocks over the same rows (`moe_many.cu`).

use halyard_kernels_gpu::MOE_MANY;
use halyard_platform_api::{Result, ops};

use crate::driver::{BOX, DevicePtr, Function};
use crate::encoding::{Arg, BoxesOf, Encoding};
use crate::kernel::Preparation;

/// Threads of a block: warps that multiply, and warps that bring.
const THREADS: u32 = 384;
/// Rows of a tile, its choices, and pieces of the ring between.
const ROWS: u32 = 256;
const TOKENS: u32 = 128;
const STAGES: u32 = 4;
const SHARED: u32 = 2048 + STAGES * (ROWS + TOKENS) * 128 + 16_384;
const _: () = assert!(BOX[0] == ROWS / 2);

/// The compiled kernel.
#[derive(Clone, Copy)]
pub(super) struct Many {
    function: Function,
    /// Blocks that run at a time, in twos.
    blocks: u32,
}

/// Matrices to multiply: gate's (or the only ones) and up's.
pub(super) struct Matrices {
    at: [u64; 2],
    /// Those of `count` entries of the list from `first` on, in scratch; else those of all experts, at addresses.
    in_scratch: bool,
    first: u32,
    count: u32,
}

impl Matrices {
    /// Those of all experts, of which up to `count` are chosen.
    pub(super) fn of_all(at: [DevicePtr; 2], count: u32) -> Matrices {
        Matrices {
            at,
            in_scratch: false,
            first: 0,
            count,
        }
    }

    /// Those of `count` entries of the list from `first` on, at these offsets in scratch.
    pub(super) fn of_entries(at: [u64; 2], first: u32, count: u32) -> Matrices {
        Matrices {
            at,
            in_scratch: true,
            first,
            count,
        }
    }
}

impl Many {
    /// Compiles it, by the definitions of the activations' type and the gate; `None` on other devices.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(cx: &Preparation<'_>, defines: &[(&str, &str)]) -> Result<Option<Many>> {
        let facts = cx.facts();
        if facts.arch != "sm_90a" || SHARED > facts.max_shared_bytes {
            return Ok(None);
        }
        let stages = STAGES.to_string();
        let defines: Vec<(&str, &str)> = [("STAGES", stages.as_str())]
            .into_iter()
            .chain(defines.iter().copied())
            .collect();
        let function = cx.function(MOE_MANY, &defines, "moe_many", SHARED)?;
        Ok(Some(Many::of(function, facts.num_sms)))
    }

    pub(super) fn of(function: Function, num_sms: u32) -> Many {
        Many {
            function,
            blocks: num_sms.max(2) / 2 * 2,
        }
    }

    /// Appends the launch over so many choices; `args` are the kernel's from x to features.
    pub(super) fn encode(
        self,
        encoding: &mut Encoding,
        op: &ops::MoeLinear,
        choices: u32,
        gated: bool,
        matrices: &Matrices,
        args: &[Arg],
    ) {
        let held = match matrices.in_scratch {
            true => matrices.count,
            false => op.num_experts,
        };
        let boxes = |at| {
            Arg::Boxes(BoxesOf {
                at,
                in_scratch: matrices.in_scratch,
                rows: u64::from(held) * u64::from(op.out_features),
                width: op.in_features,
            })
        };
        let [first, up] = matrices.at;
        let mut all = vec![boxes(first), boxes(if gated { up } else { first })];
        all.extend(args);
        all.extend([matrices.first, matrices.count, u32::from(matrices.in_scratch)].map(Arg::U32));
        let rows = ROWS >> u32::from(gated);
        // Every entry's last item may be a part of one.
        let items = u64::from(op.out_features.div_ceil(rows)) * u64::from(matrices.count + choices / (2 * TOKENS));
        let blocks = (2 * items).min(u64::from(self.blocks)) as u32;
        encoding.launch(self.function, [blocks, 1, 1], THREADS, SHARED, &all);
    }
}
