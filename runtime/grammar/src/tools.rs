//! Constraints of forced tool calls, as vLLM makes them: `tool_choice` "required" is a list of calls, a named function
//! is its arguments alone.

use serde_json::{Map, Value, json};

use crate::constraint::Constraint;
use crate::error::GrammarError;

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; `None`: an object.
    pub parameters: Option<Value>,
}

impl Function {
    fn schema(&self) -> Value {
        let asked = self.parameters.clone().unwrap_or(Value::Null);
        let is_empty = asked.is_null() || asked.as_object().is_some_and(Map::is_empty);
        if is_empty {
            json!({"type": "object", "properties": {}})
        } else {
            asked
        }
    }
}

/// The text of one or more calls, as JSON: `[{"name": …, "parameters": …}, …]`. Not `parallel`: of exactly one.
///
/// # Errors
/// No functions; two functions whose schemas define other things by one name.
pub fn required_calls(functions: &[Function], parallel: bool) -> Result<Constraint, GrammarError> {
    if functions.is_empty() {
        return Err(GrammarError::invalid("tools", "there is none to call"));
    }
    let mut definitions = Map::new();
    let mut calls = Vec::new();
    for function in functions {
        let mut parameters = function.schema();
        // References within a schema start at its root, which is the list's.
        let own = parameters.as_object_mut().and_then(|schema| schema.remove("$defs"));
        match own {
            None | Some(Value::Null) => {}
            Some(Value::Object(own)) => {
                for (name, schema) in own {
                    if definitions.get(&name).is_some_and(|known| *known != schema) {
                        let reason = format!("two functions define `{name}` in $defs, with different schemas");
                        return Err(GrammarError::invalid("tools", reason));
                    }
                    definitions.insert(name, schema);
                }
            }
            Some(_) => {
                let reason = format!("$defs in the parameters of `{}` must be an object", function.name);
                return Err(GrammarError::invalid("tools", reason));
            }
        }
        calls.push(json!({
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [function.name]}, "parameters": parameters},
            "required": ["name", "parameters"],
            "additionalProperties": false,
        }));
    }
    let mut schema = json!({"type": "array", "minItems": 1, "items": {"anyOf": calls}});
    if !parallel {
        schema["maxItems"] = json!(1);
    }
    if !definitions.is_empty() {
        schema["$defs"] = Value::Object(definitions);
    }
    Ok(Constraint::Json(schema.to_string()))
}

/// The text of a function's arguments.
pub fn named_call(function: &Function) -> Constraint {
    Constraint::Json(function.schema().to_string())
}
