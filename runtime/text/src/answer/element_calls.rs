//! Calls as elements with the parameters' names, which nest: `<invoke name="f"><a>1</a><b><item>2</item></b></invoke>`,
//! with a prefix before each tag. The schema says what is a list. Arguments leave when their call is complete: a name
//! that comes again makes a list of what came before.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::call::{Flow, MAX_DEPTH, is_name};
use super::event::Sink;
use super::input::{Input, Read, Stop};
use super::types::{ToolTypes, Types, quoted};
use super::xml_calls::attribute;

/// Depth to which `anyOf` and `oneOf` are followed.
const MAX_CHOICES: usize = 16;
/// The member for text beside elements.
const TEXT: &str = "$text";

/// What is particular to a format of this family.
#[derive(Debug)]
pub(super) struct ElementCalls {
    /// What stands before the bracket of each tag.
    pub(super) prefix: &'static str,
    /// Markers around all calls.
    pub(super) section: (&'static str, &'static str),
    /// All markers that begin calls.
    pub(super) open: &'static [&'static str],
    /// What a call begins with, up to its name, which is the attribute `name`.
    pub(super) call: &'static str,
    /// What ends a call.
    pub(super) close: &'static str,
}

/// Reads one group of calls.
#[derive(Clone, Debug)]
pub(super) struct ElementCallReader {
    format: &'static ElementCalls,
    types: Arc<ToolTypes>,
    at: At,
    head: String,
    function: String,
    /// The open call's elements so far.
    body: String,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// Before or between calls.
    Gap { empty: bool },
    /// In the function's name.
    Name,
    /// In a call.
    Body,
    /// The answer ended within a call.
    Over,
}

impl ElementCallReader {
    /// A reader for the text after the marker of the section.
    pub(super) fn new(format: &'static ElementCalls, types: &Arc<ToolTypes>) -> Self {
        Self {
            format,
            types: Arc::clone(types),
            at: At::Gap { empty: true },
            head: String::new(),
            function: String::new(),
            body: String::new(),
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match self.at {
            At::Gap { empty } => {
                input.next_visible()?;
                let markers = [self.format.call, self.format.section.1];
                match input.accept_any(&markers[..if empty { 1 } else { 2 }])? {
                    Some(0) => {
                        self.head.clear();
                        self.at = At::Name;
                    }
                    Some(_) => return Ok(Flow::Done),
                    None => return Err(Stop::Fail),
                }
            }
            At::Name => {
                if input.name(&mut self.head, &[">"])?.is_some() {
                    let name = attribute(&self.head, "name").filter(|name| is_name(name));
                    name.ok_or(Stop::Fail)?.clone_into(&mut self.function);
                    input.take(1);
                    input.release();
                    sink.call_start(&self.function, None);
                    self.body.clear();
                    self.at = At::Body;
                }
            }
            At::Body => {
                let ends = [self.format.close, self.format.section.1, self.format.call];
                let (len, found) = input.find(&ends);
                self.body.push_str(input.take(len));
                let Some(index) = found else {
                    if input.is_last() {
                        self.end_call(false, sink);
                        self.at = At::Over;
                    }
                    return Err(Stop::Wait);
                };
                if index == 0 {
                    input.take(self.format.close.len());
                }
                input.looked_at += self.body.len();
                self.end_call(true, sink);
                input.mark();
                self.at = At::Gap { empty: false };
            }
            At::Over => return Err(Stop::Wait),
        }
        Ok(Flow::More)
    }

    /// Writes the arguments of the open call, without the last bracket where it is not `complete`. What is no element
    /// is text.
    fn end_call(&mut self, complete: bool, sink: &mut Sink) {
        let mut reader = Elements {
            prefix: self.format.prefix,
            text: &self.body,
            at: 0,
        };
        let parameters = reader.parameters();
        let schemas = self.types.schemas(&self.function);
        let arguments = object(&parameters, schemas, None);
        sink.aside(&self.body[reader.at..]);
        if complete {
            sink.arguments(&arguments);
            sink.call_end();
        } else if !parameters.is_empty() {
            sink.arguments(&arguments[..arguments.len() - 1]);
        }
    }
}

/// What an element holds.
#[derive(Debug)]
enum Element<'a> {
    Text(Cow<'a, str>),
    Elements(Members<'a>),
}

/// Elements with their names, in order.
type Members<'a> = Vec<(Cow<'a, str>, Element<'a>)>;

/// Reads elements of a text.
struct Elements<'a> {
    prefix: &'static str,
    text: &'a str,
    at: usize,
}

impl<'a> Elements<'a> {
    /// The elements up to the first that is none.
    fn parameters(&mut self) -> Members<'a> {
        let mut parameters = Vec::new();
        loop {
            let rest = &self.text[self.at..];
            self.at += rest.len() - rest.trim_start().len();
            let before = self.at;
            match self.element(0) {
                Some((name, element)) => parameters.push((Cow::Borrowed(name), element)),
                None => {
                    self.at = before;
                    return parameters;
                }
            }
        }
    }

