//! What the text of one region says: the content parsers of response templates, and where in their values a call has
//! its name and its arguments. JSON stays the text that the model wrote.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::super::types::{ToolTypes, quoted};
use super::pattern::Pattern;
use super::scan::{Scan, Scanner};

/// A call in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) id: Option<String>,
    pub(super) arguments: String,
}

/// How the text of a region becomes a value.
#[derive(Debug)]
pub(super) enum Content {
    Text { strip: bool },
    Integer { strip: bool },
    Number { strip: bool },
    Boolean { strip: bool },
    Json(Dialect),
    Tags(Tags),
    Lines(Lines),
}

/// JSON as some models write it.
#[derive(Debug, Default)]
pub(super) struct Dialect {
    /// Keys may stand without quotes.
    pub(super) unquoted_keys: bool,
    /// Other quotes.
    pub(super) string_delims: Vec<(String, String)>,
    /// What is no JSON is text.
    pub(super) allow_non_json: bool,
    pub(super) strip: bool,
}

/// One match of a pattern for each key, which the pattern names.
#[derive(Debug)]
pub(super) struct Tags {
    pub(super) pattern: Arc<Pattern>,
    pub(super) value: Option<Box<Content>>,
    /// Values of one key become a list; otherwise the last one counts.
    pub(super) merge_duplicates: bool,
}

/// A key and a value in each line.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) line_sep: String,
    pub(super) kv_sep: String,
    pub(super) strip: bool,
    pub(super) value: Option<Box<Content>>,
}

/// Where something is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Literal(String),
    /// A group of the delimiter or the content, and keys within it.
    Path(Vec<String>),
}

/// How a region becomes calls.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) content: Content,
    /// Whether the content is a list with a call in each object, whose keys are names of their own.
    pub(super) each: bool,
    pub(super) name: Source,
    pub(super) arguments: Source,
    pub(super) id: Option<Source>,
}

/// A value.
#[derive(Clone, Debug)]
enum Value {
    Text(String),
    /// JSON, as it was written.
    Json(String),
    Object(Vec<(String, Value)>),
    List(Vec<Value>),
}

/// Why a region is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Calls {
    /// The calls of a region; `captures` are groups of its delimiter. The text behind the last argument that was read
    /// comes with them, where arguments are tags.
    pub(super) fn read<'a>(
        &self,
        body: &'a str,
        captures: &[(String, String)],
        types: &ToolTypes,
    ) -> Result<(Vec<Call>, &'a str), Malformed> {
        let (content, rest) = self.content.read(body)?;
        let items = match (&content, self.each) {
            (Value::Json(json), _) if json.starts_with('[') => elements(json)?,
            (_, true) => return Err(Malformed),
            _ => vec![content],
        };
        let call = |item: &Value| {
            let scope = Scope {
                item,
                each: self.each,
                captures,
            };
            let name = scope.find(&self.name)?.into_text()?;
            let mut arguments = scope.find(&self.arguments)?;
            arguments.cast(&name, types);
            let id = self.id.as_ref().map(|id| scope.find(id)?.into_text()).transpose()?;
            let arguments = match arguments {
                Value::Json(json) if json == "null" => return Err(Malformed),
                Value::Json(json) if json.starts_with('"') => Value::Json(json).into_text()?,
                Value::Text(text) => text,
                other => other.into_json(),
            };
            let id = id.filter(|id| !id.is_empty());
            match name.is_empty() {
                true => Err(Malformed),
                false => Ok(Call { name, id, arguments }),
            }
        };
        Ok((items.iter().map(call).collect::<Result<_, _>>()?, rest))
    }
}

/// What a placeholder may name.
struct Scope<'a> {
    item: &'a Value,
    each: bool,
    captures: &'a [(String, String)],
}

impl Scope<'_> {
    fn find(&self, source: &Source) -> Result<Value, Malformed> {
        let path = match source {
            Source::Literal(text) => return Ok(Value::Text(text.clone())),
            Source::Path(path) => path,
        };
        let (root, keys) = path.split_first().ok_or(Malformed)?;
        let own = match self.each {
            true => self.item.member(root),
            false => (root == "content").then(|| self.item.clone()).ok_or(Malformed),
        };
        let captured = || {
            let (_, text) = self.captures.iter().find(|(name, _)| name == root).ok_or(Malformed)?;
            Ok(Value::Text(text.clone()))
        };
        keys.iter()
            .try_fold(own.or_else(|_| captured())?, |value, key| value.member(key))
    }
}

