//! Values printed the way Python prints them, since chat templates are written for Python: `True`, `None`, `{'a': 1}`,
//! and the `json.dumps` that Hugging Face gives templates as `tojson`.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting printed; JSON from a request cannot be deeper (serde_json stops at 128).
const MAX_DEPTH: usize = 128;

/// Python's `str(value)`.
pub(crate) fn python_str(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let mut out = String::new();
    write_repr(value, &mut out, 0);
    out
}

fn write_repr(value: &Value, out: &mut String, depth: usize) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, ["inf", "-inf", "nan"])),
        ValueKind::String => quote_python(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (index, (key, item)) in entries(value).into_iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, out, depth + 1);
                out.push_str(": ");
                write_repr(&item, out, depth + 1);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in items(value).into_iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&item, out, depth + 1);
            }
            out.push(']');
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn entries(value: &Value) -> Vec<(Value, Value)> {
    items(value)
        .into_iter()
        .map(|key| {
            let item = value.get_item(&key).unwrap_or_default();
            (key, item)
        })
        .collect()
}

fn items(value: &Value) -> Vec<Value> {
    value.try_iter().map(Iterator::collect).unwrap_or_default()
}

/// Python's shortest form of a number; `special` spells the infinities and not-a-number.
fn number(value: &Value, special: [&str; 3]) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if float.is_nan() {
        return special[2].to_owned();
    }
    if float.is_infinite() {
        return special[usize::from(float < 0.0)].to_owned();
    }
    // Rust switches to exponents where Python does; only the exponent itself is written differently.
    let text = format!("{float:?}");
    match text.split_once('e') {
        None => text,
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |digits| ('-', digits));
            format!("{}e{sign}{digits:0>2}", mantissa.strip_suffix(".0").unwrap_or(mantissa))
        }
    }
}

fn quote_python(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => {
                out.push('\\');
                out.push(character);
            }
            _ if u32::from(character) < 0x20 || (0x7F..0xA1).contains(&u32::from(character)) => {
                out.push_str(&format!("\\x{:02x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
}

/// The options of `json.dumps`.
struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The `tojson` filter as transformers defines it: `json.dumps(value, ensure_ascii=False, indent=None, separators=None,
/// sort_keys=False)`, with no HTML escaping.
pub(crate) fn tojson(value: &Value, positional: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let option = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = options.get(name)?;
        Ok(named
            .or_else(|| positional.get(index).cloned())
            .filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = option(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match option(1, "indent")? {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    let (mut item_separator, mut key_separator) =
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(value) = option(2, "separators")? {
        item_separator = python_str(&value.get_item_by_index(0)?);
        key_separator = python_str(&value.get_item_by_index(1)?);
    }
    let sort_keys = option(3, "sort_keys")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    let style = JsonStyle {
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    let mut out = String::new();
    style.write(value, &mut out, 0)?;
    Ok(out)
}

impl JsonStyle {
    fn write(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        let refuse = |value: &str| {
            Err(Error::new(
                ErrorKind::BadSerialization,
                format!("tojson cannot write {value}"),
            ))
        };
        if depth > MAX_DEPTH {
            return refuse("values nested that deeply");
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value, ["Infinity", "-Infinity", "NaN"])),
            ValueKind::String => self.quote(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = items(value);
                let last = items.len();
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.break_line(out, index, depth + 1);
                    self.write(item, out, depth + 1)?;
                }
                self.close(out, last, depth, ']');
            }
            ValueKind::Map => {
                let mut entries = entries(value);
                if self.sort_keys {
                    entries.sort_by_key(|entry| python_str(&entry.0));
                }
                let last = entries.len();
                out.push('{');
                for (index, (key, item)) in entries.iter().enumerate() {
                    self.break_line(out, index, depth + 1);
                    match key.kind() {
                        ValueKind::String => self.quote(key.as_str().unwrap_or_default(), out),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            out.push('"');
                            self.write(key, out, depth + 1)?;
                            out.push('"');
                        }
                        kind => return refuse(&format!("a key that is a {kind}")),
                    }
                    out.push_str(&self.key_separator);
                    self.write(item, out, depth + 1)?;
                }
                self.close(out, last, depth, '}');
            }
            ValueKind::Undefined => return refuse("an undefined value"),
            kind => return refuse(&format!("a {kind}")),
        }
        Ok(())
    }

    /// What stands before the item number `index`.
    fn break_line(&self, out: &mut String, index: usize, depth: usize) {
        if index > 0 {
            out.push_str(&self.item_separator);
        }
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn close(&self, out: &mut String, num_items: usize, depth: usize, bracket: char) {
        if let Some(indent) = self.indent.as_ref().filter(|_| num_items > 0) {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
        out.push(bracket);
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                _ if u32::from(character) < 0x20 || (self.ensure_ascii && !character.is_ascii()) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}
