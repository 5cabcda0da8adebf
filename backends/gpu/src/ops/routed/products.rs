//! Products of chosen experts over matrices in the activations' own 16-bit type, on matrix units: expert by expert,
//! each matrix read once, with the gating of gate and up fused where a region asks for it.

use halyard_kernels_gpu::{MOE_FEW, MOE_TILE};
use halyard_platform_api::{DType, Result, WeightFormat, ops};

use super::expert_list::{Elsewhere, ExpertList};
use super::support::MAX_EXPERTS;
use crate::driver::{DevicePtr, Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::float_name;
use crate::view::View;

/// How a block of moe_few is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Few {
    /// Choices of a pass, in eights.
    tiles: u32,
    /// Rows, in sixteens.
    row_tiles: u32,
    warps: u32,
    /// Chunks in flight a warp.
    depth: u32,
    /// It pays up to so many choices an expert, where there is moe_tile.
    most: u32,
}

/// By choices an expert: more of them share the rows that were read.
const FEW: [Few; 3] = [
    Few::new(1, 1, 2, 3, 5),
    Few::new(2, 1, 4, 4, 12),
    Few::new(4, 2, 4, 2, 0),
];
/// Choices an expert up to which the last of them pays without moe_tile.
const MOST_FEW: u32 = 32;

impl Few {
    const fn new(tiles: u32, row_tiles: u32, warps: u32, depth: u32, most: u32) -> Few {
        Few {
            tiles,
            row_tiles,
            warps,
            depth,
            most,
        }
    }

    fn shared_bytes(self) -> u32 {
        4 * self.warps * 8 * self.tiles * (16 * self.row_tiles + 4)
    }
}

/// Tokens of a block of moe_tile, and pieces in its ring.
const TILES: [(u32, u32); 2] = [(64, 5), (128, 4)];
/// Rows of a block of it.
const TILE_ROWS: u32 = 256;
/// Choices an expert from which the larger one pays.
const LARGE_FROM: u32 = 48;
/// Most blocks that share an expert's choices.
const MAX_SHARES: u32 = 8;

fn tile_shared_bytes((tokens, stages): (u32, u32)) -> u32 {
    1024 + stages * (TILE_ROWS + tokens) * 128
}

/// The operands of a product; `weight_up` and `bias_up` are 0 without a gate, biases where there are none. Without
/// `experts` choice j of each token takes matrix j. `elsewhere` is what the list was made with.
pub(super) struct Call {
    pub(super) x: View,
    pub(super) weight: DevicePtr,
    pub(super) weight_up: DevicePtr,
    pub(super) experts: View,
    pub(super) elsewhere: Elsewhere,
    pub(super) out: View,
    pub(super) bias: DevicePtr,
    pub(super) bias_up: DevicePtr,
}

/// Which kernel takes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// One token: its choices are different experts.
    Direct,
    /// Of [`FEW`].
    Few(usize),
    /// Of [`TILES`].
    Tile(usize),
}

/// Compiled.
pub(super) struct Products {
    few: [Function; FEW.len()],
    tile: Option<[Function; TILES.len()]>,
    is_gated: bool,
}

