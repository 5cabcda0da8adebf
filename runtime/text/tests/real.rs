//! Tokenizers, vocabularies and chat templates of real models against Hugging Face's and llama.cpp's outputs.
//!
//! The files are their owners' and not here: `tests/fixtures/text/real/fetch FOLDER` brings them,
//! `tests/fixtures/text/real/make.py FOLDER` adds Hugging Face's answers, and HALYARD_TEST_REAL_TEXTS names FOLDER.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use halyard_models::gguf::{GgufFile, GgufTokenizerData};
use halyard_text::{
    AnswerEvent, AnswerFormat, AnswerParser, ChatInput, ChatTemplate, GgufTokenizer, LocalTime, SpecialTokens,
    TextError, Tokenizer, ToolTypes, propose_formats,
};
use serde_json::{Map, Value};

/// Hugging Face's answers.
#[derive(serde::Deserialize)]
struct Goldens {
    /// The time that templates saw, in UTC.
    now: i64,
    tokenizers: BTreeMap<String, Vec<Encoded>>,
    templates: BTreeMap<String, Rendered>,
}

#[derive(serde::Deserialize)]
struct Encoded {
    text: String,
    special: bool,
    ids: Vec<u32>,
}

#[derive(serde::Deserialize)]
struct Rendered {
    source: String,
    chats: Vec<Chat>,
}

#[derive(serde::Deserialize)]
struct Chat {
    case: String,
    messages: Vec<Value>,
    tools: Option<Value>,
    prompt: bool,
    extra: Map<String, Value>,
    /// The text, or an object with the error.
    text: Value,
}

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("HALYARD_TEST_REAL_TEXTS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: HALYARD_TEST_REAL_TEXTS names no folder of tests/fixtures/text/real/fetch");
    }
    folder
}

fn goldens(folder: &Path) -> Goldens {
    let bytes = std::fs::read(folder.join("goldens.json")).expect("make.py has written the goldens");
    serde_json::from_slice(&bytes).expect("goldens")
}

/// Fails unless `found` are the differences of this kind that `known.json` names, each with its reason.
fn only_known(found: &BTreeMap<String, String>, kind: &str) {
    for (name, difference) in found {
        println!("{name}: {difference}");
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/text/real/known.json");
    let bytes = std::fs::read(path).expect("the list is committed");
    let known: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_slice(&bytes).expect("a list");
    let names: Vec<&String> = found.keys().collect();
    let expected: Vec<&String> = known[kind].keys().collect();
    assert_eq!(names, expected, "differences, and those that are known");
}

#[test]
fn tokenizers_give_the_ids_of_hugging_face() {
    let Some(folder) = folder() else { return };
    let mut found = BTreeMap::new();
    let mut num_ids = 0;
    for (name, cases) in goldens(&folder).tokenizers {
        let path = folder.join("tokenizers").join(&name).join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&path).expect("the tokenizer is served");
        for case in cases {
            let ids = tokenizer.encode(&case.text, case.special).expect("encodes");
            num_ids += ids.len();
            if ids != case.ids {
                found.insert(name.clone(), format!("{:?}: {ids:?}, not {:?}", case.text, case.ids));
            }
        }
    }
    println!("{num_ids} ids compared");
    only_known(&found, "tokenizers");
}

fn vocabulary(path: &Path) -> Result<Tokenizer, TextError> {
    let file = GgufFile::open(path).expect("a GGUF file");
    let data = GgufTokenizerData::read(&file).expect("a tokenizer");
    Tokenizer::from_gguf(&GgufTokenizer {
        model: data.model,
        pre: data.pre,
        tokens: data.tokens,
        scores: data.scores,
        token_types: data.token_types,
        merges: data.merges,
        bos_id: data.bos,
        eos_id: data.eos,
        pad_id: data.pad,
        unk_id: data.unk,
        add_bos: data.add_bos,
        add_eos: data.add_eos,
        add_space_prefix: data.add_space_prefix,
    })
}

#[test]
fn vocabularies_of_gguf_files_give_the_ids_of_llama_cpp() {
    let Some(folder) = folder() else { return };
    let mut found = BTreeMap::new();
    let (mut num_files, mut num_ids) = (0, 0);
    for entry in std::fs::read_dir(folder.join("vocabularies")).expect("fetched") {
        let path = entry.expect("readable").path();
        let texts = path.with_extension("gguf.inp");
        if path.extension().is_none_or(|extension| extension != "gguf") || !texts.exists() {
            continue;
        }
        num_files += 1;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let tokenizer = match vocabulary(&path) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                found.insert(name, error.to_string());
                continue;
            }
        };
        let texts = std::fs::read_to_string(texts).expect("texts");
        let ids = std::fs::read_to_string(path.with_extension("gguf.out")).expect("ids");
        for (text, line) in texts.split("\n__ggml_vocab_test__\n").zip(ids.lines()) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            let ids = tokenizer.encode(text, false).expect("encodes");
            num_ids += ids.len();
            if ids != expected {
                found.insert(name.clone(), format!("{text:?}: {ids:?}, not {expected:?}"));
            }
        }
    }
    println!("{num_files} vocabularies, {num_ids} ids compared");
    only_known(&found, "vocabularies");
}

fn special_tokens() -> SpecialTokens {
    SpecialTokens {
        bos_token: Some("<BOS>".to_owned()),
        eos_token: Some("<EOS>".to_owned()),
        ..SpecialTokens::default()
    }
}

fn render(template: &ChatTemplate, chat: &Chat, unix_seconds: i64) -> Result<String, TextError> {
    template.render(&ChatInput {
        messages: &chat.messages,
        tools: chat.tools.as_ref(),
        add_generation_prompt: chat.prompt,
        extra: Some(&chat.extra),
        now: Some(LocalTime {
            unix_seconds,
            utc_offset_seconds: 0,
        }),
        ..ChatInput::default()
    })
}

