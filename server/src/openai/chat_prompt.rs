//! A chat's prompt: its messages as the model's template renders them. The last one is left open where the answer
//! continues it.

use halyard_text::{ChatInput, LocalTime};
use serde_json::{Map, Value};

use super::model::ModelContext;
use crate::api_error::ApiError;
use crate::clock::unix_seconds;

/// A chat to be rendered.
pub struct ChatPrompt<'a> {
    /// OpenAI messages, in order.
    pub messages: &'a [Value],
    /// Whether the prompt ends with the start of an assistant turn; `None`: unless the last message is continued.
    pub add_generation_prompt: Option<bool>,
    /// Leaves the last message open, so that the answer goes on in it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`; they go before the operator's.
    pub template_variables: Option<&'a Map<String, Value>>,
    /// Tools, as [`tools::definitions`] writes them.
    pub tools: Option<&'a Value>,
    /// `documents`.
    pub documents: Option<&'a Value>,
}

/// Most values that `chat_template_kwargs` may hold, at any depth: each is copied for the template several times.
const MAX_TEMPLATE_VALUES: usize = 1 << 14;

/// A value and all that are in it.
fn count_values(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(count_values).sum::<usize>(),
        Value::Object(values) => 1 + values.values().map(count_values).sum::<usize>(),
        _ => 1,
    }
}

/// Renders messages with the model's template.
///
/// # Errors
/// 400 for no messages, contradicting flags, and what the template refuses.
pub fn render(chat: &ChatPrompt<'_>, model: ModelContext<'_>) -> Result<String, ApiError> {
    if chat.messages.is_empty() {
        return Err(ApiError::field(
            "messages",
            "messages is empty; send at least one message",
        ));
    }
    if chat.continue_final_message && chat.add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt contradict each other; send one of them";
        return Err(ApiError::field("continue_final_message", message));
    }
    let template = model.chat_template.ok_or(halyard_text::TextError::NoChatTemplate)?;
    // It would be moved to the front.
    let moves = |message: &Value| message["role"] == "developer" && !template.knows_developer();
    if chat.continue_final_message && chat.messages.len() > 1 && chat.messages.last().is_some_and(moves) {
        return Err(cannot_continue());
    }
    let tagged = if chat.continue_final_message {
        tag_final_message(chat.messages)?
    } else {
        Vec::new()
    };
    if let Some(asked) = chat.template_variables {
        let values: usize = asked.values().map(count_values).sum();
        if values > MAX_TEMPLATE_VALUES {
            let message = format!(
                "chat_template_kwargs holds {values} values; at most {MAX_TEMPLATE_VALUES} are taken: send fewer"
            );
            return Err(ApiError::field("chat_template_kwargs", message));
        }
    }
    let mut variables = model.serving.default_chat_template_kwargs.clone();
    for (name, value) in chat.template_variables.into_iter().flatten() {
        variables.insert(name.clone(), value.clone());
    }
    let text = template.render(&ChatInput {
        messages: if chat.continue_final_message {
            &tagged
        } else {
            chat.messages
        },
        add_generation_prompt: chat.add_generation_prompt.unwrap_or(!chat.continue_final_message),
        tools: chat.tools,
        documents: chat.documents,
        extra: Some(&variables),
        now: Some(LocalTime {
            unix_seconds: i64::try_from(unix_seconds()).unwrap_or(i64::MAX),
            utc_offset_seconds: 0,
        }),
        cancel: model.cancel,
    })?;
    if chat.continue_final_message {
        open_final_message(text)
    } else {
        Ok(text)
    }
}

/// Stands for the end of the last message while the template runs. Ends with a blank, which tells whether the
/// template trims.
const FINAL_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

fn cannot_continue() -> ApiError {
    let message = "continue_final_message needs a last message with text that the template keeps as it is";
    ApiError::field("continue_final_message", message)
}

/// The messages with the tag at the end of the last one's text (transformers' way in `apply_chat_template`).
fn tag_final_message(messages: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut messages = messages.to_vec();
    let content = messages
        .last_mut()
        .and_then(|message| message.get_mut("content"))
        .ok_or_else(cannot_continue)?;
    let slot = match content {
        Value::Array(parts) => parts
            .iter_mut()
            .rev()
            .find_map(|part| part.get_mut("text"))
            .ok_or_else(cannot_continue)?,
        whole => whole,
    };
    let text = slot
        .as_str()
        .filter(|text| !text.trim().is_empty())
        .ok_or_else(cannot_continue)?;
    *slot = Value::from(format!("{text}{FINAL_TAG}"));
    Ok(messages)
}

/// Cuts the tag and what the template writes after it; the text is trimmed where the template trims.
fn open_final_message(mut text: String) -> Result<String, ApiError> {
    let at = text.rfind(FINAL_TAG.trim_end()).ok_or_else(cannot_continue)?;
    let keeps_blanks = text[at..].starts_with(FINAL_TAG);
    text.truncate(at);
    if !keeps_blanks {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_continued_message_is_left_open() {
        let tagged = |content: Value| {
            let messages = [
                json!({"role": "user", "content": "Hi"}),
                json!({"role": "assistant", "content": content}),
            ];
            let messages = tag_final_message(&messages)?;
            let content = &messages[1]["content"];
            let text = content
                .as_str()
                .or_else(|| content[0]["text"].as_str())
                .expect("a text")
                .to_owned();
            Ok::<String, ApiError>(text)
        };
        // Its text also stands in the end-of-turn token behind it.
        let whole = format!(
            "<|im_start|>assistant\n{}<|im_end|>\n",
            tagged(json!("<")).expect("tagged")
        );
        assert_eq!(open_final_message(whole).expect("found"), "<|im_start|>assistant\n<");
        let whole = format!(
            "{}<|im_end|>",
            tagged(json!([{"type": "text", "text": "It is "}])).expect("tagged")
        );
        assert_eq!(
            open_final_message(whole).expect("found"),
            "It is ",
            "blanks stay where the template keeps them"
        );
        let whole = format!("{}<|im_end|>", tagged(json!("Sure, ")).expect("tagged").trim());
        assert_eq!(
            open_final_message(whole).expect("found"),
            "Sure,",
            "and go where it trims"
        );
        for lost in [
            open_final_message("not here".to_owned()),
            tagged(json!(" ")),
            tagged(json!(7)),
        ] {
            assert_eq!(lost.expect_err("lost").param.as_deref(), Some("continue_final_message"));
        }
    }
}
