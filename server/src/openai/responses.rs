//! `/v1/responses`, OpenAI's newer API. Its items become the messages of a chat (`responses_input.rs`), its other
//! fields what a chat asks for; the answer is written by `responses_answer.rs`. Stored responses come as a
//! [`Conversation`].

use halyard_engine::{Constraint, StructuredOutputs};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::{Api, Generation, openai_error};
use super::asked_chat::{AskedChat, ReasoningEffort, force_calls};
use super::body::Body;
use super::kept::{Conversation, Kept, input_items};
use super::lenient::{Flag, Int, is_set};
use super::model::ModelContext;
use super::responses_answer::{Echo, ResponsesFormat, Stored};
use super::responses_input::chat_messages;
use super::shared::Shared;
use super::structured::Structured;
use super::tools::{self, AskedTools, ToolChoice, ToolForm};
use super::unsupported;
use crate::api_error::{ApiError, clip};

/// The API.
pub const API: Api = Api {
    path: "/v1/responses",
    id_prefix: "resp_",
    is_stored: true,
    says_abort: false,
    has_prompts: false,
    read,
    write_error: openai_error,
};

/// How tools are defined.
const TOOL: ToolForm = ToolForm {
    kind: "function",
    within: None,
    parameters: "parameters",
};

#[derive(Deserialize)]
struct ResponsesFields {
    #[serde(default)]
    input: Value,
    instructions: Option<String>,
    max_output_tokens: Option<Int>,
    #[serde(default)]
    tools: Value,
    #[serde(default)]
    tool_choice: Value,
    parallel_tool_calls: Option<Flag>,
    text: Option<TextFields>,
    reasoning: Option<ReasoningFields>,
    include_reasoning: Option<Flag>,
    metadata: Option<Map<String, Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    store: Option<Flag>,
    background: Option<Flag>,
    previous_response_id: Option<String>,
}

/// `text`.
#[derive(Deserialize)]
struct TextFields {
    #[serde(default)]
    format: Value,
    verbosity: Option<String>,
}

/// `reasoning`.
#[derive(Deserialize)]
struct ReasoningFields {
    effort: Option<ReasoningEffort>,
}

/// The field of a schema for the answer.
const SCHEMA: &str = "text.format.schema";

/// Refuses what needs stored answers, and what would change the answer and is not served.
fn refuse(body: &Body, is_stored: bool) -> Result<(), ApiError> {
    unsupported::refuse(body)?;
    let is_asked = |name: &str| !matches!(body.get(name), Value::Null | Value::Bool(false));
    for (name, remedy) in [
        (
            "previous_response_id",
            "answers are not stored without --enable-responses-store: send the items of the conversation in input",
        ),
        (
            "conversation",
            "conversations are not stored: send their items in input",
        ),
        (
            "background",
            "answers are not stored without --enable-responses-store: leave it out and wait, or send stream true",
        ),
        (
            "prompt",
            "templates of prompts are not stored: send instructions and input",
        ),
    ] {
        let needs_store = matches!(name, "previous_response_id" | "background");
        if is_asked(name) && !(is_stored && needs_store) {
            return Err(ApiError::unsupported(name, remedy));
        }
    }
    if !matches!(body.get("truncation").as_str(), None | Some("disabled")) {
        return Err(ApiError::unsupported(
            "truncation",
            "no item is dropped unasked: send \"disabled\" or leave it out",
        ));
    }
    let num_logprobs = body.get("top_logprobs");
    if !num_logprobs.is_null() && Int::of(num_logprobs) != Some(0) {
        return Err(ApiError::unsupported(
            "top_logprobs",
            "ask /v1/chat/completions for log-probabilities",
        ));
    }
    let include = body.get("include").as_array().map_or(&[][..], Vec::as_slice);
    if include.iter().any(|name| name == "message.output_text.logprobs") {
        return Err(ApiError::unsupported(
            "include",
            "ask /v1/chat/completions for log-probabilities",
        ));
    }
    Ok(())
}

fn read_choice(choice: &Value, definitions: Option<&Value>) -> Result<ToolChoice, ApiError> {
    let Some(tools) = definitions else {
        // Clients send "auto" always.
        return match choice.as_str() {
            Some("auto") => Ok(ToolChoice::None),
            _ => tools::without_tools(choice),
        };
    };
    match (choice.as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => return Ok(ToolChoice::Auto),
        (Some("none"), _) => return Ok(ToolChoice::None),
        (Some("required"), _) => return Ok(ToolChoice::Required),
        (None, _) if choice.is_null() => return Ok(ToolChoice::Auto),
        (None, Some(name)) if choice["type"] == "function" => return tools::named(name, tools),
        _ => {}
    }
    let message = format!(
        "tool_choice is {}; it must be \"none\", \"auto\", \"required\" or {{\"type\": \"function\", \"name\": \"…\"}}",
        clip(&choice.to_string())
    );
    Err(ApiError::field("tool_choice", message))
}

