//! One answer, from the engine's chunks to the text that a client reads. Each choice has a shaper, and a format writes
//! the shapers' deltas. Knows neither the API nor the transport.

use std::mem;

use halyard_engine::{FinishReason, OutputChunk, SubmitError, TokenLogprobs};
use halyard_text::Tokenizer;

use super::events::Events;
use super::parsed_text::Reading;
use super::prompt::Prompt;
use super::refusals::incomplete;
use super::shaper::{Delta, PlainText, Shaper};
use super::usage::{CompletionTokensDetails, Streaming, Usage};
use crate::api_error::ApiError;

/// The facts that all parts of an answer share.
pub struct Answer {
    /// Such as `cmpl-…`.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Equal where equal seeds can be expected to give equal answers.
    pub fingerprint: String,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Whole or in pieces.
    pub streaming: Streaming,
    /// Tokens so far.
    pub usage: Usage,
    /// Knows how tokens are spelt.
    pub tokenizer: Tokenizer,
}

/// The new part of a choice; in a whole answer all of it.
pub struct Piece<'a> {
    /// The choice: prompt times n plus sample.
    pub index: usize,
    /// The choice's prompt.
    pub prompt: &'a Prompt,
    /// Whether nothing came before.
    pub is_first: bool,
    /// Content.
    pub deltas: Vec<Delta>,
    /// Token ids.
    pub token_ids: &'a [u32],
    /// One entry a token when asked.
    pub logprobs: &'a [TokenLogprobs],
    /// When asked: in the first piece of a prompt's sample 0, and in all samples of a whole answer.
    pub prompt_logprobs: Option<&'a [Option<TokenLogprobs>]>,
    /// How the choice ended, in its last piece.
    pub finish: Option<&'a FinishReason>,
}

impl Piece<'_> {
    /// Takes the text out of the content, of which nothing else is needed then.
    pub fn take_text(&mut self) -> String {
        let deltas = mem::take(&mut self.deltas).into_iter();
        let mut texts = deltas.filter_map(|delta| match delta {
            Delta::Text(text) => Some(text),
            _ => None,
        });
        let mut all = texts.next().unwrap_or_default();
        texts.for_each(|text| all.push_str(&text));
        all
    }
}

/// How far a stored answer is.
#[derive(Clone, Copy, Debug)]
pub enum Stage<'a> {
    /// Nothing was computed yet.
    Queued,
    /// Its prompt was read.
    InProgress,
    /// It has come to its end, or cannot go on.
    Over(Option<&'a ApiError>),
}

/// The shape of an API's answers. A value writes one answer.
pub trait Format: Send {
    /// The engine's refusal, by the names of the API's fields.
    fn refusal(&self, error: SubmitError) -> ApiError {
        error.into()
    }

    /// How the text is read; `None`: all of it is the answer's.
    fn reading(&self) -> Option<&Reading> {
        None
    }

    /// Reads the text of a choice.
    fn shaper(&self) -> Box<dyn Shaper> {
        match self.reading() {
            Some(reading) => reading.shaper(),
            None => Box::new(PlainText),
        }
    }

    /// Whether the answer's usage says how many tokens were reasoning.
    fn counts_reasoning(&self) -> bool {
        false
    }

