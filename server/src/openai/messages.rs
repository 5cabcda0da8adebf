//! `/v1/messages` and `/v1/messages/count_tokens`, Anthropic's API. Its messages become those of a chat
//! (`messages_history.rs`), its other fields what a chat asks for; the answer is written by `messages_answer.rs`.

use halyard_engine::{Constraint, StructuredOutputs};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::api::{Api, Generation};
use super::asked_chat::{AskedChat, ReasoningEffort, force_calls};
use super::body::Body;
use super::lenient::{Flag, Int, is_set, ranged};
use super::messages_answer::{MessagesFormat, write_error};
use super::messages_history::{chat_messages, continues};
use super::model::ModelContext;
use super::sampling::stop_strings;
use super::shared::Shared;
use super::structured::Structured;
use super::tools::{self, AskedTools, ToolChoice, ToolForm};
use crate::api_error::{ApiError, clip};

/// The API.
pub const API: Api = Api {
    path: "/v1/messages",
    id_prefix: "msg_",
    is_stored: false,
    says_abort: false,
    has_prompts: false,
    read,
    write_error,
};

/// How tools are defined.
const TOOL: ToolForm = ToolForm {
    kind: "custom",
    within: None,
    parameters: "input_schema",
};

/// Anthropic's least budget of thinking.
const MIN_BUDGET: i64 = 1024;

/// The fields that say what the model reads.
#[derive(Deserialize)]
struct PromptFields {
    messages: Vec<Value>,
    #[serde(default)]
    system: Value,
    #[serde(default)]
    tools: Value,
    tool_choice: Option<Choice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// The other fields that a message has.
#[derive(Deserialize)]
struct AnswerFields {
    max_tokens: Int,
    #[serde(default)]
    stop_sequences: Value,
    #[serde(default)]
    stream: Value,
    #[serde(default)]
    temperature: Value,
    #[serde(default)]
    top_k: Value,
    #[serde(default)]
    top_p: Value,
}

/// `tool_choice`.
#[derive(Deserialize)]
struct Choice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<Flag>,
}

/// `thinking`.
#[derive(Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<Int>,
    display: Option<String>,
}

/// `output_config`.
#[derive(Deserialize)]
struct OutputConfig {
    effort: Option<ReasoningEffort>,
    #[serde(default)]
    format: Value,
}

/// The field of a schema for the answer.
const SCHEMA: &str = "output_config.format.schema";

impl Choice {
    fn read(&self, definitions: Option<&Value>) -> Result<ToolChoice, ApiError> {
        let wrong = |message: String| Err(ApiError::field("tool_choice", message));
        match (self.kind.as_str(), definitions, &self.name) {
            ("auto" | "none", None, _) | ("none", Some(_), _) => Ok(ToolChoice::None),
            ("auto", Some(_), _) => Ok(ToolChoice::Auto),
            ("any" | "tool", None, _) => {
                wrong("tool_choice asks for a call, but there are no tools; send tools or leave it out".to_owned())
            }
            ("any", Some(_), _) => Ok(ToolChoice::Required),
            ("tool", Some(tools), Some(name)) => tools::named(name, tools),
            ("tool", Some(_), None) => wrong("tool_choice is a tool without a name; send its name".to_owned()),
            (kind, _, _) => wrong(format!(
                "tool_choice.type is \"{}\"; it must be auto, any, tool or none",
                clip(kind)
            )),
        }
    }
}

impl Thinking {
    /// What the template is told; `None`: nothing.
    fn enabled(&self, max_tokens: Option<i64>) -> Result<Option<bool>, ApiError> {
        const BUDGET: &str = "thinking.budget_tokens";
        match self.kind.as_str() {
            "disabled" => Ok(Some(false)),
            "adaptive" => Ok(None),
            "enabled" => {
                let Some(Int(budget)) = self.budget_tokens else {
                    let message = format!("{BUDGET} is missing; send at least {MIN_BUDGET}");
                    return Err(ApiError::field(BUDGET, message));
                };
                ranged(BUDGET, budget, MIN_BUDGET, i64::from(u32::MAX))?;
                if let Some(max_tokens) = max_tokens.filter(|max_tokens| budget >= *max_tokens) {
                    let message =
                        format!("{BUDGET} is {budget}; it must be less than max_tokens, which is {max_tokens}");
                    return Err(ApiError::field(BUDGET, message));
                }
                Ok(Some(true))
            }
            kind => {
                let message = format!(
                    "thinking.type is \"{}\"; it must be enabled, disabled or adaptive",
                    clip(kind)
                );
                Err(ApiError::field("thinking.type", message))
            }
        }
    }
}

