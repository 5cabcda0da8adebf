//! FP8 checkpoints: which are read and which refused, the values of their weights, and rounding at load.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use halyard_models::weights::{Linear, MlpLinear};
use halyard_models::{DummyWeights, LoadFormat, ModelError, ModelFiles, Role, Rounding, WeightQuantization};
use halyard_platform_api::WeightFormat;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use support::{TempFolder, fixtures};

const Q: Role = Role::weight(0, Linear::Q);
const Q_NAME: &str = "model.layers.0.self_attn.q_proj.weight";
const Q_SCALE: &str = "model.layers.0.self_attn.q_proj.weight_scale";

/// Type, shape and bytes of a tensor.
type Stored = (Dtype, Vec<usize>, Vec<u8>);

fn open(folder: &Path, format: LoadFormat) -> Result<ModelFiles, ModelError> {
    ModelFiles::open(folder, format, DummyWeights::default())
}

/// A copy of a fixture with another configuration, and one tensor replaced or (no type) taken away.
fn changed(name: &str, config: impl FnOnce(&mut Value), replace: Option<(&str, Option<Stored>)>) -> TempFolder {
    let (folder, from) = (TempFolder::new(), fixtures().join("models").join(name));
    let mut fields: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config(&mut fields);
    folder.write("config.json", fields.to_string());
    folder.write("tokenizer.json", std::fs::read(from.join("tokenizer.json")).unwrap());
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: BTreeMap<String, TensorView<'_>> = stored.tensors().into_iter().collect();
    let data;
    match replace {
        Some((name, Some((dtype, shape, new)))) => {
            data = new;
            tensors.insert(name.to_owned(), TensorView::new(dtype, shape, &data).unwrap());
        }
        Some((name, None)) => assert!(tensors.remove(name).is_some()),
        None => {}
    }
    folder.write("model.safetensors", safetensors::serialize(tensors, None).unwrap());
    folder
}

fn refusal(folder: &TempFolder) -> ModelError {
    open(folder.path(), LoadFormat::Auto).expect_err("refused")
}

#[test]
fn codes_meet_the_scale_of_their_row_or_tensor() {
    for (name, rows) in [("llama-fp8", 64), ("qwen3-fp8", 1)] {
        let folder = fixtures().join("models").join(name);
        let model = open(&folder, LoadFormat::Auto).unwrap();
        let tensor = model.weights.tensor(Q).unwrap();
        assert_eq!((tensor.format, tensor.row_bytes()), (WeightFormat::F8E4M3, 64 + 4));
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let (codes, scale) = (stored.tensor(Q_NAME).unwrap(), stored.tensor(Q_SCALE).unwrap());
        let scales: Vec<f32> = match scale.dtype() {
            Dtype::BF16 => scale
                .data()
                .chunks_exact(2)
                .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            _ => scale
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect(),
        };
        assert_eq!(scales.len(), rows);
        for (i, value) in tensor.to_f32().unwrap().into_iter().enumerate() {
            let expected = scales[i / 64 % rows] * halyard_platform_api::e4m3::to_f32(codes.data()[i]);
            assert_eq!(value, expected, "{name} value {i}");
        }
        assert_eq!(model.weights.format(Role::Embedding).unwrap(), WeightFormat::BF16);
    }
}

#[test]
fn modules_that_a_checkpoint_leaves_alone_stay_as_stored() {
    let model = open(&fixtures().join("models/llama-fp8"), LoadFormat::Auto).unwrap();
    let format = |role| model.weights.format(role).unwrap();
    assert_eq!(format(Role::LmHead), WeightFormat::BF16);
    assert_eq!(
        format(Role::weight(1, Linear::Mlp(MlpLinear::Down))),
        WeightFormat::BF16
    );
    assert_eq!(
        format(Role::weight(0, Linear::Mlp(MlpLinear::Down))),
        WeightFormat::F8E4M3
    );
}

