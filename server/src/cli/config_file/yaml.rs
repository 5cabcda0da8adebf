//! A YAML mapping as a tree whose keys know their lines. Bounded in size and depth; anchors, aliases, tags and several
//! documents are refused, so that nothing in a file of options means more than it says. Knows no flag.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};

/// Lists and mappings inside each other.
const MAX_DEPTH: usize = 16;
/// Keys and values in all.
const MAX_NODES: usize = 10_000;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As written, without quotes.
    pub key: String,
    /// Where it stands, from 1.
    pub line: usize,
    /// Its value.
    pub node: Node,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A scalar without quotes: its text may mean a number, a truth value or nothing.
    Plain(String),
    /// A scalar with quotes, or a block of text.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping.
    Map(Vec<Entry>),
}

/// Why a text is no such mapping.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct YamlError {
    /// Where, from 1.
    pub line: usize,
    /// In words.
    pub reason: String,
}

impl Node {
    /// The value as JSON: YAML's core schema for scalars without quotes, with JSON's numbers only.
    pub fn json(&self) -> Value {
        match self {
            Node::Text(text) => Value::from(text.as_str()),
            Node::List(items) => items.iter().map(Node::json).collect(),
            Node::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.node.json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
            Node::Plain(_) if self.is_null() => Value::Null,
            Node::Plain(text) => match self.bool() {
                Some(value) => Value::from(value),
                None => match serde_json::from_str::<Number>(text) {
                    Ok(number) => Value::Number(number),
                    Err(_) => Value::from(text.as_str()),
                },
            },
        }
    }

    /// `key:` with nothing behind it, or `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Node::Plain(text) if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// `true` or `false`, with quotes or without.
    pub fn bool(&self) -> Option<bool> {
        let (Node::Plain(text) | Node::Text(text)) = self else {
            return None;
        };
        match text.as_str() {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => None,
        }
    }

    /// What it is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Node::Plain(_) | Node::Text(_) => "a scalar",
            Node::List(_) => "a list",
            Node::Map(_) => "a mapping",
        }
    }
}

/// What is not closed yet.
enum Open {
    List(Vec<Node>),
    /// The entries, and the key whose value comes next.
    Map(Vec<Entry>, Option<(String, usize)>),
}

/// Reads one document that is a mapping, or empty.
///
/// # Errors
/// [`YamlError`].
pub fn read(text: &str) -> Result<Vec<Entry>, YamlError> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| YamlError {
            line: error.marker().line(),
            // `*` for all names, without quotes, is the likely reason.
            reason: match error.info().contains("anchor") {
                true => no_anchors(),
                false => format!("it is not YAML: {}", error.info()),
            },
        })?;
        builder.take(event, span)?;
    }
    match builder.root {
        Some((Node::Map(entries), _)) => Ok(entries),
        None => Ok(Vec::new()),
        Some((node, _)) if node.is_null() => Ok(Vec::new()),
        Some((node, line)) => Err(YamlError {
            line,
            reason: format!(
                "it is {}; write one key a line, such as `max-model-len: 8192`",
                node.kind()
            ),
        }),
    }
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    num_nodes: usize,
    documents: usize,
    /// Where the outermost list or mapping begins.
    root_line: usize,
    root: Option<(Node, usize)>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlError> {
        let line = span.start.line();
        let refuse = |reason: String| Err(YamlError { line, reason });
        match &event {
            Event::Scalar(_, _, anchor, tag) if *anchor > 0 || tag.is_some() => return refuse(no_anchors()),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) if *anchor > 0 || tag.is_some() => {
                return refuse(no_anchors());
            }
            Event::Alias(_) => return refuse(no_anchors()),
            _ => {}
        }
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return refuse("a second document begins (---); a file of options is one".to_owned());
                }
                Ok(())
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) => self.put(Node::Plain(text.into_owned()), line),
            Event::Scalar(text, ..) => self.put(Node::Text(text.into_owned()), line),
            Event::SequenceStart(..) => self.open(Open::List(Vec::new()), line),
            Event::MappingStart(..) => self.open(Open::Map(Vec::new(), None), line),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List(items)) => self.put(Node::List(items), self.root_line),
                Some(Open::Map(entries, _)) => self.put(Node::Map(entries), self.root_line),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn open(&mut self, open: Open, line: usize) -> Result<(), YamlError> {
        if self.open.len() >= MAX_DEPTH {
            let reason = format!("more than {MAX_DEPTH} lists and mappings stand inside each other");
            return Err(YamlError { line, reason });
        }
        if self.open.is_empty() {
            self.root_line = line;
        }
        self.open.push(open);
        Ok(())
    }

    fn put(&mut self, node: Node, line: usize) -> Result<(), YamlError> {
        self.num_nodes += 1;
        if self.num_nodes > MAX_NODES {
            let reason = format!("it has more than {MAX_NODES} keys and values");
            return Err(YamlError { line, reason });
        }
        match self.open.last_mut() {
            None => self.root = Some((node, line)),
            Some(Open::List(items)) => items.push(node),
            Some(Open::Map(entries, key)) => match (key.take(), node) {
                (Some((key, line)), node) => entries.push(Entry { key, line, node }),
                (None, Node::Plain(text) | Node::Text(text)) => *key = Some((text, line)),
                (None, node) => {
                    let reason = format!("a key is {}; keys are names", node.kind());
                    return Err(YamlError { line, reason });
                }
            },
        }
        Ok(())
    }
}

