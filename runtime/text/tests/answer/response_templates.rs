//! `hf`: answers read by a model's response template, as Transformers reads them, however they are cut.

use std::sync::Arc;

use halyard_text::{AnswerEvent, AnswerFormat, AnswerParser, ResponseTemplate, ToolTypes};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{joined, noted};

const GOLDEN: &str = include_str!("../golden/response_templates.json");

#[derive(Deserialize)]
struct Golden {
    templates: Map<String, Value>,
    tools: Vec<Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    prompt: String,
    text: String,
    tools: bool,
    /// What Transformers makes of it; none where it gives up.
    message: Option<Value>,
    events: Option<Vec<Vec<Value>>>,
}

fn golden() -> Golden {
    serde_json::from_str(GOLDEN).expect("a golden")
}

fn template(value: &Value) -> Arc<ResponseTemplate> {
    Arc::new(ResponseTemplate::new(&value.to_string()).expect("a template"))
}

/// A format that reads all that the template says.
fn format(template: &Arc<ResponseTemplate>) -> AnswerFormat {
    AnswerFormat::by_template(template, template.has_calls(), template.has_thinking()).expect("it has what it has")
}

fn parse<'a>(at_start: &AnswerParser, pieces: impl IntoIterator<Item = &'a str>) -> Vec<AnswerEvent> {
    let mut parser = at_start.clone();
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut events);
    }
    parser.finish(&mut events);
    joined(events)
}

/// The events of the whole, after a comparison with each cut in two, with single characters and with random cuts.
fn parse_all_cuts(at_start: &AnswerParser, text: &str, num_cuts: &mut usize) -> Vec<AnswerEvent> {
    let whole = parse(at_start, [text]);
    let mut seed = 65_u64;
    let mut check = |pieces: &[&str]| {
        *num_cuts += 1;
        let cut = parse(at_start, pieces.iter().copied());
        assert_eq!(cut, whole, "{text:?} as {pieces:?}");
    };
    for (place, _) in text.char_indices() {
        check(&[&text[..place], &text[place..]]);
    }
    check(&text.split_inclusive(|_: char| true).collect::<Vec<_>>());
    for _ in 0..8 {
        let pieces: Vec<&str> = text
            .split_inclusive(|_: char| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33).is_multiple_of(6)
            })
            .collect();
        check(&pieces);
    }
    whole
}

/// Events in the form of the golden: white space around texts says nothing, arguments are values.
fn folded(events: &[AnswerEvent]) -> Vec<Vec<Value>> {
    let mut out: Vec<Vec<Value>> = Vec::new();
    let mut call = None;
    for event in events {
        match event {
            AnswerEvent::Text(text) => out.push(vec![json!("content"), json!(text.trim())]),
            AnswerEvent::Reasoning(text) => out.push(vec![json!("thinking"), json!(text.trim())]),
            AnswerEvent::CallStart { name, .. } => call = Some((name.clone(), String::new())),
            AnswerEvent::Arguments(text) => call.as_mut().expect("in a call").1.push_str(text),
            AnswerEvent::CallEnd { fault } => {
                let (name, arguments) = call.take().expect("in a call");
                let arguments = match fault {
                    None => serde_json::from_str(&arguments).expect("no fault, so it is JSON"),
                    Some(fault) => json!(format!("{fault:?}: {arguments}")),
                };
                out.push(vec![json!("call"), json!(name), arguments]);
            }
        }
    }
    out
}

