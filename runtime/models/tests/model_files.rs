//! Opening a model by its path: weights by role, tokenizer, template, defaults, and errors.

mod support;

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use halyard_models::families::Family;
use halyard_models::gguf::GgufFile;
use halyard_models::weights::{Linear, MlpLinear, Norm};
use halyard_models::{DummyFormat, DummyWeights, LoadFormat, ModelError, ModelFiles, Role, TokenizerSource, Weights};
use halyard_platform_api::WeightFormat;
use serde_json::{Value, json};
use support::{GgufWriter, TempFolder, f32_bytes, string_value, u32_value};

fn open(path: &Path) -> Result<ModelFiles, ModelError> {
    ModelFiles::open(path, LoadFormat::Auto, DummyWeights::default())
}

fn error(path: &Path, format: LoadFormat) -> ModelError {
    ModelFiles::open(path, format, DummyWeights::default())
        .map(|_| ())
        .unwrap_err()
}

/// A copy of a tiny model of the fixtures.
fn folder_of(model: &str) -> TempFolder {
    let folder = TempFolder::new();
    for entry in std::fs::read_dir(support::fixtures().join("models").join(model)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn change(folder: &TempFolder, file: &str, change: impl FnOnce(&mut Value)) {
    let path = folder.path().join(file);
    let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

#[test]
fn opens_a_hugging_face_folder() {
    let folder = folder_of("qwen2");
    let model = open(folder.path()).unwrap();
    assert_eq!(model.family, "qwen2");
    assert!(matches!(&model.tokenizer, TokenizerSource::File(path) if path.ends_with("tokenizer.json")));
    assert_eq!(model.generation.temperature, Some(0.7));
    assert_eq!(model.eos_token.as_deref(), Some("<|im_end|>"));
    assert!(model.chat_template.is_some_and(|t| t.contains("im_start")));
    let bias = model.weights.tensor(Role::bias(0, Linear::Q)).unwrap();
    assert_eq!(
        (bias.name.as_str(), bias.shape.len()),
        ("model.layers.0.self_attn.q_proj.bias", 1)
    );
    assert_eq!(model.name, folder.path().file_name().unwrap().to_string_lossy());
}

#[test]
fn opens_a_gguf_file_and_a_folder_with_one() {
    let folder = TempFolder::new();
    let path = folder.write("tiny.gguf", GgufWriter::tiny_llama().bytes());
    for path in [path.as_path(), folder.path()] {
        let model = open(path).unwrap();
        assert_eq!((model.name.as_str(), model.family), ("Tiny", "llama"));
        assert_eq!(
            (model.bos_token.as_deref(), model.eos_token.as_deref()),
            (Some("<s>"), Some("</s>"))
        );
        assert_eq!(model.generation.eos_token_ids, [4, 5]);
        assert!(matches!(&model.tokenizer, TokenizerSource::Gguf(data) if data.tokens.len() == 6));
        // Tied: the output projection is the embedding, counted once.
        let head = model.weights.tensor(Role::LmHead).unwrap();
        assert_eq!(head.name, "token_embd.weight");
        let values = 6 * 8 + 8 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 96 + 96 + 96);
        assert_eq!(model.weight_bytes, values * 4);
    }
    folder.write("other.gguf", GgufWriter::tiny_llama().bytes());
    let error = error(folder.path(), LoadFormat::Auto).to_string();
    assert!(
        error.contains("other.gguf, tiny.gguf") && error.contains("name one"),
        "{error}"
    );
}

#[test]
fn rows_of_a_weight_are_its_stored_bytes() {
    let mut writer = GgufWriter::tiny_llama();
    let values: Vec<f32> = (0..96).map(|i| i as f32).collect();
    let gate = writer
        .tensors
        .iter_mut()
        .find(|t| t.0 == "blk.1.ffn_gate.weight")
        .unwrap();
    gate.3 = f32_bytes(&values);
    let folder = TempFolder::new();
    let model = open(&folder.write("m.gguf", writer.bytes())).unwrap();
    let gate = model
        .weights
        .tensor(Role::weight(1, Linear::Mlp(MlpLinear::Gate)))
        .unwrap();
    assert_eq!((gate.num_rows(), gate.row_len(), gate.row_bytes()), (12, 8, 32));
    assert_eq!(gate.rows(2..4), f32_bytes(&values[16..32]));
    assert_eq!(gate.to_f32().unwrap(), values);
}

#[test]
fn a_missing_weight_is_named_with_near_names() {
    let mut writer = GgufWriter::tiny_llama();
    let down = writer
        .tensors
        .iter_mut()
        .find(|t| t.0 == "blk.1.ffn_down.weight")
        .unwrap();
    down.0 = "blk.1.ffn_dwn.weight".into();
    let folder = TempFolder::new();
    let path = folder.write("m.gguf", writer.bytes());
    let ModelError::MissingTensor {
        tensor,
        near,
        path: blamed,
    } = error(&path, LoadFormat::Auto)
    else {
        panic!("another error");
    };
    assert_eq!(tensor, "blk.1.ffn_down.weight");
    assert!(near.contains(&"blk.1.ffn_dwn.weight".to_owned()), "{near:?}");
    assert_eq!(blamed, path);
}

#[test]
fn a_weight_of_another_shape_or_format_is_refused() {
    let mut writer = GgufWriter::tiny_llama();
    writer.set("llama.feed_forward_length", u32_value(16));
    let folder = TempFolder::new();
    let path = folder.write("m.gguf", writer.bytes());
    let ModelError::WrongShape {
        tensor,
        expected,
        found,
        ..
    } = error(&path, LoadFormat::Auto)
    else {
        panic!("another error");
    };
    assert_eq!(tensor, "blk.0.ffn_gate.weight");
    assert_eq!((expected, found), (vec![16, 8], vec![12, 8]));

    let mut writer = GgufWriter::tiny_llama();
    let norm = writer.tensors.iter_mut().find(|t| t.0 == "output_norm.weight").unwrap();
    (norm.2, norm.3) = (28, vec![0; 64]); // F64
    let path = folder.write("m.gguf", writer.bytes());
    let error = error(&path, LoadFormat::Auto).to_string();
    assert!(
        error.contains("`output_norm.weight` is stored as F64") && error.contains("Q4_K"),
        "{error}"
    );
}

#[test]
fn untied_models_need_their_output_projection() {
    let folder = folder_of("gemma3");
    assert!(open(folder.path()).unwrap().description.tie_word_embeddings);
    change(&folder, "config.json", |c| c["tie_word_embeddings"] = json!(false));
    let error = error(folder.path(), LoadFormat::Auto).to_string();
    assert!(error.contains("`lm_head.weight` is missing"), "{error}");
}

#[test]
fn the_text_part_of_multimodal_checkpoints_is_found_under_either_prefix() {
    for prefix in ["language_model.model.", "model.language_model."] {
        let folder = folder_of("gemma3");
        let path = folder.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + len].to_vec())
            .unwrap()
            .replace("\"model.", &format!("\"{prefix}"));
        let mut renamed = (header.len() as u64).to_le_bytes().to_vec();
        renamed.extend(header.as_bytes());
        renamed.extend(&bytes[8 + len..]);
        std::fs::write(path, renamed).unwrap();
        change(&folder, "config.json", |config| {
            let text = config.clone();
            *config = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text});
        });
        let model = open(folder.path()).unwrap();
        let norm = model.weights.tensor(Role::norm(1, Norm::Mlp)).unwrap();
        assert_eq!(norm.name, format!("{prefix}layers.1.pre_feedforward_layernorm.weight"));
    }
}

