//! Structural tags translated to Lark: xgrammar's trees of formats, and the older list of structures with triggers.
//!
//! A text that spells a special token of the model may come as that token or as text.

use serde_json::Value;

use crate::check::Limits;
use crate::error::GrammarError;
use crate::gbnf;
use crate::lark::{self, ANY_TEXT, Lark};
use crate::schema::{self, SchemaOptions};

const FIELD: &str = "structural_tag";

/// Special tokens of a model.
pub(crate) trait SpecialTokens {
    /// The first special token that a text spells: where it begins, how long it is, its id.
    fn find(&self, text: &str) -> Option<(usize, usize, u32)>;
    /// The id of a token by its spelling.
    fn id(&self, token: &str) -> Option<u32>;
    /// Whether there is a token of this id.
    fn has(&self, id: u32) -> bool;
}

/// The grammar in Lark.
pub(crate) fn to_lark(
    tag: &Value,
    options: &SchemaOptions,
    limits: &Limits,
    tokens: &dyn SpecialTokens,
) -> Result<String, GrammarError> {
    let mut writer = Writer {
        lark: Lark::default(),
        options,
        limits,
        tokens,
    };
    let start = if tag.get("structures").is_some() {
        writer.structures(tag)?
    } else {
        match tag.get("type").and_then(Value::as_str) {
            Some("structural_tag") => {}
            _ => return Err(wrong("type must be \"structural_tag\"")),
        }
        let format = tag
            .get("format")
            .ok_or_else(|| wrong("it has neither `format` nor `structures`"))?;
        writer.format(format, None)?
    };
    Ok(writer.lark.finish(&start))
}

fn wrong(reason: impl Into<String>) -> GrammarError {
    GrammarError::invalid(FIELD, reason)
}

struct Writer<'a> {
    lark: Lark,
    options: &'a SchemaOptions,
    limits: &'a Limits,
    tokens: &'a dyn SpecialTokens,
}

/// What a text ends or begins with: one of these texts, or a token.
#[derive(Clone)]
enum Edge {
    Texts(Vec<String>),
    Token(u32),
}

/// A tag: begin, what stands between, end.
struct Tag<'v> {
    begin: Edge,
    content: Content<'v>,
    end: Edge,
}

enum Content<'v> {
    Format(&'v Value),
    Schema(&'v Value),
}

/// Free text with tags in it.
struct Triggered<'v> {
    triggers: Vec<String>,
    tags: Vec<Tag<'v>>,
    at_least_one: bool,
    stop_after_first: bool,
    excludes: Vec<String>,
}

