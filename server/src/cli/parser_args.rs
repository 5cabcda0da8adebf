//! Flags for tool calls and reasoning: which parser reads what the model writes.

use std::sync::Arc;

use clap::Args;
use halyard_engine::EngineHandle;
use halyard_text::{AnswerFormat, ResponseTemplate, TextError, propose_formats};

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
    /// Format in which the model writes tool calls, such as hermes or mistral (docs/tool-calling.md lists them), or hf:
    /// as the response_template of tokenizer_config.json says; without it that one where there is one, otherwise the
    /// one whose markers the chat template has
    #[arg(long, value_name = "NAME", env = "HALYARD_TOOL_CALL_PARSER")]
    tool_call_parser: Option<String>,
    /// Format in which the model writes what it thinks, such as qwen3 or deepseek_r1 (docs/tool-calling.md lists them),
    /// or hf: as the response_template of tokenizer_config.json says; answers then have it in `reasoning`, apart from
    /// the content
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

/// The name of the format that a model's response template describes.
const BY_TEMPLATE: &str = "hf";

/// Whether a name means that format; `beam` is vLLM's name for models whose grammars come from it, too.
fn is_by_template(name: &str) -> bool {
    [BY_TEMPLATE, "beam"].contains(&name)
}

fn wrong(option: &'static str) -> impl Fn(TextError) -> ServerError {
    move |error: TextError| ServerError::Option {
        option,
        message: error.to_string(),
    }
}

/// Looks names up, before there is a model.
///
/// # Errors
/// An unknown name, with the known ones; a response template together with another format.
pub fn check(calls: Option<&str>, reasoning: Option<&str>) -> Result<(), ServerError> {
    let other = |name: &&str| !is_by_template(name);
    if let (Some(calls), Some(reasoning)) = (calls, reasoning)
        && other(&calls) != other(&reasoning)
    {
        return Err(ServerError::Option {
            option: "--reasoning-parser",
            message: format!(
                "a response template reads all of an answer: '{reasoning}' does not go with --tool-call-parser \
                 '{calls}'; name hf for both, or for neither"
            ),
        });
    }
    AnswerFormat::new(calls.filter(other), None).map_err(wrong("--tool-call-parser"))?;
    AnswerFormat::new(None, reasoning.filter(other)).map_err(wrong("--reasoning-parser"))?;
    Ok(())
}

/// The formats of these names, for a model with this response template.
///
/// # Errors
/// As [`check`]; a response template that is asked for and is not there, or that cannot be used.
pub fn format(
    calls: Option<&str>,
    reasoning: Option<&str>,
    template: Option<&str>,
) -> Result<AnswerFormat, ServerError> {
    check(calls, reasoning)?;
    let option = match calls {
        Some(calls) if is_by_template(calls) => "--tool-call-parser",
        _ => "--reasoning-parser",
    };
    if ![calls, reasoning].into_iter().flatten().any(is_by_template) {
        return AnswerFormat::new(calls, reasoning).map_err(wrong(option));
    }
    let template = template.ok_or_else(|| ServerError::Option {
        option,
        message: "hf needs a response_template in the model's tokenizer_config.json, and there is none; name a format \
                  of docs/tool-calling.md"
            .to_owned(),
    })?;
    let template = Arc::new(ResponseTemplate::new(template).map_err(wrong(option))?);
    AnswerFormat::by_template(&template, calls.is_some(), reasoning.is_some()).map_err(wrong(option))
}

/// What a model says of itself: its chat template and its response template.
#[derive(Clone, Copy, Debug, Default)]
struct Templates<'a> {
    chat: Option<&'a str>,
    response: Option<&'a str>,
}

