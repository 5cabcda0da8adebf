//! Several copies of a model behind one front (data parallel): each is an engine with its own devices, KV cache and
//! thread. A request goes to one of them and stays there ([`crate::placement`]). One copy is the usual case and costs
//! nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use halyard_grammar::{GrammarError, StructuredOutputs};
use halyard_models::GenerationDefaults;
use halyard_runner::ModelInfo;
use halyard_text::{ChatTemplate, Tokenizer};

use crate::error::SubmitError;
use crate::guide::GuideFactory;
use crate::handle::EngineHandle;
use crate::lora::{AdapterError, AdapterSource, AdapterStatus};
use crate::params::Request;
use crate::pause::{ControlError, PauseMode, Reply};
use crate::placement::{Placed, Placement};
use crate::sleep::{SleepLevel, SleepState, WakeTags};
use crate::stats::StatsSnapshot;
use crate::stream::OutputStream;

/// Copies of one model. Cheap to clone, for any thread.
#[derive(Clone)]
pub struct Replicas {
    engines: Arc<[EngineHandle]>,
    placement: Arc<Placement>,
}

impl From<EngineHandle> for Replicas {
    fn from(engine: EngineHandle) -> Replicas {
        Replicas::new(engine, Vec::new())
    }
}

impl Replicas {
    /// `first` and `others`, all started on the same files with the same configuration.
    pub fn new(first: EngineHandle, others: Vec<EngineHandle>) -> Replicas {
        let info = first.info();
        let kv_tokens = u64::from(info.num_blocks) * u64::from(info.block_size);
        let placement = Placement::new(1 + others.len(), info.block_size, kv_tokens, first.prefix_caching());
        Replicas {
            engines: std::iter::once(first).chain(others).collect(),
            placement: Arc::new(placement),
        }
    }

    /// The copies, in the order of their numbers.
    pub fn engines(&self) -> &[EngineHandle] {
        &self.engines
    }

    /// The copy whose tokenizer, chat template and facts stand for all.
    pub fn first(&self) -> &EngineHandle {
        &self.engines[0]
    }

    /// As [`EngineHandle::submit`], to the copy where the request has the least before it.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]. A full queue: that of every copy is full.
    pub fn submit(&self, request: Request) -> Result<OutputStream, SubmitError> {
        let [engine] = &*self.engines else {
            return self.place(request);
        };
        engine.submit(request)
    }

    fn place(&self, request: Request) -> Result<OutputStream, SubmitError> {
        let n = request.params.n;
        let placed = Placed {
            prompt: &request.prompt,
            shared_within: (request.lora.as_deref(), request.cache_salt.as_deref()),
            num_sequences: n,
        };
        let chosen = self.placement.choose(&placed, |at| self.engines[at].takes(n));
        match chosen {
            Some((at, share)) => {
                let mut stream = self.engines[at].submit(request)?;
                stream.share = Some(share);
                Ok(stream)
            }
            // All say why not; one answer is enough.
            None => self.first().submit(request),
        }
    }

