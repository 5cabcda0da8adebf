//! Quantised checkpoints: what is wrong with them is said by field or tensor, and rounding at load.
//! Their values are compared with the formats' own libraries by the engine's goldens.

mod support;

use std::collections::BTreeMap;

use halyard_models::weights::{Linear, MlpLinear};
use halyard_models::{DummyWeights, LoadFormat, ModelError, ModelFiles, Role, Rounding, WeightQuantization};
use halyard_platform_api::WeightFormat;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use support::{TempFolder, fixtures};

const UP: &str = "model.layers.0.mlp.up_proj.";

/// A tensor in place of a fixture's; `None` takes it away.
type Change<'t> = (&'t str, Option<(Dtype, Vec<usize>, Vec<u8>)>);

/// A copy of a fixture with changed fields of `quantization_config` and changed tensors of the first up projection.
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
        let name = format!("{UP}{end}");
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

fn zeros(dtype: Dtype, shape: &[usize], bytes: usize) -> Option<(Dtype, Vec<usize>, Vec<u8>)> {
    Some((dtype, shape.to_vec(), vec![0; shape.iter().product::<usize>() * bytes]))
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} in: {text}");
    }
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
