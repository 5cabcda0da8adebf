//! A model's response template, and what the model writes: any template is read or refused, any answer is read by it in
//! bounded time, and means the same however it is cut.

use std::path::Path;
use std::sync::Arc;

use halyard_text::{AnswerEvent, AnswerFormat, AnswerParser, ResponseTemplate, ToolTypes};
use serde_json::{Value, json};

use crate::target::{Case, Outcome};

/// Templates with an answer each: `{"template": …, "prompt": "…", "text": "…"}`.
pub fn seeds() -> Vec<Vec<u8>> {
    let golden = include_str!("../../../../runtime/text/tests/golden/response_templates.json");
    let golden: Value = serde_json::from_str(golden).expect("JSON");
    let cases = golden["cases"].as_array().expect("cases");
    let seed = |case: &Value| {
        let template = &golden["templates"][case["template"].as_str().expect("a name")];
        json!({"template": template, "prompt": case["prompt"], "text": case["text"]})
            .to_string()
            .into_bytes()
    };
    cases.iter().step_by(3).map(seed).collect()
}

/// Reads a template and an answer.
pub fn response_template(_: &Path) -> Case {
    let types = Arc::new(ToolTypes::new(&[
        json!({"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}}}}}),
    ]));
    Box::new(move |input| {
        let Ok(case) = serde_json::from_slice::<Value>(input) else {
            return Outcome::Refused;
        };
        let Ok(template) = ResponseTemplate::new(&case["template"].to_string()) else {
            return Outcome::Refused;
        };
        let template = Arc::new(template);
        let text = case["text"].as_str().unwrap_or_default();
        let prompt = case["prompt"].as_str().unwrap_or_default();
        let number = input.iter().fold(input.len(), |sum, &byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        let (calls, reasoning) = (template.has_calls(), template.has_thinking());
        let Ok(format) = AnswerFormat::by_template(&template, calls && number % 5 > 0, reasoning && number % 7 > 0)
        else {
            return Outcome::Refused;
        };
        let parse = |longest: usize| {
            let mut parser = AnswerParser::after(&format, &types, prompt);
            let mut events = Vec::new();
            let mut rest = text;
            while !rest.is_empty() {
                let end = (longest..rest.len())
                    .find(|&end| rest.is_char_boundary(end))
                    .unwrap_or(rest.len());
                parser.push(&rest[..end], &mut events);
                rest = &rest[end..];
            }
            parser.finish(&mut events);
            super::answer::joined(events)
        };
        let whole = parse(text.len().max(1));
        for longest in [1, 1 + number % 9] {
            assert_eq!(parse(longest), whole, "it depends on how the text is cut");
        }
        let mut in_call = false;
        for event in &whole {
            match event {
                AnswerEvent::CallStart { .. } => assert!(!std::mem::replace(&mut in_call, true)),
                AnswerEvent::CallEnd { .. } => assert!(std::mem::replace(&mut in_call, false)),
                AnswerEvent::Arguments(_) => assert!(in_call),
                AnswerEvent::Text(_) | AnswerEvent::Reasoning(_) => assert!(!in_call),
            }
        }
        assert!(!in_call, "a call without an end");
        Outcome::Accepted
    })
}
