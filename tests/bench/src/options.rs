//! The command line: which benches, of which binary, with which model.

use std::path::PathBuf;

use crate::error::BenchError;

/// A bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Nanoseconds an encoded op, host to null plugin.
    Encode,
    /// Microseconds to schedule and update a step.
    Schedule,
    /// Microseconds of host time for a step of the whole engine.
    Step,
    /// Milliseconds of `halyard --version`.
    Version,
    /// Seconds from start to ready.
    Startup,
    /// CPU seconds of an idle server.
    Idle,
}

const ALL: [(&str, Bench); 6] = [
    ("encode", Bench::Encode),
    ("schedule", Bench::Schedule),
    ("step", Bench::Step),
    ("version", Bench::Version),
    ("startup", Bench::Startup),
    ("idle", Bench::Idle),
];

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What to measure, in order.
    pub benches: Vec<Bench>,
    /// The server; `None`: `halyard` beside this program.
    pub binary: Option<PathBuf>,
    /// `--model` for the server; `None`: its demo model.
    pub model: Option<String>,
    /// Exit with status 1 when a budget is exceeded.
    pub check: bool,
}

impl Options {
    /// Reads arguments. Without a bench: all.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, BenchError> {
        let mut options = Options {
            benches: Vec::new(),
            binary: None,
            model: None,
            check: false,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let found = format!("{argument} has no value");
                arguments.next().ok_or(BenchError::Usage { found })
            };
            match argument.as_str() {
                "--check" => options.check = true,
                "--binary" => options.binary = Some(value()?.into()),
                "--model" => options.model = Some(value()?),
                "all" => options.benches.extend(ALL.map(|(_, bench)| bench)),
                name => match ALL.iter().find(|(known, _)| *known == name) {
                    Some((_, bench)) => options.benches.push(*bench),
                    None => {
                        let found = format!("unknown argument `{name}`");
                        return Err(BenchError::Usage { found });
                    }
                },
            }
        }
        if options.benches.is_empty() {
            options.benches.extend(ALL.map(|(_, bench)| bench));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, BenchError> {
        Options::parse(line.split_whitespace().map(str::to_string))
    }

    #[test]
    fn nothing_asked_means_all() {
        assert_eq!(parse("").expect("valid").benches.len(), ALL.len());
        assert_eq!(parse("all").expect("valid"), parse("").expect("valid"));
    }

    #[test]
    fn benches_and_options_are_read() {
        let options = parse("idle encode --binary b --check --model org/m").expect("valid");
        assert_eq!(options.benches, [Bench::Idle, Bench::Encode]);
        assert_eq!(
            (options.binary, options.model),
            (Some("b".into()), Some("org/m".into()))
        );
        assert!(options.check);
    }

    #[test]
    fn what_is_unknown_or_cut_is_named() {
        for (line, named) in [
            ("encod", "`encod`"),
            ("--binary", "--binary"),
            ("idle --modl x", "`--modl`"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(named) && error.contains("usage:"), "{error}");
        }
    }
}