#[test]
fn what_is_no_scale_a_tensor_or_channel_is_refused_by_name() {
    let none = |_: &mut Value| {};
    let error = refusal(&changed("llama-fp8", none, Some((Q_SCALE, None))));
    assert!(
        matches!(&error, ModelError::MissingTensor { tensor, .. } if tensor == Q_SCALE),
        "{error}"
    );

    let block = (Dtype::F32, vec![2, 2], vec![0; 16]);
    let error = refusal(&changed("llama-fp8", none, Some((Q_SCALE, Some(block))))).to_string();
    assert!(
        error.contains(Q_SCALE) && error.contains("[2, 2]") && error.contains("64"),
        "{error}"
    );

    let bytes = (Dtype::U8, vec![64, 1], vec![0; 64]);
    let error = refusal(&changed("llama-fp8", none, Some((Q_SCALE, Some(bytes))))).to_string();
    assert!(error.contains("type U8") && error.contains("BF16"), "{error}");

    let nan = (Dtype::F32, vec![1], f32::NAN.to_le_bytes().to_vec());
    let error = refusal(&changed("llama-fp8", none, Some((Q_SCALE, Some(nan)))));
    assert!(
        matches!(&error, ModelError::BadField { value, .. } if value == "NaN"),
        "{error}"
    );

    let norm = "model.norm.weight";
    let error = refusal(&changed(
        "llama-fp8",
        none,
        Some((norm, Some((Dtype::F8_E4M3, vec![64], vec![0; 64])))),
    ));
    assert!(
        matches!(&error, ModelError::UnsupportedFormat { tensor, .. } if tensor == norm),
        "{error}"
    );
}

#[test]
fn the_other_name_of_a_scale_is_read_too() {
    let folder = changed("qwen3-fp8", |_| {}, Some((Q_SCALE, None)));
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: BTreeMap<String, TensorView<'_>> = stored.tensors().into_iter().collect();
    let two = 2f32.to_le_bytes();
    let scale = TensorView::new(Dtype::F32, vec![], &two).unwrap();
    tensors.insert(format!("{Q_SCALE}_inv"), scale);
    let bytes = safetensors::serialize(tensors, None).unwrap();
    folder.write("model.safetensors", bytes);
    let model = open(folder.path(), LoadFormat::Auto).unwrap();
    let row = model.weights.tensor(Q).unwrap().rows(3..4).into_owned();
    assert_eq!(row[64..], 2f32.to_le_bytes());
}

#[test]
fn other_quantisations_are_refused_by_name() {
    let group = |weights: Value| json!({"config_groups": {"group_0": {"weights": weights}}});
    let fp8 = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let with = |mut fields: Value, key: &str, value: Value| {
        fields[key] = value;
        fields
    };
    for (model, config, field) in [
        ("qwen3-fp8", json!({"fmt": "e4m3fnuz"}), "fmt"),
        ("qwen3-fp8", json!({"fmt": "e5m2"}), "fmt"),
        ("qwen3-fp8", json!({"quant_method": "aqlm"}), "quant_method"),
        ("llama-fp8", json!({"format": "marlin-24"}), "format"),
        (
            "llama-fp8",
            group(with(fp8.clone(), "num_bits", json!(6))),
            "config_groups.group_0.weights.num_bits",
        ),
        (
            "llama-fp8",
            group(with(fp8.clone(), "type", json!("ternary"))),
            "config_groups.group_0.weights.type",
        ),
        (
            "llama-fp8",
            group(with(fp8.clone(), "strategy", json!("group"))),
            "config_groups.group_0.weights.strategy",
        ),
        (
            "llama-fp8",
            json!({"sparsity_config": {"format": "sparse-24-bitmask"}}),
            "sparsity_config.format",
        ),
        ("llama-fp8", json!({"transform_config": {"a": 1}}), "transform_config"),
    ] {
        let change = |fields: &mut Value| {
            for (key, value) in config.as_object().unwrap() {
                fields["quantization_config"][key] = value.clone();
            }
        };
        let error = refusal(&changed(model, change, None));
        let ModelError::Unsupported {
            field: found, remedy, ..
        } = &error
        else {
            panic!("{field}: {error}")
        };
        assert_eq!(*found, format!("quantization_config.{field}"));
        assert!(
            remedy.contains("E4M3") && remedy.contains("--quantization fp8"),
            "{remedy}"
        );
    }
}

