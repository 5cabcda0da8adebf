//! The parts of the suite, each in a process of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use halyard_conformance::{Options, Report, Row, check_collectives, run_part};

use crate::command_line::{COLLECTIVES, CheckArgs, PART_NAMES, PartArgs};
use crate::loading;

/// The parts that are asked for.
pub fn names(args: &CheckArgs) -> Vec<&'static str> {
    let wanted = |name: &&str| args.parts.is_empty() || args.parts.iter().any(|part| part == name);
    PART_NAMES.into_iter().filter(wanted).collect()
}

/// How often the parent looks whether a part has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a part in a child; what ends the child without rows is a row itself.
pub fn run_in_child(args: &CheckArgs, part: &str) -> Result<Report, String> {
    let folder = Folder::new(part)?;
    let (rows, progress) = (folder.0.join("rows.json"), folder.0.join("progress"));
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.arg("part").arg(&args.library.file).args(["--name", part]);
    command.arg("--rows").arg(&rows).arg("--progress").arg(&progress);
    command
        .arg(format!("--device={}", args.library.device))
        .arg(format!("--seed={}", args.seed));
    command.args(
        args.library
            .options
            .iter()
            .map(|option| format!("--platform-option={option}")),
    );
    command.args(args.ranks.map(|ranks| format!("--ranks={ranks}")));
    if let Some(oracle) = &args.oracle {
        command.arg("--oracle").arg(oracle);
    }
    // What a library prints must not end up in the report.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().map_err(|e| format!("{part}: {e}"))?;
    let end = Instant::now() + Duration::from_secs(args.deadline);
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break Some(status),
            None if Instant::now() >= end => {
                child.kill().and_then(|()| child.wait()).map_err(|e| e.to_string())?;
                break None;
            }
            None => std::thread::sleep(LOOK),
        }
    };
    if status.is_some_and(|status| status.success()) {
        let text = std::fs::read(&rows).map_err(|e| format!("{part}: its rows: {e}"))?;
        let rows = serde_json::from_slice(&text).map_err(|e| format!("{part}: its rows: {e}"))?;
        return Ok(Report {
            rows,
            ..Report::default()
        });
    }
    let place = std::fs::read_to_string(&progress).unwrap_or_default();
    let how = match status {
        Some(status) => format!("its process ended with {status}"),
        None => format!("no end within {} s", args.deadline),
    };
    Ok(Report {
        rows: vec![Row {
            op: part.to_string(),
            variant: match place.is_empty() {
                true => "at its start".to_string(),
                false => format!("at or after {place}"),
            },
            cases: 1,
            failures: vec![how],
            ..Row::default()
        }],
        ..Report::default()
    })
}

/// A folder that ends with this.
struct Folder(PathBuf);

impl Folder {
    fn new(part: &str) -> Result<Folder, String> {
        let path = std::env::temp_dir().join(format!("halyard-conformance-{}-{part}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing that a later run would read.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

static PROGRESS: OnceLock<Mutex<PathBuf>> = OnceLock::new();

/// Notes for the parent what is being done.
fn note(op: &str, variant: &str) {
    if let Some(path) = PROGRESS.get() {
        let path = path.lock().unwrap_or_else(PoisonError::into_inner);
        // A note that is missing makes a crash harder to place, no more.
        let _ = std::fs::write(&*path, format!("{op} {variant}"));
    }
}

/// Runs a part in this process and writes its rows.
pub fn run_one(args: &PartArgs) -> Result<(), String> {
    PROGRESS.get_or_init(|| Mutex::new(args.progress.clone()));
    let check = &args.check;
    let options = Options {
        seed: check.seed,
        ..Options::default()
    };
    let report = match args.name.as_str() {
        COLLECTIVES => collectives(check)?,
        part => {
            let (device, oracle) = (loading::device(&check.library)?, loading::oracle(check)?);
            run_part(part, &device, &oracle, &options, note)
        }
    };
    let text = serde_json::to_vec(&report.rows).map_err(|e| e.to_string())?;
    std::fs::write(&args.rows, text).map_err(|e| e.to_string())
}

fn collectives(args: &CheckArgs) -> Result<Report, String> {
    let devices = loading::ranks(args)?;
    let mut row = Row {
        op: COLLECTIVES.to_string(),
        variant: format!("{} ranks", devices.len()),
        ..Row::default()
    };
    match devices.is_empty() {
        true => row.unsupported = Some("one device; --ranks COUNT joins several handles of it".to_string()),
        false => {
            row.cases = 1;
            match check_collectives(&devices) {
                Ok(()) => row.passed = 1,
                Err(why) => row.failures.push(why.to_string()),
            }
        }
    }
    Ok(Report {
        rows: vec![row],
        ..Report::default()
    })
}
