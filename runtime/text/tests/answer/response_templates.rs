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
            // Here it is text, or a call with a fault.
            let says_so = |event: &Vec<Value>| event[0] == "content" || event[0] == "call" && event[2].is_string();
            if !is.iter().any(says_so) {
                failures.push(format!(
                    "{}: {:?}\n  is not told from a whole answer: {is:?}",
                    case.template, case.text
                ));
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

/// Answers that Transformers gives up, and others that are worth seeing: the template, the text, the events.
const WRITTEN: &[(&str, &str, &[&str])] = &[
    (
        "tagged",
        "<tool_call>no JSON</tool_call> so",
        &["T:<tool_call>no JSON</tool_call> so"],
    ),
    (
        "tagged",
        r#"<tool_call>{"a": 1}</tool_call>"#,
        &[r#"T:<tool_call>{"a": 1}</tool_call>"#],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "argu"#,
        &[r#"T:<tool_call>{"name": "f", "argu"#],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "arguments": {"a": "x</tool_call>"#,
        &["C:f", r#"A:{"a": "x</tool_call>"#, "E:cut off"],
    ),
    (
        "tagged",
        r#"a<tool_call>{"name": "f", "arguments": {"a": "</tool_call>", "b":  1.50}}</tool_call>b"#,
        &["T:a", "C:f", r#"A:{"a": "</tool_call>", "b":  1.50}"#, "E", "T:b"],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>b"#,
        &["C:f", r#"A:{"a": }"#, "E:no JSON", "T:b"],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>b"#,
        &["C:f", r#"A:{"a": 1"#, "E:no JSON", "T:b"],
    ),
    (
        "tagged",
        r#"<tool_call>{"id": 7, "arguments": {"a": [1]}, "name": "f", "x": "}"} </tool_call>"#,
        &["C:f", r#"A:{"a": [1]}"#, "E"],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "arguments": {}}}</tool_call> b"#,
        &["C:f", "A:{}", "E", "T:} b"],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}"#,
        &["C:f", r#"A:{"a": 1}"#, "E"],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#,
        &["C:f", "A:[1]", "E:no JSON"],
    ),
    (
        "tagged",
        r#"<tool_call>{"name": "f", "arguments": null}</tool_call>"#,
        &[r#"T:<tool_call>{"name": "f", "arguments": null}</tool_call>"#],
    ),
    (
        "tagged",
        "<think>a<tool_call>b</think> <think> c",
        &["R:a<tool_call>b c"],
    ),
    (
        "other_quotes",
        "<|tool_call>call:f null<tool_call|>!",
        &["T:<|tool_call>call:f null<tool_call|>!"],
    ),
    // White space that a pattern takes is no text.
    ("tagged_patterns", "<think>\n a \n</think>\n\nb c", &["R:a", "T:b c"]),
    (
        "listed",
        r#"<|START_ACTION|>[{"tool_name": "f", "parameters": {"n": 1}}, {"tool_name": "g", "par"#,
        &["C:f", r#"A:{"n": 1}"#, "E", r#"T:, {"tool_name": "g", "par"#],
    ),
    ("listed", "no markers", &["T:no markers"]),
    (
        "channels",
        r#"<|channel|>commentary to=functions.f<|message|>{"n": 1, "s"#,
        &["C:f", r#"A:{"n": 1, "s"#, "E:cut off"],
    ),
    (
        "channels",
        r#"<|channel|>commentary to=functions.f<|message|> {"s": "<|call|>"} <|call|>"#,
        &["C:f", r#"A:{"s": "<|call|>"}"#, "E"],
    ),
    (
        "parameters",
        "<tool_call><function=g><parameter=a>x</parameter><parameter=b>yz",
        &["C:g", r#"A:{"a": "x""#, "E:cut off", "T:<parameter=b>yz"],
    ),
    ("parameters", "<tool_call><function=g>", &["C:g", "A:{}", "E"]),
    (
        "other_quotes",
        "<|tool_call>call:f{n:}<tool_call|>!",
        &["T:<|tool_call>call:f{n:}<tool_call|>!"],
    ),
];

#[test]
fn what_is_wrong_becomes_text_or_a_fault() {
    let golden = golden();
    let mut failures = Vec::new();
    for (name, text, want) in WRITTEN {
        let format = format(&template(&golden.templates[*name]));
        let is = noted(&parse_all_cuts(
            &AnswerParser::after(&format, &Arc::default(), ""),
            text,
            &mut 0,
        ));
        if is != *want {
            failures.push(format!("{name}: {text:?}\n  is   {is:?}\n  want {want:?}"));
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_call_in_json_leaves_as_it_comes() {
    let format = format(&Arc::new(ResponseTemplate::new(TAGGED).expect("a template")));
    let mut parser = AnswerParser::after(&format, &Arc::default(), "");
    let mut events = Vec::new();
    parser.push(
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"once </tool",
        &mut events,
    );
    assert_eq!(noted(&joined(events)), ["C:f", "A:{\"text\": \"once "]);
}

#[test]
fn of_delimiters_at_one_place_the_longest_counts_and_empty_ones_open_and_close() {
    let events = |fields: &str, text: &str| {
        let template = ResponseTemplate::new(&format!(
            r#"{{"start_anchor": "A:", "fields": {{{fields}, "content": {{}}}}}}"#
        ));
        let format = format(&Arc::new(template.expect("a template")));
        noted(&parse_all_cuts(
            &AnswerParser::after(&format, &Arc::default(), ""),
            text,
            &mut 0,
        ))
    };
    let nested = r#""thinking": {"open": "<t>", "close": "</t>"}, "tool_calls": {"open": "<t><c>", "close": "</c>",
        "repeats": true, "content": "json", "transform": {"type": "function", "function": "{content}"}}"#;
    assert_eq!(
        events(nested, r#"<t><c>{"name": "f", "arguments": {}}</c>"#),
        ["C:f", "A:{}", "E"]
    );
    assert_eq!(events(nested, "<t>a</t>b"), ["R:a", "T:b"]);
    let empty = r#""thinking": {"open_pattern": "^", "close_pattern": "(?=<r>)"}"#;
    assert_eq!(events(empty, "a<r>b"), ["R:a", "T:<r>b"]);
    assert_eq!(events(empty, "<r>b"), ["T:<r>b"]);
}

/// What is refused, with the words that say why.
const REFUSED: &[(&str, &str)] = &[
    ("[]", "no JSON object"),
    (r#"{"fields": {"content": {}}}"#, "neither start_anchor nor"),
    (
        r#"{"start_anchor": "a", "start_anchor_pattern": "a", "fields": {"content": {}}}"#,
        "both start_anchor and",
    ),
    (r#"{"start_anchor": "a"}"#, "no fields"),
    (
        r#"{"start_anchor": "a", "fields": {"content": {}}, "version": 2}"#,
        "version is 2",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {}}, "more": 1}"#,
        "'more'",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {}, "citations": {"open": "a"}}}"#,
        "'citations'",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {}}, "defaults": {"citations": 1}}"#,
        "'citations'",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {}, "thinking": {}}}"#,
        "more than one field",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"reasoning": {"open": "a"}, "thinking": {"open": "b"}}}"#,
        "another field",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"content": "int"}}}"#,
        "only be text",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"join": ""}}}"#,
        "join without repeats",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close": []}}}"#,
        "0 literals",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close": ""}}}"#,
        "empty literal",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close": 5}}}"#,
        "close must be",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "a*"}}}"#,
        "the empty text anywhere",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "(a)\\1"}}}"#,
        "backreferences",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "a(?!b)"}}}"#,
        "negative lookahead",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "(?=a)b"}}}"#,
        "lookahead that is not the last",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "(?:a(?=b)|c)d"}}}"#,
        "not the last",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "(?<=a)b"}}}"#,
        "lookbehind",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "\\ba"}}}"#,
        "only the start and the end",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "a++"}}}"#,
        "possessive",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "(?>a)"}}}"#,
        "atomic",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "((a{999}){999}){999}"}}}"#,
        "more than 1048576",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"content": {"close_pattern": "(?P<x>a)"}}}"#,
        "the group 'x'",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"tool_calls": {"content": "json"}}}"#,
        "no opening delimiter",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"tool_calls": {"open": "a", "content": "yaml"}}}"#,
        "'yaml'",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"tool_calls": {"open": "a", "content": "xml-inline"}}}"#,
        "tag_pattern",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"tool_calls": {"open": "a", "transform": {"function": "f{x}"}}}}"#,
        "mixes a placeholder",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"tool_calls": {"open": "a", "transform": {"name": "f"}}}}"#,
        "no function",
    ),
    (
        r#"{"start_anchor": "a", "fields": {"tool_calls": {"open": "a", "transform_each": true}}}"#,
        "transform_each",
    ),
];

