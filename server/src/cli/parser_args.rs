//! Flags for tool calls and reasoning: which parser reads what the model writes.

use clap::Args;
use halyard_engine::EngineHandle;
use halyard_text::{AnswerFormat, TextError, propose_formats};

use crate::error::ServerError;
use crate::openai::parsers::Parsers;

/// How answers are read.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Tool calls and reasoning")]
pub struct ParserArgs {
    /// Serve tool calls (tool_choice "auto")
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_AUTO_TOOL_CHOICE", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_auto_tool_choice: bool,
    /// Format in which the model writes tool calls, such as hermes or mistral (docs/tool-calling.md lists them);
    /// without it the one whose markers the chat template has
    #[arg(long, value_name = "NAME", env = "HALYARD_TOOL_CALL_PARSER")]
    tool_call_parser: Option<String>,
    /// Format in which the model writes what it thinks, such as qwen3 or deepseek_r1 (docs/tool-calling.md lists them);
    /// answers then have it in `reasoning`, apart from the content
    #[arg(long, value_name = "NAME", env = "HALYARD_REASONING_PARSER")]
    reasoning_parser: Option<String>,
    /// Leave tools out of the prompt of requests with tool_choice "none"
    #[arg(long, value_name = "BOOL", env = "HALYARD_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    exclude_tools_when_tool_choice_none: bool,
}

/// A name that was given: an empty one, as of an unset variable, is none.
fn given(name: Option<&String>) -> Option<&str> {
    name.map(|name| name.trim()).filter(|name| !name.is_empty())
}

/// The formats of these names.
///
/// # Errors
/// An unknown name, with the known ones.
pub fn format(calls: Option<&str>, reasoning: Option<&str>) -> Result<AnswerFormat, ServerError> {
    let wrong = |option| {
        move |error: TextError| ServerError::Option {
            option,
            message: error.to_string(),
        }
    };
    AnswerFormat::new(calls, None).map_err(wrong("--tool-call-parser"))?;
    AnswerFormat::new(calls, reasoning).map_err(wrong("--reasoning-parser"))
}

impl ParserArgs {
    /// Whether requests that call nothing have no tools in their prompt.
    pub fn excludes_tools(&self) -> bool {
        self.exclude_tools_when_tool_choice_none
    }

    /// Looks the names up, before anything is loaded.
    ///
    /// # Errors
    /// An unknown name, with the known ones.
    pub fn check(&self) -> Result<(), ServerError> {
        let calls = given(self.tool_call_parser.as_ref());
        format(calls, given(self.reasoning_parser.as_ref())).map(drop)
    }

    /// The parsers for a model. A parser that was not named is proposed by the chat template: that of tool calls is
    /// taken where they are to be served, and the log says so.
    ///
    /// # Errors
    /// No parser for tool calls that are to be served.
    pub fn parsers(&self, engine: &EngineHandle) -> Result<Parsers, ServerError> {
        let source = engine.chat_template().map(|template| template.source());
        let (calls, reasoning) = self.formats(source)?;
        Ok(Parsers::new(&format(calls, reasoning)?, engine.tokenizer()))
    }

    fn formats<'a>(&'a self, template: Option<&str>) -> Result<(Option<&'a str>, Option<&'a str>), ServerError> {
        let (proposed, proposed_reasoning) = template.map(propose_formats).unwrap_or_default();
        let named = given(self.tool_call_parser.as_ref());
        let calls = match (self.enable_auto_tool_choice, named, proposed) {
            (true, Some(named), _) => Some(named),
            (true, None, Some(proposed)) => {
                tracing::info!(
                    "tool calls are read as {proposed}, by the markers of the chat template; --tool-call-parser names \
                     another format"
                );
                Some(proposed)
            }
            (true, None, None) => {
                return Err(ServerError::Option {
                    option: "--enable-auto-tool-choice",
                    message: "the chat template has no markers of a known format of tool calls; name one by \
                              --tool-call-parser (docs/tool-calling.md lists them)"
                        .to_owned(),
                });
            }
            (false, Some(named), _) => {
                tracing::warn!("--tool-call-parser {named} does nothing without --enable-auto-tool-choice");
                None
            }
            (false, None, Some(proposed)) => {
                tracing::info!("--enable-auto-tool-choice would serve tool calls, in the template's format {proposed}");
                None
            }
            (false, None, None) => None,
        };
        let reasoning = given(self.reasoning_parser.as_ref());
        if let (None, Some(proposed)) = (reasoning, proposed_reasoning) {
            tracing::info!("--reasoning-parser {proposed} would keep reasoning apart from answers");
        }
        Ok((calls, reasoning))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN: &str = "{% for tool in tools %}…<tool_call>{\"name\": …}</tool_call>…</think>";

    fn args(auto: bool, calls: Option<&str>) -> ParserArgs {
        ParserArgs {
            enable_auto_tool_choice: auto,
            tool_call_parser: calls.map(str::to_owned),
            ..ParserArgs::default()
        }
    }

    #[test]
    fn a_parser_that_is_not_named_comes_from_the_template_where_calls_are_served() {
        for (auto, named, template, expected) in [
            (true, None, Some(QWEN), Some("hermes")),
            (true, Some("mistral"), Some(QWEN), Some("mistral")),
            (true, Some(" "), Some(QWEN), Some("hermes")),
            (false, None, Some(QWEN), None),
            (false, Some("hermes"), Some(QWEN), None),
            (true, Some("hermes"), None, Some("hermes")),
        ] {
            let args = args(auto, named);
            let (calls, reasoning) = args.formats(template).expect("a format");
            assert_eq!((calls, reasoning), (expected, None), "{auto} {named:?}");
        }
        for template in [None, Some("{{ messages }}")] {
            let error = args(true, None).formats(template).expect_err("none fits").to_string();
            assert!(error.contains("--tool-call-parser"), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        args(true, Some("hermes")).check().expect("known");
        let error = args(false, Some("hermez")).check().expect_err("unknown").to_string();
        assert!(
            error.contains("--tool-call-parser") && error.contains("hermes"),
            "{error}"
        );
        let reasoning = ParserArgs {
            reasoning_parser: Some("qwen4".to_owned()),
            ..ParserArgs::default()
        };
        let error = reasoning.check().expect_err("unknown").to_string();
        assert!(
            error.contains("--reasoning-parser") && error.contains("qwen3"),
            "{error}"
        );
    }
}
