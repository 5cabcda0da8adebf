//! The Jinja engine for chat templates, configured as in transformers, and the limits that it enforces itself.
//!
//! Limited here: the source's size, the number of instructions, the output's size, and filters that grow small inputs.
//! Not limited here: memory and stack, which operators of the language can use up (`~`, `+`, `*`, nesting). The process
//! around it limits those ([`crate::TemplateHost`]).

use std::fmt;
use std::io;

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde::{Deserialize, Serialize};

use crate::python_format::{python_str, tojson};
use crate::python_methods;
use crate::strftime::LocalTime;
use crate::template_source::check_source;
use crate::tokenizer_config::SpecialTokens;
use crate::{Result, TextError};

const NAME: &str = "chat_template";
/// Instructions of any prompt, and more for each message and each byte of input. Templates of published models take up
/// to 200 for a message, what they do once included (a test prints them).
const FUEL: u64 = 500_000;
const FUEL_PER_MESSAGE: u64 = 2_000;
const FUEL_PER_BYTE: u64 = 8;
/// Bytes of any prompt, and how many more for each byte of input.
const OUTPUT_BYTES: usize = 1 << 20;
const OUTPUT_PER_BYTE: usize = 8;
/// Largest number that `batch`, `slice` and `indent` take.
const MAX_FILTER_COUNT: usize = 10_000;
/// Stack of a template, of which only what is used costs memory.
pub(crate) const STACK_BYTES: usize = 64 << 20;

/// What a prompt is made from, prepared for the template.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RenderCall {
    pub(crate) messages: Vec<serde_json::Value>,
    pub(crate) tools: Option<serde_json::Value>,
    pub(crate) documents: Option<serde_json::Value>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) extra: Option<serde_json::Map<String, serde_json::Value>>,
    pub(crate) now: Option<LocalTime>,
    /// Length of all this as JSON; bounds are scaled by it.
    #[serde(skip)]
    pub(crate) input_bytes: usize,
}

/// A compiled template. Every call may come from any thread.
pub(crate) struct TemplateEngine {
    environment: Environment<'static>,
    special_tokens: SpecialTokens,
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

impl TemplateEngine {
    /// Compiles a template. Runs on a stack of its own.
    pub(crate) fn compile(source: &str, special_tokens: &SpecialTokens) -> Result<Self> {
        check_source(source)?;
        on_large_stack(|| {
            let mut environment = environment();
            environment
                .add_template_owned(NAME, adapt_source(source))
                .map_err(|error| TextError::TemplateSyntax {
                    line: error.line().unwrap_or(1),
                    reason: reason(&error),
                })?;
            Ok(Self {
                environment,
                special_tokens: special_tokens.clone(),
            })
        })
    }

    /// Renders a prompt. Runs on a stack of its own.
    pub(crate) fn render(&self, call: &RenderCall) -> Result<String> {
        on_large_stack(|| self.render_here(call))
    }

    /// Renders a prompt on this thread's stack.
    pub(crate) fn render_here(&self, call: &RenderCall) -> Result<String> {
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
        if let Some(now) = call.now {
            let function = move |format: &str| now.format(format);
            variables.push(("strftime_now".to_owned(), Value::from_function(function)));
        }
        for (name, value) in call.extra.iter().flatten() {
            variables.push((name.clone(), Value::from_serialize(value)));
        }
        // Absent lists are None, as in transformers; templates ask `tools is not none`.
        let list = |value: &Option<serde_json::Value>| value.as_ref().map_or(Value::from(()), Value::from_serialize);
        variables.push(("messages".to_owned(), Value::from_serialize(&call.messages)));
        variables.push(("tools".to_owned(), list(&call.tools)));
        variables.push(("documents".to_owned(), list(&call.documents)));
        variables.push((
            "add_generation_prompt".to_owned(),
            Value::from(call.add_generation_prompt),
        ));

        let context: Value = variables.into_iter().collect();
        let bytes = u64::try_from(call.input_bytes).unwrap_or(u64::MAX);
        let messages = call.messages.len() as u64;
        let fuel = FUEL
            .saturating_add(messages.saturating_mul(FUEL_PER_MESSAGE))
            .saturating_add(bytes.saturating_mul(FUEL_PER_BYTE));
        // A copy shares everything but this bound.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment
            .get_template(NAME)
            .map_err(|error| render_error(&error, fuel))?;
        let mut out = Bounded {
            bytes: Vec::new(),
            limit: OUTPUT_BYTES.saturating_add(call.input_bytes.saturating_mul(OUTPUT_PER_BYTE)),
            is_full: false,
        };
        let rendered = template.render_captured_to(context, &mut out).map(|_| ());
        if out.is_full {
            let limit = out.limit;
            return Err(TextError::TemplateBound {
                reason: format!("it writes more than {limit} bytes for this input"),
            });
        }
        rendered.map_err(|error| render_error(&error, fuel))?;
        String::from_utf8(out.bytes).map_err(|_| TextError::TemplateRender {
            line: 0,
            reason: "it wrote text that is not UTF-8".to_owned(),
        })
    }
}

/// The text that comes out, up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.is_full = true;
            return Err(io::Error::other("the output's limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` on a thread with [`STACK_BYTES`] of stack: the parser and values of templates recurse.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new()
            .name("halyard-template".into())
            .stack_size(STACK_BYTES);
        let failed = |reason: String| TextError::TemplateUnavailable { reason };
        let thread = builder
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("no thread for it: {error}")))?;
        thread.join().unwrap_or_else(|_| {
            let reason = "the template engine panicked".to_owned();
            Err(TextError::TemplateBound { reason })
        })
    })
}

