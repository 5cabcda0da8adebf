//! A sequence inside the engine: one sample of a request, with the state for its device row.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Instant;

use halyard_platform_api::ops::SamplingRow;
use halyard_runner::{Constraints, RowOutput, RowSpec, Sampler};
use halyard_scheduler::RequestId;
use tokio::sync::mpsc::UnboundedSender;

use crate::drafts::Drafting;
use crate::facts::SequenceFacts;
use crate::guide_workers::SequenceGuide;
use crate::lora::adapter::Adapter;
use crate::output::{FinishReason, TokenLogprobs};
use crate::params::SamplingParams;

/// What the engine's thread sends to the reader of sample `index` of a request. At most `max_tokens` and two messages a
/// sequence, so the channel needs no bound of its own. Small, as every token of a step is one.
#[derive(Debug)]
pub(crate) enum Message {
    /// One more token, of which there is nothing else to say.
    Token { index: u32, id: u32 },
    /// All else.
    Event { index: u32, event: Box<SequenceEvent> },
}

/// What happened to a sequence.
#[derive(Debug)]
pub(crate) enum SequenceEvent {
    /// Prompt log-probabilities are complete.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// A token came: the first, the last, or one with log-probabilities.
    Token {
        id: u32,
        logprobs: Option<TokenLogprobs>,
        num_cached_tokens: u32,
        finish: Option<FinishReason>,
    },
    /// The last hidden state came, which ends the sequence.
    HiddenState { values: Vec<f32>, num_cached_tokens: u32 },
    /// The engine ended the sequence without a further token.
    Finished(FinishReason),
}

/// A lower temperature that is not 0 counts as this, as in vLLM (`_MAX_TEMP`): logits are divided by it.
const MIN_TEMPERATURE: f32 = 0.01;

fn is_greedy(p: &SamplingParams) -> bool {
    p.temperature == 0.0
}

/// The sampler that `params` ask for.
fn sampler_of(p: &SamplingParams) -> Sampler {
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
    /// What its device row must know. Its stops are end-of-sequence ids first, then the request's own.
    pub row: Arc<RowSpec>,
    pub num_eos: usize,
    pub messages: UnboundedSender<Message>,
    pub arrival: Instant,
    pub first_token: Option<Instant>,
    pub queue_ns: u64,
    pub num_output: u32,
    pub num_cached: u32,
    /// What its records say.
    pub facts: SequenceFacts,
    /// Its adapter, which is not forgotten before it ends.
    pub lora: Option<Arc<Adapter>>,
    /// It had a device row at least once.
    pub admitted: bool,
    /// Says which tokens may come next; `None`: any may.
    pub guide: Option<SequenceGuide>,
    /// Its tokens, where some may be drafted.
    pub drafting: Option<Drafting>,
    /// Collected prompt log-probabilities, by position.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
}

impl Sequence {
    /// Tells its reader, who may be gone.
    pub(crate) fn tell(&self, event: SequenceEvent) {
        let _ = self.messages.send(Message::Event {
            index: self.index,
            event: Box::new(event),
        });
    }

    /// Tells its reader of a token.
    pub(crate) fn tell_token(&self, id: u32, logprobs: Option<&TokenLogprobs>, finish: Option<&FinishReason>) {
        if self.num_output > 1 && logprobs.is_none() && finish.is_none() {
            let index = self.index;
            let _ = self.messages.send(Message::Token { index, id });
            return;
        }
        self.tell(SequenceEvent::Token {
            id,
            logprobs: logprobs.cloned(),
            num_cached_tokens: self.num_cached,
            finish: finish.cloned(),
        });
    }

    /// How a token ends the sequence, if it does.
    pub(crate) fn stop_reason(&self, token: u32) -> Option<FinishReason> {
        if self.num_output < self.params.min_tokens {
            return None;
        }
        let at = self.row.constraints.stops.iter().position(|&stop| stop == token)?;
        Some(if at < self.num_eos {
            FinishReason::Eos
        } else {
            FinishReason::StopToken(token)
        })
    }

    /// Whether it came with a guide.
    pub(crate) fn is_guided(&self) -> bool {
        self.row.output == RowOutput::MaskedToken
    }

    /// What its device row must know. Prompt positions are scored once, also when it gets a second row.
    pub(crate) fn row_spec(&self) -> Arc<RowSpec> {
        match self.prompt_logprobs.is_some() || self.row.prompt_logprobs.is_none() {
            true => Arc::clone(&self.row),
            false => Arc::new(RowSpec {
                prompt_logprobs: None,
                ..(*self.row).clone()
            }),
        }
    }
}

/// The lists of a request's parameters, with the tokens that end it.
pub(crate) fn constraints(p: &SamplingParams, stops: Vec<u32>) -> Arc<Constraints> {
    Arc::new(Constraints {
        logit_bias: p.logit_bias.clone(),
        stops,
        bad_words: p.bad_words_token_ids.clone(),
        allowed: p.allowed_token_ids.clone(),
    })
}

/// What the device row of a sample must know.
pub(crate) fn row_spec(p: &SamplingParams, prompt: Arc<[u32]>, seed: u64, constraints: Arc<Constraints>) -> RowSpec {
    RowSpec {
        prompt,
        sampling: SamplingRow {
            seed,
            temperature: match is_greedy(p) {
                true => 0.0,
                false => p.temperature.max(MIN_TEMPERATURE),
            },
            top_k: p.top_k,
            top_p: p.top_p,
            min_p: p.min_p,
            repetition_penalty: p.repetition_penalty,
            presence_penalty: p.presence_penalty,
            frequency_penalty: p.frequency_penalty,
            min_tokens: p.min_tokens,
            ..SamplingRow::PLAIN
        },
        sampler: sampler_of(p),
        constraints,
        output: RowOutput::Token,
        logprobs: p.logprobs,
        prompt_logprobs: p.prompt_logprobs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temperature_above_0_is_not_below_what_platforms_divide_by() {
        for (sent, used) in [(0.0, 0.0), (1e-38, 0.01), (0.01, 0.01), (0.7, 0.7)] {
            let params = SamplingParams {
                temperature: sent,
                ..SamplingParams::default()
            };
            let row = row_spec(&params, Arc::new([1]), 1, Arc::default());
            assert_eq!(row.sampling.temperature, used, "{sent}");
            assert_eq!(is_greedy(&params), sent == 0.0);
        }
    }
}