impl Products {
    /// Compiles them; `None` where matrix units do not take the op. `gate` is the activation's number in activate.cuh.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::MoeLinear, gate: Option<&str>) -> Result<Option<Products>> {
        let Some(act) = float_name(op.dtype).filter(|_| takes(op, cx.facts())) else {
            return Ok(None);
        };
        let gate_code = gate.unwrap_or("0");
        let few = |shape: Few| {
            let numbers = [shape.tiles, shape.row_tiles, shape.warps, shape.depth].map(|n| n.to_string());
            let [tiles, row_tiles, warps, depth] = &numbers;
            let defines = [
                ("ACT", act),
                ("TILES", tiles),
                ("WARPS", warps),
                ("ROW_TILES", row_tiles),
                ("DEPTH", depth),
                ("GATE", gate_code),
            ];
            cx.function(MOE_FEW, &defines, "moe_few", shape.shared_bytes())
        };
        let tile = |shape: (u32, u32)| {
            let (tokens, stages) = (shape.0.to_string(), shape.1.to_string());
            let defines = [
                ("ACT", act),
                ("TOKENS", &*tokens),
                ("STAGES", &*stages),
                ("GATE", gate_code),
            ];
            cx.function(MOE_TILE, &defines, "moe_tile", tile_shared_bytes(shape))
        };
        let on_hopper = cx.facts().arch == "sm_90a" && tile_shared_bytes(TILES[1]) <= cx.facts().max_shared_bytes;
        Ok(Some(Products {
            few: [few(FEW[0])?, few(FEW[1])?, few(FEW[2])?],
            tile: match on_hopper {
                true => Some([tile(TILES[0])?, tile(TILES[1])?]),
                false => None,
            },
            is_gated: gate.is_some(),
        }))
    }

    /// Whether they run a call, whose rows must begin at multiples of 16 bytes. Depends on shapes, strides and
    /// addresses only.
    pub(super) fn suits(&self, op: &ops::MoeLinear, call: &Call) -> bool {
        let whole = |view: &View| {
            let bytes = view.dtype.bytes() as u64;
            let mut strides = view.strides[..2].iter().map(|&stride| u64::from(stride) * bytes);
            view.ptr.is_multiple_of(16) && strides.all(|bytes| bytes.is_multiple_of(16))
        };
        let pointers = [call.weight, call.weight_up].iter().all(|ptr| ptr.is_multiple_of(16));
        let fits = call.out.len() <= op.max_tokens;
        whole(&call.x) && whole(&call.out) && pointers && fits && self.path(op, call.out.len()).is_some()
    }

    /// Whether a call over chosen experts reads the list.
    pub(super) fn reads_list(tokens: u32) -> bool {
        tokens > 1
    }

    fn path(&self, op: &ops::MoeLinear, tokens: u32) -> Option<Path> {
        if tokens == 1 {
            return Some(Path::Direct);
        }
        let each = (tokens * op.top_k).div_ceil(op.all_experts());
        match (FEW.iter().position(|shape| each <= shape.most), self.tile) {
            (Some(few), _) => Some(Path::Few(few)),
            (None, Some(_)) => Some(Path::Tile(usize::from(each >= LARGE_FROM))),
            (None, None) => (each <= MOST_FEW).then_some(Path::Few(FEW.len() - 1)),
        }
    }

    /// Appends the launch of a call that [`Products::suits`], behind the list's.
    pub(super) fn encode(&self, encoding: &mut Encoding, op: &ops::MoeLinear, call: &Call) {
        let choices = call.out.len() * op.top_k;
        let Some(path) = self.path(op, call.out.len()) else {
            return;
        };
        let (x, out) = (&call.x, &call.out);
        let gathered = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.strides[0]),
            Arg::U32(if x.shape[1] == 1 { 0 } else { x.strides[1] }),
            Arg::Ptr(call.weight),
            Arg::Ptr(call.weight_up),
        ];
        let results = [
            Arg::Ptr(out.ptr),
            Arg::U32(out.strides[0]),
            Arg::U32(out.strides[1]),
            Arg::Ptr(call.bias),
            Arg::Ptr(call.bias_up),
            Arg::U32(out.len()),
            Arg::U32(op.top_k),
        ];
        let sizes = [
            Arg::U32(op.num_experts),
            Arg::U32(ExpertList::num_groups(op, call.elsewhere)),
            Arg::U32(op.in_features),
            Arg::U32(op.out_features),
        ];
        let (list, chosen) = match call.experts.is_none() {
            true => (Arg::Ptr(0), op.num_experts),
            false => (Arg::Scratch(0), ExpertList::most_chosen(op, call.elsewhere, choices)),
        };
        match path {
            Path::Direct | Path::Few(_) => {
                let (index, list, blocks) = match path {
                    Path::Few(index) => (index, list, chosen),
                    _ => (0, Arg::Ptr(0), choices),
                };
                let shape = FEW[index];
                let mut args = gathered.to_vec();
                args.extend([Arg::Ptr(call.experts.ptr), Arg::U32(call.experts.row_stride()), list]);
                args.extend(results);
                args.push(Arg::U32(op.first_expert));
                args.extend(sizes);
                let rows = (16 * shape.row_tiles) >> u32::from(self.is_gated);
                let grid = [op.out_features.div_ceil(rows), blocks, 1];
                encoding.launch(self.few[index], grid, 32 * shape.warps, shape.shared_bytes(), &args);
            }
            Path::Tile(index) => {
                let Some(functions) = self.tile else { return };
                let mut args = gathered.to_vec();
                args.push(list);
                args.extend(results);
                args.extend(sizes);
                let tokens = TILES[index].0;
                // Twice the share of an even spread: a popular expert is several blocks' work.
                let shares = (2 * choices).div_ceil(op.all_experts() * tokens).clamp(1, MAX_SHARES);
                let rows = TILE_ROWS >> u32::from(self.is_gated);
                let grid = [op.out_features.div_ceil(rows), chosen, shares];
                encoding.launch(functions[index], grid, 256, tile_shared_bytes(TILES[index]), &args);
            }
        }
    }
}

