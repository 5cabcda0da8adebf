//! A request's output on the reader's side: tokens become text, stop strings are found, chunks are handed out.
//! Runs in the reader's task, so that text work never holds up the engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use halyard_scheduler::RequestId;
use halyard_text::{Detokenizer, StopChecker, StopOutcome, Tokenizer};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::command::Command;
use crate::output::{CompletionOutput, FinishReason, OutputChunk, RequestOutput, TokenLogprobs};
use crate::params::SamplingParams;
use crate::placement::LoadShare;
use crate::sequence::{Message, SequenceEvent};
use crate::shared::Shared;

/// What a token that its reader has not taken costs, without log-probabilities and with: the operator guide states the
/// bound that follows.
const _: () = assert!(size_of::<Message>() <= 16 && size_of::<SequenceEvent>() <= 96);

/// Output of one request. Dropping it before the end cancels what still runs.
pub struct OutputStream {
    id: String,
    prompt: Arc<[u32]>,
    params: Arc<SamplingParams>,
    first: u64,
    messages: UnboundedReceiver<Message>,
    commands: Sender<Command>,
    shared: Arc<Shared>,
    samples: Vec<Sample>,
    ready: VecDeque<OutputChunk>,
    live: usize,
    /// Where there are several engines: the request's part in the load of its own.
    pub(crate) share: Option<LoadShare>,
}

struct Sample {
    detokenizer: Detokenizer,
    stops: StopChecker,
    num_tokens: u32,
    /// Prompt tokens taken from the prefix cache, as its first token says.
    num_cached_tokens: u32,
    done: bool,
}

impl OutputStream {
    pub(crate) fn new(
        id: String,
        tokenizer: &Tokenizer,
        prompt: Arc<[u32]>,
        params: Arc<SamplingParams>,
        first: u64,
        messages: UnboundedReceiver<Message>,
        (commands, shared): (Sender<Command>, Arc<Shared>),
    ) -> OutputStream {
        let checker = || {
            // Empty stop strings were refused with the parameters.
            StopChecker::new(&params.stop, params.include_stop_str_in_output).ok()
        };
        let samples: Vec<Sample> = (0..params.n)
            .filter_map(|_| {
                let detokenizer = Detokenizer::new(tokenizer, &prompt, params.skip_special_tokens);
                Some(Sample {
                    detokenizer: detokenizer.keeping(&params.kept_special_tokens),
                    stops: checker()?,
                    num_tokens: 0,
                    num_cached_tokens: 0,
                    done: false,
                })
            })
            .collect();
        let live = samples.len();
        OutputStream {
            id,
            prompt,
            params,
            first,
            messages,
            commands,
            shared,
            samples,
            ready: VecDeque::new(),
            live,
            share: None,
        }
    }

