//! Tests of the family: what is refused, that every definition set in use is one that the compile test covers, and
//! which kernels are launched over which operands.

use halyard_kernels_gpu::Language;
use halyard_platform_api::ops::{
    Add, Copy, Embedding, FillRandom, GatherRows, Gelu, GeluKind, GeluMul, LayerNorm, Pool, PoolMode, PrepareInputs,
    QuantizeAct, QuantizeScheme, RmsNorm, Rope, RopeStyle, Scale, ScatterRows, SiluMul, SlotMapping, Softcap,
    UpdateRows,
};
use halyard_platform_api::{DType, OpSpec, Result, Status, WeightFormat};

use super::support::Entries;
use super::{build, copy, embedding, norm, pointwise, rope, rows, step};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Command, Encoding, Launch};
use crate::kernel::{Kernel, Packer, RowSource};
use crate::ops::formats::in_blocks;
use crate::view::View;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn view(ptr: u64, dtype: DType, shape: &[u32], strides: &[u32]) -> View {
    let mut view = View {
        ptr,
        shape: [1; 4],
        strides: [1; 4],
        dtype,
        rank: shape.len() as u32,
    };
    view.shape[..shape.len()].copy_from_slice(shape);
    view.strides[..strides.len()].copy_from_slice(strides);
    view
}

/// Rows without gaps at an aligned address.
fn dense(ptr: u64, dtype: DType, rows: u32, width: u32) -> View {
    view(ptr, dtype, &[rows, width], &[width, 1])
}

/// Stands for prepared: entry point i is function i.
fn number(entries: &mut Entries) {
    entries.functions = (0..entries.names.len()).map(Function).collect();
}

/// The launches of one encode, with their parameters.
fn encoded(kernel: &impl Kernel, operands: &[View]) -> Result<Vec<(Launch, Vec<Arg>)>> {
    let mut encoding = Encoding::default();
    kernel.encode(&mut encoding, operands)?;
    let launches = encoding.commands.into_iter().map(|command| match command {
        Command::Launch(launch) => {
            let first = launch.args.0 as usize;
            let args = encoding.args[first..first + launch.args.1 as usize].to_vec();
            (launch, args)
        }
        _ => unreachable!("these ops are kernels only"),
    });
    Ok(launches.collect())
}

/// The one launch: which entry point, its grid.
fn launched(kernel: &impl Kernel, operands: &[View]) -> (usize, [u32; 3]) {
    let launches = encoded(kernel, operands).expect("these operands fit");
    assert_eq!(launches.len(), 1);
    (launches[0].0.function.0, launches[0].0.grid)
}

#[test]
fn refusals_name_the_value_and_what_would_work() {
    let rope = |rotary_dim, dtype| Rope {
        head_dim: 64,
        rotary_dim,
        style: RopeStyle::Neox,
        dtype,
    };
    let (width, dtype) = (64, DType::I8);
    let random = FillRandom {
        dtype: DType::BF16,
        seed_low: 0,
        seed_high: 0,
        scale: 1.0,
        first: 6,
    };
    let table = Embedding {
        num_rows: 4,
        width: 100,
        weight: WeightFormat::Q4K,
        out: DType::BF16,
        scale: 1.0,
        max_tokens: 4,
    };
    let int8 = QuantizeAct {
        width: 40,
        dtype: DType::F32,
        scheme: QuantizeScheme::Int8Block32,
    };
    let many = PrepareInputs {
        max_seqs: 20_000,
        max_tokens: 20_000,
    };
    let softcap = Softcap {
        width,
        dtype: DType::F32,
        cap: 0.0,
    };
    let cases: [(OpSpec, [&str; 2]); 10] = [
        (SiluMul::plain(width, dtype).into(), ["I8", "F32, F16 and BF16"]),
        (
            Add {
                width: 0,
                dtype: DType::F32,
            }
            .into(),
            ["width 0", "at least 1"],
        ),
        (softcap.into(), ["cap 0", "above 0"]),
        (rope(33, DType::F32).into(), ["33 of 64", "pairs"]),
        (rope(66, DType::F32).into(), ["66 of 64", "whole head"]),
        (rope(64, DType::I32).into(), ["I32", "BF16"]),
        (random.into(), ["element 6", "multiple of 4"]),
        (table.into(), ["100 values", "blocks of 256"]),
        (int8.into(), ["40 values", "groups of 32"]),
        (many.into(), ["20000 sequences", "12000"]),
    ];
    for (spec, fragments) in cases {
        let error = match build(&spec).expect("an op of the family") {
            Err(error) => error,
            Ok(_) => panic!("{spec:?} was taken"),
        };
        assert_eq!(error.status, Status::Unsupported, "{spec:?}");
        for fragment in fragments {
            assert!(
                error.message.contains(fragment),
                "{:?} lacks {fragment:?}",
                error.message
            );
        }
    }
}

