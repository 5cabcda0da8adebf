//! `halyard plugins test FILE.so`: sends a stat logger the records that a server would send, and reports the outcome
//! and time of each call. The logger runs in a process of its own unless asked otherwise, so a crash or a hang is one
//! line of the report.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use halyard_platform_api::hooks::{Batch, StatLogger, StatRecord};
use halyard_plugin_host::isolation::record_from_json;
use halyard_plugin_host::{Candidate, Catalog, IsolatedStatLogger, Kind, SearchPath};
use serde::Serialize;
use serde_json::json;

use super::OutputArgs;
use crate::cli::isolation::HookIsolation;
use crate::error::ServerError;
use crate::isolation::{self, IsolationMode};

/// Records of a real run, as the json-lines logger wrote them; tests/e2e/tests/hook_tools.rs makes and checks it.
const RECORDING: &str = include_str!("recording.jsonl");
/// Most records of a batch here; a server makes larger ones under load.
const BATCH_RECORDS: usize = 32;

/// Flags of `halyard plugins test`.
#[derive(Args, Debug)]
pub struct TestArgs {
    /// The library
    file: PathBuf,
    #[command(flatten)]
    test: HowArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Test")]
struct HowArgs {
    /// Which stat logger of the library, where it has several
    #[arg(long, value_name = "NAME", env = "HALYARD_TEST_NAME")]
    name: Option<String>,
    /// Its configuration
    #[arg(long, value_name = "JSON", env = "HALYARD_TEST_CONFIG", default_value = "{}")]
    config: String,
    /// Records to give it, as the json-lines stat logger writes them; without it a recording that comes with Halyard
    #[arg(long, value_name = "FILE", env = "HALYARD_TEST_RECORDS")]
    records: Option<PathBuf>,
    /// Milliseconds for each call
    #[arg(long, value_name = "MS", env = "HALYARD_TEST_DEADLINE_MS", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=600_000))]
    deadline_ms: u64,
    /// Where it runs: process (of its own), or none (in this one, where a debugger finds it)
    #[arg(long, value_name = "MODE", env = "HALYARD_TEST_ISOLATION", default_value = "process",
        value_parser = parse_mode)]
    isolation: IsolationMode,
}

fn parse_mode(text: &str) -> Result<IsolationMode, String> {
    text.parse::<HookIsolation>().and_then(|choice| match choice.hook {
        None => Ok(choice.mode),
        Some(_) => Err("write `process` or `none`, without a name".to_owned()),
    })
}

/// One call and what came of it.
#[derive(Debug, Serialize)]
struct CallReport {
    call: &'static str,
    /// Of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<usize>,
    ok: bool,
    /// Time in the logger.
    time_us: u64,
    /// Its answer, or the reason of its failure.
    detail: String,
}

/// The whole test.
#[derive(Debug, Serialize)]
struct TestReport {
    name: String,
    version: String,
    path: PathBuf,
    calls: Vec<CallReport>,
    passed: usize,
    failed: usize,
}

/// Runs the test.
///
/// # Errors
/// A library that is no stat logger, records that cannot be read; [`ServerError::TestFailed`] when a call failed.
pub fn run(args: &TestArgs) -> Result<(), ServerError> {
    let records = read_records(args.test.records.as_ref())?;
    let catalog = Catalog::discover(&SearchPath {
        plugins: vec![args.file.clone()],
        ..SearchPath::default()
    });
    if let Some(failure) = catalog.explicit_failure() {
        return Err(ServerError::Plugin(failure.clone().into()));
    }
    let candidate = choose(&catalog, args.test.name.as_deref())?;
    let mut calls = Calls {
        deadline: Duration::from_millis(args.test.deadline_ms),
        reports: Vec::new(),
    };
    let logger = start(&catalog, candidate, &args.test, &mut calls)?;
    if let Some(logger) = logger {
        exercise(logger, &records, &mut calls);
    }
    let failed = calls.reports.iter().filter(|call| !call.ok).count();
    let report = TestReport {
        name: candidate.manifest.name.clone(),
        version: candidate.manifest.version.clone(),
        path: candidate.path.clone(),
        passed: calls.reports.len() - failed,
        failed,
        calls: calls.reports,
    };
    super::print_as(args.output, &report, print)?;
    match failed {
        0 => Ok(()),
        _ => Err(ServerError::TestFailed(format!(
            "{failed} of {} calls of {} failed; a server would count them and quarantine the logger",
            report.passed + failed,
            report.name
        ))),
    }
}

/// The stat logger that is meant: the only one, or the one named.
fn choose<'a>(catalog: &'a Catalog, name: Option<&str>) -> Result<&'a Candidate, ServerError> {
    if let Some(name) = name {
        return Ok(catalog.find(Kind::StatLogger, name)?);
    }
    let all: Vec<&Candidate> = catalog.usable(Kind::StatLogger).collect();
    match all[..] {
        [one] => Ok(one),
        [] => Err(ServerError::Option {
            option: "FILE",
            message: "the library has no stat logger; `halyard plugins inspect` shows what it has".to_owned(),
        }),
        _ => {
            let names: Vec<&str> = all.iter().map(|candidate| candidate.manifest.name.as_str()).collect();
            Err(ServerError::Option {
                option: "--name",
                message: format!("the library has several stat loggers: {}; name one", names.join(", ")),
            })
        }
    }
}

