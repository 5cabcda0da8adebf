//! A model's chat template: messages become the prompt text that Hugging Face's `apply_chat_template` gives.
//!
//! The template is code from the model, so it runs with a bound on its work and sees nothing but its arguments: no
//! clock, no file, no environment.

use std::fmt;
use std::sync::Arc;

use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde_json::json;

use crate::chat_message::{self, ContentShapes};
use crate::python_format::{python_str, tojson};
use crate::python_methods;
use crate::strftime::LocalTime;
use crate::tokenizer_config::SpecialTokens;
use crate::{Result, TextError};

/// Template instructions for one prompt. A hundred thousand messages stay under it; an endless loop ends in seconds.
const MAX_INSTRUCTIONS: u64 = 50_000_000;
const NAME: &str = "chat_template";

/// A compiled chat template. Cloning shares it; every call may come from any thread.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    special_tokens: SpecialTokens,
    shapes: ContentShapes,
    knows_developer: bool,
    source: Arc<str>,
}

/// What a prompt is made from.
#[derive(Debug, Clone, Default)]
pub struct ChatInput<'a> {
    /// OpenAI messages: objects with `role`, `content` (a string or text parts) and what else the template reads.
    pub messages: &'a [serde_json::Value],
    /// OpenAI tool definitions, a list.
    pub tools: Option<&'a serde_json::Value>,
    /// Documents for retrieval templates, a list.
    pub documents: Option<&'a serde_json::Value>,
    /// Whether the prompt ends with the start of an assistant turn.
    pub add_generation_prompt: bool,
    /// More template variables (`chat_template_kwargs`), such as `enable_thinking`.
    pub extra: Option<&'a serde_json::Map<String, serde_json::Value>>,
    /// The time that `strftime_now` prints; without it the template finds that function undefined.
    pub now: Option<LocalTime>,
}

/// Marks an error that the template raised itself.
#[derive(Debug)]
struct Raised;

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Raised {}

impl ChatTemplate {
    /// Compiles a template from its Jinja source, and finds out by trying which shapes of content it reads.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`].
    pub fn new(source: &str, special_tokens: &SpecialTokens) -> Result<Self> {
        let mut environment = environment();
        environment
            .add_template_owned(NAME, adapt_source(source))
            .map_err(|error| TextError::TemplateSyntax {
                line: error.line().unwrap_or(1),
                reason: reason(&error),
            })?;
        let mut template = Self {
            environment: Arc::new(environment),
            special_tokens: special_tokens.clone(),
            shapes: ContentShapes {
                string: true,
                parts: false,
            },
            knows_developer: chat_message::names_developer(source),
            source: Arc::from(source),
        };
        template.shapes = template.probe();
        Ok(template)
    }

