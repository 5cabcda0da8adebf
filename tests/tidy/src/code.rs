//! Tells Rust code from comments and texts, so that a rule about code does not trip over prose about it.
//!
//! A small scanner, not a parser: it knows line and nested block comments, strings (raw, byte, C), characters and
//! lifetimes.

/// The text with the contents of comments, strings and characters blanked. Lines stay where they are.
pub fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// The end of the comment, string or character that starts at `at`; `at` itself where none does.
fn skipped_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    let inside_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if next == Some('/') => chars[at..]
            .iter()
            .position(|&c| c == '\n')
            .map_or(chars.len(), |n| at + n),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'b' | 'c' | 'r' if !inside_word => prefixed_end(chars, at),
        '\'' => character_end(chars, at),
        _ => at,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (1, start + 2);
    while at < chars.len() && depth > 0 {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

/// Past the closing quote of a string whose contents begin at `at`.
fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Strings with a prefix: `b".."`, `c".."`, `r#".."#`, `br#".."#`, and `b'x'`. A raw identifier is no string.
fn prefixed_end(chars: &[char], start: usize) -> usize {
    let mut at = start;
    while matches!(chars.get(at), Some('b' | 'c' | 'r')) && at - start < 2 {
        at += 1;
    }
    let raw = chars[start..at].contains(&'r');
    let hashes = if raw {
        chars[at..].iter().take_while(|&&c| c == '#').count()
    } else {
        0
    };
    at += hashes;
    match chars.get(at) {
        Some('"') if !raw => string_end(chars, at + 1),
        Some('"') => {
            let closes = |i: &usize| {
                chars[*i] == '"' && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
            };
            (at + 1..chars.len())
                .find(closes)
                .map_or(chars.len(), |i| i + 1 + hashes)
        }
        Some('\'') if chars[start] == 'b' && at == start + 1 => character_end(chars, at),
        _ => start,
    }
}

/// Past a character literal at `start`; `start` for a lifetime.
fn character_end(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => {
            let end = (start + 3..chars.len()).find(|&i| chars[i] == '\'');
            end.map_or(chars.len(), |i| i + 1)
        }
        (Some(_), Some('\'')) => start + 3,
        _ => start,
    }
}

/// Whether `line` holds `word` as a whole identifier.
pub fn has_word(line: &str, word: &str) -> bool {
    line.split(|c| !is_word(c)).any(|found| found == word)
}

/// The parts of the identifiers of `line`, in lower case: `GpuMemory_x2` gives gpu, memory, x2. A run of capitals is
/// one part.
pub fn word_parts(line: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let (mut previous, mut open) = (' ', false);
    for c in line.chars() {
        if c.is_alphanumeric() {
            let starts = !open || (c.is_uppercase() && previous.is_lowercase());
            match parts.last_mut() {
                Some(part) if !starts => part.extend(c.to_lowercase()),
                _ => parts.push(c.to_lowercase().collect()),
            }
        }
        open = c.is_alphanumeric();
        previous = c;
    }
    parts
}
