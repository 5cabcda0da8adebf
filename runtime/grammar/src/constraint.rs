//! What a generated text must be, as vLLM's `StructuredOutputsParams` has it.

use serde::{Deserialize, Serialize};

/// The kind of text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    /// JSON that fits this schema (the schema as JSON text).
    Json(String),
    /// Any JSON object.
    JsonObject,
    /// A text that this regular expression matches from its first to its last character.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this grammar: Lark in llguidance's dialect, or GBNF, which is told by its `::=`.
    Grammar(String),
    /// Free text with constrained parts between tags, as JSON text: `{"type": "structural_tag", "format": …}`, or the
    /// older `{"structures": […], "triggers": […]}`.
    StructuralTag(String),
}

impl Constraint {
    /// vLLM's name of the field.
    pub fn field(&self) -> &'static str {
        match self {
            Constraint::Json(_) => "json",
            Constraint::JsonObject => "json_object",
            Constraint::Regex(_) => "regex",
            Constraint::Choice(_) => "choice",
            Constraint::Grammar(_) => "grammar",
            Constraint::StructuralTag(_) => "structural_tag",
        }
    }

    /// Bytes of all its texts.
    pub(crate) fn num_bytes(&self) -> usize {
        match self {
            Constraint::JsonObject => 0,
            Constraint::Choice(choices) => choices.iter().map(String::len).sum(),
            Constraint::Json(text)
            | Constraint::Regex(text)
            | Constraint::Grammar(text)
            | Constraint::StructuralTag(text) => text.len(),
        }
    }
}

/// A constraint with vLLM's options, which all concern JSON.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StructuredOutputs {
    /// What the text must be.
    pub constraint: Constraint,
    /// No white space between the parts of JSON.
    #[serde(default)]
    pub disable_any_whitespace: bool,
    /// Objects of a schema that names properties have no others, unless `additionalProperties` says so.
    #[serde(default)]
    pub disable_additional_properties: bool,
    /// A regular expression of the white space between the parts of JSON.
    #[serde(default)]
    pub whitespace_pattern: Option<String>,
}

impl From<Constraint> for StructuredOutputs {
    fn from(constraint: Constraint) -> Self {
        StructuredOutputs {
            constraint,
            disable_any_whitespace: false,
            disable_additional_properties: false,
            whitespace_pattern: None,
        }
    }
}
