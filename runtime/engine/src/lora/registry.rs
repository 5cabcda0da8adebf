//! The adapters by name, and those of them that are in host memory: the most recently used ones, up to a limit. Files
//! are read outside the lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use halyard_models::{LoraAdapter, LoraLimits, ModelDescription};

use super::adapter::{self, Adapter};
use super::{AdapterError, AdapterSource, AdapterStatus, check_name};

/// Names that an error lists.
const SHOWN_NAMES: usize = 16;

#[derive(Debug, Default)]
struct State {
    by_name: BTreeMap<String, Arc<Adapter>>,
    /// In host memory, the least recently used first.
    host: Vec<(Arc<Adapter>, Arc<LoraAdapter>)>,
}

/// All adapters of an engine.
#[derive(Debug)]
pub(crate) struct Adapters {
    model: Arc<ModelDescription>,
    limits: LoraLimits,
    max_host: usize,
    next_number: AtomicU32,
    any_changed: Arc<AtomicBool>,
    state: Mutex<State>,
}

impl Adapters {
    pub(crate) fn new(model: Arc<ModelDescription>, limits: LoraLimits, max_host: usize) -> Adapters {
        Adapters {
            model,
            limits,
            max_host,
            next_number: AtomicU32::new(1),
            any_changed: Arc::default(),
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
    pub(crate) fn add(&self, name: &str, source: AdapterSource) -> Result<Arc<Adapter>, AdapterError> {
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
            counters: adapter::Counters::default(),
            state: adapter::State::new(self.any_changed.clone()),
        });
        adapter.note_read(start);
        let mut state = self.lock();
        if state.by_name.contains_key(name) {
            return Err(exists());
        }
        self.keep(&mut state, &adapter, Arc::new(weights));
        state.by_name.insert(name.to_string(), adapter.clone());
        Ok(adapter)
    }

    fn read(&self, source: &AdapterSource) -> Result<LoraAdapter, AdapterError> {
        Ok(match source {
            AdapterSource::Folder(folder) => LoraAdapter::open(folder, &self.model, &self.limits)?,
            AdapterSource::Dummy { rank, seed } => LoraAdapter::dummy(&self.model, &self.limits, *rank, *seed)?,
        })
    }

    /// Puts an adapter into host memory as the most recently used one.
    fn keep(&self, state: &mut State, adapter: &Arc<Adapter>, weights: Arc<LoraAdapter>) {
        state.host.retain(|(held, _)| held.number != adapter.number);
        state.host.push((adapter.clone(), weights));
        adapter.set_in_host(true);
        let surplus = state.host.len().saturating_sub(self.max_host);
        for (gone, _) in state.host.drain(..surplus) {
            gone.set_in_host(false);
        }
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
        adapter.retire();
        Ok(adapter)
    }

    /// Frees the host memory of an adapter that no request uses.
    pub(crate) fn forget(&self, adapter: &Adapter) {
        self.lock().host.retain(|(held, _)| held.number != adapter.number);
        adapter.set_in_host(false);
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
    pub(crate) fn weights(&self, adapter: &Arc<Adapter>) -> Result<Arc<LoraAdapter>, AdapterError> {
        {
            let mut state = self.lock();
            if let Some(at) = state.host.iter().position(|(held, _)| held.number == adapter.number) {
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
        self.keep(&mut self.lock(), adapter, weights.clone());
        Ok(weights)
    }

    /// Every adapter that has a name.
    pub(crate) fn all(&self) -> Vec<Arc<Adapter>> {
        self.lock().by_name.values().cloned().collect()
    }

    /// Every adapter with its counters, by name.
    pub(crate) fn status(&self) -> Vec<AdapterStatus> {
        self.lock().by_name.values().map(|adapter| adapter.status()).collect()
    }

    /// Whether something of any adapter changed since the last call.
    pub(crate) fn take_changes(&self) -> bool {
        self.any_changed.swap(false, Ordering::AcqRel)
    }
}

fn unknown(state: &State, name: &str) -> AdapterError {
    AdapterError::Unknown {
        name: name.chars().take(64).collect(),
        known: state.by_name.keys().take(SHOWN_NAMES).cloned().collect(),
    }
}
