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
use serde_json::{Value, json};
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

/// What opening a fixture says with these fields of its config.json replaced.
fn refused(model: &str, changes: &Value) -> String {
    let from = fixtures().join("models").join(model);
    let folder = TempFolder::new();
    for entry in std::fs::read_dir(&from).unwrap() {
        let name = entry.unwrap().file_name();
        std::os::unix::fs::symlink(from.join(&name), folder.path().join(&name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    folder.write("config.json", config.to_string());
    match open(folder.path()) {
        Ok(_) => panic!("{model} with {changes} opens"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn experts_that_do_not_fit_their_weights_are_refused_with_both_numbers() {
    let router = |name: &str, found: &str, expected: &str| {
        vec![
            format!("`{name}` has shape {found}"),
            format!("the configuration implies {expected}"),
            "take both from one download".to_owned(),
        ]
    };
    for (model, changes, words) in [
        // Two experts more than the file has, and three fewer.
        (
            "qwen3-moe",
            json!({"num_experts": 8}),
            router("model.layers.0.mlp.gate.weight", "[6, 48]", "[8, 48]"),
        ),
        (
            "qwen3-moe",
            json!({"num_experts": 3}),
            router("model.layers.0.mlp.gate.weight", "[6, 48]", "[3, 48]"),
        ),
        (
            "mixtral",
            json!({"num_local_experts": 8}),
            router("model.layers.0.block_sparse_moe.gate.weight", "[4, 64]", "[8, 64]"),
        ),
        (
            "gpt-oss-mxfp4",
            json!({"num_local_experts": 8}),
            router("model.layers.0.mlp.router.weight", "[4, 64]", "[8, 64]"),
        ),
        (
            "deepseek-v3-fp8",
            json!({"n_routed_experts": 16}),
            router("model.layers.1.mlp.gate.weight", "[8, 64]", "[16, 64]"),
        ),
        // As many as a damaged file may name, in as many layers.
        (
            "olmoe",
            json!({"num_experts": 2048, "num_hidden_layers": 2048}),
            router("model.layers.0.mlp.gate.weight", "[4, 64]", "[2048, 64]"),
        ),
        // Widths: of experts by themselves, of experts in one tensor, of shared experts, of the model.
        (
            "qwen3-moe",
            json!({"moe_intermediate_size": 64}),
            router("model.layers.0.mlp.experts.0.gate_proj.weight", "[32, 48]", "[64, 48]"),
        ),
        (
            "granite-moe",
            json!({"intermediate_size": 16}),
            router(
                "model.layers.0.block_sparse_moe.input_linear.weight",
                "[4, 64, 64]",
                "[4, 32, 64]",
            ),
        ),
        (
            "gpt-oss",
            json!({"intermediate_size": 64}),
            router("model.layers.0.mlp.experts.gate_up_proj", "[4, 64, 64]", "[4, 64, 128]"),
        ),
        (
            "gpt-oss-mxfp4",
            json!({"intermediate_size": 64}),
            router(
                "model.layers.0.mlp.experts.gate_up_proj_scales",
                "[4, 64, 2]",
                "[4, 128, 2]",
            ),
        ),
        (
            "qwen2-moe",
            json!({"shared_expert_intermediate_size": 99}),
            router(
                "model.layers.1.mlp.shared_expert.gate_proj.weight",
                "[48, 64]",
                "[99, 64]",
            ),
        ),
        (
            "glm4-moe",
            json!({"n_shared_experts": 3}),
            router(
                "model.layers.1.mlp.shared_experts.gate_proj.weight",
                "[32, 64]",
                "[96, 64]",
            ),
        ),
        (
            "qwen3-moe",
            json!({"hidden_size": 32}),
            router("model.embed_tokens.weight", "[448, 48]", "[448, 32]"),
        ),
    ] {
        let error = refused(model, &changes);
        for word in &words {
            assert!(
                error.contains(word),
                "{model} with {changes}: `{word}` is not in: {error}"
            );
        }
    }
}

#[test]
fn numbers_of_experts_that_no_model_can_have_are_refused_with_their_limit() {
    for (model, changes, words) in [
        (
            "qwen3-moe",
            json!({"num_experts_per_tok": 7}),
            ["`num_experts_per_tok` is 7", "from 1 to 6, the number of"],
        ),
        (
            "mixtral",
            json!({"num_experts_per_tok": 0}),
            ["`num_experts_per_tok` is 0", "from 1 to 4"],
        ),
        (
            "gpt-oss",
            json!({"num_experts_per_tok": 5}),
            ["`num_experts_per_tok` is 5", "from 1 to 4"],
        ),
        (
            "olmoe",
            json!({"num_experts": 4096}),
            ["`num_experts` is 4096", "from 1 to 2048"],
        ),
        (
            "deepseek-v2",
            json!({"n_group": 3}),
            ["`n_group` is 3", "a divisor of the number of experts, 8"],
        ),
        (
            "deepseek-v3",
            json!({"n_group": 16}),
            ["`n_group` is 16", "from 1 to 8"],
        ),
        ("deepseek-v3", json!({"n_group": 8}), ["`n_group` is 8", "at most 4"]),
        (
            "glm4-moe",
            json!({"topk_group": 5}),
            ["`topk_group` is 5", "from 1 to n_group, 4"],
        ),
        (
            "glm4-moe",
            json!({"topk_group": 1}),
            ["`num_experts_per_tok` is 3", "from 1 to 2, as a token takes"],
        ),
        // Products of them are bounded, too.
        (
            "glm4-moe",
            json!({"n_shared_experts": u64::MAX}),
            ["`shared_expert_intermediate_size`", "from 1 to 1048576"],
        ),
        (
            "deepseek-v2",
            json!({"n_shared_experts": u64::MAX}),
            ["`shared_expert_intermediate_size`", "to 1048576"],
        ),
    ] {
        let error = refused(model, &changes);
        for word in words.into_iter().chain(["config.json"]) {
            assert!(
                error.contains(word),
                "{model} with {changes}: `{word}` is not in: {error}"
            );
        }
    }
}

#[test]
fn a_router_that_is_not_the_family_s_is_refused() {
    for (model, scoring, method) in [
        ("qwen3-moe", "softmax", "greedy"),
        ("qwen2-moe", "softmax", "greedy"),
        ("mixtral", "softmax", "greedy"),
        ("granite-moe", "softmax", "greedy"),
        ("olmoe", "softmax", "greedy"),
        ("gpt-oss", "softmax", "greedy"),
        ("deepseek-v2", "softmax", "group_limited_greedy"),
        ("deepseek-v3", "sigmoid", "noaux_tc"),
        ("glm4-moe", "sigmoid", "noaux_tc"),
    ] {
        for (field, found, known) in [("scoring_func", "tanh", scoring), ("topk_method", "random", method)] {
            let error = refused(model, &json!({field: found}));
            for word in [&format!("`{field}` asks for {found}"), known, "config.json"] {
                assert!(error.contains(word), "{model}: `{word}` is not in: {error}");
            }
        }
        let error = refused(model, &json!({"scoring_func": 1}));
        assert!(error.contains("`scoring_func` is 1"), "{model}: {error}");
    }
    // The other one that exists.
    assert!(refused("glm4-moe", &json!({"scoring_func": "softmax"})).contains("known with sigmoid"));
    assert!(refused("mixtral", &json!({"scoring_func": "sigmoid"})).contains("known with softmax"));

    let mut file = gguf();
    file.set("qwen3moe.expert_gating_func", u32_value(2));
    let folder = TempFolder::new();
    let error = open(&folder.write("m.gguf", file.bytes())).unwrap_err().to_string();
    for word in ["qwen3moe.expert_gating_func` is 2", "1 (softmax)", "m.gguf"] {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    for known in [0, 1, 3] {
        file.set("qwen3moe.expert_gating_func", u32_value(known));
        open(&folder.write("m.gguf", file.bytes())).expect("what the family has");
    }
}

/// Their bytes are counted with a limit: the sum of all is no number of 64 bits.
#[test]
fn dummy_experts_of_any_size_are_counted_without_overflow() {
    let from = fixtures().join("models/qwen3-moe");
    let folder = TempFolder::new();
    let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    for (field, value) in [
        ("hidden_size", 1 << 20),
        ("moe_intermediate_size", 1 << 20),
        ("num_experts", 2048),
    ] {
        config[field] = value.into();
    }
    (config["num_hidden_layers"], config["num_experts_per_tok"]) = (2048.into(), 1.into());
    folder.write("config.json", config.to_string());
    let opened = ModelFiles::open(folder.path(), LoadFormat::Dummy, DummyWeights::default());
    assert_eq!(opened.expect("a description").weight_bytes, u64::MAX);
}
