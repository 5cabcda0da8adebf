//! A stat logger whose library runs in a child process. It takes batches as any other does; a crash, a hang or a panic
//! in it is an error of the call, and the next call starts a new child. When to try again is the deliverer's decision,
//! as for any failing logger.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halyard_platform_api::hooks::{Batch, StatLogger, StatLoggerFactory, StatRecord};
use halyard_platform_api::{Error, Result, Status};

use super::child::CreateCall;
use super::process::{HookProcess, Lost};
use super::ring::{Answer, Corrupt, FrameKind, MAX_PAYLOAD_BYTES};
use super::{IsolationOptions, codec};
use crate::allow_list::AllowList;
use crate::catalog::Candidate;
use crate::load;

/// How long a scrape of `/metrics` waits for a hook's text.
const EXPOSE_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that stay free in the ring for the frame that follows records.
const RESERVE_BYTES: usize = 64;

/// Makes stat loggers of one plugin, each in a process of its own. The library is never opened in this process.
pub struct IsolatedStatLoggerFactory {
    shared: Arc<Shared>,
}

struct Shared {
    candidate: Candidate,
    allow_list: Option<AllowList>,
    options: IsolationOptions,
}

impl IsolatedStatLoggerFactory {
    pub(crate) fn new(
        candidate: Candidate,
        allow_list: Option<AllowList>,
        options: IsolationOptions,
    ) -> IsolatedStatLoggerFactory {
        IsolatedStatLoggerFactory {
            shared: Arc::new(Shared {
                candidate,
                allow_list,
                options,
            }),
        }
    }

    /// A logger with its child, started and made. Blocks for the start.
    ///
    /// # Errors
    /// What the library's stages or the hook say of it; `Timeout` past the start's deadline; how the child died.
    pub fn start(&self, config: &str) -> Result<IsolatedStatLogger> {
        let mut logger = IsolatedStatLogger {
            shared: self.shared.clone(),
            config: config.to_string(),
            process: None,
            starting: None,
            first_record: None,
            last_call: Duration::ZERO,
            vitals: Arc::new(Vitals::default()),
            payload: Vec::new(),
        };
        logger.run(self.shared.options.start_deadline)?;
        Ok(logger)
    }
}

impl StatLoggerFactory for IsolatedStatLoggerFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        Ok(Box::new(self.start(config)?))
    }
}

/// What can be seen of a logger's children from elsewhere.
#[derive(Debug, Default)]
pub struct Vitals {
    starts: AtomicU64,
    process_id: AtomicU32,
}

impl Vitals {
    /// Children started so far.
    pub fn starts(&self) -> u64 {
        self.starts.load(Ordering::Relaxed)
    }

    /// The system's number of the child that runs now.
    pub fn process_id(&self) -> Option<u32> {
        Some(self.process_id.load(Ordering::Relaxed)).filter(|&id| id != 0)
    }
}

/// A stat logger in a child process. Its calls fail with `Poisoned` only where the child died or broke the shared
/// memory; a panic that the library caught is `Internal`, as in this process.
pub struct IsolatedStatLogger {
    shared: Arc<Shared>,
    config: String,
    // None after the child was lost, until the next call.
    process: Option<HookProcess>,
    // The unanswered call that makes the hook, and since when.
    starting: Option<(u64, Instant)>,
    // The record that each logger gets first; a new child gets it again.
    first_record: Option<StatRecord>,
    last_call: Duration,
    vitals: Arc<Vitals>,
    // Kept for its memory.
    payload: Vec<u8>,
}

impl IsolatedStatLogger {
    /// Time of the last answered call in the hook itself, without the way there and back.
    pub fn last_call(&self) -> Duration {
        self.last_call
    }

    /// What its children are, to look at while another thread uses the logger.
    pub fn vitals(&self) -> Arc<Vitals> {
        self.vitals.clone()
    }

    fn name(&self) -> &str {
        &self.shared.candidate.manifest.name
    }

    fn error(&self, status: Status, message: impl std::fmt::Display) -> Error {
        Error::new(status, format!("{}: {message}", self.name()))
    }

