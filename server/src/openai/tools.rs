//! The fields `tools`, `tool_choice` and `parallel_tool_calls` of a chat: definitions are checked and written as vLLM
//! hands them to a template. What they ask for ([`AskedTools`]) knows no API.

use halyard_engine::{Constraint, Function, named_call, required_calls};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::lenient::Flag;
use super::policy::Limits;
use super::structured::refusal;
use crate::api_error::{ApiError, clip};

/// The fields of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ToolFields {
    tools: Value,
    tool_choice: Value,
    parallel_tool_calls: Option<Flag>,
}

/// Whether a model calls functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// It does not.
    None,
    /// If it wants to.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedTools {
    /// Tools that the template sees, a list of definitions; `None`: it sees none.
    pub definitions: Option<Value>,
    /// Whether they are called.
    pub choice: ToolChoice,
    /// Whether there may be several calls in one answer.
    pub is_parallel: bool,
}

/// What a server does with tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedTools {
    /// Calls are read from what the model writes.
    pub calls: bool,
    /// Tools that are not to be called are left out of the prompt.
    pub excludes_uncalled: bool,
}

/// The longest name of a function, which is OpenAI's bound.
const MAX_NAME_CHARS: usize = 64;
/// Names that an error lists.
const SHOWN_NAMES: usize = 16;

/// What a body asks for.
///
/// # Errors
/// 400 for tools that are no list of functions, an empty list, a choice without tools, one that is none, and calls
/// where the server does not serve them.
pub fn read(fields: &ToolFields, limits: Limits, serves: ServedTools) -> Result<AskedTools, ApiError> {
    if fields.tools.as_array().is_some_and(Vec::is_empty) {
        let message = "tools is an empty list; send at least one tool or leave it out";
        return Err(ApiError::field("tools", message));
    }
    let definitions = definitions(&fields.tools, CHAT, limits)?;
    let choice = match &definitions {
        Some(tools) => read_choice(&fields.tool_choice, tools)?,
        None => without_tools(&fields.tool_choice)?,
    };
    let is_parallel = fields.parallel_tool_calls.is_none_or(|Flag(set)| set);
    AskedTools::new(definitions, choice, is_parallel, serves)
}

impl AskedTools {
    /// What a request asks of a server.
    ///
    /// # Errors
    /// 400 for calls that the server does not serve.
    pub fn new(
        definitions: Option<Value>,
        choice: ToolChoice,
        is_parallel: bool,
        serves: ServedTools,
    ) -> Result<Self, ApiError> {
        check_served(&choice, serves)?;
        let is_left_out = choice == ToolChoice::None && serves.excludes_uncalled;
        Ok(AskedTools {
            definitions: definitions.filter(|_| !is_left_out),
            choice,
            is_parallel,
        })
    }

    /// What the text of an answer must be for the choice to hold.
    ///
    /// # Errors
    /// 400 for schemas that cannot be put together.
    pub fn forced(&self) -> Result<Option<Constraint>, ApiError> {
        let tools = self.definitions.as_ref().and_then(Value::as_array);
        let functions = tools.into_iter().flatten().map(|tool| Function {
            name: tool["function"]["name"].as_str().unwrap_or_default().to_owned(),
            parameters: Some(tool["function"]["parameters"].clone()),
        });
        let mut functions: Vec<Function> = functions.collect();
        match &self.choice {
            ToolChoice::None | ToolChoice::Auto => Ok(None),
            ToolChoice::Required => {
                let constraint = required_calls(&functions, self.is_parallel);
                constraint.map(Some).map_err(|error| refusal(error, FORCED_BY))
            }
            ToolChoice::Named(name) => {
                functions.retain(|function| function.name == *name);
                Ok(functions.last().map(named_call))
            }
        }
    }
}

/// The field that an error of a forced call's grammar names.
pub const FORCED_BY: &str = "tools";

/// The choice where there are no tools.
///
/// # Errors
/// 400 for one that needs some.
pub fn without_tools(choice: &Value) -> Result<ToolChoice, ApiError> {
    match choice {
        Value::Null => Ok(ToolChoice::None),
        Value::String(text) if text == "none" => Ok(ToolChoice::None),
        _ => {
            let shown = clip(&choice.to_string());
            let message = format!("tool_choice is {shown}, but there are no tools; send tools or leave it out");
            Err(ApiError::field("tool_choice", message))
        }
    }
}

