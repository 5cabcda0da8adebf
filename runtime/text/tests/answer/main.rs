//! The parser of answers: what each format's text means, and that no cut of the text changes it.

mod cases;
mod linear;
mod rarer_cases;
mod response_templates;
mod soup;
mod templates;
mod vllm;
mod writers;

use std::sync::Arc;

use halyard_text::{AnswerEvent, AnswerFormat, AnswerParser, CallFault, ToolTypes, tool_formats};
use serde_json::{Value, json};

/// Joins neighbours of one kind.
fn joined(events: Vec<AnswerEvent>) -> Vec<AnswerEvent> {
    let mut out: Vec<AnswerEvent> = Vec::new();
    for event in events {
        match (out.last_mut(), event) {
            (Some(AnswerEvent::Text(last)), AnswerEvent::Text(more))
            | (Some(AnswerEvent::Reasoning(last)), AnswerEvent::Reasoning(more))
            | (Some(AnswerEvent::Arguments(last)), AnswerEvent::Arguments(more)) => last.push_str(&more),
            (_, event) => out.push(event),
        }
    }
    out
}

fn parse<'a>(subject: &Subject, pieces: impl IntoIterator<Item = &'a str>) -> Vec<AnswerEvent> {
    let mut parser = AnswerParser::new(&subject.format, &subject.types, subject.in_reasoning);
    let mut out = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut out);
    }
    parser.finish(&mut out);
    let empty = |event: &AnswerEvent| match event {
        AnswerEvent::Text(text) | AnswerEvent::Reasoning(text) | AnswerEvent::Arguments(text) => text.is_empty(),
        AnswerEvent::CallStart { .. } | AnswerEvent::CallEnd { .. } => false,
    };
    assert!(!out.iter().any(empty), "an empty event: {out:?}");
    joined(out)
}

/// What is parsed, but for the text.
struct Subject {
    format: AnswerFormat,
    types: Arc<ToolTypes>,
    in_reasoning: Option<bool>,
}

impl Subject {
    fn new(tools: &str, reasoning: &str, in_reasoning: Option<bool>) -> Self {
        let named = |name: &'_ str| (!name.is_empty()).then(|| name.to_owned());
        Self {
            format: AnswerFormat::new(named(tools).as_deref(), named(reasoning).as_deref()).expect("known names"),
            types: Arc::new(ToolTypes::new(&writers::tools())),
            in_reasoning,
        }
    }
}

/// Parses in every way to cut the text and compares with the whole. Returns the events of the whole and the number of
/// cuts.
fn parse_all_cuts(subject: &Subject, text: &str, seed: &mut u64) -> (Vec<AnswerEvent>, usize) {
    let whole = parse(subject, [text]);
    let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
    let mut num_cuts = 0;
    let mut check = |pieces: Vec<&str>| {
        num_cuts += 1;
        let cut = parse(subject, pieces.iter().copied());
        assert_eq!(
            cut, whole,
            "cut differs from whole\n text: {text:?}\n pieces: {pieces:?}"
        );
    };
    for &place in &places {
        check(vec![&text[..place], &text[place..]]);
    }
    check(text.split_inclusive(|_: char| true).collect());
    for _ in 0..12 {
        let mut pieces = Vec::new();
        let mut start = 0;
        for &place in &places {
            *seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            if (*seed >> 33).is_multiple_of(5) {
                pieces.push(&text[start..place]);
                start = place;
            }
        }
        pieces.push(&text[start..]);
        check(pieces);
    }
    (whole, num_cuts)
}

/// Events in the notation of the tables.
fn noted(events: &[AnswerEvent]) -> Vec<String> {
    let note = |event: &AnswerEvent| match event {
        AnswerEvent::Text(text) => format!("T:{text}"),
        AnswerEvent::Reasoning(text) => format!("R:{text}"),
        AnswerEvent::CallStart { name, id: None } => format!("C:{name}"),
        AnswerEvent::CallStart { name, id: Some(id) } => format!("C:{name}#{id}"),
        AnswerEvent::Arguments(text) => format!("A:{text}"),
        AnswerEvent::CallEnd { fault: None } => "E".to_owned(),
        AnswerEvent::CallEnd {
            fault: Some(CallFault::CutOff),
        } => "E:cut off".to_owned(),
        AnswerEvent::CallEnd { fault: Some(_) } => "E:no JSON".to_owned(),
    };
    events.iter().map(note).collect()
}

