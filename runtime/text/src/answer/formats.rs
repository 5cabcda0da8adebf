//! Formats of tool calls, as data, by vLLM's names.

use super::family::Family;
use super::json_calls::{JsonCalls, Listing};

/// How a model writes that it calls a function.
#[derive(Debug)]
pub(super) struct ToolFormat {
    name: &'static str,
    pub(super) family: Family,
}

const JSON: JsonCalls = JsonCalls {
    open: &["<tool_call>"],
    close: &["</tool_call>"],
    bare: false,
    list: Listing::Objects,
    names: &["name"],
    arguments: &["arguments"],
};

const fn json(name: &'static str, format: JsonCalls) -> ToolFormat {
    ToolFormat {
        name,
        family: Family::Json(format),
    }
}

/// Every format.
static FORMATS: &[ToolFormat] = &[json("hermes", JSON), json("qwen3_json", JSON)];

/// The names of the formats of tool calls.
pub fn tool_formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

/// The format of a name.
pub(super) fn tool_format(name: &str) -> Option<&'static ToolFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

impl ToolFormat {
    /// Its name, which is vLLM's.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }
}
