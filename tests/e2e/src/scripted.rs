//! A tiny model whose answers are written down: its folder, and the script of the platform `script`. Its tokenizer has
//! the special tokens of several families, and its chat template is one of the fixtures' or the caller's.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// Markers that the tokenizer has as one token each; as in those families, the first four are no special tokens.
const MARKERS: [&str; 17] = [
    "<think>",
    "</think>",
    "<tool_response>",
    "</tool_response>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
const NUM_PLAIN: usize = 4;
const VOCAB: usize = 448;

/// A model's folder with a script in it; gone with the value.
pub struct ScriptedModel {
    folder: PathBuf,
}

impl ScriptedModel {
    /// A model with this chat template that says, after the prompt with the text of the first, the second of a pair.
    pub fn new(fixtures: &Path, template: &str, lines: &[(&str, &str)]) -> ScriptedModel {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("halyard-scripted-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let model = ScriptedModel { folder };
        let read = |name: &str| -> Value {
            let text = std::fs::read(fixtures.join("models/llama").join(name)).expect("the fixture");
            serde_json::from_slice(&text).expect("JSON")
        };
        let mut config = read("config.json");
        config["vocab_size"] = json!(VOCAB + MARKERS.len());
        config["max_position_embeddings"] = json!(8192);
        let mut tokenizer = read("tokenizer.json");
        let tokens = tokenizer["added_tokens"].as_array_mut().expect("a list");
        for (index, marker) in MARKERS.iter().enumerate() {
            tokens.push(
                json!({"id": VOCAB + index, "content": marker, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": index >= NUM_PLAIN}),
            );
        }
        let mut tokenizer_config = read("tokenizer_config.json");
        tokenizer_config["chat_template"] = json!(template);
        tokenizer_config["model_max_length"] = json!(8192);
        let id = |marker: &str| VOCAB + MARKERS.iter().position(|known| *known == marker).expect("a marker");
        // Harmony's calls and answers end the sequence.
        let ends = json!([2, id("<|call|>"), id("<|return|>")]);
        model.write("config.json", &config);
        model.write("tokenizer.json", &tokenizer);
        model.write("tokenizer_config.json", &tokenizer_config);
        model.write(
            "generation_config.json",
            &json!({"bos_token_id": 1, "eos_token_id": ends}),
        );
        model.set_lines(lines);
        model
    }

    /// The same with a template of tests/fixtures/text/templates.
    pub fn with_template_of(fixtures: &Path, name: &str, lines: &[(&str, &str)]) -> ScriptedModel {
        let file = fixtures.join("text/templates").join(format!("{name}.jinja"));
        let template = std::fs::read_to_string(file).expect("the template");
        ScriptedModel::new(fixtures, &template, lines)
    }

    /// The same with a response template in its tokenizer_config.json.
    pub fn with_response_template(self, template: &Value) -> ScriptedModel {
        let path = self.folder.join("tokenizer_config.json");
        let text = std::fs::read(path).expect("it was written");
        let mut config: Value = serde_json::from_slice(&text).expect("JSON");
        config["response_template"] = template.clone();
        self.write("tokenizer_config.json", &config);
        self
    }

    /// Other lines from now on.
    pub fn set_lines(&self, lines: &[(&str, &str)]) {
        let lines: Vec<Value> = lines
            .iter()
            .map(|(after, say)| json!({"after": after, "say": say}))
            .collect();
        // Whole at any time: sequences that begin read it.
        let fresh = self.folder.join("script.new");
        std::fs::write(&fresh, Value::from(lines).to_string()).expect("written");
        std::fs::rename(fresh, self.script()).expect("renamed");
    }

    fn write(&self, name: &str, value: &Value) {
        std::fs::write(self.folder.join(name), value.to_string()).expect("written");
    }

    /// The model.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The platform's option `script`.
    pub fn script(&self) -> PathBuf {
        self.folder.join("script.json")
    }

    /// The platform's option `tokenizer`.
    pub fn tokenizer(&self) -> PathBuf {
        self.folder.join("tokenizer.json")
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