impl Content {
    /// The value of a text, and what of the text is no part of it.
    fn read<'a>(&self, text: &'a str) -> Result<(Value, &'a str), Malformed> {
        let value = match self {
            Self::Text { strip } => Value::Text(stripped(text, *strip).to_owned()),
            Self::Integer { strip } => number(stripped(text, *strip), true)?,
            Self::Number { strip } => number(stripped(text, *strip), false)?,
            Self::Boolean { strip } => {
                let text = stripped(text, *strip).to_lowercase();
                Value::Json(matches!(text.as_str(), "true" | "1").to_string())
            }
            Self::Json(dialect) => dialect.read(text)?,
            Self::Tags(tags) => return tags.read(text),
            Self::Lines(lines) => lines.read(text)?,
        };
        Ok((value, ""))
    }
}

fn stripped(text: &str, strip: bool) -> &str {
    if strip { text.trim() } else { text }
}

fn number(text: &str, integer: bool) -> Result<Value, Malformed> {
    let number = super::super::types::number(text.trim()).ok_or(Malformed)?;
    let is_integer = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    match integer && !is_integer {
        true => Err(Malformed),
        false => Ok(Value::Json(number)),
    }
}

impl Dialect {
    fn read(&self, text: &str) -> Result<Value, Malformed> {
        let json = match self.string_delims.is_empty() && !self.unquoted_keys {
            true => text.trim().to_owned(),
            false => self.translated(text).trim().to_owned(),
        };
        match serde_json::from_str::<IgnoredAny>(&json) {
            Ok(_) => Ok(Value::Json(json)),
            Err(_) if self.allow_non_json => Ok(Value::Text(stripped(text, self.strip).to_owned())),
            Err(_) => Err(Malformed),
        }
    }

    /// The same in JSON's own quotes.
    fn translated(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let mut rest = text;
        // The last character that stands outside of strings.
        let mut before = None;
        // Quotes that are closed nowhere in the rest.
        let mut open_only = vec![false; self.string_delims.len()];
        while let Some(first) = rest.chars().next() {
            let delimited = self
                .string_delims
                .iter()
                .zip(&mut open_only)
                .find_map(|((open, close), open_only)| {
                    let inside = rest.strip_prefix(open.as_str()).filter(|_| !*open_only)?;
                    let end = inside.find(close.as_str());
                    *open_only = end.is_none();
                    end.map(|end| (&inside[..end], &inside[end + close.len()..]))
                });
            if let Some((inside, after)) = delimited {
                out.push_str(&quoted(inside));
                (rest, before) = (after, Some('"'));
                continue;
            }
            if self.unquoted_keys && matches!(before, Some('{' | ',')) {
                let key = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                if key > 0 && rest[key..].starts_with(':') {
                    out.push_str(&quoted(&rest[..key]));
                    (rest, before) = (&rest[key..], Some('"'));
                    continue;
                }
            }
            out.push(first);
            before = Some(first);
            rest = &rest[first.len_utf8()..];
        }
        out
    }
}

impl Tags {
    fn read<'a>(&self, text: &'a str) -> Result<(Value, &'a str), Malformed> {
        let mut members: Vec<(String, Value)> = Vec::new();
        let mut at = 0;
        let mut merged = Vec::new();
        // A pattern that reads on and on for each short match would cost the square of the text.
        let budget = 16 * text.len() + 65_536;
        let mut looked_at = 0;
        let mut scanner = Scanner::new([&self.pattern], 0, usize::MAX);
        while let Scan::Found(found) = scanner.scan(&text[at..], at, true) {
            let group = |name| self.pattern.group(name, &found.places, text, 0);
            let key = group("key").ok_or(Malformed)?.to_owned();
            let value = group("value").unwrap_or_default();
            let value = match &self.value {
                Some(content) => content.read(value)?.0,
                None => Value::Text(value.to_owned()),
            };
            match members.iter().position(|(other, _)| *other == key) {
                None => members.push((key, value)),
                Some(index) if self.merge_duplicates => match &mut members[index].1 {
                    Value::List(values) if merged.contains(&index) => values.push(value),
                    first => {
                        let values = vec![std::mem::replace(first, Value::List(Vec::new())), value];
                        *first = Value::List(values);
                        merged.push(index);
                    }
                },
                Some(index) => members[index].1 = value,
            }
            looked_at += scanner.looked_at;
            if looked_at > budget || members.len() > MAX_MEMBERS {
                return Err(Malformed);
            }
            at = found.end;
            scanner = Scanner::new([&self.pattern], at, usize::MAX);
            if found.start == found.end {
                scanner = scanner.not_empty_at_first();
            }
        }
        Ok((Value::Object(members), &text[at..]))
    }
}

