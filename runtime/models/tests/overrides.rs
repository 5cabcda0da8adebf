//! What an operator puts in place of a model's files: fields of config.json, tokenizer, template, generation defaults.

mod support;

use std::path::{Path, PathBuf};

use halyard_models::{
    DummyWeights, GenerationSource, LoadFormat, ModelError, ModelFiles, ModelOverrides, TokenizerSource,
};
use serde_json::{Map, Value, json};
use support::TempFolder;

fn fixture(name: &str) -> PathBuf {
    support::fixtures().join("models").join(name)
}

fn open(path: &Path, over: &ModelOverrides) -> Result<ModelFiles, ModelError> {
    ModelFiles::open_with(path, LoadFormat::Auto, DummyWeights::default(), over)
}

fn fields(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[test]
fn fields_of_the_configuration_are_replaced_and_objects_merged() {
    let over = |value: Value| ModelOverrides {
        config: fields(value),
        ..ModelOverrides::default()
    };
    let longer = over(json!({
        "max_position_embeddings": 512,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }));
    let model = open(&fixture("llama"), &longer).expect("opens");
    let plain = open(&fixture("llama"), &ModelOverrides::default()).expect("opens");
    assert_eq!(plain.description.max_position_embeddings, 256);
    assert_eq!(model.description.max_position_embeddings, 1024);
    assert_ne!(plain.description.ropes, model.description.ropes);
    // An object is merged: only the factor of llama3's scaling changes.
    let plain = open(&fixture("llama3-rope"), &ModelOverrides::default()).expect("opens");
    let merged = over(json!({"rope_scaling": {"factor": 16.0}}));
    let model = open(&fixture("llama3-rope"), &merged).expect("opens: the other fields are still there");
    assert_ne!(plain.description.ropes, model.description.ropes);
    let error = open(&fixture("llama"), &over(json!({"num_attention_heads": 0})))
        .expect_err("no heads")
        .to_string();
    assert!(
        error.contains("--hf-overrides") && error.contains("num_attention_heads"),
        "{error}"
    );
}

#[test]
fn a_gguf_file_has_no_configuration_to_override() {
    let over = ModelOverrides {
        config: fields(json!({"rope_theta": 1.0})),
        ..ModelOverrides::default()
    };
    let folder = std::fs::read_dir(fixture("gguf")).expect("a folder");
    let file = folder
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "gguf"))
        .expect("a GGUF file");
    let error = open(&file, &over).expect_err("refused").to_string();
    assert!(
        error.contains("--hf-overrides") && error.contains("rope_theta"),
        "{error}"
    );
    // What does not concern its metadata works there as well.
    let folder = tokenizer_folder();
    let tokenizer = ModelOverrides {
        tokenizer: Some(folder.path().into()),
        generation_fields: fields(json!({"top_k": 5})),
        ..ModelOverrides::default()
    };
    let model = open(&file, &tokenizer).expect("opens");
    assert!(matches!(&model.tokenizer, TokenizerSource::File(path) if path.starts_with(folder.path())));
    assert_eq!(model.chat_template.as_deref(), Some("{{ bos_token }}given"));
    assert_eq!(model.generation.top_k, Some(5));
    assert!(!model.generation.eos_token_ids.is_empty());
}

/// A folder with the tokenizer of a fixture, its own template and its own end of a sequence.
fn tokenizer_folder() -> TempFolder {
    let folder = TempFolder::new();
    let own = |name: &str| folder.path().join(name);
    std::fs::copy(fixture("qwen2").join("tokenizer.json"), own("tokenizer.json")).expect("copied");
    let texts = json!({"eos_token": "<|im_start|>", "chat_template": "{{ bos_token }}given"});
    std::fs::write(own("tokenizer_config.json"), texts.to_string()).expect("written");
    folder
}

#[test]
fn the_tokenizer_of_a_folder_brings_its_template() {
    let given = |tokenizer: PathBuf| ModelOverrides {
        tokenizer: Some(tokenizer),
        ..ModelOverrides::default()
    };
    let folder = tokenizer_folder();
    let model = open(&fixture("llama"), &given(folder.path().into())).expect("opens");
    assert!(matches!(&model.tokenizer, TokenizerSource::File(path) if path.starts_with(folder.path())));
    assert_eq!(model.chat_template.as_deref(), Some("{{ bos_token }}given"));
    assert_eq!(model.eos_token.as_deref(), Some("<|im_start|>"));
    // A file is the tokenizer alone.
    let file = folder.path().join("tokenizer.json");
    let model = open(&fixture("llama"), &given(file.clone())).expect("opens");
    assert_eq!(model.tokenizer, TokenizerSource::File(file));
    assert_eq!(model.eos_token.as_deref(), Some("<|im_end|>"));
    let error = open(&fixture("llama"), &given("/no/such".into())).expect_err("nothing there");
    assert!(matches!(error, ModelError::MissingTokenizer { .. }), "{error}");
    let template = ModelOverrides {
        chat_template: Some("{{ messages[0].content }}".to_owned()),
        ..given(folder.path().into())
    };
    let model = open(&fixture("llama"), &template).expect("opens");
    assert_eq!(model.chat_template.as_deref(), Some("{{ messages[0].content }}"));
}

#[test]
fn generation_defaults_come_from_where_they_were_asked_for() {
    let read = |generation: GenerationSource, over: Value| {
        let over = ModelOverrides {
            generation,
            generation_fields: fields(over),
            ..ModelOverrides::default()
        };
        open(&fixture("qwen2"), &over).map(|model| model.generation)
    };
    let own = read(GenerationSource::Model, json!({})).expect("reads");
    assert_eq!(own.temperature, Some(0.7));
    let engine = read(GenerationSource::Engine, json!({})).expect("reads");
    assert_eq!((engine.temperature, engine.top_p), (None, None));
    assert_eq!(engine.eos_token_ids, own.eos_token_ids, "a sequence still ends");
    let both = read(
        GenerationSource::Engine,
        json!({"temperature": 0.25, "max_new_tokens": 9}),
    )
    .expect("reads");
    assert_eq!((both.temperature, both.max_new_tokens), (Some(0.25), Some(9)));
    let folder = TempFolder::new();
    std::fs::write(folder.path().join("generation_config.json"), r#"{"top_k": 7}"#).expect("written");
    let other = read(GenerationSource::Folder(folder.path().into()), json!({"top_p": 0.5})).expect("reads");
    assert_eq!(
        (other.temperature, other.top_k, other.top_p),
        (None, Some(7), Some(0.5))
    );
    assert_eq!(
        other.eos_token_ids,
        open(&fixture("qwen2"), &ModelOverrides::default())
            .expect("opens")
            .description
            .eos_token_ids
    );
    let missing = GenerationSource::Folder("/no/such".into());
    assert!(read(missing, json!({})).is_err(), "a folder without the file");
    let bad = read(GenerationSource::Model, json!({"temperature": -1}))
        .expect_err("below 0")
        .to_string();
    assert!(
        bad.contains("--override-generation-config") && bad.contains("-1"),
        "{bad}"
    );
}
