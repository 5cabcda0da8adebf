//! Recorded decode steps: two reusable command buffers for each bucket of sequences (forward; head, sampler and the
//! rows' update), made when such steps recur, and kept. A step is padded to its bucket; the host writes step data only.
//!
//! A recording that cannot be made or that fails its check is never used: its steps are encoded anew, and the log says
//! why. Newly encoded steps keep the bucket's shape. So some ranks may replay while others encode, and collectives
//! still match.

use std::sync::Arc;
use std::time::Instant;

use halyard_platform_api::{CommandBuffer, CommandId, Status};

use crate::buckets::decode_shape;
use crate::config::RecordingConfig;
use crate::device_model::{DeviceModel, SampledRange, TokenCounts, Wanted};
use crate::error::RunnerError;
use crate::row::Sampler;
use crate::scratch::Scratch;
use crate::self_test::check_recording;

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
    scratch: Scratch,
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

    /// Where the steps of checks run.
    pub(crate) fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    /// The bucket of a decode step of `num_seqs` sequences, with its recordings, made now if it is time. `None`: encode
    /// the step in its own size.
    ///
    /// # Errors
    /// A device that was lost or hangs; any other failure only refuses the recording.
    pub(crate) fn bucket_of(
        &mut self,
        model: &mut DeviceModel,
        num_seqs: u32,
        sampler: Sampler,
        lora_slot: Option<u32>,
    ) -> Result<Option<Bucketed>, RunnerError> {
        let kind = usize::from(lora_slot.is_some());
        let index = self.sizes.partition_point(|&size| size < num_seqs);
        let Some(&size) = self.sizes.get(index) else {
            return Ok(None);
        };
        let bucket = &mut self.buckets[index];
        let (forward, head) = (&bucket.forward[kind], &bucket.heads[sampler as usize]);
        if let (Recorded::Ready(forward), Recorded::Ready(head)) = (forward, head) {
            let commands = Some([forward.id(), head.id()]);
            return Ok(Some(Bucketed { size, commands }));
        }
        if matches!(forward, Recorded::Refused) || matches!(head, Recorded::Refused) {
            return Ok(Some(Bucketed { size, commands: None }));
        }
        bucket.steps[kind] += 1;
        if bucket.steps[kind] < self.from_step {
            return Ok(None);
        }
        let known = [forward.clone(), head.clone()];
        let (forward, head) = self.make(model, size, sampler, known, lora_slot)?;
        let commands = match (&forward, &head) {
            (Recorded::Ready(forward), Recorded::Ready(head)) => Some([forward.id(), head.id()]),
            _ => None,
        };
        self.buckets[index].forward[kind] = forward;
        self.buckets[index].heads[sampler as usize] = head;
        Ok(Some(Bucketed { size, commands }))
    }

    /// Records the missing parts and checks them. `lora_slot`: of an adapter that may be used, for steps with adapters.
    fn make(
        &mut self,
        model: &mut DeviceModel,
        size: u32,
        sampler: Sampler,
        known: [Recorded; 2],
        lora_slot: Option<u32>,
    ) -> Result<(Recorded, Recorded), RunnerError> {
        let start = Instant::now();
        let recorded = match record(model, size, sampler, &known, lora_slot.is_some()) {
            Ok(recorded) => Ok(recorded),
            Err(RunnerError::Device(error)) if !is_fatal(error.status) => Err(error.to_string()),
            Err(fatal) => return Err(fatal),
        };
        let why = match agreed(model, recorded)? {
            Ok((forward, head)) => {
                let verdict = self.verdict(model, (size, sampler), [forward.id(), head.id()], lora_slot)?;
                match agreed(model, verdict)? {
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

    /// Checks a new recording of a bucket, if checks are on.
    fn verdict(
        &mut self,
        model: &mut DeviceModel,
        bucket: (u32, Sampler),
        commands: [CommandId; 2],
        lora_slot: Option<u32>,
    ) -> Result<Result<(), String>, RunnerError> {
        if !self.check {
            return Ok(Ok(()));
        }
        match check_recording(model, &mut self.scratch, bucket, commands, lora_slot) {
            // Other ranks wait in the collectives of the steps that this one did not run.
            Err(error) if model.group().is_some() => Err(error),
            Err(RunnerError::Device(error)) if !is_fatal(error.status) => Ok(Err(error.to_string())),
            verdict => verdict,
        }
    }
}

/// `own`, if all ranks agree; otherwise a refusal, because ranks that replay and ranks that check would wait for each
/// other.
fn agreed<T>(model: &DeviceModel, own: Result<T, String>) -> Result<Result<T, String>, RunnerError> {
    let carried = match model.group() {
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
    model: &mut DeviceModel,
    size: u32,
    sampler: Sampler,
    known: &[Recorded; 2],
    adapted: bool,
) -> Result<(Arc<dyn CommandBuffer>, Arc<dyn CommandBuffer>), RunnerError> {
    let shape = decode_shape(size);
    let forward = match &known[0] {
        Recorded::Ready(forward) => forward.clone(),
        _ => model.record(|model, encoder| model.encode_forward(encoder, shape, adapted))?,
    };
    if let Recorded::Ready(head) = &known[1] {
        return Ok((forward, head.clone()));
    }
    let wanted = Wanted {
        sampler,
        logprobs: false,
    };
    let head = model.record(|model, encoder| {
        model.encode_sampling(encoder, shape, SampledRange::all(size, 1), wanted, 0)?;
        model.encode_update(encoder, shape, TokenCounts::One)
    })?;
    Ok((forward, head))
}

/// After these nothing on the device can go on.
fn is_fatal(status: Status) -> bool {
    matches!(status, Status::DeviceLost | Status::Timeout)
}
