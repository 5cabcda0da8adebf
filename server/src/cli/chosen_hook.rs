//! Parses hooks that the operator chooses by name with a configuration; and the flags of IO processors.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use halyard_plugin_host::{Catalog, Kind};
use halyard_request_hooks::{IoProcessors, IoSettings};
use serde_json::{Map, Value};

use super::units::parse_bytes;
use crate::error::ServerError;

/// A hook plugin and its configuration: `NAME`, `NAME:key=value,key=value` (texts), or `NAME={"key": …}` for values
/// that are no texts or have commas.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenHook {
    /// The plugin's name.
    pub name: String,
    /// A JSON object.
    pub config: String,
}

impl FromStr for ChosenHook {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, config) = match text.find([':', '=']) {
            None => (text, Value::Object(Map::new())),
            Some(at) if text[at..].starts_with('=') => {
                let config: Value = serde_json::from_str(&text[at + 1..])
                    .map_err(|error| format!("what follows `=` is not JSON: {error}"))?;
                (&text[..at], config)
            }
            Some(at) => (&text[..at], Value::Object(pairs(&text[at + 1..])?)),
        };
        if name.is_empty() {
            return Err("it begins with no plugin's name; see `halyard plugins list`".to_owned());
        }
        if !config.is_object() {
            return Err(format!("the configuration {config} is not a JSON object"));
        }
        Ok(ChosenHook {
            name: name.to_owned(),
            config: config.to_string(),
        })
    }
}

/// `key=value,key=value` as texts.
fn pairs(text: &str) -> Result<Map<String, Value>, String> {
    let mut all = Map::new();
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
            format!("`{pair}` is not key=value; write NAME:key=value,key=value or NAME={{\"key\": \"value\"}}")
        })?;
        if all.insert(key.to_owned(), Value::from(value)).is_some() {
            return Err(format!("the key `{key}` stands twice"));
        }
    }
    Ok(all)
}

/// Flags of IO processors.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "IO processors")]
pub struct IoProcessorArgs {
    /// A plugin that may rewrite or refuse generation requests and rewrite their answers, with its configuration; may
    /// be repeated: requests pass in this order, answers in the opposite one
    #[arg(
        long = "io-processor",
        value_name = "NAME[:KEY=VALUE,…]",
        env = "HALYARD_IO_PROCESSOR"
    )]
    processors: Vec<ChosenHook>,
    /// Milliseconds for each call of an IO processor; past them the request fails with 503
    #[arg(long = "io-processor-timeout-ms", value_name = "MS", env = "HALYARD_IO_PROCESSOR_TIMEOUT_MS",
        default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    timeout_ms: u32,
    /// Most bytes that an IO processor may return: of one request's body, and of its answers' texts
    #[arg(long = "io-processor-max-bytes", value_name = "BYTES", env = "HALYARD_IO_PROCESSOR_MAX_BYTES",
        default_value = "16MiB", value_parser = parse_bytes)]
    max_bytes: u64,
}

impl IoProcessorArgs {
    /// Loads and starts the chosen processors. Blocks.
    ///
    /// # Errors
    /// A name that is not known, a plugin that does not load, a configuration that it refuses.
    pub fn start(&self, catalog: &Catalog) -> Result<IoProcessors, ServerError> {
        let load = |hook: &ChosenHook| {
            let plugin = catalog.load(catalog.find(Kind::IoProcessor, &hook.name)?)?;
            tracing::info!(io_processor = hook.name, path = ?plugin.path(), "loaded");
            Ok((hook.name.clone(), plugin.io_processor_factory()?, hook.config.clone()))
        };
        let chosen = self.processors.iter().map(load).collect::<Result<_, ServerError>>()?;
        let settings = IoSettings {
            timeout: Duration::from_millis(u64::from(self.timeout_ms)),
            max_bytes: self.max_bytes,
        };
        IoProcessors::create(chosen, settings).map_err(|(name, source)| ServerError::IoProcessor { name, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_configurations_are_read() {
        let read = |text: &str| text.parse::<ChosenHook>().map(|hook| (hook.name, hook.config));
        let hook = |name: &str, config: &str| Ok((name.to_owned(), config.to_owned()));
        assert_eq!(read("redact"), hook("redact", "{}"));
        assert_eq!(
            read("redact:replacement=<a:b=c>"),
            hook("redact", r#"{"replacement":"<a:b=c>"}"#)
        );
        assert_eq!(read("x:a=1,b="), hook("x", r#"{"a":"1","b":""}"#));
        assert_eq!(read(r#"x={"a": [1, 2]}"#), hook("x", r#"{"a":[1,2]}"#));
        for bad in ["", ":a=b", "x:", "x:a", "x:=b", "x:a=1,a=2", "x=", "x=[1]", "x={"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
