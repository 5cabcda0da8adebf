//! Changes of a seed: bytes, words of a text, or parts of a JSON value. A reader checks the form first, so most
//! mutations keep it and reach the code behind that check.

use serde_json::{Map, Value, json};

use crate::random::Random;

/// What a target's input is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Anything.
    Bytes,
    /// A JSON text.
    Json,
    /// A little-endian u64 with the length of the JSON text behind it (safetensors).
    SizedJson,
    /// A text whose words matter (a template, an event stream).
    Text,
}

/// Longest input that is made.
const MAX_BYTES: usize = 256 << 10;

/// A new input from the seeds.
pub fn make(form: Form, seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let seed = random.pick(seeds).clone();
    let other = random.pick(seeds).clone();
    let mut made = match form {
        _ if random.one_in(12) => bytes(seed, &other, random),
        Form::Bytes => bytes(seed, &other, random),
        Form::Text => text(&seed, &other, random),
        Form::Json => json_text(&seed, &other, random),
        Form::SizedJson => {
            let tail = |bytes: &[u8]| bytes.get(8..).unwrap_or_default().to_vec();
            let made = json_text(&tail(&seed), &tail(&other), random);
            let mut sized = (made.len() as u64).to_le_bytes().to_vec();
            sized.extend(made);
            sized
        }
    };
    made.truncate(MAX_BYTES);
    made
}

/// Numbers at the edges of types and of usual limits.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    64,
    127,
    128,
    255,
    256,
    1 << 15,
    (1 << 16) - 1,
    1 << 16,
    1 << 20,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 53,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Further changes: often none, since two at once mostly end at the first.
fn few(random: &mut Random, most: usize) -> usize {
    if random.one_in(2) { 0 } else { random.below(most) }
}

fn bytes(mut data: Vec<u8>, other: &[u8], random: &mut Random) -> Vec<u8> {
    for _ in 0..=few(random, 6) {
        let len = data.len();
        // The beginning of a file decides more than its end.
        let reach = if random.one_in(2) { len.min(256) } else { len };
        let at = random.below(reach);
        match random.below(9) {
            0 if len > 0 => data[at] ^= 1 << random.below(8),
            1 if len > 0 => data[at] = random.next() as u8,
            2 | 3 => {
                let width = *random.pick(&[1, 2, 4, 8]);
                let value = random.pick(EDGES).to_le_bytes();
                for (place, byte) in data.iter_mut().skip(at).zip(&value[..width]) {
                    *place = *byte;
                }
            }
            4 => data.truncate(at),
            5 => {
                let end = (at + random.below(64)).min(len);
                data.drain(at..end);
            }
            6 => {
                let end = (at + random.below(64)).min(len);
                let part = data[at..end].to_vec();
                let times = 1 + random.below(8);
                let part = part.repeat(times);
                data.splice(at..at, part);
            }
            7 => {
                let from = random.below(other.len());
                let end = (from + random.below(128)).min(other.len());
                data.splice(at..at, other[from..end].iter().copied());
            }
            _ => {
                let part: Vec<u8> = (0..random.below(32)).map(|_| random.next() as u8).collect();
                data.splice(at..at, part);
            }
        }
    }
    data
}

/// Words and signs as pieces, so that changes move whole ones.
fn pieces(text: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let kind = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | 128.. => 0,
        b' ' => 1,
        _ => 2,
    };
    for &byte in text {
        match pieces.last_mut() {
            Some(last) if kind(byte) != 2 && kind(last[0]) == kind(byte) => last.push(byte),
            _ => pieces.push(vec![byte]),
        }
    }
    pieces
}

