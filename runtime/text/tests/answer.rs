//! The parser of answers: what each format's text means, and that no cut of the text changes it.
use halyard_text::{AnswerEvent, AnswerFormat, AnswerParser};
#[test]
fn smoke() {
    let format = AnswerFormat::new(Some("hermes"), Some("qwen3")).unwrap();
    let mut out = Vec::new();
    let mut p = AnswerParser::new(&format, &Default::default(), None);
    for c in "<think>\nhm</think>\n\nhi\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n".chars() {
        p.push(&c.to_string(), &mut out);
    }
    p.finish(&mut out);
    println!("{out:?}");
    assert!(matches!(out[0], AnswerEvent::Reasoning(_)));
}
