//! Random prompts, and running them through an engine of this process. The same seed gives the same prompts on every
//! machine.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use halyard_engine::{OutputStream, Replicas, Request, SamplingParams, SubmitError};
use halyard_models::SplitMix64;

use crate::cli::lora::dummy_name;
use crate::error::ServerError;

/// Prompts of random tokens. No two share a beginning, so that nothing is found in a prefix cache.
pub(super) struct Prompts {
    pub random: SplitMix64,
    vocab_size: u32,
}

impl Prompts {
    pub(super) fn new(seed: u64, vocab_size: u32) -> Self {
        Prompts {
            random: SplitMix64(seed),
            vocab_size,
        }
    }

    /// The next prompt of `len` tokens.
    pub(super) fn next(&mut self, len: u32) -> Vec<u32> {
        (0..len)
            .map(|_| self.random.below(u64::from(self.vocab_size)) as u32)
            .collect()
    }
}

/// The results of running a set of prompts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub elapsed: Duration,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
}

/// Greedy decoding of exactly `output_len` tokens.
pub(super) fn greedy(output_len: u32) -> SamplingParams {
    SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(output_len)
    }
}

/// Submits all prompts at once, each with the next of `num_loras` dummy adapters, and waits for the last; `done` is
/// called as each request ends.
///
/// # Errors
/// [`ServerError::Refused`]: a request that was refused or that gave another number of tokens than asked for.
pub(super) fn run_all(
    engine: &Replicas,
    prompts: Vec<Vec<u32>>,
    params: &SamplingParams,
    num_loras: u32,
    mut done: impl FnMut(),
) -> Result<Run, ServerError> {
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let mut output_tokens = 0;
    let mut finish = |stream: OutputStream| -> Result<(), ServerError> {
        let output = stream.blocking_collect();
        for sample in &output.outputs {
            let found = sample.token_ids.len() as u32;
            if params.max_tokens.is_some_and(|asked| asked != found) {
                let reason = &sample.finish;
                return Err(ServerError::Refused(format!(
                    "a request ended after {found} tokens ({reason:?}), not the {:?} asked for",
                    params.max_tokens
                )));
            }
            output_tokens += u64::from(found);
        }
        done();
        Ok(())
    };
    let started = Instant::now();
    let mut streams: VecDeque<OutputStream> = VecDeque::with_capacity(prompts.len());
    for (i, prompt) in prompts.into_iter().enumerate() {
        let mut request = Request::new(format!("{i}"), prompt, params.clone());
        request.lora = (num_loras > 0).then(|| dummy_name(i as u32 % num_loras));
        loop {
            match (engine.submit(request.clone()), streams.is_empty()) {
                (Ok(stream), _) => break streams.push_back(stream),
                // More requests than may wait: the oldest ones make room.
                (Err(SubmitError::QueueFull { .. }), false) => {
                    if let Some(stream) = streams.pop_front() {
                        finish(stream)?;
                    }
                }
                (Err(error), _) => return Err(ServerError::Refused(error.to_string())),
            }
        }
    }
    for stream in streams {
        finish(stream)?;
    }
    Ok(Run {
        elapsed: started.elapsed(),
        prompt_tokens,
        output_tokens,
    })
}
