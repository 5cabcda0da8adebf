//! Memory for long bodies: a bound on the bytes of all bodies that are arriving or wait to be processed. When the next
//! bytes of a body do not fit, the body that has kept the server waiting longest is refused. So a client that announces
//! much and sends little does not keep others out. If no body is slow, the bytes wait until memory is free. One body at
//! most may exceed the bound: while no other body is complete, the oldest one always continues, so bodies never wait
//! for each other in a circle.
//!
//! Large bodies come no faster than a pace, all together: reading them takes the processor from running streams. They
//! leave an eighth of the memory to the others, whose work is done sooner.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::body::LARGE_BYTES;
use super::body_error::BodyError;
use super::pace::Pace;
use crate::api_error::ApiError;

/// A body that has kept the server waiting for less than this in all keeps its place.
const LEAST_WAITED: Duration = Duration::from_secs(2);
/// Bytes wait at most this long for free memory.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often waiting bodies check which one is slow.
const LOOK: Duration = Duration::from_millis(200);

/// Memory for the bytes of long bodies.
#[derive(Debug)]
pub struct BodyMemory {
    limit: usize,
    pace: Pace,
    places: Mutex<Places>,
    /// Places became free.
    freed: Notify,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Places {
    bytes: usize,
    /// Bodies that have a place, whole ones too.
    count: usize,
    next_id: u64,
    /// Bodies that have not come to their end, the oldest first.
    coming: BTreeMap<u64, Coming>,
}

#[derive(Debug)]
struct Coming {
    /// How long the server waited for its bytes, without a wait that lasts.
    waited: Duration,
    /// Start of the wait that lasts.
    waits_since: Option<Instant>,
    give_up: Arc<Notify>,
}

impl Coming {
    fn waited(&self) -> Duration {
        self.waited + self.waits_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl BodyMemory {
    /// A bound of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        BodyMemory {
            limit,
            pace: Pace::default(),
            places: Mutex::default(),
            freed: Notify::new(),
            refused: AtomicU64::new(0),
        }
    }

    /// Bodies that were refused because no memory was free.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.places().bytes
    }

    /// A place for one body, which holds nothing yet.
    pub fn place(self: &Arc<Self>) -> Place {
        let give_up = Arc::new(Notify::new());
        let mut places = self.places();
        let id = places.next_id;
        places.next_id += 1;
        places.count += 1;
        let coming = Coming {
            waited: Duration::ZERO,
            waits_since: None,
            give_up: Arc::clone(&give_up),
        };
        places.coming.insert(id, coming);
        drop(places);
        Place {
            memory: Arc::clone(self),
            id,
            bytes: 0,
            give_up,
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self) -> ApiError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        ApiError::from(&BodyError::NoMemory { limit: self.limit })
    }
}

impl Places {
    /// Takes `more` bytes for a body, if they may be taken.
    fn take(&mut self, id: u64, more: usize, limit: usize) -> bool {
        let oldest = self.coming.keys().next();
        let none_is_whole = self.coming.len() == self.count;
        let fits = self.bytes.saturating_add(more) <= limit || (none_is_whole && oldest == Some(&id));
        if fits {
            self.bytes += more;
        }
        fits
    }

    /// Asks the slowest body that is coming to give up its place, if one is slow enough. Answers which.
    fn end_slowest(&mut self) -> Option<u64> {
        let slowest = self.coming.iter().max_by_key(|(_, coming)| coming.waited());
        let (&id, _) = slowest.filter(|(_, coming)| coming.waited() >= LEAST_WAITED)?;
        self.coming.remove(&id)?.give_up.notify_one();
        Some(id)
    }
}

/// Why a body was not read to its end.
#[derive(Debug)]
pub enum ReadError {
    /// The body failed.
    Body(axum::Error),
    /// No memory is free for it.
    NoMemory(ApiError),
}

/// The memory that one body holds. Dropping it frees the bytes.
#[derive(Debug)]
pub struct Place {
    memory: Arc<BodyMemory>,
    id: u64,
    bytes: usize,
    give_up: Arc<Notify>,
}

impl Place {
    /// Reads a body that began with `bytes` to its end, or to just past `most`.
    ///
    /// # Errors
    /// The body's own error; [`ReadError::NoMemory`] when no memory is free, or when it is given up for others.
    pub async fn read(
        &mut self,
        mut bytes: Vec<u8>,
        mut rest: impl Stream<Item = Result<Bytes, axum::Error>> + Unpin,
        most: usize,
    ) -> Result<Vec<u8>, ReadError> {
        self.grow(bytes.len()).await?;
        while bytes.len() <= most {
            self.waits(true);
            let part = self.unless_given_up(rest.next()).await?;
            self.waits(false);
            let Some(part) = part else { break };
            let part = part.map_err(ReadError::Body)?;
            self.grow(part.len()).await?;
            bytes.extend_from_slice(&part);
            if bytes.len() > LARGE_BYTES {
                self.unless_given_up(self.memory.pace.take(part.len())).await?;
            }
        }
        self.memory.places().coming.remove(&self.id);
        Ok(bytes)
    }

    async fn unless_given_up<T>(&self, awaited: impl Future<Output = T>) -> Result<T, ReadError> {
        tokio::select! {
            result = awaited => Ok(result),
            () = self.give_up.notified() => Err(ReadError::NoMemory(self.memory.full())),
        }
    }

