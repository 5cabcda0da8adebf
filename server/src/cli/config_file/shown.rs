//! `halyard serve --print-config`: every option with its value and where that came from, as a file for `--config`.
//! Never prints a secret.

use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::{Source, id, variables};

/// Options whose values are secrets.
const SECRETS: [&str; 2] = ["api-key", "hf-token"];
/// Options that are about this listing.
const LEFT_OUT: [&str; 4] = ["help", "version", "config", "print-config"];

/// The options of `serve` after everything was read: a YAML document. `accepted`: flags without an effect, with why.
pub fn print(serve: &Command, matches: &ArgMatches, source: &Source, accepted: &[(String, &'static str)]) -> String {
    let mut text = String::from("# The options that halyard serve would use. Behind each: where it came from.\n");
    if !source.path.as_os_str().is_empty() {
        let _ = writeln!(text, "# file: {}", source.path.display());
    }
    let mut heading = None;
    for arg in serve.get_arguments() {
        let Some(long) = arg.get_long().filter(|long| !LEFT_OUT.contains(long)) else {
            continue;
        };
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            let _ = writeln!(text, "\n# {}", heading.unwrap_or("Options"));
        }
        let from = origin(arg, matches, source);
        let _ = match value(arg, matches) {
            // vLLM's variable of keys is read later.
            None if long == "api-key" && variables(arg).any(|name| std::env::var_os(name).is_some()) => {
                writeln!(text, "# {long}: a secret  # environment")
            }
            None => writeln!(text, "# {long}: not set"),
            Some(_) if SECRETS.contains(&long) => writeln!(text, "# {long}: a secret  # {from}"),
            Some(value) => writeln!(text, "{long}: {value}  # {from}"),
        };
    }
    if !accepted.is_empty() {
        text.push_str("\n# Accepted, needs nothing here\n");
    }
    for (name, why) in accepted {
        let _ = writeln!(text, "# {name}: {why}");
    }
    text
}

/// The value as YAML on one line: JSON, which YAML reads.
fn value(arg: &Arg, matches: &ArgMatches) -> Option<Value> {
    let id = id(arg);
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return matches.get_one::<bool>(id).map(|on| Value::from(*on));
    }
    let values = matches.get_raw(id)?.map(|raw| raw.to_string_lossy().into_owned());
    let mut values: Vec<Value> = values.map(|text| scalar(&text)).collect();
    match matches!(arg.get_action(), ArgAction::Append) {
        true => Some(Value::Array(values)),
        false if values.len() > 1 => Some(Value::Array(values)),
        false => values.pop(),
    }
}

/// Numbers and truth values without quotes where they come out as they were given.
fn scalar(text: &str) -> Value {
    let read = serde_json::from_str::<Value>(text).ok();
    let same = read.filter(|value| {
        let written = value.to_string();
        !value.is_string() && written == text
    });
    same.unwrap_or_else(|| Value::from(text))
}

fn origin(arg: &Arg, matches: &ArgMatches, source: &Source) -> String {
    if let Some(line) = source.lines.get(id(arg)) {
        return format!("file, line {line}");
    }
    match (matches.value_source(id(arg)), arg.get_env()) {
        (Some(ValueSource::CommandLine), _) => "command line".to_owned(),
        (Some(ValueSource::EnvVariable), Some(name)) => format!("environment, {}", name.to_string_lossy()),
        _ => "default".to_owned(),
    }
}