/// Every set of definitions that the ops use.
fn all_entries() -> Vec<Entries> {
    let width = 256;
    let mut all = Vec::new();
    let mut take = |entries: Result<Entries>| all.push(entries.expect("a supported spec"));
    for dtype in FLOATS {
        let (eps, weight_offset) = (1e-5, 0.0);
        let rms = RmsNorm {
            width,
            eps,
            weight_offset,
            dtype,
        };
        take(norm::Norm::rms(&rms).map(|k| k.entries));
        take(
            norm::Norm::layer(&LayerNorm {
                width,
                eps,
                dtype,
                num_weights: 0,
            })
            .map(|k| k.entries),
        );
        take(pointwise::silu_mul(&SiluMul::plain(width, dtype)).map(|k| k.entries));
        for kind in [GeluKind::Tanh, GeluKind::Erf] {
            take(pointwise::gelu_mul(&GeluMul { width, dtype, kind }).map(|k| k.entries));
            take(pointwise::gelu(&Gelu { width, dtype, kind }).map(|k| k.entries));
        }
        take(pointwise::add(&Add { width, dtype }).map(|k| k.entries));
        let factor = 2.0;
        take(pointwise::scale(&Scale { width, dtype, factor }).map(|k| k.entries));
        take(pointwise::softcap(&Softcap { width, dtype, cap: 3.0 }).map(|k| k.entries));
        for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
            let (head_dim, rotary_dim) = (64, 64);
            let rope = Rope {
                head_dim,
                rotary_dim,
                style,
                dtype,
            };
            take(rope::Rope::new(&rope).map(|k| k.entries));
        }
        for scheme in [
            QuantizeScheme::Int8Row,
            QuantizeScheme::Int8Block32,
            QuantizeScheme::Fp8Row,
        ] {
            take(rows::QuantizeAct::new(&QuantizeAct { width, dtype, scheme }).map(|k| k.entries));
        }
        let (mode, normalize) = (PoolMode::Mean, true);
        let pool = Pool {
            width,
            dtype,
            mode,
            normalize,
        };
        take(rows::Pool::new(&pool).map(|k| k.entries));
        let random = FillRandom {
            dtype,
            seed_low: 1,
            seed_high: 2,
            scale: 1.0,
            first: 0,
        };
        take(copy::FillRandom::new(&random).map(|k| k.entries));
        // What is read does not depend on what is written: canonical formats are compiled to one type.
        let of_type = |format: WeightFormat| !format.is_canonical() || dtype == DType::F32;
        let read = |format: &WeightFormat| (format.is_plain() || in_blocks(*format)) && of_type(*format);
        for weight in WeightFormat::ALL.into_iter().filter(read) {
            let table = Embedding {
                num_rows: 4,
                width,
                weight,
                out: dtype,
                scale: 1.0,
                max_tokens: 4,
            };
            take(embedding::Embedding::new(&table).map(|k| k.entries));
        }
    }
    let dtype = DType::BF16;
    take(rows::MoveRows::gather(&GatherRows { width, dtype }).map(|k| k.entries));
    take(rows::MoveRows::scatter(&ScatterRows { width, dtype }).map(|k| k.entries));
    take(copy::Copy::new(&Copy { dtype }).map(|k| k.entries));
    let (max_seqs, max_tokens, max_sampled) = (4, 16, 1);
    take(step::PrepareInputs::new(&PrepareInputs { max_seqs, max_tokens }).map(|k| k.entries));
    take(step::SlotMapping::new(&SlotMapping { block_size: 16 }).map(|k| k.entries));
    take(step::UpdateRows::new(&UpdateRows { max_seqs, max_sampled }).map(|k| k.entries));
    all
}