    /// The next piece of any sample; `None` when all have ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<OutputChunk> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Some(chunk);
            }
            if self.live == 0 {
                return None;
            }
            let message = self.messages.recv().await;
            self.take(message);
        }
    }

    /// As [`OutputStream::next`], blocking the thread. Not for async code.
    pub fn blocking_next(&mut self) -> Option<OutputChunk> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Some(chunk);
            }
            if self.live == 0 {
                return None;
            }
            let message = self.messages.blocking_recv();
            self.take(message);
        }
    }

    /// The prompt's token ids.
    pub fn prompt_token_ids(&self) -> &[u32] {
        &self.prompt
    }

    /// Collects everything, blocking the thread.
    pub fn blocking_collect(mut self) -> RequestOutput {
        let mut output = self.empty_output();
        while let Some(chunk) = self.blocking_next() {
            append(&mut output, chunk);
        }
        output
    }

    /// Collects everything.
    pub async fn collect(mut self) -> RequestOutput {
        let mut output = self.empty_output();
        while let Some(chunk) = self.next().await {
            append(&mut output, chunk);
        }
        output
    }

    fn empty_output(&self) -> RequestOutput {
        let sample = |index| CompletionOutput {
            index,
            text: String::new(),
            token_ids: Vec::new(),
            logprobs: self.params.logprobs.map(|_| Vec::new()),
            hidden_state: None,
            finish: FinishReason::Length,
        };
        RequestOutput {
            id: self.id.clone(),
            prompt_token_ids: self.prompt.to_vec(),
            prompt_logprobs: None,
            num_cached_tokens: 0,
            outputs: (0..self.params.n).map(sample).collect(),
        }
    }

    fn take(&mut self, message: Option<Message>) {
        let Some(message) = message else {
            // It was sent when the engine had just ended, which then says why.
            let stopped = self.shared.stopped();
            let reason = stopped.unwrap_or_else(|| "the engine thread is gone; see the log".to_string());
            for index in 0..self.samples.len() as u32 {
                self.finish(index, FinishReason::Error(reason.clone()));
            }
            return;
        };
        let (Message::Token { index, .. } | Message::Event { index, .. }) = message;
        if self.samples[index as usize].done {
            return;
        }
        let event = match message {
            Message::Token { id, .. } => return self.token(index, id, None, None),
            Message::Event { event, .. } => *event,
        };
        match event {
            SequenceEvent::Prompt(logprobs) => {
                self.ready.push_back(OutputChunk {
                    prompt_logprobs: Some(logprobs),
                    ..OutputChunk::empty(index)
                });
            }
            SequenceEvent::Token {
                id,
                logprobs,
                num_cached_tokens,
                finish,
            } => {
                self.samples[index as usize].num_cached_tokens = num_cached_tokens;
                self.token(index, id, logprobs, finish);
            }
            SequenceEvent::HiddenState {
                values,
                num_cached_tokens,
            } => {
                self.samples[index as usize].done = true;
                self.live -= 1;
                self.ready.push_back(OutputChunk {
                    hidden_state: Some(values),
                    num_cached_tokens,
                    finish: Some(FinishReason::Length),
                    ..OutputChunk::empty(index)
                });
            }
            SequenceEvent::Finished(reason) => self.finish(index, reason),
        }
    }

    fn token(&mut self, index: u32, id: u32, logprobs: Option<TokenLogprobs>, finish: Option<FinishReason>) {
        if let Some(share) = &mut self.share {
            share.token();
        }
        let sample = &mut self.samples[index as usize];
        sample.num_tokens += 1;
        let ends_by_token = matches!(finish, Some(FinishReason::Eos | FinishReason::StopToken(_)));
        let mut piece = String::new();
        if !ends_by_token || self.params.include_stop_str_in_output {
            match sample.detokenizer.push(id) {
                Ok(text) => piece.push_str(text),
                Err(error) => {
                    let reason = format!("token {id} has no text: {error}");
                    let ids = vec![RequestId(self.first + u64::from(index))];
                    let ended = Some(reason.clone());
                    let _ = self.commands.send(Command::End { ids, reason: ended });
                    return self.finish(index, FinishReason::Error(reason));
                }
            }
        }
        let mut finish = finish;
        let mut text = if sample.num_tokens <= self.params.min_tokens {
            sample.stops.pass(&piece)
        } else {
            match sample.stops.push(&piece) {
                StopOutcome::Text(text) => text,
                StopOutcome::Stop { index: which, text } => {
                    let stopped_early = finish.is_none();
                    finish = Some(FinishReason::StopString(self.params.stop[which].clone()));
                    sample.done = true;
                    if stopped_early {
                        let ids = vec![RequestId(self.first + u64::from(index))];
                        let _ = self.commands.send(Command::End { ids, reason: None });
                    }
                    text
                }
            }
        };
        if finish.is_some() {
            if !sample.done {
                let (last, error) = sample.last_text();
                text.push_str(&last);
                finish = error.or(finish);
            }
            sample.done = true;
            self.live -= 1;
        }
        let num_cached_tokens = sample.num_cached_tokens;
        self.ready.push_back(OutputChunk {
            text,
            token_ids: vec![id],
            logprobs: logprobs.map(|l| vec![l]),
            num_cached_tokens,
            finish,
            ..OutputChunk::empty(index)
        });
    }

    fn finish(&mut self, index: u32, reason: FinishReason) {
        let sample = &mut self.samples[index as usize];
        if sample.done {
            return;
        }
        sample.done = true;
        self.live -= 1;
        let (text, error) = sample.last_text();
        // What ended the request otherwise is told as it is.
        let is_answer = matches!(
            reason,
            FinishReason::Eos | FinishReason::StopToken(_) | FinishReason::Length
        );
        let reason = error.filter(|_| is_answer).unwrap_or(reason);
        self.ready.push_back(OutputChunk {
            text,
            finish: Some(reason),
            ..OutputChunk::empty(index)
        });
    }
}

impl Sample {
    /// Text that was held back for an incomplete character or a possible stop string; and the error, where some of it
    /// cannot be given.
    fn last_text(&mut self) -> (String, Option<FinishReason>) {
        let (rest, error) = match self.detokenizer.finish() {
            Ok(rest) => (rest, None),
            Err(error) => (
                "",
                Some(FinishReason::Error(format!("the last tokens have no text: {error}"))),
            ),
        };
        let mut text = match self.stops.push(rest) {
            StopOutcome::Text(text) | StopOutcome::Stop { text, .. } => text,
        };
        text.push_str(&self.stops.finish());
        (text, error)
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        let running = self.samples.iter().enumerate().filter(|(_, sample)| !sample.done);
        let ids: Vec<RequestId> = running.map(|(i, _)| RequestId(self.first + i as u64)).collect();
        if !ids.is_empty() {
            let reason = Some("the client went away".to_string());
            let _ = self.commands.send(Command::End { ids, reason });
        }
    }
}

fn append(output: &mut RequestOutput, chunk: OutputChunk) {
    if chunk.prompt_logprobs.is_some() {
        output.prompt_logprobs = chunk.prompt_logprobs;
    }
    output.num_cached_tokens = output.num_cached_tokens.max(chunk.num_cached_tokens);
    let sample = &mut output.outputs[chunk.index as usize];
    sample.text.push_str(&chunk.text);
    sample.token_ids.extend(chunk.token_ids);
    if let (Some(all), Some(new)) = (&mut sample.logprobs, chunk.logprobs) {
        all.extend(new);
    }
    if chunk.hidden_state.is_some() {
        sample.hidden_state = chunk.hidden_state;
    }
    if let Some(finish) = chunk.finish {
        sample.finish = finish;
    }
}
