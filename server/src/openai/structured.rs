//! The fields `response_format` and `structured_outputs`: what the text of an answer must be. The rules are vLLM's:
//! exactly one kind of constraint, and `response_format` takes the place of the same kind in `structured_outputs`.

use halyard_engine::{Constraint, GrammarError, StructuredOutputs};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::lenient::{Flag, is_set};
use crate::api_error::{ApiError, clip};

/// The fields of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StructuredFields {
    response_format: Value,
    structured_outputs: Option<Outputs>,
}

/// `structured_outputs`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Outputs {
    json: Value,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<Flag>,
    structural_tag: Option<String>,
    disable_any_whitespace: Option<Flag>,
    disable_additional_properties: Option<Flag>,
    whitespace_pattern: Option<String>,
}

/// What is asked for.
#[derive(Debug, PartialEq)]
pub struct Structured {
    /// What the text must be.
    pub outputs: StructuredOutputs,
    /// The path of the field that asks.
    pub path: &'static str,
}

const FORMAT: &str = "response_format";
const OUTPUTS: &str = "structured_outputs";

impl StructuredFields {
    /// What is asked for.
    ///
    /// # Errors
    /// 400 for more or less than one constraint, and for what is none.
    pub fn read(self) -> Result<Option<Structured>, ApiError> {
        let format = response_format(self.response_format)?;
        let options = self.structured_outputs;
        if format.is_none() && options.is_none() {
            return Ok(None);
        }
        let options = options.unwrap_or_default();
        let mut asked: Vec<(Constraint, &'static str)> = Vec::new();
        match options.json {
            Value::Null => {}
            Value::String(schema) => asked.push((Constraint::Json(schema), "structured_outputs.json")),
            Value::Object(schema) => asked.push((json(schema), "structured_outputs.json")),
            _ => {
                let message = "structured_outputs.json must be a JSON schema: an object, or its text";
                return Err(ApiError::field("structured_outputs.json", message));
            }
        }
        let mut add =
            |constraint: Option<Constraint>, path| asked.extend(constraint.map(|constraint| (constraint, path)));
        add(options.regex.map(Constraint::Regex), "structured_outputs.regex");
        add(options.choice.map(Constraint::Choice), "structured_outputs.choice");
        add(options.grammar.map(Constraint::Grammar), "structured_outputs.grammar");
        add(
            options.json_object.map(|_| Constraint::JsonObject),
            "structured_outputs.json_object",
        );
        add(
            options.structural_tag.map(Constraint::StructuralTag),
            "structured_outputs.structural_tag",
        );
        let is_object_refused = options.json_object == Some(Flag(false));
        let mut is_format = false;
        if let Some((constraint, path)) = format {
            let same = |(known, _): &(Constraint, _)| known.field() == constraint.field();
            asked.retain(|known| !same(known));
            is_format = constraint == Constraint::JsonObject;
            asked.push((constraint, path));
        }
        let names: Vec<&str> = asked.iter().map(|(_, path)| *path).collect();
        let (constraint, path) = match asked.len() {
            1 => asked.remove(0),
            0 => {
                let message = "structured_outputs asks for nothing; send exactly one of json, regex, choice, grammar, \
                               json_object and structural_tag";
                return Err(ApiError::field(OUTPUTS, message));
            }
            _ => {
                let message = format!("{} are sent; only one of them may be", names.join(" and "));
                return Err(ApiError::field(OUTPUTS, message));
            }
        };
        if is_object_refused && !is_format {
            let message = "structured_outputs.json_object is false; it must be true, or left out";
            return Err(ApiError::field("structured_outputs.json_object", message));
        }
        let outputs = StructuredOutputs {
            constraint,
            disable_any_whitespace: is_set(options.disable_any_whitespace),
            disable_additional_properties: is_set(options.disable_additional_properties),
            whitespace_pattern: options.whitespace_pattern,
        };
        Ok(Some(Structured { outputs, path }))
    }
}

fn json(schema: Map<String, Value>) -> Constraint {
    Constraint::Json(Value::Object(schema).to_string())
}

/// What `response_format` asks for; `None`: any text.
fn response_format(format: Value) -> Result<Option<(Constraint, &'static str)>, ApiError> {
    let mut format = match format {
        Value::Null => return Ok(None),
        Value::Object(format) => format,
        other => {
            let found = clip(&other.to_string());
            return Err(ApiError::field(
                FORMAT,
                format!("response_format is {found}; it must be an object with a type"),
            ));
        }
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some((Constraint::JsonObject, FORMAT))),
        Some("json_schema") => {
            let schema = json_schema(format.remove("json_schema").unwrap_or_default())?;
            Ok(Some((json(schema), "response_format.json_schema.schema")))
        }
        Some("structural_tag") => {
            let tag = Value::Object(format).to_string();
            Ok(Some((Constraint::StructuralTag(tag), FORMAT)))
        }
        _ => {
            let found = clip(&format.get("type").unwrap_or(&Value::Null).to_string());
            let message =
                format!("response_format.type is {found}; it must be text, json_object, json_schema or structural_tag");
            Err(ApiError::field("response_format.type", message))
        }
    }
}

/// The schema of `response_format.json_schema`. It is enforced whatever `strict` says, as in vLLM.
fn json_schema(sent: Value) -> Result<Map<String, Value>, ApiError> {
    let wrong = |name: &str, expected: &str| {
        let path = format!("response_format.json_schema{name}");
        ApiError::field(path.clone(), format!("{path} must be {expected}"))
    };
    let Value::Object(mut fields) = sent else {
        return Err(wrong("", "an object with name and schema"));
    };
    if !fields.get("name").is_some_and(Value::is_string) {
        return Err(wrong(".name", "a text"));
    }
    let is_other =
        |name: &str, is: fn(&Value) -> bool| fields.get(name).is_some_and(|value| !value.is_null() && !is(value));
    if is_other("description", Value::is_string) {
        return Err(wrong(".description", "a text"));
    }
    if is_other("strict", Value::is_boolean) {
        return Err(wrong(".strict", "true or false"));
    }
    match fields.remove("schema") {
        Some(Value::Object(schema)) => Ok(schema),
        _ => Err(wrong(".schema", "a JSON schema, an object")),
    }
}

