//! Reads an answer by a response template: which region it is in, and what its text is there.

use std::sync::Arc;

use super::super::event::{CallFault, Sink};
use super::super::input::{Input, Read, Stop};
use super::super::reasoning::ReasoningPhase;
use super::super::types::ToolTypes;
use super::pattern::Pattern;
use super::scan::{Found, Scan, Scanner};
use super::stream::CallStream;
use super::template::{Kind, ResponseTemplate};
use super::value::{Calls, Content};

/// The longest text that may become a delimiter. A longer one is text.
const MAX_DELIMITER_BYTES: usize = 1024;
/// Empty matches at one place: an opening and a closing one. More would go on for ever.
const MAX_EMPTY: usize = 2;

/// The place within one answer.
#[derive(Clone, Debug)]
pub(in super::super) struct TemplateReader {
    template: Arc<ResponseTemplate>,
    types: Arc<ToolTypes>,
    /// Whether calls are read; otherwise they are text.
    calls: bool,
    /// Whether thoughts are kept apart; otherwise they are text, markers and all.
    thoughts: bool,
    /// From the start of the message to the text that is not read yet.
    at: usize,
    /// The region that a delimiter has opened.
    region: Option<Region>,
    /// What is looked for, in the order of the scanner's patterns.
    watched: Vec<Watched>,
    scanner: Scanner,
    /// The place of the last empty match, and how many there were.
    empty: (usize, usize),
    /// Fields that have shown text, and those of which another region has begun since.
    shown: Vec<bool>,
    joins: Vec<bool>,
    /// Whether thoughts are over for good.
    thought: bool,
    /// White space that comes next is a part of the delimiter before it.
    skips_blank: bool,
    /// Bytes that are not read yet and belong to the prompt.
    of_prompt: usize,
}

#[derive(Clone, Debug)]
struct Region {
    field: usize,
    /// Bytes of its opening delimiter.
    opened: usize,
    captures: Vec<(String, String)>,
    /// Bytes of its text so far.
    body: usize,
    /// Its calls, where they can be passed on as they come.
    stream: Option<CallStream>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Watched {
    Open(usize),
    Close(usize),
    /// What stands before an answer: a model may write it again between regions.
    Anchor,
}

impl TemplateReader {
    /// At the start of an answer. `in_reasoning`: the prompt has opened thoughts, or has closed them.
    pub(in super::super) fn new(
        template: &Arc<ResponseTemplate>,
        types: &Arc<ToolTypes>,
        (calls, thoughts): (bool, bool),
        in_reasoning: Option<bool>,
    ) -> Self {
        let mut reader = Self {
            template: Arc::clone(template),
            types: Arc::clone(types),
            calls,
            thoughts,
            at: usize::from(in_reasoning.is_some()),
            region: None,
            watched: Vec::new(),
            scanner: Scanner::new([], 0, MAX_DELIMITER_BYTES),
            empty: (0, 0),
            shown: vec![false; template.fields.len()],
            joins: vec![false; template.fields.len()],
            thought: in_reasoning == Some(false),
            skips_blank: false,
            of_prompt: 0,
        };
        let thinking = template
            .fields
            .iter()
            .position(|field| matches!(field.kind, Kind::Thinking));
        if let Some(field) = thinking.filter(|_| in_reasoning == Some(true))
            && template.implicit != Some(field)
        {
            reader.region = Some(Region {
                field,
                opened: 0,
                captures: Vec::new(),
                body: 0,
                stream: None,
            });
        }
        reader.watch();
        reader
    }

    /// Behind `prompt`, which may have begun the answer; its last delimiter may be cut, and then stands in `input`.
    pub(in super::super) fn after(mut self, prompt: &str, input: &mut Input) -> Self {
        let mut begun = prompt;
        let mut at = 0;
        let mut anchors = Scanner::new([&self.template.anchor], 0, MAX_DELIMITER_BYTES);
        while let Scan::Found(found) = anchors.scan(&prompt[at..], at, true) {
            at = found.end;
            begun = &prompt[at..];
            anchors = Scanner::new([&self.template.anchor], at, MAX_DELIMITER_BYTES).not_empty_at_first();
        }
        let mut sink = Sink::default();
        input.push(begun);
        while self.step(input, &mut sink).is_ok() {}
        input.compact();
        self.of_prompt = input.rest().len();
        if let Some(stream) = self.region.as_mut().and_then(|region| region.stream.as_mut()) {
            stream.begin_answer();
        }
        self.shown.fill(false);
        self.joins.fill(false);
        self
    }

