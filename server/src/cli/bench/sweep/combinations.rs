//! Combinations of options: read from JSON, named, and as words of a command line.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::words::wrong;
use crate::error::ServerError;

/// Longest name of a combination in a folder's name.
const MAX_NAME: usize = 100;

/// Options that are set together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Combination {
    /// For people and folders.
    pub name: String,
    /// By name, without dashes at the start.
    pub options: Map<String, Value>,
}

/// Two options that must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    serve: String,
    bench: String,
}

impl Link {
    /// Whether the combinations agree. An option that one of them lacks agrees with nothing.
    pub(super) fn holds(&self, serve: &Combination, bench: &Combination) -> bool {
        let of = |combination: &Combination, name: &str| {
            let same = |found: &String| found.replace('-', "_") == name.replace('-', "_");
            let mut options = combination.options.iter();
            options.find(|(found, _)| same(found)).map(|(_, value)| value.clone())
        };
        match (of(serve, &self.serve), of(bench, &self.bench)) {
            (Some(serve), Some(bench)) => serve == bench,
            _ => false,
        }
    }
}

/// The links of `--link-vars`.
///
/// # Errors
/// One that is no pair.
pub(super) fn linked(texts: &[String]) -> Result<Vec<Link>, ServerError> {
    let link = |text: &String| {
        let pair = text
            .split_once('=')
            .filter(|(serve, bench)| !serve.is_empty() && !bench.is_empty());
        let (serve, bench) = pair.ok_or_else(|| wrong("--link-vars", format!("`{text}` is not SERVE=BENCH")))?;
        Ok(Link {
            serve: serve.to_owned(),
            bench: bench.to_owned(),
        })
    };
    texts.iter().map(link).collect()
}

/// The combinations of a flag: of a file, or of the text itself. Without either, one without options.
///
/// # Errors
/// A file that cannot be read, or JSON that is no list of objects and no object of them.
pub(super) fn read(option: &'static str, given: Option<&str>) -> Result<Vec<Combination>, ServerError> {
    let Some(given) = given else {
        return Ok(vec![Combination::new(None, Map::new())]);
    };
    let text = match given.trim_start().starts_with(['[', '{']) {
        true => given.to_owned(),
        false => std::fs::read_to_string(given).map_err(|error| wrong(option, format!("{given}: {error}")))?,
    };
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(option, format!("no JSON: {error}")))?;
    let entries: Vec<(Option<String>, Value)> = match value {
        Value::Array(list) => list.into_iter().map(|value| (None, value)).collect(),
        Value::Object(named) => named.into_iter().map(|(name, value)| (Some(name), value)).collect(),
        _ => return Err(wrong(option, "give a list of objects, or an object of them by name")),
    };
    let combination = |(name, value): (Option<String>, Value)| match value {
        Value::Object(options) => Ok(Combination::new(name, options)),
        other => Err(wrong(option, format!("{other} is no object of options"))),
    };
    let combinations = entries.into_iter().map(combination).collect::<Result<Vec<_>, _>>()?;
    for (at, one) in combinations.iter().enumerate() {
        if combinations[..at].iter().any(|other| other.name == one.name) {
            return Err(wrong(option, format!("{} is there twice", one.name)));
        }
    }
    match combinations.is_empty() {
        true => Err(wrong(option, "there is no combination")),
        false => Ok(combinations),
    }
}

impl Combination {
    /// vLLM's key for a name of one's own.
    const NAME_KEY: &str = "_benchmark_name";

    fn new(name: Option<String>, mut options: Map<String, Value>) -> Combination {
        let own = options.remove(Combination::NAME_KEY);
        let own = own.and_then(|name| name.as_str().map(str::to_owned));
        let pairs = options.iter().map(|(name, value)| format!("{name}={}", plain(value)));
        let name = own.or(name).unwrap_or_else(|| match options.is_empty() {
            true => "as_given".to_owned(),
            false => pairs.collect::<Vec<_>>().join("-"),
        });
        Combination {
            name: file_name(&name),
            options,
        }
    }
}

