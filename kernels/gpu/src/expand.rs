//! `#include` for compilers that take one text.

/// `text` with the headers that it includes in place of their `#include` lines, each once, in order: for compilers that
/// take one text.
///
/// # Errors
/// The name of a header that `headers` lacks.
pub fn expanded(text: &str, headers: &[(&str, &str)]) -> Result<String, String> {
    let mut seen = Vec::new();
    let mut out = String::with_capacity(text.len() + 16_384);
    expand(text, headers, &mut seen, &mut out)?;
    Ok(out)
}

fn expand(text: &str, headers: &[(&str, &str)], seen: &mut Vec<String>, out: &mut String) -> Result<(), String> {
    for line in text.lines() {
        let included = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        let Some(name) = included else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        if seen.iter().any(|known| known == name) {
            continue;
        }
        seen.push(name.to_string());
        let header = headers.iter().find(|(known, _)| *known == name);
        let (_, header) = header.ok_or_else(|| format!("{name} is none of the kernels' headers"))?;
        expand(header, headers, seen, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_once_and_before_what_follows_them() {
        let headers = [("a.h", "#include \"b.h\"\nA"), ("b.h", "B")];
        let text = "#include \"b.h\"\nfirst\n#include \"a.h\"\nlast";
        assert_eq!(expanded(text, &headers), Ok("B\nfirst\nA\nlast\n".to_string()));
        let error = expanded("#include \"c.h\"", &headers).expect_err("there is no c.h");
        assert!(error.contains("c.h"), "{error}");
    }
}
