//! Answers that no model writes: written ones, spoilt at random. They mean the same however they are cut, nothing
//! panics, and a word that is put somewhere comes out somewhere.

use halyard_text::{AnswerEvent, tool_formats};

use serde_json::json;

use super::{Subject, answers, parse, writers};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// A place in `text` between two characters.
    fn place(&mut self, text: &str) -> usize {
        let mut place = self.below(text.len() + 1);
        while !text.is_char_boundary(place) {
            place -= 1;
        }
        place
    }

    fn pieces<'a>(&mut self, mut text: &'a str) -> Vec<&'a str> {
        let mut pieces = Vec::new();
        while !text.is_empty() {
            let most = text.len().min(12);
            let place = self.place(&text[..(most..).find(|&end| text.is_char_boundary(end)).unwrap_or(text.len())]);
            pieces.push(&text[..place]);
            text = &text[place..];
        }
        pieces
    }
}

/// One answer in a format, as a model would write it.
fn written(tools: &str, random: &mut Random) -> (Subject, String) {
    let writer = writers::writer(tools);
    let answers = answers();
    let calls = (writer.calls)(&answers[random.below(answers.len())]);
    let reasoning = if random.below(2) == 0 { "I think so." } else { "" };
    let before = if writer.bare { "" } else { "Well, " };
    let subject = Subject::new(tools, writer.reasoning, Some(false));
    (subject, (writer.answer)(reasoning, before, &calls, " and so on"))
}

#[test]
fn spoilt_answers_mean_the_same_however_they_are_cut() {
    let mut random = Random(77);
    let mut num_cuts = 0;
    for tools in tool_formats() {
        for _ in 0..300 {
            let (subject, mut text) = written(tools, &mut random);
            for _ in 0..=random.below(4) {
                let (a, b, c) = (random.place(&text), random.place(&text), random.place(&text));
                let (start, end) = (a.min(b), a.max(b));
                let part = text[start..end].to_owned();
                match random.below(9) {
                    0 | 1 => text.replace_range(start..end, ""),
                    2 | 3 => text.insert_str(c, &part),
                    // Longer than any name.
                    4 if random.below(4) == 0 => text.insert_str(c, &"né".repeat(300)),
                    5 => text.truncate(c),
                    _ => text.insert(c, char::from(b"{}\"<>[]()\\,'\n =:ax"[random.below(18)])),
                }
            }
            let whole = parse(&subject, [text.as_str()]);
            let characters = parse(&subject, text.split_inclusive(|_: char| true));
            assert_eq!(characters, whole, "{tools}: {text:?} by characters");
            for _ in 0..8 {
                let pieces = random.pieces(&text);
                let cut = parse(&subject, pieces.iter().copied());
                assert_eq!(cut, whole, "{tools}: {text:?}\n pieces: {pieces:?}");
                num_cuts += 1;
            }
        }
    }
    println!("{num_cuts} cuts of spoilt answers");
}

#[test]
fn a_blank_or_a_letter_anywhere_means_the_same_when_a_cut_is_beside_it() {
    let mut num_cuts = 0;
    for tools in tool_formats() {
        let writer = writers::writer(tools);
        let calls = [("f", json!({"a": "b c", "d": 1})), ("g", json!({}))];
        let text = (writer.answer)("so", "", &(writer.calls)(&calls), "x");
        let subject = Subject::new(tools, writer.reasoning, Some(false));
        for (place, _) in text.char_indices() {
            for more in [" ", "\n", " b", "b ", "="] {
                let mut text = text.clone();
                text.insert_str(place, more);
                let whole = parse(&subject, [text.as_str()]);
                for cut in [place, place + 1, place + more.len()] {
                    assert_eq!(
                        parse(&subject, [&text[..cut], &text[cut..]]),
                        whole,
                        "{tools}: {text:?} cut at {cut}"
                    );
                    num_cuts += 1;
                }
            }
        }
    }
    println!("{num_cuts} cuts beside a blank or a letter");
}

/// Formats where a word can fall on a part that says nothing: the kind of a tool, an attribute, a header.
const WITH_OTHER_PARTS: [&str; 15] = [
    "kimi_k3",
    "minicpm5",
    "deepseek_v41",
    "dots",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "minimax_m2",
    "step3",
    "openai",
    "minimax_m3",
    "inkling",
    "muse",
    "muse_glimmer",
    "musespark1x",
];

#[test]
fn a_word_that_is_put_anywhere_comes_out() {
    const WORD: &str = "Qz7";
    let mut random = Random(78);
    let mut num_words = 0;
    for tools in tool_formats().filter(|tools| !WITH_OTHER_PARTS.contains(tools)) {
        for _ in 0..400 {
            let (subject, mut text) = written(tools, &mut random);
            text.insert_str(random.place(&text), WORD);
            let shown = |event| match event {
                AnswerEvent::Text(text) | AnswerEvent::Reasoning(text) | AnswerEvent::Arguments(text) => text,
                AnswerEvent::CallStart { name, id } => name + &id.unwrap_or_default(),
                AnswerEvent::CallEnd { .. } => String::new(),
            };
            let shown: String = parse(&subject, [text.as_str()]).into_iter().map(shown).collect();
            assert!(shown.contains(WORD), "{tools}: {text:?} becomes {shown:?}");
            num_words += 1;
        }
    }
    println!("{num_words} words");
}
