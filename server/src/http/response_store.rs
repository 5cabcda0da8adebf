//! Responses that are kept in memory (`--enable-responses-store`): what was asked, what was answered, and of those that
//! run in the background how far they are. Bounded by number, bytes and age; those that were not used for longest go
//! first. A response belongs to the API key that asked for it. Knows no route.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::auth::KeyDigest;
use super::request_id::RequestId;
use crate::api_error::{ApiError, clip};
use crate::openai::kept::{Conversation, Kept, Turn};

/// Bounds of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Responses.
    pub max_responses: usize,
    /// Bytes of all of them as JSON: what was asked, what was answered, and events.
    pub max_bytes: usize,
    /// Since a response was made, or was part of a conversation that went on.
    pub max_age: Duration,
}

impl Default for StoreLimits {
    fn default() -> Self {
        StoreLimits {
            max_responses: 4096,
            max_bytes: 256 << 20,
            max_age: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// The store. Copies share it.
#[derive(Clone, Debug)]
pub struct ResponseStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: StoreLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// Ids of responses that are being made.
    reserved: HashSet<String>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    owner: Option<KeyDigest>,
    previous: Option<String>,
    /// The items of the request, a JSON list.
    input: Bytes,
    /// The response, JSON.
    response: Bytes,
    phase: Phase,
    /// Of one that was asked for as a stream in the background: its events so far.
    events: Option<Vec<Bytes>>,
    event_bytes: usize,
    /// Of all of it.
    bytes: usize,
    /// The last use: when, and its number.
    used: (Instant, u64),
    /// Told of each change.
    changed: watch::Sender<()>,
    /// Ends the work for it.
    work: Option<AbortHandle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is worked on in the background.
    Running,
    /// It has come to its end; whether it was in the background.
    Over { background: bool },
    /// A client ended it.
    Cancelled,
}

/// Events that a reader gets at once.
const MAX_EVENTS: usize = 256;

/// What is in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Responses.
    pub responses: usize,
    /// Their bytes.
    pub bytes: usize,
}

fn not_found(id: &str) -> ApiError {
    let message = format!(
        "there is no stored response `{}`: it was never stored, is too old, made room for others, or belongs to \
         another API key",
        clip(id)
    );
    let error = ApiError::new(StatusCode::NOT_FOUND, message).with_code("response_not_found");
    ApiError {
        param: Some("response_id".to_owned()),
        ..error
    }
}

fn full(limits: &StoreLimits) -> ApiError {
    let message = format!(
        "the store of responses is full of responses that are being made (at most {} of {} bytes); ask again later, or \
         send store false",
        limits.max_responses, limits.max_bytes
    );
    ApiError::try_again(message).with_code("store_full")
}

/// A response with another status.
fn with_status(response: &Bytes, status: &str) -> Bytes {
    let mut response: Value = serde_json::from_slice(response).unwrap_or_default();
    response["status"] = Value::from(status);
    response.to_string().into()
}

impl Entry {
    /// Adds events, one behind the other; JSON has no line break of its own.
    fn add_events(&mut self, events: &str) {
        if let Some(kept) = &mut self.events {
            let whole = events.split_inclusive("\n\n").map(str::to_owned);
            kept.extend(whole.map(Bytes::from));
            self.event_bytes += events.len();
        }
    }
}

impl ResponseStore {
    /// An empty store.
    pub fn new(limits: StoreLimits) -> Self {
        ResponseStore(Arc::new(Shared {
            limits,
            state: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store without what is too old.
    fn current(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.drop_old(self.0.limits.max_age);
        state
    }

    /// What is in it.
    pub fn figures(&self) -> StoreFigures {
        let state = self.current();
        StoreFigures {
            responses: state.entries.len(),
            bytes: state.bytes,
        }
    }

    /// Reserves the id of a response; a new one where another response has it.
    pub fn reserve(&self, prefix: &str, request_id: RequestId) -> (RequestId, Option<Seat>) {
        let mut state = self.current();
        let mut request_id = request_id;
        loop {
            let id = format!("{prefix}{request_id}");
            if !state.entries.contains_key(&id) && state.reserved.insert(id.clone()) {
                let store = self.clone();
                return (request_id, Some(Seat { store, id }));
            }
            request_id = RequestId::default();
        }
    }

    /// What was asked and answered up to and with the response `last`; nothing for `None`. All of it is used now.
    ///
    /// # Errors
    /// 404 where a part of it is gone, 400 where the last response is not over.
    pub fn conversation(&self, owner: Option<KeyDigest>, last: Option<&str>) -> Result<Conversation, ApiError> {
        const FIELD: &str = "previous_response_id";
        let of_field = |error: ApiError| ApiError {
            param: Some(FIELD.to_owned()),
            ..error.with_code("previous_response_not_found")
        };
        let mut state = self.current();
        let mut turns = Vec::new();
        let mut next = last.map(str::to_owned);
        while let Some(id) = next {
            let used = state.now();
            let entry = state.find(owner, &id).map_err(of_field)?;
            if !matches!(entry.phase, Phase::Over { .. }) {
                let message = format!("the response `{}` is not over, or was cancelled", clip(&id));
                return Err(ApiError::field(FIELD, message));
            }
            entry.used = used;
            turns.push(Turn {
                input: entry.input.clone(),
                response: entry.response.clone(),
            });
            next = entry.previous.clone();
        }
        turns.reverse();
        Ok(Conversation::new(turns))
    }

    /// A response as it is now, JSON.
    ///
    /// # Errors
    /// 404.
    pub fn response(&self, owner: Option<KeyDigest>, id: &str) -> Result<Bytes, ApiError> {
        Ok(self.current().find(owner, id)?.response.clone())
    }

    /// The items that a response was asked with, a JSON list.
    ///
    /// # Errors
    /// 404.
    pub fn input(&self, owner: Option<KeyDigest>, id: &str) -> Result<Bytes, ApiError> {
        Ok(self.current().find(owner, id)?.input.clone())
    }

    /// Forgets a response; work for it ends.
    ///
    /// # Errors
    /// 404.
    pub fn delete(&self, owner: Option<KeyDigest>, id: &str) -> Result<(), ApiError> {
        let mut state = self.current();
        state.find(owner, id)?;
        let work = state.remove(id).and_then(|entry| entry.work);
        drop(state);
        if let Some(work) = work {
            work.abort();
        }
        Ok(())
    }

    /// Ends a response that runs in the background; gives it as it is then.
    ///
    /// # Errors
    /// 404, and 400 for one that is over or was not in the background.
    pub fn cancel(&self, owner: Option<KeyDigest>, id: &str) -> Result<Bytes, ApiError> {
        let mut state = self.current();
        let entry = state.find(owner, id)?;
        match entry.phase {
            Phase::Running => {}
            Phase::Cancelled => return Ok(entry.response.clone()),
            Phase::Over { background } => {
                let why = if background {
                    "is over"
                } else {
                    "does not run in the background"
                };
                let message = format!("the response `{}` {why} and cannot be cancelled", clip(id));
                return Err(ApiError::field("response_id", message));
            }
        }
        let text = with_status(&entry.response, "cancelled");
        let work = entry.work.take();
        state.change(id, |entry| {
            entry.phase = Phase::Cancelled;
            entry.response = text.clone();
        });
        drop(state);
        if let Some(work) = work {
            work.abort();
        }
        Ok(text)
    }

    /// A reader of a response's events, from the number `first` on.
    ///
    /// # Errors
    /// 404, and 400 for a response without events.
    pub fn events(&self, owner: Option<KeyDigest>, id: &str, first: usize) -> Result<EventReader, ApiError> {
        let mut state = self.current();
        let entry = state.find(owner, id)?;
        if entry.events.is_none() {
            let message = format!(
                "the response `{}` has no stored events: those are kept of requests with background and stream true",
                clip(id)
            );
            return Err(ApiError::field("stream", message));
        }
        Ok(EventReader {
            changed: entry.changed.subscribe(),
            store: self.clone(),
            id: id.to_owned(),
            next: first,
        })
    }
}

impl State {
    fn now(&mut self) -> (Instant, u64) {
        self.clock += 1;
        (Instant::now(), self.clock)
    }

    fn find(&mut self, owner: Option<KeyDigest>, id: &str) -> Result<&mut Entry, ApiError> {
        let entry = self.entries.get_mut(id).filter(|entry| entry.owner == owner);
        entry.ok_or_else(|| not_found(id))
    }

    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn drop_old(&mut self, max_age: Duration) {
        let is_old = |entry: &Entry| entry.phase != Phase::Running && entry.used.0.elapsed() >= max_age;
        let old = self.entries.iter().filter(|(_, entry)| is_old(entry));
        let old: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        for id in old {
            self.remove(&id);
        }
    }

    /// Changes an entry, counts its bytes anew, and tells its readers.
    fn change(&mut self, id: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.get_mut(id) {
            change(entry);
            let bytes = entry.input.len() + entry.response.len() + entry.event_bytes;
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
            entry.changed.send_replace(());
        }
    }

    /// Changes an entry that is worked on.
    fn while_running(&mut self, id: &str, change: impl FnOnce(&mut Entry)) {
        if self.entries.get(id).is_some_and(|entry| entry.phase == Phase::Running) {
            self.change(id, change);
        }
    }

    /// Drops what was not used for longest until all fits, but nothing that runs and not `keep`.
    fn make_room(&mut self, keep: &str, limits: &StoreLimits) -> Result<(), ApiError> {
        while self.entries.len() > limits.max_responses || self.bytes > limits.max_bytes {
            let may_go = |(id, entry): &(&String, &Entry)| entry.phase != Phase::Running && id.as_str() != keep;
            let oldest = self.entries.iter().filter(may_go).min_by_key(|(_, entry)| entry.used.1);
            let oldest = oldest.map(|(id, _)| id.clone()).ok_or_else(|| full(limits))?;
            self.remove(&oldest);
        }
        Ok(())
    }
}

/// The place of a response that is being made.
#[derive(Debug)]
pub struct Seat {
    store: ResponseStore,
    id: String,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.store.state().reserved.remove(&self.id);
    }
}

impl Seat {
    /// The place of a response that is to be kept.
    ///
    /// # Errors
    /// 400 for a request that is larger than the store.
    pub fn keep(self, owner: Option<KeyDigest>, kept: Kept) -> Result<Keeper, ApiError> {
        let (bytes, limit) = (kept.input.len(), self.store.0.limits.max_bytes);
        if bytes > limit {
            let message = format!(
                "input is {bytes} bytes of items, and the store of responses holds {limit}; send store false or fewer \
                 items"
            );
            return Err(ApiError::field("input", message));
        }
        Ok(Keeper {
            seat: self,
            owner,
            kept,
        })
    }
}

/// A stored response in the background.
#[derive(Debug)]
pub struct Begun {
    store: ResponseStore,
    owner: Option<KeyDigest>,
    id: String,
}

impl Begun {
    /// Says what ends the work.
    pub fn set_work(&self, work: AbortHandle) {
        if let Some(entry) = self.store.state().entries.get_mut(&self.id) {
            entry.work = Some(work);
        }
    }

    /// A reader of all of its events.
    ///
    /// # Errors
    /// [`ResponseStore::events`]'s.
    pub fn events(&self) -> Result<EventReader, ApiError> {
        self.store.events(self.owner, &self.id, 0)
    }
}

/// Keeps a response. One in the background that this is dropped for without an end has failed.
#[derive(Debug)]
pub struct Keeper {
    seat: Seat,
    owner: Option<KeyDigest>,
    kept: Kept,
}

impl Keeper {
    /// Whether the client does not wait for the answer.
    pub fn is_background(&self) -> bool {
        self.kept.is_background
    }

    fn put(&self, response: Bytes, phase: Phase, has_events: bool) -> Result<(), ApiError> {
        let store = &self.seat.store;
        let mut state = store.current();
        let used = state.now();
        let entry = Entry {
            owner: self.owner,
            previous: self.kept.previous.clone(),
            input: self.kept.input.clone(),
            response,
            phase,
            events: has_events.then(Vec::new),
            event_bytes: 0,
            bytes: 0,
            used,
            changed: watch::Sender::new(()),
            work: None,
        };
        state.entries.insert(self.seat.id.clone(), entry);
        state.change(&self.seat.id, |_| {});
        state.make_room(&self.seat.id, &store.0.limits).inspect_err(|_| {
            state.remove(&self.seat.id);
        })
    }

    /// Stores a response that is about to be worked on; its events are kept where `has_events`.
    ///
    /// # Errors
    /// 503 where nothing can make room for it.
    pub fn begin(&self, queued: Bytes, has_events: bool) -> Result<Begun, ApiError> {
        self.put(queued, Phase::Running, has_events)?;
        Ok(Begun {
            store: self.seat.store.clone(),
            owner: self.owner,
            id: self.seat.id.clone(),
        })
    }

    /// How far a response in the background is, and events that are new. Nothing happens to one that was cancelled or
    /// deleted.
    ///
    /// # Errors
    /// 503 where nothing can make room for it.
    pub fn goes_on(&self, response: Option<String>, events: &str) -> Result<(), ApiError> {
        let store = &self.seat.store;
        let mut state = store.state();
        state.while_running(&self.seat.id, |entry| {
            entry.add_events(events);
            if let Some(response) = response {
                entry.response = response.into();
            }
        });
        state.make_room(&self.seat.id, &store.0.limits)
    }

    /// The end of one in the background, with its last events.
    pub fn finish_with(self, response: String, events: &str) {
        let store = self.seat.store.clone();
        let mut state = store.state();
        state.while_running(&self.seat.id, |entry| {
            entry.add_events(events);
            entry.phase = Phase::Over { background: true };
            entry.response = response.into();
        });
        if let Err(error) = state.make_room(&self.seat.id, &store.0.limits) {
            tracing::warn!(id = %self.seat.id, "{}", error.message);
        }
        // Dropping this locks it.
        drop(state);
    }

    /// The end.
    pub fn finish(self, response: String) {
        if let Err(error) = self.put(response.into(), Phase::Over { background: false }, false) {
            tracing::warn!(id = %self.seat.id, "a response was not stored: {}", error.message);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.seat.store.state().while_running(&self.seat.id, |entry| {
            entry.response = with_status(&entry.response, "failed");
            entry.phase = Phase::Over { background: true };
        });
    }
}

/// Reads the events of a response as they come.
#[derive(Debug)]
pub struct EventReader {
    store: ResponseStore,
    id: String,
    next: usize,
    changed: watch::Receiver<()>,
}

impl EventReader {
    /// The next events, one behind the other; `None`: there are no more.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            let (events, num_new, is_over) = {
                let state = self.store.state();
                let entry = state.entries.get(&self.id)?;
                let all = entry.events.as_deref().unwrap_or_default();
                let new = all.get(self.next..).unwrap_or_default();
                let new = &new[..new.len().min(MAX_EVENTS)];
                (new.concat(), new.len(), entry.phase != Phase::Running)
            };
            self.next += num_new;
            if num_new > 0 {
                return Some(events.into());
            }
            if is_over {
                return None;
            }
            // Fails where the response was deleted.
            self.changed.changed().await.ok()?;
        }
    }
}
