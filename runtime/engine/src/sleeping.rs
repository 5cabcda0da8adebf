//! Sleeping, waking and other weights on the engine's thread: what was asked, when it can be done, what becomes of the
//! requests, and the answers.

use std::path::PathBuf;

use crate::live::Live;
use crate::model_source::OpenedWeights;
use crate::pause::{Answer, ControlError, PauseMode};
use crate::pauses::{Pauses, hold, reset_cache};
use crate::residence::{LoraMemories, Residence};
use crate::sleep::{SleepLevel, WakeTags};

/// What was asked of the engine's thread and is not answered yet.
#[derive(Default)]
pub(crate) struct Sleeping {
    sleeps: Vec<(SleepLevel, Answer<()>)>,
    reloads: Vec<(OpenedWeights, Answer<PathBuf>)>,
}

impl Sleeping {
    /// The pause that goes before a sleep has begun.
    pub(crate) fn begin(&mut self, level: SleepLevel, answer: Answer<()>) {
        self.sleeps.push((level, answer));
    }

    pub(crate) fn reload(&mut self, opened: OpenedWeights, answer: Answer<PathBuf>) {
        self.reloads.push((opened, answer));
    }

    /// Gives up sleeps that are not there yet, because a resume came first.
    pub(crate) fn cancel(&mut self) {
        for (_, answer) in self.sleeps.drain(..) {
            let _ = answer.send(Err(ControlError::Resumed));
        }
    }

    /// Whether [`Sleeping::settle`] has something to do, once no step is in flight. A load of an adapter ends first: it
    /// writes to the device.
    pub(crate) fn is_due(&self, live: &Live) -> bool {
        let is_asked = !self.reloads.is_empty() || (!self.sleeps.is_empty() && live.scheduler.is_held());
        is_asked && !live.scheduler.is_loading_lora()
    }

    /// Does what was asked and answers. No step is in flight.
    pub(crate) fn settle(&mut self, live: &mut Live, model: &mut Residence) {
        for (opened, answer) in std::mem::take(&mut self.reloads) {
            let done = match model.is_asleep() || leave_device(live) {
                true => {
                    let (memories, done) = model.reload(opened);
                    enter_device(live, memories);
                    if model.is_asleep() {
                        // Also where it was awake before: then nothing can run until a wake has succeeded.
                        hold(live, PauseMode::Keep);
                    }
                    done
                }
                false => Err(ControlError::CacheInUse),
            };
            let _ = answer.send(done);
        }
        if !live.scheduler.is_held() {
            return;
        }
        for (level, answer) in std::mem::take(&mut self.sleeps) {
            let done = match model.is_asleep() || leave_device(live) {
                true => {
                    model.sleep(level);
                    Ok(())
                }
                false => Err(ControlError::CacheInUse),
            };
            let _ = answer.send(done);
        }
    }

    /// Brings back what `tags` say, at once: while the model sleeps no step is in flight. Requests go on when
    /// everything is there.
    pub(crate) fn wake(
        &mut self,
        live: &mut Live,
        model: &mut Residence,
        pauses: &mut Pauses,
        (tags, answer): (WakeTags, Answer<()>),
    ) {
        if !model.is_asleep() {
            if !self.sleeps.is_empty() {
                self.cancel();
                pauses.end(live);
            }
            let _ = answer.send(Ok(()));
            return;
        }
        let woken = model.wake(tags);
        let done = woken.map(|memories| {
            enter_device(live, memories);
            if !model.is_asleep() {
                pauses.end(live);
            }
        });
        if let Err(error) = &done {
            tracing::error!("{error}");
        }
        live.publish();
        let _ = answer.send(done);
    }
}

/// Takes everything of the requests off the device: their blocks, the prefix cache, adapters. Their tokens are computed
/// again. False: blocks are in use from outside, and the cache is as it was.
fn leave_device(live: &mut Live) -> bool {
    if !reset_cache(live, true) {
        return false;
    }
    let is_free = live.scheduler.forget_loras();
    debug_assert!(is_free, "no row uses an adapter and none is being loaded");
    if let Some(lora) = &mut live.lora {
        lora.leave_device();
    }
    is_free
}

fn enter_device(live: &mut Live, memories: Option<LoraMemories>) {
    if let (Some(lora), Some(memories)) = (&mut live.lora, memories) {
        lora.enter_device(memories);
    }
}