impl Templates<'_> {
    /// The formats that fit: of calls and of reasoning. `by_response`: the response template may be one.
    fn propose(self, by_response: bool) -> (Option<&'static str>, Option<&'static str>) {
        let (calls, reasoning) = self.chat.map(propose_formats).unwrap_or_default();
        let response = self.response.filter(|_| by_response).map(ResponseTemplate::new);
        match response {
            None => (calls, reasoning),
            Some(Err(error)) => {
                tracing::warn!("{error}");
                (calls, reasoning)
            }
            Some(Ok(response)) => (
                response.has_calls().then_some(BY_TEMPLATE).or(calls),
                response.has_thinking().then_some(BY_TEMPLATE).or(reasoning),
            ),
        }
    }
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
        check(calls, given(self.reasoning_parser.as_ref()))
    }

    /// The parsers for a model. A parser that was not named is proposed by the response template, otherwise by the chat
    /// template: that of tool calls is taken where they are to be served, and the log says so.
    ///
    /// # Errors
    /// No parser for tool calls that are to be served.
    pub fn parsers(&self, engine: &EngineHandle) -> Result<Parsers, ServerError> {
        let templates = Templates {
            chat: engine.chat_template().map(|template| template.source()),
            response: engine.response_template(),
        };
        let (calls, reasoning) = self.formats(templates)?;
        let format = format(calls, reasoning, templates.response)?;
        Ok(Parsers::new(&format, engine.tokenizer()))
    }

    fn formats<'a>(&'a self, templates: Templates<'_>) -> Result<(Option<&'a str>, Option<&'a str>), ServerError> {
        let named = given(self.tool_call_parser.as_ref());
        let reasoning = given(self.reasoning_parser.as_ref());
        // A response template goes with no other format.
        let by_response = [named, reasoning].iter().flatten().all(|&name| is_by_template(name));
        let (proposed, proposed_reasoning) = templates.propose(by_response);
        let calls = match (self.enable_auto_tool_choice, named, proposed) {
            (true, Some(named), _) => Some(named),
            (true, None, Some(proposed)) => {
                tracing::info!(
                    "tool calls are read as {proposed}, by the {}; --tool-call-parser names another format",
                    match proposed {
                        BY_TEMPLATE => "response_template of tokenizer_config.json",
                        _ => "markers of the chat template",
                    }
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
            let templates = Templates {
                chat: template,
                response: None,
            };
            let (calls, reasoning) = args.formats(templates).expect("a format");
            assert_eq!((calls, reasoning), (expected, None), "{auto} {named:?}");
        }
        for template in [None, Some("{{ messages }}")] {
            let templates = Templates {
                chat: template,
                response: None,
            };
            let error = args(true, None).formats(templates).expect_err("none fits").to_string();
            assert!(error.contains("--tool-call-parser"), "{error}");
        }
    }

    #[test]
    fn a_response_template_comes_before_the_markers_of_the_chat_template() {
        let own = r#"{"start_anchor": "a", "fields": {"thinking": {"open": "<t>", "close": "</t>"},
            "tool_calls": {"open": "<c>", "close": "</c>", "content": "json",
                "transform": {"function": "{content}"}}}}"#;
        let no_calls = r#"{"start_anchor": "a", "fields": {"thinking": {"open": "<t>", "close": "</t>"}}}"#;
        let bad = r#"{"start_anchor": "a", "fields": {"thinking": {"open_pattern": "(?!a)"}}}"#;
        for (named, reasoning, response, expected) in [
            (None, None, own, "hf"),
            (None, Some("hf"), own, "hf"),
            (None, Some("qwen3"), own, "hermes"),
            (Some("mistral"), None, own, "mistral"),
            (Some("hf"), None, own, "hf"),
            (Some("beam"), None, own, "beam"),
            (None, None, no_calls, "hermes"),
            (None, None, bad, "hermes"),
        ] {
            let args = ParserArgs {
                reasoning_parser: reasoning.map(str::to_owned),
                ..args(true, named)
            };
            let templates = Templates {
                chat: Some(QWEN),
                response: Some(response),
            };
            let (calls, _) = args.formats(templates).expect("a format");
            assert_eq!(calls, Some(expected), "{named:?} {reasoning:?} {response}");
        }
        let by_template = format(Some("hf"), Some("hf"), Some(own)).expect("usable");
        assert_eq!((by_template.tools(), by_template.reasoning()), (Some("hf"), Some("hf")));
        let beam = format(Some("beam"), Some("beam"), Some(own)).expect("usable");
        assert!(beam.is_by_template() && beam.tools().is_some() && beam.reasoning().is_some());
        for (calls, reasoning, response, expected) in [
            (
                Some("hf"),
                None,
                None,
                "--tool-call-parser: hf needs a response_template",
            ),
            (None, Some("hf"), Some(bad), "a negative lookahead is not supported"),
            (Some("hf"), Some("hf"), Some(no_calls), "no field tool_calls"),
            (Some("hf"), Some("qwen3"), Some(own), "name hf for both"),
            (Some("beam"), None, None, "hf needs a response_template"),
            (Some("beam"), Some("qwen3"), Some(own), "name hf for both"),
        ] {
            let error = format(calls, reasoning, response).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
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
