//! Reads the declarative response template of a `tokenizer_config.json`: which regions an answer has, by which
//! delimiters, and how their text becomes calls. A template is a stranger's: what is unknown is refused by its name,
//! what is too large by its limit.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::pattern::Pattern;
use super::value::{Calls, Content, Dialect, Lines, Source, Tags};

/// The longest template.
const MAX_TEMPLATE_BYTES: usize = 64 << 10;
/// How deep parsers of values may nest.
const MAX_DEPTH: usize = 4;
/// Keys of a path.
const MAX_PATH: usize = 8;
/// Pairs of quotes.
const MAX_DELIMS: usize = 8;

/// A model's response template.
#[derive(Debug)]
pub struct ResponseTemplate {
    /// In the order of their names, which decides between delimiters of one length at one place.
    pub(super) fields: Vec<Field>,
    /// The field without an opening delimiter: text that no other field claims.
    pub(super) implicit: Option<usize>,
    /// What stands before an answer in its prompt.
    pub(super) anchor: Arc<Pattern>,
}

/// A region of answers.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) kind: Kind,
    pub(super) open: Option<Arc<Pattern>>,
    pub(super) close: Option<Arc<Pattern>>,
    /// Whether white space behind it is a part of its closing delimiter.
    pub(super) then_blank: bool,
    /// What stands between the texts of several regions of this field.
    pub(super) join: Option<String>,
}

/// What a region is.
#[derive(Debug)]
pub(super) enum Kind {
    Thinking,
    Content,
    Calls(Box<Calls>),
}

type Reason = String;

/// The fields of a message that an answer can give, and what each is. Transformers leaves the name of thoughts open.
fn field_kind(name: &str) -> Option<&'static str> {
    match name {
        "thinking" | "reasoning" | "reasoning_content" => Some("thinking"),
        "content" => Some("content"),
        "tool_calls" => Some("tool_calls"),
        _ => None,
    }
}

impl ResponseTemplate {
    /// Reads a template, the JSON of `response_template`.
    ///
    /// # Errors
    /// What is wrong with it, unknown, or beyond a limit.
    pub fn new(json: &str) -> crate::Result<Self> {
        Self::read(json).map_err(|reason| crate::TextError::ResponseTemplate { reason })
    }

    fn read(json: &str) -> Result<Self, Reason> {
        if json.len() > MAX_TEMPLATE_BYTES {
            return Err(format!(
                "it has {} bytes, and may have {MAX_TEMPLATE_BYTES}",
                json.len()
            ));
        }
        let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let root = object(&value, "it")?;
        known_keys(
            root,
            &["version", "defaults", "fields", "start_anchor", "start_anchor_pattern"],
            "it",
        )?;
        match root.get("version") {
            None => {}
            Some(version) if version.as_u64() == Some(1) => {}
            Some(version) => return Err(format!("version is {version}, and 1 is supported")),
        }
        if let Some(defaults) = root.get("defaults") {
            for (key, default) in object(defaults, "defaults")? {
                let is_empty = default.is_null() || default == "" || default.as_array().is_some_and(Vec::is_empty);
                if key != "role" && !(is_empty && field_kind(key).is_some()) {
                    return Err(format!("defaults has '{key}', which an answer cannot have"));
                }
            }
        }
        let anchor = delimiter(root, "start_anchor", "start_anchor_pattern", "it")?
            .ok_or("it has neither start_anchor nor start_anchor_pattern")?;
        let mut named: Vec<(&String, &Value)> = root
            .get("fields")
            .and_then(Value::as_object)
            .filter(|fields| !fields.is_empty())
            .ok_or("it has no fields")?
            .iter()
            .collect();
        named.sort_by_key(|(name, _)| *name);
        let mut fields = Vec::new();
        let mut kinds = Vec::new();
        for (name, value) in named {
            let kind = field_kind(name)
                .ok_or_else(|| format!("field '{name}' is none of thinking, content and tool_calls"))?;
            if kinds.contains(&kind) {
                return Err(format!("field '{name}': another field has the thoughts already"));
            }
            kinds.push(kind);
            fields.push(field(name, kind, value).map_err(|reason| format!("field '{name}': {reason}"))?);
        }
        let implicit: Vec<usize> = (0..fields.len())
            .filter(|&index| fields[index].open.is_none())
            .collect();
        if implicit.len() > 1 {
            return Err("more than one field has no opening delimiter".to_owned());
        }
        let implicit = implicit.first().copied();
        if implicit.is_some_and(|index| matches!(fields[index].kind, Kind::Calls(_))) {
            return Err("field 'tool_calls' has no opening delimiter".to_owned());
        }
        Ok(Self {
            fields,
            implicit,
            anchor,
        })
    }