/// The definitions of a `// check:` line, sorted.
fn checked(line: &str) -> Option<Vec<String>> {
    let mut defines: Vec<String> = line
        .strip_prefix("// check:")?
        .split_whitespace()
        .map(str::to_string)
        .collect();
    defines.sort();
    Some(defines)
}

#[test]
fn every_definition_set_in_use_is_compiled_by_the_compile_test() {
    for entries in all_entries() {
        let mut used: Vec<String> = entries
            .defines
            .iter()
            .map(|(name, value)| format!("-D{name}={value}"))
            .collect();
        used.sort();
        let text = entries.source.text(Language::Cuda).unwrap_or_default();
        let listed = text.lines().filter_map(checked).any(|line| line == used);
        assert!(listed, "{}: {used:?} has no `// check:` line", entries.source.name);
    }
}

#[test]
fn an_op_that_is_not_prepared_says_so() {
    let op = pointwise::add(&Add {
        width: 8,
        dtype: DType::BF16,
    })
    .expect("supported");
    let x = dense(256, DType::BF16, 2, 8);
    let error = encoded(&op, &[x, x, x]).expect_err("there is no function yet");
    assert!(error.message.contains("prepare"), "{}", error.message);
}

#[test]
fn pointwise_takes_vectors_where_all_rows_are_aligned() {
    let (width, dtype) = (100, DType::BF16);
    let mut op = pointwise::add(&Add { width, dtype }).expect("supported");
    number(&mut op.entries);
    let x = |ptr| dense(ptr, dtype, 8, width);
    // 800 dense elements are whole vectors though a row of 100 is not; one launch of 512 vectors.
    assert_eq!(launched(&op, &[x(0x1000), x(0x2000), x(0x1000)]), (0, [1, 1, 1]));
    // An address that is not aligned: elements, 800 / 512 blocks.
    assert_eq!(launched(&op, &[x(0x1000), x(0x2002), x(0x1000)]), (1, [2, 1, 1]));
    // Gaps of 4: rows start at odd halves of a vector.
    let gaps = view(0x1000, dtype, &[8, width], &[104, 1]);
    assert_eq!(launched(&op, &[gaps, x(0x2000), x(0x3000)]), (1, [2, 1, 1]));
    // Nothing to do, nothing launched.
    let none = dense(0x1000, dtype, 0, width);
    assert_eq!(encoded(&op, &[none, none, none]).map(|l| l.len()), Ok(0));
}

#[test]
fn operands_that_do_not_fit_are_named() {
    let (width, dtype) = (64, DType::BF16);
    let mut op = pointwise::silu_mul(&SiluMul::plain(width, dtype)).expect("supported");
    number(&mut op.entries);
    let x = dense(0x1000, dtype, 8, width);
    let wrong = |index: usize, operand: View| {
        let mut operands = [x, x, x];
        operands[index] = operand;
        encoded(&op, &operands).expect_err("it does not fit").message
    };
    let message = wrong(1, dense(0x1000, DType::F32, 8, width));
    assert!(
        message.contains("`up`") && message.contains("expected BF16"),
        "{message}"
    );
    let message = wrong(0, dense(0x1000, dtype, 8, 32));
    assert!(message.contains("`gate`") && message.contains("[8, 32]"), "{message}");
    let message = wrong(2, dense(0x1000, dtype, 7, width));
    assert!(
        message.contains("`out`") && message.contains("7 rows, expected 8"),
        "{message}"
    );
    let message = wrong(2, view(0x1000, dtype, &[8, width], &[128, 2]));
    assert!(message.contains("neighbours"), "{message}");
    let message = encoded(&op, &[x, x]).expect_err("one is missing").message;
    assert!(message.contains("2 operands, it takes 3"), "{message}");
}

