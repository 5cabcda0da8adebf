//! The types that a request's tools give their parameters, and values read by them: formats that write values as bare
//! text leave it to the schema whether `5` is a number. The rules are those of vLLM 0.33, so that a model's answer
//! means the same in both.

use std::collections::HashMap;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// Depth to which `anyOf`, `oneOf` and `allOf` are followed.
const MAX_DEPTH: usize = 16;

/// Types of the parameters of a request's functions.
#[derive(Clone, Debug, Default)]
pub struct ToolTypes {
    functions: HashMap<String, Function>,
}

/// What a tool says of its parameters.
#[derive(Clone, Debug, Default)]
struct Function {
    types: HashMap<String, Types>,
    /// Their schemas, for formats that write values as nested tags.
    schemas: Map<String, Value>,
}

/// The types that a value may have, one bit each. None means that the schema says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    const NULL: Self = Self(1);
    const INTEGER: Self = Self(2);
    const NUMBER: Self = Self(4);
    const BOOLEAN: Self = Self(8);
    const COMPOUND: Self = Self(16);
    /// A string.
    pub(super) const STRING: Self = Self(32);
    /// Whatever JSON says, otherwise a string.
    pub(super) const ANY: Self = Self(0);
    const OTHER: Self = Self(64);
}

impl ToolTypes {
    /// Reads OpenAI's tool definitions: `{"type": "function", "function": {"name", "parameters"}}`, or with name and
    /// parameters beside the type. What is no such definition has no types.
    pub fn new(tools: &[Value]) -> Self {
        let mut functions = HashMap::new();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Value::as_str) else {
                continue;
            };
            let properties = function.pointer("/parameters/properties").and_then(Value::as_object);
            let schemas = properties.cloned().unwrap_or_default();
            let types = schemas
                .iter()
                .map(|(key, schema)| (key.clone(), Types::of(schema)))
                .collect();
            functions.insert(name.to_owned(), Function { types, schemas });
        }
        Self { functions }
    }

    /// The types of one parameter; none where the tools say nothing.
    pub(super) fn of(&self, function: &str, parameter: &str) -> Option<Types> {
        self.functions.get(function)?.types.get(parameter).copied()
    }

    /// The schemas of a function's parameters; none where the tools say nothing.
    pub(super) fn schemas(&self, function: &str) -> Option<&Map<String, Value>> {
        Some(&self.functions.get(function)?.schemas)
    }

    /// Whether the request has this function.
    pub(super) fn has(&self, function: &str) -> bool {
        self.functions.contains_key(function)
    }
}

impl Types {
    /// The types that a schema names; a string where it names none.
    pub(super) fn of(schema: &Value) -> Self {
        Self::at_depth(schema, 0)
    }

    fn at_depth(schema: &Value, depth: usize) -> Self {
        let found = Self::found(schema, depth);
        if found == Self::default() { Self::STRING } else { found }
    }

    fn found(schema: &Value, depth: usize) -> Self {
        let mut types = Self::default();
        match schema.get("type") {
            Some(Value::String(name)) => types.add(Self::named(name)),
            Some(Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str);
                names.for_each(|name| types.add(Self::named(name)));
            }
            _ => {}
        }
        for value in schema.get("enum").and_then(Value::as_array).into_iter().flatten() {
            types.add(match value {
                Value::Null => Self::NULL,
                Value::Bool(_) => Self::BOOLEAN,
                Value::Number(number) if number.is_f64() => Self::NUMBER,
                Value::Number(_) => Self::INTEGER,
                Value::String(_) => Self::STRING,
                Value::Array(_) | Value::Object(_) => Self::COMPOUND,
            });
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for choice in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                if depth < MAX_DEPTH {
                    types.add(Self::at_depth(choice, depth + 1));
                }
            }
        }
        types
    }

    /// The type of a name.
    pub(super) fn named(name: &str) -> Self {
        match name.trim().to_ascii_lowercase().as_str() {
            "null" => Self::NULL,
            "integer" | "int" | "int32" | "int64" | "uint" | "uint32" | "uint64" | "long" | "short" | "unsigned" => {
                Self::INTEGER
            }
            "number" | "float" | "float32" | "float64" | "double" => Self::NUMBER,
            "boolean" | "bool" => Self::BOOLEAN,
            "object" | "dict" | "array" | "arr" | "list" | "sequence" => Self::COMPOUND,
            "string" | "str" | "text" | "varchar" | "char" | "enum" => Self::STRING,
            _ => Self::OTHER,
        }
    }

    fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether a value may be a string.
    pub(super) fn may_be_string(self) -> bool {
        self.has(Self::STRING)
    }

    /// The type that the model wrote beside a value, where it is one of these; otherwise these.
    pub(super) fn narrowed(self, written: Self) -> Self {
        if self.has(written) { written } else { self }
    }

    /// Whether a value is a string whatever its text is.
    pub(super) fn is_string(self) -> bool {
        self == Self::STRING
    }

    /// The JSON of a value that the model wrote as `text`: of the first type that it can have, otherwise a string.
    pub(super) fn read(self, text: &str) -> String {
        let trimmed = text.trim();
        let lower = trimmed.to_ascii_lowercase();
        if self.has(Self::NULL) && lower == "null" {
            return lower;
        }
        let as_integer = self.has(Self::INTEGER).then(|| integer(trimmed)).flatten();
        let as_number = || self.has(Self::NUMBER).then(|| number(trimmed)).flatten();
        if let Some(number) = as_integer.or_else(as_number) {
            return number;
        }
        if self.has(Self::BOOLEAN) {
            match lower.as_str() {
                "true" | "1" => return "true".to_owned(),
                "false" | "0" => return "false".to_owned(),
                _ => {}
            }
        }
        let may_be_json = self.has(Self::COMPOUND) || !self.has(Self::STRING);
        if may_be_json && serde_json::from_str::<IgnoredAny>(trimmed).is_ok() {
            return trimmed.to_owned();
        }
        quoted(text)
    }

    /// The same by the rules of Transformers, for values that a response template finds.
    pub(super) fn cast(self, text: &str) -> String {
        let trimmed = text.trim();
        let whole = |number: &String| number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if self.has(Self::INTEGER)
            && let Some(number) = number(trimmed).filter(whole)
        {
            return number;
        }
        if self.has(Self::NUMBER)
            && let Some(number) = number(trimmed)
        {
            return if trimmed.contains('.') && whole(&number) {
                number + ".0"
            } else {
                number
            };
        }
        if self.has(Self::BOOLEAN) {
            match trimmed.to_lowercase().as_str() {
                "true" | "1" => return "true".to_owned(),
                "false" | "0" => return "false".to_owned(),
                _ => {}
            }
        }
        if self.has(Self::NULL) && matches!(trimmed, "null" | "None") {
            return "null".to_owned();
        }
        let is_compound = trimmed.starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(trimmed).is_ok();
        match is_compound && self.has(Self::COMPOUND) {
            true => trimmed.to_owned(),
            false => quoted(text),
        }
    }
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// An integer of any length as JSON writes it: no plus, no leading zeros.
fn integer(text: &str) -> Option<String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    Some(if digits.is_empty() {
        "0".to_owned()
    } else {
        format!("{sign}{digits}")
    })
}

/// A finite number as JSON writes it; without a fraction it is an integer.
pub(super) fn number(text: &str) -> Option<String> {
    if let Some(digits) = integer(text) {
        return Some(digits);
    }
    if !text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
    {
        return None;
    }
    let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
    if value.fract() == 0.0 {
        Some(format!("{value:.0}"))
    } else {
        Some(Value::from(value).to_string())
    }
}
