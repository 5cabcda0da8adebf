//! The parts of the suite, each in a process of its own.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use halyard_conformance::{Options, Report, Row, Watch, check_collectives, has_rows_to_share, run_part};

use crate::command_line::{COLLECTIVES, CheckArgs, PART_NAMES, PartArgs};
use crate::loading;

/// The parts that are asked for.
pub fn names(args: &CheckArgs) -> Vec<&'static str> {
    let wanted = |name: &&str| args.parts.is_empty() || args.parts.iter().any(|part| part == name);
    PART_NAMES.into_iter().filter(wanted).collect()
}

/// How often the parent looks whether a part has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a part in a child; what ends the child before its end is a row itself, behind those that were done.
pub fn run_in_child(args: &CheckArgs, part: &str) -> Result<Report, String> {
    let folder = Folder::new(part)?;
    let (rows, progress) = (folder.0.join("rows"), folder.0.join("progress"));
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.arg("part").arg(&args.library.file).args(["--name", part]);
    command.arg("--rows").arg(&rows).arg("--progress").arg(&progress);
    command
        .arg(format!("--device={}", args.library.device))
        .arg(format!("--seed={}", args.seed))
        .arg(format!("--jobs={}", args.jobs));
    command.args(args.filter.iter().map(|text| format!("--filter={text}")));
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
            None => thread::sleep(LOOK),
        }
    };
    let mut report = Report::of(read_rows(&rows).map_err(|e| format!("{part}: its rows: {e}"))?);
    if status.is_some_and(|status| status.success()) {
        return Ok(report);
    }
    let place = std::fs::read_to_string(&progress).unwrap_or_default();
    let how = match status {
        Some(status) => format!("its process ended with {status}"),
        None => format!("no end within {} s (--deadline)", args.deadline),
    };
    report.rows.push(Row {
        op: part.to_string(),
        variant: match place.is_empty() {
            true => "at its start".to_string(),
            false => format!("at or after {place}"),
        },
        cases: 1,
        failures: vec![how],
        ..Row::default()
    });
    Ok(report)
}

/// The rows in a child's file. A line that the child could not finish is left out.
fn read_rows(file: &Path) -> std::io::Result<Vec<Row>> {
    let text = match std::fs::read_to_string(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let mut rows: Vec<Row> = Vec::new();
    for row in text.lines().filter_map(|line| serde_json::from_str::<Row>(line).ok()) {
        match rows.iter_mut().find(|r| r.op == row.op && r.variant == row.variant) {
            Some(earlier) => *earlier = row,
            None => rows.push(row),
        }
    }
    Ok(rows)
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

/// What a child tells its parent.
struct Told {
    progress: PathBuf,
    rows: File,
    /// What each thread does.
    places: Vec<(ThreadId, String)>,
}

static TOLD: OnceLock<Mutex<Told>> = OnceLock::new();

fn tell(what: impl FnOnce(&mut Told)) {
    if let Some(told) = TOLD.get() {
        what(&mut told.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn begins(op: &str, variant: &str) {
    tell(|told| {
        let (thread, place) = (thread::current().id(), format!("{op} {variant}"));
        match told.places.iter_mut().find(|(of, _)| *of == thread) {
            Some((_, earlier)) => *earlier = place,
            None => told.places.push((thread, place)),
        }
        let places: Vec<&str> = told.places.iter().map(|(_, place)| place.as_str()).collect();
        // A note that is missing makes a crash harder to place, no more.
        let _ = std::fs::write(&told.progress, places.join(", or "));
    });
}

fn ended(row: &Row) {
    tell(|told| {
        // All rows are written again at the end, where an error is one.
        let _ = write_row(&mut told.rows, row);
    });
}

fn write_row(file: &mut File, row: &Row) -> std::io::Result<()> {
    file.write_all(format!("{}\n", serde_json::to_string(row)?).as_bytes())
}

/// Runs a part in this process and writes its rows.
pub fn run_one(args: &PartArgs) -> Result<(), String> {
    let rows = File::create(&args.rows).map_err(|e| e.to_string())?;
    TOLD.get_or_init(|| {
        Mutex::new(Told {
            progress: args.progress.clone(),
            rows,
            places: Vec::new(),
        })
    });
    let check = &args.check;
    let options = Options {
        seed: check.seed,
        filter: check.filter.clone(),
        ..Options::default()
    };
    let report = match args.name.as_str() {
        COLLECTIVES => collectives(check)?,
        part => {
            let jobs = if has_rows_to_share(part) { check.jobs } else { 1 };
            let devices = (0..jobs).map(|_| loading::device(&check.library));
            let oracles = (0..jobs).map(|_| loading::oracle(check));
            let (devices, oracles) = (
                devices.collect::<Result<Vec<_>, _>>()?,
                oracles.collect::<Result<Vec<_>, _>>()?,
            );
            run_part(part, &devices, &oracles, &options, Watch { begins, ended })
        }
    };
    let mut written = Ok(());
    tell(|told| written = report.rows.iter().try_for_each(|row| write_row(&mut told.rows, row)));
    written.map_err(|e| e.to_string())
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
    Ok(Report::of(vec![row]))
}