    fn element(&mut self, depth: usize) -> Option<(&'a str, Element<'a>)> {
        let tag = self.text[self.at..].strip_prefix(self.prefix)?.strip_prefix('<')?;
        let (name, body) = tag.split_once('>')?;
        if depth == MAX_DEPTH || name.starts_with('/') || name.trim().is_empty() {
            return None;
        }
        let start = self.text.len() - body.len();
        let mut beside = String::new();
        let mut members = Vec::new();
        self.at = start;
        loop {
            let marker = self.at + self.text[self.at..].find(self.prefix)?;
            let tag = self.text[marker + self.prefix.len()..].strip_prefix('<')?;
            let closing = tag.strip_prefix('/').and_then(|tag| tag.strip_prefix(name));
            if let Some(rest) = closing.and_then(|tag| tag.strip_prefix('>')) {
                let last = &self.text[self.at..marker];
                self.at = self.text.len() - rest.len();
                if members.is_empty() {
                    return Some((name, Element::Text(Cow::Borrowed(last))));
                }
                beside.push_str(last);
                if !beside.trim().is_empty() {
                    // Text beside elements has a name that none of them has.
                    let mut name = TEXT.to_owned();
                    while members.iter().any(|(member, _): &(Cow<str>, _)| *member == name) {
                        name.insert(0, '$');
                    }
                    members.push((Cow::Owned(name), Element::Text(Cow::Owned(beside))));
                }
                return Some((name, Element::Elements(members)));
            }
            beside.push_str(&self.text[self.at..marker]);
            self.at = marker;
            let (member, element) = self.element(depth + 1)?;
            members.push((Cow::Borrowed(member), element));
        }
    }
}

/// The JSON of an element, by its schema.
fn value(element: &Element, schema: Option<&Value>) -> String {
    let schema = schema.filter(|schema| schema.is_object());
    let container = schema.and_then(|schema| container(schema, 0));
    match (element, container) {
        (Element::Text(text), container) => {
            let Some(schema) = schema else {
                return quoted(text);
            };
            let types = Types::of(schema);
            match container {
                // An empty list or object is an empty element.
                Some((is_list, _)) if !types.may_be_string() && text.trim().is_empty() => {
                    if is_list { "[]" } else { "{}" }.to_owned()
                }
                _ => types.read(text),
            }
        }
        (Element::Elements(members), Some((true, schema))) => {
            let items = schema.get("items");
            let items: Vec<String> = members.iter().map(|(_, element)| value(element, items)).collect();
            format!("[{}]", items.join(", "))
        }
        (Element::Elements(members), container) => {
            let schema = container.map(|(_, schema)| schema);
            let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
            object(
                members,
                properties,
                schema.and_then(|schema| schema.get("additionalProperties")),
            )
        }
    }
}

/// An object of these members. Those of one name are a list.
fn object(members: &[(Cow<str>, Element)], schemas: Option<&Map<String, Value>>, other: Option<&Value>) -> String {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut values: Vec<(&str, Vec<String>)> = Vec::new();
    for (name, element) in members {
        let schema = schemas.and_then(|schemas| schemas.get(&**name)).or(other);
        let value = value(element, schema);
        match places.get(&**name) {
            Some(&place) => values[place].1.push(value),
            None => {
                places.insert(&**name, values.len());
                values.push((name, vec![value]));
            }
        }
    }
    let values: Vec<String> = values
        .iter()
        .map(|(name, values)| match values.as_slice() {
            [value] => format!("{}: {value}", quoted(name)),
            values => format!("{}: [{}]", quoted(name), values.join(", ")),
        })
        .collect();
    format!("{{{}}}", values.join(", "))
}

/// The first choice of a schema that is a list (true) or an object.
fn container(schema: &Value, depth: usize) -> Option<(bool, &Value)> {
    let kind = schema.get("type");
    for (name, is_list) in [("array", true), ("object", false)] {
        let is_kind = |kind: &Value| kind.as_str() == Some(name);
        if kind.is_some_and(|kind| is_kind(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_kind))) {
            return Some((is_list, schema));
        }
    }
    if kind.is_none() {
        let has = |key| schema.get(key).is_some();
        if has("items") {
            return Some((true, schema));
        }
        if has("properties") || has("additionalProperties") {
            return Some((false, schema));
        }
    }
    let choices = ["anyOf", "oneOf"]
        .into_iter()
        .filter_map(|key| schema.get(key)?.as_array());
    let mut choices = choices.flatten().filter(|_| depth < MAX_CHOICES);
    choices.find_map(|choice| container(choice, depth + 1))
}
