//! What a model's text says, as events, and the order in which they come.

use serde::de::IgnoredAny;

use super::newlines::Newlines;

/// A part of an answer. Parts of one kind that follow each other belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text for the reader, never empty.
    Text(String),
    /// What the model thought before, never empty.
    Reasoning(String),
    /// The model calls a function. Nothing but its arguments comes before [`AnswerEvent::CallEnd`].
    CallStart {
        /// The function, as the model wrote it: it may be none of the request's.
        name: String,
        /// The call's id where the format has one and the model wrote it.
        id: Option<String>,
    },
    /// A piece of the call's arguments, which are JSON together; never empty.
    Arguments(String),
    /// The call is over.
    CallEnd {
        /// What is wrong with its arguments, if something is.
        fault: Option<CallFault>,
    },
}

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallFault {
    /// The answer ended within it.
    #[error("the answer ended within the arguments of this call")]
    CutOff,
    /// The arguments are no JSON object, as the model wrote them.
    #[error("the model wrote arguments that are not a JSON object")]
    NotJson,
}

/// Puts events in order: joins neighbours, and leaves out blanks that only keep markers apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Sink {
    events: Vec<AnswerEvent>,
    /// White space at the start of a text or a reasoning: shown before what follows it, dropped when nothing does.
    blank: String,
    /// Whether the present text or reasoning has more than white space.
    visible: bool,
    /// Arguments of the open call so far.
    arguments: Option<String>,
    /// Text within the open call that is no part of it, shown after it.
    aside: String,
    /// Calls that were started.
    calls: usize,
    /// Whether there was any event.
    any: bool,
    /// What makes line breaks of a backslash and a letter, in text and in reasoning.
    newlines: Option<Box<[Newlines; 2]>>,
}

impl Sink {
    /// A sink that makes line breaks of a backslash and a letter.
    pub(super) fn with_newlines() -> Self {
        Self {
            newlines: Some(Box::default()),
            ..Self::default()
        }
    }

    /// Hands over the events so far.
    pub(super) fn take(&mut self, out: &mut Vec<AnswerEvent>) {
        out.append(&mut self.events);
    }

    /// Text for the reader.
    pub(super) fn text(&mut self, text: &str) {
        match &mut self.newlines {
            Some(newlines) => {
                let text = newlines[0].push(text);
                self.plain_text(&text);
            }
            None => self.plain_text(text),
        }
    }

    fn plain_text(&mut self, text: &str) {
        if let Some(shown) = self.shown(text) {
            match self.events.last_mut() {
                Some(AnswerEvent::Text(last)) => last.push_str(&shown),
                _ => self.events.push(AnswerEvent::Text(shown)),
            }
        }
    }

    /// A thought.
    pub(super) fn reasoning(&mut self, text: &str) {
        match &mut self.newlines {
            Some(newlines) => {
                let text = newlines[1].push(text);
                self.plain_reasoning(&text);
            }
            None => self.plain_reasoning(text),
        }
    }

    /// Shows what may have been a part of a line break.
    fn end_newlines(&mut self) {
        if let Some(newlines) = &mut self.newlines {
            let [text, reasoning] = &mut **newlines;
            let (text, reasoning) = (text.end(), reasoning.end());
            self.plain_text(&text);
            self.plain_reasoning(&reasoning);
        }
    }

    fn plain_reasoning(&mut self, text: &str) {
        if let Some(shown) = self.shown(text) {
            match self.events.last_mut() {
                Some(AnswerEvent::Reasoning(last)) => last.push_str(&shown),
                _ => self.events.push(AnswerEvent::Reasoning(shown)),
            }
        }
    }

    /// A new text or reasoning begins.
    pub(super) fn turn(&mut self) {
        self.end_newlines();
        self.visible = false;
        self.blank.clear();
    }

    /// The answer is over: an answer of nothing but white space is that.
    pub(super) fn end(&mut self) {
        self.end_newlines();
        if !self.any && !self.blank.is_empty() {
            let blank = std::mem::take(&mut self.blank);
            self.events.push(AnswerEvent::Text(blank));
        }
    }

    /// A call begins.
    pub(super) fn call_start(&mut self, name: &str, id: Option<String>) {
        debug_assert!(self.arguments.is_none(), "a call within a call");
        self.turn();
        self.calls += 1;
        self.any = true;
        self.arguments = Some(String::new());
        self.events.push(AnswerEvent::CallStart {
            name: name.to_owned(),
            id,
        });
    }

    /// More of the open call's arguments.
    pub(super) fn arguments(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(arguments) = &mut self.arguments {
            arguments.push_str(text);
        }
        match self.events.last_mut() {
            Some(AnswerEvent::Arguments(last)) => last.push_str(text),
            _ => self.events.push(AnswerEvent::Arguments(text.to_owned())),
        }
    }

    /// Text within the open call that is no part of it. White space before it says nothing.
    pub(super) fn aside(&mut self, text: &str) {
        let is_first = self.aside.is_empty();
        self.aside.push_str(if is_first { text.trim_start() } else { text });
    }

    /// The open call ends as it should. Without arguments it has empty ones.
    pub(super) fn call_end(&mut self) {
        if self.arguments.as_ref().is_some_and(String::is_empty) {
            self.arguments("{}");
        }
        self.call_break(CallFault::NotJson);
    }

    /// The open call ends, if one is open; `fault` is what is wrong when its arguments are no JSON object.
    pub(super) fn call_break(&mut self, fault: CallFault) {
        let Some(arguments) = self.arguments.take() else {
            return;
        };
        let is_object = arguments.starts_with('{') && serde_json::from_str::<IgnoredAny>(&arguments).is_ok();
        self.events.push(AnswerEvent::CallEnd {
            fault: (!is_object).then_some(fault),
        });
        let aside = std::mem::take(&mut self.aside);
        self.text(&aside);
    }

    /// Whether a call is open.
    pub(super) fn in_call(&self) -> bool {
        self.arguments.is_some()
    }

    /// Whether the present text has more than white space.
    pub(super) fn is_visible(&self) -> bool {
        self.visible
    }

    /// Calls that were started.
    pub(super) fn num_calls(&self) -> usize {
        self.calls
    }

    fn shown(&mut self, text: &str) -> Option<String> {
        if self.visible {
            return (!text.is_empty()).then(|| text.to_owned());
        }
        if text.trim().is_empty() {
            self.blank.push_str(text);
            return None;
        }
        self.visible = true;
        self.any = true;
        let mut shown = std::mem::take(&mut self.blank);
        shown.push_str(text);
        Some(shown)
    }
}
