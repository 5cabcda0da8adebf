//! The log of generation requests: a ring of the last [`MAX_REQUESTS`], filled by the routes (arrival, refusal, the
//! answer's end) and by the engine's records (times, tokens, reasons). Requests without an accepted key never get here.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use halyard_platform_api::hooks::FinishedRecord;

use super::clock::unix_ms;
use super::timeline::RequestEntry;
use crate::api_error::ApiError;

/// Requests that are kept; the oldest one goes first, running or not.
pub const MAX_REQUESTS: usize = 256;

/// What a route knows of a request that it gives to the engine.
pub struct Submitted {
    /// The answer's id, which the engine's ids begin with.
    pub id: String,
    /// The served model or adapter.
    pub model: String,
    /// Whether it wants a stream.
    pub is_stream: bool,
    /// Prompts times samples.
    pub num_sequences: u32,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens generated, counted on by the answer.
    pub generation_tokens: Arc<AtomicU64>,
}

/// The log.
pub struct RequestLog {
    inner: Mutex<Inner>,
}

struct Inner {
    /// In order of their numbers, without gaps.
    entries: VecDeque<RequestEntry>,
    next_number: u64,
    revision: u64,
    /// The newest request of an id: clients choose ids, so that two requests may have the same one.
    by_id: HashMap<String, u64>,
}

impl RequestLog {
    /// An empty log.
    pub(super) fn new() -> RequestLog {
        RequestLog {
            inner: Mutex::new(Inner {
                entries: VecDeque::with_capacity(MAX_REQUESTS),
                next_number: 1,
                revision: 0,
                by_id: HashMap::new(),
            }),
        }
    }

    /// A request came. The ticket notes its further way; dropping it is the answer's end.
    pub fn arrive(self: &Arc<Self>, route: &'static str, client: Option<IpAddr>) -> Ticket {
        let mut inner = self.inner();
        let number = inner.next_number;
        inner.next_number += 1;
        inner.revision += 1;
        if inner.entries.len() == MAX_REQUESTS {
            inner.forget_oldest();
        }
        let entry = RequestEntry {
            number,
            revision: inner.revision,
            route,
            client,
            arrival_unix_ms: unix_ms(),
            ..RequestEntry::default()
        };
        inner.entries.push_back(entry);
        Ticket {
            log: Arc::clone(self),
            number,
            start: Instant::now(),
        }
    }

    /// A sequence ended in the engine.
    pub(super) fn finished(&self, record: &FinishedRecord) {
        let mut inner = self.inner();
        let id: &str = &record.request_id;
        let known = inner.by_id.get(id).copied();
        // One of several prompts has its number behind the answer's id.
        let known = known.or_else(|| inner.by_id.get(id.rsplit_once('-')?.0).copied());
        if let Some(number) = known {
            inner.change(number, |entry| entry.finished(record));
        }
    }

    /// The entries that changed after the revision `after`, oldest first, and the log's revision. Open ones always
    /// come: their tokens are counted without a change of the revision.
    pub fn changed(&self, after: u64) -> (u64, Vec<RequestEntry>) {
        let inner = self.inner();
        let shown = inner
            .entries
            .iter()
            .filter(|entry| entry.revision > after || entry.is_open());
        (inner.revision, shown.map(RequestEntry::snapshot).collect())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn change(&mut self, number: u64, change: impl FnOnce(&mut RequestEntry)) {
        let Some(oldest) = self.entries.front().map(|entry| entry.number) else {
            return;
        };
        let index = number.checked_sub(oldest).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            self.revision += 1;
            entry.revision = self.revision;
            change(entry);
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.entries.pop_front()
            && let Some(id) = oldest.id
            && self.by_id.get(&id) == Some(&oldest.number)
        {
            self.by_id.remove(&id);
        }
    }
}

/// A request's place in the log, held for as long as it is answered.
pub struct Ticket {
    log: Arc<RequestLog>,
    number: u64,
    start: Instant,
}

impl Ticket {
    /// It goes to the engine now.
    pub fn submitted(&self, submitted: Submitted) {
        let at = self.elapsed_ms();
        let mut inner = self.log.inner();
        // One that was forgotten already must leave no id behind.
        if inner.entries.front().is_none_or(|oldest| oldest.number > self.number) {
            return;
        }
        inner.by_id.insert(submitted.id.clone(), self.number);
        inner.change(self.number, |entry| {
            entry.id = Some(submitted.id);
            entry.model = Some(submitted.model);
            entry.is_stream = submitted.is_stream;
            entry.num_sequences = submitted.num_sequences;
            entry.prompt_tokens = submitted.prompt_tokens;
            entry.counter = Some(submitted.generation_tokens);
            entry.submitted_ms = Some(at);
        });
    }

    /// It was refused before an answer began. The error's words stay out: they may quote the request.
    pub fn refused(&self, error: &ApiError) {
        let field = error.param.as_deref().map(|param| format!("field {param}"));
        let words: Vec<String> = error.code.map(str::to_owned).into_iter().chain(field).collect();
        self.log.inner().change(self.number, |entry| {
            entry.status = Some(error.status.as_u16());
            if entry.finish != Some("error") {
                entry.finish = Some("refused");
                entry.detail = Some(words.join(", ")).filter(|words| !words.is_empty());
            }
        });
    }