/// A text that can be part of a file's name; long ones end in their hash.
fn file_name(text: &str) -> String {
    let fits = |c: char| c.is_alphanumeric() || "=-_.,+".contains(c);
    let name: String = text.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if name == text && name.len() <= MAX_NAME {
        return name;
    }
    let digest = Sha256::digest(text);
    let hash: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let short: String = name.chars().take(MAX_NAME / 2).collect();
    format!("{short}-{hash}")
}

/// A value as one word.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Options as words of a command line: `true` is the flag alone, `false` its `--no-` form, null leaves it out, a list
/// is several values after one flag, an object is JSON.
pub(super) fn flags(options: &Map<String, Value>) -> Vec<String> {
    let mut words = Vec::new();
    for (name, value) in options {
        let name = name.trim_start_matches('-').replace('_', "-");
        match value {
            Value::Null => {}
            Value::Bool(true) => words.push(format!("--{name}")),
            Value::Bool(false) => words.push(format!("--no-{name}")),
            Value::Array(values) => {
                words.push(format!("--{name}"));
                words.extend(values.iter().map(plain));
            }
            value => words.extend([format!("--{name}"), plain(value)]),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).expect("an object")
    }

    #[test]
    fn options_become_words() {
        let found = flags(&options(
            r#"{"max_num_seqs": 32, "--model": "a b", "enable_lora": true, "ui": false, "seed": null,
                "lora_modules": ["a=b", "c=d"], "hf_overrides": {"x": [1]}, "request_rate": "inf"}"#,
        ));
        let mut found = found.join("|");
        // Whatever the order of keys.
        for part in [
            "--max-num-seqs|32",
            "--model|a b",
            "--enable-lora",
            "--no-ui",
            "--lora-modules|a=b|c=d",
            "--hf-overrides|{\"x\":[1]}",
            "--request-rate|inf",
        ] {
            assert!(found.contains(part), "{part} in {found}");
            found = found.replacen(part, "", 1);
        }
        assert!(found.chars().all(|c| c == '|'), "{found}");
    }

    #[test]
    fn combinations_have_names_for_folders() {
        let listed = read(
            "--x",
            Some(r#"[{"rate": 1}, {"rate": 2, "_benchmark_name": "two"}, {"a": "b/c"}]"#),
        );
        let names: Vec<String> = listed.expect("read").into_iter().map(|one| one.name).collect();
        assert_eq!(names[..2], ["rate=1", "two"]);
        assert!(
            names[2].starts_with("a=b_c-") && !names[2].contains('/'),
            "{}",
            names[2]
        );
        let named = read("--x", Some(r#"{"small": {"rate": 1}}"#)).expect("read");
        assert_eq!((named[0].name.as_str(), named.len()), ("small", 1));
        let long = format!(r#"[{{"a": "{}"}}]"#, "x".repeat(500));
        assert!(read("--x", Some(&long)).expect("read")[0].name.len() <= MAX_NAME);
        let none = read("--x", None).expect("one without options");
        assert_eq!((none.len(), none[0].options.len()), (1, 0));
    }

    #[test]
    fn what_is_no_combination_is_named() {
        for (given, word) in [
            ("[1]", "1 is no object"),
            ("[]", "no combination"),
            ("{", "no JSON"),
            ("/no/such/file", "/no/such/file"),
            (r#"[{"rate": 1}, {"rate": 1}]"#, "rate=1 is there twice"),
        ] {
            let error = read("--bench-params", Some(given)).expect_err(given).to_string();
            assert!(error.contains("--bench-params") && error.contains(word), "{error}");
        }
        assert!(
            linked(&["a".to_owned()])
                .expect_err("no pair")
                .to_string()
                .contains("`a`")
        );
    }

    #[test]
    fn linked_options_must_be_equal() {
        let combination = |text: &str| Combination::new(None, options(text));
        let links = linked(&["max_num_seqs=max-concurrency".to_owned()]).expect("a pair");
        let serve = combination(r#"{"max-num-seqs": 8}"#);
        assert!(links[0].holds(&serve, &combination(r#"{"max_concurrency": 8}"#)));
        assert!(!links[0].holds(&serve, &combination(r#"{"max_concurrency": 9}"#)));
        assert!(!links[0].holds(&serve, &combination("{}")));
    }
}