#[test]
fn a_missing_tokenizer_is_an_error_with_a_remedy() {
    let folder = folder_of("llama");
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let text = error(folder.path(), LoadFormat::Auto).to_string();
    assert!(
        text.contains("no tokenizer") && text.contains("put the model's tokenizer.json into the folder"),
        "{text}"
    );
    let dummy = ModelFiles::open(folder.path(), LoadFormat::Dummy, DummyWeights::default()).unwrap();
    assert_eq!(dummy.tokenizer, TokenizerSource::Absent);

    let mut writer = GgufWriter::tiny_llama();
    writer
        .remove("tokenizer.ggml.model")
        .set("llama.vocab_size", u32_value(6));
    let path = folder.write("m.gguf", writer.bytes());
    assert!(matches!(
        error(&path, LoadFormat::Auto),
        ModelError::MissingTokenizer { .. }
    ));
}

#[test]
fn chat_templates_are_found_in_each_place() {
    let folder = folder_of("llama");
    let template = || open(folder.path()).map(|model| model.chat_template);
    change(&folder, "tokenizer_config.json", |c| {
        c["chat_template"] = json!("plain")
    });
    let _ = std::fs::remove_file(folder.path().join("chat_template.jinja"));
    assert_eq!(template().unwrap().as_deref(), Some("plain"));
    let named = json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]);
    change(&folder, "tokenizer_config.json", |c| c["chat_template"] = named);
    assert_eq!(template().unwrap().as_deref(), Some("named"));
    change(&folder, "tokenizer_config.json", |c| {
        c["chat_template"] = json!([{"name": "other", "template": "x"}])
    });
    assert!(matches!(template(), Err(ModelError::BadField { .. })));
    folder.write("chat_template.jinja", "from a file");
    assert_eq!(template().unwrap().as_deref(), Some("from a file"));

    change(&folder, "tokenizer_config.json", |c| {
        c["bos_token"] = json!({"content": "<start>"})
    });
    assert_eq!(open(folder.path()).unwrap().bos_token.as_deref(), Some("<start>"));
}