/// What `text.format` asks for.
fn read_format(format: &Value) -> Result<Option<Structured>, ApiError> {
    const FORMAT: &str = "text.format";
    let (constraint, path) = match format["type"].as_str() {
        Some("text") => return Ok(None),
        None if format.is_null() => return Ok(None),
        Some("json_object") => (Constraint::JsonObject, FORMAT),
        Some("json_schema") => match &format["schema"] {
            schema @ Value::Object(_) => (Constraint::Json(schema.to_string()), SCHEMA),
            _ => {
                return Err(ApiError::field(
                    SCHEMA,
                    format!("{SCHEMA} must be a JSON schema, an object"),
                ));
            }
        },
        _ => {
            let found = clip(&format.to_string());
            let message = format!("{FORMAT} is {found}; its type must be text, json_object or json_schema");
            return Err(ApiError::field(FORMAT, message));
        }
    };
    let outputs = StructuredOutputs::from(constraint);
    Ok(Some(Structured { outputs, path }))
}

/// Refuses more than one sample, log-probabilities of the prompt, and a second format.
fn check_shared(shared: &Shared, format: Option<&Structured>) -> Result<(), ApiError> {
    if shared.params.n != 1 {
        return Err(ApiError::unsupported("n", "an answer has one sample: leave it out"));
    }
    if shared.params.prompt_logprobs.is_some() {
        return Err(ApiError::unsupported(
            "prompt_logprobs",
            "ask /v1/chat/completions for them",
        ));
    }
    match (&shared.structured, format) {
        (Some(other), Some(format)) => {
            let message = format!("{} and {} are sent; only one of them may be", other.path, format.path);
            Err(ApiError::field(format.path, message))
        }
        _ => Ok(()),
    }
}

/// What a body asks of the store. Clients send `store` true, or nothing, also where nothing is stored.
fn stored(fields: &ResponsesFields, conversation: Option<&Conversation>) -> Result<Stored, ApiError> {
    let store = conversation.is_some() && fields.store.is_none_or(|Flag(set)| set);
    let background = is_set(fields.background);
    if background && !store {
        let message = "background needs a stored response: send store true, or leave both out";
        return Err(ApiError::field("background", message));
    }
    Ok(Stored {
        background,
        previous_response_id: fields.previous_response_id.clone(),
        store,
    })
}

/// Reads and checks a body.
///
/// # Errors
/// 400 that names the first field that is wrong.
fn read(body: &mut Body, model: ModelContext<'_>) -> Result<Generation, ApiError> {
    refuse(body, model.conversation.is_some())?;
    let fields: ResponsesFields = body.take()?;
    let stored = stored(&fields, model.conversation)?;
    let kept = stored.store.then(|| Kept {
        input: Value::from(input_items(&fields.input)).to_string().into(),
        previous: stored.previous_response_id.clone(),
        is_background: stored.background,
    });
    // Clients send an empty list for none.
    let definitions = tools::definitions(&fields.tools, TOOL, model.limits)?;
    let choice = read_choice(&fields.tool_choice, definitions.as_ref())?;
    let is_parallel = fields.parallel_tool_calls.is_none_or(|Flag(set)| set);
    let tools = AskedTools::new(definitions, choice, is_parallel, model.served_tools())?;
    let text = fields.text.unwrap_or(TextFields {
        format: Value::Null,
        verbosity: None,
    });
    if text.verbosity.as_deref().is_some_and(|verbosity| verbosity != "medium") {
        return Err(ApiError::unsupported("text.verbosity", "say it in instructions"));
    }
    let format = read_format(&text.format)?;
    let echoed = ["user", "prompt_cache_key", "safety_identifier"].map(|name| body.get(name).clone());
    let mut shared = Shared::take(body, fields.max_output_tokens, model)?;
    check_shared(&shared, format.as_ref())?;
    shared.structured = shared.structured.or(format);
    force_calls(&tools, &mut shared)?;
    let model = ModelContext {
        truncates: shared.truncation.is_some(),
        ..model
    };
    let max_tokens = fields.max_output_tokens.map(|Int(limit)| limit);
    let effort = fields.reasoning.and_then(|reasoning| reasoning.effort);
    let [user, prompt_cache_key, safety_identifier] = echoed;
    let echo = Echo {
        instructions: fields.instructions,
        max_output_tokens: max_tokens,
        metadata: fields.metadata.unwrap_or_default(),
        parallel_tool_calls: is_parallel,
        prompt_cache_key,
        reasoning: json!({"effort": effort, "summary": null}),
        safety_identifier,
        temperature: shared.params.temperature,
        text: json!({"format": if text.format.is_null() { json!({"type": "text"}) } else { text.format }}),
        tool_choice: match fields.tool_choice {
            Value::Null => json!("auto"),
            choice => choice,
        },
        tools: match fields.tools {
            Value::Null => json!([]),
            tools => tools,
        },
        top_p: shared.params.top_p,
        user,
        stored,
    };
    let earlier = model.conversation.map_or_else(Vec::new, Conversation::items);
    let messages = chat_messages(echo.instructions.as_deref(), &earlier, &fields.input)?;
    // The messages have its texts: a long one is not held twice while it is read.
    drop((earlier, fields.input));
    let chat = AskedChat {
        messages,
        tools,
        variables: fields.chat_template_kwargs.unwrap_or_default(),
        reasoning_effort: effort,
        documents: None,
        add_generation_prompt: None,
        continue_final_message: false,
        add_special_tokens: false,
        shows_reasoning: fields.include_reasoning.is_none_or(|Flag(set)| set),
        max_tokens,
        max_tokens_field: "max_output_tokens",
        messages_field: "input",
    };
    let generation = chat.read(shared, model, |reading| Box::new(ResponsesFormat::new(echo, reading)))?;
    Ok(Generation { kept, ..generation })
}
