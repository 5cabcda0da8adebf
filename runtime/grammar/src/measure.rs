//! What makes a schema or structural tag costly to compile, counted before the grammar library sees it. The library's
//! own bounds end most others early; what is counted here takes it time or memory that grow faster than the text.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use crate::error::GrammarError;

/// Entries of a list or object. Of an enum: as many as `choice` takes.
const MAX_ENTRIES: usize = 2_000;
const MAX_ENUM: usize = 10_000;
/// Triggers and tags of a structural tag: each pair is a part of the lexer's work.
const MAX_TAGS: usize = 500;
/// Patterns of properties in all: each two are compared.
const MAX_PATTERN_PROPERTIES: usize = 50;
/// Bytes of a regular expression, of all in a schema, and of a grammar: their compilation takes quadratic memory.
pub(crate) const MAX_REGEX_BYTES: usize = 16 << 10;
const MAX_ALL_REGEX_BYTES: usize = 64 << 10;
pub(crate) const MAX_GRAMMAR_BYTES: usize = 32 << 10;
/// Product of all different `multipleOf`s, without their decimal points: the states of a remainder's machine.
const MAX_MULTIPLE: u128 = 100_000;
/// Numbers up to here, as floats the least integer of 64 bits or less, are no constants and no upper bounds: the
/// library turns them into a range of that integer alone, negates it, has the same range again, and so on until its
/// stack ends.
const MIN_NUMBER: f64 = i64::MIN as f64;
/// Patterns that one text may have to match together: each doubles the work in the worst case.
const MAX_TOGETHER: usize = 8;

/// Checks a schema, or a structural tag with its schemas.
pub(crate) fn check(field: &'static str, root: &Value, max_references: usize) -> Result<(), GrammarError> {
    let mut found = Found::default();
    found.walk(field, root)?;
    let Found {
        references,
        pattern_properties,
        regex_bytes,
        multiples,
    } = found;
    at_most(field, "the number of its $refs", references, max_references)?;
    at_most(
        field,
        "the number of its patternProperties",
        pattern_properties,
        MAX_PATTERN_PROPERTIES,
    )?;
    at_most(field, "bytes of all its patterns", regex_bytes, MAX_ALL_REGEX_BYTES)?;
    let product = multiples
        .iter()
        .try_fold(1_u128, |product, &one| product.checked_mul(one));
    if product.is_none_or(|product| product > MAX_MULTIPLE) {
        let reason = format!("the product of its different multipleOf is above {MAX_MULTIPLE}; choose smaller ones");
        return Err(GrammarError::invalid(field, reason));
    }
    let mut together = Together {
        root,
        known: HashMap::new(),
        all: None,
    };
    at_most(
        field,
        "the number of patterns for one text",
        together.most(root),
        MAX_TOGETHER,
    )
}

/// Checks a count against its limit.
pub(crate) fn at_most(field: &'static str, what: &'static str, found: usize, limit: usize) -> Result<(), GrammarError> {
    let error = || GrammarError::TooLarge {
        field,
        what,
        found,
        limit,
        remedy: "send a simpler one",
    };
    if found <= limit { Ok(()) } else { Err(error()) }
}

/// Counts of a whole schema.
#[derive(Default)]
struct Found {
    references: usize,
    pattern_properties: usize,
    regex_bytes: usize,
    multiples: BTreeSet<u128>,
}