/// The schema of `output_config.format`.
fn format_schema(format: Value) -> Result<Option<Structured>, ApiError> {
    let mut format = match format {
        Value::Null => return Ok(None),
        Value::Object(format) if format.get("type").is_some_and(|kind| kind == "json_schema") => format,
        other => {
            let found = clip(&other.to_string());
            let message = format!("output_config.format is {found}; it must be an object of the type json_schema");
            return Err(ApiError::field("output_config.format", message));
        }
    };
    match format.remove("schema") {
        Some(schema @ Value::Object(_)) => Ok(Some(Structured {
            outputs: StructuredOutputs::from(Constraint::Json(schema.to_string())),
            path: SCHEMA,
        })),
        _ => Err(ApiError::field(
            SCHEMA,
            format!("{SCHEMA} must be a JSON schema, an object"),
        )),
    }
}

/// The chat that a body asks for, and what its text must be.
fn chat(
    fields: PromptFields,
    max_tokens: Option<i64>,
    model: ModelContext<'_>,
) -> Result<(AskedChat, Option<Structured>), ApiError> {
    let definitions = tools::definitions(&fields.tools, TOOL, model.limits)?;
    let choice = match &fields.tool_choice {
        Some(choice) => choice.read(definitions.as_ref())?,
        None if definitions.is_some() => ToolChoice::Auto,
        None => ToolChoice::None,
    };
    let is_single = fields
        .tool_choice
        .is_some_and(|choice| is_set(choice.disable_parallel_tool_use));
    let tools = AskedTools::new(definitions, choice, !is_single, model.served_tools())?;
    let mut variables = fields.chat_template_kwargs.unwrap_or_default();
    let thinking = fields.thinking.as_ref();
    if let Some(thinks) = thinking
        .map(|thinking| thinking.enabled(max_tokens))
        .transpose()?
        .flatten()
    {
        variables
            .entry("enable_thinking")
            .or_insert_with(|| Value::from(thinks));
    }
    let is_omitted = |thinking: &Thinking| thinking.display.as_deref() == Some("omitted");
    let (effort, structured) = match fields.output_config {
        Some(config) => (config.effort, format_schema(config.format)?),
        None => (None, None),
    };
    let messages = chat_messages(&fields.system, &fields.messages)?;
    let chat = AskedChat {
        continue_final_message: continues(&messages),
        messages,
        tools,
        variables,
        reasoning_effort: effort,
        documents: None,
        add_generation_prompt: None,
        add_special_tokens: false,
        shows_reasoning: !thinking.is_some_and(is_omitted),
        max_tokens,
        max_tokens_field: "max_tokens",
        messages_field: "messages",
    };
    Ok((chat, structured))
}

/// Reads and checks a body.
///
/// # Errors
/// 400 that names the first field that is wrong.
fn read(body: &mut Body, model: ModelContext<'_>) -> Result<Generation, ApiError> {
    let fields: AnswerFields = body.take()?;
    let Int(max_tokens) = fields.max_tokens;
    let (chat, structured) = chat(body.take()?, Some(max_tokens), model)?;
    let mut sampling = Body::new(json!({"stream": fields.stream, "temperature": fields.temperature,
        "top_k": fields.top_k, "top_p": fields.top_p}))?;
    let mut shared = Shared::take(&mut sampling, None, model)?;
    shared.params.stop = stop_strings("stop_sequences", &fields.stop_sequences, model)?;
    shared.structured = structured;
    force_calls(&chat.tools, &mut shared)?;
    chat.read(shared, model, |reading| Box::new(MessagesFormat::new(reading)))
}

/// The answer of `/v1/messages/count_tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenCount {
    input_tokens: usize,
}

/// Answers `/v1/messages/count_tokens`: the tokens that the model would read.
///
/// # Errors
/// 400, as for the message itself. It need not fit into the context.
pub fn count_tokens(body: &mut Body, model: ModelContext<'_>) -> Result<TokenCount, ApiError> {
    let model = ModelContext {
        truncates: true,
        ..model
    };
    let (mut chat, _) = chat(body.take()?, None, model)?;
    Ok(TokenCount {
        input_tokens: chat.prompt(model)?.token_ids.len(),
    })
}
