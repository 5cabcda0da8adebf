//! JSON schemas on their way to the grammar library: read within limits, with vLLM's options, without formats that say
//! nothing. What the library does not support it refuses by the keyword's name.

use serde_json::{Map, Value, json};

use crate::constraint::StructuredOutputs;
use crate::error::GrammarError;

/// Keywords whose values are maps of schemas by names.
const MAPS: [&str; 6] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
];

/// Keywords whose values are a schema or a list of schemas.
const SUBSCHEMAS: [&str; 16] = [
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contains",
    "additionalItems",
    "unevaluatedItems",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
    "items",
    "prefixItems",
    "allOf",
    "anyOf",
    "oneOf",
];

/// Formats that JSON Schema defines (2020-12 validation, 7.3). Those that the grammar library does not know it refuses.
/// All others are annotations, which say nothing.
const FORMATS: [&str; 19] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "uri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
    "regex",
];

/// Dates of the calendar: the library's own format has a 29th of February in every year.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|\
                    02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|\
                    [13579][26])00)-02-29)";
/// Times of a day: the library's own format has a leap second in every minute.
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// The pattern of a format that the library takes too widely.
fn pattern_of(format: &str) -> Option<String> {
    let pattern = match format {
        "date" => DATE.to_string(),
        "time" => TIME.to_string(),
        "date-time" => format!("{DATE}T{TIME}"),
        _ => return None,
    };
    Some(format!("^{pattern}$"))
}

/// The options of a schema.
#[derive(Clone, Debug, Default)]
pub(crate) struct SchemaOptions {
    pub is_compact: bool,
    pub closes_objects: bool,
    pub whitespace: Option<String>,
}

impl SchemaOptions {
    pub(crate) fn of(asked: &StructuredOutputs) -> SchemaOptions {
        SchemaOptions {
            is_compact: asked.disable_any_whitespace,
            closes_objects: asked.disable_additional_properties,
            whitespace: asked.whitespace_pattern.clone(),
        }
    }
}

/// A schema for the library, with options that it reads.
pub(crate) fn prepared(field: &'static str, mut schema: Value, options: &SchemaOptions) -> Result<Value, GrammarError> {
    visit(&mut schema, &mut |entries| prepare(entries, options));
    let mut entries = match schema {
        Value::Object(entries) => entries,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError::invalid(field, "the schema is false: nothing fits it")),
        other => {
            let found = match other {
                Value::Array(_) => "a list",
                Value::String(_) => "a text",
                _ => "no object",
            };
            return Err(GrammarError::invalid(
                field,
                format!("a schema is an object, and this is {found}"),
            ));
        }
    };
    if entries.contains_key("x-guidance") {
        let reason =
            "\"x-guidance\" is not supported; send disable_any_whitespace or whitespace_pattern beside the schema";
        return Err(GrammarError::invalid(field, reason));
    }
    let mut library = Map::new();
    library.insert("whitespace_flexible".to_string(), json!(!options.is_compact));
    if let Some(pattern) = options.whitespace.as_ref().filter(|_| !options.is_compact) {
        library.insert("whitespace_pattern".to_string(), json!(pattern));
    }
    entries.insert("x-guidance".to_string(), Value::Object(library));
    Ok(Value::Object(entries))
}

/// Calls `change` for each schema in a schema, inner ones first. Values of enum, const, default and examples are none.
fn visit(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match schema {
        Value::Object(entries) => {
            for (name, value) in entries.iter_mut() {
                if MAPS.contains(&name.as_str()) {
                    if let Value::Object(named) = value {
                        named.values_mut().for_each(|inner| visit(inner, change));
                    }
                } else if SUBSCHEMAS.contains(&name.as_str()) {
                    visit(value, change);
                }
            }
            change(entries);
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| visit(inner, change)),
        _ => {}
    }
}

fn prepare(entries: &mut Map<String, Value>, options: &SchemaOptions) {
    let says_nothing = |format: &Value| format.as_str().is_some_and(|name| !FORMATS.contains(&name));
    if entries.get("format").is_some_and(says_nothing) {
        entries.remove("format");
    }
    if let Some(pattern) = entries.get("format").and_then(Value::as_str).and_then(pattern_of) {
        entries.remove("format");
        if !entries.contains_key("pattern") {
            entries.insert("pattern".to_string(), Value::String(pattern));
        } else if let Value::Array(all) = entries.entry("allOf").or_insert_with(|| json!([])) {
            all.push(json!({"pattern": pattern}));
        }
    }
    let names_properties = ["properties", "patternProperties"]
        .iter()
        .any(|name| entries.get(*name).is_some_and(Value::is_object));
    if options.closes_objects && names_properties && !entries.contains_key("additionalProperties") {
        entries.insert("additionalProperties".to_string(), Value::Bool(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared_by(schema: Value, options: SchemaOptions) -> Value {
        let mut prepared = prepared("json", schema, &options).expect("a schema");
        prepared.as_object_mut().expect("an object").remove("x-guidance");
        prepared
    }

    #[test]
    fn objects_are_closed_where_schemas_are_and_not_in_values() {
        let options = SchemaOptions {
            closes_objects: true,
            ..SchemaOptions::default()
        };
        let schema = json!({"properties": {"a": {"items": {"properties": {}}}, "properties": {"type": "string"}},
            "enum": [{"properties": {}}], "$defs": {"d": {"patternProperties": {"x": {}},
                "additionalProperties": true}}});
        let expected = json!({"properties": {
                "a": {"items": {"properties": {}, "additionalProperties": false}}, "properties": {"type": "string"}},
            "enum": [{"properties": {}}],
            "$defs": {"d": {"patternProperties": {"x": {}}, "additionalProperties": true}},
            "additionalProperties": false});
        assert_eq!(prepared_by(schema.clone(), options), expected);
        assert_eq!(prepared_by(schema.clone(), SchemaOptions::default()), schema);
    }

    #[test]
    fn formats_that_say_nothing_are_left_out() {
        let schema = json!({"type": "string", "format": "password"});
        assert_eq!(prepared_by(schema, SchemaOptions::default()), json!({"type": "string"}));
        let kept = json!({"properties": {"format": {"type": "string", "format": "email"}}, "const": {"format": "x"}});
        assert_eq!(prepared_by(kept.clone(), SchemaOptions::default()), kept);
    }
}