/// Whether matrix units take the op.
pub(super) fn takes(op: &ops::MoeLinear, facts: &Facts) -> bool {
    let same = matches!(
        (op.dtype, op.weight),
        (DType::BF16, WeightFormat::BF16) | (DType::F16, WeightFormat::F16)
    );
    facts.matrix_units && same && op.in_features.is_multiple_of(8) && op.num_experts <= MAX_EXPERTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op() -> ops::MoeLinear {
        ops::MoeLinear {
            in_features: 64,
            out_features: 72,
            num_experts: 8,
            top_k: 2,
            weight: WeightFormat::BF16,
            dtype: DType::BF16,
            max_tokens: 1000,
            first_expert: 0,
            total_experts: 0,
            allow_quantized_act: false,
        }
    }

    fn products(is_hopper: bool) -> Products {
        Products {
            few: [Function(1), Function(2), Function(3)],
            tile: is_hopper.then_some([Function(4), Function(5)]),
            is_gated: true,
        }
    }

    fn view(shape: [u32; 3]) -> View {
        View {
            ptr: 1 << 12,
            shape: [shape[0], shape[1], shape[2], 1],
            strides: [shape[1] * shape[2], shape[2], 1, 1],
            dtype: DType::BF16,
            rank: 3,
        }
    }

    fn call(tokens: u32, width: u32) -> Call {
        Call {
            x: view([tokens, 1, width]),
            weight: 1 << 13,
            weight_up: 1 << 14,
            experts: view([tokens, 2, 1]),
            elsewhere: Elsewhere::Zeros,
            out: view([tokens, 2, 72]),
            bias: 0,
            bias_up: 0,
        }
    }

    #[test]
    fn more_choices_an_expert_take_larger_tiles() {
        let path = |tokens, is_hopper| products(is_hopper).path(&op(), tokens);
        assert_eq!(path(1, true), Some(Path::Direct));
        assert_eq!(path(20, true), Some(Path::Few(0)));
        assert_eq!(path(21, true), Some(Path::Few(1)));
        assert_eq!(path(49, true), Some(Path::Tile(0)));
        assert_eq!(path(192, true), Some(Path::Tile(1)));
        assert_eq!(path(128, false), Some(Path::Few(2)));
        assert_eq!(path(129, false), None, "the grouped kernel");
    }

    #[test]
    fn rows_off_16_bytes_and_more_tokens_than_were_named_are_left() {
        let suits = |call: &Call| products(true).suits(&op(), call);
        assert!(suits(&call(20, 64)));
        assert!(!suits(&call(20, 68)));
        assert!(!suits(&call(1001, 64)));
        let odd = Call {
            weight_up: (1 << 14) + 8,
            ..call(20, 64)
        };
        assert!(!suits(&odd));
    }

    #[test]
    fn a_gated_launch_covers_half_the_rows_a_block_and_no_more_experts_than_choices() {
        let launched = |op: &ops::MoeLinear, call: &Call| {
            let mut encoding = Encoding::default();
            products(true).encode(&mut encoding, op, call);
            match &encoding.commands[..] {
                [crate::encoding::Command::Launch(launch)] => (launch.function, launch.grid),
                _ => panic!("one launch"),
            }
        };
        assert_eq!(launched(&op(), &call(1, 64)), (Function(1), [9, 2, 1]));
        assert_eq!(launched(&op(), &call(3, 64)), (Function(1), [9, 6, 1]));
        assert_eq!(launched(&op(), &call(30, 64)), (Function(2), [9, 8, 1]));
        assert_eq!(launched(&op(), &call(1000, 64)), (Function(5), [1, 8, 4]));
        let rank = ops::MoeLinear {
            total_experts: 24,
            ..op()
        };
        assert_eq!(
            launched(&rank, &call(1000, 64)).1,
            [1, 9, 2],
            "one more for choices elsewhere"
        );
        let unread = Call {
            elsewhere: Elsewhere::LeftOut,
            ..call(1000, 64)
        };
        assert_eq!(launched(&rank, &unread).1, [1, 8, 2], "none where nothing reads them");
    }
}