#[test]
fn a_template_that_cannot_be_used_is_refused_by_the_name_of_what_is_wrong() {
    for (json, words) in REFUSED {
        let error = ResponseTemplate::new(json).expect_err(json).to_string();
        assert!(
            error.contains("response_template") && error.contains(words),
            "{json}: {error}"
        );
    }
    let long = format!(
        r#"{{"start_anchor": "{}", "fields": {{"content": {{}}}}}}"#,
        "a".repeat(1025)
    );
    assert!(
        ResponseTemplate::new(&long)
            .expect_err("too long")
            .to_string()
            .contains("1025 bytes, and may have 1024")
    );
    let error = ResponseTemplate::new(&" ".repeat(65_537))
        .expect_err("too long")
        .to_string();
    assert!(error.contains("65537 bytes, and may have 65536"), "{error}");
}

#[test]
fn no_text_costs_the_square_of_its_length() {
    let golden = golden();
    let mut most: f64 = 0.0;
    for (name, value) in &golden.templates {
        let at_start = AnswerParser::after(&format(&template(value)), &Arc::default(), "");
        let texts = golden.cases.iter().filter(|case| case.template == *name);
        let mut parts: Vec<&str> = vec![
            "<",
            " ",
            "\n",
            "{\"",
            "\\",
            "<tool_call>",
            "<|channel|>",
            "x",
            "<parameter=a>",
        ];
        parts.extend(texts.map(|case| case.text.as_str()).filter(|text| !text.is_empty()));
        let cost = |text: &str| {
            let mut parser = at_start.clone();
            let mut events = Vec::new();
            for piece in text.as_bytes().chunks(4) {
                parser.push(&String::from_utf8_lossy(piece), &mut events);
            }
            parser.finish(&mut events);
            parser.num_bytes_looked_at() as f64 / text.len() as f64
        };
        for part in parts {
            let (short, long) = (
                cost(&part.repeat(6_000 / part.len() + 1)),
                cost(&part.repeat(24_000 / part.len() + 1)),
            );
            most = most.max(long);
            assert!(
                long < short * 1.3 + 2.0 && long < 60.0,
                "{name}: {short:.1}, {long:.1} for {part:?} over and over"
            );
        }
    }
    println!("at most {most:.0} bytes a byte");
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

struct Random(u64);

impl Random {
    fn place(&mut self, text: &str) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mut place = (self.0 >> 33) as usize % (text.len() + 1);
        while !text.is_char_boundary(place) {
            place -= 1;
        }
        place
    }
}

