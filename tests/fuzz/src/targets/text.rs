//! Tokenizers and chat templates of a model folder: read, and used on a few texts and messages.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use halyard_server::templates::{TemplateLimits, TemplateProcesses};
use halyard_text::{ChatInput, ChatTemplate, Detokenizer, SpecialTokens, TemplateHost, Tokenizer, TokenizerConfig};
use serde_json::{Value, json};

use crate::target::{Case, Outcome, fixture, fixture_bytes, outcome};

/// Texts that reach the odd corners of a tokenizer.
const TEXTS: &[&str] = &[
    "",
    "Hello, world! 123",
    "  two  spaces\n\nand\tlines ",
    "é e\u{301} 日本語 🙂‍↔️ \u{0} \u{fffd}",
    "<s></s><|im_start|>aaaaaaaaaaaaaaaaaaaa",
];

/// Encodes and decodes: each may fail in words.
pub fn use_tokenizer(tokenizer: &Tokenizer) {
    for text in TEXTS {
        let Ok(ids) = tokenizer.encode(text, true) else {
            continue;
        };
        let _ = tokenizer.decode(&ids, false);
        let _ = tokenizer.decode(&ids, true);
        let mut incremental = Detokenizer::new(tokenizer, &ids, true);
        for id in ids.iter().copied().chain([0, 1, 2, tokenizer.vocab_size() as u32]) {
            let _ = incremental.push(id);
            let _ = tokenizer.token_bytes(id);
        }
        let _ = incremental.finish();
    }
}

pub fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        fixture_bytes("models/llama/tokenizer.json"),
        fixture_bytes("models/gemma3/tokenizer.json"),
        fixture_bytes("models/qwen2/tokenizer.json"),
    ];
    for name in ["bpe_tokenizer.json", "wordpiece_tokenizer.json"] {
        let path = fixture("").join("../../runtime/text/tests/golden").join(name);
        seeds.push(std::fs::read(path).expect("a golden"));
    }
    seeds
}

/// `tokenizer.json`.
pub fn tokenizer(_: &Path) -> Case {
    Box::new(|input| {
        let made = Tokenizer::from_json(input, "the fuzzer's tokenizer.json");
        if let Ok(tokenizer) = &made {
            use_tokenizer(tokenizer);
        }
        outcome(&made)
    })
}

pub fn tokenizer_config_seeds() -> Vec<Vec<u8>> {
    ["llama", "gemma3", "qwen2", "mistral"]
        .map(|model| fixture_bytes(&format!("models/{model}/tokenizer_config.json")))
        .to_vec()
}

/// `tokenizer_config.json`, without running its template.
pub fn tokenizer_config(_: &Path) -> Case {
    Box::new(|input| {
        let read = TokenizerConfig::from_json(input, "the fuzzer's tokenizer_config.json");
        if let Ok(config) = &read {
            let _ = config.chat_template(false);
            let _ = config.chat_template(true);
        }
        outcome(&read)
    })
}

pub fn template_seeds() -> Vec<Vec<u8>> {
    let names = [
        "chatml",
        "gemma3",
        "llama3",
        "mistral",
        "parts_only",
        "python_values",
        "qwen3",
    ];
    names
        .map(|name| fixture_bytes(&format!("text/templates/{name}.jinja")))
        .to_vec()
}

/// A chat template: compiled, and rendered over three conversations, in processes as the server has them (this program
/// again). What ends such
/// a process is an answer; what hangs or ends this one is a finding.
pub fn template(_: &Path) -> Case {
    let limits = TemplateLimits {
        cpu: Duration::from_millis(500),
        ..TemplateLimits::default()
    };
    let host: Arc<dyn TemplateHost> = Arc::new(TemplateProcesses::new("/proc/self/exe".into(), limits));
    let special = SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..SpecialTokens::default()
    };
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]);
    let talks: [Vec<Value>; 3] = [
        vec![json!({"role": "user", "content": "x"})],
        vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": [{"type": "text", "text": "Hello"}]}),
            json!({"role": "assistant", "content": "Hi"}),
            json!({"role": "user", "content": "{{ bos_token }}"}),
        ],
        vec![
            json!({"role": "user", "content": "time?"}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function",
                "function": {"name": "now", "arguments": "{\"zone\": 1}"}}]}),
            json!({"role": "tool", "tool_call_id": "a", "content": "12:00"}),
        ],
    ];
    Box::new(move |input| {
        let source = String::from_utf8_lossy(input);
        let made = ChatTemplate::on(Arc::clone(&host), &source, &special);
        if let Ok(template) = &made {
            for (index, messages) in talks.iter().enumerate() {
                let rendered = template.render(&ChatInput {
                    messages,
                    tools: (index == 2).then_some(&tools),
                    add_generation_prompt: true,
                    ..ChatInput::default()
                });
                let _: Outcome = outcome(&rendered);
            }
        }
        outcome(&made)
    })
}
