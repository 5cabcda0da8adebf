//! The flags of `vllm serve`, each with its state here: the same, accepted without an effect, or refused with the
//! reason. Names and states only; `command_line` reads the lines.

mod earlier;
mod table;

pub use earlier::EARLIER;
pub use table::FLAGS;

/// The kind of value that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Switch,
    /// Nothing, and `--no-x` is its opposite; of `--enable-x` also `--disable-x`, and the other way round.
    Bool,
    /// One value.
    Value,
    /// One value or more.
    List,
    /// One value or none.
    Optional,
}

/// The state of a flag here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A flag of the same name and meaning.
    Same,
    /// A switch of this name and the opposite meaning.
    Inverse(&'static str),
    /// Nothing is needed, whatever its value; why.
    Accepted(&'static str),
    /// Nothing is needed for these values; why; for any other the remedy.
    Only(&'static [&'static str], &'static str, &'static str),
    /// What it asks for does not exist here; the reason or the remedy. Its opposite, of a [`Takes::Bool`], is what is
    /// here anyway.
    Refused(&'static str),
}

/// A flag of vLLM.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// With its dashes.
    pub name: &'static str,
    /// Other spellings, opposites not counted.
    pub aliases: &'static [&'static str],
    /// Its kind of value.
    pub takes: Takes,
    /// Its state here.
    pub state: State,
}

const fn flag(name: &'static str, aliases: &'static [&'static str], takes: Takes, state: State) -> Flag {
    Flag {
        name,
        aliases,
        takes,
        state,
    }
}

impl Flag {
    /// Whether `asked` is this flag: `Some(true)`; its opposite: `Some(false)`.
    pub fn reads(&self, asked: &str) -> Option<bool> {
        if asked == self.name || self.aliases.contains(&asked) {
            return Some(true);
        }
        let opposites = (self.takes == Takes::Bool).then(|| self.opposites());
        opposites?.iter().any(|name| name == asked).then_some(false)
    }

    /// Names that turn a [`Takes::Bool`] off.
    pub fn opposites(&self) -> Vec<String> {
        let mut names = Vec::new();
        for name in std::iter::once(&self.name).chain(self.aliases) {
            let Some(word) = name.strip_prefix("--") else { continue };
            names.push(format!("--no-{word}"));
            names.extend(word.strip_prefix("enable-").map(|rest| format!("--disable-{rest}")));
            names.extend(word.strip_prefix("disable-").map(|rest| format!("--enable-{rest}")));
        }
        names
    }

    /// Whether a line with this flag can start here.
    pub fn works(&self) -> bool {
        !matches!(self.state, State::Refused(_))
    }
}

/// The flag that `asked` names, and whether it is meant or its opposite.
pub fn find(asked: &str) -> Option<(&'static Flag, bool)> {
    let mut all = FLAGS.iter().chain(EARLIER);
    all.find_map(|flag| flag.reads(asked).map(|on| (flag, on)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// What server/tests/data/vllm-flags.py printed for vLLM's wheel.
    const LIST: &str = include_str!("../../tests/data/vllm-0.33-flags.txt");

    fn list() -> BTreeMap<&'static str, (&'static str, Vec<&'static str>)> {
        let lines = LIST.lines().filter(|line| !line.starts_with('#'));
        let read = |line: &'static str| {
            let mut words = line.split(' ');
            let (kind, name) = (words.next().expect("a kind"), words.next().expect("a name"));
            (name, (kind, words.collect()))
        };
        lines.map(read).collect()
    }

    #[test]
    fn every_flag_of_vllm_has_a_state_and_no_other_has_one() {
        let list = list();
        assert!(list.len() > 300, "{} flags", list.len());
        let names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
        assert!(names.is_sorted(), "the table is in the order of the alphabet");
        let listed: Vec<&str> = list.keys().copied().collect();
        let missing: Vec<&&str> = listed.iter().filter(|name| !names.contains(name)).collect();
        let unknown: Vec<&&str> = names.iter().filter(|name| !listed.contains(name)).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "missing {missing:?}, unknown {unknown:?}"
        );
        assert_eq!(names.len(), listed.len(), "a flag stands twice");
        for flag in FLAGS {
            let (kind, others) = &list[flag.name];
            assert_eq!(*kind, format!("{:?}", flag.takes).to_lowercase(), "{}", flag.name);
            let mut known: Vec<String> = flag.aliases.iter().map(|&alias| alias.to_owned()).collect();
            if flag.takes == Takes::Bool {
                known.extend(flag.opposites());
            }
            for other in others {
                assert!(known.iter().any(|name| name == other), "{} is also {other}", flag.name);
            }
        }
        let earlier = EARLIER.iter().map(|flag| flag.name);
        assert!(
            earlier.is_sorted_by(|a, b| a < b),
            "earlier flags are in order, none twice"
        );
        for flag in EARLIER {
            assert!(!listed.contains(&flag.name), "{} is in 0.33", flag.name);
        }
    }

    /// docs/vllm-flags.md, which is written by this test.
    fn page() -> String {
        let mut page = String::from(PREFACE);
        for (title, flags) in [("vLLM 0.33", FLAGS), ("Earlier versions", EARLIER)] {
            page.push_str(&format!("\n## {title}\n\n| flag | here |\n|---|---|\n"));
            for flag in flags {
                let names: Vec<String> = std::iter::once(flag.name)
                    .chain(flag.aliases.iter().copied())
                    .map(|name| format!("`{name}`"))
                    .collect();
                let state = match flag.state {
                    State::Same => "the same".to_owned(),
                    State::Inverse(ours) => format!("on unless `{ours}`"),
                    State::Accepted(why) => format!("accepted: {why}"),
                    State::Only(only, why, other) => {
                        format!("accepted with `{}`: {why}; else refused: {other}", only.join("`, `"))
                    }
                    State::Refused(reason) => format!("refused: {reason}"),
                };
                page.push_str(&format!("| {} | {} |\n", names.join(", "), state.replace('|', "\\|")));
            }
        }
        page
    }

    const PREFACE: &str = "# vLLM's flags here

Written by a test from `server/src/cli/vllm_flags/` (`HALYARD_BLESS=1 cargo test -p halyard --lib vllm_flags`).
`halyard serve --help` says what \"the same\" means in detail. Why: [decision 0044](decisions/0044-lines-of-vllm.md).
A flag that turns off something that is not there is accepted.
";

    #[test]
    fn the_page_says_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/vllm-flags.md");
        if std::env::var_os("HALYARD_BLESS").is_some() {
            std::fs::write(path, page()).expect("written");
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == page(),
            "docs/vllm-flags.md is not what the table says; write it anew: HALYARD_BLESS=1 cargo test -p halyard \
             --lib vllm_flags"
        );
    }

    #[test]
    fn opposites_are_found() {
        for (asked, name, on) in [
            ("--enable-prefix-caching", "--enable-prefix-caching", true),
            ("--no-enable-prefix-caching", "--enable-prefix-caching", false),
            ("--disable-log-requests", "--enable-log-requests", false),
            ("--enable-uvicorn-access-log", "--disable-uvicorn-access-log", false),
            ("-tp", "--tensor-parallel-size", true),
            ("--swap-space", "--swap-space", true),
        ] {
            let (flag, found) = find(asked).expect(asked);
            assert_eq!((flag.name, found), (name, on), "{asked}");
        }
        assert!(find("--no-such-flag").is_none());
    }
}
