//! Translates vLLM's command lines for our parser: a model without --model, `-tp`, underscores, lists after one flag,
//! dotted JSON, and flags without an effect here. Everything else passes unchanged, and the parser checks it. Reads no
//! environment and starts nothing.

use std::ffi::OsString;

use clap::{ArgAction, Command};
use serde_json::{Map, Value};

use super::vllm_flags::{EARLIER, FLAGS, Flag, State, Takes, find};

/// A line for the parser, and what was accepted on the way.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// For the parser, the program's name first.
    pub args: Vec<OsString>,
    /// Flags that need nothing here, each with the reason.
    pub accepted: Vec<(String, &'static str)>,
}

/// Why a line cannot be meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// An unknown flag.
    #[error("{flag} is no flag of `halyard {command}`{}; `halyard {command} --help` shows them all",
        nearest.as_ref().map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
    Unknown {
        /// As given.
        flag: String,
        /// The command.
        command: String,
        /// The known flag that is most like it.
        nearest: Option<String>,
    },
    /// A flag of vLLM that asks for what does not exist here.
    #[error("{flag}: {reason}")]
    Refused {
        /// With its value.
        flag: String,
        /// Reason or remedy.
        reason: &'static str,
    },
    /// A flag at the end of the line, or before another flag.
    #[error("{flag} needs a value{}", found.as_ref().map(|word| format!(", found {word}")).unwrap_or_default())]
    NoValue {
        /// The flag.
        flag: String,
        /// The next word.
        found: Option<String>,
    },
    /// A flag that takes no value.
    #[error("{flag} takes no value, found `{value}`; write {flag} alone")]
    Value {
        /// The flag.
        flag: String,
        /// The value.
        value: String,
    },
    /// Two models.
    #[error(
        "`{second}` is not expected here: the model is already `{first}`; one server serves one model \
         (--model), and a flag's value follows it at once"
    )]
    SecondModel {
        /// The first.
        first: String,
        /// The other.
        second: String,
    },
    /// The parser's own refusal of one key of an object.
    #[error("{flag}: earlier keys gave it a value that is no object; write one JSON object")]
    Dotted {
        /// With its dots.
        flag: String,
    },
}

/// A command that vLLM has too.
struct Known {
    path: &'static [&'static str],
    /// A word alone is the model.
    takes_model: bool,
    /// It starts an engine from the flags of `vllm serve`.
    starts_engine: bool,
}

const fn engine(path: &'static [&'static str]) -> Known {
    Known {
        path,
        takes_model: false,
        starts_engine: true,
    }
}

const COMMANDS: [Known; 6] = [
    Known {
        path: &["serve"],
        takes_model: true,
        starts_engine: true,
    },
    engine(&["run-batch"]),
    engine(&["bench", "latency"]),
    engine(&["bench", "throughput"]),
    engine(&["bench", "startup"]),
    Known {
        path: &["bench", "serve"],
        takes_model: false,
        starts_engine: false,
    },
];

/// Reads the line of this process. Lines of other commands, and lines that are not UTF-8, stay as they are.
///
/// # Errors
/// [`LineError`].
pub fn read(args: Vec<OsString>, root: &Command) -> Result<Line, LineError> {
    let as_it_is = |args| Line {
        args,
        accepted: Vec::new(),
    };
    let words: Option<Vec<String>> = args.iter().map(|arg| arg.to_str().map(str::to_owned)).collect();
    let Some(words) = words else { return Ok(as_it_is(args)) };
    let begins = |path: &[&str]| words.len() > path.len() && path.iter().zip(&words[1..]).all(|(a, b)| a == b);
    let Some(known) = COMMANDS.iter().find(|known| begins(known.path)) else {
        return Ok(as_it_is(args));
    };
    let mut command = root;
    let path = known.path;
    for name in path {
        match command.find_subcommand(name) {
            Some(found) => command = found,
            None => return Ok(as_it_is(args)),
        }
    }
    let mut reader = Reader {
        command,
        name: path.join(" "),
        takes_model: known.takes_model,
        starts_engine: known.starts_engine,
        words: &words[1 + path.len()..],
        at: 0,
        out: words[..1 + path.len()].iter().map(OsString::from).collect(),
        accepted: Vec::new(),
        model: None,
        objects: Vec::new(),
    };
    reader.read()?;
    Ok(Line {
        args: reader.out,
        accepted: reader.accepted,
    })
}

