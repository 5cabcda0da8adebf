//! Markers that have a suffix in some tokenizers, as Hunyuan's: `<tool_call:opensource>`. A format is made for a suffix
//! once and is kept, as all formats are; a process has as many as the models that it loads.

use std::sync::{Mutex, PoisonError};

use super::family::Family;
use super::formats::ToolFormat;
use super::reasoning::ReasoningFormat;
use super::xml_calls::XmlCalls;
use crate::Tokenizer;

/// Markers of which one says what the suffix of all is.
const TELLING: &[&str] = &["<think", "<tool_calls", "<tool_call", "<arg_key", "<arg_value"];
/// The longest suffix. A longer one is none.
const MAX_SUFFIX_BYTES: usize = 64;

static TOOLS: Mutex<Vec<(String, &ToolFormat)>> = Mutex::new(Vec::new());
static REASONING: Mutex<Vec<(String, &ReasoningFormat)>> = Mutex::new(Vec::new());

/// The suffix, with its colon, that a vocabulary's markers have; none where they have none.
pub(super) fn suffix_of(tokenizer: &Tokenizer) -> Option<String> {
    let vocab_size = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    (0..vocab_size).find_map(|id| {
        let bytes = tokenizer.token_bytes(id).ok()?;
        let (marker, suffix) = std::str::from_utf8(&bytes).ok()?.strip_suffix('>')?.split_once(':')?;
        let is_suffix = TELLING.contains(&marker)
            && (1..MAX_SUFFIX_BYTES).contains(&suffix.len())
            && !suffix.contains(|c: char| c.is_whitespace() || c == '>');
        is_suffix.then(|| format!(":{suffix}"))
    })
}

/// A format of tool calls with this suffix in its markers.
pub(super) fn tools(format: &'static ToolFormat, suffix: &str) -> &'static ToolFormat {
    let Family::Xml(calls) = &format.family else {
        return format;
    };
    kept(
        &TOOLS,
        suffix,
        |made| made.name() == format.name(),
        || {
            format.with_family(Family::Xml(XmlCalls {
                section: calls
                    .section
                    .map(|(open, close)| (marker(open, suffix), marker(close, suffix))),
                open: markers(calls.open, suffix),
                call: marker(calls.call, suffix),
                name_end: markers(calls.name_end, suffix),
                close: marker(calls.close, suffix),
                parameter: marker(calls.parameter, suffix),
                key_end: marker(calls.key_end, suffix),
                value: calls.value.map(|value| marker(value, suffix)),
                value_end: marker(calls.value_end, suffix),
                ..*calls
            }))
        },
    )
}

/// A format of reasoning with this suffix in its markers.
pub(super) fn reasoning(format: &'static ReasoningFormat, suffix: &str) -> &'static ReasoningFormat {
    kept(
        &REASONING,
        suffix,
        |made| made.name() == format.name(),
        || ReasoningFormat {
            open: markers(format.open, suffix),
            close: markers(format.close, suffix),
            ..*format
        },
    )
}

/// The format that was made before, or a new one.
fn kept<T>(
    all: &Mutex<Vec<(String, &'static T)>>,
    suffix: &str,
    is_same: impl Fn(&T) -> bool,
    make: impl FnOnce() -> T,
) -> &'static T {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, made)) = all.iter().find(|(of, made)| of == suffix && is_same(made)) {
        return made;
    }
    let made: &'static T = Box::leak(Box::new(make()));
    all.push((suffix.to_owned(), made));
    made
}

fn markers(markers: &[&'static str], suffix: &str) -> &'static [&'static str] {
    let made: Vec<_> = markers.iter().map(|&text| marker(text, suffix)).collect();
    made.leak()
}

fn marker(text: &'static str, suffix: &str) -> &'static str {
    match text.strip_suffix('>') {
        Some(head) => format!("{head}{suffix}>").leak(),
        None => text,
    }
}