    /// As [`EngineHandle::add_adapter`], on every copy. Blocks for its files.
    ///
    /// # Errors
    /// As [`EngineHandle::add_adapter`]; no copy has it then.
    pub fn add_adapter(&self, name: &str, source: AdapterSource) -> Result<(), AdapterError> {
        for (at, engine) in self.engines.iter().enumerate() {
            if let Err(error) = engine.add_adapter(name, source.clone()) {
                for earlier in &self.engines[..at] {
                    let _ = earlier.remove_adapter(name);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// As [`EngineHandle::remove_adapter`], on every copy.
    ///
    /// # Errors
    /// As [`EngineHandle::remove_adapter`].
    pub fn remove_adapter(&self, name: &str) -> Result<(), AdapterError> {
        let results = self.engines.iter().map(|engine| engine.remove_adapter(name));
        // Every copy is asked before the first error is returned.
        results.fold(Ok(()), Result::and)
    }

    /// Whether there is an adapter of this name.
    pub fn has_adapter(&self, name: &str) -> bool {
        self.first().has_adapter(name)
    }

    /// Every LoRA adapter by name, its counters of all copies together. Where it is: as far up as on any copy.
    pub fn adapters(&self) -> Vec<AdapterStatus> {
        let mut all = self.first().adapters();
        for engine in &self.engines[1..] {
            for other in engine.adapters() {
                if let Some(status) = all.iter_mut().find(|status| status.name == other.name) {
                    status.add(&other);
                }
            }
        }
        all
    }

    /// As [`EngineHandle::guide`]; a guide serves every copy.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn guide(&self, asked: &StructuredOutputs, stop_token_ids: &[u32]) -> Result<GuideFactory, GrammarError> {
        self.first().guide(asked, stop_token_ids)
    }

    /// As [`EngineHandle::kept_guide`].
    pub fn kept_guide(
        &self,
        asked: &StructuredOutputs,
        stop_token_ids: &[u32],
    ) -> Option<Result<GuideFactory, GrammarError>> {
        self.first().kept_guide(asked, stop_token_ids)
    }

    /// As [`EngineHandle::pause`], of every copy.
    ///
    /// # Errors
    /// The first copy's that has one, when all have answered.
    pub async fn pause(&self, mode: PauseMode, clear_cache: bool) -> Result<(), ControlError> {
        if clear_cache {
            self.placement.forget_prefixes();
        }
        let replies = self.engines.iter().map(|engine| engine.pause(mode, clear_cache));
        all(replies.collect()).await.map(drop)
    }

    /// As [`EngineHandle::resume`], of every copy.
    ///
    /// # Errors
    /// As [`Replicas::pause`].
    pub async fn resume(&self) -> Result<(), ControlError> {
        all(self.engines.iter().map(EngineHandle::resume).collect())
            .await
            .map(drop)
    }

    /// Whether a pause holds on any copy.
    pub fn is_paused(&self) -> bool {
        self.engines.iter().any(EngineHandle::is_paused)
    }

    /// As [`EngineHandle::reset_prefix_cache`], of every copy: true where all have forgotten theirs.
    ///
    /// # Errors
    /// As [`Replicas::pause`].
    pub async fn reset_prefix_cache(&self, reset_running_requests: bool) -> Result<bool, ControlError> {
        self.placement.forget_prefixes();
        let replies = self
            .engines
            .iter()
            .map(|engine| engine.reset_prefix_cache(reset_running_requests));
        let were_reset = all(replies.collect()).await?;
        Ok(were_reset.into_iter().all(|was_reset| was_reset))
    }

    /// As [`EngineHandle::sleep`], of every copy.
    ///
    /// # Errors
    /// As [`Replicas::pause`].
    pub async fn sleep(&self, level: SleepLevel, mode: PauseMode) -> Result<(), ControlError> {
        self.placement.forget_prefixes();
        let replies = self.engines.iter().map(|engine| engine.sleep(level, mode));
        all(replies.collect()).await.map(drop)
    }

    /// As [`EngineHandle::wake_up`], of every copy. Where one fails the others are awake; the next wake is for it.
    ///
    /// # Errors
    /// As [`Replicas::pause`].
    pub async fn wake_up(&self, tags: WakeTags) -> Result<(), ControlError> {
        let replies = self.engines.iter().map(|engine| engine.wake_up(tags));
        all(replies.collect()).await.map(drop)
    }

    /// Where the weights are; of several copies the deepest sleep.
    pub fn sleep_state(&self) -> SleepState {
        let states = self.engines.iter().map(EngineHandle::sleep_state);
        states.max().unwrap_or_default()
    }

    /// As [`EngineHandle::reload_weights`], on every copy: each has opened the folder before the first loads it. Where
    /// one cannot load it, the others go back to theirs. Blocks.
    ///
    /// # Errors
    /// As there; the first copy's that has one.
    pub fn reload_weights(&self, path: &Path) -> Result<(), ControlError> {
        let opened = self.engines.iter().map(|engine| engine.open_weights(path));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        self.placement.forget_prefixes();
        let load = |(engine, opened): (&EngineHandle, _)| engine.load_weights(opened);
        let replies: Vec<_> = self.engines.iter().zip(opened).map(load).collect();
        let loaded: Vec<_> = replies.into_iter().map(Reply::blocking_wait).collect();
        let Some(error) = loaded.iter().find_map(|loaded| loaded.as_ref().err()) else {
            return Ok(());
        };
        for (at, (engine, loaded)) in self.engines.iter().zip(&loaded).enumerate() {
            if let Ok(former) = loaded
                && let Err(error) = engine.reload_weights(former)
            {
                tracing::error!("engine {at} does not go back to {}: {error}", former.display());
            }
        }
        Err(error.clone())
    }

    /// Facts of the model on one copy.
    pub fn info(&self) -> &ModelInfo {
        self.first().info()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.first().tokenizer()
    }

    /// The chat template, where the model has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.first().chat_template()
    }

    /// Sampling defaults of the model's authors.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        self.first().generation_defaults()
    }

    /// Counters of all copies together; shares are their mean.
    pub fn stats(&self) -> StatsSnapshot {
        let mut all = self.first().stats();
        for engine in &self.engines[1..] {
            all.add(&engine.stats());
        }
        all.kv_cache_usage /= self.engines.len() as f64;
        all
    }

    /// Whether every copy runs; otherwise which does not, and why.
    ///
    /// # Errors
    /// The reason.
    pub fn health(&self) -> Result<(), String> {
        let several = self.engines.len() > 1;
        for (at, engine) in self.engines.iter().enumerate() {
            engine.health().map_err(|reason| match several {
                true => format!("engine {at}: {reason}"),
                false => reason,
            })?;
        }
        Ok(())
    }

    /// As [`EngineHandle::shutdown`], all copies at the same time. Blocks.
    pub fn shutdown(&self, deadline: Duration) {
        std::thread::scope(|scope| {
            for engine in &self.engines[1..] {
                scope.spawn(move || engine.shutdown(deadline));
            }
            self.first().shutdown(deadline);
        });
    }
}

/// The answers of all copies, which were all asked before.
async fn all<T>(replies: Vec<Reply<T>>) -> Result<Vec<T>, ControlError> {
    let mut answers = Vec::new();
    for reply in replies {
        answers.push(reply.wait().await);
    }
    answers.into_iter().collect()
}
