//! DeepSeek's configurations, and how q_proj and kv_b_proj are taken apart.

mod support;

use halyard_models::config::{ExpertGroups, JsonFields, MlpDescription};
use halyard_models::families::Family;
use halyard_models::weights::Linear;
use halyard_models::{DummyWeights, LoadFormat, ModelDescription, ModelError, ModelFiles, Role};
use halyard_platform_api::{WeightFormat, e4m3};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use support::{TempFolder, fixtures};

fn describe(config: &Value) -> Result<ModelDescription, ModelError> {
    let folder = TempFolder::new();
    let path = folder.write("config.json", config.to_string());
    Family::describe_config(&JsonFields::open(&path)?).map(|(_, description)| description)
}

fn fixture(name: &str) -> Value {
    let path = fixtures().join("models").join(name).join("config.json");
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("an object")
}

fn with(mut config: Value, changes: &Value) -> Value {
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

#[test]
fn a_configuration_without_fields_has_those_of_its_class() {
    let v3 = json!({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 5,
        "intermediate_size": 18432});
    let model = describe(&v3).expect("described");
    let mixer = model.layers[0].mixer;
    let latent = mixer.latent.expect("latent attention");
    assert_eq!((mixer.num_heads, mixer.num_kv_heads, mixer.head_dim), (128, 1, 128));
    assert_eq!((latent.query_rank, latent.latent_dim), (Some(1536), 512));
    assert_eq!((latent.nope_dim, latent.rope_dim), (128, 64));
    assert!(
        (mixer.scale - 192f32.powf(-0.5)).abs() < 1e-7,
        "no YaRN: {}",
        mixer.scale
    );
    assert!(matches!(model.layers[2].mlp, MlpDescription::Dense(_)));
    let MlpDescription::Experts(experts) = model.layers[3].mlp else {
        panic!("experts from the fourth layer on");
    };
    let groups = ExpertGroups {
        num_groups: 8,
        top_groups: 4,
        best: 2,
    };
    assert_eq!(
        (experts.num_experts, experts.top_k, experts.groups),
        (256, 8, Some(groups))
    );
    assert!((experts.factor - 2.5).abs() < 1e-6 && experts.norm_topk && experts.choice_bias);

    // V2-Lite: a full query and no groups.
    let lite = json!({"architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 2,
        "intermediate_size": 10944, "num_attention_heads": 16, "q_lora_rank": null, "topk_method": "greedy",
        "n_group": 1, "topk_group": 1, "num_experts_per_tok": 6, "first_k_dense_replace": 1});
    let model = describe(&lite).expect("described");
    assert_eq!(model.layers[0].mixer.latent.expect("latent").query_rank, None);
    let MlpDescription::Experts(experts) = model.layers[1].mlp else {
        panic!("experts from the second layer on");
    };
    assert_eq!(
        (experts.groups, experts.norm_topk, experts.choice_bias),
        (None, false, false)
    );
}

#[test]
fn the_magnitude_of_yarn_is_in_the_scores_and_not_in_the_rope() {
    let model = describe(&fixture("deepseek-v2")).expect("described");
    let magnitude = 0.1 * 0.707 * 8f64.ln() + 1.0;
    let expected = 32f64.powf(-0.5) * magnitude * magnitude;
    let scale = f64::from(model.layers[0].mixer.scale);
    assert!((scale - expected).abs() < 1e-7, "{scale}, not {expected}");
    assert!((model.ropes[0].attention_factor() - 1.0).abs() < 1e-7);
}

#[test]
fn what_is_not_followed_is_refused_by_name() {
    for (model, change, words) in [
        (
            "deepseek-v2",
            json!({"norm_topk_prob": true}),
            ["`norm_topk_prob`", "false"],
        ),
        (
            "deepseek-v2",
            json!({"topk_method": "noaux_tc"}),
            ["`topk_method`", "group_limited_greedy"],
        ),
        (
            "deepseek-v2",
            json!({"scoring_func": "sigmoid"}),
            ["`scoring_func`", "softmax"],
        ),
        ("deepseek-v2", json!({"moe_layer_freq": 2}), ["`moe_layer_freq`", "1"]),
        (
            "deepseek-v3",
            json!({"topk_method": "greedy"}),
            ["`topk_method`", "noaux_tc"],
        ),
        (
            "deepseek-v3",
            json!({"attention_bias": true}),
            ["`attention_bias`", "true"],
        ),
        ("deepseek-v3", json!({"kv_lora_rank": 0}), ["`kv_lora_rank`", "from 1"]),
        (
            "deepseek-v3",
            json!({"qk_nope_head_dim": u64::MAX}),
            ["`qk_nope_head_dim`", "from 1 to"],
        ),
        (
            "deepseek-v3",
            json!({"qk_rope_head_dim": u64::MAX}),
            ["`qk_rope_head_dim`", "from 1 to"],
        ),
        (
            "deepseek-v3",
            json!({"q_lora_rank": 1u64 << 40}),
            ["`q_lora_rank`", "from 1 to"],
        ),
        ("deepseek-v3", json!({"v_head_dim": 0}), ["`head_dim`", "from 1"]),
        (
            "deepseek-v3",
            json!({"kv_lora_rank": 1 << 20}),
            ["`num_attention_heads`", "at most 1"],
        ),
        (
            "deepseek-v3",
            json!({"n_shared_experts": u64::MAX}),
            ["`shared_expert_intermediate_size`", "from 1"],
        ),
    ] {
        let error = describe(&with(fixture(model), &change))
            .expect_err("refused")
            .to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{change}: {error}");
    }
}

fn open(model: &str) -> ModelFiles {
    let path = fixtures().join("models").join(model);
    ModelFiles::open(&path, LoadFormat::Auto, DummyWeights::default()).expect("a model")
}

/// A tensor of a file in BF16.
fn stored(file: &SafeTensors, name: &str) -> Vec<f32> {
    let view = file.tensor(name).expect("a tensor");
    let words = view.data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    words.map(|word| f32::from_bits(u32::from(word) << 16)).collect()
}

/// deepseek-v2: 4 heads, of 16 + 16 in queries and 32 in values; latents of 32, a hidden size of 64.
#[test]
fn q_and_kv_b_are_taken_apart_head_by_head() {
    let folder = fixtures().join("models/deepseek-v2");
    let bytes = std::fs::read(folder.join("model.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("tensors");
    let files = open("deepseek-v2");
    let handed_out = |linear| {
        let tensor = files.weights.tensor(Role::weight(1, linear)).expect("a weight");
        (tensor.format, tensor.to_f32().expect("values"))
    };
    let q = stored(&file, "model.layers.1.self_attn.q_proj.weight");
    let kv_b = stored(&file, "model.layers.1.self_attn.kv_b_proj.weight");
    let rows = |matrix: &[f32], width: usize, rows: &dyn Fn(usize) -> std::ops::Range<usize>| -> Vec<f32> {
        (0..4)
            .flat_map(|head| matrix[rows(head).start * width..rows(head).end * width].to_vec())
            .collect()
    };
    let bf16 = WeightFormat::BF16;
    assert_eq!(
        handed_out(Linear::QueryNope),
        (bf16, rows(&q, 64, &|head| 32 * head..32 * head + 16))
    );
    assert_eq!(
        handed_out(Linear::QueryRope),
        (bf16, rows(&q, 64, &|head| 32 * head + 16..32 * head + 32))
    );
    assert_eq!(
        handed_out(Linear::ValueUp),
        (bf16, rows(&kv_b, 32, &|head| 48 * head + 16..48 * head + 48))
    );
    // Of keys each head's 16 rows of 32 are columns.
    let transposed = (0..4 * 32).flat_map(|row| {
        let (head, column) = (row / 32, row % 32);
        (0..16).map(move |i| (48 * head + i) * 32 + column)
    });
    let transposed: Vec<f32> = transposed.map(|at| kv_b[at]).collect();
    assert_eq!(handed_out(Linear::KeyUp), (bf16, transposed.clone()));
    // Some of the rows and columns, as ranks take them.
    let tensor = files.weights.tensor(Role::weight(1, Linear::KeyUp)).expect("a weight");
    let part = tensor.submatrix(33..35, 4..7);
    let values: Vec<f32> = part
        .chunks_exact(2)
        .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
        .collect();
    let expected = [
        &transposed[33 * 16 + 4..33 * 16 + 7],
        &transposed[34 * 16 + 4..34 * 16 + 7],
    ]
    .concat();
    assert_eq!(values, expected);
}

/// 8-bit floats with a scale cannot be turned as they are.
#[test]
fn keys_of_other_formats_are_transposed_as_f32() {
    let source = fixtures().join("models/deepseek-v2");
    let bytes = std::fs::read(source.join("model.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("tensors");
    let name = "model.layers.0.self_attn.kv_b_proj.weight";
    // Codes 0x30 to 0x3f are 0.5 to 1.875 in sixteenths and eighths.
    let codes: Vec<u8> = (0..192 * 32).map(|i| 0x30 + (i * 7 % 16) as u8).collect();
    let scale = 3f32.to_le_bytes();
    let mut tensors: Vec<(String, TensorView)> = file.tensors();
    tensors.retain(|(found, _)| found != name);
    let code_view = TensorView::new(Dtype::F8_E4M3, vec![192, 32], &codes).expect("a view");
    tensors.push((name.to_owned(), code_view));
    let scale_view = TensorView::new(Dtype::F32, vec![1], &scale).expect("a view");
    tensors.push((format!("{name}_scale"), scale_view));
    let folder = TempFolder::new();
    folder.write(
        "model.safetensors",
        safetensors::serialize(tensors, None).expect("a file"),
    );
    for other in ["config.json", "tokenizer.json"] {
        folder.write(other, std::fs::read(source.join(other)).expect("a file"));
    }
    let files = ModelFiles::open(folder.path(), LoadFormat::Auto, DummyWeights::default()).expect("a model");
    let keys = files.weights.tensor(Role::weight(0, Linear::KeyUp)).expect("a weight");
    assert_eq!(keys.format, WeightFormat::F32);
    let code = |row: usize, column: usize| e4m3::to_f32(codes[row * 32 + column]) * 3.0;
    let expected: Vec<f32> = (0..4 * 32)
        .flat_map(|row| (0..16).map(move |i| (48 * (row / 32) + i, row % 32)))
        .map(|(row, column)| code(row, column))
        .collect();
    assert_eq!(keys.to_f32().expect("values"), expected);
    // What is not turned keeps its format.
    let values = files
        .weights
        .tensor(Role::weight(0, Linear::ValueUp))
        .expect("a weight");
    assert_eq!(values.format, WeightFormat::F8E4M3);
}
