//! Answers as vLLM's own parsers read them (`tests/fixtures/text/make_vllm_answers.py`).

use std::sync::Arc;

use halyard_text::{AnswerEvent, AnswerFormat, Tokenizer, ToolTypes};
use serde::Deserialize;
use serde_json::Value;

use super::{Subject, parse_all_cuts};

#[derive(Deserialize)]
struct Golden {
    tools: Vec<Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    tools: String,
    parser: String,
    suffix: String,
    text: String,
    reasoning: String,
    content: String,
    calls: Vec<(String, Value)>,
}

/// Numbers without their form: vLLM writes `5.0` where this writes `5`.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), plain(value))).collect(),
        other => other.clone(),
    }
}

/// Reasoning, content and calls, without white space around texts.
fn folded(events: &[AnswerEvent]) -> (String, String, Vec<(String, Value)>) {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::<(String, String)>::new());
    for event in events {
        match event {
            AnswerEvent::Text(text) => content.push_str(text),
            AnswerEvent::Reasoning(text) => reasoning.push_str(text),
            AnswerEvent::CallStart { name, .. } => calls.push((name.clone(), String::new())),
            AnswerEvent::Arguments(text) => calls.last_mut().expect("in a call").1.push_str(text),
            AnswerEvent::CallEnd { .. } => {}
        }
    }
    let read = |(name, arguments): (String, String)| {
        let value = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
        (name, plain(&value))
    };
    let calls = calls.into_iter().map(read).collect();
    (reasoning.trim().to_owned(), content.trim().to_owned(), calls)
}

#[test]
fn answers_are_read_as_vllm_reads_them_however_they_are_cut() {
    let golden: Golden = serde_json::from_str(include_str!("../golden/vllm_answers.json")).expect("the golden");
    let types = Arc::new(ToolTypes::new(&golden.tools));
    let (mut seed, mut num_cuts, mut num_others) = (7, 0, 0);
    let mut failures = Vec::new();
    for case in &golden.cases {
        let format = AnswerFormat::new(Some(&case.tools), Some(&case.parser)).expect("known names");
        // The prompt opens reasoning where the answer closes it without having opened it.
        let is_closed = |text: &str| text.contains("</think") || text.contains("</ifm|think");
        let opens = ["<think", "<ifm|think", "<mm:think", "</mm:think"];
        let subject = Subject {
            format: format.with_marker_suffix(&case.suffix),
            types: Arc::clone(&types),
            in_reasoning: (is_closed(&case.text) && !opens.iter().any(|open| case.text.starts_with(open)))
                .then_some(true),
        };
        let (events, cuts) = parse_all_cuts(&subject, &case.text, &mut seed);
        num_cuts += cuts;
        let is = folded(&events);
        let calls = case
            .calls
            .iter()
            .map(|(name, arguments)| (name.clone(), plain(arguments)));
        // vLLM shows the header that follows a thought without an end.
        let reasoning = case.reasoning.strip_suffix("<|start|>assistant");
        num_others += usize::from(reasoning.is_some());
        let reasoning = reasoning.unwrap_or(&case.reasoning).to_owned();
        let want = (reasoning, case.content.clone(), calls.collect());
        if is != want {
            failures.push(format!(
                "{}: {:?}\n  is   {is:?}\n  want {want:?}",
                case.tools, case.text
            ));
        }
    }
    println!("{} answers, {num_cuts} cuts", golden.cases.len());
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        golden.cases.len(),
        failures.join("\n")
    );
    assert_eq!(num_others, 1, "answers that are read otherwise");
    assert!(golden.cases.len() > 300 && num_cuts > 40_000);
}

#[test]
fn markers_have_the_suffix_that_the_vocabulary_has() {
    let tokenizer = |suffix: &str| {
        let json = serde_json::json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [
            {"id": 1, "content": "<other:y>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false},
            {"id": 2, "content": format!("<tool_call{suffix}>"), "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false}]});
        Tokenizer::from_json(json.to_string().as_bytes(), "here").expect("a tokenizer")
    };
    for (suffix, marker) in [
        (":opensource", "</think:opensource>"),
        ("", "</think>"),
        (":", "</think>"),
    ] {
        for name in ["hy_v3", "hy_v4"] {
            let format = AnswerFormat::new(Some(name), Some(name)).expect("known");
            let format = format.for_tokenizer(&tokenizer(suffix));
            assert_eq!(format.reasoning_markers().1, [marker], "{suffix}");
            let section = marker.replace("</think", "<tool_calls");
            assert!(format.reads_special(&section), "{section}");
            assert_eq!((format.tools(), format.reasoning()), (Some(name), Some(name)));
        }
    }
    let other = AnswerFormat::new(Some("hermes"), Some("qwen3")).expect("known");
    assert_eq!(
        other.for_tokenizer(&tokenizer(":x")).reasoning_markers().1,
        ["</think>"]
    );
}