    /// Adds what a stream tells of a piece; nothing where there is nothing to tell yet.
    fn piece(&mut self, answer: &Answer, piece: Piece<'_>, events: &mut Events);

    /// Adds what a stream tells after the last piece.
    fn close(&mut self, answer: &Answer, events: &mut Events);

    /// The end of a stream that fails.
    fn failure(&mut self, answer: &Answer, error: &ApiError) -> String {
        let _ = answer;
        Events::failure(error)
    }

    /// The answer as it is now, as it is stored; `None`: answers of this API are not.
    fn snapshot(&self, answer: &Answer, stage: Stage<'_>) -> Option<String> {
        let _ = (answer, stage);
        None
    }

    /// A whole answer as JSON.
    ///
    /// # Errors
    /// [`super::events::to_json`]'s.
    fn whole(&mut self, answer: &Answer, choices: Vec<Piece<'_>>) -> Result<String, ApiError>;
}

/// Writes one answer: piece by piece ([`push`](Self::push), then [`close`](Self::close)), or at once
/// ([`collect`](Self::collect), then [`whole`](Self::whole)).
pub struct AnswerWriter {
    answer: Answer,
    format: Box<dyn Format>,
    num_samples: usize,
    /// By prompt, whether a chunk has come.
    seen: Vec<bool>,
    choices: Vec<Choice>,
}

struct Choice {
    shaper: Box<dyn Shaper>,
    /// Follows the chunks of a whole answer one by one, where tokens of reasoning are counted.
    counter: Option<Box<dyn Shaper>>,
    has_begun: bool,
    has_ended: bool,
    /// Whether a stream has told of a token.
    has_told: bool,
    /// What a stream has not told yet: chunks as one, and their deltas.
    held: Option<(OutputChunk, Vec<Delta>)>,
    /// All chunks as one.
    collected: Option<OutputChunk>,
}

impl AnswerWriter {
    /// Writes `answer`, with `num_samples` choices for each prompt.
    pub fn new(mut answer: Answer, format: Box<dyn Format>, num_samples: usize) -> Self {
        let num_prompts = answer.prompts.len();
        let counts_reasoning = format.counts_reasoning();
        answer.usage.completion_tokens_details = counts_reasoning.then(CompletionTokensDetails::default);
        let counts_whole = counts_reasoning && !answer.streaming.stream;
        let choices = (0..num_prompts * num_samples).map(|_| Choice {
            shaper: format.shaper(),
            counter: counts_whole.then(|| format.shaper()),
            has_begun: false,
            has_ended: false,
            has_told: false,
            held: None,
            collected: None,
        });
        AnswerWriter {
            num_samples,
            seen: vec![false; num_prompts],
            choices: choices.collect(),
            answer,
            format,
        }
    }

    /// Choices of the answer.
    pub fn num_choices(&self) -> usize {
        self.choices.len()
    }

    /// The answer's id.
    pub fn id(&self) -> &str {
        &self.answer.id
    }

    /// Tokens generated so far.
    pub fn completion_tokens(&self) -> u64 {
        self.answer.usage.completion_tokens
    }

    /// The choice that a chunk of a prompt belongs to.
    pub fn choice_index(&self, prompt: usize, chunk: &OutputChunk) -> usize {
        prompt * self.num_samples + chunk.index as usize
    }

    fn count(&mut self, prompt: usize, chunk: &OutputChunk) {
        let is_first = !mem::replace(&mut self.seen[prompt], true);
        let cached = if is_first { chunk.num_cached_tokens } else { 0 };
        self.answer.usage.add(chunk.token_ids.len() as u64, cached.into());
    }

    /// The events of a prompt's next chunk; empty where there is nothing to tell yet, or where they wait for more
    /// tokens ([`Streaming::interval`]).
    pub fn push(&mut self, prompt: usize, mut chunk: OutputChunk) -> String {
        self.count(prompt, &chunk);
        let index = self.choice_index(prompt, &chunk);
        let choice = &mut self.choices[index];
        choice.has_ended |= chunk.finish.is_some();
        let reasoned = choice.shaper.num_reasoning_tokens();
        let deltas = shape(&mut *choice.shaper, &mut chunk);
        let usage = &mut self.answer.usage;
        usage.add_reasoning(choice.shaper.num_reasoning_tokens() - reasoned);
        let (chunk, deltas) = match choice.held.take() {
            None => (chunk, deltas),
            Some((mut held, mut before)) => {
                append(&mut held, chunk);
                before.extend(deltas);
                join(&mut before);
                (held, before)
            }
        };
        let num_tokens = chunk.token_ids.len();
        let waits = choice.has_told && chunk.finish.is_none() && num_tokens < self.answer.streaming.interval as usize;
        choice.has_told |= num_tokens > 0;
        choice.held = Some((chunk, deltas));
        let mut events = Events::default();
        if !waits {
            self.tell(index, &mut events);
        }
        events.into_text()
    }

    /// Adds the events of what is held of a choice.
    fn tell(&mut self, index: usize, events: &mut Events) {
        let choice = &mut self.choices[index];
        let Some((chunk, deltas)) = choice.held.take() else {
            return;
        };
        let piece = Piece {
            index,
            prompt: &self.answer.prompts[index / self.num_samples],
            is_first: !mem::replace(&mut choice.has_begun, true),
            deltas,
            token_ids: &chunk.token_ids,
            logprobs: chunk.logprobs.as_deref().unwrap_or_default(),
            prompt_logprobs: chunk.prompt_logprobs.as_deref(),
            finish: chunk.finish.as_ref(),
        };
        self.format.piece(&self.answer, piece, events);
    }

    /// The events behind the last chunk.
    pub fn close(&mut self) -> String {
        if !self.has_ended() {
            return self.failure(&incomplete());
        }
        let mut events = Events::default();
        self.format.close(&self.answer, &mut events);
        events.into_text()
    }

    /// The events of a stream that cannot go on: what is held, then the error.
    pub fn failure(&mut self, error: &ApiError) -> String {
        let mut events = Events::default();
        (0..self.choices.len()).for_each(|index| self.tell(index, &mut events));
        events.into_text() + &self.format.failure(&self.answer, error)
    }

    /// Whether each choice has come to its end.
    pub fn has_ended(&self) -> bool {
        self.choices.iter().all(|choice| choice.has_ended)
    }

    /// The answer as it is now, as it is stored.
    pub fn snapshot(&self, stage: Stage<'_>) -> Option<String> {
        self.format.snapshot(&self.answer, stage)
    }

    /// Keeps a prompt's next chunk for a whole answer.
    pub fn collect(&mut self, prompt: usize, chunk: OutputChunk) {
        self.count(prompt, &chunk);
        let index = self.choice_index(prompt, &chunk);
        let choice = &mut self.choices[index];
        choice.has_ended |= chunk.finish.is_some();
        if let Some(counter) = &mut choice.counter {
            let reasoned = counter.num_reasoning_tokens();
            counter.push(chunk.text.clone(), &chunk.token_ids);
            let usage = &mut self.answer.usage;
            usage.add_reasoning(counter.num_reasoning_tokens() - reasoned);
        }
        match &mut choice.collected {
            None => choice.collected = Some(chunk),
            Some(collected) => append(collected, chunk),
        }
    }

    /// The collected texts by choice, to be changed before they are shaped.
    ///
    /// # Errors
    /// 500 for a choice without an end.
    pub fn collected_texts(&mut self) -> Result<impl Iterator<Item = &mut String>, ApiError> {
        if !self.has_ended() {
            return Err(incomplete());
        }
        let collected = self.choices.iter_mut().filter_map(|choice| choice.collected.as_mut());
        Ok(collected.map(|chunk| &mut chunk.text))
    }

    /// The whole answer of what was collected, as JSON.
    ///
    /// # Errors
    /// 500 for a choice of which nothing was collected.
    pub fn whole(mut self) -> Result<String, ApiError> {
        let mut collected = Vec::with_capacity(self.choices.len());
        for choice in &mut self.choices {
            let mut chunk = choice.collected.take().ok_or_else(incomplete)?;
            collected.push((shape(&mut *choice.shaper, &mut chunk), chunk));
        }
        let deltas: Vec<_> = collected.iter_mut().map(|(deltas, _)| mem::take(deltas)).collect();
        let piece = |(index, deltas): (usize, Vec<Delta>)| {
            let (chunk, prompt) = (&collected[index].1, index / self.num_samples);
            Piece {
                index,
                prompt: &self.answer.prompts[prompt],
                is_first: true,
                deltas,
                token_ids: &chunk.token_ids,
                logprobs: chunk.logprobs.as_deref().unwrap_or_default(),
                prompt_logprobs: collected[prompt * self.num_samples].1.prompt_logprobs.as_deref(),
                finish: chunk.finish.as_ref(),
            }
        };
        let pieces = deltas.into_iter().enumerate().map(piece).collect();
        self.format.whole(&self.answer, pieces)
    }
}

/// The deltas of a chunk, whose text the shaper takes.
fn shape(shaper: &mut dyn Shaper, chunk: &mut OutputChunk) -> Vec<Delta> {
    let mut deltas = shaper.push(mem::take(&mut chunk.text), &chunk.token_ids);
    if chunk.finish.is_some() {
        deltas.extend(shaper.finish());
    }
    join(&mut deltas);
    deltas
}

/// Makes deltas of one kind that follow each other one.
fn join(deltas: &mut Vec<Delta>) {
    deltas.dedup_by(|next, last| match (last, next) {
        (Delta::Text(last), Delta::Text(next)) | (Delta::Reasoning(last), Delta::Reasoning(next)) => {
            last.push_str(next);
            true
        }
        (
            Delta::Arguments { index, text: last },
            Delta::Arguments {
                index: same,
                text: next,
            },
        ) if index == same => {
            last.push_str(next);
            true
        }
        _ => false,
    });
}

fn append(collected: &mut OutputChunk, chunk: OutputChunk) {
    collected.text.push_str(&chunk.text);
    collected.token_ids.extend(chunk.token_ids);
    if let Some(entries) = chunk.logprobs {
        collected.logprobs.get_or_insert_default().extend(entries);
    }
    collected.prompt_logprobs = collected.prompt_logprobs.take().or(chunk.prompt_logprobs);
    collected.finish = chunk.finish.or(collected.finish.take());
}