    /// Sees to it that a child with a made hook runs, starting one where the last was lost.
    fn run(&mut self, patience: Duration) -> Result<()> {
        if self.process.is_none() {
            self.spawn()?;
        }
        if let Some((sequence, since)) = self.starting {
            self.wait_for_start(sequence, since, patience)?;
            if let Some(first) = self.first_record.clone() {
                self.deliver(&[first], patience, 0)?;
            }
        }
        Ok(())
    }

    /// Starts a child and asks it to make the hook.
    fn spawn(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        // Each time: the file may be another one by now.
        load::check(&shared.candidate, shared.allow_list.as_ref(), &mut Vec::new())
            .map_err(|failure| Error::new(Status::Denied, failure.to_string()))?;
        let call = CreateCall {
            path: shared.candidate.path.clone(),
            name: shared.candidate.manifest.name.clone(),
            config: self.config.clone(),
        };
        let payload = serde_json::to_vec(&call)
            .map_err(|error| self.error(Status::InvalidArgument, format!("its library's path: {error}")))?;
        let mut process = HookProcess::start(&shared.options, &call.name)
            .map_err(|error| self.error(Status::Unavailable, format!("its process cannot be started: {error}")))?;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(self.too_large("its configuration", payload.len()));
        }
        let sequence = process.ring.write(FrameKind::Create, &payload);
        self.starting = Some((sequence, Instant::now()));
        self.vitals.starts.fetch_add(1, Ordering::Relaxed);
        self.vitals.process_id.store(process.id(), Ordering::Relaxed);
        self.process = Some(process);
        Ok(())
    }

    /// Waits for the hook to be made. A start that takes longer than one call goes on during the next ones, up to its
    /// own deadline.
    fn wait_for_start(&mut self, sequence: u64, since: Instant, patience: Duration) -> Result<()> {
        let left = self.shared.options.start_deadline.saturating_sub(since.elapsed());
        let outcome = match &mut self.process {
            Some(process) if patience < left => process.wait_or_leave(sequence, patience),
            Some(process) => process.wait(sequence, left).map(Some),
            None => return Err(self.error(Status::Internal, "its process was lost at its start")),
        };
        match outcome {
            Ok(Some(answer)) => {
                self.starting = None;
                let made = self.answered(answer);
                if made.is_err() {
                    self.forget();
                }
                made
            }
            Ok(None) => Err(self.error(
                Status::Unavailable,
                format!("its process is still starting after {} ms", since.elapsed().as_millis()),
            )),
            Err(lost) => Err(self.lost(&lost)),
        }
    }

    /// Writes a frame and waits for its answer.
    fn call(&mut self, kind: FrameKind, payload: &[u8], patience: Duration) -> Result<String> {
        let Some(process) = &mut self.process else {
            return Err(self.error(Status::Internal, "its process was lost"));
        };
        let sequence = match process.ring.fits(payload.len()) {
            Ok(true) => process.ring.write(kind, payload),
            Ok(false) => return Err(self.lost(&Lost::Corrupt("its ring did not empty".to_string()))),
            Err(Corrupt(reason)) => return Err(self.lost(&Lost::Corrupt(reason))),
        };
        match process.wait(sequence, patience) {
            Ok(answer) => {
                let text = answer.text.clone();
                self.answered(answer).map(|()| text)
            }
            Err(lost) => Err(self.lost(&lost)),
        }
    }

    fn answered(&mut self, answer: Answer) -> Result<()> {
        self.last_call = Duration::from_nanos(answer.call_ns);
        if answer.status == Status::Ok {
            return Ok(());
        }
        if answer.status == Status::Poisoned {
            // A hook that panicked need not stay unusable in a process of its own: the next call gets a new one. The
            // status itself is kept for processes that are gone.
            self.forget();
            return Err(self.error(Status::Panicked, format!("panicked: {}", answer.text)));
        }
        Err(Error {
            status: answer.status,
            vendor_code: answer.vendor_code,
            message: answer.text,
        })
    }

    /// Ends the child, if there still is one.
    fn forget(&mut self) {
        self.process = None;
        self.starting = None;
        self.vitals.process_id.store(0, Ordering::Relaxed);
    }

    /// Forgets a lost child; what to say of it.
    fn lost(&mut self, lost: &Lost) -> Error {
        self.forget();
        let (status, vendor_code) = match lost {
            // The hook's object is gone, and the deliverer should let the sink rest.
            Lost::Died(_, signal) => (Status::Poisoned, *signal),
            Lost::Late(_) => (Status::Timeout, 0),
            Lost::Corrupt(_) => (Status::Poisoned, 0),
        };
        Error {
            vendor_code,
            ..self.error(status, format!("its process {lost}; the next call starts a new one"))
        }
    }

    fn too_large(&self, part: &str, bytes: usize) -> Error {
        self.error(
            Status::InvalidArgument,
            format!(
                "{part} has {bytes} bytes; at most {MAX_PAYLOAD_BYTES} fit between the server and a hook's process"
            ),
        )
    }

    /// Writes as many of `records` as fit into the ring; returns how many.
    fn write_records(&mut self, records: &[StatRecord]) -> Result<usize> {
        let mut payload = std::mem::take(&mut self.payload);
        let written = self.write_encoded(records, &mut payload);
        self.payload = payload;
        written
    }

    fn write_encoded(&mut self, records: &[StatRecord], payload: &mut Vec<u8>) -> Result<usize> {
        for (written, record) in records.iter().enumerate() {
            payload.clear();
            codec::encode(record, payload)?;
            let needed = payload.len() + RESERVE_BYTES;
            let Some(process) = &mut self.process else {
                return Err(self.error(Status::Internal, "its process was lost"));
            };
            match process.ring.fits(needed) {
                Ok(true) => process.ring.write(FrameKind::Record, payload),
                Ok(false) if written > 0 => return Ok(written),
                Ok(false) => return Err(self.too_large("a record", payload.len())),
                Err(Corrupt(reason)) => return Err(self.lost(&Lost::Corrupt(reason))),
            };
        }
        Ok(records.len())
    }

    /// Hands records to the hook, in as many pieces as the ring makes of them.
    fn deliver(&mut self, records: &[StatRecord], patience: Duration, num_dropped: u64) -> Result<()> {
        let start = Instant::now();
        let mut rest = records;
        while !rest.is_empty() {
            let written = self.write_records(rest)?;
            let left = patience.saturating_sub(start.elapsed());
            let mut call = duration_bytes(left).to_vec();
            call.extend(num_dropped.to_le_bytes());
            self.call(FrameKind::Deliver, &call, left)?;
            rest = &rest[written..];
        }
        Ok(())
    }

    /// Sees to it that the hook runs; the time of a call with this deadline that is left then.
    fn ready(&mut self, deadline: Duration) -> Result<Duration> {
        let start = Instant::now();
        let patience = self.patience(deadline);
        self.run(patience)?;
        Ok(patience.saturating_sub(start.elapsed()))
    }

    /// Time for the call itself. The host counts a call past `deadline` as one that never comes back, so a late child
    /// is ended before.
    fn patience(&self, deadline: Duration) -> Duration {
        self.shared.options.call_deadline.min(deadline - deadline / 8)
    }
}

fn duration_bytes(duration: Duration) -> [u8; 8] {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).to_le_bytes()
}

impl StatLogger for IsolatedStatLogger {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let left = self.ready(batch.deadline)?;
        let delivered = self.deliver(batch.records, left, batch.num_dropped);
        let is_first = |record: &&StatRecord| matches!(record, StatRecord::Start(_));
        if let Some(first) = batch.records.iter().find(is_first) {
            self.first_record = Some(first.clone());
        }
        delivered
    }

    fn flush(&mut self, deadline: Duration) -> Result<()> {
        let left = self.ready(deadline)?;
        self.call(FrameKind::Flush, &duration_bytes(left), left).map(drop)
    }

    fn expose(&mut self) -> Result<Option<String>> {
        let left = self.ready(EXPOSE_PATIENCE)?;
        let text = self.call(FrameKind::Expose, &[], left)?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}

impl Drop for IsolatedStatLogger {
    fn drop(&mut self) {
        let patience = self.shared.options.call_deadline;
        let made = self.starting.is_none();
        if let Some(process) = self.process.take()
            && made
            && let Err(lost) = process.end(patience)
        {
            tracing::warn!(hook = self.name(), "its process {lost} when it was to end");
        }
    }
}