/// Arguments of one call that are tags or lines.
const MAX_MEMBERS: usize = 1024;

impl Lines {
    fn read(&self, text: &str) -> Result<Value, Malformed> {
        let mut members: Vec<(String, Value)> = Vec::new();
        for line in text.split(self.line_sep.as_str()) {
            let line = stripped(line, self.strip);
            let Some((key, value)) = line.split_once(self.kv_sep.as_str()) else {
                continue;
            };
            let (key, value) = (stripped(key, self.strip).to_owned(), stripped(value, self.strip));
            let value = match &self.value {
                Some(content) => content.read(value)?.0,
                None => Value::Text(value.to_owned()),
            };
            match members.iter_mut().find(|(other, _)| *other == key) {
                Some(member) => member.1 = value,
                None => members.push((key, value)),
            }
            if members.len() > MAX_MEMBERS {
                return Err(Malformed);
            }
        }
        Ok(Value::Object(members))
    }
}

impl Value {
    fn member(&self, key: &str) -> Result<Value, Malformed> {
        match self {
            Self::Object(members) => {
                let member = members.iter().find(|(other, _)| other == key).ok_or(Malformed)?;
                Ok(member.1.clone())
            }
            Self::Json(json) if json.starts_with('{') => {
                let mut found = None;
                let parts = parts(json)?;
                for pair in parts.chunks_exact(2) {
                    let name: String = serde_json::from_str(pair[0]).map_err(|_| Malformed)?;
                    if name == key {
                        found = Some(pair[1].to_owned());
                    }
                }
                found.map(Value::Json).ok_or(Malformed)
            }
            _ => Err(Malformed),
        }
    }

    fn into_text(self) -> Result<String, Malformed> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Json(json) => serde_json::from_str(&json).map_err(|_| Malformed),
            Self::Object(_) | Self::List(_) => Err(Malformed),
        }
    }

    fn into_json(self) -> String {
        match self {
            Self::Text(text) => quoted(&text),
            Self::Json(json) => json,
            Self::Object(members) => {
                let member = |(key, value): (String, Value)| format!("{}: {}", quoted(&key), value.into_json());
                let members: Vec<String> = members.into_iter().map(member).collect();
                format!("{{{}}}", members.join(", "))
            }
            Self::List(values) => {
                let values: Vec<String> = values.into_iter().map(Value::into_json).collect();
                format!("[{}]", values.join(", "))
            }
        }
    }

    /// Text among the arguments becomes what the tool's schema says.
    fn cast(&mut self, function: &str, types: &ToolTypes) {
        let Self::Object(members) = self else { return };
        for (key, value) in members {
            let Some(types) = types.of(function, key) else {
                continue;
            };
            let cast = |value: &mut Value| {
                if let Self::Text(text) = value {
                    *value = Self::Json(types.cast(text));
                }
            };
            match value {
                Self::List(values) => values.iter_mut().for_each(cast),
                value => cast(value),
            }
        }
    }
}

/// The elements of a JSON list.
fn elements(json: &str) -> Result<Vec<Value>, Malformed> {
    Ok(parts(json)?
        .into_iter()
        .map(|part| Value::Json(part.to_owned()))
        .collect())
}

/// What stands between the brackets, commas and colons of a JSON list or object: elements, or keys and values in turn.
/// The text is known to be JSON.
fn parts(json: &str) -> Result<Vec<&str>, Malformed> {
    let inside = json.get(1..json.len().saturating_sub(1)).ok_or(Malformed)?;
    let mut parts = Vec::new();
    let (mut depth, mut in_string, mut escaped, mut start) = (0_usize, false, false, 0);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1).ok_or(Malformed)?,
            b',' | b':' if depth == 0 => {
                parts.push(inside[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = inside[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    Ok(parts)
}