    /// Whether it says how thoughts are marked.
    pub fn has_thinking(&self) -> bool {
        self.fields.iter().any(|field| matches!(field.kind, Kind::Thinking))
    }

    /// Whether it says how calls are written.
    pub fn has_calls(&self) -> bool {
        self.fields.iter().any(|field| matches!(field.kind, Kind::Calls(_)))
    }

    /// The literals that thoughts begin and end with; none where there is no such.
    pub(in super::super) fn thinking_markers(&self) -> (&[String], &[String]) {
        let field = self.fields.iter().find(|field| matches!(field.kind, Kind::Thinking));
        field.map_or((&[], &[]), |field| {
            (
                field.open.as_ref().map_or(&[], |open| &open.begins_with),
                field.close.as_ref().map_or(&[], |close| &close.ends_with),
            )
        })
    }

    /// Whether a special token may be part of what it reads.
    pub(in super::super) fn may_hold(&self, text: &str) -> bool {
        let fields = self.fields.iter().any(|field| {
            let delimiters = field.open.iter().chain(&field.close);
            let content = match &field.kind {
                Kind::Calls(calls) => calls.content.may_hold(text),
                Kind::Thinking | Kind::Content => false,
            };
            content || delimiters.into_iter().any(|pattern| pattern.may_hold(text))
        });
        fields || self.anchor.may_hold(text)
    }
}

impl Content {
    fn may_hold(&self, text: &str) -> bool {
        match self {
            Self::Json(dialect) => {
                let mut delims = dialect.string_delims.iter();
                delims.any(|(open, close)| open.contains(text) || close.contains(text))
            }
            Self::Tags(tags) => {
                tags.pattern.may_hold(text) || tags.value.as_ref().is_some_and(|value| value.may_hold(text))
            }
            Self::Lines(lines) => lines.line_sep.contains(text) || lines.kv_sep.contains(text),
            _ => false,
        }
    }
}

fn field(name: &str, kind: &str, value: &Value) -> Result<Field, Reason> {
    let spec = object(value, "it")?;
    const KEYS: [&str; 11] = [
        "open",
        "open_pattern",
        "close",
        "close_pattern",
        "content",
        "content_args",
        "repeats",
        "join",
        "optional",
        "transform",
        "transform_each",
    ];
    known_keys(spec, &KEYS, "it")?;
    let open = delimiter(spec, "open", "open_pattern", "it")?;
    let (close, then_blank) = closing(kind, spec)?;
    let repeats = flag(spec, "repeats")?;
    flag(spec, "optional")?;
    let join = match spec.get("join") {
        None | Some(Value::Null) => None,
        Some(Value::String(_)) if !repeats => return Err("join without repeats".to_owned()),
        Some(Value::String(join)) => Some(join.clone()),
        Some(other) => return Err(format!("join is {other}, and must be a string")),
    };
    let each = flag(spec, "transform_each")?;
    let transform = spec.get("transform").filter(|transform| !transform.is_null());
    let content = text_of(spec, "content")?.unwrap_or("text");
    let kind = match kind {
        "tool_calls" => {
            if join.is_some() {
                return Err("join is for text".to_owned());
            }
            let content = content_parser(content, spec.get("content_args"), 0)?;
            Kind::Calls(Box::new(calls(content, transform, each)?))
        }
        kind => {
            if content != "text" || transform.is_some() || each {
                return Err(format!("{name} can only be text without a transform"));
            }
            content_parser("text", spec.get("content_args"), 0)?;
            if kind == "thinking" {
                Kind::Thinking
            } else {
                Kind::Content
            }
        }
    };
    if transform.is_none() {
        let mut groups = open.iter().chain(&close).flat_map(|pattern| pattern.names());
        if let Some(group) = groups.next() {
            return Err(format!(
                "a delimiter names the group '{group}', and there is no transform that uses it"
            ));
        }
    }
    Ok(Field {
        kind,
        open,
        close,
        then_blank,
        join,
    })
}