    fn elapsed_ms(&self) -> f64 {
        (self.start.elapsed().as_secs_f64() * 1e6).round() / 1e3
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let at = self.elapsed_ms();
        self.log.inner().change(self.number, |entry| {
            entry.answered_ms = Some(at);
            if entry.num_sequences == 0 && entry.finish.is_none() {
                entry.finish = Some("abort");
                entry.detail = Some("the client left before the request was read".to_owned());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn submitted(id: &str, num_sequences: u32) -> Submitted {
        Submitted {
            id: id.to_owned(),
            model: "tiny".to_owned(),
            is_stream: true,
            num_sequences,
            prompt_tokens: 9,
            generation_tokens: Arc::new(AtomicU64::new(4)),
        }
    }

    fn finished(id: &str, reason: u32, detail: &str) -> FinishedRecord {
        FinishedRecord {
            request_id: id.into(),
            reason,
            detail: detail.into(),
            queue_ns: 1_000_000,
            first_token_ns: 3_000_000,
            total_ns: 8_000_000,
            generation_tokens: 5,
            ..FinishedRecord::default()
        }
    }

    #[test]
    fn a_request_has_its_times_in_order() {
        let log = Arc::new(RequestLog::new());
        let ticket = log.arrive("/v1/chat/completions", None);
        ticket.submitted(submitted("chatcmpl-a-b", 2));
        assert_eq!(log.changed(0).1[0].generation_tokens, 4, "counted while it runs");
        log.finished(&finished("chatcmpl-a-b", 0, ""));
        log.finished(&finished("chatcmpl-a-b-1", 1, ""));
        drop(ticket);
        let (revision, entries) = log.changed(0);
        let entry = &entries[0];
        assert!(!entry.is_open());
        assert_eq!(
            (entry.generation_tokens, entry.num_ended, entry.finish),
            (10, 2, Some("length"))
        );
        let times = [
            entry.submitted_ms,
            entry.admitted_ms,
            entry.first_token_ms,
            entry.ended_ms,
        ];
        assert!(
            times.windows(2).all(|pair| pair[0] < pair[1] && pair[0].is_some()),
            "{times:?}"
        );
        assert!(log.changed(revision).1.is_empty(), "nothing new");
    }

    #[test]
    fn the_log_is_bounded_and_so_are_its_ids() {
        let log = Arc::new(RequestLog::new());
        let first = log.arrive("/v1/completions", None);
        first.submitted(submitted("first", 1));
        for number in 0..MAX_REQUESTS * 2 {
            let ticket = log.arrive("/v1/completions", None);
            ticket.submitted(submitted(&format!("id{number}"), 1));
        }
        first.submitted(submitted("late", 1));
        log.finished(&finished("first", 0, ""));
        drop(first);
        let inner = log.inner();
        assert_eq!((inner.entries.len(), inner.by_id.len()), (MAX_REQUESTS, MAX_REQUESTS));
    }

    #[test]
    fn words_of_the_request_stay_out() {
        let log = Arc::new(RequestLog::new());
        let stopped = log.arrive("/v1/completions", None);
        stopped.submitted(submitted("s", 1));
        log.finished(&finished("s", 0, "a secret stop string"));
        let failed = log.arrive("/v1/completions", None);
        failed.submitted(submitted("f", 1));
        log.finished(&finished("f", 3, &"long ".repeat(1000)));
        let refused = log.arrive("/v1/completions", None);
        let error = ApiError::field("prompt", "a secret prompt").with_code("bad");
        refused.refused(&ApiError {
            status: StatusCode::BAD_REQUEST,
            ..error
        });
        let text = serde_json::to_string(&log.changed(0).1).expect("JSON");
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("bad, field prompt"), "{text}");
        assert!(text.len() < 3000, "{} bytes", text.len());
    }

    #[test]
    fn a_failure_of_the_engine_is_no_refusal() {
        let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the device is gone");
        for record_first in [true, false] {
            let log = Arc::new(RequestLog::new());
            let ticket = log.arrive("/v1/completions", None);
            ticket.submitted(submitted("a", 1));
            if record_first {
                log.finished(&finished("a", 3, "the device is gone"));
            }
            ticket.refused(&error);
            if !record_first {
                log.finished(&finished("a", 3, "the device is gone"));
            }
            let entry = log.changed(0).1.remove(0);
            assert_eq!((entry.finish, entry.status), (Some("error"), Some(500)));
            assert_eq!(entry.detail.as_deref(), Some("the device is gone"));
        }
    }

    #[test]
    fn a_client_that_leaves_early_is_named() {
        let log = Arc::new(RequestLog::new());
        drop(log.arrive("/v1/completions", None));
        let (_, entries) = log.changed(0);
        assert_eq!(entries[0].finish, Some("abort"));
        assert!(!entries[0].is_open());
    }
}
