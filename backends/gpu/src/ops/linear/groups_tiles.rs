//! Batches of tokens over records: codes become operands between shared memory and matrix units, so that nothing is
//! unpacked. Matrices of few tiles are shared out by depth, and the parts' sums meet in scratch.

use halyard_kernels_gpu::{LINEAR_GROUPS_HOPPER, LINEAR_GROUPS_TILE};
use halyard_platform_api::ops;
use halyard_platform_api::{Result, WeightFormat};

use super::call::{Call, Path, rows_aligned};
use super::groups_small_batch;
use super::layout::{GROUP, has_minima, has_quick_operands, row_bytes, run_values};
use super::scaled_tiles::share_out;
use crate::driver::{Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::formats::code;
use crate::ops::names::{epilogue_code, type_name};

/// Up to this many tokens the codes' smaller size outweighs what the library's product of unpacked weights computes
/// faster.
const MAX_TOKENS: u32 = 96;
/// The same with Hopper's matrix units: a layer of 8B at 256 tokens takes 333 µs on an H200, unpacked and with the
/// library some 390 (of steps of the model).
const MAX_TOKENS_ON_HOPPER: u32 = 256;
/// Groups that a part of the depth has at least.
const MIN_GROUPS: u32 = 4;

/// How a block is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    kernel: Kernel,
    tokens: u32,
    row_warps: u32,
    token_warps: u32,
    stages: u32,
    blocks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Tile,
    /// With the groups of a stage.
    Hopper {
        groups: u32,
    },
}

/// Threads of a block for Hopper that bring what the others multiply.
const BRINGERS: u32 = 128;

const fn form(tokens: u32, row_warps: u32, token_warps: u32, stages: u32, blocks: u32) -> Form {
    Form {
        kernel: Kernel::Tile,
        tokens,
        row_warps,
        token_warps,
        stages,
        blocks,
    }
}

const fn hopper(tokens: u32, groups: u32, stages: u32) -> Form {
    Form {
        kernel: Kernel::Hopper { groups },
        ..form(tokens, 8, 2, stages, 1)
    }
}

/// By the tokens that they are for, each the better first: a device takes the first that fits its shared memory.
const FORMS: [&[Form]; 4] = [
    &[form(16, 4, 1, 6, 2), form(16, 4, 1, 2, 1)],
    &[form(32, 4, 1, 4, 2), form(32, 4, 1, 2, 1)],
    &[form(64, 4, 1, 4, 2), form(64, 4, 1, 2, 1)],
    &[form(128, 4, 2, 4, 1), form(128, 4, 2, 2, 1)],
];
/// The same where Hopper's matrix units take the format: 16 tokens of 8B's down projection take 20 µs on an H200, in
/// tiles of 16 tokens 26. Of GGUF's formats, 64 tokens of eight layers of 8B: Q4_0 1.39 ms instead of 1.73, Q8_0 2.52
/// instead of 3.08, Q6_K 2.81 instead of 3.26, Q4_K (in stages of one group) 2.49 and 2.45.
const FORMS_ON_HOPPER: [&[Form]; 2] = [
    &[hopper(32, 2, 4), hopper(32, 1, 4)],
    &[hopper(64, 2, 3), hopper(64, 1, 4), hopper(64, 1, 3)],
];

impl Form {
    fn rows(&self) -> u32 {
        32 * self.row_warps
    }

    fn threads(&self) -> u32 {
        let multiply = 32 * self.row_warps * self.token_warps;
        match self.kernel {
            Kernel::Tile => multiply,
            Kernel::Hopper { .. } => multiply + BRINGERS,
        }
    }

    fn shared_bytes(&self, format: WeightFormat) -> u32 {
        let piece = self.rows() * row_bytes(format) + self.tokens * 2 * GROUP as u32;
        let runs = GROUP as u32 / run_values(format);
        let ring = match self.kernel {
            Kernel::Tile => self.stages * piece + 4 * self.tokens * runs,
            Kernel::Hopper { groups } => hopper_ring_bytes(format, self.tokens, groups, self.stages),
        };
        ring.max(4 * self.tokens * (self.rows() + 4))
    }

