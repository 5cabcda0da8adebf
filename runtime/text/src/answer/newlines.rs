//! Line breaks that a model writes as a backslash and a letter, as MiniCPM-V does: they become line breaks, but for
//! those in code and in formulas, whatever cuts the text.

/// What begins code or a formula, and what ends it. A longer one comes before its start.
const SPANS: &[(&str, &str)] = &[
    ("```", "```"),
    ("`", "`"),
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
];
/// How a line break is written. A longer one comes before its start.
const BREAKS: &[&str] = &["\\r\\n", "\\n", "\\r"];

/// Reads one text.
#[derive(Clone, Debug, Default)]
pub(super) struct Newlines {
    /// What ends the code or the formula that is open.
    close: Option<&'static str>,
    /// Several backslashes came: they and more of them mean nothing.
    slashes: bool,
    /// At most three characters that may begin one of these.
    held: String,
}

impl Newlines {
    /// Takes more text; what is certain of it.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut whole = std::mem::take(&mut self.held);
        whole.push_str(text);
        self.read(&whole, false)
    }

    /// What was held back: the text is over, or something else comes in between.
    pub(super) fn end(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        self.read(&held, true)
    }

    fn read(&mut self, mut rest: &str, last: bool) -> String {
        let mut out = String::new();
        while let Some(first) = rest.chars().next() {
            let (mut len, mut shown) = (first.len_utf8(), None);
            let may_come = |marker: &str| !last && marker.len() > rest.len() && marker.starts_with(rest);
            if let Some(close) = self.close {
                if rest.starts_with(close) {
                    len = close.len();
                    self.close = None;
                } else if may_come(close) {
                    break;
                }
            } else if first != '\\' || !self.slashes {
                self.slashes = false;
                if BREAKS.iter().any(|marker| may_come(marker)) || SPANS.iter().any(|(open, _)| may_come(open)) {
                    break;
                }
                if let Some(marker) = BREAKS.iter().find(|marker| rest.starts_with(**marker)) {
                    (len, shown) = (marker.len(), Some("\n"));
                } else if let Some((open, close)) = SPANS.iter().find(|(open, _)| rest.starts_with(open)) {
                    len = open.len();
                    self.close = Some(close);
                } else if rest.starts_with("\\\\") {
                    self.slashes = true;
                }
            }
            out.push_str(shown.unwrap_or(&rest[..len]));
            rest = &rest[len..];
        }
        rest.clone_into(&mut self.held);
        out
    }
}