#[test]
fn answers_are_read_as_transformers_reads_them_however_they_are_cut() {
    let golden = golden();
    let types = [Arc::default(), Arc::new(ToolTypes::new(&golden.tools))];
    let (mut num_cases, mut num_cuts, mut num_given_up) = (0, 0, 0);
    let mut failures = Vec::new();
    for case in &golden.cases {
        let format = format(&template(&golden.templates[&case.template]));
        let at_start = AnswerParser::after(&format, &types[usize::from(case.tools)], &case.prompt);
        let is = folded(&parse_all_cuts(&at_start, &case.text, &mut num_cuts));
        num_cases += 1;
        let Some(want) = &case.events else {
            num_given_up += 1;
            let is_whole = |event: &&Vec<Value>| event[0] == "call" && event[2].is_object();
            if is.iter().any(|event| is_whole(&event)) {
                failures.push(format!("{}: {:?}\n  is a whole call: {is:?}", case.template, case.text));
            }
            continue;
        };
        let mut trimmed = Vec::new();
        for event in want {
            let mut event = event.clone();
            if let (true, Value::String(text)) = (event[0] != "call", &mut event[1]) {
                *text = text.trim().to_owned();
                if text.is_empty() {
                    continue;
                }
            }
            trimmed.push(event);
        }
        if is != trimmed {
            failures.push(format!(
                "{}: {:?} {:?}\n  is   {is:?}\n  want {trimmed:?}",
                case.template, case.prompt, case.text
            ));
        }
        // The message itself, where each field comes once.
        let message = case.message.as_ref().expect("with events");
        for field in ["thinking", "content"] {
            let mut texts = is.iter().filter(|event| event[0] == field);
            let (first, second) = (texts.next(), texts.next());
            if let (Some(text), Some(first), None) = (message[field].as_str(), first, second)
                && case.prompt.is_empty()
                && !first[1].as_str().is_some_and(|is| is.contains(text.trim()))
            {
                failures.push(format!(
                    "{}: {:?}: {field} is {first:?}, not {text:?}",
                    case.template, case.text
                ));
            }
        }
        let calls: Vec<&Vec<Value>> = is.iter().filter(|event| event[0] == "call").collect();
        let wanted = message["tool_calls"].as_array().map_or(0, Vec::len);
        if case.template != "listed" && calls.len() != wanted && case.prompt.is_empty() {
            failures.push(format!("{}: {:?}: {} calls", case.template, case.text, calls.len()));
        }
    }
    println!("{num_cases} cases, {num_cuts} cuts, {num_given_up} given up by Transformers");
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
    assert!(num_cases > 70 && num_cuts > 5_000);
}

const TAGGED: &str = r#"{"start_anchor": "<|im_start|>assistant\n", "fields": {
    "thinking": {"open": "<think>", "close": "</think>"},
    "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "repeats": true, "content": "json",
        "transform": {"type": "function", "function": "{content}"}},
    "content": {"close": "<|im_end|>"}}}"#;

#[test]
fn what_is_not_asked_for_is_text_markers_and_all() {
    let template = Arc::new(ResponseTemplate::new(TAGGED).expect("a template"));
    let text = "<think>a</think>b<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let events = |calls: bool, reasoning: bool| {
        let format = AnswerFormat::by_template(&template, calls, reasoning).expect("it has both");
        noted(&parse_all_cuts(
            &AnswerParser::after(&format, &Arc::default(), ""),
            text,
            &mut 0,
        ))
    };
    assert_eq!(events(true, true), ["R:a", "T:b", "C:f", "A:{}", "E"]);
    assert_eq!(events(true, false), ["T:<think>a</think>b", "C:f", "A:{}", "E"]);
    let raw = "T:b<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    assert_eq!(events(false, true), ["R:a", raw]);
    assert_eq!(events(false, false), [format!("T:{text}")]);
    let format = AnswerFormat::by_template(&template, true, true)
        .expect("it has both")
        .without_tools();
    assert_eq!((format.tools(), format.reasoning()), (None, Some("hf")));
    let at_start = AnswerParser::after(&format, &Arc::default(), "");
    assert_eq!(noted(&parse(&at_start, [text])), ["R:a", raw]);
}

#[test]
fn the_prompt_says_where_the_answer_begins() {
    let format = format(&Arc::new(ResponseTemplate::new(TAGGED).expect("a template")));
    for (prompt, opened) in [
        ("<|im_start|>assistant\n<think>\n", Some(true)),
        ("<think><|im_start|>assistant\n<think>\n\n</think>\n\n", Some(false)),
        ("<think><|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<tool_call>", Some(false)),
    ] {
        assert_eq!(format.opened_by(prompt), opened, "{prompt:?}");
    }
    // The start of a delimiter in the prompt is no part of the answer.
    let at_start = AnswerParser::after(&format, &Arc::default(), "<|im_start|>assistant\n<thi");
    assert_eq!(noted(&parse(&at_start, ["nk>a</think>b"])), ["R:a", "T:b"]);
    assert_eq!(noted(&parse(&at_start, ["s"])), ["T:s"]);
}