/// The closing delimiter of a field. That of thoughts ends before the white space that its pattern ends with, so that
/// their end is known with its last character; what follows is dropped then.
fn closing(kind: &str, spec: &Map<String, Value>) -> Result<(Option<Arc<Pattern>>, bool), Reason> {
    let pattern = spec
        .get("close_pattern")
        .and_then(Value::as_str)
        .filter(|_| kind == "thinking");
    let shorter = pattern.and_then(|pattern| pattern.strip_suffix("\\s*"));
    let Some(shorter) = shorter.filter(|shorter| !shorter.is_empty() && !shorter.ends_with(['\\', '|', '('])) else {
        return Ok((delimiter(spec, "close", "close_pattern", "it")?, false));
    };
    let mut spec = spec.clone();
    spec.insert("close_pattern".to_owned(), Value::from(shorter));
    Ok((delimiter(&spec, "close", "close_pattern", "it")?, true))
}

/// Where the transform of a field puts name and arguments.
fn calls(content: Content, transform: Option<&Value>, each: bool) -> Result<Calls, Reason> {
    let path = |path: &[&str]| Source::Path(path.iter().map(|&key| key.to_owned()).collect());
    let Some(transform) = transform else {
        if each {
            return Err("transform_each without a transform".to_owned());
        }
        return Ok(Calls {
            content,
            each,
            name: path(&["content", "function", "name"]),
            arguments: path(&["content", "function", "arguments"]),
            id: None,
        });
    };
    let of_function = |function: Source| match function {
        Source::Literal(text) => Err(format!("transform.function is the text '{text}'")),
        Source::Path(path) => {
            let key = |key: &str| Source::Path(path.iter().cloned().chain([key.to_owned()]).collect());
            Ok((key("name"), key("arguments")))
        }
    };
    let (name, arguments, id) = match transform {
        Value::String(text) => {
            let Source::Path(path) = source(text)? else {
                return Err("transform is a text".to_owned());
            };
            let function = Source::Path(path.into_iter().chain(["function".to_owned()]).collect());
            let (name, arguments) = of_function(function)?;
            (name, arguments, None)
        }
        Value::Object(transform) => {
            let function = transform.get("function").ok_or("transform has no function")?;
            let (name, arguments) = match function {
                Value::String(text) => of_function(source(text)?)?,
                Value::Object(function) => {
                    let part = |key: &str| match function.get(key) {
                        Some(Value::String(text)) => source(text),
                        Some(_) => Err(format!("transform.function.{key} must be a text or one placeholder")),
                        None => Err(format!("transform.function has no {key}")),
                    };
                    (part("name")?, part("arguments")?)
                }
                _ => return Err("transform.function must be a placeholder or an object".to_owned()),
            };
            let id = match transform.get("id") {
                Some(Value::String(text)) => Some(source(text)?),
                _ => None,
            };
            (name, arguments, id)
        }
        _ => return Err("transform must be an object or a placeholder".to_owned()),
    };
    Ok(Calls {
        content,
        each,
        name,
        arguments,
        id,
    })
}

/// A string of a transform: one placeholder, or a text.
fn source(text: &str) -> Result<Source, Reason> {
    let is_key = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_');
    let placeholder = |text: &str| {
        let inside = text.strip_prefix('{')?.strip_suffix('}')?;
        inside.split('.').all(is_key).then(|| inside.to_owned())
    };
    if let Some(path) = placeholder(text) {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        return match path.len() > MAX_PATH {
            true => Err(format!(
                "the placeholder '{text}' has {} keys, and may have {MAX_PATH}",
                path.len()
            )),
            false => Ok(Source::Path(path)),
        };
    }
    let mut opened = text.match_indices('{').map(|(at, _)| &text[at..]);
    let mixes = opened.any(|rest| rest.find('}').is_some_and(|end| placeholder(&rest[..=end]).is_some()));
    match mixes {
        true => Err(format!("transform mixes a placeholder with text in '{text}'")),
        false => Ok(Source::Literal(text.to_owned())),
    }
}

