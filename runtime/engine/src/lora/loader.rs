//! The thread that copies adapters into device slots, from host memory or first from their files. The engine's thread
//! sends it a load and gets the answer as a command, so steps of other requests go on meanwhile. The slots' memory goes
//! and comes with the model's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use halyard_platform_api::{Error, Status};
use halyard_runner::LoraMemory;

use super::AdapterError;
use super::adapter::Adapter;
use super::registry::Adapters;
use crate::command::Command;
use crate::error::EngineError;

/// How long an ending engine waits for a copy under way.
const END_PATIENCE: Duration = Duration::from_secs(5);

struct Job {
    slot: u32,
    adapter: Arc<Adapter>,
}

/// The slots of all ranks; none while the model is on no device.
type Slots = Arc<Mutex<Vec<Arc<LoraMemory>>>>;

/// The engine's end of the thread.
pub(crate) struct LoraLoader {
    jobs: Option<Sender<Job>>,
    slots: Slots,
    /// The thread, and what hangs up when it ends.
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
}

impl LoraLoader {
    /// Starts the thread over the slots of all ranks.
    ///
    /// # Errors
    /// A thread that does not start.
    pub(crate) fn start(
        adapters: Arc<Adapters>,
        ranks: Vec<Arc<LoraMemory>>,
        commands: Sender<Command>,
    ) -> Result<LoraLoader, EngineError> {
        let (jobs, receiver) = channel::<Job>();
        let (running, ended) = sync_channel::<()>(1);
        let slots: Slots = Arc::new(Mutex::new(ranks));
        let ranks = Arc::clone(&slots);
        let work = move || {
            let _running = running;
            while let Ok(job) = receiver.recv() {
                let number = job.adapter.number;
                let load = AssertUnwindSafe(|| load(&adapters, &ranks, &job));
                let panicked = |_| {
                    Err(AdapterError::Panicked {
                        name: job.adapter.name.clone(),
                    })
                };
                let result = catch_unwind(load).unwrap_or_else(panicked);
                // The receiver is gone: the engine ends.
                if commands.send(Command::LoraLoaded { number, result }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("halyard-lora".into())
            .spawn(work)
            .map_err(|e| EngineError::Thread(e.to_string()))?;
        Ok(LoraLoader {
            jobs: Some(jobs),
            slots,
            thread: Some((thread, ended)),
        })
    }

    /// Puts other slots in the place of those that are there, which are dropped. Waits for a copy under way.
    pub(crate) fn set_slots(&self, ranks: Vec<Arc<LoraMemory>>) {
        let former = std::mem::replace(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner), ranks);
        drop(former);
    }

    /// Asks for an adapter in a slot; [`Command::LoraLoaded`] answers.
    pub(crate) fn load(&self, slot: u32, adapter: Arc<Adapter>) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Job { slot, adapter });
        }
    }
}

fn load(adapters: &Adapters, slots: &Slots, job: &Job) -> Result<(), AdapterError> {
    let weights = adapters.weights(&job.adapter)?;
    let start = Instant::now();
    let refused = |error| AdapterError::Device {
        name: job.adapter.name.clone(),
        error,
    };
    let ranks = slots.lock().unwrap_or_else(PoisonError::into_inner);
    if ranks.is_empty() {
        return Err(refused(Error::new(Status::Internal, "the engine sleeps")));
    }
    for memory in ranks.iter() {
        memory.write(job.slot, &weights).map_err(refused)?;
    }
    drop(ranks);
    let counters = &job.adapter.counters;
    counters.device_loads.fetch_add(1, Ordering::Relaxed);
    let ns = start.elapsed().as_nanos() as u64;
    counters.load_ns.fetch_add(ns, Ordering::Relaxed);
    tracing::debug!(adapter = %job.adapter.name, slot = job.slot, ms = ns / 1_000_000, "adapter loaded");
    Ok(())
}

impl Drop for LoraLoader {
    fn drop(&mut self) {
        self.jobs = None;
        let Some((thread, ended)) = self.thread.take() else {
            return;
        };
        if matches!(ended.recv_timeout(END_PATIENCE), Err(RecvTimeoutError::Timeout)) {
            tracing::error!(
                "a LoRA adapter was still being read {} s after the engine's end",
                END_PATIENCE.as_secs()
            );
        } else if thread.join().is_err() {
            tracing::error!("the LoRA loader panicked");
        }
    }
}