/// The records of a file, or those that come with Halyard.
fn read_records(file: Option<&PathBuf>) -> Result<Vec<StatRecord>, ServerError> {
    let text = match file {
        None => RECORDING.to_owned(),
        Some(path) => std::fs::read_to_string(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?,
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(index, line): (usize, &str)| {
        let value = serde_json::from_str(line).map_err(|error| wrong(format!("line {}: {error}", index + 1)))?;
        record_from_json(&value).map_err(|error| wrong(format!("line {}: {}", index + 1, error.message)))
    };
    let records: Vec<StatRecord> = lines.map(parse).collect::<Result<_, _>>()?;
    if records.is_empty() {
        return Err(wrong("there is no record in it".to_owned()));
    }
    Ok(records)
}

fn wrong(message: String) -> ServerError {
    ServerError::Option {
        option: "--records",
        message,
    }
}

/// A logger under test.
enum Tested {
    Here(Box<dyn StatLogger>),
    Isolated(Box<IsolatedStatLogger>),
}

impl Tested {
    fn logger(&mut self) -> &mut dyn StatLogger {
        match self {
            Tested::Here(logger) => &mut **logger,
            Tested::Isolated(logger) => &mut **logger,
        }
    }

    /// Time in the logger itself, of a call that took `outside` as seen from here.
    fn time(&self, outside: Duration, ok: bool) -> Duration {
        match self {
            // A lost process did not say how long it took.
            Tested::Isolated(logger) if ok => logger.last_call(),
            _ => outside,
        }
    }
}

struct Calls {
    deadline: Duration,
    reports: Vec<CallReport>,
}

impl Calls {
    fn note(&mut self, call: &'static str, records: Option<usize>, time: Duration, outcome: Result<String, String>) {
        let ok = outcome.is_ok();
        self.reports.push(CallReport {
            call,
            records,
            ok,
            time_us: u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
            detail: outcome.unwrap_or_else(|error| error),
        });
    }

    /// Makes a call and notes it. One in this process that is late is noted as failed, as a server would.
    fn make(
        &mut self,
        call: &'static str,
        records: Option<usize>,
        tested: &mut Tested,
        make: impl FnOnce(&mut dyn StatLogger) -> halyard_platform_api::Result<String>,
    ) {
        let start = Instant::now();
        let outcome = make(tested.logger());
        let outside = start.elapsed();
        let time = tested.time(outside, outcome.is_ok());
        let outcome = match outcome {
            Ok(_) if time > self.deadline => {
                Err(format!("took longer than the {} ms it had", self.deadline.as_millis()))
            }
            outcome => outcome.map_err(|error| error.to_string()),
        };
        self.note(call, records, time, outcome);
    }
}

/// Loads the library and makes a logger; none when that failed, which is noted.
fn start(
    catalog: &Catalog,
    candidate: &Candidate,
    how: &HowArgs,
    calls: &mut Calls,
) -> Result<Option<Tested>, ServerError> {
    let begin = Instant::now();
    let made = match how.isolation {
        IsolationMode::None => {
            let factory = catalog.load(candidate)?.stat_logger_factory()?;
            factory.create(&how.config).map(Tested::Here)
        }
        IsolationMode::Process => {
            let factory = catalog.isolate(candidate, isolation::options())?;
            factory
                .start(&how.config)
                .map(|logger| Tested::Isolated(Box::new(logger)))
        }
    };
    let time = match &made {
        Ok(tested) => tested.time(begin.elapsed(), true),
        Err(_) => begin.elapsed(),
    };
    let outcome = made.as_ref().map(|_| String::new()).map_err(ToString::to_string);
    calls.note("create", None, time, outcome);
    Ok(made.ok())
}

/// The calls that a server makes to a logger, from start to end.
fn exercise(mut tested: Tested, records: &[StatRecord], calls: &mut Calls) {
    let deadline = calls.deadline;
    // Every kind once with nothing in it: a logger must not trip over empty texts and zeros.
    let kinds = StatRecord::KINDS.iter();
    let empty: Vec<StatRecord> = kinds
        .filter_map(|(name, _)| record_from_json(&json!({"kind": name})).ok())
        .collect();
    for batch in records.chunks(BATCH_RECORDS).chain([&empty[..], &[]]) {
        calls.make("log_batch", Some(batch.len()), &mut tested, |logger| {
            let batch = Batch {
                records: batch,
                deadline,
                num_dropped: 0,
            };
            logger.log_batch(&batch).map(|()| String::new())
        });
    }
    calls.make("flush", None, &mut tested, |logger| {
        logger.flush(deadline).map(|()| String::new())
    });
    calls.make("expose", None, &mut tested, |logger| {
        Ok(match logger.expose()? {
            Some(text) => format!("{} bytes for /metrics", text.len()),
            None => "nothing for /metrics".to_owned(),
        })
    });
    let begin = Instant::now();
    drop(tested);
    let ended = begin.elapsed();
    let outcome = if ended > deadline.max(Duration::from_secs(5)) {
        Err("did not let go in time".to_owned())
    } else {
        Ok(String::new())
    };
    calls.note("drop", None, ended, outcome);
}

fn print(report: &TestReport) {
    say!("{} {} from {}", report.name, report.version, report.path.display());
    for call in &report.calls {
        let records = call
            .records
            .map_or_else(String::new, |records| format!("{records} records"));
        let ms = call.time_us as f64 / 1e3;
        let outcome = if call.ok { "ok    " } else { "FAILED" };
        say!(
            "{:<10}{records:>12}  {outcome} {ms:>10.3} ms  {}",
            call.call,
            call.detail
        );
    }
    say!("{} passed, {} failed", report.passed, report.failed);
}