impl Writer<'_> {
    /// What stands for a format's text, and for the text of `end` behind it.
    fn format(&mut self, format: &Value, end: Option<&Edge>) -> Result<String, GrammarError> {
        let kind = format.get("type").and_then(Value::as_str);
        let kind = kind.ok_or_else(|| wrong("a format has no `type`"))?;
        let body = match kind {
            "any_text" => {
                only(format, &["excludes"])?;
                let excludes = texts(format, "excludes")?;
                return self.any_text(&excludes, end);
            }
            "sequence" => {
                only(format, &["elements"])?;
                return self.sequence(list(format, "elements")?, end);
            }
            "or" => {
                only(format, &["elements"])?;
                let options = list(format, "elements")?
                    .iter()
                    .map(|element| self.format(element, end));
                let options = options.collect::<Result<Vec<_>, _>>()?;
                if options.is_empty() {
                    return Err(wrong("an `or` has no elements"));
                }
                return Ok(self.lark.rule(&options.join(" | ")));
            }
            "const_string" => {
                only(format, &["value"])?;
                self.literal(text(format, "value")?)
            }
            "json_schema" => {
                only(
                    format,
                    &["json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"],
                )?;
                let style = format.get("style").and_then(Value::as_str).unwrap_or("json");
                if style != "json" {
                    return Err(wrong(format!(
                        "the style \"{style}\" of a json_schema is not supported, only \"json\""
                    )));
                }
                for name in ["any_order", "max_whitespace_cnt", "excludes"] {
                    let value = format.get(name).unwrap_or(&Value::Null);
                    let asks = !(value.is_null() || *value == false || value.as_array().is_some_and(Vec::is_empty));
                    if asks {
                        return Err(wrong(format!("`{name}` of a json_schema is not supported")));
                    }
                }
                self.json(format.get("json_schema").ok_or_else(|| missing("json_schema"))?)?
            }
            "regex" => {
                only(format, &["pattern"])?;
                let pattern = text(format, "pattern")?;
                self.limits.check_groups(FIELD, pattern)?;
                self.lark.terminal(&lark::regex(pattern))
            }
            "grammar" => {
                only(format, &["grammar"])?;
                gbnf::write(&mut self.lark, text(format, "grammar")?).map_err(wrong)?
            }
            "tag" => {
                let tag = read_tag(format, self.tokens)?;
                self.tag(&tag)?
            }
            "triggered_tags" => {
                only(
                    format,
                    &["triggers", "tags", "at_least_one", "stop_after_first", "excludes"],
                )?;
                let tags = list(format, "tags")?.iter().map(|tag| read_tag(tag, self.tokens));
                let triggered = Triggered {
                    triggers: texts(format, "triggers")?,
                    tags: tags.collect::<Result<_, _>>()?,
                    at_least_one: flag(format, "at_least_one")?,
                    stop_after_first: flag(format, "stop_after_first")?,
                    excludes: texts(format, "excludes")?,
                };
                return self.triggered(&triggered, end);
            }
            "tags_with_separator" => {
                only(format, &["tags", "separator", "at_least_one", "stop_after_first"])?;
                self.separated(format)?
            }
            "optional" => {
                only(format, &["content"])?;
                format!("{}?", self.content(format)?)
            }
            "plus" => {
                only(format, &["content"])?;
                format!("{}+", self.content(format)?)
            }
            "star" => {
                only(format, &["content"])?;
                format!("{}*", self.content(format)?)
            }
            "repeat" => {
                only(format, &["content", "min", "max"])?;
                self.repeat(format)?
            }
            "token" => {
                only(format, &["token"])?;
                let id = token_id(format.get("token"), self.tokens)?;
                format!("<[{id}]>")
            }
            other => {
                return Err(wrong(format!(
                    "the format \"{other}\" is not supported; these are: const_string, json_schema, any_text, regex, \
                     grammar, sequence, or, tag, triggered_tags, tags_with_separator, optional, plus, star, repeat, \
                     token"
                )));
            }
        };
        let end = end.map(|end| self.edge(end)).unwrap_or_default();
        if self.lark.num_definitions() > self.limits.max_references {
            let limit = self.limits.max_references;
            return Err(wrong(format!("it has more than {limit} parts")));
        }
        Ok(self.lark.rule(&format!("{body} {end}")))
    }

    fn content(&mut self, format: &Value) -> Result<String, GrammarError> {
        self.format(format.get("content").ok_or_else(|| missing("content"))?, None)
    }

    fn repeat(&mut self, format: &Value) -> Result<String, GrammarError> {
        let number = |name| format.get(name).and_then(Value::as_i64).ok_or_else(|| missing(name));
        let (min, max) = (number("min")?, number("max")?);
        let is_right = (0..=10_000).contains(&min) && (max == -1 || (min..=10_000).contains(&max));
        if !is_right {
            let reason = format!("a repeat of {min} to {max}; 0 to 10000 are taken, and -1 for no upper bound");
            return Err(wrong(reason));
        }
        let content = self.content(format)?;
        Ok(match max {
            -1 => format!("{content}{{{min},}}"),
            max => format!("{content}{{{min},{max}}}"),
        })
    }

    fn sequence(&mut self, elements: &[Value], end: Option<&Edge>) -> Result<String, GrammarError> {
        let mut parts = Vec::new();
        let mut rest = elements;
        while let Some((first, behind)) = rest.split_first() {
            let is_free = first
                .get("type")
                .is_some_and(|kind| kind == "any_text" || kind == "triggered_tags");
            rest = behind;
            if behind.is_empty() {
                parts.push(self.format(first, end)?);
                return Ok(self.lark.rule(&parts.join(" ")));
            }
            if !is_free {
                parts.push(self.format(first, None)?);
                continue;
            }
            // Free text ends where the next text begins.
            let next = behind[0].get("value").and_then(Value::as_str);
            let Some(next) = next.filter(|_| behind[0]["type"] == "const_string") else {
                let reason = "free text in a sequence must stand last or before a const_string";
                return Err(wrong(reason));
            };
            parts.push(self.format(first, Some(&Edge::Texts(vec![next.to_string()])))?);
            rest = &behind[1..];
            if rest.is_empty() {
                let end = end.map(|end| self.edge(end)).unwrap_or_default();
                parts.push(end);
            }
        }
        Ok(self.lark.rule(&parts.join(" ")))
    }

    /// Any text, up to the first place where `end` comes.
    fn any_text(&mut self, excludes: &[String], end: Option<&Edge>) -> Result<String, GrammarError> {
        let free = self.free_text(excludes)?;
        match end {
            None => Ok(free),
            Some(Edge::Token(id)) => Ok(self.lark.rule(&format!("{free} <[{id}]>"))),
            Some(Edge::Texts(ends)) if ends.iter().any(String::is_empty) => Ok(free),
            Some(Edge::Texts(ends)) => {
                let mut options = Vec::new();
                for end in ends {
                    options.push(self.up_to(&free, end));
                }
                Ok(self.lark.rule(&options.join(" | ")))
            }
        }
    }

    /// A terminal of any text without the excluded ones.
    fn free_text(&mut self, excludes: &[String]) -> Result<String, GrammarError> {
        if excludes.iter().any(String::is_empty) {
            return Err(wrong("`excludes` holds an empty text"));
        }
        if excludes.is_empty() {
            return Ok(self.lark.terminal(ANY_TEXT));
        }
        let excluded: Vec<String> = excludes.iter().map(|text| lark::literal(text)).collect();
        let excluded = self.lark.terminal(&excluded.join(" | "));
        let holds = self.lark.terminal(&format!("{ANY_TEXT} {excluded} {ANY_TEXT}"));
        Ok(self.lark.terminal(&format!("{ANY_TEXT} & ~{holds}")))
    }

    /// The shortest text of `free` that ends in `end`.
    fn up_to(&mut self, free: &str, end: &str) -> String {
        let as_text = self.lark.lazy_rule(&format!("{free} {}", lark::literal(end)));
        match self.tokens.find(end) {
            // It begins with a special token, which is no text: free text ends there by itself.
            Some((0, _, _)) => {
                let as_tokens = self.literal(end);
                self.lark.rule(&format!("{as_text} | {free} {as_tokens}"))
            }
            _ => as_text,
        }
    }

    fn tag(&mut self, tag: &Tag<'_>) -> Result<String, GrammarError> {
        let begin = self.edge(&tag.begin);
        let rest = self.rest_of_tag(tag)?;
        Ok(self.lark.rule(&format!("{begin} {rest}")))
    }

    /// A tag's content and end.
    fn rest_of_tag(&mut self, tag: &Tag<'_>) -> Result<String, GrammarError> {
        match tag.content {
            Content::Format(format) => self.format(format, Some(&tag.end)),
            Content::Schema(schema) => {
                let json = self.json(schema)?;
                let end = self.edge(&tag.end);
                Ok(self.lark.rule(&format!("{json} {end}")))
            }
        }
    }

    fn triggered(&mut self, asked: &Triggered<'_>, end: Option<&Edge>) -> Result<String, GrammarError> {
        if asked.triggers.is_empty() || asked.tags.is_empty() {
            return Err(wrong("it needs one trigger and one tag at least"));
        }
        if asked.triggers.iter().any(String::is_empty) {
            return Err(wrong("`triggers` holds an empty text"));
        }
        let free = self.free_text(&asked.excludes)?;
        let mut by_trigger: Vec<Vec<String>> = vec![Vec::new(); asked.triggers.len()];
        let mut whole = Vec::new();
        for tag in &asked.tags {
            let Edge::Texts(begins) = &tag.begin else {
                return Err(wrong("a tag with a trigger begins with a text, not with a token"));
            };
            let begin = &begins[0];
            let at = asked
                .triggers
                .iter()
                .position(|trigger| begin.starts_with(trigger.as_str()));
            let at = at.ok_or_else(|| {
                let triggers = &asked.triggers;
                wrong(format!(
                    "the tag that begins with {begin:?} begins with none of the triggers {triggers:?}"
                ))
            })?;
            let rest = self.rest_of_tag(tag)?;
            let behind = &begin[asked.triggers[at].len()..];
            let behind = if behind.is_empty() {
                String::new()
            } else {
                self.literal(behind)
            };
            by_trigger[at].push(format!("{behind} {rest}"));
            if asked.at_least_one {
                let begin = self.literal(begin);
                whole.push(format!("{begin} {rest}"));
            }
        }
        let mut segments = Vec::new();
        for (trigger, tags) in asked
            .triggers
            .iter()
            .zip(by_trigger)
            .filter(|(_, tags)| !tags.is_empty())
        {
            let text = self.up_to(&free, trigger);
            let tags = self.lark.rule(&tags.join(" | "));
            segments.push(format!("{text} {tags}"));
        }
        let segment = self.lark.rule(&segments.join(" | "));
        let edge = end.map(|end| self.edge(end)).unwrap_or_default();
        let tail = self.any_text(&asked.excludes, end)?;
        let first = self.lark.rule(&if whole.is_empty() {
            "\"\"".to_string()
        } else {
            whole.join(" | ")
        });
        let body = match (asked.at_least_one, asked.stop_after_first) {
            (true, true) => format!("{first} {edge}"),
            (true, false) => format!("{first} {segment}* {tail}"),
            (false, true) => format!("{segment} {edge} | {tail}"),
            (false, false) => format!("{segment}* {tail}"),
        };
        Ok(self.lark.rule(&body))
    }

    fn separated(&mut self, format: &Value) -> Result<String, GrammarError> {
        let tags = list(format, "tags")?.iter().map(|tag| read_tag(tag, self.tokens));
        let tags: Vec<Tag<'_>> = tags.collect::<Result<_, _>>()?;
        let tags = tags.iter().map(|tag| self.tag(tag)).collect::<Result<Vec<_>, _>>()?;
        if tags.is_empty() {
            return Err(wrong("`tags` is an empty list"));
        }
        let tag = self.lark.rule(&tags.join(" | "));
        let separator = self.literal(text(format, "separator")?);
        let several = match flag(format, "stop_after_first")? {
            true => tag,
            false => self.lark.rule(&format!("{tag} ({separator} {tag})*")),
        };
        Ok(match flag(format, "at_least_one")? {
            true => several,
            false => format!("{several}?"),
        })
    }

    /// The older form.
    fn structures(&mut self, tag: &Value) -> Result<String, GrammarError> {
        only(tag, &["structures", "triggers"])?;
        let structures = list(tag, "structures")?.iter().map(|structure| {
            Ok(Tag {
                begin: Edge::Texts(vec![text(structure, "begin")?.to_string()]),
                content: Content::Schema(structure.get("schema").unwrap_or(&Value::Null)),
                end: Edge::Texts(vec![text(structure, "end")?.to_string()]),
            })
        });
        let asked = Triggered {
            triggers: texts(tag, "triggers")?,
            tags: structures.collect::<Result<_, GrammarError>>()?,
            at_least_one: false,
            stop_after_first: false,
            excludes: Vec::new(),
        };
        self.triggered(&asked, None)
    }

    fn json(&mut self, schema: &Value) -> Result<String, GrammarError> {
        let any = Value::Bool(true);
        let schema = if schema.is_null() { &any } else { schema };
        let schema = schema::prepared(FIELD, schema.clone(), self.options)?;
        Ok(self.lark.rule(&lark::json(&schema)))
    }

    fn edge(&mut self, edge: &Edge) -> String {
        match edge {
            Edge::Token(id) => format!("<[{id}]>"),
            Edge::Texts(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| self.literal(text)).collect();
                match texts.len() {
                    1 => texts[0].clone(),
                    _ => self.lark.rule(&texts.join(" | ")),
                }
            }
        }
    }

    /// A text whose special tokens may come as such.
    fn literal(&mut self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((at, len, id)) = self.tokens.find(rest) {
            if at > 0 {
                parts.push(lark::literal(&rest[..at]));
            }
            let spelled = lark::literal(&rest[at..at + len]);
            parts.push(self.lark.rule(&format!("<[{id}]> | {spelled}")));
            rest = &rest[at + len..];
        }
        if !rest.is_empty() || parts.is_empty() {
            parts.push(lark::literal(rest));
        }
        parts.join(" ")
    }
}