    /// Renders the prompt. Tool-call arguments given as JSON text reach the template as objects, and a list of text
    /// parts reaches a template that reads only strings as one string, joined by line breaks. Messages of the role
    /// `developer` become part of the system message where the template does not name that role.
    ///
    /// # Errors
    /// [`TextError::TemplateRaised`] when the template refuses the messages, [`TextError::TemplateRender`] when it
    /// fails, [`TextError::InvalidMessage`] and [`TextError::UnsupportedContentPart`] before it is run.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String> {
        let messages = chat_message::prepare(input.messages, self.shapes, self.knows_developer)?;
        self.render_prepared(&messages, input)
    }

    /// Whether the template reads a list of parts as such; otherwise parts are joined into one string.
    pub fn reads_parts(&self) -> bool {
        self.shapes.parts
    }

    /// Whether the template names the role `developer`.
    pub fn knows_developer(&self) -> bool {
        self.knows_developer
    }

    /// The template as the model's files have it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The special tokens that the template sees.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    fn render_prepared(&self, messages: &[serde_json::Value], input: &ChatInput<'_>) -> Result<String> {
        let mut variables: Vec<(String, Value)> = Vec::new();
        let special = &self.special_tokens;
        for (name, token) in [
            ("bos_token", &special.bos_token),
            ("eos_token", &special.eos_token),
            ("pad_token", &special.pad_token),
            ("unk_token", &special.unk_token),
        ] {
            if let Some(token) = token {
                variables.push((name.to_owned(), Value::from(token.as_str())));
            }
        }
        if let Some(now) = input.now {
            let function = move |format: &str| now.format(format);
            variables.push(("strftime_now".to_owned(), Value::from_function(function)));
        }
        for (name, value) in input.extra.into_iter().flatten() {
            variables.push((name.clone(), Value::from_serialize(value)));
        }
        // Absent lists are None, as in transformers; templates ask `tools is not none`.
        let list = |value: Option<&serde_json::Value>| value.map_or(Value::from(()), Value::from_serialize);
        variables.push(("messages".to_owned(), Value::from_serialize(messages)));
        variables.push(("tools".to_owned(), list(input.tools)));
        variables.push(("documents".to_owned(), list(input.documents)));
        variables.push((
            "add_generation_prompt".to_owned(),
            Value::from(input.add_generation_prompt),
        ));

        let context: Value = variables.into_iter().collect();
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| render_error(&error))?;
        template.render(context).map_err(|error| render_error(&error))
    }

    /// Renders one user message in each shape. A template reads strings when the text comes out, and parts when the
    /// same comes out (a list printed as such differs) or when it reads no strings.
    fn probe(&self) -> ContentShapes {
        const TEXT: &str = "3f6b1c";
        let attempt = |content: serde_json::Value| {
            let messages = [json!({"role": "user", "content": content})];
            let output = self.render_prepared(&messages, &ChatInput::default()).ok()?;
            output.contains(TEXT).then_some(output)
        };
        let string = attempt(json!(TEXT));
        let parts = attempt(json!([{"type": "text", "text": TEXT}]));
        ContentShapes {
            string: string.is_some() || parts.is_none(),
            parts: parts.is_some() && (string.is_none() || string == parts),
        }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ChatTemplate");
        debug
            .field("special_tokens", &self.special_tokens)
            .field("shapes", &self.shapes)
            .field("knows_developer", &self.knows_developer)
            .finish_non_exhaustive()
    }
}

/// Jinja as transformers configures it (`_compile_jinja_template`).
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_unknown_method_callback(python_methods::unknown_method);
    environment.set_formatter(|out: &mut Output, _: &State, value: &Value| {
        out.write_str(&python_str(value)).map_err(Error::from)
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python_str(value));
    environment.add_filter("length", python_methods::length);
    environment.add_filter("count", python_methods::length);
    environment.add_test("sequence", python_methods::is_sequence);
    environment.add_test("iterable", python_methods::is_iterable);
    environment.add_function(
        "raise_exception",
        |message: &Value| -> std::result::Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, python_str(message)).with_source(Raised))
        },
    );
    environment
}

/// Rewrites what this Jinja reads differently, without moving a line or changing how white space is trimmed:
/// `{% generation %}` and `{% endgeneration %}`, which only mark text for training, become a condition that always holds;
/// and the line break after `{% raw %}`, which Python's Jinja keeps, is doubled since this one drops it.
fn adapt_source(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        rest = tag;
        let Some(close) = tag.find("%}") else { break };
        let (inner, after) = tag.split_at(close);
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&inner.replacen(word, "if true", 1)),
            "endgeneration" => out.push_str(&inner.replacen(word, "endif", 1)),
            "raw" if after.starts_with("%}\n") && !inner.ends_with('-') => {
                out.push_str(inner);
                out.push_str("%}\n");
                rest = &after[2..];
                continue;
            }
            _ => continue,
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn render_error(error: &Error) -> TextError {
    let line = error.line().unwrap_or(0);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        let raised = current.source().is_some_and(|source| source.is::<Raised>());
        if let Some(inner) = current.downcast_ref::<Error>().filter(|_| raised) {
            let line = inner.line().unwrap_or(line);
            return TextError::TemplateRaised {
                line,
                message: inner.detail().unwrap_or_default().to_owned(),
            };
        }
        cause = current.source();
    }
    TextError::TemplateRender {
        line,
        reason: reason(error),
    }
}