#[test]
fn paths_that_hold_no_model_say_what_was_found() {
    let folder = TempFolder::new();
    let text = error(folder.path(), LoadFormat::Auto).to_string();
    assert!(text.contains("neither config.json nor a .gguf file"), "{text}");
    assert!(matches!(
        error(&folder.path().join("nowhere"), LoadFormat::Auto),
        ModelError::Io { .. }
    ));
    let file = folder.write("notes.txt", "x");
    assert!(error(&file, LoadFormat::Auto).to_string().contains("notes.txt"));
    for empty in ["empty.gguf", "tiny.gguf"] {
        let path = folder.write(empty, if empty == "empty.gguf" { "" } else { "GG" });
        assert!(matches!(error(&path, LoadFormat::Auto), ModelError::Truncated { .. }));
    }
    let mut writer = GgufWriter::tiny_llama();
    writer.set("split.count", u32_value(3));
    let path = folder.write("part.gguf", writer.bytes());
    let text = error(&path, LoadFormat::Auto).to_string();
    assert!(text.contains("3 parts") && text.contains("--merge"), "{text}");
}

#[test]
fn load_formats_are_parsed_and_enforced() {
    for (name, format) in [
        ("auto", LoadFormat::Auto),
        ("safetensors", LoadFormat::Safetensors),
        ("gguf", LoadFormat::Gguf),
        ("dummy", LoadFormat::Dummy),
    ] {
        assert_eq!(LoadFormat::from_str(name).unwrap(), format);
    }
    assert!(LoadFormat::from_str("pt").unwrap_err().to_string().contains("`pt`"));
    let folder = folder_of("llama");
    assert!(matches!(
        error(folder.path(), LoadFormat::Gguf),
        ModelError::WrongLoadFormat { .. }
    ));
    let empty = TempFolder::new();
    assert!(matches!(
        error(empty.path(), LoadFormat::Safetensors),
        ModelError::WrongLoadFormat { .. }
    ));
    let file = empty.write("m.gguf", GgufWriter::tiny_llama().bytes());
    assert!(matches!(
        error(&file, LoadFormat::Safetensors),
        ModelError::WrongLoadFormat { .. }
    ));
}

#[test]
fn truncated_weights_of_a_folder_are_an_error_with_the_file() {
    let folder = folder_of("llama");
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = error(folder.path(), LoadFormat::Auto);
    assert!(
        matches!(&error, ModelError::Truncated { path: p, .. } if *p == path),
        "{error}"
    );
}

fn dummy(dummy: DummyWeights) -> Weights {
    let folder = TempFolder::new();
    let file = GgufFile::open(&folder.write("m.gguf", GgufWriter::tiny_llama().bytes())).unwrap();
    let (_, mut description) = Family::describe_file(&file).unwrap();
    description.norm.weight_offset = 1.0;
    Weights::dummy(Arc::new(description), dummy)
}

#[test]
fn dummy_weights_depend_on_seed_and_place_only() {
    let roles = [
        Role::Embedding,
        Role::weight(0, Linear::Q),
        Role::weight(1, Linear::Q),
        Role::weight(1, Linear::O),
    ];
    let recipe = |seed| DummyWeights {
        seed,
        format: DummyFormat::F32,
    };
    let values = |weights: &Weights, role| weights.tensor(role).unwrap().to_f32().unwrap();
    let weights = dummy(recipe(7));
    let forwards: Vec<_> = roles.iter().map(|&role| values(&weights, role)).collect();
    let mut backwards: Vec<_> = roles.iter().rev().map(|&role| values(&weights, role)).collect();
    backwards.reverse();
    assert_eq!(forwards, backwards);
    assert_ne!(forwards[1], forwards[2], "layers differ");
    assert_ne!(forwards[2], forwards[3], "places differ");
    assert_ne!(values(&dummy(recipe(8)), roles[1]), forwards[1], "seeds differ");
    let all: Vec<f32> = forwards.concat();
    assert!(all.iter().all(|v| v.abs() <= 0.035) && all.iter().any(|v| v.abs() > 0.02));
    assert!(all.iter().sum::<f32>().abs() / (all.len() as f32) < 0.005);
    // A norm with an offset of 1 stores 0: the factor is 1.
    assert_eq!(values(&weights, Role::FinalNorm), [0.0; 8]);

    let weights = dummy(DummyWeights {
        seed: 7,
        format: DummyFormat::Bf16,
    });
    assert_eq!(weights.format(roles[1]).unwrap(), WeightFormat::BF16);
    assert_eq!(weights.format(Role::FinalNorm).unwrap(), WeightFormat::F32);
    let rounded = weights.tensor(roles[1]).unwrap().to_f32().unwrap();
    assert!(
        rounded
            .iter()
            .zip(&forwards[1])
            .all(|(a, b)| (a - b).abs() <= b.abs() / 256.0)
    );
}

#[test]
fn an_architecture_without_a_general_key_is_said_to_lack_it() {
    let mut writer = GgufWriter::tiny_llama();
    writer
        .remove("general.architecture")
        .set("general.other", string_value("x"));
    let folder = TempFolder::new();
    let error = error(&folder.write("m.gguf", writer.bytes()), LoadFormat::Auto).to_string();
    assert!(error.contains("`general.architecture` is missing"), "{error}");
}
