//! The fields `vllm_xargs` and `thinking_token_budget`: what a request tells logits processors.

use halyard_request_hooks::LogitsProcessors;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::lenient::Int;
use crate::api_error::{ApiError, clip};

/// The field of a budget for thinking, which a logits processor keeps.
pub const THINKING_TOKEN_BUDGET: &str = "thinking_token_budget";
const XARGS: &str = "vllm_xargs";

/// The fields of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LogitsFields {
    vllm_xargs: Value,
    thinking_token_budget: Value,
}

impl LogitsFields {
    /// The arguments for `processors`, one JSON object.
    ///
    /// # Errors
    /// 400 for values of a wrong type, and for a budget that no processor would keep.
    pub fn read(self, processors: &LogitsProcessors) -> Result<String, ApiError> {
        self.arguments(processors.reads(THINKING_TOKEN_BUDGET))
            .map(|arguments| Value::Object(arguments).to_string())
    }

    fn arguments(self, has_budgets: bool) -> Result<Map<String, Value>, ApiError> {
        let mut arguments = xargs(self.vllm_xargs)?;
        let budget = &self.thinking_token_budget;
        let message = match (budget, Int::of(budget)) {
            (Value::Null, _) => return Ok(arguments),
            (_, Some(limit @ -1..)) if has_budgets => {
                arguments.insert(THINKING_TOKEN_BUDGET.to_owned(), limit.into());
                return Ok(arguments);
            }
            // No limit.
            (_, Some(-1)) => return Ok(arguments),
            (_, Some(0..)) => {
                let message = "thinking_token_budget needs a logits processor that keeps it; serve with \
                               --logits-processor thinking-budget, or leave it out and bound the answer by max_tokens";
                return Err(ApiError::field(THINKING_TOKEN_BUDGET, message).with_code("unsupported_parameter"));
            }
            _ => format!(
                "thinking_token_budget is {}; it must be an integer from -1 (no limit)",
                clip(&budget.to_string())
            ),
        };
        Err(ApiError::field(THINKING_TOKEN_BUDGET, message))
    }
}

/// A flat map of texts, numbers and lists of these, as in vLLM; true and false are 1 and 0.
fn xargs(sent: Value) -> Result<Map<String, Value>, ApiError> {
    let wrong = |path: &str, found: &Value, expected: &str| {
        let found = clip(&found.to_string());
        Err(ApiError::field(
            path,
            format!("{path} is {found}; it must be {expected}"),
        ))
    };
    let mut entries = match sent {
        Value::Null => return Ok(Map::new()),
        Value::Object(entries) => entries,
        other => return wrong(XARGS, &other, "an object"),
    };
    for (name, value) in &mut entries {
        let is_plain = match &mut *value {
            Value::Array(list) => list.iter_mut().all(is_text_or_number),
            plain => is_text_or_number(plain),
        };
        if !is_plain {
            let path = format!("{XARGS}.{}", clip(name));
            return wrong(&path, value, "a string, a number or a list of these");
        }
    }
    Ok(entries)
}

/// Makes a flag a number on the way.
fn is_text_or_number(value: &mut Value) -> bool {
    if let Value::Bool(flag) = value {
        *value = i32::from(*flag).into();
    }
    value.is_string() || value.is_number()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::body::Body;
    use serde_json::json;

    fn read(body: Value, has_budgets: bool) -> Result<Value, ApiError> {
        let fields = Body::new(body)?.take::<LogitsFields>()?;
        fields.arguments(has_budgets).map(Value::Object)
    }

    #[test]
    fn arguments_are_a_flat_map() {
        let body = json!({"vllm_xargs": {"a": "x", "b": 1, "c": 0.5, "d": ["x", 2, true], "e": false}});
        let arguments = json!({"a": "x", "b": 1, "c": 0.5, "d": ["x", 2, 1], "e": 0});
        assert_eq!(read(body, false).expect("right"), arguments);
        for nothing in [json!({}), json!({"vllm_xargs": null}), json!({"vllm_xargs": {}})] {
            assert_eq!(read(nothing, true).expect("nothing"), json!({}));
        }
        for (sent, param) in [
            (json!([1]), "vllm_xargs"),
            (json!("a"), "vllm_xargs"),
            (json!({"a": null}), "vllm_xargs.a"),
            (json!({"a": {}}), "vllm_xargs.a"),
            (json!({"a": [[1]]}), "vllm_xargs.a"),
        ] {
            let error = read(json!({"vllm_xargs": sent}), true).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(param));
            assert!(error.message.contains("must be"), "{}", error.message);
        }
    }

    #[test]
    fn a_budget_needs_a_processor_that_keeps_it() {
        let budget = |value: Value| json!({"thinking_token_budget": value, "vllm_xargs": {"a": 1}});
        for (sent, read_as) in [(json!(5), 5), (json!("0"), 0), (json!(-1), -1)] {
            let arguments = json!({"a": 1, "thinking_token_budget": read_as});
            assert_eq!(read(budget(sent), true).expect("kept"), arguments);
        }
        for no_limit in [json!(null), json!(-1)] {
            assert_eq!(
                read(budget(no_limit), false).expect("asks for nothing"),
                json!({"a": 1})
            );
        }
        let error = read(budget(json!(5)), false).expect_err("nobody keeps it");
        assert_eq!(error.param.as_deref(), Some(THINKING_TOKEN_BUDGET));
        assert!(
            error.message.contains("--logits-processor thinking-budget"),
            "{}",
            error.message
        );
        for wrong in [json!("long"), json!(-2), json!(1.5)] {
            let error = read(budget(wrong), true).expect_err("no integer");
            assert!(error.message.contains("from -1"), "{}", error.message);
        }
    }
}