fn read_tag<'v>(format: &'v Value, tokens: &dyn SpecialTokens) -> Result<Tag<'v>, GrammarError> {
    only(format, &["begin", "content", "end"])?;
    let begin = read_edge(format, "begin", tokens)?;
    if matches!(&begin, Edge::Texts(texts) if texts.len() != 1) {
        return Err(wrong("`begin` of a tag must be a text or a token"));
    }
    Ok(Tag {
        begin,
        content: Content::Format(format.get("content").ok_or_else(|| missing("content"))?),
        end: read_edge(format, "end", tokens)?,
    })
}

fn read_edge(format: &Value, name: &str, tokens: &dyn SpecialTokens) -> Result<Edge, GrammarError> {
    match format.get(name) {
        Some(Value::String(text)) => Ok(Edge::Texts(vec![text.clone()])),
        Some(Value::Array(_)) => {
            let texts = texts(format, name)?;
            if texts.is_empty() {
                Err(wrong(format!("`{name}` is an empty list")))
            } else {
                Ok(Edge::Texts(texts))
            }
        }
        Some(Value::Object(token)) if token.get("type").is_some_and(|kind| kind == "token") => {
            token_id(token.get("token"), tokens).map(Edge::Token)
        }
        _ => Err(wrong(format!(
            "`{name}` of a tag must be a text, a list of texts or a token"
        ))),
    }
}