struct Reader<'a> {
    command: &'a Command,
    name: String,
    takes_model: bool,
    starts_engine: bool,
    words: &'a [String],
    at: usize,
    out: Vec<OsString>,
    accepted: Vec<(String, &'static str)>,
    model: Option<String>,
    /// Flags whose objects were given key by key.
    objects: Vec<(String, Value)>,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<(), LineError> {
        while let Some(word) = self.words.get(self.at) {
            self.at += 1;
            match word.as_str() {
                "--" => {
                    self.out.extend(self.words[self.at - 1..].iter().map(OsString::from));
                    break;
                }
                "--help" | "-h" | "--version" | "-V" => self.push(word.clone()),
                word if is_flag(word) => self.flag(word)?,
                word if self.takes_model => self.take_model(word)?,
                word => self.push(word.to_owned()),
            }
        }
        for (name, value) in std::mem::take(&mut self.objects) {
            self.known(&name, Some(value.to_string()))?;
        }
        if let Some(model) = self.model.take() {
            self.push(format!("--model={model}"));
        }
        Ok(())
    }

    fn push(&mut self, word: String) {
        self.out.push(word.into());
    }

    fn take_model(&mut self, word: &str) -> Result<(), LineError> {
        match &self.model {
            Some(first) if first != word => Err(LineError::SecondModel {
                first: first.clone(),
                second: word.to_owned(),
            }),
            _ => {
                self.model = Some(word.to_owned());
                Ok(())
            }
        }
    }

    fn flag(&mut self, word: &str) -> Result<(), LineError> {
        // -O3, -O=3, -O 3 and, of old, -O alone.
        if let Some(level) = word.strip_prefix("-O") {
            let mut level = level.trim_start_matches('=').to_owned();
            if level.is_empty() && self.words.get(self.at).is_some_and(|next| next.parse::<u8>().is_ok()) {
                level.clone_from(&self.words[self.at]);
                self.at += 1;
            }
            return self.known("--optimization-level", Some(level));
        }
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        let (base, keys) = match name.split_once('.') {
            Some((base, keys)) => (base, Some(keys)),
            None => (name, None),
        };
        let base = match base.strip_prefix("--") {
            Some(long) => format!("--{}", long.replace('_', "-")),
            None => base.to_owned(),
        };
        match keys {
            Some(keys) => self.dotted(name, &base, keys, inline),
            None => self.known(&base, inline),
        }
    }

    /// `--flag.a.b VALUE`: one key of the object that is the flag's value; `--flag.a+ x,y` adds to a list.
    fn dotted(&mut self, name: &str, base: &str, keys: &str, inline: Option<String>) -> Result<(), LineError> {
        if (!self.starts_engine || find(base).is_none()) && self.own(base).is_none() {
            return Err(self.unknown(base));
        }
        let text = match inline {
            Some(text) => text,
            None => self.value(name)?,
        };
        let (keys, value) = match keys.strip_suffix('+') {
            Some(keys) => (keys, text.split(',').map(Value::from).collect()),
            None => (keys, serde_json::from_str(&text).unwrap_or(Value::String(text))),
        };
        let mut at = match self.objects.iter().position(|(known, _)| known == base) {
            Some(index) => &mut self.objects[index].1,
            None => {
                self.objects.push((base.to_owned(), Value::Object(Map::new())));
                let last = self.objects.len() - 1;
                &mut self.objects[last].1
            }
        };
        let refused = || LineError::Dotted { flag: name.to_owned() };
        for key in keys.split('.') {
            let object = at.as_object_mut().ok_or_else(refused)?;
            at = object.entry(key).or_insert_with(|| Value::Object(Map::new()));
        }
        match (at, value) {
            (Value::Array(list), Value::Array(more)) => list.extend(more),
            (at, value) => *at = value,
        }
        Ok(())
    }

    /// A flag by its full name.
    fn known(&mut self, name: &str, inline: Option<String>) -> Result<(), LineError> {
        if !self.starts_engine {
            return self.of_ours(name, inline);
        }
        if name == "--device" {
            return self.device(inline);
        }
        match find(name) {
            Some((flag, on)) => self.of_vllm(flag, on, name, inline),
            None => self.of_ours(name, inline),
        }
    }

    /// The parser's flag by this name, if it has one.
    fn own(&self, name: &str) -> Option<&clap::Arg> {
        let long = name.strip_prefix("--");
        let short = name.strip_prefix('-').filter(|rest| rest.chars().count() == 1);
        self.command.get_arguments().find(|arg| match long {
            Some(long) => arg
                .get_long_and_visible_aliases()
                .is_some_and(|names| names.contains(&long)),
            None => short.is_some_and(|short| arg.get_short() == short.chars().next()),
        })
    }

    fn of_ours(&mut self, name: &str, inline: Option<String>) -> Result<(), LineError> {
        let Some(arg) = self.own(name) else {
            return Err(self.unknown(name));
        };
        let range = arg.get_num_args().unwrap_or_default();
        let (optional, many) = (range.min_values() == 0, range.max_values() > 1);
        let takes = arg.get_action().takes_values();
        match (inline, takes) {
            (Some(value), _) => self.push(format!("{name}={value}")),
            (None, false) => self.push(name.to_owned()),
            (None, true) if optional => match self.words.get(self.at).filter(|next| is_bool(next)) {
                Some(value) => {
                    self.at += 1;
                    self.push(format!("{name}={value}"));
                }
                None => self.push(name.to_owned()),
            },
            (None, true) if many => {
                for value in self.list(name, None)? {
                    self.push(format!("{name}={value}"));
                }
            }
            (None, true) => {
                let value = self.value(name)?;
                self.push(format!("{name}={value}"));
            }
        }
        Ok(())
    }

    fn of_vllm(&mut self, flag: &Flag, on: bool, name: &str, inline: Option<String>) -> Result<(), LineError> {
        let values = match flag.takes {
            // What a switch of ours is given stays with it: --enforce-eager=false.
            Takes::Bool if on && inline.as_deref().is_some_and(is_bool) => inline.into_iter().collect(),
            Takes::Switch | Takes::Bool => match inline {
                Some(value) => {
                    return Err(LineError::Value {
                        flag: name.to_owned(),
                        value,
                    });
                }
                None => vec![on.to_string()],
            },
            Takes::Value => vec![match inline {
                Some(value) => value,
                None => self.value(name)?,
            }],
            Takes::List => self.list(name, inline)?,
            Takes::Optional => match (inline, self.words.get(self.at).filter(|next| !is_flag(next))) {
                (Some(value), _) => vec![value],
                (None, None) => Vec::new(),
                (None, Some(value)) => {
                    self.at += 1;
                    vec![value.clone()]
                }
            },
        };
        let is_switch = matches!(flag.takes, Takes::Switch | Takes::Bool);
        let shown = || match is_switch {
            true => name.to_owned(),
            false => format!("{name} {}", values.join(" ")),
        };
        match flag.state {
            State::Same => self.same(flag, &values),
            State::Inverse(ours) => {
                let off = values.first().is_some_and(|value| value == "false");
                self.push(format!("{ours}={off}"));
                Ok(())
            }
            State::Accepted(why) => self.accept(name, why),
            State::Only(only, why, _) if only.contains(&values.join(" ").to_lowercase().as_str()) => {
                self.accept(name, why)
            }
            State::Refused(_) if flag.takes == Takes::Bool && values.first().is_some_and(|value| value == "false") => {
                self.accept(name, "it is off")
            }
            State::Only(_, _, reason) | State::Refused(reason) => Err(LineError::Refused { flag: shown(), reason }),
        }
    }

    fn accept(&mut self, name: &str, why: &'static str) -> Result<(), LineError> {
        if !self.accepted.iter().any(|(known, _)| known == name) {
            self.accepted.push((name.to_owned(), why));
        }
        Ok(())
    }

    fn same(&mut self, flag: &Flag, values: &[String]) -> Result<(), LineError> {
        let name = flag.name;
        let first = values.first().map(String::as_str).unwrap_or_default();
        match (name, first.to_ascii_lowercase().as_str()) {
            ("--model", _) if self.takes_model => return self.take_model(first),
            // Names of vLLM's own kernels.
            ("--attention-backend", _) if is_kernel_name(first) => {
                return self.accept(name, "the platform chooses its kernels by itself");
            }
            ("--quantization", "gguf" | "none") => return self.accept(name, "weights are read as they are stored"),
            ("--log-level", level) => {
                let level = match level {
                    "critical" => "error",
                    "warning" => "warn",
                    "notset" => "trace",
                    _ => first,
                };
                self.push(format!("{name}={level}"));
                return Ok(());
            }
            _ => {}
        }
        let appends = self
            .own(name)
            .is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append));
        match flag.takes {
            Takes::Switch => self.push(name.to_owned()),
            Takes::List if !appends => self.push(format!("{name}={}", values.join(","))),
            Takes::Optional if values.is_empty() => self.push(name.to_owned()),
            _ => {
                for value in values {
                    self.push(format!("{name}={value}"));
                }
            }
        }
        Ok(())
    }

    /// `--device INDEX`, or vLLM's older `--device cpu` or `--device auto`, which names a platform.
    fn device(&mut self, inline: Option<String>) -> Result<(), LineError> {
        let value = match inline {
            Some(value) => value,
            None => self.value("--device")?,
        };
        match value.to_ascii_lowercase().as_str() {
            "auto" => return self.accept("--device", "the best platform that has a device is chosen"),
            number if number.bytes().all(|byte| byte.is_ascii_digit()) => self.push(format!("--device={value}")),
            platform => self.push(format!("--platform={platform}")),
        }
        Ok(())
    }

    fn value(&mut self, name: &str) -> Result<String, LineError> {
        let next = self.words.get(self.at);
        match next.filter(|word| !is_flag(word)) {
            Some(value) => {
                self.at += 1;
                Ok(value.clone())
            }
            None => Err(LineError::NoValue {
                flag: name.to_owned(),
                found: next.cloned(),
            }),
        }
    }

    /// One value or more, up to the next flag.
    fn list(&mut self, name: &str, inline: Option<String>) -> Result<Vec<String>, LineError> {
        if let Some(value) = inline {
            return Ok(vec![value]);
        }
        let mut values = vec![self.value(name)?];
        while let Some(value) = self.words.get(self.at).filter(|word| !is_flag(word)) {
            values.push(value.clone());
            self.at += 1;
        }
        Ok(values)
    }

    fn unknown(&self, name: &str) -> LineError {
        let ours = self.command.get_arguments().filter_map(|arg| arg.get_long());
        let theirs = FLAGS
            .iter()
            .chain(EARLIER)
            .filter(|flag| self.starts_engine && flag.works());
        let all = ours
            .map(|long| format!("--{long}"))
            .chain(theirs.map(|flag| flag.name.to_owned()));
        let rated = all.map(|known| (strsim::jaro_winkler(name, &known), known));
        let best = rated.max_by(|a, b| a.0.total_cmp(&b.0));
        LineError::Unknown {
            flag: name.to_owned(),
            command: self.name.clone(),
            nearest: best.filter(|(likeness, _)| *likeness > 0.85).map(|(_, known)| known),
        }
    }
}

/// Begins with a dash and is no number: `-1` is a value.
fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word.parse::<f64>().is_err()
}

fn is_bool(word: &str) -> bool {
    word == "true" || word == "false"
}

/// FLASH_ATTN, TRITON_MLA, FLASHINFER: nothing here is named in capitals.
fn is_kernel_name(word: &str) -> bool {
    !word.is_empty()
        && word
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
#[path = "command_line_tests.rs"]
mod tests;
