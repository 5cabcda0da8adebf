//! GBNF, as llama.cpp and xgrammar write grammars (`root ::= "a" b*`), translated to Lark.
//!
//! A part without recursion becomes one terminal, which the lexer matches exactly as a regular expression. Between
//! terminals of recursive rules the longest match counts.

use std::collections::{HashMap, HashSet};

use crate::error::GrammarError;
use crate::lark::{self, Lark};

/// Most groups within each other.
const MAX_DEPTH: usize = 64;
/// Most repetitions by number.
const MAX_REPEAT: u32 = 10_000;

/// Part of a rule.
#[derive(Debug)]
enum Node {
    Literal(String),
    Class {
        ranges: Vec<(char, char)>,
        is_negated: bool,
    },
    AnyCharacter,
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat {
        node: Box<Node>,
        min: u32,
        max: Option<u32>,
    },
}

/// Whether a text is GBNF and not Lark: a line of it defines a rule by `::=` (vLLM's rule).
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let end = ["#", "//"].iter().filter_map(|mark| line.find(mark)).min();
        line[..end.unwrap_or(line.len())].contains("::=")
    })
}

/// The grammar in Lark.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let mut lark = Lark::default();
    let start = write(&mut lark, text).map_err(|reason| GrammarError::invalid("grammar", reason))?;
    Ok(lark.finish(&start))
}

/// Writes a grammar into another one. Gives what stands for its text.
pub(crate) fn write(lark: &mut Lark, text: &str) -> Result<String, String> {
    let rules = Parser::new(text).grammar()?;
    if !rules.contains_key("root") {
        return Err("it has no rule `root`, with which a text begins".to_string());
    }
    for (name, node) in &rules {
        let mut used = HashSet::new();
        node.uses(&mut used);
        if let Some(missing) = used.iter().find(|used| !rules.contains_key(**used)) {
            return Err(format!("rule `{name}` uses `{missing}`, which is not defined"));
        }
    }
    let recursive = recursive_rules(&rules);
    let mut names: HashMap<&str, String> = HashMap::new();
    for name in rules.keys() {
        let new = match recursive.contains(name.as_str()) {
            true => lark.rule_name(),
            false => lark.terminal_name(),
        };
        names.insert(name, new);
    }
    let writer = Writer { names, recursive };
    for (name, node) in &rules {
        let body = match writer.recursive.contains(name.as_str()) {
            true => writer.rule_body(lark, node),
            false => writer.terminal_body(lark, node),
        };
        lark.define(&writer.names[name.as_str()], "", &body);
    }
    Ok(writer.names["root"].clone())
}

/// Rules that lead to themselves, or to such a rule.
fn recursive_rules(rules: &Rules) -> HashSet<String> {
    let uses: HashMap<&str, HashSet<&str>> = rules
        .iter()
        .map(|(name, node)| {
            let mut used = HashSet::new();
            node.uses(&mut used);
            (name.as_str(), used)
        })
        .collect();
    // What uses only rules that are known not to be recursive is not recursive.
    let mut users: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (name, used) in &uses {
        open.insert(name, used.len());
        used.iter().for_each(|used| users.entry(used).or_default().push(name));
    }
    let mut todo: Vec<&str> = open
        .iter()
        .filter(|(_, left)| **left == 0)
        .map(|(name, _)| *name)
        .collect();
    let mut flat = HashSet::new();
    while let Some(name) = todo.pop() {
        flat.insert(name);
        for user in users.get(name).into_iter().flatten() {
            if let Some(left) = open.get_mut(user) {
                *left -= 1;
                if *left == 0 {
                    todo.push(user);
                }
            }
        }
    }
    rules
        .keys()
        .filter(|name| !flat.contains(name.as_str()))
        .cloned()
        .collect()
}

struct Writer<'a> {
    names: HashMap<&'a str, String>,
    recursive: HashSet<String>,
}