fn content_parser(name: &str, args: Option<&Value>, depth: usize) -> Result<Content, Reason> {
    let empty = Map::new();
    let args = match args {
        None | Some(Value::Null) => &empty,
        Some(args) => object(args, "content_args")?,
    };
    let strip = args.get("strip").is_none_or(|strip| strip != &Value::Bool(false));
    let known = |keys: &[&str]| known_keys(args, keys, "content_args");
    let value_parser = || match args.get("value_parser") {
        None | Some(Value::Null) => Ok(None),
        Some(_) if depth == MAX_DEPTH => Err(format!("more than {MAX_DEPTH} parsers of values in each other")),
        Some(parser) => {
            let parser = object(parser, "value_parser")?;
            let name = text_of(parser, "name")?.unwrap_or("text");
            content_parser(name, parser.get("args"), depth + 1).map(|content| Some(Box::new(content)))
        }
    };
    Ok(match name {
        "text" | "int" | "float" | "bool" => {
            known(&["strip"])?;
            match name {
                "int" => Content::Integer { strip },
                "float" => Content::Number { strip },
                "bool" => Content::Boolean { strip },
                _ => Content::Text { strip },
            }
        }
        "json" => {
            known(&["unquoted_keys", "string_delims", "allow_non_json", "strip"])?;
            Content::Json(Dialect {
                unquoted_keys: flag(args, "unquoted_keys")?,
                string_delims: string_delims(args.get("string_delims"))?,
                allow_non_json: flag(args, "allow_non_json")?,
                strip,
            })
        }
        "xml-inline" => {
            known(&["tag_pattern", "value_parser", "merge_duplicates", "strip"])?;
            let pattern = text_of(args, "tag_pattern")?.ok_or("xml-inline needs a tag_pattern")?;
            let pattern = Pattern::regex(pattern).map_err(|reason| format!("tag_pattern {reason}"))?;
            if !pattern.names().any(|name| name == "key") {
                return Err("tag_pattern has no group 'key'".to_owned());
            }
            Content::Tags(Tags {
                pattern: Arc::new(pattern),
                value: value_parser()?,
                merge_duplicates: flag(args, "merge_duplicates")?,
            })
        }
        "kv-lines" => {
            known(&["line_sep", "kv_sep", "value_parser", "strip"])?;
            let separator = |key, default: &str| match text_of(args, key)?.unwrap_or(default) {
                "" => Err(format!("{key} is empty")),
                text => Ok(text.to_owned()),
            };
            Content::Lines(Lines {
                line_sep: separator("line_sep", "\n")?,
                kv_sep: separator("kv_sep", ":")?,
                strip,
                value: value_parser()?,
            })
        }
        _ => return Err(format!("no content parser is called '{name}'")),
    })
}

fn string_delims(value: Option<&Value>) -> Result<Vec<(String, String)>, Reason> {
    let wrong = || "string_delims must be a list of pairs of texts".to_owned();
    let pairs = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(value) => value.as_array().ok_or_else(wrong)?,
    };
    if pairs.len() > MAX_DELIMS {
        return Err(format!(
            "string_delims has {} pairs, and may have {MAX_DELIMS}",
            pairs.len()
        ));
    }
    let pair = |pair: &Value| {
        let text = |index: usize| {
            pair.get(index)?
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        text(0).zip(text(1)).ok_or_else(wrong)
    };
    pairs.iter().map(pair).collect()
}

/// A delimiter, by one of its two keys.
fn delimiter(
    spec: &Map<String, Value>,
    literal: &str,
    pattern: &str,
    what: &str,
) -> Result<Option<Arc<Pattern>>, Reason> {
    let (key, found) = match (spec.get(literal), spec.get(pattern)) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(format!("{what} has both {literal} and {pattern}")),
        (Some(Value::String(text)), None) => (literal, Pattern::literals(std::slice::from_ref(text))),
        (Some(Value::Array(texts)), None) => {
            let texts: Option<Vec<String>> = texts.iter().map(|text| text.as_str().map(str::to_owned)).collect();
            let texts = texts.ok_or_else(|| format!("{literal} must be a text or a list of texts"))?;
            (literal, Pattern::literals(&texts))
        }
        (None, Some(Value::String(text))) => (pattern, Pattern::regex(text)),
        (Some(_), None) => return Err(format!("{literal} must be a text or a list of texts")),
        (None, Some(_)) => return Err(format!("{pattern} must be a text")),
    };
    let found = found.map_err(|reason| format!("{key} {reason}"))?;
    Ok(Some(Arc::new(found)))
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>, Reason> {
    value.as_object().ok_or_else(|| format!("{what} is no JSON object"))
}

fn known_keys(spec: &Map<String, Value>, known: &[&str], what: &str) -> Result<(), Reason> {
    match spec.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{what} has the key '{key}', which is not known")),
        None => Ok(()),
    }
}

fn flag(spec: &Map<String, Value>, key: &str) -> Result<bool, Reason> {
    match spec.get(key) {
        None => Ok(false),
        Some(value) => value
            .as_bool()
            .ok_or_else(|| format!("{key} is {value}, and must be true or false")),
    }
}

fn text_of<'a>(spec: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, Reason> {
    match spec.get(key) {
        None => Ok(None),
        Some(value) => value
            .as_str()
            .map(Some)
            .ok_or_else(|| format!("{key} is {value}, and must be a text")),
    }
}
