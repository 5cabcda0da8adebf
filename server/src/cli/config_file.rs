//! `--config FILE.yaml`: options of `halyard serve` in a file. Keys are the long flags; they become words of the
//! command line, which stand before the others, unless the command line or a variable sets the same flag (decision
//! 0078).

mod shown;
mod yaml;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};

use self::yaml::{Entry, Node};
use super::access_args::VLLM_KEY_VARIABLE;
use super::command_line::{self, Line};
use super::vllm_flags::{Takes, find};

pub use shown::print;

/// The variable of `--config`.
const VARIABLE: &str = "HALYARD_CONFIG";
/// Bytes of a file.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--config {}{}{}: {reason}", path.display(),
    line.map(|line| format!(", line {line}")).unwrap_or_default(),
    key.as_ref().map(|key| format!(", key `{key}`")).unwrap_or_default())]
pub struct ConfigError {
    path: PathBuf,
    line: Option<usize>,
    key: Option<String>,
    reason: String,
}

/// The file that was read, and the place of each argument that it sets.
#[derive(Debug, Default)]
pub struct Source {
    path: PathBuf,
    /// By the argument's id.
    lines: BTreeMap<String, usize>,
}

/// One key of the file as words of the command line.
struct Setting {
    key: String,
    line: usize,
    /// The argument's id; none where the flag is accepted without an effect.
    id: Option<String>,
    words: Vec<OsString>,
    accepted: Vec<(String, &'static str)>,
}

/// Puts the words of the file that `line` or HALYARD_CONFIG names into `line`. Other commands, and lines that ask for
/// help, stay as they are.
///
/// # Errors
/// [`ConfigError`].
pub fn apply(
    mut line: Line,
    root: &Command,
    variable: impl Fn(&OsStr) -> Option<OsString>,
) -> Result<(Line, Source), ConfigError> {
    let words: Vec<&str> = line.args.iter().skip(1).map_while(|word| word.to_str()).collect();
    let Some(serve) = root
        .find_subcommand("serve")
        .filter(|_| words.first() == Some(&"serve"))
    else {
        return Ok((line, Source::default()));
    };
    let words: Vec<&str> = words[1..].iter().copied().take_while(|word| *word != "--").collect();
    if words.iter().any(|word| ["--help", "-h"].contains(word)) {
        return Ok((line, Source::default()));
    }
    let named = words.iter().rev().find_map(|word| word.strip_prefix("--config="));
    let from_variable = || variable(OsStr::new(VARIABLE)).filter(|path| !path.is_empty());
    let Some(path) = named.map(OsString::from).or_else(from_variable).map(PathBuf::from) else {
        return Ok((line, Source::default()));
    };
    let settings = read(&path, root, serve)?;
    let given: Vec<&str> = words.iter().filter_map(|word| argument(serve, word)).map(id).collect();
    let mut source = Source {
        path,
        lines: BTreeMap::new(),
    };
    let mut at = 2;
    for setting in settings {
        for accepted in setting.accepted {
            if !line.accepted.iter().any(|(name, _)| *name == accepted.0) {
                line.accepted.push(accepted);
            }
        }
        let Some(arg) = setting
            .id
            .and_then(|id| serve.get_arguments().find(|arg| arg.get_id() == id.as_str()))
        else {
            continue;
        };
        if given.contains(&id(arg)) || variables(arg).any(|name| variable(name).is_some()) {
            continue;
        }
        source.lines.insert(id(arg).to_owned(), setting.line);
        let num_words = setting.words.len();
        line.args.splice(at..at, setting.words);
        at += num_words;
    }
    Ok((line, source))
}

fn id(arg: &Arg) -> &str {
    arg.get_id().as_str()
}

/// The variables that set an argument.
fn variables(arg: &Arg) -> impl Iterator<Item = &OsStr> {
    let vllm = (arg.get_long() == Some("api-key")).then(|| OsStr::new(VLLM_KEY_VARIABLE));
    arg.get_env().into_iter().chain(vllm)
}

/// The argument of a word such as `--port=1`.
fn argument<'a>(serve: &'a Command, word: &str) -> Option<&'a Arg> {
    let long = word.strip_prefix("--")?;
    let long = long.split_once('=').map_or(long, |(name, _)| name);
    serve.get_arguments().find(|arg| arg.get_long() == Some(long))
}

