//! One request of the log: what it is, and when it came, ran and ended. Holds no text of a prompt or an answer, of a
//! stop string neither.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_platform_api::hooks::{FINISH_REASONS, FinishedRecord};
use serde::Serialize;

/// Longest text of a failure.
const MAX_DETAIL: usize = 300;

/// A request. Times ending in `_ms` are milliseconds after its arrival.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RequestEntry {
    /// Its number, from 1.
    pub number: u64,
    /// The log's revision at its last change.
    pub revision: u64,
    /// The answer's id; until there is one, none.
    pub id: Option<String>,
    /// The route.
    pub route: &'static str,
    /// The served model or adapter.
    pub model: Option<String>,
    /// The client's address, where it is known.
    pub client: Option<IpAddr>,
    /// When its head had been read, milliseconds since 1970.
    pub arrival_unix_ms: u64,
    /// Whether it wants a stream.
    pub is_stream: bool,
    /// Sequences: prompts times samples.
    pub num_sequences: u32,
    /// Of these, ended.
    pub num_ended: u32,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Of these, found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub generation_tokens: u64,
    /// Preemptions of its sequences.
    pub num_preemptions: u32,
    /// Read, converted and given to the engine.
    pub submitted_ms: Option<f64>,
    /// The first sequence got a device row.
    pub admitted_ms: Option<f64>,
    /// The first token of any sequence.
    pub first_token_ms: Option<f64>,
    /// The last sequence ended.
    pub ended_ms: Option<f64>,
    /// The answer was handed over, or the client left.
    pub answered_ms: Option<f64>,
    /// Why the last sequence ended: stop, length, abort, error; `refused` for one that the engine did not take.
    pub finish: Option<&'static str>,
    /// HTTP status of a refusal.
    pub status: Option<u16>,
    /// Words of an abort or a failure; of a refusal its code and field.
    pub detail: Option<String>,
    /// Tokens generated, while it runs.
    #[serde(skip)]
    pub(super) counter: Option<Arc<AtomicU64>>,
}

impl RequestEntry {
    /// Whether it is being answered.
    pub fn is_open(&self) -> bool {
        self.answered_ms.is_none()
    }

    /// As it is now, with the tokens so far.
    pub(super) fn snapshot(&self) -> RequestEntry {
        let so_far = self
            .counter
            .as_ref()
            .map_or(0, |counter| counter.load(Ordering::Relaxed));
        RequestEntry {
            generation_tokens: self.generation_tokens.max(so_far),
            ..self.clone()
        }
    }

    /// A sequence of it ended.
    pub(super) fn finished(&mut self, record: &FinishedRecord) {
        let submitted = self.submitted_ms.unwrap_or(0.0);
        let at = |ns: u64| submitted + ms(ns);
        let earlier = |known: Option<f64>, new: f64| Some(known.map_or(new, |known| known.min(new)));
        self.num_ended += 1;
        self.cached_tokens += record.cached_tokens;
        if self.num_ended == 1 {
            self.generation_tokens = 0;
            self.counter = None;
        }
        self.generation_tokens += record.generation_tokens;
        self.num_preemptions += record.num_preemptions;
        self.ended_ms = Some(
            self.ended_ms
                .map_or(at(record.total_ns), |known| known.max(at(record.total_ns))),
        );
        // One that never got a row waited for all its time.
        if record.queue_ns < record.total_ns {
            self.admitted_ms = earlier(self.admitted_ms, at(record.queue_ns));
        }
        if record.first_token_ns > 0 {
            self.first_token_ms = earlier(self.first_token_ms, at(record.first_token_ns));
        }
        let reason = FINISH_REASONS.get(record.reason as usize).copied().unwrap_or("other");
        // A refusal of one of several prompts ends the others. An engine's failure is no refusal, though it has a
        // status.
        if self.status.is_some() && reason != "error" {
            return;
        }
        self.finish = Some(reason);
        // The words of a stop are the request's own.
        if ["abort", "error"].contains(&reason) && !record.detail.is_empty() {
            self.detail = Some(clip(&record.detail));
        }
    }
}

fn ms(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(MAX_DETAIL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
