//! Recorded decode steps: two reusable command buffers for each bucket of sequences (forward; head, sampler and the rows' update),
//! made when such steps recur, and kept. A step is padded to its bucket; the host writes step data only.
//!
//! A recording that cannot be made or that fails its check is never used: its steps are encoded anew, and the log says why. They keep
//! the bucket's shape, so that of several ranks some may replay and some encode, and collectives still match.

use std::sync::Arc;
use std::time::Instant;

use halyard_platform_api::{Capabilities, CommandBuffer, CommandId, DeviceInfo, EncoderMode, Status};

use crate::compile::StepShape;
use crate::config::RecordingConfig;
use crate::error::EngineError;
use crate::runner::{Runner, Wanted};
use crate::self_check::Scratch;
use crate::sequence::Sampler;

/// Recordings of one bucket.
#[derive(Default)]
struct Bucket {
    /// Decode steps that came and were not recorded: without adapters, with adapters.
    steps: [u32; 2],
    /// The same two.
    forward: [Recorded; 2],
    /// By sampler.
    heads: [Recorded; 3],
}

#[derive(Clone, Default)]
enum Recorded {
    #[default]
    Untried,
    Ready(Arc<dyn CommandBuffer>),
    Refused,
}

/// All recordings of a model.
pub(crate) struct Recordings {
    sizes: Vec<u32>,
    buckets: Vec<Bucket>,
    pub scratch: Scratch,
    check: bool,
    from_step: u32,
}

/// How a decode step runs.
pub(crate) struct Bucketed {
    /// Sequences that it is padded to.
    pub size: u32,
    /// The recordings to submit; `None`: they were refused, encode the step.
    pub commands: Option<[CommandId; 2]>,
}

impl Recordings {
    pub(crate) fn new(sizes: Vec<u32>, scratch: Scratch, config: &RecordingConfig) -> Recordings {
        Recordings {
            buckets: sizes.iter().map(|_| Bucket::default()).collect(),
            sizes,
            scratch,
            check: config.check,
            from_step: config.from_step,
        }
    }
}

/// Whether decode steps are to be recorded on such a device; otherwise why not.
pub(crate) fn wanted(config: &RecordingConfig, info: &DeviceInfo, attention_records: bool) -> Result<(), &'static str> {
    if config.enforce_eager {
        Err("--enforce-eager")
    } else if !info.capabilities.has(Capabilities::RECORDING) {
        Err("the device claims no recording")
    } else if !attention_records {
        Err("the attention backend cannot record decode")
    } else {
        Ok(())
    }
}