impl Writer<'_> {
    fn is_regular(&self, node: &Node) -> bool {
        let mut used = HashSet::new();
        node.uses(&mut used);
        !used.iter().any(|name| self.recursive.contains(*name))
    }

    /// The body of a terminal. Groups become terminals of their own, as Lark's may not stand within each other as deep.
    fn terminal_body(&self, lark: &mut Lark, node: &Node) -> String {
        match node {
            Node::Literal(text) => lark::literal(text),
            Node::Class { ranges, is_negated } => lark::class(ranges, *is_negated),
            Node::AnyCharacter => r"/(.|\n)/".to_string(),
            Node::Rule(name) => self.names[name.as_str()].clone(),
            Node::Sequence(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|node| self.terminal_atom(lark, node)).collect();
                if parts.is_empty() {
                    "\"\"".to_string()
                } else {
                    parts.join(" ")
                }
            }
            Node::Choice(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|node| self.terminal_body(lark, node)).collect();
                parts.join(" | ")
            }
            Node::Repeat { node, min, max } => repeated(&self.terminal_atom(lark, node), *min, *max),
        }
    }

    fn terminal_atom(&self, lark: &mut Lark, node: &Node) -> String {
        let body = self.terminal_body(lark, node);
        match node {
            Node::Sequence(_) | Node::Choice(_) => lark.terminal(&body),
            // A repetition repeated again would be read as one operator.
            Node::Repeat { .. } => lark.terminal(&body),
            _ => body,
        }
    }

    /// The body of a rule: runs of regular parts are one terminal each.
    fn rule_body(&self, lark: &mut Lark, node: &Node) -> String {
        if self.is_regular(node) {
            return self.regular(lark, node);
        }
        match node {
            Node::Rule(name) => self.names[name.as_str()].clone(),
            Node::Sequence(nodes) => {
                let mut parts = Vec::new();
                let mut rest = &nodes[..];
                while let Some(first) = rest.first() {
                    let run = rest.iter().take_while(|node| self.is_regular(node)).count();
                    if run == 0 {
                        parts.push(self.rule_atom(lark, first));
                        rest = &rest[1..];
                        continue;
                    }
                    let body: Vec<String> = rest[..run].iter().map(|node| self.terminal_atom(lark, node)).collect();
                    parts.push(match &rest[..run] {
                        [Node::Literal(_) | Node::Class { .. } | Node::AnyCharacter | Node::Rule(_)] => body[0].clone(),
                        _ => lark.terminal(&body.join(" ")),
                    });
                    rest = &rest[run..];
                }
                parts.join(" ")
            }
            Node::Choice(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|node| self.rule_body(lark, node)).collect();
                parts.join(" | ")
            }
            Node::Repeat { node, min, max } => repeated(&self.rule_atom(lark, node), *min, *max),
            Node::Literal(_) | Node::Class { .. } | Node::AnyCharacter => self.regular(lark, node),
        }
    }

    fn rule_atom(&self, lark: &mut Lark, node: &Node) -> String {
        let body = self.rule_body(lark, node);
        match node {
            Node::Sequence(_) | Node::Choice(_) | Node::Repeat { .. } if !self.is_regular(node) => lark.rule(&body),
            _ => body,
        }
    }

    /// A regular part within a rule.
    fn regular(&self, lark: &mut Lark, node: &Node) -> String {
        let body = self.terminal_body(lark, node);
        match node {
            Node::Sequence(_) | Node::Choice(_) | Node::Repeat { .. } => lark.terminal(&body),
            _ => body,
        }
    }
}

fn repeated(atom: &str, min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => format!("{atom}*"),
        (1, None) => format!("{atom}+"),
        (0, Some(1)) => format!("{atom}?"),
        (min, None) => format!("{atom}{{{min},}}"),
        (min, Some(max)) => format!("{atom}{{{min},{max}}}"),
    }
}

impl Node {
    /// Adds the rules that it names.
    fn uses<'a>(&'a self, names: &mut HashSet<&'a str>) {
        match self {
            Node::Literal(_) | Node::Class { .. } | Node::AnyCharacter => {}
            Node::Rule(name) => {
                names.insert(name);
            }
            Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().for_each(|node| node.uses(names)),
            Node::Repeat { node, .. } => node.uses(names),
        }
    }
}