fn text(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut own = pieces(seed);
    let foreign = pieces(other);
    for _ in 0..=few(random, 8) {
        let at = random.below(own.len() + 1);
        let end = (at + 1 + random.below(6)).min(own.len());
        match random.below(8) {
            0 => drop(own.drain(at.min(end)..end)),
            1 => {
                let part: Vec<_> = own[at.min(end)..end].to_vec();
                let times = if random.one_in(8) { 1 + random.below(400) } else { 2 };
                let many = part.iter().cycle().take(part.len() * times).cloned();
                own.splice(at..at, many.collect::<Vec<_>>());
            }
            2 | 3 if !foreign.is_empty() => {
                let from = random.below(foreign.len());
                let until = (from + 1 + random.below(12)).min(foreign.len());
                own.splice(at..at, foreign[from..until].to_vec());
            }
            4 if own.len() > 1 => {
                let (a, b) = (random.below(own.len()), random.below(own.len()));
                own.swap(a, b);
            }
            5 => {
                let number = random.pick(EDGES).to_string().into_bytes();
                own.splice(at..end.max(at), [number]);
            }
            6 => own.insert(at, string(random).into_bytes()),
            _ => own.truncate(at.max(1)),
        }
    }
    own.concat()
}

fn json_text(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(seed) else {
        return text(seed, other, random);
    };
    let other: Value = serde_json::from_slice(other).unwrap_or_default();
    for _ in 0..=few(random, 4) {
        change(&mut value, &other, random, 0);
    }
    let mut made = value.to_string().into_bytes();
    if random.one_in(16) {
        made = text(&made.clone(), &made, random);
    }
    made
}

/// Changes one place of a value, chosen on the way down.
fn change(value: &mut Value, other: &Value, random: &mut Random, depth: usize) {
    let deeper = depth < 12 && !random.one_in(4);
    match value {
        Value::Object(object) if !object.is_empty() && deeper => {
            let at = random.below(object.len());
            if let Some((_, inner)) = object.iter_mut().nth(at) {
                change(inner, other, random, depth + 1);
            }
        }
        Value::Array(list) if !list.is_empty() && deeper => {
            let at = random.below(list.len());
            change(&mut list[at], other, random, depth + 1);
        }
        Value::Object(object) => change_object(object, other, random),
        Value::Array(list) => change_list(list, other, random),
        leaf => *leaf = other_leaf(leaf, other, random),
    }
}

fn change_object(object: &mut Map<String, Value>, other: &Value, random: &mut Random) {
    let key = || object.keys().next().cloned();
    let at = random.below(object.len());
    let some = object.keys().nth(at).cloned().or_else(key);
    match (random.below(5), some) {
        (0, Some(key)) => drop(object.shift_remove(&key)),
        (1, Some(key)) => drop(object.insert(key, any(other, random))),
        (2, Some(key)) => {
            let moved = object.shift_remove(&key).unwrap_or_default();
            object.insert(string(random), moved);
        }
        // What another seed says under its own names.
        (3, _) => {
            if let Some(theirs) = other.as_object().filter(|theirs| !theirs.is_empty())
                && let Some((key, value)) = theirs.iter().nth(random.below(theirs.len()))
            {
                object.insert(key.clone(), value.clone());
            }
        }
        _ => drop(object.insert(string(random), any(other, random))),
    }
}

fn change_list(list: &mut Vec<Value>, other: &Value, random: &mut Random) {
    let at = random.below(list.len());
    match random.below(5) {
        0 if !list.is_empty() => drop(list.remove(at)),
        1 if !list.is_empty() => {
            let times = if random.one_in(6) { 2000 } else { 1 + random.below(8) };
            let copy = list[at].clone();
            // Copies of what was copied before would fill the memory: they end where an input ends.
            let fit = 1 + MAX_BYTES / copy.to_string().len().max(1);
            list.extend(std::iter::repeat_n(copy, times.min(fit)));
        }
        2 => list.clear(),
        3 if list.len() > 1 => {
            let to = random.below(list.len());
            list.swap(at, to);
        }
        _ => list.insert(at, any(other, random)),
    }
}