/// The argument `name` of `filter` where it is small enough.
fn small(filter: &str, name: &str, value: usize) -> std::result::Result<usize, Error> {
    if value <= MAX_FILTER_COUNT {
        return Ok(value);
    }
    let message = format!("{filter} takes a {name} of at most {MAX_FILTER_COUNT}, found {value}");
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Jinja as transformers configures it (`_compile_jinja_template`).
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(python_methods::unknown_method);
    environment.set_formatter(|out: &mut Output, _: &State, value: &Value| {
        out.write_str(&python_str(value)).map_err(Error::from)
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python_str(value));
    environment.add_filter("length", python_methods::length);
    environment.add_filter("count", python_methods::length);
    environment.add_filter(
        "batch",
        |state: &State, value: Value, count: usize, fill: Option<Value>| {
            minijinja::filters::batch(state, value, small("batch", "size", count)?, fill)
        },
    );
    environment.add_filter(
        "slice",
        |state: &State, value: Value, count: usize, fill: Option<Value>| {
            minijinja::filters::slice(state, value, small("slice", "count", count)?, fill)
        },
    );
    environment.add_filter("indent", indent);
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

fn without_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

/// The `indent` filter with a bound on its width.
fn indent(
    value: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> std::result::Result<Value, Error> {
    let named: Option<usize> = options.get("width")?;
    let width = width.or(named).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let padding = " ".repeat(small("indent", "width", width)?);
    // Each line may grow by the padding: that is what is bounded.
    let lines = value.matches('\n').count() + 1;
    if lines.saturating_mul(padding.len()) > OUTPUT_BYTES.max(4 * value.len()) {
        let message = format!("indent by {} spaces of {lines} lines is too much", padding.len());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let mut out = String::with_capacity(value.len());
    for (index, line) in without_line_break(value).split('\n').enumerate() {
        let pads = if index == 0 && !first {
            false
        } else {
            blank || !line.is_empty()
        };
        if pads {
            out.push_str(&padding);
        }
        out.push_str(line);
        out.push('\n');
    }
    out.truncate(without_line_break(&out).len());
    Ok(Value::from(out))
}

/// Rewrites what this Jinja reads differently, without moving a line or changing how white space is trimmed:
/// `{% generation %}` and `{% endgeneration %}`, which only mark text for training, become a condition that always
/// holds; and the line break after `{% raw %}`, which Python's Jinja keeps, is doubled since this one drops it.
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

fn render_error(error: &Error, fuel: u64) -> TextError {
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
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateBound {
            reason: format!("it takes more than {fuel} instructions for this input"),
        };
    }
    TextError::TemplateRender {
        line,
        reason: reason(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints what the goldens' templates take: the margin of the bounds.
    #[test]
    fn real_templates_stay_far_below_the_instructions_allowed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat.json");
        let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON");
        let templates = golden["templates"].as_array().expect("templates");
        let mut most = 0;
        for template in templates {
            let mut environment = environment();
            environment.set_fuel(Some(u64::MAX / 4));
            let source = adapt_source(template["source"].as_str().expect("a source"));
            environment.add_template_owned(NAME, source).expect("parses");
            for case in template["cases"].as_array().expect("cases") {
                let call = RenderCall {
                    messages: case["messages"].as_array().expect("messages").clone(),
                    tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
                    ..RenderCall::default()
                }
                .measured();
                let context = Value::from_serialize(&call);
                let compiled = environment.get_template(NAME).expect("is there");
                let Ok(captured) = compiled.render_captured(context) else {
                    continue;
                };
                let used = captured.state().fuel_levels().expect("counted").0;
                let per_message = used / call.messages.len().max(1) as u64;
                let per_byte = used / call.input_bytes as u64;
                println!(
                    "{}: {used}, {per_message} a message, {per_byte} a byte",
                    template["name"]
                );
                most = most.max(per_message);
            }
        }
        assert!(most > 0 && most < FUEL_PER_MESSAGE / 4, "{most} instructions a message");
    }
}
