//! Checks a template's source before it is compiled: not too long, and no tag with very many tokens. The parser and the
//! compiler recurse over a chain of operators, so its length is the depth of their stack.

use crate::{Result, TextError};

/// Bytes of a template. The longest published ones have some 30 KB.
const MAX_BYTES: usize = 1 << 20;
/// Operators, names and brackets of one tag; long conditions of published templates have some 150.
const MAX_TAG_TOKENS: usize = 4096;

/// Checks a template's source.
///
/// # Errors
/// [`TextError::TemplateBound`].
pub(crate) fn check_source(source: &str) -> Result<()> {
    let refused = |reason: String| Err(TextError::TemplateBound { reason });
    if source.len() > MAX_BYTES {
        let found = source.len();
        return refused(format!("its source has {found} bytes; at most {MAX_BYTES} are taken"));
    }
    let mut rest = source;
    let mut line = 1;
    while let Some(open) = rest.find("{%").into_iter().chain(rest.find("{{")).min() {
        line += rest[..open].matches('\n').count();
        let (tokens, len) = count_tokens(&rest[open + 2..]);
        if tokens > MAX_TAG_TOKENS {
            return refused(format!("its tag at line {line} has more than {MAX_TAG_TOKENS} tokens"));
        }
        let next = open + 2 + len;
        line += rest[open..next].matches('\n').count();
        rest = &rest[next..];
    }
    Ok(())
}

/// Tokens up to the end of a tag, and its length in bytes. A word is one token and each other character, outside of
/// quotes, another.
fn count_tokens(tag: &str) -> (usize, usize) {
    let mut tokens = 0;
    let mut in_word = false;
    let mut quote = None;
    let mut is_escaped = false;
    for (at, character) in tag.char_indices() {
        if let Some(end) = quote {
            if is_escaped {
                is_escaped = false;
            } else if character == '\\' {
                is_escaped = true;
            } else if character == end {
                quote = None;
            }
            continue;
        }
        if tag[at..].starts_with("%}") || (tag[at..].starts_with("}}") && !tag[at..].starts_with("}}}")) {
            return (tokens, at + 2);
        }
        let is_word = character.is_alphanumeric() || character == '_';
        tokens += usize::from(!(character.is_whitespace() || is_word && in_word));
        in_word = is_word;
        if matches!(character, '"' | '\'') {
            quote = Some(character);
        }
        if tokens > MAX_TAG_TOKENS {
            return (tokens, at);
        }
    }
    (tokens, tag.len())
}

#[cfg(test)]
mod tests {
    use super::check_source;

    #[test]
    fn chains_and_long_sources_are_refused_with_their_line() {
        for chain in ["not ", "-", "1+", "'a'~", "(", "[0]"] {
            let source = format!("hello\n{{% set x = 1\n %}}\n{{{{ {}1 }}}}", chain.repeat(5000));
            let error = check_source(&source).expect_err(chain).to_string();
            assert!(error.contains("line 4") && error.contains("4096"), "{chain}: {error}");
        }
        let error = check_source(&"x".repeat(2 << 20)).expect_err("2 MiB").to_string();
        assert!(error.contains("2097152 bytes") && error.contains("1048576"), "{error}");
    }

    #[test]
    fn long_texts_in_quotes_and_outside_of_tags_pass() {
        let words = "not - + ~ ".repeat(2000);
        check_source(&words).expect("no tag");
        check_source(&format!(
            "{{{{ '{words}' ~ \"it's\" }}}}{{% if true %}}{words}{{% endif %}}"
        ))
        .expect("quoted");
        check_source(&"{{ a + b }}".repeat(5000)).expect("many small tags");
        check_source("{{ {'a': {'b': 1}}}} {% if x %}").expect("braces");
        check_source("{% unfinished '").expect("the parser tells");
    }
}
