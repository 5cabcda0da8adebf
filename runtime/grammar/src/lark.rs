//! Writing grammars in the library's Lark: names that cannot collide, texts and characters with their escapes.

use serde_json::Value;

/// A grammar that is being written.
#[derive(Default)]
pub(crate) struct Lark {
    text: String,
    num_names: usize,
}

impl Lark {
    /// The name of a rule to come.
    pub(crate) fn rule_name(&mut self) -> String {
        self.num_names += 1;
        format!("r{}", self.num_names)
    }

    /// The name of a terminal to come.
    pub(crate) fn terminal_name(&mut self) -> String {
        self.num_names += 1;
        format!("T{}", self.num_names)
    }

    /// Defines a name; `attributes` as `[lazy]`.
    pub(crate) fn define(&mut self, name: &str, attributes: &str, body: &str) {
        self.text.push_str(&format!("{name}{attributes}: {body}\n"));
    }

    /// Defines a new rule.
    pub(crate) fn rule(&mut self, body: &str) -> String {
        let name = self.rule_name();
        self.define(&name, "", body);
        name
    }

    /// Defines a new terminal.
    pub(crate) fn terminal(&mut self, body: &str) -> String {
        let name = self.terminal_name();
        self.define(&name, "", body);
        name
    }

    /// Defines a rule whose text is the shortest that matches.
    pub(crate) fn lazy_rule(&mut self, body: &str) -> String {
        let name = self.rule_name();
        self.define(&name, "[lazy]", body);
        name
    }

    /// Number of definitions.
    pub(crate) fn num_definitions(&self) -> usize {
        self.num_names
    }

    /// The grammar, whose texts are those of `start`.
    pub(crate) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.text)
    }
}

/// A text.
pub(crate) fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            _ if character.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// A regular expression in Rust's syntax.
pub(crate) fn regex(pattern: &str) -> String {
    format!("/(?:{})/", llguidance::regex_to_lark(pattern, ""))
}

/// JSON that fits a schema.
pub(crate) fn json(schema: &Value) -> String {
    format!("%json {schema}")
}

/// One character of a set: ranges with both ends.
pub(crate) fn class(ranges: &[(char, char)], is_negated: bool) -> String {
    let mut set = String::from(if is_negated { "/[^" } else { "/[" });
    for (first, last) in ranges {
        set.push_str(&format!("\\x{{{:x}}}", u32::from(*first)));
        if first != last {
            set.push_str(&format!("-\\x{{{:x}}}", u32::from(*last)));
        }
    }
    set.push_str("]/");
    set
}

/// Any text.
pub(crate) const ANY_TEXT: &str = r"/(.|\n)*/";
