//! One adapter of a running engine: its identity, where its matrices are, and its counters. The requests that use it,
//! the registry, the loader and the engine's thread share it. Each marks it as changed, and the engine's thread then
//! sends a record to stat loggers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use halyard_models::AdapterFingerprint;
use halyard_platform_api::hooks::LoraRecord;

use super::{AdapterSource, AdapterStatus, Residency};

/// An adapter. Requests hold on to theirs: one that was removed ends with the last of them.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// A number from 1 on that no other adapter of this engine ever has, also one of the same name: it keys the prefix
    /// cache.
    pub number: u32,
    pub name: String,
    pub source: AdapterSource,
    pub fingerprint: Option<AdapterFingerprint>,
    pub rank: u32,
    pub bytes: u64,
    pub counters: Counters,
    pub state: State,
}

/// The state of an adapter.
#[derive(Debug)]
pub(crate) struct State {
    is_retired: AtomicBool,
    in_host: AtomicBool,
    on_device: AtomicBool,
    /// Something of it changed since its last record.
    is_changed: AtomicBool,
    /// The same of any adapter of the engine: one look tells that there is nothing to tell.
    any_changed: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub running: AtomicU64,
    pub waiting: AtomicU64,
    pub requests: AtomicU64,
    pub device_hits: AtomicU64,
    pub device_loads: AtomicU64,
    pub disk_reads: AtomicU64,
    pub load_ns: AtomicU64,
}

impl State {
    /// The state of an adapter that no record has named yet.
    pub(crate) fn new(any_changed: Arc<AtomicBool>) -> State {
        State {
            is_retired: AtomicBool::new(false),
            in_host: AtomicBool::new(false),
            on_device: AtomicBool::new(false),
            is_changed: AtomicBool::new(true),
            any_changed,
        }
    }
}

impl Adapter {
    /// Its name was taken away.
    pub(crate) fn is_retired(&self) -> bool {
        self.state.is_retired.load(Ordering::Acquire)
    }

    pub(crate) fn retire(&self) {
        self.state.is_retired.store(true, Ordering::Release);
    }

    pub(crate) fn is_on_device(&self) -> bool {
        self.state.on_device.load(Ordering::Relaxed)
    }

    pub(crate) fn set_on_device(&self, is_there: bool) {
        self.state.on_device.store(is_there, Ordering::Relaxed);
        self.note_change();
    }

    pub(crate) fn set_in_host(&self, is_there: bool) {
        self.state.in_host.store(is_there, Ordering::Relaxed);
        self.note_change();
    }

    /// Something changed that stat loggers should hear of.
    pub(crate) fn note_change(&self) {
        self.state.is_changed.store(true, Ordering::Release);
        // After its own mark: a thread that takes this mark then finds the other one.
        self.state.any_changed.store(true, Ordering::Release);
    }

    /// Whether something changed since the last call.
    pub(crate) fn take_change(&self) -> bool {
        self.state.is_changed.swap(false, Ordering::AcqRel)
    }

    /// It was read from its files, since `start`.
    pub(crate) fn note_read(&self, start: Instant) {
        self.counters.disk_reads.fetch_add(1, Ordering::Relaxed);
        let ns = start.elapsed().as_nanos() as u64;
        self.counters.load_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The nearest place where its matrices are.
    fn residency(&self) -> Residency {
        if self.is_on_device() {
            Residency::Device
        } else if self.state.in_host.load(Ordering::Relaxed) {
            Residency::Host
        } else {
            Residency::Disk
        }
    }

    fn path(&self) -> Option<PathBuf> {
        match &self.source {
            AdapterSource::Folder(path) => Some(path.clone()),
            AdapterSource::Dummy { .. } => None,
        }
    }

    /// How it stands.
    pub(crate) fn status(&self) -> AdapterStatus {
        let c = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AdapterStatus {
            name: self.name.clone(),
            path: self.path(),
            rank: self.rank,
            bytes: self.bytes,
            residency: self.residency(),
            num_running: count(&c.running),
            num_waiting: count(&c.waiting),
            requests_total: count(&c.requests),
            device_hits_total: count(&c.device_hits),
            device_loads_total: count(&c.device_loads),
            disk_reads_total: count(&c.disk_reads),
            load_seconds_total: count(&c.load_ns) as f64 / 1e9,
        }
    }

    /// The same for stat loggers.
    pub(crate) fn record(&self, unix_ns: u64) -> LoraRecord {
        let c = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LoraRecord {
            lora_id: self.number,
            rank: self.rank,
            num_running: count(&c.running) as u32,
            num_waiting: count(&c.waiting) as u32,
            residency: match self.residency() {
                Residency::Disk => 1,
                Residency::Host => 2,
                Residency::Device => 3,
            },
            unix_ns,
            weight_bytes: self.bytes,
            load_ns: count(&c.load_ns),
            loads_total: count(&c.device_loads),
            hits_total: count(&c.device_hits),
            requests_total: count(&c.requests),
            disk_reads_total: count(&c.disk_reads),
            name: self.name.as_str().into(),
            path: self
                .path()
                .map_or_else(Arc::default, |path| path.display().to_string().into()),
        }
    }

    /// Its last record: no request has it, and nothing of it is held.
    pub(crate) fn last_record(&self, unix_ns: u64) -> LoraRecord {
        LoraRecord {
            residency: 0,
            ..self.record(unix_ns)
        }
    }
}
