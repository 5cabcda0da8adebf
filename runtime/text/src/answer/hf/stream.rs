//! Calls that a region holds as plain JSON, passed on as they come: an object, or a list of objects, with a name and
//! arguments in it, or the arguments alone.

use super::super::call::MAX_NAME_BYTES;
use super::super::event::{CallFault, Sink};
use super::value::{Calls, Content, Source};

/// What the JSON of a region is.
#[derive(Clone, Debug)]
enum Shape {
    /// The arguments of a call whose name the delimiter says.
    Arguments,
    /// Objects with these keys.
    Members {
        name: String,
        arguments: String,
        id: Option<String>,
    },
}

/// The place within one region.
#[derive(Clone, Debug)]
pub(super) struct CallStream {
    shape: Shape,
    at: At,
    in_list: bool,
    name: Option<String>,
    id: Option<String>,
    /// A key, a name, or arguments that cannot be passed on yet.
    short: String,
    /// Arguments that came before the name, and are complete.
    early: Option<String>,
    /// Text that is not understood yet, or says nothing.
    held: String,
    /// White space after arguments.
    blank: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
    num_calls: usize,
    has_arguments: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Begin,
    Item,
    KeyOrEnd,
    NextKey,
    Key,
    Colon,
    Value(Goal),
    /// In a value, and what it is; arguments that are an object leave as they come.
    In(Goal),
    CommaOrEnd,
    AfterItem,
    Over,
    /// In arguments that are all of the region.
    Whole,
    /// What comes is no call.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    Name,
    Id,
    Arguments,
    Other,
}

impl CallStream {
    /// A reader for a region that `opener` has begun; `None` where its calls are known only when it is over.
    pub(super) fn new(calls: &Calls, captures: &[(String, String)], opener: &str) -> Option<Self> {
        let Content::Json(dialect) = &calls.content else {
            return None;
        };
        if dialect.unquoted_keys || dialect.allow_non_json || !dialect.string_delims.is_empty() {
            return None;
        }
        let path = |source: &Source| match source {
            Source::Path(path) => Some(path.clone()),
            Source::Literal(_) => None,
        };
        let captured = |source: &Source| match source {
            Source::Literal(text) => Some(text.clone()),
            Source::Path(path) => match path.as_slice() {
                [root] => captures
                    .iter()
                    .find(|(name, _)| name == root)
                    .map(|(_, text)| text.clone()),
                _ => None,
            },
        };
        let key = |source: &Source| match (path(source)?.as_slice(), calls.each) {
            ([root, key], false) if root == "content" => Some(key.clone()),
            ([key], true) => Some(key.clone()),
            _ => None,
        };
        let is_all = !calls.each && path(&calls.arguments).is_some_and(|path| path == ["content"]);
        let (shape, name, id) = if is_all {
            let id = calls.id.as_ref().map(captured);
            let name = captured(&calls.name).filter(|name| !name.is_empty())?;
            (Shape::Arguments, Some(name), id.map_or(Some(None), |id| id.map(Some))?)
        } else {
            let id = calls.id.as_ref().map(key);
            let shape = Shape::Members {
                name: key(&calls.name)?,
                arguments: key(&calls.arguments)?,
                id: id.map_or(Some(None), |id| id.map(Some))?,
            };
            (shape, None, None)
        };
        Some(Self {
            shape,
            at: At::Begin,
            in_list: false,
            name,
            id,
            short: String::new(),
            early: None,
            held: opener.to_owned(),
            blank: String::new(),
            depth: 0,
            in_string: false,
            escaped: false,
            num_calls: 0,
            has_arguments: false,
        })
    }

