//! What reading costs: bytes looked at, not time. The peers that read their buffer again at each delta need the square.

use halyard_text::{AnswerParser, tool_formats};
use serde_json::json;

use super::{Subject, writers};

/// Bytes looked at for each byte of text, pushed in deltas of four characters.
fn cost(subject: &Subject, text: &str) -> f64 {
    let mut parser = AnswerParser::new(&subject.format, &subject.types, subject.in_reasoning);
    let mut out = Vec::new();
    let mut delta = String::new();
    for (index, character) in text.chars().enumerate() {
        delta.push(character);
        if index % 4 == 3 {
            parser.push(&delta, &mut out);
            delta.clear();
        }
    }
    parser.push(&delta, &mut out);
    parser.finish(&mut out);
    parser.num_bytes_looked_at() as f64 / text.len() as f64
}

#[test]
fn a_long_argument_costs_as_much_a_byte_as_a_short_one() {
    for tools in tool_formats() {
        let writer = writers::writer(tools);
        let subject = Subject::new(tools, writer.reasoning, Some(false));
        let of = |num_bytes: usize| {
            let text = "some text, { <b> } ".repeat(num_bytes / 19);
            cost(
                &subject,
                &(writer.calls)(&[("write", json!({"path": "x", "text": text}))]),
            )
        };
        let (short, long) = (of(4_000), of(40_000));
        println!("{tools}: {short:.1} and {long:.1} bytes a byte");
        assert!(
            long < short * 1.2 + 1.0 && long < 60.0,
            "{tools}: {short} becomes {long}"
        );
    }
}

#[test]
fn no_text_costs_the_square_of_its_length() {
    let mut most: f64 = 0.0;
    for tools in tool_formats() {
        let writer = writers::writer(tools);
        let call = (writer.calls)(&[("write", json!({"path": "x"}))]);
        let subject = Subject::new(tools, writer.reasoning, Some(false));
        // Parts of a call over and over: what a parser may hold back, and brackets that nest.
        let ends = (1..call.len()).filter(|&end| call.is_char_boundary(end));
        let mut parts: Vec<String> = ends.map(|end| call[..end].to_owned()).collect();
        parts.extend(
            [
                "<", " ", "\n", "[", "{", "{\"a\":", "f(a=[", "\\", "\"", "'", "```", "<think>", "x",
            ]
            .map(str::to_owned),
        );
        for part in parts {
            for text in [
                part.repeat(6_000 / part.len()),
                call.clone() + &part.repeat(6_000 / part.len()),
            ] {
                let cost = cost(&subject, &text);
                most = most.max(cost);
                assert!(cost < 40.0, "{tools}: {cost} bytes a byte for {part:?} over and over");
            }
        }
    }
    println!("at most {most:.0} bytes a byte");
}
