//! Python methods and tests that templates call and the template engine's own Python layer lacks or answers
//! differently.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Looks up a method that a value does not have by itself.
pub(crate) fn unknown_method(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => one(args).map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => one(args).map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "partition" => one(args).map(|separator| match text.split_once(separator) {
            Some((before, after)) => list(&[before, separator, after]),
            None => list(&[text, "", ""]),
        }),
        "rpartition" => one(args).map(|separator| match text.rsplit_once(separator) {
            Some((before, after)) => list(&[before, separator, after]),
            None => list(&["", "", text]),
        }),
        // Python counts the gaps; searching for nothing would not end here.
        "count" => one(args).map(|part| match part {
            "" => Value::from(text.chars().count() + 1),
            part => Value::from(text.matches(part).count()),
        }),
        "rsplit" => rsplit(text, args),
        "index" => one(args).and_then(|part| {
            let at = text
                .find(part)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Ok(Value::from(text[..at].chars().count()))
        }),
        _ => return None,
    })
}

fn one(args: &[Value]) -> Result<&str, Error> {
    let (argument,) = from_args(args)?;
    Ok(argument)
}

fn list(texts: &[&str]) -> Value {
    texts.iter().map(|text| Value::from(*text)).collect()
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
    let limit = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => parts.extend(text.rsplitn(limit + 1, separator)),
        None => {
            let mut rest = text.trim_end();
            while parts.len() < limit
                && let Some(at) = rest.rfind(char::is_whitespace)
            {
                let word_start = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                parts.push(&rest[word_start..]);
                rest = rest[..at].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    parts.reverse();
    Ok(list(&parts))
}

/// Jinja's `length` filter: what is undefined has none.
pub(crate) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let message = format!("a value of type {} has no length", value.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

/// Jinja's `sequence` test: anything with a length and items, strings and mappings included.
pub(crate) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Bytes | ValueKind::Undefined
    )
}

/// Jinja's `iterable` test.
pub(crate) fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}