fn no_anchors() -> String {
    "anchors (&name), aliases (*name) and tags (!name) are not read; write the value out, in quotes if it begins with \
     one of these signs"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn json_of(text: &str) -> Value {
        Node::Map(read(text).unwrap_or_else(|error| panic!("{text}: {error:?}"))).json()
    }

    #[test]
    fn scalars_mean_what_yaml_1_2_says() {
        let text = "a: 1\nb: 0.9\nc: true\nd: no\ne: '1'\nf: 8k\ng: ~\nh:\ni: 0123\nj: |\n  two\n  lines\n";
        assert_eq!(
            json_of(text),
            json!({"a": 1, "b": 0.9, "c": true, "d": "no", "e": "1", "f": "8k", "g": null, "h": null, "i": "0123",
                "j": "two\nlines\n"})
        );
        assert_eq!(
            json_of("a: [1, x]\nb: {c: {d: false}}\ne:\n- f: 1\n- g\n"),
            json!({"a": [1, "x"], "b": {"c": {"d": false}}, "e": [{"f": 1}, "g"]})
        );
        for empty in ["", "# nothing\n", "---\n", "~\n"] {
            assert_eq!(json_of(empty), json!({}), "{empty:?}");
        }
    }

    #[test]
    fn keys_know_their_lines() {
        let entries = read("# a comment\n\nport: 1\nlora-modules:\n  - a=b\n  - c=d\nhost: x\n").expect("a mapping");
        let lines: Vec<(&str, usize)> = entries.iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!(lines, [("port", 3), ("lora-modules", 4), ("host", 7)]);
    }

    #[test]
    fn what_is_refused_names_its_line() {
        let deep = format!("a: {}{}", "[".repeat(17), "]".repeat(17));
        let many = "- 1\n".repeat(10_001);
        for (text, line, word) in [
            ("a: 1\nb: *x\n", 2, "aliases"),
            ("a: 1\nb: *\n", 2, "aliases"),
            ("a: &x 1\n", 1, "aliases"),
            ("a: !!str 1\n", 1, "tags"),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("- a\n", 1, "a list"),
            ("just words\n", 1, "a scalar"),
            ("? [a]\n: 1\n", 1, "keys are names"),
            ("a: 1\nb: [1\n", 3, "not YAML"),
            ("a: \"x\n", 1, "not YAML"),
            (&deep, 1, "inside each other"),
            (&many, 10_001, "10000 keys"),
        ] {
            let error = read(text).expect_err(word);
            assert!(error.reason.contains(word), "{error:?}");
            assert_eq!(error.line, line, "{error:?}");
        }
    }
}
