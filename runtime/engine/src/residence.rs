//! The model as the engine's thread holds it: on its devices, there with its weights alone, or gone; and how it comes
//! and goes. Knows no requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use halyard_models::ModelFiles;
use halyard_platform_api::Device;
use halyard_runner::{Loaded, LoadedWeights, LoraMemory, PanicGuard, RankGroup, Ranks, Runner, load_weights};

use crate::error::EngineError;
use crate::model_source::{ModelSource, OpenedWeights};
use crate::pause::ControlError;
use crate::shared::Shared;
use crate::sleep::{SleepLevel, SleepState, WakeTags};

/// A model that can compute.
pub(crate) struct OnDevice {
    /// Goes first: when this thread panics, the other ranks hear of it before the runner waits for work that they may
    /// never do.
    _guard: Option<PanicGuard>,
    /// Rank 0. When the engine ends, it is dropped before the other ranks are joined: they may wait for it in a
    /// collective.
    pub runner: Runner,
    pub ranks: Option<Ranks>,
}

impl OnDevice {
    /// Starts the threads of the ranks other than rank 0, which is the engine's own. When one fails, requests are
    /// refused from then on.
    ///
    /// # Errors
    /// A thread that does not start.
    pub(crate) fn start(
        runner: Runner,
        others: Option<(Arc<RankGroup>, Vec<Runner>)>,
        max_in_flight: u32,
        shared: &Arc<Shared>,
    ) -> Result<OnDevice, EngineError> {
        let start_others = |(group, runners): (Arc<RankGroup>, _)| {
            let stopped = shared.clone();
            group.listen(move |failure| stopped.stop(failure));
            Ranks::start(runners, group, max_in_flight)
        };
        let ranks = others.map(start_others).transpose()?;
        Ok(OnDevice {
            _guard: ranks.as_ref().map(Ranks::panic_guard),
            runner,
            ranks,
        })
    }

    /// Gives the devices' memory back. No step is in flight: the other ranks end what they still do while rank 0 is
    /// there, and then leave.
    fn leave(self) {
        let OnDevice { _guard, runner, ranks } = self;
        drop(ranks);
        drop(runner);
    }
}

/// How much of the model is on the devices.
enum Place {
    OnDevice(Box<OnDevice>),
    /// A wake has brought its weights, and no KV cache yet.
    Weights(Box<(LoadedWeights, ModelFiles)>),
    /// The engine sleeps, or a load has failed.
    Gone,
}

/// A model and where it comes from.
pub(crate) struct Residence {
    place: Place,
    /// Of the last sleep.
    level: SleepLevel,
    source: Arc<ModelSource>,
    /// The folder of the present weights.
    path: PathBuf,
    /// The files of the present weights, where they are kept.
    files: Option<ModelFiles>,
    max_in_flight: u32,
    shared: Arc<Shared>,
    /// Last: the devices outlive everything on them.
    devices: Vec<Arc<dyn Device>>,
}

impl Residence {
    /// `files` were loaded as `on_device`.
    pub(crate) fn new(
        on_device: OnDevice,
        (source, files): (Arc<ModelSource>, ModelFiles),
        max_in_flight: u32,
        shared: Arc<Shared>,
        devices: Vec<Arc<dyn Device>>,
    ) -> Residence {
        Residence {
            place: Place::OnDevice(Box::new(on_device)),
            level: SleepLevel::One,
            path: source.model.path.clone(),
            files: source.sleep_mode.then_some(files),
            source,
            max_in_flight,
            shared,
            devices,
        }
    }

    /// The model, if it can compute.
    pub(crate) fn on_device(&mut self) -> Option<&mut OnDevice> {
        match &mut self.place {
            Place::OnDevice(model) => Some(model),
            Place::Weights(_) | Place::Gone => None,
        }
    }

    /// The group of the ranks, where there are several.
    pub(crate) fn ranks(&self) -> Option<&Ranks> {
        match &self.place {
            Place::OnDevice(model) => model.ranks.as_ref(),
            Place::Weights(_) | Place::Gone => None,
        }
    }

    /// Whether the model cannot compute.
    pub(crate) fn is_asleep(&self) -> bool {
        !matches!(self.place, Place::OnDevice(_))
    }

    /// Gives the devices' memory back, and at level 2 what is kept of the files. A model that sleeps already sleeps as
    /// deep as was asked before, or deeper. No step is in flight, and nobody else holds memory of the model.
    pub(crate) fn sleep(&mut self, level: SleepLevel) {
        let before = self.is_asleep().then_some(self.level);
        self.leave();
        self.level = before.map_or(level, |before| before.max(level));
        if self.level == SleepLevel::Two {
            self.files = None;
        }
        self.shared.sleep.set(self.level.into());
        tracing::info!(level = ?self.level, "the engine sleeps: the device's memory was given back");
    }

    fn leave(&mut self) {
        match std::mem::replace(&mut self.place, Place::Gone) {
            Place::OnDevice(model) => model.leave(),
            Place::Weights(both) => self.files = Some(both.1),
            Place::Gone => {}
        }
    }

