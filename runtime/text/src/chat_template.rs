//! A model's chat template: messages become the prompt text that Hugging Face's `apply_chat_template` gives.
//!
//! The template is code from the model, so it runs with a bound on its work and sees nothing but its arguments: no
//! clock, no file, no environment. The caller chooses where it runs: in this process, or in a child process that it may
//! crash.

use std::fmt;
use std::sync::Arc;

use serde_json::json;

use crate::chat_message::{self, ContentShapes};
use crate::long_text::CancelFlag;
use crate::strftime::LocalTime;
use crate::template_engine::{RenderCall, TemplateEngine};
use crate::template_host::{HostedTemplate, TemplateHost};
use crate::tokenizer_config::SpecialTokens;
use crate::{Result, TextError};

/// A compiled chat template. Cloning shares it; every call may come from any thread.
#[derive(Clone)]
pub struct ChatTemplate {
    runs: Runs,
    special_tokens: SpecialTokens,
    shapes: ContentShapes,
    knows_developer: bool,
    source: Arc<str>,
}

/// Where the template runs.
#[derive(Clone)]
enum Runs {
    Here(Arc<TemplateEngine>),
    There(Arc<HostedTemplate>),
}

/// The inputs of a prompt.
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
    /// Asked while a template runs in a process of its own, which ends with it.
    pub cancel: Option<&'a CancelFlag>,
}

impl ChatTemplate {
    /// Compiles a template from its Jinja source, and finds out by trying which shapes of content it reads. It runs in
    /// this process, where source, instructions and output are bounded, but neither memory nor stack: for templates
    /// that are trusted.
    ///
    /// # Errors
    /// [`crate::TextError::TemplateSyntax`], [`crate::TextError::TemplateBound`].
    pub fn new(source: &str, special_tokens: &SpecialTokens) -> Result<Self> {
        let engine = TemplateEngine::compile(source, special_tokens)?;
        Self::probed(Runs::Here(Arc::new(engine)), source, special_tokens)
    }

    /// The same in a process of `host`: a template that takes too much there ends that process and the one prompt.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`], and [`crate::TextError::TemplateUnavailable`].
    pub fn on(host: Arc<dyn TemplateHost>, source: &str, special_tokens: &SpecialTokens) -> Result<Self> {
        let hosted = HostedTemplate::open(host, source, special_tokens)?;
        Self::probed(Runs::There(Arc::new(hosted)), source, special_tokens)
    }

    fn probed(runs: Runs, source: &str, special_tokens: &SpecialTokens) -> Result<Self> {
        let mut template = Self {
            runs,
            special_tokens: special_tokens.clone(),
            shapes: ContentShapes {
                string: true,
                parts: false,
            },
            knows_developer: chat_message::names_developer(source),
            source: Arc::from(source),
        };
        template.shapes = template.probe()?;
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
        self.render_prepared(messages, input)
    }

    /// The same template, handed every content in one shape whatever it reads: a list of parts, or one string.
    #[must_use]
    pub fn with_contents_as(mut self, parts: bool) -> Self {
        self.shapes = ContentShapes { string: !parts, parts };
        self
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

    fn render_prepared(&self, messages: Vec<serde_json::Value>, input: &ChatInput<'_>) -> Result<String> {
        let call = RenderCall {
            messages,
            tools: input.tools.cloned(),
            documents: input.documents.cloned(),
            add_generation_prompt: input.add_generation_prompt,
            extra: input.extra.cloned(),
            now: input.now,
            input_bytes: 0,
        };
        match &self.runs {
            Runs::Here(engine) => engine.render(&call.measured()),
            Runs::There(hosted) => hosted.render(&call, input.cancel),
        }
    }

    /// Renders one user message in each shape. A template reads strings when the text comes out, and parts when the
    /// same comes out (a list printed as such differs) or when it reads no strings. A template that breaks a bound even
    /// here is none to serve with.
    fn probe(&self) -> Result<ContentShapes> {
        const TEXT: &str = "3f6b1c";
        let attempt = |content: serde_json::Value| {
            let messages = [json!({"role": "user", "content": content})];
            match self.render_prepared(messages.to_vec(), &ChatInput::default()) {
                Ok(output) => Ok(output.contains(TEXT).then_some(output)),
                Err(error @ (TextError::TemplateBound { .. } | TextError::TemplateUnavailable { .. })) => Err(error),
                Err(_) => Ok(None),
            }
        };
        let string = attempt(json!(TEXT))?;
        let parts = attempt(json!([{"type": "text", "text": TEXT}]))?;
        Ok(ContentShapes {
            string: string.is_some() || parts.is_none(),
            parts: parts.is_some() && (string.is_none() || string == parts),
        })
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
