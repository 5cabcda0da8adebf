//! What a model writes: text, thoughts and calls in any format, cut anywhere.

use std::path::Path;
use std::sync::Arc;

use halyard_text::{
    AnswerEvent, AnswerFormat, AnswerParser, ToolTypes, propose_formats, reasoning_formats, tool_formats,
};
use serde_json::json;

use crate::target::{Case, Outcome};

/// Answers in a format of each family.
const SEEDS: &[&str] = &[
    "<think>hm</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}\n</tool_call>\n<tool_call>x",
    "{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}; {\"name\": \"g\", \"parameters\": {}}",
    "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"arguments\": {\"a\": 1}, \"name\": \"g\", \"id\": \"i\"}]",
    "[THINK]a[/THINK][TOOL_CALLS]f[CALL_ID]id[ARGS]{\"a\": null}[TOOL_CALLS]g{}",
    "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls> functools[{\"name\": \"f\", \"arguments\": {}}]",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>\
     <|tool_calls_section_end|>",
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>x</parameter></function>\n</tool_call>",
    "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>",
    "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"false\">1\
     </｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
    "[f(a=1, b='x\\n', c=[{'d': (None, True)}], e=\"\"\"y\"\"\"), g()]",
    "<|channel>thought\na<channel|><|tool_call>call:f{a:<|\"|>x<|\"|>,b:[1,{c:true}]}<tool_call|>",
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json\
     <|message|>{\"a\": 1}<|call|><|start|>assistant<|channel|>final<|message|>b<|return|>",
    "Here is my thought process: a Here is my response: b",
    "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {\"a\": 1}}]\
     <|END_ACTION|>",
    "<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": {}}]<|tools_suffix|> function call<|role_sep|>\n{\"name\": \"f\", \
     \"arguments\": {}}",
    "<tool_calls><tool_call>f<tool_sep><arg_key>a</arg_key><arg_value>1</arg_value></tool_call></tool_calls>",
    "<function name=\"f\"><param name=\"a\">1</param></function>",
    "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|><|open|>tools<|sep|>\
     <|open|>call tool=\"f\"<|sep|><|open|>argument key=\"a\" type=\"number\"<|sep|>1<|close|>argument<|sep|>\
     <|close|>call<|sep|><|close|>tools<|sep|>",
    "<|plamo:begin_think:plamo|>a<|plamo:end_think:plamo|><|plamo:begin_tool_requests:plamo|>\
     <|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>f<|plamo:end_tool_name:plamo|>\
     <|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{}<|plamo:end_tool_arguments:plamo|>\
     <|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
];

pub fn seeds() -> Vec<Vec<u8>> {
    SEEDS.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}

/// In every format the events are the same however the text is cut, calls do not overlap, and text that no format reads
/// is all there.
pub fn answer(_: &Path) -> Case {
    let tools: Vec<&'static str> = tool_formats().collect();
    let reasoning: Vec<&'static str> = reasoning_formats().collect();
    let types = Arc::new(ToolTypes::new(&[
        json!({"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "string"}, "c": {"type": "array"}}}}}),
    ]));
    Box::new(move |input| {
        let text = String::from_utf8_lossy(input);
        let mut any_call = false;
        // The formats that the text is made for, and some others.
        let number = input.iter().fold(input.len(), |sum, &byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        for turn in 0..4 {
            let number = number.wrapping_add(turn * 7);
            let names = match turn {
                0 => propose_formats(&format!("tools {text}")),
                _ => (
                    Some(tools[number % tools.len()]).filter(|_| number % 11 > 0),
                    Some(reasoning[number / 64 % reasoning.len()]).filter(|_| number % 3 > 0),
                ),
            };
            let format = AnswerFormat::new(names.0, names.1).expect("names of the lists");
            let in_reasoning = [None, Some(true), Some(false)][number / 5 % 3];
            let parse = |longest: usize| {
                let mut parser = AnswerParser::new(&format, &types, in_reasoning);
                let mut events = Vec::new();
                let mut rest = &*text;
                while !rest.is_empty() {
                    let end = (longest..rest.len())
                        .find(|&end| rest.is_char_boundary(end))
                        .unwrap_or(rest.len());
                    parser.push(&rest[..end], &mut events);
                    rest = &rest[end..];
                }
                parser.finish(&mut events);
                joined(events)
            };
            let whole = parse(text.len().max(1));
            for longest in [1, 1 + number % 9] {
                assert_eq!(parse(longest), whole, "{format:?} depends on how the text is cut");
            }
            let mut in_call = false;
            for event in &whole {
                match event {
                    AnswerEvent::CallStart { .. } => assert!(!std::mem::replace(&mut in_call, true)),
                    AnswerEvent::CallEnd { .. } => assert!(std::mem::replace(&mut in_call, false)),
                    AnswerEvent::Arguments(_) => assert!(in_call),
                    AnswerEvent::Text(_) | AnswerEvent::Reasoning(_) => assert!(!in_call),
                }
                any_call |= in_call;
            }
            assert!(!in_call, "a call without an end");
            if format.is_plain() && !text.is_empty() {
                assert_eq!(whole, [AnswerEvent::Text(text.to_string())]);
            }
        }
        if any_call { Outcome::Accepted } else { Outcome::Refused }
    })
}

/// Events with neighbours of one kind as one.
pub fn joined(events: Vec<AnswerEvent>) -> Vec<AnswerEvent> {
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