/// Where two texts part, or the error.
fn difference(rendered: &Result<String, TextError>, expected: &Value) -> String {
    let (Ok(rendered), Some(expected)) = (rendered, expected.as_str()) else {
        return format!("{rendered:?}, not {expected}").chars().take(400).collect();
    };
    let shared = rendered
        .chars()
        .zip(expected.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let around = |text: &str| {
        text.chars()
            .skip(shared.saturating_sub(30))
            .take(110)
            .collect::<String>()
    };
    format!("{:?}, not {:?}", around(rendered), around(expected))
}

#[test]
fn chat_templates_render_as_transformers_renders_them() {
    let Some(folder) = folder() else { return };
    let mut found = BTreeMap::new();
    let (mut num_texts, mut num_refused) = (0, 0);
    let goldens = goldens(&folder);
    for (name, golden) in goldens.templates {
        let template = match ChatTemplate::new(&golden.source, &special_tokens()) {
            Ok(template) => template,
            Err(error) => {
                found.insert(name, error.to_string());
                continue;
            }
        };
        for chat in &golden.chats {
            let rendered = render(&template, chat, goldens.now);
            let same = match (&chat.text, &rendered) {
                (Value::String(text), Ok(rendered)) => text == rendered,
                (Value::Object(_), Err(_)) => {
                    num_refused += 1;
                    true
                }
                _ => false,
            };
            num_texts += 1;
            if !same {
                found.insert(
                    name.clone(),
                    format!("{}: {}", chat.case, difference(&rendered, &chat.text)),
                );
            }
        }
    }
    println!("{num_texts} chats compared, {num_refused} refused by both");
    only_known(&found, "templates");
}

/// The calls in events, or what is wrong with one.
fn calls(events: &[AnswerEvent]) -> Result<Vec<(String, Value)>, String> {
    let mut called: Vec<(String, String)> = Vec::new();
    for event in events {
        match event {
            AnswerEvent::CallStart { name, .. } => called.push((name.clone(), String::new())),
            AnswerEvent::Arguments(more) => called.last_mut().ok_or("arguments without a call")?.1.push_str(more),
            AnswerEvent::CallEnd { fault: Some(fault) } => return Err(format!("{fault:?}")),
            _ => {}
        }
    }
    called
        .into_iter()
        .map(|(name, arguments)| {
            serde_json::from_str(&arguments)
                .map(|value| (name, value))
                .map_err(|error| format!("{arguments}: {error}"))
        })
        .collect()
}

fn asked(chat: &Chat) -> Vec<(String, Value)> {
    let asked = chat
        .messages
        .last()
        .and_then(|message| message["tool_calls"].as_array());
    asked
        .into_iter()
        .flatten()
        .map(|call| {
            let function = &call["function"];
            (
                function["name"].as_str().unwrap_or_default().to_owned(),
                function["arguments"].clone(),
            )
        })
        .collect()
}

/// Formats of templates that show no marker of theirs.
const NAMED: &[(&str, &str)] = &[
    ("tool_chat_template_xlam_llama", "xlam"),
    ("tool_chat_template_xlam_qwen", "xlam"),
];

#[test]
fn calls_that_chat_templates_write_are_read_back() {
    let Some(folder) = folder() else { return };
    let mut found = BTreeMap::new();
    let mut read: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, golden) in goldens(&folder).templates {
        let named = |case: &str| golden.chats.iter().find(|chat| chat.case == case).expect("a case");
        let Some(prompt) = named("tools").text.as_str() else {
            continue;
        };
        let (proposed, reasoning) = propose_formats(&golden.source);
        let named_by_hand = NAMED
            .iter()
            .find(|(template, _)| *template == name)
            .map(|&(_, tools)| tools);
        let tools = proposed.or(named_by_hand);
        for case in ["called", "called twice"] {
            let chat = named(case);
            let Some(whole) = chat.text.as_str() else { continue };
            if !whole.contains("Basel") {
                continue;
            }
            let Some(tools) = tools else {
                found.insert(name.clone(), "no format is proposed".to_owned());
                continue;
            };
            // Where the prompt holds more than the history has (an opened thought), what both share is the prompt.
            let shared = whole
                .char_indices()
                .zip(prompt.chars())
                .take_while(|((_, a), b)| a == b);
            let mut start = shared.last().map_or(0, |((place, a), _)| place + a.len_utf8());
            if start < prompt.len()
                && let Some(marker) = whole[..start].rfind('<')
                && !whole[marker..start].contains('>')
            {
                start = marker;
            }
            let format = AnswerFormat::new(Some(tools), reasoning).expect("known names");
            let types = ToolTypes::new(chat.tools.as_ref().and_then(Value::as_array).expect("tools")).into();
            let mut events = Vec::new();
            let mut parser = AnswerParser::new(&format, &types, Some(false));
            parser.push(&whole[start..], &mut events);
            parser.finish(&mut events);
            match calls(&events) {
                Ok(called) if called == asked(chat) => {
                    let names = read.entry(tools).or_default();
                    if names.last() != Some(&name) {
                        names.push(name.clone());
                    }
                }
                Ok(called) => {
                    found.insert(
                        format!("{name}, {case}"),
                        format!("{tools}: {called:?} of {:?}", &whole[start..]),
                    );
                }
                Err(fault) => {
                    found.insert(
                        format!("{name}, {case}"),
                        format!("{tools}: {fault} in {:?}", &whole[start..]),
                    );
                }
            }
        }
    }
    for (format, templates) in &read {
        println!("{format}: {}", templates.join(", "));
    }
    only_known(&found, "calls");
}
