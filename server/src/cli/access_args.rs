//! Access flags: API keys, host names, web pages of other origins. Removes keys from the process's command line, which
//! every user of the machine can read.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use tower_http::cors::CorsLayer;

use crate::error::ServerError;
use crate::http::auth::KeySources;
use crate::http::cors::CorsRules;

/// The variable that keys move to.
const KEY_VARIABLE: &str = "HALYARD_API_KEY";
/// vLLM's, where none of this server's own is given.
pub(super) const VLLM_KEY_VARIABLE: &str = "VLLM_API_KEY";

/// Flags of `halyard serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Access")]
pub(super) struct AccessArgs {
    /// A file of further keys, besides those of --api-key: one a line, # begins a comment. SIGHUP reads it again
    #[arg(long, value_name = "FILE", env = "HALYARD_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Names under which clients may reach this server, with *.name for all below a name and * for every name.
    /// Addresses, localhost and --host always pass. Without it a server on loopback answers to no other name, one on
    /// the network to all
    #[arg(
        long,
        value_name = "NAMES",
        env = "HALYARD_ALLOWED_HOSTS",
        value_parser = parse_names,
        action = clap::ArgAction::Append
    )]
    allowed_hosts: Vec<Names>,
    /// Web pages that may send requests (CORS): origins such as https://app.example, as a JSON list or with commas; *
    /// for all. Without it none
    #[arg(long, value_name = "ORIGINS", env = "HALYARD_ALLOWED_ORIGINS", value_parser = parse_names)]
    allowed_origins: Option<Names>,
    /// Methods that these pages may use, in the same form; without it all
    #[arg(long, value_name = "METHODS", env = "HALYARD_ALLOWED_METHODS", value_parser = parse_names)]
    allowed_methods: Option<Names>,
    /// Headers that these pages may send, in the same form; without it all
    #[arg(long, value_name = "HEADERS", env = "HALYARD_ALLOWED_HEADERS", value_parser = parse_names)]
    allowed_headers: Option<Names>,
    /// Let these pages send cookies and the like
    #[arg(long, value_name = "BOOL", env = "HALYARD_ALLOW_CREDENTIALS", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    allow_credentials: bool,
}

/// One value of a flag that takes several names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Names(Vec<String>);

/// A JSON list, as vLLM takes it, or names with commas between them.
fn parse_names(text: &str) -> Result<Names, String> {
    let names: Vec<String> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| format!("it is no JSON list of strings: {error}"))?
    } else {
        text.split(',').map(str::to_owned).collect()
    };
    let names: Vec<String> = names.iter().map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("a name is empty; write [\"a\", \"b\"] or a,b".to_owned());
    }
    Ok(Names(names))
}

impl AccessArgs {
    /// Where the keys come from: `given` on the command line or in the variable, vLLM's variable where there is none,
    /// and the file.
    ///
    /// # Errors
    /// An empty key, or a file that cannot be used.
    pub(super) fn keys(&self, given: &[String]) -> Result<KeySources, ServerError> {
        let mut given = given.to_vec();
        if given.is_empty()
            && let Ok(keys) = std::env::var(VLLM_KEY_VARIABLE)
        {
            given = keys.split(',').map(str::to_owned).collect();
        }
        // An empty variable must not become a key that everybody has, nor silently none.
        if given.iter().any(|key| key.trim().is_empty()) {
            let message = "a key is empty; give each key at least one character, or leave the flag out".to_owned();
            return Err(ServerError::Option {
                option: "--api-key",
                message,
            });
        }
        let sources = KeySources {
            given,
            file: self.api_key_file.clone(),
        };
        sources.read()?;
        Ok(sources)
    }

    /// The names that are answered besides the server's own.
    pub(super) fn allowed_hosts(&self) -> Vec<String> {
        self.allowed_hosts.iter().flat_map(|names| names.0.clone()).collect()
    }

    /// CORS: the rights of other origins.
    ///
    /// # Errors
    /// As [`CorsRules::layer`].
    pub(super) fn cors(&self) -> Result<Option<CorsLayer>, ServerError> {
        let names = |names: &Option<Names>| names.as_ref().map_or_else(Vec::new, |names| names.0.clone());
        let rules = CorsRules {
            origins: names(&self.allowed_origins),
            methods: names(&self.allowed_methods),
            headers: names(&self.allowed_headers),
            credentials: self.allow_credentials,
        };
        Ok(rules.layer()?)
    }
}