#[test]
fn a_norms_threads_follow_from_its_width() {
    let launch = |width: u32, rows: u32| {
        let spec = RmsNorm {
            width,
            eps: 1e-5,
            weight_offset: 0.0,
            dtype: DType::BF16,
        };
        let mut op = norm::Norm::rms(&spec).expect("supported");
        number(&mut op.entries);
        let (x, weight) = (
            dense(0x1000, DType::BF16, rows, width),
            view(0x9000, DType::F32, &[width], &[1]),
        );
        let launches = encoded(&op, &[x, weight, x]).expect("these operands fit");
        let (launch, _) = &launches[0];
        (op.entries.names[launch.function.0], launch.block[0], launch.grid[0])
    };
    // One multiprocessor: eight blocks of 1024 threads' worth at most.
    assert_eq!(launch(128, 4), ("norm_lanes_1", 128, 1));
    assert_eq!(launch(512, 4), ("norm_lanes_2", 128, 1));
    assert_eq!(launch(576, 1), ("norm_block_1", 96, 1));
    assert_eq!(launch(4096, 100), ("norm_block_2", 256, 4));
    assert_eq!(launch(12288, 100), ("norm_block_4", 384, 2));
    assert_eq!(launch(37, 3), ("norm_any", 256, 3));
    assert_eq!(launch(65536, 3), ("norm_any", 256, 3));
}

#[test]
fn the_heads_of_a_wider_product_are_rows_of_their_own() {
    let spec = RmsNorm {
        width: 128,
        eps: 1e-6,
        weight_offset: 0.0,
        dtype: DType::BF16,
    };
    let mut op = norm::Norm::rms(&spec).expect("supported");
    number(&mut op.entries);
    let q = view(0x1000, DType::BF16, &[10, 32, 128], &[6144, 128, 1]);
    let weight = view(0x9000, DType::F32, &[128], &[1]);
    let launches = encoded(&op, &[q, weight, q]).expect("these operands fit");
    let (_, args) = &launches[0];
    let shown = |index: usize| format!("{:?}", args[index]);
    assert_eq!([shown(1), shown(2)], ["U64(6144)", "U64(128)"]);
    assert_eq!([shown(8), shown(9)], ["U32(320)", "U32(32)"]);
    // One weight for all heads; lanes of a head.
    assert_eq!([shown(13), shown(14)], ["U32(0)", "U32(16)"]);
    // A weight for each: so far apart.
    let spec = LayerNorm {
        width: 128,
        eps: 1e-6,
        dtype: DType::BF16,
        num_weights: 32,
    };
    let mut op = norm::Norm::layer(&spec).expect("supported");
    number(&mut op.entries);
    let own = dense(0x9000, DType::F32, 32, 128);
    let none = view(0, DType::F32, &[1], &[1]);
    let launches = encoded(&op, &[q, own, none, q]).expect("these operands fit");
    assert_eq!(format!("{:?}", launches[0].1[13]), "U32(128)");
    let error = encoded(&op, &[q, dense(0x9000, DType::F32, 31, 128), none, q]).expect_err("31 weights of 32 heads");
    assert!(error.message.contains("31 rows, expected 32"), "{error}");
    // The elementwise ops see rows equally far apart, or refuse.
    let (width, dtype) = (128, DType::BF16);
    let mut add = pointwise::add(&Add { width, dtype }).expect("supported");
    number(&mut add.entries);
    let error = encoded(&add, &[q, q, q]).expect_err("10 groups of 32 rows with a gap");
    assert_eq!(error.status, Status::Unsupported);
    let whole = view(0x1000, dtype, &[10, 32, 128], &[4096, 128, 1]);
    assert_eq!(launched(&add, &[whole, whole, whole]), (0, [10, 1, 1]));
}

#[test]
fn rope_turns_vectors_of_whole_pairs_only() {
    let launch = |rotary_dim, style, stride| {
        let (head_dim, dtype) = (80, DType::BF16);
        let spec = Rope {
            head_dim,
            rotary_dim,
            style,
            dtype,
        };
        let mut op = rope::Rope::new(&spec).expect("supported");
        number(&mut op.entries);
        let positions = view(0x100, DType::I32, &[4], &[1]);
        let table = dense(0x2000, DType::F32, 50, rotary_dim);
        let x = view(0x4000, dtype, &[4, 2, head_dim], &[stride, head_dim, 1]);
        launched(&op, &[positions, table, x]).0
    };
    assert_eq!(launch(64, RopeStyle::Neox, 160), 0);
    assert_eq!(
        launch(40, RopeStyle::Neox, 160),
        1,
        "halves of 20 are no whole vectors of 8"
    );
    assert_eq!(
        launch(40, RopeStyle::Interleaved, 160),
        0,
        "40 neighbours are five vectors"
    );
    assert_eq!(launch(64, RopeStyle::Neox, 161), 1);
}