    /// Where the answer is with its reasoning.
    pub(in super::super) fn phase(&self) -> ReasoningPhase {
        let is_thinking = |field: usize| matches!(self.template.fields[field].kind, Kind::Thinking);
        match &self.region {
            _ if !self.thoughts => ReasoningPhase::Over,
            Some(region) if is_thinking(region.field) => ReasoningPhase::Open,
            None if self.template.implicit.is_some_and(is_thinking) && !self.thought => ReasoningPhase::Open,
            None if !self.thought && self.opens_by_itself() => ReasoningPhase::Open,
            None if !self.thought && !self.shown.iter().any(|&shown| shown) => ReasoningPhase::MayBegin,
            _ => ReasoningPhase::Over,
        }
    }

    /// Whether thoughts begin here whatever comes.
    fn opens_by_itself(&self) -> bool {
        if self.at > 0 || self.region.is_some() {
            return false;
        }
        match self.scanner.clone().scan("\0", 0, false) {
            Scan::Found(found) => match self.watched[found.which] {
                Watched::Open(field) => found.end == 0 && matches!(self.template.fields[field].kind, Kind::Thinking),
                _ => false,
            },
            Scan::None(_) => false,
        }
    }

    /// Reads on.
    ///
    /// # Errors
    /// [`Stop::Wait`].
    pub(in super::super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let before = self.scanner.looked_at;
        let scan = self.scanner.scan(input.rest(), self.at, input.is_last());
        input.looked_at += self.scanner.looked_at - before;
        match scan {
            Scan::Found(found) => {
                self.body(found.start - self.at, input, sink);
                self.delimiter(&found, input, sink);
                Ok(())
            }
            Scan::None(hold) => {
                self.body(hold - self.at, input, sink);
                if input.is_last() {
                    self.body(input.rest().len(), input, sink);
                    if self.region.is_some() {
                        self.close(0, true, input, sink);
                    }
                }
                Err(Stop::Wait)
            }
        }
    }

    /// Looks for the delimiters that count here.
    fn watch(&mut self) {
        let fields = &self.template.fields;
        self.watched = match &self.region {
            Some(region) => vec![Watched::Close(region.field)],
            None => {
                let opens = (0..fields.len()).map(Watched::Open);
                let anchor = self.template.implicit.is_none().then_some(Watched::Anchor);
                opens
                    .chain(self.template.implicit.map(Watched::Close))
                    .chain(anchor)
                    .collect()
            }
        };
        let pattern = |watched: &Watched| match *watched {
            Watched::Open(field) => fields[field].open.as_ref(),
            Watched::Close(field) => fields[field].close.as_ref(),
            Watched::Anchor => Some(&self.template.anchor),
        };
        self.watched.retain(|watched| pattern(watched).is_some());
        let patterns: Vec<&Arc<Pattern>> = self.watched.iter().filter_map(pattern).collect();
        self.scanner = Scanner::new(patterns, self.at, MAX_DELIMITER_BYTES);
        if self.empty == (self.at, MAX_EMPTY) {
            self.scanner = self.scanner.clone().not_empty_at_first();
        }
    }

    /// Reads `len` bytes that are no delimiter.
    fn body(&mut self, len: usize, input: &mut Input, sink: &mut Sink) {
        if len == 0 {
            return;
        }
        let text = self.take(len, input);
        let text = match self.skips_blank {
            true => text.trim_start(),
            false => text,
        };
        self.skips_blank &= text.is_empty();
        let field = match &mut self.region {
            Some(region) => {
                region.body += len;
                if let Some(stream) = &mut region.stream {
                    stream.push(text, sink);
                    return;
                }
                Some(region.field)
            }
            None => self.template.implicit,
        };
        match field {
            Some(field) => self.text(field, text, sink),
            None => sink.text(text),
        }
    }

    /// Text of a field.
    fn text(&mut self, index: usize, text: &str, sink: &mut Sink) {
        let field = &self.template.fields[index];
        if text.is_empty() || matches!(field.kind, Kind::Calls(_)) && self.calls {
            return;
        }
        let join = std::mem::take(&mut self.joins[index]) && self.shown[index];
        self.shown[index] = true;
        let text = match &field.join {
            Some(between) if join => &format!("{between}{text}"),
            _ => text,
        };
        match field.kind {
            Kind::Thinking if self.thoughts => sink.reasoning(text),
            _ => sink.text(text),
        }
    }

