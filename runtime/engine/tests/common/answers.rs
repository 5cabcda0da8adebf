//! Requests of one answer: to send, to read whole, to read the rest of.

use crate::common::Pace;
use halyard_engine::{EngineHandle, FinishReason, Llm, OutputStream, Request, SamplingParams};

pub fn submit(llm: &Llm, prompt: &[u32], max_tokens: u32) -> OutputStream {
    submit_to(llm.engine(), prompt, max_tokens)
}

pub fn submit_to(engine: &EngineHandle, prompt: &[u32], max_tokens: u32) -> OutputStream {
    let params = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(max_tokens)
    };
    let stream = engine.submit(Request::new("one", prompt.to_vec(), params));
    stream.expect("taken")
}

/// Sends a request and reads its first token; the others come slowly until the pace is quick again.
pub fn begin(llm: &Llm, pace: &Pace, prompt: &[u32], max_tokens: u32) -> (OutputStream, Vec<u32>) {
    pace.slow();
    let mut stream = submit(llm, prompt, max_tokens);
    let tokens = stream.blocking_next().expect("a token").token_ids;
    (stream, tokens)
}

pub fn alone(llm: &Llm, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
    let output = submit(llm, prompt, max_tokens).blocking_collect();
    output.outputs[0].token_ids.clone()
}

/// The rest of a request's tokens, and its end.
pub fn rest(stream: OutputStream) -> (Vec<u32>, FinishReason) {
    let output = stream.blocking_collect();
    (output.outputs[0].token_ids.clone(), output.outputs[0].finish.clone())
}