#[test]
fn spoilt_answers_mean_the_same_however_they_are_cut_and_lose_no_word() {
    const WORD: &str = "Qz7";
    // Where a word may fall on what says nothing: a header, or what stands between arguments.
    let with_other_parts = ["channels", "parameters", "json_parameters", "lines", "blocks", "listed"];
    let golden = golden();
    let mut random = Random(79);
    let (mut num_cuts, mut num_words) = (0, 0);
    for (name, value) in &golden.templates {
        let at_start = AnswerParser::after(&format(&template(value)), &Arc::default(), "");
        for case in golden.cases.iter().filter(|case| case.template == *name) {
            for turn in 0..12 {
                let mut text = case.text.clone();
                for _ in 0..turn % 3 {
                    let (a, b, c) = (random.place(&text), random.place(&text), random.place(&text));
                    let part = text[a.min(b)..a.max(b)].to_owned();
                    match turn % 4 {
                        0 => text.replace_range(a.min(b)..a.max(b), ""),
                        1 => text.insert_str(c, &part),
                        _ => text.insert(c, char::from(b"{}\"<>[]()\\,'\n =:ax|"[c % 19])),
                    }
                }
                let place = random.place(&text);
                text.insert_str(place, WORD);
                let whole = parse(&at_start, [text.as_str()]);
                for longest in [1, 3, 7] {
                    let characters: Vec<char> = text.chars().collect();
                    let pieces: Vec<String> = characters.chunks(longest).map(|chunk| chunk.iter().collect()).collect();
                    let cut = parse(&at_start, pieces.iter().map(String::as_str));
                    assert_eq!(cut, whole, "{name}: {text:?} by {longest}");
                    num_cuts += 1;
                }
                let shown = |event: &AnswerEvent| match event {
                    AnswerEvent::Text(text) | AnswerEvent::Reasoning(text) | AnswerEvent::Arguments(text) => {
                        text.clone()
                    }
                    AnswerEvent::CallStart { name, .. } => name.clone(),
                    AnswerEvent::CallEnd { .. } => String::new(),
                };
                let shown: String = whole.iter().map(shown).collect();
                if !with_other_parts.contains(&name.as_str()) && !shown.contains(WORD) {
                    panic!("{name}: {text:?} becomes {shown:?}");
                }
                num_words += 1;
            }
        }
    }
    println!("{num_words} spoilt answers, {num_cuts} cuts");
}