/// Writes down what it is asked to copy.
#[derive(Default)]
struct Recorder(std::sync::Mutex<Vec<[u64; 6]>>);

impl Packer for Recorder {
    fn copy(
        &self,
        to: DevicePtr,
        to_pitch: u64,
        _source: RowSource<'_>,
        offset: u64,
        pitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()> {
        let mut copies = self.0.lock().unwrap_or_else(|e| e.into_inner());
        copies.push([to, to_pitch, offset, pitch, width, height]);
        Ok(())
    }

    fn on_device(&self, _source: RowSource<'_>, _offset: u64, _bytes: u64) -> Result<DevicePtr> {
        Err(halyard_platform_api::Error::invalid("a table is copied only"))
    }

    fn run(&self, _encoding: &Encoding) -> Result<()> {
        Err(halyard_platform_api::Error::invalid("a table is copied only"))
    }
}

#[test]
fn table_rows_are_padded_to_16_bytes_and_checked() {
    let table = Embedding {
        num_rows: 11,
        width: 96,
        weight: WeightFormat::Q4_0,
        out: DType::BF16,
        scale: 1.0,
        max_tokens: 4,
    };
    // Three blocks of 18 bytes in 64.
    let op = embedding::Embedding::new(&table).expect("supported");
    assert_eq!(op.packed_weight_bytes(0), Ok(11 * 64));
    assert!(op.packed_weight_bytes(1).is_err());
    let packer = Recorder::default();
    let rows = [0u8; 2 * 54];
    op.pack_weight(&packer, 0, 3, 2, RowSource::Host(&rows), 0x1000)
        .expect("two rows of 54 bytes");
    let copies = packer.0.lock().unwrap_or_else(|e| e.into_inner());
    assert_eq!(*copies, [[0x1000 + 3 * 64, 64, 0, 54, 54, 2]]);
    drop(copies);
    let device = |bytes| RowSource::Device(0x9000, bytes);
    for (first, source, words) in [
        (10, RowSource::Host(&rows), "the table has 11 rows"),
        (3, RowSource::Host(&rows[1..]), "108 bytes, and 107 were given"),
        (3, device(107), "108 bytes, and 107 were given"),
    ] {
        let error = op
            .pack_weight(&packer, 0, first, 2, source, 0x1000)
            .expect_err("past the end, or a byte short");
        assert!(error.message.contains(words), "{}", error.message);
    }
    op.pack_weight(&packer, 0, 3, 2, device(4096), 0x1000)
        .expect("a staging buffer may be larger");
}

#[test]
fn a_steps_layout_covers_tokens_and_sequences() {
    let mut op = step::PrepareInputs::new(&PrepareInputs {
        max_seqs: 512,
        max_tokens: 16384,
    })
    .expect("supported");
    number(&mut op.entries);
    let operands = |seqs: u32, tokens: u32| {
        let ints = |len: u32| view(0x1000, DType::I32, &[len], &[1]);
        let history = view(0x8000, DType::I32, &[600, 100], &[104, 1]);
        let (s, t) = (ints(seqs), ints(tokens));
        [
            s,
            s,
            history,
            ints(600),
            View::NONE,
            t,
            t,
            t,
            View::NONE,
            ints(seqs + 1),
            s,
            s,
        ]
    };
    assert_eq!(launched(&op, &operands(512, 16384)).1, [64, 1, 1]);
    // More sequences than tokens: 513 starts take three blocks.
    assert_eq!(launched(&op, &operands(512, 4)).1, [3, 1, 1]);
    let error = encoded(&op, &operands(513, 4)).expect_err("one too many");
    assert!(error.message.contains("the bound is 512"), "{}", error.message);
    let mut short = operands(4, 4);
    short[9] = short[0];
    let error = encoded(&op, &short).expect_err("S starts, not S + 1");
    assert!(error.message.contains("`query_start_loc`"), "{}", error.message);
}