/// What a flag gave that others must not read.
pub(super) struct Secret {
    /// The flag.
    pub flag: &'static str,
    /// The variable that gives the same.
    pub variable: &'static str,
    /// Its values.
    pub values: Vec<String>,
}

impl Secret {
    /// `--api-key`.
    pub(super) fn api_keys(keys: &[String]) -> Secret {
        Secret {
            flag: "--api-key",
            variable: KEY_VARIABLE,
            values: keys.to_vec(),
        }
    }
}

/// Starts this program again in the same process when secrets stand on its command line, with the secrets in their
/// variables instead: a command line is readable by all users of a machine, an environment by this one only. Returns
/// where there is nothing to hide. To be called before anything runs.
pub(super) fn hide_keys(secrets: &[Secret]) {
    let line: Vec<OsString> = std::env::args_os().collect();
    let (mut rest, mut hidden) = (line, Vec::new());
    for secret in secrets.iter().filter(|secret| !secret.values.is_empty()) {
        if let Some(without) = without_keys(&rest, secret) {
            rest = without;
            hidden.push(secret);
        }
    }
    if hidden.is_empty() {
        return;
    }
    let error = start_again(&rest, &hidden);
    for Secret { flag, variable, .. } in hidden {
        tracing::warn!("the value of {flag} stays visible in `ps`: {error}; give it with {variable}");
    }
}

/// Returns only when it fails.
fn start_again(line: &[OsString], secrets: &[&Secret]) -> std::io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut command = Command::new(program);
    if let Some((name, args)) = line.split_first() {
        command.arg0(name).args(args);
    }
    command.envs(secrets.iter().map(|secret| (secret.variable, secret.values.join(","))));
    command.exec()
}

/// The command line without the secret's flag and its values; none where it is not there.
fn without_keys(line: &[OsString], secret: &Secret) -> Option<Vec<OsString>> {
    let is_of_keys = |value: &OsString| {
        let value = value.to_string_lossy();
        value.split(',').all(|part| secret.values.iter().any(|key| key == part))
    };
    let mut rest = Vec::with_capacity(line.len());
    let mut values = false;
    for argument in line {
        let text = argument.to_string_lossy();
        let (flag, value) = text
            .split_once('=')
            .map_or((&*text, None), |(flag, value)| (flag, Some(value)));
        if flag.starts_with("--") && flag.replace('_', "-") == secret.flag {
            values = value.is_none();
        } else if values && is_of_keys(argument) {
            // The flag may take several.
        } else {
            values = false;
            rest.push(argument.clone());
        }
    }
    (rest.len() < line.len()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_as_json_or_with_commas() {
        let names = |list: &[&str]| Ok(Names(list.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(parse_names(r#"["*"]"#), names(&["*"]));
        assert_eq!(parse_names(r#" ["a", "b"]"#), names(&["a", "b"]));
        assert_eq!(parse_names("a, b"), names(&["a", "b"]));
        for bad in ["[1]", "[\"a\"", "a,,b", "", "[\"\"]"] {
            assert!(parse_names(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_command_line_loses_its_keys_and_nothing_else() {
        let line = |words: &str| words.split(' ').map(OsString::from).collect::<Vec<_>>();
        let keys = ["one".to_owned(), "two".to_owned()];
        for (given, left) in [
            ("h serve --api-key one,two --port 1", Some("h serve --port 1")),
            ("h serve --api-key=one --port 1 --api-key two", Some("h serve --port 1")),
            ("h serve --api_key one two --port 1", Some("h serve --port 1")),
            ("h serve --api-key one org/model", Some("h serve org/model")),
            ("h serve --api-key-file one --port 1", None),
            ("h serve --model one", None),
        ] {
            assert_eq!(
                without_keys(&line(given), &Secret::api_keys(&keys)),
                left.map(line),
                "{given}"
            );
        }
        let token = Secret {
            flag: "--hf-token",
            variable: "HALYARD_HF_TOKEN",
            values: vec!["hf_a".to_owned()],
        };
        let without = |words: &str| without_keys(&line(words), &token);
        assert_eq!(
            without("h serve --hf-token hf_a org/model"),
            Some(line("h serve org/model"))
        );
        assert_eq!(without("h serve --hf_token=hf_a"), Some(line("h serve")));
        assert_eq!(without("h serve --api-key hf_a"), None);
    }
}
