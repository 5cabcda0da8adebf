//! Weights of experts: a matrix each in safetensors, slices of one tensor in GGUF. What does not fit is refused by
//! name.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use halyard_models::weights::MlpLinear::{Down, Gate, Up};
use halyard_models::weights::{Linear, MlpLinear};
use halyard_models::{DummyWeights, LoadFormat, ModelError, ModelFiles, Role, Rounding, WeightQuantization};
use halyard_platform_api::WeightFormat;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use support::{GgufWriter, TempFolder, fixtures, string_value, u32_value};

fn open(path: &Path) -> Result<ModelFiles, ModelError> {
    ModelFiles::open(path, LoadFormat::Auto, DummyWeights::default())
}

fn expert(layer: usize, expert: u32, linear: MlpLinear) -> Role {
    Role::weight(layer, Linear::Expert(expert, linear))
}

/// What opening the tiny model says with one tensor taken away, or another in its place.
fn changed(name: &str, tensor: Option<(Dtype, Vec<usize>)>) -> String {
    let from = fixtures().join("models/qwen3-moe");
    let folder = TempFolder::new();
    for file in ["config.json", "tokenizer.json"] {
        folder.write(file, std::fs::read(from.join(file)).unwrap());
    }
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: BTreeMap<String, TensorView<'_>> = stored.tensors().into_iter().collect();
    assert!(tensors.remove(name).is_some(), "{name} is in the fixture");
    let zeros = vec![0; 1 << 16];
    if let Some((dtype, shape)) = tensor {
        let count: usize = shape.iter().product();
        let bytes = &zeros[..count * if dtype == Dtype::F32 { 4 } else { 2 }];
        tensors.insert(name.to_owned(), TensorView::new(dtype, shape, bytes).unwrap());
    }
    folder.write("model.safetensors", safetensors::serialize(tensors, None).unwrap());
    open(folder.path()).unwrap_err().to_string()
}

#[test]
fn a_missing_or_odd_expert_is_refused_by_name() {
    let name = "model.layers.2.mlp.experts.5.up_proj.weight";
    let missing = changed(name, None);
    assert!(missing.contains(name) && missing.contains("missing"), "{missing}");
    let narrow = changed(name, Some((Dtype::BF16, vec![16, 48])));
    assert!(narrow.contains("[32, 48]") && narrow.contains("[16, 48]"), "{narrow}");
    let odd = changed(name, Some((Dtype::F16, vec![32, 48])));
    let first = "model.layers.2.mlp.experts.0.up_proj.weight";
    for word in [name, first, "F16", "BF16", "one format"] {
        assert!(odd.contains(word), "`{word}` is not in: {odd}");
    }
    let router = changed("model.layers.0.mlp.gate.weight", Some((Dtype::BF16, vec![5, 48])));
    assert!(router.contains("[6, 48]") && router.contains("[5, 48]"), "{router}");
}

/// A GGUF file of two layers with three experts of 12 rows each.
fn gguf() -> GgufWriter {
    let mut file = GgufWriter::tiny_llama();
    for (key, value) in std::mem::take(&mut file.metadata) {
        file.set(&key.replace("llama.", "qwen3moe."), value);
    }
    file.set("general.architecture", string_value("qwen3moe"))
        .set("qwen3moe.expert_count", u32_value(3))
        .set("qwen3moe.expert_used_count", u32_value(2))
        .set("qwen3moe.expert_feed_forward_length", u32_value(12));
    file.tensors
        .retain(|(name, ..)| !name.contains("ffn_") || name.contains("ffn_norm"));
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        file.tensor_f32(&name("ffn_gate_inp"), &[8, 3])
            .tensor_f32(&name("ffn_gate_exps"), &[8, 12, 3])
            .tensor_f32(&name("ffn_up_exps"), &[8, 12, 3])
            .tensor_f32(&name("ffn_down_exps"), &[12, 8, 3]);
    }
    file
}

#[test]
fn an_expert_of_a_gguf_file_is_its_slice_of_the_tensor() {
    let folder = TempFolder::new();
    let model = open(&folder.write("m.gguf", gguf().bytes())).unwrap();
    for (linear, name, shape) in [(Gate, "ffn_gate_exps", [12, 8]), (Down, "ffn_down_exps", [8, 12])] {
        let name = format!("blk.1.{name}.weight");
        for index in 0..3 {
            let tensor = model.weights.tensor(expert(1, index, linear)).unwrap();
            assert_eq!((tensor.shape.as_slice(), &tensor.name), (shape.as_slice(), &name));
            let first = 96.0 * 0.01 * index as f32 + name.len() as f32;
            let values = tensor.to_f32().unwrap();
            assert_eq!(values.len(), 96);
            assert!(
                (values[0] - first).abs() < 1e-4,
                "expert {index}: {} not {first}",
                values[0]
            );
        }
    }
    let mut file = gguf();
    file.set("qwen3moe.expert_count", u32_value(4));
    let error = open(&folder.write("m.gguf", file.bytes())).unwrap_err().to_string();
    assert!(
        error.contains("[4, 8]") && error.contains("[3, 8]"),
        "the router has three rows: {error}"
    );
    let mut file = gguf();
    file.tensors.retain(|(name, ..)| name != "blk.0.ffn_up_exps.weight");
    let error = open(&folder.write("m.gguf", file.bytes())).unwrap_err().to_string();
    assert!(error.contains("blk.0.ffn_up_exps.weight"), "{error}");
}

#[test]
fn eight_bit_floats_hold_experts_and_not_routers() {
    let mut model = open(&fixtures().join("models/qwen3-moe")).unwrap();
    model.quantise(WeightQuantization::Round(Rounding::Fp8)).unwrap();
    let format = |role| model.weights.format(role).unwrap();
    assert_eq!(format(Role::weight(0, Linear::Router)), WeightFormat::BF16);
    assert_eq!(format(expert(2, 5, Up)), WeightFormat::F8E4M3);
    assert_eq!(format(Role::weight(1, Linear::Mlp(Up))), WeightFormat::F8E4M3);
}

#[test]
fn every_dummy_weight_has_values_of_its_own() {
    let path = fixtures().join("models/qwen3-moe");
    let model = ModelFiles::open(&path, LoadFormat::Dummy, DummyWeights::default()).unwrap();
    let roles = Role::all(&model.description);
    let matrices: Vec<Role> = roles.into_iter().filter(|role| *role != Role::LmHead).collect();
    let keys: Vec<_> = matrices
        .iter()
        .filter_map(|&role| model.weights.dummy_values(role))
        .collect();
    // Embedding; q, k, v and o of three layers; two routers, six experts each; one dense MLP.
    assert_eq!(keys.len(), 1 + 3 * 4 + 2 * (1 + 6 * 3) + 3);
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "two matrices have one key");
    }
}
