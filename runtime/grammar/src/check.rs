//! Limits of what a client may send, checked before anything recursive is done with it.

use serde_json::Value;

use crate::constraint::{Constraint, StructuredOutputs};
use crate::error::GrammarError;
use crate::measure::{self, MAX_GRAMMAR_BYTES, MAX_REGEX_BYTES, at_most};

/// Limits of a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all its texts.
    pub max_bytes: usize,
    /// Objects and lists within each other in a schema, as in vLLM; groups within each other in a regex or grammar.
    pub max_nesting: usize,
    /// Levels more that a structural tag may have around its schemas, as in vLLM.
    pub tag_nesting: usize,
    /// Texts of `choice`.
    pub max_choices: usize,
    /// `$ref`s of a schema, and definitions of a grammar: a chain of them is followed recursively.
    pub max_references: usize,
    /// States of a constraint's lexer, each of 1 to 2 kB. A request that needs more ends with an error.
    pub max_states: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_bytes: 512 << 10,
            max_nesting: 64,
            tag_nesting: 16,
            max_choices: 10_000,
            max_references: 5_000,
            max_states: 50_000,
        }
    }
}

impl Limits {
    /// Checks what can be counted without reading a constraint.
    pub(crate) fn check(&self, asked: &StructuredOutputs) -> Result<(), GrammarError> {
        let constraint = &asked.constraint;
        let field = constraint.field();
        let pattern = asked.whitespace_pattern.as_ref().map_or(0, String::len);
        at_most(
            field,
            "the number of its bytes",
            constraint.num_bytes() + pattern,
            self.max_bytes,
        )?;
        if let Some(pattern) = &asked.whitespace_pattern {
            at_most(
                "whitespace_pattern",
                "the number of its bytes",
                pattern.len(),
                MAX_REGEX_BYTES,
            )?;
            self.check_groups("whitespace_pattern", pattern)?;
        }
        match constraint {
            Constraint::Choice(choices) if choices.is_empty() => Err(GrammarError::invalid(
                field,
                "it is an empty list; send one text at least",
            )),
            Constraint::Choice(choices) => at_most(field, "the number of its texts", choices.len(), self.max_choices),
            Constraint::Regex(pattern) if pattern.contains('\0') => {
                Err(GrammarError::invalid(field, "it holds a NUL character"))
            }
            Constraint::Regex(pattern) => {
                at_most(field, "the number of its bytes", pattern.len(), MAX_REGEX_BYTES)?;
                self.check_groups(field, pattern)
            }
            Constraint::Json(text) | Constraint::Grammar(text) | Constraint::StructuralTag(text)
                if text.trim().is_empty() =>
            {
                Err(GrammarError::invalid(
                    field,
                    "it is an empty text; leave it out instead",
                ))
            }
            Constraint::Grammar(text) => {
                at_most(field, "the number of its bytes", text.len(), MAX_GRAMMAR_BYTES)?;
                measure::check_lark(field, text, self.max_references)?;
                // Each definition has one; a literal may too, which only makes the count larger.
                let definitions = text.lines().filter(|line| line.contains(':')).count();
                at_most(field, "the number of its rules", definitions, self.max_references)?;
                self.check_groups(field, text)
            }
            Constraint::Json(_) | Constraint::StructuralTag(_) | Constraint::JsonObject => Ok(()),
        }
    }

    /// Counts round brackets within each other in a regex or grammar, also those of literals.
    pub(crate) fn check_groups(&self, field: &'static str, text: &str) -> Result<(), GrammarError> {
        let (mut depth, mut deepest) = (0_usize, 0);
        let mut is_escaped = false;
        for byte in text.bytes() {
            match byte {
                _ if is_escaped => {}
                b'(' => depth += 1,
                b')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            is_escaped = byte == b'\\' && !is_escaped;
            deepest = deepest.max(depth);
        }
        at_most(
            field,
            "the number of groups within each other",
            deepest,
            self.max_nesting,
        )
    }

    /// Reads JSON text, and checks what would be costly in it.
    pub(crate) fn read_json(&self, field: &'static str, text: &str) -> Result<Value, GrammarError> {
        let tag = if field == "structural_tag" { self.tag_nesting } else { 0 };
        check_text_nesting(field, text, self.max_nesting + tag)?;
        let value = serde_json::from_str(text)
            .map_err(|error| GrammarError::invalid(field, format!("it is no JSON: {error}")))?;
        measure::check(field, &value, self.max_references)?;
        Ok(value)
    }
}

/// Counts objects and lists within each other in JSON text, without reading it.
fn check_text_nesting(field: &'static str, text: &str, limit: usize) -> Result<(), GrammarError> {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_string, mut is_escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    at_most(
        field,
        "the number of objects and lists within each other",
        deepest,
        limit,
    )
}