impl Found {
    fn walk(&mut self, field: &'static str, root: &Value) -> Result<(), GrammarError> {
        // Each with whether it stands in a constant.
        let mut todo = vec![(root, false)];
        while let Some((value, in_constant)) = todo.pop() {
            match value {
                Value::Array(entries) => todo.extend(entries.iter().map(|entry| (entry, in_constant))),
                Value::Object(entries) => {
                    at_most(field, "the number of entries of an object", entries.len(), MAX_ENTRIES)?;
                    for (name, value) in entries {
                        self.entry(field, name, value)?;
                        let is_bound = value.is_number() && matches!(name.as_str(), "maximum" | "exclusiveMaximum");
                        let is_constant = matches!((name.as_str(), value), ("const", _) | ("enum", Value::Array(_)));
                        todo.push((value, in_constant || is_constant || is_bound));
                    }
                }
                Value::Number(number) if in_constant && number.as_f64().is_some_and(|n| n <= MIN_NUMBER) => {
                    let reason = format!(
                        "it holds {number} as a constant or an upper bound, which must be above {}; leave it out",
                        i64::MIN
                    );
                    return Err(GrammarError::invalid(field, reason));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn entry(&mut self, field: &'static str, name: &str, value: &Value) -> Result<(), GrammarError> {
        match (name, value) {
            ("$ref", Value::String(_)) => self.references += 1,
            ("pattern", Value::String(pattern)) => self.regex(field, pattern)?,
            ("grammar", Value::String(grammar)) => {
                at_most(field, "bytes of a grammar", grammar.len(), MAX_GRAMMAR_BYTES)?;
                self.regex_bytes += grammar.len();
            }
            ("patternProperties", Value::Object(patterns)) => {
                self.pattern_properties += patterns.len();
                for pattern in patterns.keys() {
                    self.regex(field, pattern)?;
                }
            }
            ("multipleOf", Value::Number(number)) => {
                self.multiples.insert(coefficient(&number.to_string()));
            }
            ("enum", Value::Array(entries)) => {
                at_most(field, "the number of values of an enum", entries.len(), MAX_ENUM)?
            }
            ("triggers" | "tags" | "structures", Value::Array(entries)) => {
                at_most(field, "the number of triggers or tags", entries.len(), MAX_TAGS)?;
            }
            (_, Value::Array(entries)) => {
                at_most(field, "the number of entries of a list", entries.len(), MAX_ENTRIES)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn regex(&mut self, field: &'static str, pattern: &str) -> Result<(), GrammarError> {
        self.regex_bytes += pattern.len();
        at_most(field, "bytes of a pattern", pattern.len(), MAX_REGEX_BYTES)
    }
}

/// A number without its sign and decimal point; the largest one where it has too many digits.
fn coefficient(number: &str) -> u128 {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let power = exponent
        .parse::<i32>()
        .map_or(u32::MAX, |exponent| exponent.max(0).unsigned_abs());
    let scaled = digits.parse::<u128>().ok().zip(10_u128.checked_pow(power));
    scaled
        .and_then(|(digits, power)| digits.checked_mul(power))
        .unwrap_or(u128::MAX)
}

/// Finds how many patterns may have to hold for one text: those of allOf, of references with siblings, and of the
/// schema itself add up.
struct Together<'a> {
    root: &'a Value,
    /// By reference; 0 while it is being followed.
    known: HashMap<&'a str, usize>,
    /// All patterns of the schema, for references that are not followed here.
    all: Option<usize>,
}

impl<'a> Together<'a> {
    fn most(&mut self, schema: &'a Value) -> usize {
        match schema {
            Value::Object(entries) => self.of_object(entries),
            Value::Array(entries) => entries.iter().map(|entry| self.most(entry)).max().unwrap_or(0),
            _ => 0,
        }
    }

    fn of_object(&mut self, entries: &'a Map<String, Value>) -> usize {
        let is_text = |name: &str| usize::from(entries.get(name).is_some_and(Value::is_string));
        let own = is_text("pattern") + is_text("format");
        let (mut inner, mut more) = (own, 0);
        for (name, value) in entries {
            match (name.as_str(), value) {
                ("allOf", Value::Array(parts)) => more += parts.iter().map(|part| self.most(part)).sum::<usize>(),
                ("anyOf" | "oneOf", Value::Array(parts)) => {
                    more += parts.iter().map(|part| self.most(part)).max().unwrap_or(0);
                }
                ("$ref", Value::String(target)) => more += self.of_reference(target),
                ("patternProperties", Value::Object(patterns)) => {
                    // A property may have to fit its own schema and that of a pattern.
                    more += patterns.values().map(|part| self.most(part)).max().unwrap_or(0);
                }
                ("enum" | "const" | "default" | "examples" | "$defs" | "definitions", _) => {}
                _ => inner = inner.max(self.most(value)),
            }
        }
        inner + more
    }

    fn of_reference(&mut self, target: &'a str) -> usize {
        if let Some(known) = self.known.get(target) {
            return *known;
        }
        self.known.insert(target, 0);
        let root = self.root;
        let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        let most = match found {
            Some(schema) => self.most(schema),
            // By a name, or to another document.
            None => *self.all.get_or_insert_with(|| count(root)),
        };
        self.known.insert(target, most);
        most
    }
}

/// All patterns of a schema.
fn count(root: &Value) -> usize {
    let mut found = 0;
    let mut todo = vec![root];
    while let Some(value) = todo.pop() {
        match value {
            Value::Array(entries) => todo.extend(entries),
            Value::Object(entries) => {
                found += usize::from(entries.get("pattern").is_some_and(Value::is_string));
                todo.extend(entries.values());
            }
            _ => {}
        }
    }
    found
}

/// Checks the schemas in a Lark grammar, and counts intersections and complements of terminals (`&`, `~`) outside of
/// texts, patterns and comments.
pub(crate) fn check_lark(field: &'static str, text: &str, max_references: usize) -> Result<(), GrammarError> {
    for (at, mark) in text.match_indices("%json") {
        // What is no JSON the library refuses.
        let mut schemas = serde_json::Deserializer::from_str(&text[at + mark.len()..]).into_iter::<Value>();
        if let Some(Ok(schema)) = schemas.next() {
            check(field, &schema, max_references)?;
        }
    }
    let mut found = 0;
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '&' | '~' => found += 1,
            '#' => rest.by_ref().take_while(|c| *c != '\n').for_each(drop),
            '/' if rest.peek() == Some(&'/') => rest.by_ref().take_while(|c| *c != '\n').for_each(drop),
            '"' | '/' => {
                let mut is_escaped = false;
                for inner in rest.by_ref() {
                    match inner {
                        _ if is_escaped => is_escaped = false,
                        '\\' => is_escaped = true,
                        inner if inner == character || inner == '\n' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    at_most(field, "the number of & and ~ in it", found, MAX_TOGETHER)
}