fn token_id(token: Option<&Value>, tokens: &dyn SpecialTokens) -> Result<u32, GrammarError> {
    let id = match token {
        Some(Value::String(spelled)) => tokens.id(spelled),
        Some(Value::Number(number)) => number.as_u64().and_then(|id| u32::try_from(id).ok()),
        _ => return Err(wrong("`token` must be an id or a token's text")),
    };
    id.filter(|id| tokens.has(*id)).ok_or_else(|| {
        let token = token.unwrap_or(&Value::Null);
        wrong(format!("the model has no token {token}"))
    })
}

fn missing(name: &str) -> GrammarError {
    wrong(format!("`{name}` is missing or of a wrong type"))
}

/// Refuses fields that are not known: each would ask for another text.
fn only(format: &Value, known: &[&str]) -> Result<(), GrammarError> {
    let entries = format
        .as_object()
        .ok_or_else(|| wrong("a format or tag is no object"))?;
    let asks = |value: &Value| !(value.is_null() || *value == false || value.as_array().is_some_and(Vec::is_empty));
    let unknown = entries
        .iter()
        .find(|(name, value)| *name != "type" && !known.contains(&name.as_str()) && asks(value));
    match unknown {
        Some((name, _)) => Err(wrong(format!(
            "`{name}` is not supported here; known are {}",
            known.join(", ")
        ))),
        None => Ok(()),
    }
}

fn text<'v>(format: &'v Value, name: &str) -> Result<&'v str, GrammarError> {
    format.get(name).and_then(Value::as_str).ok_or_else(|| missing(name))
}

fn list<'v>(format: &'v Value, name: &str) -> Result<&'v [Value], GrammarError> {
    let list = format.get(name).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| missing(name))
}

/// A list of texts; absent: empty.
fn texts(format: &Value, name: &str) -> Result<Vec<String>, GrammarError> {
    match format.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| missing(name));
            list.iter().map(text).collect()
        }
        Some(_) => Err(missing(name)),
    }
}

fn flag(format: &Value, name: &str) -> Result<bool, GrammarError> {
    match format.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| missing(name)),
    }
}
