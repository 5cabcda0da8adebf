//! Quantised checkpoints: what is wrong with them is said by field or tensor, and rounding at load.
//! Their values are compared with the formats' own libraries by the engine's goldens.

mod support;

use std::collections::BTreeMap;

use halyard_models::weights::{Linear, MlpLinear};
use halyard_models::{DummyWeights, LoadFormat, ModelError, ModelFiles, Role, Rounding, WeightQuantization};
use halyard_platform_api::WeightFormat;
use halyard_platform_api::weight_format::{Unpacked, unpack};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{TempFolder, fixtures};

const UP: &str = "model.layers.0.mlp.up_proj.";

/// A tensor in place of a fixture's; `None` takes it away.
type Change<'t> = (&'t str, Option<(Dtype, Vec<usize>, Vec<u8>)>);

/// A copy of a fixture with changed fields of `quantization_config` and changed tensors, which are the first up
/// projection's or have their whole names.
fn opened(name: &str, fields: Value, changes: &[Change<'_>]) -> Result<ModelFiles, ModelError> {
    let (folder, from) = (TempFolder::new(), fixtures().join("models/quant").join(name));
    let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in fields.as_object().unwrap() {
        config["quantization_config"][key] = value.clone();
    }
    folder.write("config.json", config.to_string());
    folder.write("tokenizer.json", std::fs::read(from.join("tokenizer.json")).unwrap());
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: BTreeMap<String, TensorView<'_>> = stored.tensors().into_iter().collect();
    for (end, change) in changes {
        let name = match end.starts_with("model.") {
            true => (*end).to_owned(),
            false => format!("{UP}{end}"),
        };
        assert!(tensors.remove(&name).is_some(), "{name}");
        if let Some((dtype, shape, bytes)) = change {
            tensors.insert(name, TensorView::new(*dtype, shape.clone(), bytes).unwrap());
        }
    }
    folder.write("model.safetensors", safetensors::serialize(tensors, None).unwrap());
    ModelFiles::open(folder.path(), LoadFormat::Auto, DummyWeights::default())
}

fn refusal(name: &str, fields: Value, changes: &[Change<'_>]) -> String {
    opened(name, fields, changes)
        .err()
        .unwrap_or_else(|| panic!("{name} was read"))
        .to_string()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn zeros(dtype: Dtype, shape: &[usize], bytes: usize) -> Option<(Dtype, Vec<usize>, Vec<u8>)> {
    Some((dtype, shape.to_vec(), vec![0; shape.iter().product::<usize>() * bytes]))
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} in: {text}");
    }
}

/// Every matrix of every fixture has the bits that the format's own library gives in f32.
#[test]
fn values_are_those_of_the_formats_own_libraries() {
    let mut checked = 0;
    for folder in std::fs::read_dir(fixtures().join("models/quant")).unwrap() {
        let folder = folder.unwrap().path();
        let exact: BTreeMap<String, String> =
            serde_json::from_slice(&std::fs::read(folder.join("exact.json")).unwrap()).unwrap();
        assert!(!exact.is_empty(), "{}", folder.display());
        let model = ModelFiles::open(&folder, LoadFormat::Auto, DummyWeights::default()).unwrap();
        for role in Role::all(&model.description) {
            let Some(expected) = exact.get(&model.weights.file_name(role)) else {
                continue;
            };
            let tensor = model.weights.tensor(role).unwrap();
            let forms = [tensor.format, WeightFormat::F32];
            for tensor in forms.map(|format| tensor.clone().in_format(format).unwrap()) {
                let values = tensor.to_f32().unwrap();
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let found = sha256(&bytes);
                assert_eq!(
                    &found,
                    expected,
                    "{} of {}, {:?}",
                    tensor.name,
                    folder.display(),
                    tensor.format
                );
            }
            checked += 1;
        }
    }
    assert!(checked >= 14 * 20, "{checked} matrices");
}

#[test]
fn tensors_of_another_size_are_refused_by_name() {
    // 64 columns in groups of 32, 192 rows: a group too few, a row too few.
    let short = refusal("awq", json!({}), &[("scales", zeros(Dtype::F16, &[1, 192], 2))]);
    has(&short, &["4 bits with 1 scales for 64 columns", "in groups of 32"]);
    let row = refusal("awq", json!({}), &[("scales", zeros(Dtype::F16, &[2, 191], 2))]);
    has(&row, &["up_proj.scales", "[2, 192]", "[2, 191]"]);
    let qzeros = refusal("awq", json!({}), &[("qzeros", zeros(Dtype::I32, &[2, 23], 4))]);
    has(&qzeros, &["up_proj.qzeros", "[2, 24]", "[2, 23]"]);
    let kind = refusal("awq", json!({}), &[("qweight", zeros(Dtype::F32, &[64, 24], 4))]);
    has(&kind, &["up_proj.qweight", "type F32, not I32"]);
    let codes = refusal("gptq-4", json!({}), &[("qweight", zeros(Dtype::I32, &[7, 192], 4))]);
    has(&codes, &["up_proj.qweight", "[7, 192]"]);
    let gone = refusal("gptq-4", json!({}), &[("qzeros", None)]);
    has(&gone, &["up_proj.qzeros"]);
    let blocks = refusal(
        "fp8-blocks",
        json!({}),
        &[("weight_scale_inv", zeros(Dtype::F32, &[1, 1], 4))],
    );
    has(&blocks, &["up_proj.weight_scale_inv", "[2, 1]", "[1, 1]"]);
    let packed = refusal(
        "ct-nvfp4",
        json!({}),
        &[("weight_packed", zeros(Dtype::U8, &[192, 31], 1))],
    );
    has(&packed, &["up_proj.weight_packed", "[192, 32]", "[192, 31]"]);
    let absmax = refusal("bnb-fp4", json!({}), &[("weight.absmax", zeros(Dtype::F32, &[191], 4))]);
    has(&absmax, &["up_proj.weight.absmax", "[192]", "[191]"]);
}

#[test]
fn what_configuration_and_tensors_say_must_agree() {
    let group = refusal("gptq-4", json!({"group_size": 64}), &[]);
    has(
        &group,
        &[
            "4 bits with 2 scales for 64 columns",
            "4 bits in groups of 64",
            "download it again",
        ],
    );
    let bits = refusal("gptq-4", json!({"bits": 8}), &[]);
    has(&bits, &["4 bits with", "8 bits in groups of 32"]);
    // A rule for some modules allows both.
    opened("gptq-4", json!({"bits": 8, "dynamic": {"+:.*": {"bits": 4}}}), &[]).expect("by a rule");
    let none = refusal("gptq-4", json!({"group_size": 0}), &[]);
    has(&none, &["quantization_config.group_size", "is 0", "1 or more"]);
    let block = refusal("fp8-blocks", json!({"weight_block_size": [0, 128]}), &[]);
    has(&block, &["weight_block_size", "[0,128]", "1 or more"]);
    let other = refusal("awq", json!({"quant_method": "bitsandbytes", "bits": null}), &[]);
    has(&other, &["proj.qweight", "BitsAndBytes"]);
}

#[test]
fn numbers_that_are_none_are_refused() {
    let nan = vec![0x7e_u8; 2 * 192 * 2];
    let scales = refusal("awq", json!({}), &[("scales", Some((Dtype::F16, vec![2, 192], nan)))]);
    has(&scales, &["up_proj.weight", "NaN", "a finite number"]);
    let global = refusal(
        "ct-nvfp4",
        json!({}),
        &[("weight_global_scale", zeros(Dtype::F32, &[1], 4))],
    );
    has(&global, &["up_proj.weight", "is 0", "a finite number"]);
    let groups: Vec<u8> = (0..64).flat_map(|_| 2i32.to_le_bytes()).collect();
    let g_idx = refusal("gptq-4", json!({}), &[("g_idx", Some((Dtype::I32, vec![64], groups)))]);
    has(&g_idx, &["up_proj.g_idx[0]", "is 2", "from 0 to 1"]);
    let map = refusal(
        "bnb-nf4",
        json!({}),
        &[("weight.quant_map", zeros(Dtype::F32, &[16], 4))],
    );
    has(&map, &["up_proj.weight.quant_map[0]", "-1 of nf4"]);
    let state = "weight.quant_state.bitsandbytes__nf4";
    let text = |text: &str| Some((Dtype::U8, vec![text.len()], text.as_bytes().to_vec()));
    let junk = refusal("bnb-nf4", json!({}), &[(state, text("{"))]);
    has(&junk, &[state, "no JSON"]);
    let shape = refusal(
        "bnb-nf4",
        json!({}),
        &[(state, text(r#"{"shape": [64, 192], "blocksize": 64}"#))],
    );
    has(&shape, &[state, "[64,192]", "[192, 64]"]);
    let size = refusal(
        "bnb-nf4",
        json!({}),
        &[(state, text(r#"{"shape": [192, 64], "blocksize": 0}"#))],
    );
    has(&size, &[state, "blocksize", "1 or more"]);
}

#[test]
fn methods_and_packings_that_are_not_read_are_refused_by_field() {
    for (name, fields, parts) in [
        (
            "awq",
            json!({"quant_method": "aqlm"}),
            ["quantization_config.quant_method", "aqlm"],
        ),
        (
            "awq",
            json!({"quant_method": "quip"}),
            ["quantization_config.quant_method", "quip"],
        ),
        (
            "awq",
            json!({"quant_method": "torchao"}),
            ["quantization_config.quant_method", "torchao"],
        ),
        (
            "awq",
            json!({"quant_method": null}),
            ["quantization_config.quant_method", "an unnamed method"],
        ),
        (
            "fp8-blocks",
            json!({"fmt": "e5m2"}),
            ["quantization_config.fmt", "e5m2"],
        ),
        (
            "ct-w4a16",
            json!({"format": "marlin-24"}),
            ["quantization_config.format", "marlin-24"],
        ),
        (
            "ct-w4a16",
            json!({"sparsity_config": {"format": "sparse-24-bitmask"}}),
            ["sparsity_config.format", "sparse-24-bitmask"],
        ),
        (
            "awq",
            json!({"version": "gemv"}),
            ["quantization_config.version", "gemv"],
        ),
        (
            "awq",
            json!({"bits": 3}),
            ["quantization_config.bits", "3; [4] are read"],
        ),
        (
            "gptq-4",
            json!({"bits": 5}),
            ["quantization_config.bits", "5; [2, 3, 4, 8]"],
        ),
        (
            "gptq-4",
            json!({"checkpoint_format": "marlin"}),
            ["checkpoint_format", "marlin"],
        ),
        (
            "auto-round",
            json!({"packing_format": "auto_round:marlin"}),
            ["packing_format", "auto_round:marlin"],
        ),
        (
            "modelopt-nvfp4",
            json!({"quant_algo": "W4A8_AWQ"}),
            ["quant_algo", "W4A8_AWQ"],
        ),
        (
            "bnb-nf4",
            json!({"bnb_4bit_quant_storage": "bfloat16"}),
            ["bnb_4bit_quant_storage", "bfloat16"],
        ),
    ] {
        let error = refusal(name, fields, &[]);
        has(&error, &parts);
        has(&error, &["AWQ (gemm)", "GGUF"]);
    }
}

/// HQQ's tensors describe themselves: what contradicts something else is named. The up projection has 192 rows of 64
/// columns in groups of 64 along rows.
#[test]
fn descriptions_of_hqq_that_contradict_are_refused_by_tensor() {
    let with = |end: &str, change| refusal("hqq-4", json!({}), &[(end, change)]);
    let number = |value: i32| Some((Dtype::I32, vec![], value.to_le_bytes().to_vec()));
    let text = |text: &str| Some((Dtype::U8, vec![text.len()], text.as_bytes().to_vec()));

    has(
        &with("scale", zeros(Dtype::F16, &[191, 1], 2)),
        &["up_proj.scale", "[192, 1]", "[191, 1]"],
    );
    has(
        &with("scale", zeros(Dtype::F16, &[1, 192], 2)),
        &["up_proj.scale", "[192, 1]", "[1, 192]"],
    );
    has(&with("zero", None), &["up_proj.zero"]);
    has(
        &with("scale", zeros(Dtype::I32, &[192, 1], 4)),
        &["up_proj.scale", "scales of type I32"],
    );
    let nan = Some((Dtype::F16, vec![192, 1], vec![0x7e; 384]));
    has(
        &with("scale", nan.clone()),
        &["scale 0 of model.layers.0.mlp.up_proj.weight", "NaN", "a finite number"],
    );
    has(
        &with("zero", nan),
        &["zero point 0 of model.layers.0.mlp.up_proj.weight", "NaN"],
    );

    for group in [0, -64, 100, i32::MAX] {
        let error = with("group_size", number(group));
        has(
            &error,
            &[
                "up_proj.group_size",
                &format!("is {group}"),
                "divides the matrix's 12288 values",
            ],
        );
    }
    let group = with("group_size", number(32));
    has(
        &group,
        &[
            "4 bits in groups of 32",
            "quantization_config says 4 bits in groups of 64",
            "download it again",
        ],
    );
    has(&with("axis", number(2)), &["up_proj.axis", "is 2", "0 or 1"]);
    has(
        &with("axis", text("columns")),
        &["up_proj.axis", "U8 of shape [7], not one whole number"],
    );
    has(
        &with("nbits", number(8)),
        &["up_proj.nbits", "is 8", "what `packing` 4bit_u8 holds"],
    );
    has(&with("nbits", number(7)), &["up_proj.nbits", "is 7"]);
    has(
        &with("packing", text("2bit_u8")),
        &["up_proj.nbits", "is 4", "what `packing` 2bit_u8 holds"],
    );
    has(
        &with("packing", text("4bit_u9")),
        &["up_proj.packing", "4bit_u9", "one of 8bit_u8, 4bit_u8"],
    );
    has(
        &with("packing", zeros(Dtype::U8, &[4096], 1)),
        &["up_proj.packing", "not a short text"],
    );
    has(
        &with("W_q", zeros(Dtype::U8, &[95, 64], 1)),
        &["up_proj.W_q", "6080 bytes of codes", "4bit_u8", "need 6144"],
    );
    let turned = [64i64, 192].map(i64::to_le_bytes).concat();
    has(
        &with("shape", Some((Dtype::I64, vec![2], turned))),
        &["up_proj.shape", "[192, 64]", "[64, 192]"],
    );
    for flag in ["quant_scale", "quant_zero"] {
        let error = with(flag, Some((Dtype::U8, vec![], vec![1])));
        has(
            &error,
            &[&format!("up_proj.{flag}"), "is 1", "which are not quantised themselves"],
        );
    }
    has(
        &with("channel_wise", Some((Dtype::U8, vec![], vec![0]))),
        &["up_proj.channel_wise", "is 0"],
    );

    let params = |params: Value| json!({"quant_config": {"weight_quant_params": params}});
    let bits = refusal("hqq-4", params(json!({"nbits": 7, "group_size": 64})), &[]);
    has(
        &bits,
        &[
            "quant_config.weight_quant_params.nbits",
            "7; 8, 6, 5, 4, 3, 2, 1.58 and 1 are read",
            "GGUF",
        ],
    );
    let group = refusal("hqq-4", params(json!({"nbits": 4, "group_size": 0})), &[]);
    has(&group, &["weight_quant_params.group_size", "is 0", "1 or more"]);
    let other = refusal("hqq-4", json!({"quant_method": "gptq", "bits": 4}), &[]);
    has(&other, &["q_proj.W_q", "HQQ's packing", "Gptq"]);
    // What the library saves by itself has no quantization_config.
    opened("hqq-4", json!({"quant_method": "hqq", "quant_config": null}), &[]).expect("by its tensors");
}

/// Act-order whose groups are no sets of as many columns is not sorted, nor are matrices over one input in two orders.
#[test]
fn groups_without_one_order_are_not_sorted() {
    let formats = |tensor: &str, group: &dyn Fn(i32) -> i32, layer_0: [(Linear, WeightFormat); 3]| {
        let groups: Vec<u8> = (0..64).flat_map(|i| group(i).to_le_bytes()).collect();
        let changes = [(tensor, Some((Dtype::I32, vec![64], groups)))];
        let mut model = opened("gptq-4-act-order", json!({}), &changes).unwrap();
        assert_eq!(model.sort_columns(false, false).unwrap(), 2 * 3 - 1);
        for (linear, expected) in layer_0 {
            let role = Role::weight(0, linear);
            assert_eq!(model.weights.format(role).unwrap(), expected, "{linear:?}");
        }
    };
    let [gate, up, down] = [MlpLinear::Gate, MlpLinear::Up, MlpLinear::Down].map(Linear::Mlp);
    let (f32, sorted) = (WeightFormat::F32, WeightFormat::U4G32);
    // 31 columns and 33.
    let uneven = |i| if i == 0 { 1 } else { i % 2 };
    let output = "model.layers.0.self_attn.o_proj.g_idx";
    formats(output, &uneven, [(Linear::O, f32), (Linear::Q, sorted), (up, sorted)]);
    formats("g_idx", &|i| i % 2, [(gate, f32), (up, f32), (down, sorted)]);
}

/// Scales and zeros of 32 bits: scale·q and scale·zero are rounded, and then their difference.
#[test]
fn values_of_hqq_with_f32_scales_are_within_three_roundings() {
    let number = |at: usize, from: f32| from + (at * 37 % 192) as f32 / 700.0;
    let bytes = |from: f32| {
        (0..192)
            .flat_map(|at| number(at, from).to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let changes = [
        ("scale", Some((Dtype::F32, vec![192, 1], bytes(0.01)))),
        ("zero", Some((Dtype::F32, vec![192, 1], bytes(7.0)))),
    ];
    let model = opened("hqq-4", json!({}), &changes).unwrap();
    let tensor = model
        .weights
        .tensor(Role::weight(0, Linear::Mlp(MlpLinear::Up)))
        .unwrap();
    assert_eq!(tensor.format, WeightFormat::U4G64);
    let (rows, values) = (tensor.rows(0..192), tensor.to_f32().unwrap());
    for (at, block) in rows.chunks_exact(tensor.format.block_bytes()).enumerate() {
        let mut unpacked = Unpacked::default();
        unpack(tensor.format, block, &[], &mut unpacked);
        let (scale, zero) = (f64::from(number(at, 0.01)), f64::from(number(at, 7.0)));
        let largest = scale * 15f64.max(zero);
        for (&code, &value) in unpacked.codes.iter().zip(&values[at * 64..][..64]) {
            let exact = (f64::from(code) - zero) * scale;
            assert!((exact - f64::from(value)).abs() <= largest * 1.5 / f64::from(1 << 24));
        }
    }
}

#[test]
fn sizes_of_codes_and_groups_that_contradict_are_refused() {
    // 10 words for 64 codes: 5 bits.
    let wide = refusal("gptq-4", json!({}), &[("qweight", zeros(Dtype::I32, &[10, 192], 4))]);
    has(
        &wide,
        &["up_proj.", "5 bits with 2 scales", "says 4 bits in groups of 32"],
    );
    let none = refusal("gptq-4", json!({}), &[("scales", zeros(Dtype::F16, &[0, 192], 2))]);
    has(&none, &["4 bits with 0 scales for 64 columns"]);
    let many = refusal("gptq-4", json!({}), &[("scales", zeros(Dtype::F16, &[65, 192], 2))]);
    has(&many, &["4 bits with 65 scales for 64 columns"]);
    // Two groups of 48 would have two scales, too: which it was only the file can say.
    let g_idx = refusal("gptq-4-cut-groups", json!({"group_size": 40}), &[]);
    has(&g_idx, &["4 bits with 4 scales for 192 columns", "in groups of 40"]);
    let group = json!({"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group",
        "group_size": 0}}});
    let group = refusal("ct-w4a16", json!({"config_groups": group}), &[]);
    has(
        &group,
        &["config_groups.group_0.weights.group_size", "is 0", "1 or more"],
    );
    let bits = json!({"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "group",
        "group_size": 64}}});
    let bits = refusal("ct-w4a16", json!({"config_groups": bits}), &[]);
    has(
        &bits,
        &["4 bits with 1 scales for 64 columns", "8 bits in groups of 64"],
    );
    let short = refusal(
        "ct-w8a16",
        json!({}),
        &[("weight_scale", zeros(Dtype::BF16, &[192, 1], 2))],
    );
    has(
        &short,
        &["8 bits with 1 scales for 64 columns", "8 bits in groups of 32"],
    );
    let zero = refusal(
        "ct-w4a16-asym",
        json!({}),
        &[("weight_zero_point", zeros(Dtype::I32, &[23, 2], 4))],
    );
    has(&zero, &["up_proj.weight_zero_point", "[24, 2]", "[23, 2]"]);
}

#[test]
fn pickled_weights_are_named() {
    let (folder, from) = (TempFolder::new(), fixtures().join("models/quant/hqq-4"));
    for name in ["config.json", "tokenizer.json"] {
        folder.write(name, std::fs::read(from.join(name)).unwrap());
    }
    folder.write("qmodel.pt", b"PK");
    let error = ModelFiles::open(folder.path(), LoadFormat::Auto, DummyWeights::default()).unwrap_err();
    has(
        &error.to_string(),
        &[
            "no .safetensors file but `qmodel.pt`, a PyTorch pickle",
            "save_to_safetensors",
        ],
    );
}

#[test]
fn a_named_method_must_be_the_checkpoints() {
    let open = |name: &str| {
        let folder = fixtures().join("models").join(name);
        ModelFiles::open(&folder, LoadFormat::Auto, DummyWeights::default()).unwrap()
    };
    let method = |name: &str| name.parse::<WeightQuantization>().unwrap();
    open("quant/awq").quantise(method("awq_marlin")).unwrap();
    open("quant/auto-round").quantise(method("gptq")).unwrap();
    let error = open("quant/awq").quantise(method("gptq")).unwrap_err().to_string();
    has(&error, &["--quantization", "gptq, while the checkpoint has awq"]);
    let error = open("llama").quantise(method("bitsandbytes")).unwrap_err().to_string();
    has(&error, &["no quantised weights", "int8 and int4 round"]);
    let error = open("quant/awq").quantise(method("int8")).unwrap_err().to_string();
    has(&error, &["--quantization", "U4_G32"]);
    assert!("aqlm".parse::<WeightQuantization>().is_err());
}

/// Codes and scales that PyTorch gives (tests/fixtures/models/make_rounded.py).
#[test]
fn rounding_to_integers_gives_pytorchs_codes() {
    let folder = fixtures().join("models/llama3-rope");
    for (rounding, name) in [(Rounding::Int8, "int8"), (Rounding::Int4, "int4")] {
        let golden = std::fs::read(folder.join(format!("rounded-{name}.json"))).unwrap();
        let golden: BTreeMap<String, Value> = serde_json::from_slice(&golden).unwrap();
        let mut model = ModelFiles::open(&folder, LoadFormat::Auto, DummyWeights::default()).unwrap();
        model.quantise(WeightQuantization::Round(rounding)).unwrap();
        let mut checked = 0;
        for role in Role::all(&model.description) {
            let Some(expected) = golden.get(&model.weights.file_name(role)) else {
                continue;
            };
            let tensor = model.weights.tensor(role).unwrap();
            let group = tensor.format.block_values();
            assert_eq!(json!(group), expected["group"], "{}", tensor.name);
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            let bytes = tensor.rows(0..tensor.num_rows());
            for block in bytes.chunks_exact(tensor.format.block_bytes()) {
                let mut unpacked = Unpacked::default();
                unpack(tensor.format, block, &[], &mut unpacked);
                codes.extend(unpacked.codes[..group].iter().map(|&code| code as u8));
                scales.extend(unpacked.scales[0].to_le_bytes());
            }
            assert_eq!(
                json!(sha256(&codes)),
                expected["codes"],
                "codes of {} in {name}",
                tensor.name
            );
            assert_eq!(
                json!(sha256(&scales)),
                expected["scales"],
                "scales of {} in {name}",
                tensor.name
            );
            checked += 1;
        }
        assert_eq!(checked, golden.len());
        assert_eq!(checked, 3 * 7);
    }
}

#[test]
fn rounding_to_integers_is_within_half_a_step() {
    let folder = fixtures().join("models/llama3-rope");
    let open = || ModelFiles::open(&folder, LoadFormat::Auto, DummyWeights::default()).unwrap();
    let role = Role::weight(1, Linear::Mlp(MlpLinear::Down));
    for (rounding, format, steps) in [
        (Rounding::Int8, WeightFormat::I8G32, 127.0),
        (Rounding::Int4, WeightFormat::U4G32, 7.5),
    ] {
        let exact = open().weights.tensor(role).unwrap().to_f32().unwrap();
        let mut model = open();
        model.quantise(WeightQuantization::Round(rounding)).unwrap();
        let tensor = model.weights.tensor(role).unwrap();
        assert_eq!(tensor.format, format);
        let rounded = tensor.to_f32().unwrap();
        for (exact, rounded) in exact.chunks_exact(32).zip(rounded.chunks_exact(32)) {
            let (low, high) = exact.iter().fold((0f32, 0f32), |(l, h), &v| (l.min(v), h.max(v)));
            let step = if rounding == Rounding::Int8 {
                high.max(-low)
            } else {
                (high - low) / 2.0
            } / steps;
            // The zero point is rounded, too: at the ends up to a whole step.
            let allowed = if rounding == Rounding::Int8 { 0.5001 } else { 1.0001 };
            assert!(exact.iter().zip(rounded).all(|(a, b)| (a - b).abs() <= allowed * step));
        }
        assert_ne!(exact, rounded);
        assert!(model.weights.format(Role::Embedding).unwrap().is_plain());
    }
}

/// Random codes and fitting scales: nothing is rounded, so that a bench of a large model starts soon.
#[test]
fn dummies_have_the_blocks_of_their_checkpoint() {
    use MlpLinear::Down;
    let dense = Role::weight(0, Linear::Mlp(Down));
    let expert = Role::weight(0, Linear::Expert(1, Down));
    for (name, role) in [
        ("quant/awq", dense),
        ("quant/gptq-8", dense),
        ("quant/ct-w8a16", dense),
        ("quant/fp8-blocks", dense),
        ("quant/fp8-square-blocks", dense),
        ("gpt-oss-mxfp4", expert),
        ("gpt-oss-mxfp4", Role::weight(0, Linear::Q)),
    ] {
        let folder = fixtures().join("models").join(name);
        let open = |load| ModelFiles::open(&folder, load, DummyWeights::default()).unwrap();
        let format = open(LoadFormat::Auto).weights.format(role).unwrap();
        let model = open(LoadFormat::Dummy);
        let weights = &model.weights;
        let tensor = weights.tensor(role).unwrap();
        let formats = [tensor.format, weights.format(role).unwrap()];
        assert_eq!(formats, [format; 2], "{name}");
        // Plain ones may be made on the device.
        assert_eq!(weights.dummy_values(role).is_some(), format.is_plain(), "{name}");
        let values = tensor.to_f32().unwrap();
        // Four bits have one more code below zero than above.
        let most = 0.034_641_016 * 8.0 / 7.0;
        assert!(values.iter().all(|value| value.abs() <= most), "{name}");
        let mut different: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() >= 15, "{name}: {different:?}");
        assert_eq!(
            open(LoadFormat::Dummy).weights.tensor(role).unwrap().to_f32().unwrap(),
            values,
            "{name}"
        );
    }
}