    /// Brings back what `tags` say. The device slots of adapters, where the model has just become able to compute.
    ///
    /// # Errors
    /// [`ControlError::WeightsFirst`], [`ControlError::WakeFailed`]. After the latter nothing is on the devices, and
    /// another wake may succeed.
    pub(crate) fn wake(&mut self, tags: WakeTags) -> Result<Option<LoraMemories>, ControlError> {
        let failed = |reason| ControlError::WakeFailed { reason };
        if tags.weights && matches!(self.place, Place::Gone) {
            self.load_weights().map_err(failed)?;
        }
        match &self.place {
            Place::Weights(_) if tags.kv_cache => self.finish().map(Some).map_err(failed),
            Place::Gone => Err(ControlError::WeightsFirst),
            Place::OnDevice(_) | Place::Weights(_) => Ok(None),
        }
    }

    /// Puts other weights in the place of the present ones, as far as these are on the devices; of a model that sleeps
    /// the next wake loads them. No step is in flight, and nobody else holds memory of the model. The device slots of
    /// adapters, where the model can compute after it, and the former folder.
    ///
    /// # Errors
    /// [`ControlError::ReloadFailed`]: the former weights are there again, or, as it says then, nothing is on the
    /// devices, and a wake tries again to bring them.
    pub(crate) fn reload(&mut self, opened: OpenedWeights) -> (Option<LoraMemories>, Result<PathBuf, ControlError>) {
        let (computes, has_weights) = (!self.is_asleep(), !matches!(self.place, Place::Gone));
        self.leave();
        let former = (std::mem::replace(&mut self.path, opened.path), self.files.take());
        if !has_weights {
            // A wake from level 2 opens the folder again.
            self.files = (self.level == SleepLevel::One).then_some(opened.files);
            return (None, Ok(former.0));
        }
        self.files = Some(opened.files);
        let reason = match self.bring(computes) {
            Ok(memories) => return (memories, Ok(former.0)),
            Err(reason) => reason,
        };
        tracing::error!(path = %self.path.display(), "other weights could not be loaded: {reason}");
        (self.path, self.files) = former;
        let again = self.bring(computes);
        let lost = again.as_ref().err().cloned();
        if lost.is_some() {
            self.sleep(SleepLevel::Two);
        }
        (again.ok().flatten(), Err(ControlError::ReloadFailed { reason, lost }))
    }

    fn bring(&mut self, computes: bool) -> Result<Option<LoraMemories>, String> {
        self.load_weights()?;
        computes.then(|| self.finish()).transpose()
    }

    /// The first half of a load: from the files that are kept, else from the folder as it is now.
    fn load_weights(&mut self) -> Result<(), String> {
        let files = match self.files.take() {
            Some(files) => match files.weights.check_unchanged() {
                Ok(()) => files,
                Err(error) => {
                    self.files = Some(files);
                    return Err(format!(
                        "{error}: the weights of before are not there any more; sleep at level 2 and wake up to load \
                         the folder as it is"
                    ));
                }
            },
            None => self.source.open(&self.path).map_err(|error| error.to_string())?.files,
        };
        let start = Instant::now();
        match load_weights(&self.source.runner, &self.devices, &files, &mut |_| {}) {
            Ok(loaded) => {
                let ms = start.elapsed().as_millis() as u64;
                tracing::info!(path = %self.path.display(), ms, "weights were loaded");
                self.place = Place::Weights(Box::new((loaded, files)));
                Ok(())
            }
            Err(error) => {
                self.put_back(files);
                Err(error.to_string())
            }
        }
    }

    /// The second half of a load: the KV cache, as large as before.
    fn finish(&mut self) -> Result<LoraMemories, String> {
        let Place::Weights(both) = std::mem::replace(&mut self.place, Place::Gone) else {
            return Err("the weights are not on the device".to_owned());
        };
        let (loaded, files) = *both;
        let finished = loaded.finish(&self.source.runner, &files).map_err(EngineError::from);
        let started = finished.and_then(|loaded| {
            let memories = lora_memories(&loaded);
            let model = OnDevice::start(loaded.runner, loaded.others, self.max_in_flight, &self.shared)?;
            Ok((memories, model))
        });
        match started {
            Ok((memories, model)) => {
                self.place = Place::OnDevice(Box::new(model));
                self.files = self.source.sleep_mode.then_some(files);
                self.level = SleepLevel::One;
                self.shared.sleep.set(SleepState::Awake);
                Ok(memories)
            }
            Err(error) => {
                self.put_back(files);
                Err(error.to_string())
            }
        }
    }

    /// After a load that failed. A wake from level 2 opens the folder again.
    fn put_back(&mut self, files: ModelFiles) {
        self.files = (self.level == SleepLevel::One).then_some(files);
    }
}

/// The device slots of adapters, by rank.
pub(crate) type LoraMemories = Vec<Arc<LoraMemory>>;

/// Those of a model; none where no adapters are served.
pub(crate) fn lora_memories(loaded: &Loaded) -> LoraMemories {
    let others = loaded.others.iter().flat_map(|(_, runners)| runners);
    let runners = std::iter::once(&loaded.runner).chain(others);
    runners.filter_map(|runner| runner.lora_memory().cloned()).collect()
}