/// The settings of a file, each checked by itself.
fn read(path: &Path, root: &Command, serve: &Command) -> Result<Vec<Setting>, ConfigError> {
    let error = |line: Option<usize>, key: Option<&str>, reason: String| ConfigError {
        path: path.to_owned(),
        line,
        key: key.map(str::to_owned),
        reason,
    };
    let text = read_text(path).map_err(|reason| error(None, None, reason))?;
    let entries = yaml::read(&text).map_err(|refused| error(Some(refused.line), None, refused.reason))?;
    // Variables are checked when the whole line is: here a wrong one would be taken for the file's fault.
    let mut alone = serve.clone().no_binary_name(true);
    alone = alone.mut_args(|arg| arg.env(Resettable::Reset));
    let mut settings: Vec<Setting> = Vec::with_capacity(entries.len());
    for entry in &entries {
        let error = |reason: String| error(Some(entry.line), Some(&entry.key), reason);
        let setting = setting(entry, root, serve).map_err(error)?;
        if let Some(first) = settings.iter().find(|known| match &setting.id {
            Some(id) => known.id.as_ref() == Some(id),
            None => known.key == setting.key,
        }) {
            let reason = format!(
                "the same was set in line {} by `{}`; keep one of them",
                first.line, first.key
            );
            return Err(error(reason));
        }
        match alone.try_get_matches_from_mut(&setting.words) {
            Ok(_) => {}
            // Another flag that this one needs may be anywhere.
            Err(refused) if refused.kind() == ErrorKind::MissingRequiredArgument => {}
            Err(refused) => return Err(error(first_lines(&refused.render().to_string()))),
        }
        settings.push(setting);
    }
    Ok(settings)
}

fn read_text(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!(
            "it is larger than {MAX_BYTES} bytes; a file of options is small"
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        format!("line {} is not UTF-8; is it a YAML file?", line + 1)
    })
}

/// What the parser says, without its advice.
fn first_lines(text: &str) -> String {
    let text = text.trim_start_matches("error: ");
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

fn setting(entry: &Entry, root: &Command, serve: &Command) -> Result<Setting, String> {
    let name = format!("--{}", entry.key.trim_start_matches('-').replace('_', "-"));
    if name == "--config" {
        return Err("a file cannot name another one; put all options into one".to_owned());
    }
    if ["--help", "--version", "--print-config"].contains(&name.as_str()) {
        return Err(format!("{name} belongs on the command line"));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.+".contains(&byte);
    if name.len() == 2 || !name.bytes().all(is_name) {
        return Err("it is no flag; keys are the long flags, such as max-model-len".to_owned());
    }
    let words = words(&name, &entry.node, serve)?;
    let line = ["halyard", "serve"].map(str::to_owned).into_iter().chain(words);
    let read = command_line::read(line.map(OsString::from).collect(), root).map_err(|error| error.to_string())?;
    let words: Vec<OsString> = read.args.into_iter().skip(2).collect();
    let first = words.first().and_then(|word| word.to_str());
    // A switch that is off has no word, and is set nevertheless.
    let first = first.or_else(|| read.accepted.is_empty().then_some(&*name));
    Ok(Setting {
        key: entry.key.clone(),
        line: entry.line,
        id: first
            .and_then(|word| argument(serve, word))
            .map(|arg| id(arg).to_owned()),
        words,
        accepted: read.accepted,
    })
}

/// The words of one key, as an operator would write them.
fn words(name: &str, node: &Node, serve: &Command) -> Result<Vec<String>, String> {
    if node.is_null() {
        return Err("it has no value; write one, or leave the key out".to_owned());
    }
    let base = name.split('.').next().unwrap_or(name);
    let (vllm, own) = (find(base), argument(serve, base));
    let is_whole = base == name;
    let is_switch = match (&vllm, own) {
        (Some((flag, _)), _) => matches!(flag.takes, Takes::Switch | Takes::Bool),
        (None, Some(arg)) => {
            !arg.get_action().takes_values() || arg.get_num_args().is_some_and(|n| n.min_values() == 0)
        }
        (None, None) => false,
    };
    if is_whole && is_switch {
        let on = node.bool().ok_or_else(|| {
            let found = match node {
                Node::Plain(text) | Node::Text(text) => format!("`{text}`"),
                node => node.kind().to_owned(),
            };
            format!("{name} is true or false, found {found}")
        })?;
        return Ok(switch(name, on, vllm, own));
    }
    let value = match node {
        Node::Plain(text) | Node::Text(text) => return Ok(vec![format!("{name}={text}")]),
        Node::List(items) if is_whole => {
            let texts = items.iter().map(|item| match item {
                Node::Plain(text) | Node::Text(text) => text.clone(),
                item => item.json().to_string(),
            });
            if own.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append)) {
                return Ok(texts.map(|text| format!("{name}={text}")).collect());
            }
            if vllm.is_some_and(|(flag, _)| flag.takes == Takes::List) {
                return Ok(vec![format!("{name}={}", texts.collect::<Vec<_>>().join(","))]);
            }
            node.json()
        }
        node => node.json(),
    };
    Ok(vec![format!("{name}={value}")])
}

fn switch(name: &str, on: bool, vllm: Option<(&super::vllm_flags::Flag, bool)>, own: Option<&Arg>) -> Vec<String> {
    match (vllm, own) {
        (Some((_, _)), _) if on => vec![name.to_owned()],
        (Some((flag, means_on)), _) if flag.takes == Takes::Bool => match means_on {
            true => flag.opposites().into_iter().take(1).collect(),
            false => vec![flag.name.to_owned()],
        },
        (Some(_), _) => Vec::new(),
        (None, Some(arg)) if arg.get_action().takes_values() => vec![format!("{name}={on}")],
        (None, _) => on.then(|| name.to_owned()).into_iter().collect(),
    }
}

#[cfg(test)]
#[path = "config_file/tests.rs"]
mod tests;