/// Sequence counts that recordings are made for, ascending: 1, 2, 4, steps of 8 to 256, then of 16, and `max_seqs` (vLLM's list).
/// A device that names its own takes those of them that fit.
pub(crate) fn bucket_sizes(max_seqs: u32, device_buckets: &[u32]) -> Vec<u32> {
    let mut sizes: Vec<u32> = if device_buckets.is_empty() {
        let small = [1, 2, 4].into_iter().chain((8..=256).step_by(8));
        small.chain((272..max_seqs).step_by(16)).chain([max_seqs]).collect()
    } else {
        device_buckets.to_vec()
    };
    sizes.retain(|&size| (1..=max_seqs).contains(&size));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

impl Runner {
    /// The bucket of a decode step of `num_seqs` sequences, with its recordings, made now if it is time. `None`: encode the step in
    /// its own size.
    ///
    /// # Errors
    /// A device that was lost or hangs; anything else that goes wrong only refuses the recording.
    pub(crate) fn bucket_of(
        &mut self,
        num_seqs: u32,
        sampler: Sampler,
        lora_slot: Option<u32>,
    ) -> Result<Option<Bucketed>, EngineError> {
        let kind = usize::from(lora_slot.is_some());
        let Some(recordings) = &mut self.recordings else {
            return Ok(None);
        };
        let index = recordings.sizes.partition_point(|&size| size < num_seqs);
        let Some(&size) = recordings.sizes.get(index) else {
            return Ok(None);
        };
        let bucket = &mut recordings.buckets[index];
        let (forward, head) = (&bucket.forward[kind], &bucket.heads[sampler as usize]);
        if let (Recorded::Ready(forward), Recorded::Ready(head)) = (forward, head) {
            let commands = Some([forward.id(), head.id()]);
            return Ok(Some(Bucketed { size, commands }));
        }
        if matches!(forward, Recorded::Refused) || matches!(head, Recorded::Refused) {
            return Ok(Some(Bucketed { size, commands: None }));
        }
        bucket.steps[kind] += 1;
        if bucket.steps[kind] < recordings.from_step {
            return Ok(None);
        }
        let known = [forward.clone(), head.clone()];
        let (forward, head) = self.make(size, sampler, known, lora_slot)?;
        let commands = match (&forward, &head) {
            (Recorded::Ready(forward), Recorded::Ready(head)) => Some([forward.id(), head.id()]),
            _ => None,
        };
        if let Some(recordings) = &mut self.recordings {
            recordings.buckets[index].forward[kind] = forward;
            recordings.buckets[index].heads[sampler as usize] = head;
        }
        Ok(Some(Bucketed { size, commands }))
    }

    /// Records what is missing and checks it. `lora_slot`: of an adapter that may be used, for steps with adapters.
    fn make(
        &mut self,
        size: u32,
        sampler: Sampler,
        known: [Recorded; 2],
        lora_slot: Option<u32>,
    ) -> Result<(Recorded, Recorded), EngineError> {
        let start = Instant::now();
        let recorded = match self.record(size, sampler, &known, lora_slot.is_some()) {
            Ok(recorded) => Ok(recorded),
            Err(EngineError::Device(error)) if !is_fatal(error.status) => Err(error.to_string()),
            Err(fatal) => return Err(fatal),
        };
        let why = match self.agreed(recorded)? {
            Ok((forward, head)) => {
                let verdict = self.verdict(size, sampler, [forward.id(), head.id()], lora_slot)?;
                match self.agreed(verdict)? {
                    Ok(()) => {
                        let ms = start.elapsed().as_millis() as u64;
                        tracing::debug!(
                            bucket = size,
                            ?sampler,
                            adapters = lora_slot.is_some(),
                            ms,
                            "decode step recorded"
                        );
                        return Ok((Recorded::Ready(forward), Recorded::Ready(head)));
                    }
                    Err(mismatch) => mismatch,
                }
            }
            Err(why) => why,
        };
        tracing::warn!(bucket = size, ?sampler, "a recorded decode step is not used: {why}");
        match known {
            // The forward part served another sampler before: only this head is at fault.
            [forward @ Recorded::Ready(_), _] => Ok((forward, Recorded::Refused)),
            // And the other way round: steps without adapters, or with them, used this head.
            [_, head @ Recorded::Ready(_)] => Ok((Recorded::Refused, head)),
            _ => Ok((Recorded::Refused, Recorded::Refused)),
        }
    }

    /// The check of a new recording, where it is wanted.
    fn verdict(
        &mut self,
        size: u32,
        sampler: Sampler,
        commands: [CommandId; 2],
        lora_slot: Option<u32>,
    ) -> Result<Result<(), String>, EngineError> {
        if !self.recordings.as_ref().is_some_and(|recordings| recordings.check) {
            return Ok(Ok(()));
        }
        match self.check_recording(size, sampler, commands, lora_slot) {
            // Other ranks wait in the collectives of the steps that this one did not run.
            Err(error) if self.group.is_some() => Err(error),
            Err(EngineError::Device(error)) if !is_fatal(error.status) => Ok(Err(error.to_string())),
            verdict => verdict,
        }
    }

    /// The same where all ranks agree, otherwise a refusal: ranks that replay and ranks that check would wait for each other.
    fn agreed<T>(&self, own: Result<T, String>) -> Result<Result<T, String>, EngineError> {
        let carried = match &self.group {
            Some(group) => group.agree(own.is_ok())?,
            None => true,
        };
        Ok(match own {
            Ok(_) if !carried => Err("another rank cannot use its own".to_string()),
            own => own,
        })
    }

    #[allow(clippy::type_complexity, reason = "two command buffers")]
    fn record(
        &mut self,
        size: u32,
        sampler: Sampler,
        known: &[Recorded; 2],
        adapted: bool,
    ) -> Result<(Arc<dyn CommandBuffer>, Arc<dyn CommandBuffer>), EngineError> {
        let shape = decode_shape(size);
        let forward = match &known[0] {
            Recorded::Ready(forward) => forward.clone(),
            _ => {
                let mut encoder = self.device.create_encoder(EncoderMode::Reusable)?;
                self.encode_forward(&mut *encoder, shape, adapted)?;
                encoder.finish()?
            }
        };
        if let Recorded::Ready(head) = &known[1] {
            return Ok((forward, head.clone()));
        }
        let mut encoder = self.device.create_encoder(EncoderMode::Reusable)?;
        let wanted = Wanted {
            sampler,
            logprobs: false,
        };
        self.encode_sampling(&mut *encoder, shape, size, wanted, 0)?;
        self.encode_update(&mut *encoder, shape)?;
        Ok((forward, encoder.finish()?))
    }
}

/// A step of one token for each of `size` sequences.
pub(crate) fn decode_shape(size: u32) -> StepShape {
    StepShape {
        tokens: size,
        seqs: size,
        logits: 0,
        logits_first: 0,
        direct: true,
    }
}

/// After these nothing on the device can go on.
fn is_fatal(status: Status) -> bool {
    matches!(status, Status::DeviceLost | Status::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_the_most_sequences_and_stay_close() {
        assert_eq!(bucket_sizes(1, &[]), [1]);
        assert_eq!(bucket_sizes(8, &[]), [1, 2, 4, 8]);
        assert_eq!(bucket_sizes(13, &[]), [1, 2, 4, 8, 13]);
        let sizes = bucket_sizes(500, &[]);
        assert_eq!(sizes.last(), Some(&500));
        assert!(sizes.contains(&256) && sizes.contains(&272) && sizes.contains(&496));
        assert!(
            sizes
                .windows(2)
                .all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 16)
        );
    }

    #[test]
    fn a_devices_own_buckets_are_taken_where_they_fit() {
        assert_eq!(bucket_sizes(100, &[64, 16, 128, 0, 16]), [16, 64]);
    }
}