    /// The kernel, compiled for this form.
    fn product(&self, cx: &Preparation<'_>, op: &ops::Linear, format: WeightFormat) -> Result<Entry> {
        let shared = self.shared_bytes(format);
        let names = [self.tokens, self.row_warps, self.token_warps, self.stages, self.blocks].map(|v| v.to_string());
        let mut defines = vec![
            ("FORMAT", code(format)),
            ("ACT", type_name(op.act)),
            ("OUT", type_name(op.out)),
            ("TOKENS", names[0].as_str()),
            ("STAGES", names[3].as_str()),
            ("EPILOGUE", epilogue_code(op.epilogue)),
        ];
        let groups;
        let (source, name) = match self.kernel {
            Kernel::Tile => {
                defines.extend([
                    ("ROW_WARPS", names[1].as_str()),
                    ("TOKEN_WARPS", names[2].as_str()),
                    ("MIN_BLOCKS", names[4].as_str()),
                ]);
                (LINEAR_GROUPS_TILE, "linear_groups_tile")
            }
            Kernel::Hopper { groups: of_stage } => {
                groups = of_stage.to_string();
                defines.push(("GROUPS", groups.as_str()));
                (LINEAR_GROUPS_HOPPER, "linear_groups_hopper")
            }
        };
        Ok(Entry {
            form: *self,
            shared,
            product: cx.function(source, &defines, name, shared)?,
            finish: cx.function(source, &defines, "groups_finish", 0)?,
        })
    }
}

/// Rows of a block of groups_hopper.cuh, and its threads.
pub(crate) const HOPPER_ROWS: u32 = 256;
pub(crate) const HOPPER_THREADS: u32 = 512 + BRINGERS;

/// Bytes of its ring.
pub(crate) fn hopper_ring_bytes(format: WeightFormat, tokens: u32, groups: u32, stages: u32) -> u32 {
    let piece = HOPPER_ROWS * row_bytes(format) + tokens * 2 * GROUP as u32;
    let runs = GROUP as u32 / run_values(format);
    // With minima the sums of a token's values over each run; of canonical formats also as an operand: 32 bytes each.
    let sums = match has_minima(format) {
        true if format.is_canonical() => 36 * tokens * runs,
        true => 4 * tokens * runs,
        false => 0,
    };
    1024 + stages * ((groups * piece).next_multiple_of(1024) + groups * sums + 16)
}

/// Tokens of the blocks of groups_hopper.cuh that take a format.
pub(crate) fn hopper_tokens(format: WeightFormat) -> &'static [u32] {
    match run_values(format) {
        // The tokens' sums over such runs are not made.
        ..32 if has_minima(format) => &[],
        // Two runs' sums of more tokens do not fit the registers; with minima each run is waited for.
        ..64 => &[32],
        _ => &[32, 64],
    }
}

/// Whether Hopper's matrix units take the format.
fn on_hopper(format: WeightFormat, facts: &Facts) -> bool {
    facts.arch == "sm_90a" && !hopper_tokens(format).is_empty()
}

/// Whether a run of depths that shares a scale is long enough to hide what follows its products.
fn has_long_runs(format: WeightFormat) -> bool {
    run_values(format) >= 64
}

/// The forms that a device takes, by ascending tokens.
fn fitting(format: WeightFormat, facts: &Facts) -> impl Iterator<Item = Form> {
    let most = facts.max_shared_bytes;
    let fits = move |form: &&Form| form.shared_bytes(format) <= most;
    let all: &[&[Form]] = match on_hopper(format, facts) {
        true => &FORMS_ON_HOPPER[..hopper_tokens(format).len()],
        false => &FORMS,
    };
    all.iter().filter_map(move |forms| forms.iter().find(fits).copied())
}

/// Of these, what calls of up to `max_tokens` tokens need: the smallest, and each that is less than half empty for
/// some of them.
fn needed(format: WeightFormat, facts: &Facts, max_tokens: u32) -> impl Iterator<Item = Form> {
    let is_needed = move |&(i, form): &(usize, Form)| i == 0 || form.tokens / 2 < max_tokens;
    fitting(format, facts)
        .enumerate()
        .filter(is_needed)
        .map(|(_, form)| form)
}

/// Up to how many tokens a product that unpacks first is slower.
pub(super) fn max_tokens(format: WeightFormat, facts: &Facts) -> u32 {
    match on_hopper(format, facts) && has_long_runs(format) {
        true => MAX_TOKENS_ON_HOPPER,
        false => MAX_TOKENS,
    }
}

/// Up to how many tokens a kernel for few of them is faster, if they do not fit its shared memory as a whole.
pub(super) fn tokens_below(op: &ops::Linear, format: WeightFormat, facts: &Facts) -> u32 {
    // 8B's down projection, 8 tokens, on an H200: 19.8 µs against 22.3.
    let beats = on_hopper(format, facts) && has_long_runs(format) && takes(format, facts);
    match beats && !groups_small_batch::is_staged(op) {
        true => 1,
        false => u32::MAX,
    }
}

/// Whether the kernel takes such weights on a device.
pub(super) fn takes(format: WeightFormat, facts: &Facts) -> bool {
    has_quick_operands(format) && fitting(format, facts).next().is_some()
}