    /// Takes `more` bytes, as soon as so many are free.
    async fn grow(&mut self, more: usize) -> Result<(), ReadError> {
        let start = Instant::now();
        loop {
            let freed = self.memory.freed.notified();
            let ended = {
                let mut places = self.memory.places();
                if places.take(self.id, more, self.limit()) {
                    self.bytes += more;
                    return Ok(());
                }
                places.end_slowest()
            };
            if ended == Some(self.id) || start.elapsed() >= PATIENCE {
                return Err(ReadError::NoMemory(self.memory.full()));
            }
            // Late or not: what is there now decides.
            let _ = timeout(LOOK, freed).await;
        }
    }

    /// Up to how many bytes of all bodies this one may grow.
    fn limit(&self) -> usize {
        let limit = self.memory.limit;
        if self.bytes < LARGE_BYTES {
            limit
        } else {
            limit - limit / 8
        }
    }

    /// The server waits for this body's bytes from now on, or not any more.
    fn waits(&self, waits: bool) {
        if let Some(coming) = self.memory.places().coming.get_mut(&self.id) {
            coming.waited = coming.waited();
            coming.waits_since = waits.then(Instant::now);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.memory.places();
        places.bytes -= self.bytes;
        places.count -= 1;
        places.coming.remove(&self.id);
        drop(places);
        self.memory.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    /// A body whose parts are sent by the test.
    fn body() -> (
        mpsc::UnboundedSender<usize>,
        impl Stream<Item = Result<Bytes, axum::Error>> + Unpin,
    ) {
        let (parts, source) = mpsc::unbounded_channel();
        let parts_of = |mut source: mpsc::UnboundedReceiver<usize>| async {
            let part = Bytes::from(vec![b' '; source.recv().await?]);
            Some((Ok(part), source))
        };
        (parts, Box::pin(futures::stream::unfold(source, parts_of)))
    }

    /// A task that reads a body: its bytes, or the status of its refusal.
    type Reading = tokio::task::JoinHandle<Result<(usize, Place), u16>>;

    /// Reads a body of at most 1,000 bytes on a task of its own.
    fn start(memory: &Arc<BodyMemory>) -> (mpsc::UnboundedSender<usize>, Reading) {
        let mut place = memory.place();
        let (parts, body) = body();
        let reading = tokio::spawn(async move {
            match place.read(Vec::new(), body, 1000).await {
                Ok(bytes) => Ok((bytes.len(), place)),
                Err(ReadError::NoMemory(error)) => Err(error.status.as_u16()),
                Err(ReadError::Body(error)) => panic!("{error}"),
            }
        });
        (parts, reading)
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_keep_the_server_waiting_give_way_to_those_who_send() {
        let memory = Arc::new(BodyMemory::new(4000));
        let mut slow = Vec::new();
        for _ in 0..4 {
            let (parts, reading) = start(&memory);
            parts.send(999).expect("read");
            slow.push((parts, reading));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(memory.bytes(), 4 * 999);
        let before = Instant::now();
        for _ in 0..3 {
            let (parts, fast) = start(&memory);
            parts.send(700).expect("read");
            drop(parts);
            assert_eq!(fast.await.expect("no panic").expect("memory is free").0, 700);
        }
        assert!(before.elapsed() < LOOK, "{:?}", before.elapsed());
        // One had to go: the first, which was waited for longest. The others go on.
        assert_eq!(memory.refused(), 1);
        let ends: Vec<_> = slow
            .into_iter()
            .map(|(parts, reading)| {
                drop(parts);
                reading
            })
            .collect();
        let mut statuses = Vec::new();
        for end in ends {
            statuses.push(end.await.expect("no panic").map(|(bytes, _)| bytes));
        }
        assert_eq!(statuses, [Err(503), Ok(999), Ok(999), Ok(999)]);
        assert_eq!(memory.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_slow_body_bytes_wait_for_memory_and_not_for_ever() {
        let memory = Arc::new(BodyMemory::new(1000));
        let (parts, whole) = start(&memory);
        parts.send(900).expect("read");
        drop(parts);
        let (_, held) = whole.await.expect("no panic").expect("memory is free");
        let (parts, waits) = start(&memory);
        parts.send(200).expect("read");
        drop(parts);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!waits.is_finished());
        drop(held);
        assert_eq!(waits.await.expect("no panic").map(|(bytes, _)| bytes), Ok(200));
        let (parts, whole) = start(&memory);
        parts.send(900).expect("read");
        drop(parts);
        let _held = whole.await.expect("no panic").expect("memory is free");
        let (parts, waits) = start(&memory);
        parts.send(200).expect("read");
        assert_eq!(waits.await.expect("no panic").map(|(bytes, _)| bytes), Err(503));
        assert_eq!(memory.bytes(), 900, "what was refused holds nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_fill_the_room_together_end_one_after_the_other() {
        let memory = Arc::new(BodyMemory::new(1000));
        let both = [start(&memory), start(&memory)];
        for part in [500, 400, 100] {
            for (parts, _) in &both {
                parts.send(part).expect("read");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let [(first, first_read), (second, second_read)] = both;
        drop((first, second));
        let (bytes, held) = first_read.await.expect("no panic").expect("it is the oldest");
        assert_eq!((bytes, memory.bytes()), (1000, 1500), "the other holds what it has");
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!second_read.is_finished(), "a complete body holds the memory");
        drop(held);
        assert_eq!(second_read.await.expect("no panic").map(|(bytes, _)| bytes), Ok(1000));
        assert_eq!((memory.bytes(), memory.refused()), (0, 0));
    }
}
