//! Mistral's own folders: which files count, and what is refused.

mod support;

use std::path::Path;

use halyard_models::config::{RopeScaling, YarnScaling};
use halyard_models::{DummyWeights, LoadFormat, ModelError, ModelFiles, TokenizerSource};
use serde_json::{Value, json};
use support::TempFolder;

fn open(path: &Path) -> Result<ModelFiles, ModelError> {
    ModelFiles::open(path, LoadFormat::Auto, DummyWeights::default())
}

/// The folder of the fixtures, with `change` in its parameters.
fn folder_with(change: impl FnOnce(&mut Value)) -> TempFolder {
    let folder = TempFolder::new();
    let fixture = support::fixtures().join("models/mistral-consolidated");
    for entry in std::fs::read_dir(fixture).expect("the fixture") {
        let path = entry.expect("readable").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    let path = folder.path().join("params.json");
    let mut params: Value = serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
    change(&mut params);
    std::fs::write(path, params.to_string()).expect("written");
    folder
}

#[test]
fn parameters_become_a_description() {
    let folder = folder_with(|_| {});
    let model = open(folder.path()).expect("opens");
    assert_eq!((model.family, model.description.hidden_size), ("llama", 64));
    assert_eq!(model.description.max_position_embeddings, 256);
    assert_eq!(model.description.layers[0].mixer.window, Some(24));
    assert_eq!(model.generation.eos_token_ids, [2]);
    assert!(matches!(&model.tokenizer, TokenizerSource::File(path) if path.ends_with("tokenizer.json")));
}

#[test]
fn without_a_window_or_a_length_there_is_none_and_a_default() {
    let folder = folder_with(|params| {
        let params = params.as_object_mut().expect("an object");
        params.remove("sliding_window");
        params.remove("max_seq_len");
    });
    let model = open(folder.path()).expect("opens");
    assert_eq!(model.description.layers[0].mixer.window, None);
    assert_eq!(model.description.max_position_embeddings, 128_000);
}

#[test]
fn tekken_json_counts_where_there_is_no_tokenizer_json() {
    let folder = folder_with(|_| {});
    folder.write("tekken.json", b"{}");
    let both = open(folder.path()).expect("opens");
    assert!(matches!(&both.tokenizer, TokenizerSource::File(_)));
    std::fs::remove_file(folder.path().join("tokenizer.json")).expect("there");
    let model = open(folder.path()).expect("opens");
    assert!(matches!(&model.tokenizer, TokenizerSource::Tekken(path) if path.ends_with("tekken.json")));
    std::fs::remove_file(folder.path().join("tekken.json")).expect("there");
    let refusal = open(folder.path()).expect_err("no tokenizer").to_string();
    assert!(refusal.contains("tokenizer.json, tekken.json"), "{refusal}");
}

#[test]
fn what_is_not_read_is_refused_by_its_name() {
    for (key, value, words) in [
        ("vision_encoder", json!({"hidden_size": 1024}), "vision_encoder"),
        ("quantization", json!({"qformat_weight": "int4"}), "qformat_weight"),
        ("quantization", json!({"qscheme_act": "TENSOR"}), "qformat_weight"),
        ("quantization", json!({"quant_method": "gptq"}), "quant_method"),
        (
            "quantization",
            json!({"qformat_weight": "fp8_e4m3", "qscheme_act": "CHANNEL"}),
            "qscheme_act",
        ),
        ("quantization", json!("fp8"), "quantization"),
        ("yarn", json!({"factor": 16}), "original_max_position_embeddings"),
        (
            "yarn",
            json!({"factor": 16, "original_max_position_embeddings": 64, "gamma": 1}),
            "gamma",
        ),
        (
            "yarn",
            json!({"factor": "four", "original_max_position_embeddings": 64}),
            "factor",
        ),
        ("llama_4_scaling", json!({"beta": 0.1}), "llama_4_scaling"),
        ("use_biases", json!(true), "use_biases"),
        ("causal", json!(false), "causal"),
        ("moe", json!({"num_experts": 8}), "num_experts_per_tok"),
        ("n_heads", json!("four"), "num_attention_heads"),
    ] {
        let folder = folder_with(|params| params[key] = value);
        let refusal = open(folder.path()).expect_err(key).to_string();
        assert!(
            refusal.contains("params.json") && refusal.contains(words),
            "{key}: {refusal}"
        );
    }
}

#[test]
fn yarn_is_read_by_mistral_s_names() {
    let yarn = |value: Value| {
        let folder = folder_with(|params| params["yarn"] = value);
        let model = open(folder.path()).expect("opens");
        let RopeScaling::Yarn(yarn) = model.description.ropes[0].scaling.clone() else {
            panic!("no YaRN: {:?}", model.description.ropes[0].scaling);
        };
        yarn
    };
    let whole = json!({"factor": 16, "original_max_position_embeddings": 64, "beta": 8, "alpha": 0.5,
        "apply_scale": false});
    let want = YarnScaling {
        factor: 16.0,
        beta_fast: 8.0,
        beta_slow: 0.5,
        original_max_position_embeddings: 64,
        attention_factor: 1.0,
        truncate: true,
    };
    assert_eq!(yarn(whole), want);
    // What is left out is the default of the paper, with cosines and sines scaled by 0.1 ln(factor) + 1.
    let short = yarn(json!({"factor": 16, "original_max_position_embeddings": 64}));
    assert_eq!((short.beta_fast, short.beta_slow), (32.0, 1.0));
    assert!((short.attention_factor - (0.1 * 16f64.ln() + 1.0)).abs() < 1e-12);
    let none = folder_with(|params| params["yarn"] = json!(null));
    let model = open(none.path()).expect("opens");
    assert_eq!(model.description.ropes[0].scaling, RopeScaling::None);
}

#[test]
fn parameters_without_weights_say_which_file_is_missing() {
    let folder = folder_with(|_| {});
    std::fs::remove_file(folder.path().join("consolidated.safetensors")).expect("there");
    let refusal = open(folder.path()).expect_err("no weights").to_string();
    assert!(
        refusal.contains("params.json without consolidated.safetensors"),
        "{refusal}"
    );
}