    /// Reads a delimiter.
    fn delimiter(&mut self, found: &Found, input: &mut Input, sink: &mut Sink) {
        self.skips_blank = false;
        let len = found.end - found.start;
        let stream = self.region.as_ref().and_then(|region| region.stream.as_ref());
        if stream.is_some_and(CallStream::in_string) {
            // A delimiter in a string of the call is a part of it.
            self.body(len, input, sink);
            self.empty = (self.at, MAX_EMPTY);
            self.watch();
            return;
        }
        self.empty = match self.empty {
            (at, times) if len == 0 && at == found.end => (at, times + 1),
            _ if len == 0 => (found.end, 1),
            _ => (found.end, 0),
        };
        match self.watched[found.which] {
            Watched::Open(field) => self.open(field, found, input, sink),
            Watched::Close(field) if self.region.is_some() || self.is_raw(field) => {
                self.close(len, false, input, sink);
            }
            Watched::Close(field) => {
                self.take(len, input);
                self.end_of(field, sink);
            }
            Watched::Anchor => {
                self.take(len, input);
            }
        }
        self.watch();
    }

    fn take<'a>(&mut self, len: usize, input: &'a mut Input) -> &'a str {
        self.at += len;
        let of_prompt = len.min(self.of_prompt);
        self.of_prompt -= of_prompt;
        &input.take(len)[of_prompt..]
    }

    /// Whether a field's regions are text, delimiters and all.
    fn is_raw(&self, field: usize) -> bool {
        match self.template.fields[field].kind {
            Kind::Thinking => !self.thoughts,
            Kind::Content => false,
            Kind::Calls(_) => !self.calls,
        }
    }

    fn open(&mut self, field: usize, found: &Found, input: &mut Input, sink: &mut Sink) {
        let template = Arc::clone(&self.template);
        if let Some(implicit) = template.implicit {
            self.end_of(implicit, sink);
        }
        let len = found.end - found.start;
        let pattern = template.fields[field].open.as_ref();
        let group = |name: &str| {
            let text = pattern?.group(name, &found.places, input.rest(), found.start)?;
            Some((name.to_owned(), text.to_owned()))
        };
        let names = pattern.into_iter().flat_map(|pattern| pattern.names());
        let captures: Vec<(String, String)> = names.filter_map(group).collect();
        self.joins[field] = true;
        let is_raw = self.is_raw(field);
        let mut stream = None;
        match &template.fields[field].kind {
            Kind::Calls(calls) if !is_raw => {
                stream = CallStream::new(calls, &captures, &input.rest()[..len]);
                if stream.is_none() {
                    input.mark();
                }
            }
            Kind::Thinking if !is_raw => sink.turn(),
            _ => {}
        }
        self.region = Some(Region {
            field,
            opened: len,
            captures,
            body: 0,
            stream,
        });
        let text = self.take(len, input);
        if is_raw {
            sink.text(text);
        }
    }

    /// A field's region is over, if only for now.
    fn end_of(&mut self, field: usize, sink: &mut Sink) {
        self.joins[field] = true;
        if matches!(self.template.fields[field].kind, Kind::Thinking) && self.thoughts {
            self.thought |= self.shown[field] || self.region.is_some();
            self.skips_blank = self.template.fields[field].then_blank;
            sink.turn();
        }
    }

    /// Closes the open region by a delimiter of `len` bytes, or with the answer: `is_cut`.
    fn close(&mut self, len: usize, is_cut: bool, input: &mut Input, sink: &mut Sink) {
        let closer = self.take(len, input).to_owned();
        let Some(region) = self.region.take() else {
            sink.text(&closer);
            return;
        };
        let template = Arc::clone(&self.template);
        let field = &template.fields[region.field];
        match &field.kind {
            _ if self.is_raw(region.field) => sink.text(&closer),
            Kind::Calls(_) if region.stream.is_some() => {
                let is_cut = is_cut && field.close.is_some();
                if let Some(stream) = region.stream {
                    stream.end(&closer, is_cut, sink);
                }
            }
            Kind::Calls(calls) => {
                let held = input.take_held();
                let is_cut = is_cut && field.close.is_some();
                self.calls(calls, &region, &held, is_cut, sink);
            }
            Kind::Thinking => {
                self.thought = true;
                self.skips_blank = field.then_blank;
                sink.turn();
            }
            Kind::Content => {}
        }
    }

    /// A whole region of calls; what is none is text.
    fn calls(&mut self, calls: &Calls, region: &Region, held: &str, is_cut: bool, sink: &mut Sink) {
        let body = &held[region.opened..region.opened + region.body];
        let Ok((found, rest)) = calls.read(body, &region.captures, &self.types) else {
            sink.text(held);
            return;
        };
        let is_cut = is_cut && matches!(calls.content, Content::Tags(_)) && !rest.trim().is_empty();
        for call in found {
            sink.call_start(&call.name, call.id);
            if is_cut {
                // What is missing may be an argument.
                sink.arguments(call.arguments.strip_suffix('}').unwrap_or(&call.arguments));
                sink.call_break(CallFault::CutOff);
            } else {
                sink.arguments(&call.arguments);
                sink.call_end();
            }
        }
        if is_cut {
            sink.text(rest);
        }
    }
}