/// The choice among `tools`; nothing is "auto".
fn read_choice(choice: &Value, tools: &Value) -> Result<ToolChoice, ApiError> {
    let wrong = |message: String| Err(ApiError::field("tool_choice", message));
    match choice {
        Value::Null => return Ok(ToolChoice::Auto),
        Value::String(text) => match text.as_str() {
            "none" => return Ok(ToolChoice::None),
            "auto" => return Ok(ToolChoice::Auto),
            "required" => return Ok(ToolChoice::Required),
            _ => {}
        },
        Value::Object(object) if object.get("type").is_none_or(|kind| kind == "function") => {
            if let Some(name) = choice["function"]["name"].as_str() {
                return named(name, tools);
            }
        }
        _ => {}
    }
    wrong(format!(
        "tool_choice is {}; it must be \"none\", \"auto\", \"required\" or {{\"type\": \"function\", \"function\": \
         {{\"name\": \"…\"}}}}",
        clip(&choice.to_string())
    ))
}

/// The choice of one function, which must be among `tools`.
///
/// # Errors
/// 400 with some that are.
pub fn named(name: &str, tools: &Value) -> Result<ToolChoice, ApiError> {
    let tools = tools.as_array().into_iter().flatten();
    let mut names = tools.filter_map(|tool| tool["function"]["name"].as_str());
    if names.clone().any(|known| known == name) {
        return Ok(ToolChoice::Named(name.to_owned()));
    }
    let known: Vec<&str> = names.by_ref().take(SHOWN_NAMES).collect();
    let more = if names.next().is_some() { "`, …" } else { "`" };
    let message = format!(
        "tool_choice names the function `{}`, which tools does not have; send one of `{}{more}",
        clip(name),
        known.join("`, `")
    );
    Err(ApiError::field("tool_choice", message))
}

/// Refuses calls that this server does not serve. Forced ones need no parser: they are written as a grammar says.
fn check_served(choice: &ToolChoice, serves: ServedTools) -> Result<(), ApiError> {
    match choice {
        ToolChoice::None | ToolChoice::Required | ToolChoice::Named(_) => Ok(()),
        ToolChoice::Auto if serves.calls => Ok(()),
        ToolChoice::Auto => {
            let message = "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set; \
                           start the server with them, or send tool_choice \"none\"";
            Err(ApiError::field("tool_choice", message))
        }
    }
}

/// How an API writes the definition of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolForm {
    /// Its `type`, which may be left out.
    pub kind: &'static str,
    /// The field that holds the others; `None`: they stand beside the type.
    pub within: Option<&'static str>,
    /// The field of the schema.
    pub parameters: &'static str,
}

/// The form of chats.
pub const CHAT: ToolForm = ToolForm {
    kind: "function",
    within: Some("function"),
    parameters: "parameters",
};

/// The definitions of a list of tools in the form of chats, with the fields that templates print in vLLM's order;
/// absent ones are null, as there.
///
/// # Errors
/// 400 with the path of what is wrong, or the limit.
pub fn definitions(sent: &Value, form: ToolForm, limits: Limits) -> Result<Option<Value>, ApiError> {
    let list = match sent {
        Value::Null => return Ok(None),
        Value::Array(list) => list,
        _ => return Err(ApiError::field("tools", "tools must be a list of tools")),
    };
    if list.len() > limits.tools {
        let message = format!(
            "tools has {} entries; at most {} are taken: send fewer",
            list.len(),
            limits.tools
        );
        return Err(ApiError::field("tools", message));
    }
    let bytes = sent.to_string().len();
    if bytes > limits.tool_bytes {
        let message = format!(
            "tools is {bytes} bytes of JSON; at most {} are taken: send fewer or shorter definitions",
            limits.tool_bytes
        );
        return Err(ApiError::field("tools", message));
    }
    let entries = list.iter().enumerate();
    let written: Vec<Value> = entries
        .map(|(index, tool)| definition(index, tool, form))
        .collect::<Result<_, _>>()?;
    Ok((!written.is_empty()).then_some(Value::Array(written)))
}

