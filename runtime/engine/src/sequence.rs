//! A sequence inside the engine: one sample of a request, with what its device row needs to know.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Instant;

use halyard_platform_api::ops::SamplingRow;
use halyard_scheduler::RequestId;
use tokio::sync::mpsc::UnboundedSender;

use crate::life::Life;
use crate::lora::adapter::Adapter;
use crate::output::{FinishReason, TokenLogprobs};
use crate::params::SamplingParams;
use crate::state::{RowState, Writes};

/// What a sequence's reader is sent. At most `max_tokens` and two messages a sequence, so the channel needs no bound of its own.
#[derive(Debug)]
pub(crate) enum SequenceEvent {
    /// Prompt log-probabilities are complete.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// A token came.
    Token {
        id: u32,
        logprobs: Option<TokenLogprobs>,
        num_cached_tokens: u32,
        finish: Option<FinishReason>,
    },
    /// The engine ended the sequence without a further token.
    Finished(FinishReason),
}

/// Which sampler a row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sampler {
    /// Argmax of the logits.
    Greedy,
    /// A draw from the logits.
    Random,
    /// Logits are processed first.
    Full,
}

/// Below this a division by the temperature overflows; vLLM's bound (`_SAMPLING_EPS`).
const GREEDY_BELOW: f32 = 1e-5;

fn is_greedy(p: &SamplingParams) -> bool {
    p.temperature < GREEDY_BELOW
}

/// Live sequences by id. Ids are this process's own counter, so one multiplication spreads them well enough.
pub(crate) type Sequences = HashMap<RequestId, Sequence, BuildHasherDefault<IdHasher>>;

/// Hashes one u64: Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// A live sequence.
pub(crate) struct Sequence {
    /// Which of the request's samples.
    pub index: u32,
    pub params: Arc<SamplingParams>,
    pub prompt: Arc<[u32]>,
    pub seed: u64,
    /// Tokens that end it: end-of-sequence ids first, then the request's own.
    pub stops: Vec<u32>,
    pub num_eos: usize,
    pub sampler: Sampler,
    pub events: UnboundedSender<(u32, SequenceEvent)>,
    pub arrival: Instant,
    pub first_token: Option<Instant>,
    pub queue_ns: u64,
    pub num_output: u32,
    pub num_cached: u32,
    /// What its records say.
    pub life: Life,
    /// Its adapter, which is not forgotten before it ends.
    pub lora: Option<Arc<Adapter>>,
    /// It had a device row at least once.
    pub admitted: bool,
    /// Collected prompt log-probabilities, by position.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
}

impl Sequence {
    /// The sampler that `params` ask for.
    pub(crate) fn sampler_of(p: &SamplingParams) -> Sampler {
        let processes = p.presence_penalty != 0.0
            || p.frequency_penalty != 0.0
            || p.repetition_penalty != 1.0
            || !p.logit_bias.is_empty()
            || p.allowed_token_ids.is_some()
            || !p.bad_words_token_ids.is_empty()
            || p.min_tokens > 0;
        match (processes, is_greedy(p)) {
            (true, _) => Sampler::Full,
            (false, true) => Sampler::Greedy,
            (false, false) => Sampler::Random,
        }
    }

    /// What another rank's device needs to know of it. Nobody hears its events.
    pub(crate) fn replica(&self) -> Sequence {
        Sequence {
            index: self.index,
            params: self.params.clone(),
            prompt: self.prompt.clone(),
            seed: self.seed,
            stops: self.stops.clone(),
            num_eos: self.num_eos,
            sampler: self.sampler,
            events: tokio::sync::mpsc::unbounded_channel().0,
            arrival: self.arrival,
            first_token: None,
            queue_ns: 0,
            num_output: self.num_output,
            num_cached: self.num_cached,
            life: self.life.clone(),
            lora: self.lora.clone(),
            admitted: true,
            prompt_logprobs: self.prompt_logprobs.as_ref().map(|_| Vec::new()),
        }
    }

    /// How a token ends the sequence, if it does.
    pub(crate) fn stop_reason(&self, token: u32) -> Option<FinishReason> {
        if self.num_output < self.params.min_tokens {
            return None;
        }
        let at = self.stops.iter().position(|&stop| stop == token)?;
        Some(if at < self.num_eos {
            FinishReason::Eos
        } else {
            FinishReason::StopToken(token)
        })
    }

    /// Writes the sampling state of device row `row`.
    pub(crate) fn upload(&self, row: u32, rows: &RowState, writes: &mut Writes) {
        let p = &self.params;
        let sampling = SamplingRow {
            seed: self.seed,
            prompt_len: self.prompt.len() as u32,
            temperature: if is_greedy(p) { 0.0 } else { p.temperature },
            top_k: p.top_k,
            top_p: p.top_p,
            min_p: p.min_p,
            repetition_penalty: p.repetition_penalty,
            presence_penalty: p.presence_penalty,
            frequency_penalty: p.frequency_penalty,
            min_tokens: p.min_tokens,
            num_bias: p.logit_bias.len() as u32,
            num_stop: self.stops.len() as u32,
            num_bad_words: p.bad_words_token_ids.len() as u32,
            use_mask: u32::from(p.allowed_token_ids.is_some()),
            reserved: [0; 17],
        };
        writes.bytes(
            &rows.sampling,
            u64::from(row) * size_of::<SamplingRow>() as u64,
            &sampling.to_bytes(),
        );
        if self.sampler != Sampler::Full {
            return;
        }
        let at = |tensor: &halyard_platform_api::Tensor| u64::from(row) * u64::from(tensor.strides[0]);
        writes.words(
            &rows.bias_tokens,
            at(&rows.bias_tokens),
            p.logit_bias.iter().map(|(id, _)| *id),
        );
        writes.words(
            &rows.bias_values,
            at(&rows.bias_values),
            p.logit_bias.iter().map(|(_, bias)| bias.to_bits()),
        );
        writes.words(&rows.stop_tokens, at(&rows.stop_tokens), self.stops.iter().copied());
        let words = p
            .bad_words_token_ids
            .iter()
            .flat_map(|w| std::iter::once(w.len() as u32).chain(w.iter().copied()));
        writes.words(&rows.bad_words, at(&rows.bad_words), words);
        if let Some(allowed) = &p.allowed_token_ids {
            let mut mask = vec![0u32; rows.allowed_mask.shape[1] as usize];
            for &id in allowed {
                mask[id as usize / 32] |= 1 << (id % 32);
            }
            writes.words(&rows.allowed_mask, at(&rows.allowed_mask), mask);
        }
    }
}
