//! The fields `tools` and `tool_choice` of a chat: definitions are checked and written as vLLM hands them to a
//! template. Calls are not served yet, so tools are taken with `tool_choice` "none" only, where they stand in the
//! prompt and nothing else.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api_error::{ApiError, clip};

/// The fields `tools` and `tool_choice` of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ToolFields {
    tools: Value,
    tool_choice: Value,
}

/// The tools that the template sees; `None`: the request has none.
///
/// # Errors
/// 400 for tools that are no list of functions, an empty list, a choice without tools, and every choice but "none".
pub fn read(fields: &ToolFields) -> Result<Option<Value>, ApiError> {
    let sent = &fields.tools;
    if sent.as_array().is_some_and(Vec::is_empty) {
        let message = "tools is an empty list; send at least one tool or leave it out";
        return Err(ApiError::field("tools", message));
    }
    let tools = definitions(sent)?;
    let choice = &fields.tool_choice;
    let Some(tools) = tools else {
        return match choice {
            Value::Null => Ok(None),
            Value::String(text) if text == "none" => Ok(None),
            _ => Err(ApiError::field(
                "tool_choice",
                format!(
                    "tool_choice is {}, but there are no tools; send tools or leave it out",
                    clip(&choice.to_string())
                ),
            )),
        };
    };
    match choice {
        Value::String(text) if text == "none" => Ok(Some(tools)),
        _ => Err(ApiError::unsupported(
            "tools",
            "leave it out, or send tool_choice \"none\" to have the tools in the prompt alone",
        )),
    }
}

/// The definitions of a list of tools, with the fields that templates print in vLLM's order; absent ones are null, as
/// there.
///
/// # Errors
/// 400 with the path of what is wrong.
pub fn definitions(sent: &Value) -> Result<Option<Value>, ApiError> {
    let list = match sent {
        Value::Null => return Ok(None),
        Value::Array(list) => list,
        _ => return Err(ApiError::field("tools", "tools must be a list of tools")),
    };
    let written: Vec<Value> = list.iter().enumerate().map(definition).collect::<Result<_, _>>()?;
    Ok((!written.is_empty()).then_some(Value::Array(written)))
}

fn definition((index, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let wrong =
        |path: &str, expected: &str| ApiError::field("tools", format!("tools[{index}]{path} must be {expected}"));
    let tool = tool
        .as_object()
        .ok_or_else(|| wrong("", "an object with type and function"))?;
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(wrong(".type", "\"function\""));
    }
    let function = tool
        .get("function")
        .and_then(Value::as_object)
        .ok_or_else(|| wrong(".function", "an object with a name"))?;
    let field = |name: &str| function.get(name).filter(|value| !value.is_null());
    let name = field("name").filter(|name| name.is_string());
    let mut written = Map::new();
    let name = name.ok_or_else(|| wrong(".function.name", "a string"))?;
    written.insert("name".to_owned(), name.clone());
    let description = field("description");
    if description.is_some_and(|text| !text.is_string()) {
        return Err(wrong(".function.description", "a string"));
    }
    written.insert("description".to_owned(), description.cloned().unwrap_or(Value::Null));
    let parameters = field("parameters");
    if parameters.is_some_and(|schema| !schema.is_object()) {
        return Err(wrong(".function.parameters", "an object, a JSON schema"));
    }
    written.insert("parameters".to_owned(), parameters.cloned().unwrap_or(Value::Null));
    if let Some(strict) = field("strict") {
        written.insert("strict".to_owned(), strict.clone());
    }
    Ok(json!({"type": "function", "function": written}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Option<Value>, ApiError> {
        super::read(&serde_json::from_value(body).expect("any value is taken"))
    }

    fn tool() -> Value {
        json!({"function": {"parameters": {"type": "object"}, "name": "f", "extra": 1}, "type": "function"})
    }

    #[test]
    fn tools_stand_in_the_prompt_when_none_is_to_be_called() {
        let tools = read(json!({"tools": [tool()], "tool_choice": "none"})).expect("taken");
        // vLLM's order and nulls: templates print the definition as JSON.
        let expected =
            r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{"type":"object"}}}]"#;
        assert_eq!(tools.expect("tools").to_string(), expected);
        for nothing in [
            json!({}),
            json!({"tools": null}),
            json!({"tool_choice": "none"}),
            json!({"tool_choice": null}),
        ] {
            assert_eq!(read(nothing.clone()).expect("nothing asked"), None, "{nothing}");
        }
    }

    #[test]
    fn other_choices_and_wrong_tools_are_refused_by_name() {
        let named = json!({"type": "function", "function": {"name": "f"}});
        for choice in [
            json!(null),
            json!("auto"),
            json!("required"),
            named.clone(),
            json!("some"),
        ] {
            let error = read(json!({"tools": [tool()], "tool_choice": choice})).expect_err("not served yet");
            assert_eq!(error.param.as_deref(), Some("tools"), "{choice}");
            assert_eq!(error.code, Some("unsupported_parameter"), "{choice}");
        }
        for choice in [json!("auto"), json!("required"), named, json!(5)] {
            let error = read(json!({"tool_choice": choice})).expect_err("no tools");
            assert_eq!(error.param.as_deref(), Some("tool_choice"), "{choice}");
        }
        for tools in [
            json!([]),
            json!("f"),
            json!({}),
            json!([5]),
            json!([{"type": "function"}]),
            json!([{"type": "x", "function": {"name": "f"}}]),
            json!([{"function": {"name": 5}}]),
            json!([{"function": {"name": "f", "parameters": []}}]),
            json!([{"function": {"name": "f", "description": 5}}]),
        ] {
            let error = read(json!({"tools": tools, "tool_choice": "none"})).expect_err("wrong");
            assert_eq!(error.param.as_deref(), Some("tools"), "{tools}");
        }
    }
}
