//! Calls as Python writes them: `[f(a=1, b='x'), g()]`. The arguments become JSON as they come.

use super::call::{Flow, MAX_DEPTH, MAX_NAME_BYTES, is_name};
use super::event::Sink;
use super::input::{Input, Read, Stop};
use super::types::{escaped, number, quoted};

/// What is particular to a format of this family.
#[derive(Debug)]
pub(super) struct PythonCalls {
    /// Markers that begin calls.
    pub(super) open: &'static [&'static str],
    /// Markers that end them.
    pub(super) close: &'static [&'static str],
    /// Whether a list of calls may begin without a marker, at the start of the text.
    pub(super) bare: bool,
    /// Whether calls may stand one a line between markers, without a list.
    pub(super) lines: bool,
}

/// Reads one group of calls.
#[derive(Clone, Debug)]
pub(super) struct PythonCallReader {
    format: &'static PythonCalls,
    at: At,
    /// The name, key or number that is being read.
    word: String,
    function: String,
    in_list: bool,
    /// The brackets of values that are open.
    open: Vec<Bracket>,
    /// Whether the innermost bracket is still empty.
    empty: bool,
    /// Whether the key of a dict is read.
    in_key: bool,
    /// Whether no marker began the calls.
    is_bare: bool,
    /// Calls of this group.
    num_calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bracket {
    /// The parameters of the call.
    Call,
    List,
    Tuple,
    Dict,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Begin,
    /// Before a call, or the end of the list.
    Call,
    Name,
    /// After the bracket of a call that is not known to be one.
    Open,
    /// Before an item of the innermost bracket, or its end.
    Item,
    /// In the name of a parameter.
    Parameter,
    /// After it.
    Sign,
    Value,
    /// In a string between these quotes.
    Text(&'static str),
    Word,
    After,
    /// After a call.
    Next,
    /// After the list.
    Close,
    /// After what is no call.
    Rubbish,
}

const QUOTES: [&str; 4] = ["'", "\"", "'''", "\"\"\""];

impl PythonCallReader {
    /// A reader for the text after an opening marker, or for a bare list.
    pub(super) fn new(format: &'static PythonCalls, marker: &str) -> Self {
        Self {
            format,
            at: At::Begin,
            word: String::new(),
            function: String::new(),
            in_list: false,
            open: Vec::new(),
            empty: true,
            in_key: false,
            is_bare: marker.is_empty(),
            num_calls: 0,
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match self.read(input, sink) {
            Err(Stop::Fail) if self.num_calls > 0 && !self.is_bare && !self.format.close.is_empty() => {
                sink.call_break(input.fault());
                sink.text(&input.take_held());
                self.at = At::Rubbish;
                Ok(Flow::More)
            }
            other => other,
        }
    }

    fn read(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match self.at {
            At::Begin => {
                self.in_list = input.next_visible()? == '[';
                if self.in_list {
                    input.take(1);
                } else if !self.format.lines {
                    return Err(Stop::Fail);
                }
                self.at = At::Call;
            }
            At::Call => {
                input.next_visible()?;
                if self.num_calls > 0 && self.ends_list(input)? {
                    return Ok(Flow::More);
                }
                self.word.clear();
                self.at = At::Name;
            }
            At::Name => {
                if self.read_word(input, |c| c.is_alphanumeric() || "_.-".contains(c))? {
                    if input.peek()? != '(' || !is_name(&self.word) {
                        return Err(Stop::Fail);
                    }
                    input.take(1);
                    self.function = std::mem::take(&mut self.word);
                    self.open = vec![Bracket::Call];
                    self.empty = true;
                    self.at = At::Open;
                }
            }
            At::Open => {
                if self.word.is_empty() && input.next_visible()? == ')' {
                    self.begin_call(input, sink);
                    self.at = At::Item;
                    return Ok(Flow::More);
                }
                self.parameter(input)?;
            }
            At::Item => self.item(input, sink)?,
            At::Parameter => self.parameter(input)?,
            At::Sign => self.sign(input, sink)?,
            At::Value => self.value(input, sink)?,
            At::Text(quotes) => self.text(quotes, input, sink)?,
            At::Word => {
                if self.read_word(input, |c| !c.is_whitespace() && !"()[]{},:='\"<>;".contains(c))? {
                    let value = json_of(&self.word).ok_or(Stop::Fail)?;
                    input.release();
                    sink.arguments(&if self.in_key { quoted(&self.word) } else { value });
                    self.at = At::After;
                }
            }
            At::After => match (input.next_visible()?, self.open.last()) {
                (':', _) if self.in_key => {
                    input.take(1);
                    self.in_key = false;
                    sink.arguments(": ");
                    self.at = At::Value;
                }
                _ if self.in_key => return Err(Stop::Fail),
                (',', _) => {
                    input.take(1);
                    self.at = At::Item;
                }
                (')', Some(Bracket::Call | Bracket::Tuple))
                | (']', Some(Bracket::List))
                | ('}', Some(Bracket::Dict)) => {
                    self.close(input, sink);
                }
                _ => return Err(Stop::Fail),
            },
            At::Next => {
                input.next_visible()?;
                if self.ends_list(input)? {
                    return Ok(Flow::More);
                }
                match input.peek()? {
                    ',' => {
                        input.take(1);
                    }
                    _ if !self.in_list && self.format.lines => {}
                    _ => return Err(Stop::Fail),
                }
                self.at = At::Call;
            }
            At::Close => {
                if self.format.close.is_empty() {
                    return Ok(Flow::Done);
                }
                input.next_visible()?;
                return match input.accept_any(self.format.close)? {
                    Some(_) => Ok(Flow::Done),
                    // A list is complete without its closing marker.
                    None => Err(Stop::Fail),
                };
            }
            At::Rubbish => {
                let (len, found) = input.find(self.format.close);
                sink.text(input.take(len));
                input.take(self.format.close[found.ok_or(Stop::Wait)?].len());
                return Ok(Flow::Done);
            }
        }
        Ok(Flow::More)
    }

    /// Whether the calls are over, and goes on after them.
    fn ends_list(&mut self, input: &mut Input) -> Read<bool> {
        let over = if self.in_list {
            input.peek()? == ']'
        } else {
            input.peek()?;
            input.marker_after(0, self.format.close)?
        };
        if over {
            if self.in_list {
                input.take(1);
                input.mark();
            }
            self.at = At::Close;
        }
        Ok(over)
    }

    fn begin_call(&mut self, input: &mut Input, sink: &mut Sink) {
        input.release();
        sink.call_start(&self.function, None);
        sink.arguments("{");
        self.num_calls += 1;
    }

    /// Reads the name of a parameter.
    fn parameter(&mut self, input: &mut Input) -> Read<()> {
        if self.read_word(input, |c| c.is_alphanumeric() || c == '_')? {
            self.at = At::Sign;
        }
        Ok(())
    }

    /// Reads the sign after the name of a parameter. The first one makes it a call.
    fn sign(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        if input.next_visible()? != '=' || !is_name(&self.word) {
            return Err(Stop::Fail);
        }
        input.take(1);
        if !sink.in_call() {
            self.begin_call(input, sink);
        }
        input.release();
        self.separate(sink);
        sink.arguments(&quoted(&self.word));
        sink.arguments(": ");
        self.at = At::Value;
        Ok(())
    }

    fn item(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let bracket = self.open.last().copied().unwrap_or(Bracket::Call);
        if input.next_visible()? == bracket.end() {
            self.close(input, sink);
            return Ok(());
        }
        self.word.clear();
        if bracket == Bracket::Call {
            input.mark();
            self.at = At::Parameter;
        } else {
            self.separate(sink);
            self.in_key = bracket == Bracket::Dict;
            self.at = At::Value;
        }
        Ok(())
    }

    fn value(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let first = input.next_visible()?;
        let bracket = match first {
            '[' => Some(Bracket::List),
            '(' => Some(Bracket::Tuple),
            '{' => Some(Bracket::Dict),
            _ => None,
        };
        if let Some(bracket) = bracket {
            if self.in_key || self.open.len() >= MAX_DEPTH {
                return Err(Stop::Fail);
            }
            input.take(1);
            sink.arguments(if bracket == Bracket::Dict { "{" } else { "[" });
            self.open.push(bracket);
            self.empty = true;
            self.at = At::Item;
        } else if let Some(index) = input.accept_any(&QUOTES)? {
            sink.arguments("\"");
            self.at = At::Text(QUOTES[index]);
        } else {
            input.mark();
            self.word.clear();
            self.at = At::Word;
        }
        Ok(())
    }

    fn text(&mut self, quotes: &'static str, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let (len, found) = input.find(&[quotes, "\\"]);
        sink.arguments(&escaped(input.take(len)));
        if found.ok_or(Stop::Wait)? == 0 {
            input.take(quotes.len());
            sink.arguments("\"");
            self.at = At::After;
            return Ok(());
        }
        let (len, json) = escape(input.rest(), input.is_last())?;
        input.take(len);
        sink.arguments(&json);
        Ok(())
    }

    /// The innermost bracket is closed.
    fn close(&mut self, input: &mut Input, sink: &mut Sink) {
        input.take(1);
        self.empty = false;
        match self.open.pop() {
            Some(Bracket::List | Bracket::Tuple) => sink.arguments("]"),
            _ => sink.arguments("}"),
        }
        self.at = At::After;
        if self.open.is_empty() {
            sink.call_end();
            input.mark();
            self.at = At::Next;
        }
    }

    /// Writes the comma before an item that is not the first.
    fn separate(&mut self, sink: &mut Sink) {
        if !self.empty {
            sink.arguments(", ");
        }
        self.empty = false;
    }

    /// Reads more of a word of bounded length; true when it is complete.
    fn read_word(&mut self, input: &mut Input, belongs: impl Fn(char) -> bool) -> Read<bool> {
        let rest = input.rest();
        let len = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        let complete = len < rest.len() || input.is_last();
        input.looked_at += len + 1;
        input.take_into(len, &mut self.word, MAX_NAME_BYTES)?;
        match () {
            () if complete => Ok(true),
            () if len > 0 => Ok(false),
            () => Err(Stop::Wait),
        }
    }
}

impl Bracket {
    fn end(self) -> char {
        match self {
            Self::Call | Self::Tuple => ')',
            Self::List => ']',
            Self::Dict => '}',
        }
    }
}

/// The JSON of a constant or a number.
fn json_of(word: &str) -> Option<String> {
    match word {
        "True" | "true" => return Some("true".to_owned()),
        "False" | "false" => return Some("false".to_owned()),
        "None" | "null" => return Some("null".to_owned()),
        _ => {}
    }
    let digits = word.replace('_', "");
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(|value| value.to_string()),
        None => number(&digits),
    }
}

/// The escape sequence at the start of `rest`: its length, and what it is in JSON. Python keeps a sequence that it does
/// not know.
fn escape(rest: &str, is_last: bool) -> Read<(usize, String)> {
    let mut chars = rest.chars().skip(1);
    let Some(kind) = chars.next() else {
        return if is_last {
            Ok((1, escaped("\\")))
        } else {
            Err(Stop::Wait)
        };
    };
    let simple = match kind {
        '\n' => Some(""),
        '\\' => Some("\\"),
        '\'' => Some("'"),
        '"' => Some("\""),
        'a' => Some("\u{7}"),
        'b' => Some("\u{8}"),
        'f' => Some("\u{c}"),
        'n' => Some("\n"),
        'r' => Some("\r"),
        't' => Some("\t"),
        'v' => Some("\u{b}"),
        _ => None,
    };
    if let Some(text) = simple {
        return Ok((2, escaped(text)));
    }
    let (start, most, radix) = match kind {
        'x' => (2, 2, 16),
        'u' => (2, 4, 16),
        'U' => (2, 8, 16),
        '0'..='7' => (1, 3, 8),
        _ => return Ok((1, escaped("\\"))),
    };
    let digits = rest[start..]
        .bytes()
        .take(most)
        .take_while(|&byte| char::from(byte).is_digit(radix))
        .count();
    if start + digits == rest.len() && digits < most && !is_last {
        return Err(Stop::Wait);
    }
    let end = start + digits;
    let code = u32::from_str_radix(&rest[start..end], radix).ok();
    match code {
        _ if digits < most && radix == 16 => Ok((1, escaped("\\"))),
        // JSON has the same sequence, and both write a character of two halves as two.
        Some(_) if kind == 'u' => Ok((end, rest[..end].to_owned())),
        Some(code) => match char::from_u32(code) {
            Some(c) => Ok((end, escaped(c.encode_utf8(&mut [0; 4])))),
            None => Ok((1, escaped("\\"))),
        },
        None => Ok((1, escaped("\\"))),
    }
}
