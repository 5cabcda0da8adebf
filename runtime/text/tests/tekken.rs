//! `tekken.json` against mistral-common: ids of texts, and prompts of chats in each version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use halyard_text::{ChatInput, ChatTemplate, SpecialTokens, Tekken, TextError};
use serde_json::{Value, json};

#[derive(serde::Deserialize)]
struct Version {
    file: Value,
    texts: Vec<Encoded>,
    chats: BTreeMap<String, Chat>,
}

#[derive(serde::Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<u32>,
}

#[derive(serde::Deserialize)]
struct Chat {
    messages: Vec<Value>,
    tools: Option<Value>,
    ids: Vec<u32>,
    text: String,
}

/// The versions with their files whole: one vocabulary serves all.
fn golden() -> BTreeMap<String, Version> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tekken.json");
    let bytes = std::fs::read(path).expect("the golden is committed");
    let mut versions: BTreeMap<String, Version> = serde_json::from_slice(&bytes).expect("a golden");
    let vocab = versions["v3"].file["vocab"].clone();
    for version in versions.values_mut() {
        version.file["vocab"] = vocab.clone();
    }
    versions
}

fn open(file: &Value) -> Result<Tekken, TextError> {
    Tekken::from_json(file.to_string().as_bytes(), "tekken.json")
}

#[test]
fn ids_and_prompts_are_mistral_common_s() {
    for (name, version) in golden() {
        let tekken = open(&version.file).expect("opens");
        for case in &version.texts {
            let ids = tekken.tokenizer().encode(&case.text, false).expect("encodes");
            assert_eq!(ids, case.ids, "{name}: {:?}", case.text);
            assert_eq!(
                tekken.tokenizer().decode(&ids, false).expect("decodes"),
                case.text,
                "{name}"
            );
        }
        let (bos, eos) = tekken.bos_and_eos();
        let special = SpecialTokens {
            bos_token: Some(bos.to_owned()),
            eos_token: Some(eos.to_owned()),
            ..SpecialTokens::default()
        };
        let source = tekken.chat_template().expect("a known version");
        let template = ChatTemplate::new(&source, &special).expect("a template");
        for (case, chat) in &version.chats {
            let input = ChatInput {
                messages: &chat.messages,
                tools: chat.tools.as_ref(),
                add_generation_prompt: true,
                ..ChatInput::default()
            };
            let prompt = template.render(&input).expect("renders");
            assert_eq!(prompt, chat.text, "{name}, {case}");
            assert_eq!(
                tekken.tokenizer().encode(&prompt, false).expect("encodes"),
                chat.ids,
                "{name}, {case}"
            );
        }
        println!("{name}: {} texts, {} chats", version.texts.len(), version.chats.len());
    }
}

#[test]
fn a_completion_s_prompt_begins_with_its_first_token() {
    let tekken = open(&golden()["v3"].file).expect("opens");
    let ids = tekken.tokenizer().encode("Hello world", true).expect("encodes");
    assert_eq!(ids[0], 1, "<s>");
    assert_eq!(
        ids[1..],
        tekken.tokenizer().encode("Hello world", false).expect("encodes")
    );
}

#[test]
fn a_damaged_file_is_refused_with_the_reason() {
    let whole = golden().remove("v11").expect("a version").file;
    let refusal = |change: &dyn Fn(&mut Value)| {
        let mut file = whole.clone();
        change(&mut file);
        open(&file).expect_err("is damaged").to_string()
    };
    for (change, words) in [
        (
            &(|file: &mut Value| file["config"]["pattern"] = json!("a+")) as &dyn Fn(&mut Value),
            "splits text by `a+`",
        ),
        (
            &|file| file["config"]["default_vocab_size"] = json!(1 << 30),
            "default_vocab_size is 1073741824; at most 1048576",
        ),
        (
            &|file| file["config"]["default_vocab_size"] = json!(10),
            "default_vocab_size 10 without 64 special tokens",
        ),
        (
            &|file| file["config"]["default_vocab_size"] = json!(100_000),
            "is not within its",
        ),
        (
            &|file| file["vocab"][3]["rank"] = json!(4),
            "token 3 says that its rank is 4",
        ),
        (&|file| file["vocab"][3]["token_bytes"] = json!("?"), "token 3: Invalid"),
        (
            &|file| file["vocab"][3]["token_bytes"] = json!(""),
            "token 3 has 0 bytes",
        ),
        (
            &|file| file["vocab"][300]["token_bytes"] = json!("QUJD".repeat(300)),
            "has 900 bytes; 1 to 512",
        ),
        (
            &|file| file["special_tokens"][2]["rank"] = json!(64),
            "has rank 64, of 64",
        ),
        (&|file| file["vocab"] = json!(null), "invalid type: null"),
    ] {
        let refusal = refusal(change);
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
}

#[test]
fn an_unknown_version_has_no_prompts() {
    let mut file = golden().remove("v3").expect("a version").file;
    file["config"]["version"] = json!("v99");
    assert_eq!(open(&file).expect("opens").chat_template(), None);
}

#[test]
fn vocabularies_that_mistral_ships_give_mistral_common_s_ids() {
    let Some(folder) = std::env::var_os("HALYARD_TEST_REAL_TEXTS").map(PathBuf::from) else {
        println!("skipped: HALYARD_TEST_REAL_TEXTS names no folder of tests/fixtures/text/real/fetch");
        return;
    };
    let bytes = std::fs::read(folder.join("tekken_goldens.json")).expect("make_tekken.py FOLDER has written it");
    let goldens: BTreeMap<String, Vec<Encoded>> = serde_json::from_slice(&bytes).expect("a golden");
    for (name, cases) in goldens {
        let start = std::time::Instant::now();
        let tekken = Tekken::open(&folder.join("tekken").join(Path::new(&name))).expect("opens");
        println!("{name}: opened in {:?}", start.elapsed());
        for case in cases {
            let ids = tekken.tokenizer().encode(&case.text, false).expect("encodes");
            assert_eq!(ids, case.ids, "{name}: {:?}", case.text);
        }
    }
}