/// The error of a constraint that is not possible; `path`: the field that asks for it.
pub fn refusal(error: GrammarError, path: &'static str) -> ApiError {
    let named = match error {
        GrammarError::Invalid { reason, .. } => GrammarError::Invalid { field: path, reason },
        GrammarError::Late { limit, .. } => GrammarError::Late { field: path, limit },
        GrammarError::TooLarge {
            what,
            found,
            limit,
            remedy,
            ..
        } => GrammarError::TooLarge {
            field: path,
            what,
            found,
            limit,
            remedy,
        },
        other => other,
    };
    ApiError {
        param: Some(path.to_owned()),
        ..named.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::body::Body;
    use serde_json::json;

    fn read(body: Value) -> Result<Option<Structured>, ApiError> {
        Body::new(body)?.take::<StructuredFields>()?.read()
    }

    fn constraint(body: Value) -> (Constraint, &'static str) {
        let asked = read(body).expect("right").expect("a constraint");
        (asked.outputs.constraint, asked.path)
    }

    #[test]
    fn each_kind_is_read() {
        let schema = json!({"type": "object"});
        let text = Constraint::Json(schema.to_string());
        for (body, expected) in [
            (
                json!({"response_format": {"type": "json_object"}}),
                Constraint::JsonObject,
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": null,
                    "description": "d", "schema": schema}}}),
                text.clone(),
            ),
            (json!({"structured_outputs": {"json": schema}}), text.clone()),
            (json!({"structured_outputs": {"json": schema.to_string()}}), text),
            (
                json!({"structured_outputs": {"regex": "a", "json": null}}),
                Constraint::Regex("a".to_owned()),
            ),
            (
                json!({"structured_outputs": {"choice": ["a"]}}),
                Constraint::Choice(vec!["a".to_owned()]),
            ),
            (
                json!({"structured_outputs": {"grammar": "g"}}),
                Constraint::Grammar("g".to_owned()),
            ),
            (
                json!({"structured_outputs": {"json_object": "true"}}),
                Constraint::JsonObject,
            ),
            (
                json!({"structured_outputs": {"structural_tag": "{}"}}),
                Constraint::StructuralTag("{}".to_owned()),
            ),
            (
                json!({"response_format": {"type": "structural_tag", "format": {}}}),
                Constraint::StructuralTag(r#"{"type":"structural_tag","format":{}}"#.to_owned()),
            ),
        ] {
            assert_eq!(constraint(body.clone()).0, expected, "{body}");
        }
        for nothing in [
            json!({}),
            json!({"response_format": null, "structured_outputs": null}),
            json!({"response_format": {"type": "text"}}),
        ] {
            assert_eq!(read(nothing.clone()).expect("nothing asked"), None, "{nothing}");
        }
    }

    #[test]
    fn response_format_takes_the_place_of_its_kind() {
        let body = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}},
            "structured_outputs": {"json": {"b": 2}, "disable_any_whitespace": true, "whitespace_pattern": " "}});
        let Structured { outputs: asked, path } = read(body).expect("right").expect("a constraint");
        assert_eq!(asked.constraint, Constraint::Json(r#"{"a":1}"#.to_owned()));
        assert_eq!(path, "response_format.json_schema.schema");
        assert!(asked.disable_any_whitespace && !asked.disable_additional_properties);
        assert_eq!(asked.whitespace_pattern.as_deref(), Some(" "));
        let text = json!({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}});
        assert_eq!(
            constraint(text),
            (Constraint::Regex("a".to_owned()), "structured_outputs.regex")
        );
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        for (body, param, words) in [
            (
                json!({"structured_outputs": {}}),
                "structured_outputs",
                "exactly one of",
            ),
            (
                json!({"structured_outputs": {"disable_any_whitespace": true}}),
                "structured_outputs",
                "exactly one of",
            ),
            (
                json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
                "structured_outputs",
                "regex and",
            ),
            (
                json!({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
                "structured_outputs",
                "structured_outputs.regex and response_format are sent",
            ),
            (
                json!({"structured_outputs": {"json_object": false}}),
                "structured_outputs.json_object",
                "false",
            ),
            (
                json!({"structured_outputs": {"json": 5}}),
                "structured_outputs.json",
                "schema",
            ),
            (
                json!({"structured_outputs": {"choice": "a"}}),
                "structured_outputs.choice",
                "sequence",
            ),
            (
                json!({"structured_outputs": {"choice": ["a", 1]}}),
                "structured_outputs.choice[1]",
                "string",
            ),
            (
                json!({"structured_outputs": {"regexp": "a"}}),
                "structured_outputs.regexp",
                "unknown field",
            ),
            (json!({"structured_outputs": "a"}), "structured_outputs", "struct"),
            (json!({"response_format": "json"}), "response_format", "object"),
            (json!({"response_format": {}}), "response_format.type", "null"),
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
                "xml",
            ),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format.json_schema",
                "name and schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
                "response_format.json_schema.name",
                "text",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
                "response_format.json_schema.schema",
                "object",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {},
                    "strict": 5}}}),
                "response_format.json_schema.strict",
                "true or false",
            ),
        ] {
            let error = read(body.clone()).expect_err(words);
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