fn other_leaf(leaf: &Value, other: &Value, random: &mut Random) -> Value {
    match leaf {
        Value::Number(number) if !random.one_in(3) => {
            let (int, float) = (number.as_i64().unwrap_or(1), number.as_f64().unwrap_or(1.0));
            match random.below(8) {
                0 => json!(int.wrapping_add(1)),
                1 => json!(int.wrapping_sub(1)),
                2 => json!(int.wrapping_mul(2)),
                3 => json!(int.wrapping_neg()),
                4 => json!(float * 0.5),
                5 => json!(int / 3),
                6 => json!(-float),
                _ => json!(*random.pick(EDGES)),
            }
        }
        Value::String(text) if !random.one_in(3) => {
            let mut chars: Vec<char> = text.chars().collect();
            let at = random.below(chars.len() + 1);
            match random.below(5) {
                0 => chars.truncate(at),
                1 => chars.splice(at..at, string(random).chars()).for_each(drop),
                2 => {
                    let times = if random.one_in(8) { 5000 } else { 3 };
                    chars.truncate(20_000 / times);
                    chars = chars.repeat(times);
                }
                3 if !chars.is_empty() => drop(chars.remove(at.min(chars.len() - 1))),
                _ => chars.reverse(),
            }
            chars.into_iter().collect::<String>().into()
        }
        Value::Bool(truth) if random.one_in(2) => (!truth).into(),
        _ => any(other, random),
    }
}

/// A value of any kind: a part of another seed, or one at an edge.
fn any(other: &Value, random: &mut Random) -> Value {
    match random.below(16) {
        0 => Value::Null,
        1 => random.one_in(2).into(),
        2 | 3 => json!(*random.pick(EDGES)),
        4 => json!((*random.pick(EDGES) as i64).wrapping_neg()),
        5 => json!(*random.pick(&[0.0, -0.0, 0.5, 1e-9, 1e-45, 1e30, 1e39, 1.7e308, -1.0, 2.5])),
        6 => json!([]),
        7 => json!({}),
        8..=10 => string(random).into(),
        11 => {
            let depth = if random.one_in(4) { 120 } else { 5 };
            (0..depth).fold(json!(1), |inner, _| json!([inner]))
        }
        12 => json!({ string(random): string(random) }),
        _ => part(other, random),
    }
}

/// A part of a value, chosen on the way down.
fn part(value: &Value, random: &mut Random) -> Value {
    match value {
        Value::Object(object) if !object.is_empty() && !random.one_in(4) => {
            let at = random.below(object.len());
            object
                .values()
                .nth(at)
                .map(|inner| part(inner, random))
                .unwrap_or_default()
        }
        Value::Array(list) if !list.is_empty() && !random.one_in(4) => part(random.pick(list), random),
        whole => whole.clone(),
    }
}

fn string(random: &mut Random) -> String {
    const TEXTS: &[&str] = &[
        "",
        " ",
        "\0",
        "\n\n",
        "a",
        "-1",
        "nan",
        "inf",
        "1e400",
        "0x10",
        "true",
        "null",
        "..",
        "../../x",
        "/",
        "\u{7f}",
        "é",
        "日本",
        "🙂",
        "\u{200d}",
        "\u{fffd}",
        "\u{10ffff}",
        "e\u{301}\u{301}",
        "<|im_end|>",
        "</s>",
        "{{",
        "%}",
        "data: ",
        "[DONE]",
        "(a+)+$",
        "\\u{0}",
        "%s%n",
        "$ref",
        "\u{feff}",
        "ÿ",
        "\u{e000}",
    ];
    match random.below(8) {
        0 => "x".repeat(1 << random.below(15)),
        1 => (0..random.below(40))
            .filter_map(|_| char::from_u32(random.next() as u32 % 0x11_0000))
            .collect(),
        2 => random.pick(TEXTS).repeat(1 + random.below(200)),
        _ => (*random.pick(TEXTS)).to_owned(),
    }
}
