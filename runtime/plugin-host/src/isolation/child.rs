//! The child's side: keeps only the ring and the bell, loads one hook, and serves its calls until the server ends it or
//! goes away.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use halyard_platform_api::hooks::{Batch, StatLogger, StatRecord};
use halyard_platform_api::{Error, Result, Status};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::codec;
use super::process::{close_inherited, wait_for_reader_to_go};
use super::ring::{Answer, Consumer, Frame, FrameKind};
use crate::catalog::Catalog;
use crate::manifest::Kind;
use crate::search::SearchPath;

/// What [`FrameKind::Create`] carries.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CreateCall {
    /// The library.
    pub path: PathBuf,
    /// The stat logger in it.
    pub name: String,
    /// Its configuration.
    pub config: String,
}

/// Why a child never served a call.
#[derive(Debug, thiserror::Error)]
pub enum HookChildError {
    /// Started by hand, or by something else than a server.
    #[error(
        "standard input is not the shared memory of a Halyard server ({0}); only `halyard serve --hook-isolation \
         process` starts this command"
    )]
    NoRing(io::Error),
    /// The system's refusal.
    #[error("{operation}: {source}")]
    System {
        /// What the process was doing.
        operation: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// Serves one hook for the server that started this process, until that server ends it. Call it before anything was
/// opened: it closes every descriptor but the three standard ones. What the hook prints goes to standard error. When
/// the server dies, so does this process.
///
/// # Errors
/// [`HookChildError`] when this process was not started as a hook's.
pub fn run_hook_child() -> std::result::Result<(), HookChildError> {
    let system = |operation| move |source: io::Error| HookChildError::System { operation, source };
    close_inherited().map_err(system("closing what the server had open"))?;
    let mut ring = Consumer::open(io::stdin()).map_err(HookChildError::NoRing)?;
    let bell = own_bell().map_err(system("taking over the bell"))?;
    ignore_end_signals();
    let watched = bell.try_clone().map_err(system("watching the server"))?;
    let watch = move || {
        wait_for_reader_to_go(&watched);
        // At once: the hook's own threads and destructors may hang.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    };
    let watcher = std::thread::Builder::new().name("halyard-watch".into());
    watcher.spawn(watch).map_err(system("watching the server"))?;
    serve(&mut ring, &bell)
}

/// Moves the pipe out of standard output's place and the ring out of standard input's, so that a hook's reads and
/// prints cannot touch them.
fn own_bell() -> io::Result<OwnedFd> {
    let bell = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    let nothing = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(bell)
}

/// The server decides when its hooks end, also where a service manager signals a whole group of processes.
fn ignore_end_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: setting a signal to be ignored runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// The hook, once made.
type Logger = Option<Box<dyn StatLogger>>;

fn serve(ring: &mut Consumer, bell: &OwnedFd) -> std::result::Result<(), HookChildError> {
    let mut logger: Logger = None;
    let mut kept = Vec::new();
    loop {
        let frame = ring.next().map_err(|source| HookChildError::System {
            operation: "reading the server's calls",
            source,
        })?;
        if frame.kind == FrameKind::Record {
            kept.push(frame);
            continue;
        }
        let start = Instant::now();
        let result = call(&frame, &mut logger, &mut kept);
        let call_ns = start.elapsed().as_nanos() as u64;
        ring.answer(frame.sequence, &answer(result, call_ns));
        // A full pipe already wakes the server, and an ended server needs no wake-up.
        let _ = rustix::io::write(bell, &[1]);
        if frame.kind == FrameKind::End {
            return Ok(());
        }
    }
}

fn answer(result: Result<Option<String>>, call_ns: u64) -> Answer {
    let (status, vendor_code, text) = match result {
        Ok(text) => (Status::Ok, 0, text.unwrap_or_default()),
        Err(error) => (error.status, error.vendor_code, error.message),
    };
    Answer {
        status,
        vendor_code,
        text,
        call_ns,
    }
}

/// Carries out a call; the text that it answers with, if any.
fn call(frame: &Frame, made: &mut Logger, kept: &mut Vec<Frame>) -> Result<Option<String>> {
    match frame.kind {
        FrameKind::Create => *made = Some(create(&frame.payload)?),
        FrameKind::End => *made = None,
        FrameKind::Record | FrameKind::Deliver | FrameKind::Flush | FrameKind::Expose => {
            let not_made = || Error::new(Status::Internal, "called before it was made");
            let logger = made.as_mut().ok_or_else(not_made)?;
            match frame.kind {
                FrameKind::Deliver => deliver(&mut **logger, frame, kept)?,
                FrameKind::Flush => logger.flush(Duration::from_nanos(number(frame, 0)))?,
                FrameKind::Expose => return logger.expose(),
                FrameKind::Create | FrameKind::End | FrameKind::Record => {}
            }
        }
    }
    Ok(None)
}

fn deliver(logger: &mut dyn StatLogger, frame: &Frame, kept: &mut Vec<Frame>) -> Result<()> {
    let frames = std::mem::take(kept);
    let records = frames.iter().map(|frame| codec::decode(&frame.payload));
    let records: Vec<StatRecord> = records.collect::<Result<_>>()?;
    logger.log_batch(&Batch {
        records: &records,
        deadline: Duration::from_nanos(number(frame, 0)),
        num_dropped: number(frame, 1),
    })
}

/// Number `index` of a call's payload; 0 where it ends before.
fn number(frame: &Frame, index: usize) -> u64 {
    let word = frame.payload.chunks_exact(8).nth(index);
    word.and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn create(payload: &[u8]) -> Result<Box<dyn StatLogger>> {
    let call: CreateCall =
        serde_json::from_slice(payload).map_err(|error| Error::new(Status::Internal, format!("the call: {error}")))?;
    let catalog = Catalog::discover(&SearchPath {
        plugins: vec![call.path],
        ..SearchPath::default()
    });
    let failed = |error: &dyn std::fmt::Display| Error::new(Status::Incompatible, error.to_string());
    if let Some(failure) = catalog.explicit_failure() {
        return Err(failed(failure));
    }
    let candidate = catalog.find(Kind::StatLogger, &call.name).map_err(|e| failed(&e))?;
    let plugin = catalog.load(candidate).map_err(|e| failed(&e))?;
    plugin
        .stat_logger_factory()
        .map_err(|e| failed(&e))?
        .create(&call.config)
}
