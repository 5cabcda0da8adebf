//! Doc comments as texts for others than rustdoc: plain words, wrapped, for C and for Markdown.

use super::layout::Doc;

/// Longest line of what is written.
pub(super) const WIDTH: usize = 120;

/// The paragraphs of a doc comment, each in one line, without rustdoc's links and escapes.
pub(super) fn paragraphs(doc: Doc) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in doc.iter().map(|line| line.trim()) {
        match all.last_mut() {
            Some(last) if !line.is_empty() && !last.is_empty() => {
                last.push(' ');
                last.push_str(line);
            }
            Some(last) if !line.is_empty() => last.push_str(line),
            _ => all.push(String::new()),
        }
    }
    all.retain(|paragraph| !paragraph.is_empty());
    all.iter().map(|paragraph| plain(paragraph)).collect()
}

/// A text without rustdoc's links and escapes. A link to a constant becomes the name that it has in C.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("[`") {
        let escaped = rest[..at].ends_with('\\');
        let link = rest[at + 2..].split_once("`]").filter(|_| !escaped);
        let Some((path, after)) = link else {
            out.push_str(&rest[..at + 2]);
            rest = &rest[at + 2..];
            continue;
        };
        out.push_str(&rest[..at]);
        let name = path.rsplit("::").next().unwrap_or_default();
        let is_constant = name.len() > 1 && !name.contains(|c: char| c.is_lowercase());
        match is_constant {
            true => out.push_str(&format!("HALYARD_{name}")),
            false => out.push_str(&format!("`{name}`")),
        }
        // A link's target, where it is written out.
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, behind)) => behind,
            None => after,
        };
    }
    out.push_str(rest);
    out.replace("\\[", "[").replace("\\]", "]")
}

/// The words of `text` in lines of at most `width` characters.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    // A no-break space is none.
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let taken = lines.last().map_or(0, |line| line.chars().count());
        if taken > 0 && taken + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// A comment of its own, in C.
pub(super) fn comment(paragraphs: &[String], indent: &str) -> String {
    let width = WIDTH - indent.len() - "/** ".len();
    let mut lines: Vec<String> = Vec::new();
    for paragraph in paragraphs {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(wrap(paragraph, width));
    }
    let Some(last) = lines.last() else {
        return String::new();
    };
    // The end needs a place, too.
    if last.chars().count() + " */".len() > width
        && let Some((line, word)) = last.rsplit_once(' ').map(|(l, w)| (l.to_string(), w.to_string()))
    {
        lines.pop();
        lines.extend([line, word]);
    }
    let mut out = String::new();
    let end = lines.len() - 1;
    for (at, line) in lines.iter().enumerate() {
        let start = if at == 0 { "/**" } else { " *" };
        let gap = if line.is_empty() { "" } else { " " };
        let close = if at == end { " */" } else { "" };
        out.push_str(&format!("{indent}{start}{gap}{line}{close}\n"));
    }
    out
}

/// A line of C with its description: behind it where that fits, else above it.
pub(super) fn described(line: &str, indent: &str, doc: &[String]) -> String {
    if let [text] = doc {
        let whole = format!("{indent}{line} /**< {text} */");
        if whole.chars().count() <= WIDTH {
            return whole + "\n";
        }
    }
    format!("{}{indent}{line}\n", comment(doc, indent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_escapes_become_plain_words() {
        let doc: Doc = &[
            " One of [`crate::ops::NOT_FINITE`] and [`Queue::wait`]",
            " (x\\[`i`\\], [`here`](crate::here)).",
            "",
            " More.",
        ];
        let expected = ["One of HALYARD_NOT_FINITE and `wait` (x[`i`], `here`).", "More."];
        assert_eq!(paragraphs(doc), expected);
        assert_eq!(plain("[`S`], [`open"), "`S`, [`open");
    }

    #[test]
    fn comments_keep_the_width() {
        let text = vec!["word ".repeat(60), "é".repeat(109)];
        let comment = comment(&text, "    ");
        assert!(comment.lines().all(|line| line.chars().count() <= WIDTH), "{comment}");
        assert_eq!(comment.matches("word").count(), 60);
        assert_eq!(
            described("int x;", "  ", &["Short.".to_string()]),
            "  int x; /**< Short. */\n"
        );
        let long = described("int x;", "  ", &["x".repeat(105)]);
        assert_eq!(long, format!("  /** {} */\n  int x;\n", "x".repeat(105)));
    }
}