    /// Whether what comes next stands in a JSON string, where no delimiter ends the region.
    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }

    /// The answer begins within this region: a call whose start stands in the prompt cannot be told.
    pub(super) fn begin_answer(&mut self) {
        if self.num_calls > 0 {
            self.at = At::Broken;
            self.in_string = false;
        }
    }

    /// Takes more of the region.
    pub(super) fn push(&mut self, text: &str, sink: &mut Sink) {
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            if self.at == At::Broken {
                sink.text(rest);
                return;
            }
            let width = character.len_utf8();
            // Text of a string that means nothing here, at once.
            let len = match self.in_string && !self.escaped && !matches!(character, '"' | '\\') {
                true => rest.find(['"', '\\']).unwrap_or(rest.len()),
                false => width,
            };
            let (piece, after) = rest.split_at(len);
            if self.step(piece, character, sink) {
                rest = after;
            }
        }
    }

    /// The region is over, by `closer` or with the answer: `is_cut`.
    pub(super) fn end(mut self, closer: &str, is_cut: bool, sink: &mut Sink) {
        if sink.in_call() {
            sink.call_break(if is_cut { CallFault::CutOff } else { CallFault::NotJson });
            return;
        }
        if self.num_calls == 0 {
            self.held.push_str(closer);
        }
        if !self.held.trim().is_empty() {
            sink.text(&self.held);
        }
    }

    /// Takes one piece, most often one character; false where it has to be looked at again.
    fn step(&mut self, piece: &str, character: char, sink: &mut Sink) -> bool {
        let is_blank = character.is_whitespace();
        match self.at {
            At::Whole => {
                self.track(character);
                if is_blank && !self.in_string {
                    self.blank.push_str(piece);
                } else {
                    sink.arguments(&std::mem::take(&mut self.blank));
                    sink.arguments(piece);
                }
                return true;
            }
            At::Key | At::In(Goal::Name | Goal::Id) => {
                self.hold(piece);
                self.short.push_str(piece);
                self.track(character);
                if self.short.len() > MAX_NAME_BYTES {
                    self.fail(sink);
                } else if !self.in_string {
                    self.word(sink);
                }
                return true;
            }
            At::In(goal) => return self.value(goal, piece, character, sink),
            _ => {}
        }
        if self.at == At::Begin && matches!(self.shape, Shape::Arguments) && !is_blank {
            let name = self.name.take().unwrap_or_default();
            self.start(&name, sink);
            self.at = At::Whole;
            return false;
        }
        self.hold(piece);
        if is_blank {
            return true;
        }
        self.at = match (self.at, character) {
            (At::Begin, '[') => {
                self.in_list = true;
                At::Item
            }
            (At::Begin | At::Item, '{') => {
                (self.name, self.id, self.early) = (None, None, None);
                self.has_arguments = false;
                At::KeyOrEnd
            }
            (At::KeyOrEnd | At::NextKey, '"') => {
                self.short.clear();
                self.short.push('"');
                self.in_string = true;
                At::Key
            }
            (At::Colon, ':') => At::Value(self.goal()),
            (At::Value(Goal::Name | Goal::Id), first) if first != '"' => return self.fail(sink),
            (At::Value(_), ',' | ':' | '}' | ']') => return self.fail(sink),
            (At::Value(goal), first) => {
                self.has_arguments |= goal == Goal::Arguments;
                self.short.clear();
                self.depth = 0;
                if goal == Goal::Arguments && first == '{' && self.name.is_some() {
                    let name = self.name.clone().unwrap_or_default();
                    self.start(&name, sink);
                }
                self.at = At::In(goal);
                if matches!(goal, Goal::Name | Goal::Id) {
                    self.short.push('"');
                    self.in_string = true;
                    return true;
                }
                // The value is passed on or kept with its first character, which is held already.
                self.held.truncate(self.held.len().saturating_sub(piece.len()));
                return false;
            }
            (At::CommaOrEnd, ',') => At::NextKey,
            (At::KeyOrEnd | At::CommaOrEnd, '}') => {
                if !sink.in_call() {
                    return self.fail(sink);
                }
                sink.call_end();
                self.held.clear();
                if self.in_list { At::AfterItem } else { At::Over }
            }
            (At::AfterItem, ',') => At::Item,
            (At::Item | At::AfterItem, ']') if self.num_calls > 0 => {
                self.held.clear();
                At::Over
            }
            _ => return self.fail(sink),
        };
        true
    }

    /// Takes a piece of a value: its end is found by quotes and brackets.
    fn value(&mut self, goal: Goal, piece: &str, character: char, sink: &mut Sink) -> bool {
        let is_in = self.in_string || self.depth > 0;
        if !is_in && !self.short.is_empty() && (character.is_whitespace() || matches!(character, ',' | '}' | ']')) {
            self.at = At::CommaOrEnd;
            if goal == Goal::Arguments {
                self.complete(sink);
            }
            return false;
        }
        self.track(character);
        let is_done = match character {
            '"' => !self.in_string && self.depth == 0,
            '}' | ']' => !self.in_string && self.depth == 0,
            _ => false,
        };
        if goal == Goal::Arguments && sink.in_call() {
            sink.arguments(piece);
        } else {
            self.hold(piece);
            // Of other values only that they have begun counts.
            if goal == Goal::Arguments || self.short.is_empty() {
                self.short.push_str(piece);
            }
        }
        if is_done {
            self.at = At::CommaOrEnd;
            if goal == Goal::Arguments {
                self.complete(sink);
            }
        }
        true
    }

    /// Arguments that could not be passed on as they came are complete.
    fn complete(&mut self, sink: &mut Sink) {
        if sink.in_call() {
            return;
        }
        let mut arguments = std::mem::take(&mut self.short);
        if arguments.starts_with('"') {
            match serde_json::from_str(&arguments) {
                Ok(text) => arguments = text,
                Err(_) => {
                    self.fail(sink);
                    return;
                }
            }
        }
        if arguments == "null" {
            self.fail(sink);
            return;
        }
        match self.name.clone() {
            Some(name) => {
                self.start(&name, sink);
                sink.arguments(&arguments);
            }
            None => self.early = Some(arguments),
        }
    }

    /// A key, a name or an id is complete.
    fn word(&mut self, sink: &mut Sink) {
        let is_key = self.at == At::Key;
        if is_key {
            self.at = At::Colon;
            return;
        }
        let Ok(word) = serde_json::from_str::<String>(&self.short) else {
            self.fail(sink);
            return;
        };
        if self.at == At::In(Goal::Id) {
            self.id = Some(word).filter(|id| !id.is_empty());
        } else if word.is_empty() {
            self.fail(sink);
            return;
        } else if let Some(arguments) = self.early.take() {
            self.start(&word, sink);
            sink.arguments(&arguments);
        } else {
            self.name = Some(word);
        }
        self.at = At::CommaOrEnd;
    }

    /// What the value of the last key is. A key that comes again is another member.
    fn goal(&self) -> Goal {
        let Shape::Members { name, arguments, id } = &self.shape else {
            return Goal::Other;
        };
        let key: String = serde_json::from_str(&self.short).unwrap_or_default();
        if key == *name && self.name.is_none() {
            Goal::Name
        } else if key == *arguments && !self.has_arguments {
            Goal::Arguments
        } else if Some(&key) == id.as_ref() && self.id.is_none() {
            Goal::Id
        } else {
            Goal::Other
        }
    }

    fn start(&mut self, name: &str, sink: &mut Sink) {
        self.held.clear();
        self.num_calls += 1;
        sink.call_start(name, self.id.take());
    }

    /// What came and comes is no call; true, as its last character is part of it.
    fn fail(&mut self, sink: &mut Sink) -> bool {
        self.at = At::Broken;
        self.in_string = false;
        if sink.in_call() {
            sink.call_break(CallFault::NotJson);
        }
        sink.text(&std::mem::take(&mut self.held));
        true
    }

    fn hold(&mut self, piece: &str) {
        self.held.push_str(piece);
    }

    fn track(&mut self, character: char) {
        match character {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}
