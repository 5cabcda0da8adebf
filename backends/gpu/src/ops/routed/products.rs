//! Products of chosen experts on matrix units, expert by expert, each matrix read once, with the gating of gate and up
//! fused where a region asks for it: over matrices in the activations' own 16-bit type, and over formats in blocks,
//! which lie as records (`quantized.cuh`).

use halyard_kernels_gpu::{MOE_FEW, MOE_GROUPS_FEW, MOE_GROUPS_HOPPER, MOE_TILE};
use halyard_platform_api::{Error, Result, ops};

use super::expert_list::{Elsewhere, ExpertList};
use super::many::{Many, Matrices};
use super::shapes::{Few, MAX_SHARES, MOST_FEW, Rows, TILE_ROWS, Tile};
use super::unpacked::Unpacked;
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::formats::code;
use crate::ops::names::{Gate, borrowed, float_name};
use crate::view::View;

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

impl Call {
    /// Whether all rows begin at multiples of 16 bytes.
    fn is_whole(&self) -> bool {
        let whole = |view: &View| {
            let bytes = view.dtype.bytes() as u64;
            let mut strides = view.strides[..2].iter().map(|&stride| u64::from(stride) * bytes);
            view.ptr.is_multiple_of(16) && strides.all(|bytes| bytes.is_multiple_of(16))
        };
        let weights = [self.weight, self.weight_up].iter().all(|ptr| ptr.is_multiple_of(16));
        whole(&self.x) && whole(&self.out) && weights
    }
}

/// Which kernel takes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// One token: its choices are different experts.
    Direct,
    /// Of [`Products::few`].
    Few(usize),
    /// Of [`Products::tiles`].
    Tile(usize),
    /// [`Products::many`], over matrices as they are or [`Products::unpacked`].
    Many,
}

/// Compiled.
pub(super) struct Products {
    rows: Rows,
    few: Vec<(Few, Function)>,
    tiles: Vec<(Tile, Function)>,
    many: Option<Many>,
    unpacked: Option<Unpacked>,
    is_gated: bool,
}

