//! GGUF formats over tokens rounded to 8 bits, in blocks of 32 with a scale each: one instruction multiplies and adds
//! four pairs of bytes. Only where the op allows activations to be rounded and the device has the instruction. The
//! kernels are the drivers' own (`linear_dots`), over planes.

use halyard_kernels_gpu::LINEAR_DOTS;
use halyard_platform_api::Result;
use halyard_platform_api::ops;

use super::call::{Call, Path};
use super::layout::{GROUP, WeightLayout};
use super::plain::TOKENS;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::formats::code;
use crate::ops::names::{epilogue_code, type_name};

/// Bytes of a rounded token a group of 128 values: codes, and four scales.
const RECORD_BYTES: u64 = 144;
/// Threads that round a group.
const GROUP_PARTS: u64 = 16;
/// Output rows of a workgroup.
const ROWS: u32 = 16;
const THREADS: u32 = 256;
/// Shared memory that the kernels use besides the token that a workgroup rounds for itself.
const OTHER_SHARED_BYTES: u64 = 4 << 10;
/// Most scratch for rounded tokens.
const SCRATCH_BYTES: u64 = 64 << 20;

/// Whether the kernels read weights that lie so: those of GGUF, whose numbers are whole in every format.
pub(super) fn takes(layout: WeightLayout) -> bool {
    matches!(layout, WeightLayout::Planes(format) if !format.is_canonical())
}

/// Compiled.
pub(super) struct Dots {
    round: Function,
    product: Function,
    /// For a single token, with the shared memory that it takes; absent where rows are too long for it.
    one: Option<(Function, u32)>,
    /// Most tokens that lie in scratch together.
    pass_tokens: u32,
    n: u32,
    k: u32,
}

impl Dots {
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<Dots> {
        let code = code(op.weight);
        let defines = [
            ("FORMAT", code),
            ("ACT", type_name(op.act)),
            ("OUT", type_name(op.out)),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        let function = |name: &str, shared| cx.function(LINEAR_DOTS, &defines, name, shared);
        let bytes = token_bytes(op.in_features);
        let fits = bytes + OTHER_SHARED_BYTES <= u64::from(cx.facts().max_shared_bytes);
        Ok(Dots {
            round: function("dots_round", 0)?,
            product: function("linear_dots", 0)?,
            one: fits
                .then(|| function("linear_dots_one", bytes as u32).map(|one| (one, bytes as u32)))
                .transpose()?,
            pass_tokens: pass_tokens(bytes, op.max_tokens),
            n: op.out_features,
            k: op.in_features,
        })
    }

    /// The tokens' records at the start of scratch.
    fn round(&self, encoding: &mut Encoding, call: &Call) {
        let groups = u64::from(self.k).div_ceil(GROUP);
        let args = [
            Arg::Ptr(call.x.ptr),
            Arg::Scratch(0),
            Arg::U32(call.x.row_stride()),
            Arg::U32(groups as u32),
            Arg::U32(self.k),
        ];
        let parts = (groups * GROUP_PARTS).div_ceil(u64::from(THREADS)) as u32;
        encoding.launch(self.round, [parts, call.tokens, 1], THREADS, 0, &args);
    }
}

impl Path for Dots {
    fn scratch_bytes(&self) -> u64 {
        u64::from(self.pass_tokens) * token_bytes(self.k)
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let blocks = self.n.div_ceil(ROWS);
        if let (1, Some((one, shared))) = (call.tokens, self.one) {
            let args = call.args(self.n, self.k);
            encoding.launch(one, [blocks, 1, 1], THREADS, shared, &args);
            return;
        }
        let mut first = 0;
        while first < call.tokens {
            let pass = call.rows(first, self.pass_tokens.min(call.tokens - first));
            self.round(encoding, &pass);
            let args = pass.args_from(Arg::Scratch(0), self.n, self.k);
            encoding.launch(
                self.product,
                [blocks, pass.tokens.div_ceil(TOKENS), 1],
                THREADS,
                0,
                &args,
            );
            first += pass.tokens;
        }
    }
}

fn token_bytes(k: u32) -> u64 {
    u64::from(k).div_ceil(GROUP) * RECORD_BYTES
}

/// Tokens of so many bytes each that lie in scratch at a time; few enough for the grid's second axis on every device.
fn pass_tokens(token_bytes: u64, max_tokens: u32) -> u32 {
    (SCRATCH_BYTES / token_bytes.max(1)).clamp(1, u64::from(max_tokens.clamp(1, 32_768))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_tokens_fit_scratch() {
        assert_eq!(token_bytes(128), 144);
        assert_eq!(token_bytes(160), 288);
        assert_eq!(pass_tokens(token_bytes(4096), 1), 1);
        assert_eq!(pass_tokens(token_bytes(4096), 8192), 8192);
        let wide = token_bytes(28_672);
        let pass = pass_tokens(wide, 16_384);
        assert!(u64::from(pass) * wide <= SCRATCH_BYTES && u64::from(pass + 1) * wide > SCRATCH_BYTES);
        // A token too long for scratch still makes progress, and no pass is longer than a grid.
        assert_eq!(pass_tokens(1 << 40, 8), 1);
        assert_eq!(pass_tokens(144, u32::MAX), 32_768);
    }
}
