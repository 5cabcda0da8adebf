//! The adapters by name, and those of them that are in host memory: the most recently used ones, up to a limit. Files are read outside the lock.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use halyard_models::{AdapterFingerprint, LoraAdapter, LoraLimits, ModelDescription};
use halyard_platform_api::hooks::LoraRecord;

use super::{AdapterError, AdapterSource, AdapterStatus, Residency, check_name};

/// Names that an error lists.
const SHOWN_NAMES: usize = 16;

/// An adapter. Requests hold on to theirs: one that was removed ends with the last of them.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// A number from 1 on that no other adapter of this engine ever has, also one of the same name: it keys the prefix cache.
    pub number: u32,
    pub name: String,
    source: AdapterSource,
    fingerprint: Option<AdapterFingerprint>,
    rank: u32,
    bytes: u64,
    is_retired: AtomicBool,
    pub on_device: AtomicBool,
    /// Something of it changed since its last record.
    pub is_changed: AtomicBool,
    pub counters: Counters,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub running: AtomicU64,
    pub waiting: AtomicU64,
    pub requests: AtomicU64,
    pub device_hits: AtomicU64,
    pub device_loads: AtomicU64,
    disk_reads: AtomicU64,
    pub load_ns: AtomicU64,
}

impl Adapter {
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    fn path(&self) -> Option<PathBuf> {
        match &self.source {
            AdapterSource::Folder(path) => Some(path.clone()),
            AdapterSource::Dummy { .. } => None,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    by_name: BTreeMap<String, Arc<Adapter>>,
    /// In host memory, the least recently used first.
    host: Vec<(u32, Arc<LoraAdapter>)>,
}

/// All adapters of an engine.
#[derive(Debug)]
pub(crate) struct Adapters {
    model: Arc<ModelDescription>,
    limits: LoraLimits,
    max_host: usize,
    next_number: AtomicU32,
    state: Mutex<State>,
}

impl Adapters {
    pub(crate) fn new(model: Arc<ModelDescription>, limits: LoraLimits, max_host: usize) -> Adapters {
        Adapters {
            model,
            limits,
            max_host,
            next_number: AtomicU32::new(1),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and checks an adapter and makes it known. Blocks for its file.
    ///
    /// # Errors
    /// A name that is taken or no name; what is wrong with the files.
    pub(crate) fn add(&self, name: &str, source: AdapterSource) -> Result<(), AdapterError> {
        check_name(name)?;
        let exists = || AdapterError::Exists { name: name.to_string() };
        if self.lock().by_name.contains_key(name) {
            return Err(exists());
        }
        let start = Instant::now();
        // Taken before reading: a change during the read shows at the next one.
        let fingerprint = match &source {
            AdapterSource::Folder(folder) => LoraAdapter::fingerprint(folder).ok(),
            AdapterSource::Dummy { .. } => None,
        };
        let weights = self.read(&source)?;
        let adapter = Arc::new(Adapter {
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            name: name.to_string(),
            source,
            fingerprint,
            rank: weights.rank,
            bytes: weights.bytes(),
            is_retired: AtomicBool::new(false),
            on_device: AtomicBool::new(false),
            is_changed: AtomicBool::new(true),
            counters: Counters::default(),
        });
        adapter.note_read(start);
        let mut state = self.lock();
        if state.by_name.contains_key(name) {
            return Err(exists());
        }
        self.keep(&mut state, adapter.number, Arc::new(weights));
        state.by_name.insert(name.to_string(), adapter);
        Ok(())
    }

    fn read(&self, source: &AdapterSource) -> Result<LoraAdapter, AdapterError> {
        Ok(match source {
            AdapterSource::Folder(folder) => LoraAdapter::open(folder, &self.model, &self.limits)?,
            AdapterSource::Dummy { rank, seed } => LoraAdapter::dummy(&self.model, &self.limits, *rank, *seed)?,
        })
    }

    /// Puts an adapter into host memory as the most recently used one.
    fn keep(&self, state: &mut State, number: u32, weights: Arc<LoraAdapter>) {
        state.host.retain(|(held, _)| *held != number);
        state.host.push((number, weights));
        let surplus = state.host.len().saturating_sub(self.max_host);
        state.host.drain(..surplus);
    }

    /// Takes a name away: new requests do not find it any more.
    ///
    /// # Errors
    /// [`AdapterError::Unknown`].
    pub(crate) fn retire(&self, name: &str) -> Result<Arc<Adapter>, AdapterError> {
        let mut state = self.lock();
        let Some(adapter) = state.by_name.remove(name) else {
            return Err(unknown(&state, name));
        };
        adapter.is_retired.store(true, Ordering::Release);
        Ok(adapter)
    }

    /// Frees the host memory of an adapter that nobody uses.
    pub(crate) fn forget(&self, number: u32) {
        self.lock().host.retain(|(held, _)| *held != number);
    }

    /// The adapter called `name`.
    ///
    /// # Errors
    /// [`AdapterError::Unknown`].
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Adapter>, AdapterError> {
        let state = self.lock();
        state.by_name.get(name).cloned().ok_or_else(|| unknown(&state, name))
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.lock().by_name.contains_key(name)
    }

    /// An adapter's matrices, read again where host memory does not hold them. Blocks for its file then.
    ///
    /// # Errors
    /// What is wrong with the files, a change of them included.
    pub(crate) fn weights(&self, adapter: &Adapter) -> Result<Arc<LoraAdapter>, AdapterError> {
        {
            let mut state = self.lock();
            if let Some(at) = state.host.iter().position(|(number, _)| *number == adapter.number) {
                let held = state.host.remove(at);
                let weights = held.1.clone();
                state.host.push(held);
                return Ok(weights);
            }
        }
        let start = Instant::now();
        if let (Some(before), AdapterSource::Folder(path)) = (&adapter.fingerprint, &adapter.source)
            && LoraAdapter::fingerprint(path)? != *before
        {
            return Err(AdapterError::Changed {
                name: adapter.name.clone(),
                path: path.clone(),
            });
        }
        let weights = Arc::new(self.read(&adapter.source)?);
        adapter.note_read(start);
        self.keep(&mut self.lock(), adapter.number, weights.clone());
        Ok(weights)
    }

    /// Every adapter with its counters, by name.
    pub(crate) fn status(&self) -> Vec<AdapterStatus> {
        let state = self.lock();
        let status = |adapter: &Arc<Adapter>| {
            let c = &adapter.counters;
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let in_host = state.host.iter().any(|(number, _)| *number == adapter.number);
            AdapterStatus {
                name: adapter.name.clone(),
                path: adapter.path(),
                rank: adapter.rank,
                bytes: adapter.bytes,
                residency: match (adapter.on_device.load(Ordering::Relaxed), in_host) {
                    (true, _) => Residency::Device,
                    (false, true) => Residency::Host,
                    (false, false) => Residency::Disk,
                },
                num_running: count(&c.running),
                num_waiting: count(&c.waiting),
                requests_total: count(&c.requests),
                device_hits_total: count(&c.device_hits),
                device_loads_total: count(&c.device_loads),
                disk_reads_total: count(&c.disk_reads),
                load_seconds_total: count(&c.load_ns) as f64 / 1e9,
            }
        };
        state.by_name.values().map(status).collect()
    }
}

impl Adapter {
    /// How it stands, for stat loggers.
    pub(crate) fn record(&self, unix_ns: u64) -> LoraRecord {
        let c = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LoraRecord {
            lora_id: self.number,
            rank: self.rank,
            num_running: count(&c.running) as u32,
            num_waiting: count(&c.waiting) as u32,
            residency: match (self.on_device.load(Ordering::Relaxed), self.is_retired()) {
                (true, _) => 3,
                (false, false) => 2,
                (false, true) => 0,
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

    fn note_read(&self, start: Instant) {
        self.counters.disk_reads.fetch_add(1, Ordering::Relaxed);
        let ns = start.elapsed().as_nanos() as u64;
        self.counters.load_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

fn unknown(state: &State, name: &str) -> AdapterError {
    AdapterError::Unknown {
        name: name.chars().take(64).collect(),
        known: state.by_name.keys().take(SHOWN_NAMES).cloned().collect(),
    }
}