impl Products {
    /// Compiles them; `None` where matrix units do not take the op. `gate` joins gate and up; `by_list`: calls name
    /// their experts.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::MoeLinear,
        gate: Option<&Gate>,
        by_list: bool,
    ) -> Result<Option<Products>> {
        let (Some(act), Some(rows)) = (float_name(op.dtype), Rows::of(op, cx.facts())) else {
            return Ok(None);
        };
        let mut defines = vec![("ACT", act), ("GATE", gate.map_or("0", |gate| gate.code))];
        let numbers = gate.map_or_else(Vec::new, |gate| borrowed(&gate.numbers));
        defines.extend(numbers);
        let (few, tile, format) = match rows {
            Rows::Plain => ((MOE_FEW, "moe_few"), (MOE_TILE, "moe_tile"), None),
            Rows::Records(format) => (
                (MOE_GROUPS_FEW, "moe_groups_few"),
                (MOE_GROUPS_HOPPER, "moe_groups_hopper"),
                Some(("FORMAT", code(format))),
            ),
        };
        let function = |(source, name), numbers: &[(&'static str, u32)], shared| {
            let texts: Vec<String> = numbers.iter().map(|(_, number)| number.to_string()).collect();
            let named = numbers
                .iter()
                .zip(&texts)
                .map(|((define, _), text)| (*define, text.as_str()));
            let all: Vec<(&str, &str)> = defines.iter().copied().chain(format).chain(named).collect();
            cx.function(source, &all, name, shared)
        };
        let few = rows.few().into_iter().map(|shape| {
            let numbers = [
                ("TILES", shape.tiles),
                ("WARPS", shape.warps),
                ("ROW_TILES", shape.row_tiles),
                ("DEPTH", shape.depth),
            ];
            Ok((shape, function(few, &numbers, shape.shared_bytes())?))
        });
        let facts = cx.facts();
        let fits = |tile: &Tile| facts.arch == "sm_90a" && tile.shared <= facts.max_shared_bytes;
        let tiles = rows
            .tiles(facts.max_shared_bytes)
            .into_iter()
            .filter(fits)
            .map(|shape| {
                let groups = (shape.groups > 0).then_some(("GROUPS", shape.groups));
                let numbers = [("TOKENS", shape.tokens), ("STAGES", shape.stages)]
                    .into_iter()
                    .chain(groups);
                let numbers: Vec<(&str, u32)> = numbers.collect();
                Ok((shape, function(tile, &numbers, shape.shared)?))
            });
        let is_many = ExpertList::choices_each(op, op.max_tokens) >= rows.many_from();
        let many = match rows {
            Rows::Records(_) if !by_list => None,
            _ if is_many => Many::prepare(cx, &defines)?,
            _ => None,
        };
        let unpacked = match rows {
            Rows::Records(_) if many.is_some() => Some(Unpacked::prepare(cx, op, act, gate.is_some())?),
            _ => None,
        };
        Ok(Some(Products {
            rows,
            few: few.collect::<Result<_>>()?,
            tiles: tiles.collect::<Result<_>>()?,
            many,
            unpacked,
            is_gated: gate.is_some(),
        }))
    }

    /// Whether they run a call well. Depends on shapes, strides and addresses only.
    pub(super) fn suits(&self, op: &ops::MoeLinear, call: &Call) -> bool {
        call.out.len() <= op.max_tokens && self.path(op, call).is_some()
    }

    /// Scratch while they run, the list included.
    pub(super) fn scratch_bytes(&self, op: &ops::MoeLinear) -> u64 {
        match &self.unpacked {
            Some(unpacked) => unpacked.scratch_bytes(),
            None => ExpertList::bytes(op),
        }
    }

    /// Whether a call over chosen experts reads the list.
    pub(super) fn reads_list(tokens: u32) -> bool {
        tokens > 1
    }

    /// `None`: another kernel is faster, or rows do not begin at multiples of 16 bytes where they have to.
    fn path(&self, op: &ops::MoeLinear, call: &Call) -> Option<Path> {
        let tokens = call.out.len();
        let whole = call.is_whole();
        let few = |path: Path| (whole || self.rows != Rows::Plain).then_some(path);
        if tokens == 1 {
            return few(Path::Direct);
        }
        let each = ExpertList::choices_each(op, tokens);
        if self.many.is_some() && whole && each >= self.rows.many_from() {
            return Some(Path::Many);
        }
        if let Some(index) = self.few.iter().position(|(shape, _)| each <= shape.most) {
            return few(Path::Few(index));
        }
        if whole && !self.tiles.is_empty() {
            let is_large = each >= self.rows.large_from();
            return Some(Path::Tile(usize::from(is_large).min(self.tiles.len() - 1)));
        }
        few(Path::Few(self.few.len() - 1)).filter(|_| each <= MOST_FEW)
    }

    /// Appends the launch of a call that [`Products::suits`], behind the list's.
    pub(super) fn encode(&self, encoding: &mut Encoding, op: &ops::MoeLinear, call: &Call) {
        if let Some(path) = self.path(op, call) {
            self.launch(encoding, op, call, path);
        }
    }

    /// Appends the launch of any call over records.
    ///
    /// # Errors
    /// `InvalidArgument` for more tokens than the op was prepared for.
    pub(super) fn encode_any(&self, encoding: &mut Encoding, op: &ops::MoeLinear, call: &Call) -> Result<()> {
        if call.out.len() > op.max_tokens {
            let text = format!("{} tokens: the op is prepared for {}", call.out.len(), op.max_tokens);
            return Err(Error::invalid(text));
        }
        self.launch(encoding, op, call, Path::Few(self.few.len() - 1));
        Ok(())
    }

    fn launch(&self, encoding: &mut Encoding, op: &ops::MoeLinear, call: &Call, path: Path) {
        let choices = call.out.len() * op.top_k;
        let (x, out) = (&call.x, &call.out);
        let gathered = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.strides[0]),
            Arg::U32(if x.shape[1] == 1 { 0 } else { x.strides[1] }),
        ];
        let weights = [Arg::Ptr(call.weight), Arg::Ptr(call.weight_up)];
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
                let (shape, function) = self.few[index];
                let mut args = gathered.to_vec();
                args.extend(weights);
                args.extend([Arg::Ptr(call.experts.ptr), Arg::U32(call.experts.row_stride()), list]);
                args.extend(results);
                args.push(Arg::U32(op.first_expert));
                args.extend(sizes);
                let rows = (16 * shape.row_tiles) >> u32::from(self.is_gated);
                let grid = [op.out_features.div_ceil(rows), blocks, 1];
                encoding.launch(function, grid, 32 * shape.warps, shape.shared_bytes(), &args);
            }
            Path::Tile(index) => {
                let (shape, function) = self.tiles[index];
                let mut args = gathered.to_vec();
                args.extend(weights);
                args.push(list);
                args.extend(results);
                args.extend(sizes);
                // Twice the share of an even spread: a popular expert is several blocks' work.
                let shares = (2 * choices).div_ceil(op.all_experts() * shape.tokens);
                let rows = TILE_ROWS >> u32::from(self.is_gated);
                let grid = [op.out_features.div_ceil(rows), chosen, shares.clamp(1, MAX_SHARES)];
                encoding.launch(function, grid, shape.threads, shape.shared, &args);
            }
            Path::Many => {
                let Some(many) = self.many else { return };
                let multiply = |encoding: &mut Encoding, matrices: Matrices| {
                    let mut args = gathered.to_vec();
                    args.push(list);
                    args.extend(results);
                    args.extend(sizes);
                    many.encode(encoding, op, choices, self.is_gated, &matrices, &args);
                };
                match &self.unpacked {
                    Some(unpacked) => unpacked.encode(encoding, op, weights, chosen, multiply),
                    None => multiply(encoding, Matrices::of_all([call.weight, call.weight_up], chosen)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::{DType, WeightFormat};

    use super::*;
    use crate::driver::Facts;
    use crate::encoding::BoxesOf;
    use crate::ops::linear::{has_minima, has_operands, run_values};
    use crate::ops::tests::facts;

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

    fn products_over(rows: Rows, is_hopper: bool) -> Products {
        let numbered = (1..).map(Function);
        let tiles = if is_hopper { rows.tiles(227 << 10) } else { Vec::new() };
        Products {
            rows,
            few: rows.few().into_iter().zip(numbered.clone()).collect(),
            tiles: tiles.into_iter().zip(numbered.skip(3)).collect(),
            many: is_hopper
                .then(|| Many::of(Function(21), 132))
                .filter(|_| rows == Rows::Plain),
            unpacked: None,
            is_gated: true,
        }
    }

    fn products(is_hopper: bool) -> Products {
        products_over(Rows::Plain, is_hopper)
    }

    fn boxes(encoding: &Encoding) -> Vec<BoxesOf> {
        let boxes = encoding.args.iter().filter_map(|arg| match arg {
            Arg::Boxes(of) => Some(*of),
            _ => None,
        });
        boxes.collect()
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
        let path = |tokens, is_hopper| products(is_hopper).path(&op(), &call(tokens, 64));
        assert_eq!(path(1, true), Some(Path::Direct));
        assert_eq!(path(20, true), Some(Path::Few(0)));
        assert_eq!(path(21, true), Some(Path::Few(1)));
        assert_eq!(path(49, true), Some(Path::Tile(0)));
        assert_eq!(path(192, true), Some(Path::Tile(1)));
        assert_eq!(path(476, true), Some(Path::Tile(1)));
        assert_eq!(path(477, true), Some(Path::Many));
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
    fn records_take_rows_of_any_place_and_tiles_whole_ones() {
        use WeightFormat::{E2M1G16, F8G128, Nf4G64, U4G16, U4G128};
        let records = |format, is_hopper| products_over(Rows::Records(format), is_hopper);
        let path = |format, is_hopper, tokens, width| {
            let op = ops::MoeLinear { weight: format, ..op() };
            records(format, is_hopper).path(&op, &call(tokens, width))
        };
        assert_eq!(path(U4G128, true, 1, 68), Some(Path::Direct));
        assert_eq!(path(U4G128, true, 20, 68), Some(Path::Few(0)));
        assert_eq!(path(U4G128, true, 192, 64), Some(Path::Tile(1)));
        assert_eq!(path(U4G128, true, 192, 68), None, "the caller has another kernel");
        assert_eq!(path(E2M1G16, true, 192, 64), Some(Path::Tile(0)), "there is one");
        assert_eq!(path(U4G16, true, 128, 64), Some(Path::Few(2)), "there is none");
        assert_eq!(path(U4G128, false, 129, 64), None, "the grouped kernel");
        for format in WeightFormat::ALL.into_iter().filter(|&format| has_operands(format)) {
            let found: Vec<u32> = records(format, true)
                .tiles
                .iter()
                .map(|(tile, _)| tile.tokens)
                .collect();
            let expected: &[u32] = match run_values(format) {
                16 if has_minima(format) => &[],
                16 | 32 => &[32],
                _ => &[32, 64],
            };
            assert_eq!(found, expected, "{format:?}");
        }
        let mut encoding = Encoding::default();
        let error = records(U4G128, true).encode_any(&mut encoding, &op(), &call(1001, 68));
        assert!(
            error
                .unwrap_err()
                .message
                .contains("1001 tokens: the op is prepared for 1000")
        );
        let rows = |weight, out_features, units| {
            let facts = Facts {
                matrix_units: units,
                ..facts("sm_90a", 132, 227 << 10)
            };
            let op = ops::MoeLinear {
                weight,
                out_features,
                ..op()
            };
            Rows::of(&op, &facts)
        };
        assert_eq!(rows(F8G128, 72, true), Some(Rows::Records(F8G128)));
        assert_eq!(rows(F8G128, 70, true), None, "a record with rows of two experts");
        assert_eq!(rows(Nf4G64, 72, true), None, "a table");
        let narrow = ops::MoeLinear {
            weight: U4G16,
            in_features: 48,
            ..op()
        };
        let facts = Facts {
            matrix_units: true,
            ..facts("sm_90a", 132, 227 << 10)
        };
        assert_eq!(Rows::of(&narrow, &facts), None, "half a chunk of the packer");
        assert_eq!(rows(U4G128, 72, false), None);
    }

    #[test]
    fn many_choices_of_records_are_multiplied_unpacked_part_by_part() {
        let op = ops::MoeLinear {
            in_features: 4096,
            out_features: 16_384,
            weight: WeightFormat::Q4K,
            max_tokens: 600,
            ..op()
        };
        let mut products = products_over(Rows::Records(op.weight), true);
        products.many = Some(Many::of(Function(21), 132));
        products.unpacked = Some(Unpacked::of(&op, true, Function(20)));
        let called = |tokens, width| Call {
            out: view([tokens, 2, 16_384]),
            ..call(tokens, width)
        };
        assert_eq!(products.path(&op, &called(188, 4096)), Some(Path::Tile(0)));
        assert_eq!(products.path(&op, &called(189, 4096)), Some(Path::Many));
        assert_eq!(products.path(&op, &called(600, 4100)), None, "odd rows");
        let mut encoding = Encoding::default();
        products.encode(&mut encoding, &op, &called(600, 4096));
        let launches: Vec<_> = encoding
            .commands
            .iter()
            .map(|command| match command {
                crate::encoding::Command::Launch(launch) => (launch.function, launch.grid),
                _ => panic!("launches alone"),
            })
            .collect();
        // Two experts' gates and ups take 512 MiB.
        let [unpack, many] = [(Function(20), [8192, 2, 2]), (Function(21), [132, 1, 1])];
        assert_eq!(launches, [unpack, many, unpack, many, unpack, many, unpack, many]);
        let begin = ExpertList::bytes(&op).next_multiple_of(256);
        assert_eq!(products.scratch_bytes(&op), begin + (512 << 20));
        let gates = BoxesOf {
            at: begin,
            in_scratch: true,
            rows: 2 * 16_384,
            width: 4096,
        };
        let ups = BoxesOf {
            at: begin + (256 << 20),
            ..gates
        };
        assert_eq!(boxes(&encoding), [gates, ups].repeat(4));
        let last = &encoding.args[encoding.args.len() - 3..];
        assert!(
            matches!(last, [Arg::U32(6), Arg::U32(2), Arg::U32(1)]),
            "from entry 6 on two, in order: {last:?}"
        );
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
        assert_eq!(launched(&op(), &call(400, 64)), (Function(5), [1, 8, 2]));
        assert_eq!(launched(&op(), &call(1000, 64)), (Function(21), [30, 1, 1]));
        let mut encoding = Encoding::default();
        products(true).encode(&mut encoding, &op(), &call(1000, 64));
        let gate = BoxesOf {
            at: 1 << 13,
            in_scratch: false,
            rows: 8 * 72,
            width: 64,
        };
        let up = BoxesOf { at: 1 << 14, ..gate };
        assert_eq!(boxes(&encoding), [gate, up]);
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