fn definition(index: usize, tool: &Value, form: ToolForm) -> Result<Value, ApiError> {
    let wrong =
        |path: &str, expected: &str| ApiError::field("tools", format!("tools[{index}]{path} must be {expected}"));
    let all = tool.as_object().ok_or_else(|| {
        wrong(
            "",
            &format!(
                "an object with {}",
                form.within.map_or("a name", |_| "type and function")
            ),
        )
    })?;
    if tool.get("type").is_some_and(|kind| kind != form.kind) {
        return Err(wrong(".type", &format!("\"{}\"", form.kind)));
    }
    let (function, within) = match form.within {
        Some(name) => {
            let function = all.get(name).and_then(Value::as_object);
            let path = format!(".{name}");
            (function.ok_or_else(|| wrong(&path, "an object with a name"))?, path)
        }
        None => (all, String::new()),
    };
    let path = |name: &str| format!("{within}.{name}");
    let field = |name: &str| function.get(name).filter(|value| !value.is_null());
    let name = field("name").filter(|name| name.is_string());
    let mut written = Map::new();
    let name = name.ok_or_else(|| wrong(&path("name"), "a string"))?;
    let text = name.as_str().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if text.is_empty() || text.len() > MAX_NAME_CHARS || !text.chars().all(is_plain) {
        let message = format!(
            "tools[{index}]{} is {}; it must be 1 to {MAX_NAME_CHARS} letters, digits, _ or -",
            path("name"),
            clip(&name.to_string())
        );
        return Err(ApiError::field("tools", message));
    }
    written.insert("name".to_owned(), name.clone());
    let description = field("description");
    if description.is_some_and(|text| !text.is_string()) {
        return Err(wrong(&path("description"), "a string"));
    }
    written.insert("description".to_owned(), description.cloned().unwrap_or(Value::Null));
    let parameters = field(form.parameters);
    if parameters.is_some_and(|schema| !schema.is_object()) {
        return Err(wrong(&path(form.parameters), "an object, a JSON schema"));
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

    const CALLS: ServedTools = ServedTools {
        calls: true,
        excludes_uncalled: false,
    };

    fn read_as(serves: ServedTools, body: Value) -> Result<AskedTools, ApiError> {
        let fields = serde_json::from_value(body).expect("any value is taken");
        let limits = Limits {
            tools: 3,
            tool_bytes: 400,
            ..Limits::default()
        };
        super::read(&fields, limits, serves)
    }

    fn read(body: Value) -> Result<AskedTools, ApiError> {
        read_as(CALLS, body)
    }

    fn tool() -> Value {
        json!({"function": {"parameters": {"type": "object"}, "name": "f", "extra": 1}, "type": "function"})
    }

    fn named(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn tools_are_called_unless_the_request_says_otherwise() {
        let nothing_said = read(json!({"tools": [tool()]})).expect("taken");
        // vLLM's order and nulls: templates print the definition as JSON.
        let expected =
            r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{"type":"object"}}}]"#;
        let definitions = nothing_said.definitions.expect("tools");
        assert_eq!(definitions.to_string(), expected);
        for (choice, expected) in [
            (json!(null), ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
        ] {
            let body = json!({"tools": [tool()], "tool_choice": choice, "parallel_tool_calls": false});
            let asked = read(body).expect("taken");
            assert_eq!((asked.choice, asked.is_parallel), (expected, false), "{choice}");
            assert_eq!(asked.definitions.as_ref(), Some(&definitions), "{choice}");
        }
        assert!(nothing_said.is_parallel);
        for nothing in [
            json!({}),
            json!({"tools": null, "parallel_tool_calls": null}),
            json!({"tool_choice": "none"}),
            json!({"tool_choice": null}),
        ] {
            let asked = read(nothing.clone()).expect("nothing asked");
            assert_eq!((asked.definitions, asked.choice), (None, ToolChoice::None), "{nothing}");
        }
    }

    #[test]
    fn tools_that_are_not_called_can_be_left_out_of_the_prompt() {
        let excludes = ServedTools {
            excludes_uncalled: true,
            ..CALLS
        };
        let definitions = |choice: &str| {
            let asked = read_as(excludes, json!({"tools": [tool()], "tool_choice": choice}));
            asked.expect("taken").definitions
        };
        assert_eq!(definitions("none"), None);
        assert!(definitions("auto").is_some());
    }

    #[test]
    fn calls_need_a_parser() {
        let without = ServedTools { calls: false, ..CALLS };
        for choice in [json!(null), json!("auto")] {
            let body = json!({"tools": [tool()], "tool_choice": choice});
            let error = read_as(without, body).expect_err("no parser");
            assert_eq!(error.param.as_deref(), Some("tool_choice"), "{choice}");
            let start = "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set; ";
            assert!(error.message.starts_with(start), "{}", error.message);
        }
        let none = json!({"tools": [tool()], "tool_choice": "none"});
        assert_eq!(read_as(without, none).expect("not called").choice, ToolChoice::None);
    }

    #[test]
    fn forced_calls_need_no_parser_and_say_what_the_text_must_be() {
        let without = ServedTools { calls: false, ..CALLS };
        let forced = |choice: Value, is_parallel: bool| {
            let body = json!({"tools": [tool()], "tool_choice": choice, "parallel_tool_calls": is_parallel});
            let asked = read_as(without, body).expect("taken");
            match asked.forced().expect("schemas").expect("a constraint") {
                Constraint::Json(schema) => serde_json::from_str::<Value>(&schema).expect("JSON"),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(forced(named("f"), true), json!({"type": "object"}));
        let required = forced(json!("required"), true);
        assert_eq!(
            required["items"]["anyOf"][0]["properties"]["name"]["enum"],
            json!(["f"])
        );
        assert_eq!(required.get("maxItems"), None);
        assert_eq!(forced(json!("required"), false)["maxItems"], 1);
        let free = read(json!({"tools": [tool()]})).expect("taken");
        assert_eq!(free.forced().expect("nothing to say"), None);
    }

    #[test]
    fn wrong_choices_are_refused_with_what_is_right() {
        for (choice, shown) in [
            (
                json!("some"),
                "\"some\"; it must be \"none\", \"auto\", \"required\" or {",
            ),
            (json!(5), "tool_choice is 5"),
            (json!({}), "tool_choice is {}"),
            (json!({"type": "function"}), "it must be"),
            (json!({"type": "function", "function": {"name": 5}}), "it must be"),
            (json!({"type": "custom", "custom": {"name": "f"}}), "it must be"),
            (
                named("g"),
                "names the function `g`, which tools does not have; send one of `f`",
            ),
        ] {
            let error = read(json!({"tools": [tool()], "tool_choice": choice})).expect_err("wrong");
            assert_eq!(error.param.as_deref(), Some("tool_choice"), "{choice}");
            assert!(error.message.contains(shown), "{}", error.message);
        }
        for choice in [json!("auto"), json!("required"), named("f"), json!(5)] {
            let error = read(json!({"tool_choice": choice})).expect_err("no tools");
            assert_eq!(error.param.as_deref(), Some("tool_choice"), "{choice}");
            assert!(error.message.contains("there are no tools"), "{}", error.message);
        }
    }

    #[test]
    fn wrong_tools_are_refused_with_value_limit_and_remedy() {
        let with_name = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
        let long = json!([{"function": {"name": "f", "description": "d".repeat(400)}}]);
        for (tools, shown) in [
            (json!([]), "empty list"),
            (json!("f"), "a list of tools"),
            (json!({}), "a list of tools"),
            (json!([5]), "tools[0] must be"),
            (json!([{"type": "function"}]), "tools[0].function must be"),
            (
                json!([{"type": "x", "function": {"name": "f"}}]),
                "tools[0].type must be",
            ),
            (
                json!([tool(), {"function": {"name": 5}}]),
                "tools[1].function.name must be",
            ),
            (
                json!([{"function": {"name": "f", "parameters": []}}]),
                ".parameters must be",
            ),
            (
                json!([{"function": {"name": "f", "description": 5}}]),
                ".description must be",
            ),
            (
                with_name(""),
                "name is \"\"; it must be 1 to 64 letters, digits, _ or -",
            ),
            (with_name("a b"), "name is \"a b\"; it must be"),
            (with_name("größe"), "name is \"größe\"; it must be"),
            (with_name(&"n".repeat(65)), "it must be 1 to 64"),
            (
                json!([tool(), tool(), tool(), tool()]),
                "4 entries; at most 3 are taken: send fewer",
            ),
            (long, "bytes of JSON; at most 400 are taken"),
        ] {
            let error = read(json!({"tools": tools, "tool_choice": "none"})).expect_err(shown);
            assert_eq!(error.param.as_deref(), Some("tools"), "{tools}");
            assert!(error.message.contains(shown), "{}", error.message);
        }
        let longest = "aZ_9-".repeat(12) + "name";
        read(json!({"tools": with_name(&longest)})).expect("64 characters are taken");
    }
}