#[test]
fn every_case_of_the_table_means_what_it_says_however_it_is_cut() {
    let mut seed = 21;
    let (mut num_cases, mut num_cuts) = (0, 0);
    let mut failures = Vec::new();
    for case in cases::CASES.iter().chain(rarer_cases::CASES) {
        for tools in case.tools.split(' ') {
            let subject = Subject::new(tools, case.reasoning, case.in_reasoning);
            let (events, cuts) = parse_all_cuts(&subject, case.text, &mut seed);
            num_cases += 1;
            num_cuts += cuts;
            if noted(&events) != case.events {
                failures.push(format!(
                    "{tools}: {:?}\n  is   {:?}\n  want {:?}",
                    case.text,
                    noted(&events),
                    case.events
                ));
            }
        }
    }
    println!("{num_cases} cases of the table, {num_cuts} cuts");
    assert!(
        failures.is_empty(),
        "{} of {num_cases}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Calls of one answer, and how the writers write them.
fn answers() -> Vec<Vec<(&'static str, Value)>> {
    vec![
        vec![("get_weather", json!({"city": "Paris"}))],
        vec![
            ("get_weather", json!({"city": "Paris"})),
            ("get_time", json!({"zone": "CET", "utc": true})),
        ],
        vec![("get_time", json!({}))],
        vec![
            ("get_time", json!({})),
            ("get_time", json!({})),
            ("get_weather", json!({"city": "x"})),
        ],
        vec![(
            "write",
            json!({"text": "He said \"hi\",\n\tthen C:\\dir — é 日本 😀 'quoted' {a: [b]} </b> a=1, b"}),
        )],
        vec![("write", json!({"text": "", "path": "/tmp/a b.txt"}))],
        vec![(
            "count",
            json!({"n": 5, "ratio": 1.5, "ok": true, "none": null, "list": [1, [2, {"a": "b"}], []],
            "object": {"a": {"b": "c, d: e"}, "empty": {}}}),
        )],
        vec![
            ("count", json!({"n": -3, "list": ["x, y", "(z)", "]"]})),
            ("write", json!({"text": "line\n\nline\n"})),
        ],
    ]
}

#[test]
fn what_a_writer_of_each_format_writes_is_read_back_however_it_is_cut() {
    let mut seed = 55;
    let (mut num_cases, mut num_cuts) = (0, 0);
    let mut failures = Vec::new();
    for tools in tool_formats() {
        let writer = writers::writer(tools);
        for calls in answers() {
            for (before, after) in [
                ("", ""),
                ("Let me look.\n", ""),
                ("", " Done."),
                ("A [b] {c} <d>\n\n", "\nSo."),
            ] {
                if writer.bare && !before.is_empty() || writer.last && !after.is_empty() {
                    continue;
                }
                for reasoning in ["", "I think so.\n"] {
                    let thinks = if reasoning.is_empty() { "" } else { writer.reasoning };
                    let subject = Subject::new(tools, thinks, Some(false));
                    let written = (writer.calls)(&calls);
                    let text = (writer.answer)(reasoning, before, &written, after);
                    let (events, cuts) = parse_all_cuts(&subject, &text, &mut seed);
                    num_cases += 1;
                    num_cuts += cuts;
                    let mut want = Vec::new();
                    if !reasoning.is_empty() {
                        want.push(format!("R:{reasoning}"));
                    }
                    if !before.is_empty() {
                        want.push(format!("T:{before}"));
                    }
                    for (name, arguments) in &calls {
                        let mut arguments = arguments.clone();
                        for value in arguments.as_object_mut().expect("an object").values_mut() {
                            match value {
                                Value::String(text) if writer.trims => *text = text.trim().to_owned(),
                                Value::Array(items) if tools == "minimax_m3" => {
                                    items.iter_mut().for_each(|item| *item = writers::as_elements(item));
                                }
                                Value::Object(fields) if tools == "minimax_m3" => {
                                    fields.values_mut().for_each(|item| *item = writers::as_elements(item));
                                }
                                _ => {}
                            }
                        }
                        want.extend([format!("C:{name}"), format!("A:{arguments}"), "E".to_owned()]);
                    }
                    if !after.is_empty() {
                        want.push(format!("T:{after}"));
                    }
                    let is = noted(&events).into_iter().map(|note| match note.split_once(':') {
                        // Arguments byte for byte where the format has JSON, as values where it has something else.
                        Some(("A", arguments)) if !writer.exact => {
                            let value: Value = serde_json::from_str(arguments).unwrap_or_default();
                            format!("A:{value}")
                        }
                        Some(("C", name)) => format!("C:{}", name.split('#').next().unwrap_or_default()),
                        _ => note,
                    });
                    let is: Vec<_> = is.collect();
                    if is != want {
                        failures.push(format!("{tools}: {text:?}\n  is   {is:?}\n  want {want:?}"));
                    }
                }
            }
        }
    }
    println!("{num_cases} written answers, {num_cuts} cuts");
    assert!(
        failures.is_empty(),
        "{} of {num_cases}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(num_cases > 1000 && num_cuts > 100_000);
}

/// Whatever the text, each of its characters is in an event, or in a marker.
#[test]
fn without_formats_all_text_is_text() {
    let subject = Subject::new("", "", None);
    for case in cases::CASES.iter().chain(rarer_cases::CASES) {
        let events = parse(&subject, case.text.split_inclusive(' '));
        let want = if case.text.is_empty() {
            vec![]
        } else {
            vec![AnswerEvent::Text(case.text.to_owned())]
        };
        assert_eq!(events, want);
    }
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let error = AnswerFormat::new(Some("hermess"), None)
        .expect_err("no such format")
        .to_string();
    assert!(
        error.contains("tool call") && error.contains("'hermess'") && error.contains("hermes, "),
        "{error}"
    );
    let error = AnswerFormat::new(None, Some("hermes"))
        .expect_err("no such format")
        .to_string();
    assert!(
        error.contains("reasoning") && error.contains("deepseek_r1, "),
        "{error}"
    );
}