/// Compiled for one number of tokens a block.
struct Entry {
    form: Form,
    shared: u32,
    product: Function,
    finish: Function,
}

/// Prepared.
pub(super) struct GroupsTiles {
    entries: Vec<Entry>,
    n: u32,
    k: u32,
    num_sms: u32,
    max_tokens: u32,
}

impl GroupsTiles {
    /// Compiles the kernel for weights that it [`takes`].
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear, format: WeightFormat) -> Result<GroupsTiles> {
        let one = |form: Form| form.product(cx, op, format);
        Ok(GroupsTiles {
            entries: needed(format, cx.facts(), op.max_tokens)
                .map(one)
                .collect::<Result<_>>()?,
            n: op.out_features,
            k: op.in_features,
            num_sms: cx.facts().num_sms,
            max_tokens: op.max_tokens,
        })
    }

    fn entry(&self, tokens: u32) -> &Entry {
        let fitting = self.entries.iter().position(|entry| tokens <= entry.form.tokens);
        &self.entries[fitting.unwrap_or(self.entries.len() - 1)]
    }

    /// How a call is shared out: groups of a part, and parts.
    fn splits(&self, form: Form, tokens: u32) -> (u32, u32) {
        let tiles = self.n.div_ceil(form.rows()) * tokens.div_ceil(form.tokens);
        let at_once = match form.kernel {
            Kernel::Tile => 2 * self.num_sms,
            Kernel::Hopper { .. } => self.num_sms,
        };
        share_out(tiles, self.k.div_ceil(GROUP as u32), MIN_GROUPS, at_once)
    }

    fn partial_bytes(&self, tokens: u32) -> u64 {
        match self.splits(self.entry(tokens).form, tokens).1 {
            1 => 0,
            parts => 4 * u64::from(parts) * u64::from(tokens) * u64::from(self.n),
        }
    }
}

impl Path for GroupsTiles {
    fn takes(&self, call: &Call) -> bool {
        rows_aligned(&call.x, 16)
    }

    fn scratch_bytes(&self) -> u64 {
        let of_tokens = (1..=self.max_tokens).map(|tokens| self.partial_bytes(tokens));
        of_tokens.max().unwrap_or(0)
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let (n, k, tokens) = (self.n, self.k, call.tokens);
        let entry = self.entry(tokens);
        let (depth, parts) = self.splits(entry.form, tokens);
        let partials = if parts == 1 { Arg::Ptr(0) } else { Arg::Scratch(0) };
        let (bias, residual, out) = (
            Arg::Ptr(call.bias.ptr),
            Arg::Ptr(call.residual.ptr),
            Arg::Ptr(call.out.ptr),
        );
        let strides = [call.residual.row_stride(), call.out.row_stride()].map(Arg::U32);
        let args = [
            Arg::Ptr(call.x.ptr),
            Arg::Ptr(call.weight.ptr),
            bias,
            residual,
            out,
            partials,
            Arg::U32(call.x.row_stride()),
            strides[0],
            strides[1],
            Arg::U32(tokens),
            Arg::U32(n),
            Arg::U32(k),
            Arg::U32(depth),
        ];
        let grid = [n.div_ceil(entry.form.rows()), tokens.div_ceil(entry.form.tokens), parts];
        encoding.launch(entry.product, grid, entry.form.threads(), entry.shared, &args);
        if parts > 1 {
            let sizes = [tokens, n, parts].map(Arg::U32);
            let args = [
                partials, bias, residual, out, strides[0], strides[1], sizes[0], sizes[1], sizes[2],
            ];
            encoding.launch(entry.finish, [n.div_ceil(256), tokens, 1], 256, 0, &args);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::formats::in_blocks;

    #[test]
    fn forms_fit_and_small_devices_have_one() {
        for format in WeightFormat::ALL.into_iter().filter(|&f| in_blocks(f)) {
            for max in [227 << 10, 163 << 10, 99 << 10] {
                for forms in FORMS {
                    let fitting = forms.iter().find(|form| form.shared_bytes(format) <= max);
                    let fits = fitting.is_some() || max == 99 << 10;
                    assert!(fits, "{format:?}: none of {forms:?} fits {max}");
                }
            }
            for forms in &FORMS_ON_HOPPER[..hopper_tokens(format).len()] {
                let fits = forms.iter().any(|form| form.shared_bytes(format) <= 227 << 10);
                assert!(fits, "{format:?}: none of {forms:?} fits");
            }
        }
        // Two blocks of 64 tokens a multiprocessor.
        assert!(2 * (FORMS[2][0].shared_bytes(WeightFormat::U4G128) + 1024) <= 228 << 10);
    }
}