type Rules = std::collections::BTreeMap<String, Node>;

struct Parser {
    text: Vec<char>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn new(text: &str) -> Parser {
        Parser {
            text: text.chars().collect(),
            at: 0,
            depth: 0,
        }
    }

    fn grammar(mut self) -> Result<Rules, String> {
        let mut rules = Rules::new();
        self.skip_blanks();
        while self.at < self.text.len() {
            let start = self.at;
            let name = self.name().ok_or_else(|| self.wrong("a rule's name"))?;
            self.skip_blanks();
            if !self.take("::=") {
                return Err(self.wrong("`::=`"));
            }
            let node = self.choice()?;
            if rules.contains_key(&name) {
                self.at = start;
                return Err(format!("{}: rule `{name}` is defined twice", self.place()));
            }
            rules.insert(name, node);
        }
        Ok(rules)
    }

    fn choice(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!(
                "{}: more than {MAX_DEPTH} groups stand within each other",
                self.place()
            ));
        }
        let mut options = vec![self.sequence()?];
        while self.take("|") {
            options.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(match options.len() {
            1 => options.remove(0),
            _ => Node::Choice(options),
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut nodes = Vec::new();
        loop {
            self.skip_blanks();
            match self.peek() {
                None | Some('|' | ')') => break,
                Some(_) if self.begins_rule() => break,
                Some(_) => {
                    let atom = self.atom()?;
                    nodes.push(self.repetition(atom)?);
                }
            }
        }
        Ok(match nodes.len() {
            1 => nodes.remove(0),
            _ => Node::Sequence(nodes),
        })
    }

    fn atom(&mut self) -> Result<Node, String> {
        match self.peek() {
            Some('"') => self.literal(),
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok(Node::AnyCharacter)
            }
            Some('(') => {
                self.at += 1;
                if self.peek() == Some('=') {
                    return Err(format!("{}: look-ahead `(= …)` is not supported", self.place()));
                }
                let node = self.choice()?;
                if !self.take(")") {
                    return Err(self.wrong("`)`"));
                }
                Ok(node)
            }
            _ => {
                let start = self.at;
                let name = self
                    .name()
                    .ok_or_else(|| self.wrong("a text, a set, a group or a rule's name"))?;
                if self.peek() == Some('(') && name.starts_with(char::is_uppercase) {
                    self.at = start;
                    return Err(format!("{}: the macro `{name}(…)` is not supported", self.place()));
                }
                Ok(Node::Rule(name))
            }
        }
    }

    fn repetition(&mut self, atom: Node) -> Result<Node, String> {
        let mut node = atom;
        for _ in 0..=MAX_DEPTH {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let bounds = self.bounds()?;
                    node = Node::Repeat {
                        node: Box::new(node),
                        min: bounds.0,
                        max: bounds.1,
                    };
                    continue;
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat {
                node: Box::new(node),
                min,
                max,
            };
        }
        Err(format!(
            "{}: more than {MAX_DEPTH} repetitions stand behind each other",
            self.place()
        ))
    }

    /// Behind `{`: `3}`, `3,}`, `,5}` or `3,5}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        self.skip_blanks();
        let min = self.number()?;
        self.skip_blanks();
        let max = if self.take(",") {
            self.skip_blanks();
            self.number()?
        } else {
            min
        };
        self.skip_blanks();
        let is_open = max.is_none();
        if !self.take("}") || (min.is_none() && is_open) {
            return Err(self.wrong("`{3}`, `{3,}` or `{3,5}`"));
        }
        let min = min.unwrap_or(0);
        let most = max.unwrap_or(min);
        if most > MAX_REPEAT || min > most {
            let place = self.place();
            return Err(format!(
                "{place}: a repetition is of 0 to {MAX_REPEAT}, the smaller number first"
            ));
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<Option<u32>, String> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.text[start..self.at].iter().collect();
        match digits.as_str() {
            "" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| self.wrong("a smaller number")),
        }
    }

    fn literal(&mut self) -> Result<Node, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.wrong("`\"` at the end of a text")),
                Some('"') => {
                    self.at += 1;
                    return Ok(Node::Literal(text));
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        self.at += 1;
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.wrong("`]` at the end of a set")),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let is_range = self.peek() == Some('-') && self.text.get(self.at + 1).is_some_and(|next| *next != ']');
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(format!("{}: the range {first:?} to {last:?} is empty", self.place()));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        match (ranges.is_empty(), is_negated) {
            (true, true) => Ok(Node::AnyCharacter),
            (true, false) => Err(format!("{}: the set is empty", self.place())),
            (false, _) => Ok(Node::Class { ranges, is_negated }),
        }
    }

    /// One character of a text or set, perhaps escaped.
    fn character(&mut self) -> Result<char, String> {
        let Some(character) = self.peek() else {
            return Err(self.wrong("a character"));
        };
        self.at += 1;
        if character != '\\' {
            return Ok(character);
        }
        let Some(escaped) = self.peek() else {
            return Err(self.wrong("a character behind `\\`"));
        };
        self.at += 1;
        match escaped {
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'b' => Ok('\u{8}'),
            'f' => Ok('\u{c}'),
            'v' => Ok('\u{b}'),
            '0' => Ok('\0'),
            'x' => self.code(2),
            'u' if self.peek() == Some('{') => {
                self.at += 1;
                let len = self.text[self.at..]
                    .iter()
                    .take(8)
                    .take_while(|c| c.is_ascii_hexdigit())
                    .count();
                let code = self.code(len)?;
                if self.take("}") {
                    Ok(code)
                } else {
                    Err(self.wrong("`}`"))
                }
            }
            'u' => self.code(4),
            'U' => self.code(8),
            '"' | '\'' | '\\' | '[' | ']' | '-' | '^' | '/' | '?' | '.' | '*' | '+' | '(' | ')' | '{' | '}' | '|'
            | '$' => Ok(escaped),
            other => Err(format!("{}: `\\{other}` is no escape", self.place())),
        }
    }

    fn code(&mut self, len: usize) -> Result<char, String> {
        let end = (self.at + len).min(self.text.len());
        let digits: String = self.text[self.at..end].iter().collect();
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == len);
        let character = code
            .and_then(char::from_u32)
            .ok_or_else(|| self.wrong("the code of a character"))?;
        self.at = end;
        Ok(character)
    }

    fn name(&mut self) -> Option<String> {
        let is_in_name = |c: &char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let starts = self.peek().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let len = self.text[self.at..].iter().take_while(|c| is_in_name(c)).count();
        if !starts {
            return None;
        }
        let name = self.text[self.at..self.at + len].iter().collect();
        self.at += len;
        Some(name)
    }

    /// Whether the next rule begins here.
    fn begins_rule(&mut self) -> bool {
        let start = self.at;
        let begins = self.name().is_some() && {
            self.skip_blanks();
            self.take("::=")
        };
        self.at = start;
        begins
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, mark: &str) -> bool {
        let found = mark
            .chars()
            .enumerate()
            .all(|(i, c)| self.text.get(self.at + i) == Some(&c));
        if found {
            self.at += mark.chars().count();
        }
        found
    }

    /// Skips white space, ends of lines and comments.
    fn skip_blanks(&mut self) {
        while let Some(character) = self.peek() {
            match character {
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ if character.is_whitespace() => self.at += 1,
                _ => return,
            }
        }
    }

    fn place(&self) -> String {
        let before = &self.text[..self.at.min(self.text.len())];
        let line = before.iter().filter(|c| **c == '\n').count() + 1;
        let column = before.iter().rev().take_while(|c| **c != '\n').count() + 1;
        format!("line {line}, column {column}")
    }

    fn wrong(&self, expected: &str) -> String {
        let found = self.peek().map_or("the end".to_string(), |c| format!("{c:?}"));
        format!("{}: found {found}, expected {expected}", self.place())
    }
}