#[test]
fn rounding_at_load_keeps_four_bits_of_every_layer_matrix() {
    let folder = fixtures().join("models/llama");
    let plain = open(&folder, LoadFormat::Auto).unwrap();
    let mut model = open(&folder, LoadFormat::Auto).unwrap();
    model.quantise(WeightQuantization::Round(Rounding::Fp8)).unwrap();
    let role = Role::weight(1, Linear::Mlp(MlpLinear::Down));
    assert_eq!(model.weights.format(role).unwrap(), WeightFormat::F8E4M3);
    assert_eq!(model.weights.format(Role::LmHead).unwrap(), WeightFormat::F32);
    assert!(model.weight_bytes < plain.weight_bytes);
    let (exact, rounded) = (plain.weights.tensor(role).unwrap(), model.weights.tensor(role).unwrap());
    let width = exact.row_len();
    let (exact, rounded) = (exact.to_f32().unwrap(), rounded.to_f32().unwrap());
    for (exact, rounded) in exact.chunks_exact(width).zip(rounded.chunks_exact(width)) {
        let largest = exact.iter().fold(0f32, |max, v| max.max(v.abs()));
        for (a, b) in exact.iter().zip(rounded) {
            // Half a unit of three bits; below the smallest exponent, half of the smallest number.
            assert!(
                (a - b).abs() <= a.abs() / 16.0 + largest / 448.0 / 1024.0 * 1.01,
                "{a} became {b}"
            );
        }
    }
    assert_ne!(exact, rounded);
}

#[test]
fn what_is_rounded_already_is_left_or_refused() {
    let mut fp8 = open(&fixtures().join("models/llama-fp8"), LoadFormat::Auto).unwrap();
    let before = fp8.weights.tensor(Q).unwrap().to_f32().unwrap();
    fp8.quantise(WeightQuantization::Round(Rounding::Fp8)).unwrap();
    assert_eq!(fp8.weights.tensor(Q).unwrap().to_f32().unwrap(), before);
    let down = Role::weight(1, Linear::Mlp(MlpLinear::Down));
    assert_eq!(fp8.weights.format(down).unwrap(), WeightFormat::F8E4M3);

    // With scales of blocks, too, read or made.
    for load in [LoadFormat::Auto, LoadFormat::Dummy] {
        let mut blocks = open(&fixtures().join("models/quant/fp8-blocks"), load).unwrap();
        let (before, format) = (
            blocks.weights.tensor(Q).unwrap().to_f32().unwrap(),
            blocks.weights.format(Q).unwrap(),
        );
        blocks.quantise(WeightQuantization::Round(Rounding::Fp8)).unwrap();
        assert_eq!(blocks.weights.format(Q).unwrap(), format);
        assert_eq!(blocks.weights.tensor(Q).unwrap().to_f32().unwrap(), before);
    }

    let mut blocks = open(&fixtures().join("models/gguf/llama-gguf.gguf"), LoadFormat::Auto).unwrap();
    let error = blocks
        .quantise(WeightQuantization::Round(Rounding::Fp8))
        .unwrap_err()
        .to_string();
    assert!(error.contains("--quantization") && error.contains("Q4_0"), "{error}");
}

#[test]
fn dummies_of_an_fp8_model_are_fp8() {
    let model = open(&fixtures().join("models/qwen3-fp8"), LoadFormat::Dummy).unwrap();
    assert_eq!(model.weights.format(Q).unwrap(), WeightFormat::F8E4M3);
    assert_eq!(model.weights.dummy_format(Q), Some(WeightFormat::BF16));
    assert_eq!(model.weights.format(Role::Embedding).unwrap(), WeightFormat::BF16);
}
