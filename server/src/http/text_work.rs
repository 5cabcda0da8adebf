//! Long bodies and the work on their texts, bounded in memory, in threads and in time: a long body takes memory as its
//! bytes come, then waits (async) until it may be converted. Only so many bytes are converted at once. A short body
//! never waits for a long one, and a long one that is not large never for a large one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use halyard_text::CancelFlag;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::body::{LARGE_BYTES, SHORT_BYTES};
use super::body_memory::{BodyMemory, Place, ReadError};
use super::trim;
use crate::api_error::ApiError;
use crate::low_priority;

/// Bytes of one permit.
const PERMIT_BYTES: usize = 32 << 10;
/// Bodies of the largest size whose JSON and text are worked on at the same time; each takes some six times its bytes.
const BODIES_CONVERTED: usize = 2;
/// The same of bodies that are not large, for whom others have their own share.
const SMALLER_CONVERTED: usize = 16;
/// Bytes that a value of a body counts for, and how many more an object does: their memory when read, in a list that
/// grows.
const VALUE_BYTES: usize = 96;
const OBJECT_BYTES: usize = 384;
/// Most JSON values in one body.
const MAX_VALUES: usize = 1 << 20;
/// How long a short chat waits for a thread: others' templates may each take their whole bound.
const CHAT_WAIT: Duration = Duration::from_secs(20);

/// The bounds on work at the same time.
#[derive(Debug)]
pub struct TextWork {
    memory: Arc<BodyMemory>,
    /// For long bodies, and for large ones.
    shares: [Shares; 2],
    /// Threads for short chats.
    chats: Arc<Semaphore>,
    chat_wait: Duration,
    max_body_bytes: usize,
    trim: Arc<AtomicBool>,
}

/// What bodies of one kind may take at the same time.
#[derive(Debug)]
struct Shares {
    for_large: bool,
    /// All bytes that are converted at once, in permits.
    all: u32,
    converting: Arc<Semaphore>,
    threads: Arc<Semaphore>,
    jobs: OnceLock<mpsc::Sender<Job>>,
}

impl Shares {
    fn new(for_large: bool, bytes: usize) -> Self {
        let all = permits(bytes);
        Shares {
            for_large,
            all,
            converting: Arc::new(Semaphore::new(all as usize)),
            threads: Arc::new(Semaphore::new(num_threads())),
            jobs: OnceLock::new(),
        }
    }

    fn jobs(&self) -> &mpsc::Sender<Job> {
        self.jobs.get_or_init(|| start_threads(self.for_large))
    }
}

/// Work on a long body.
type Job = Box<dyn FnOnce() + Send>;

impl TextWork {
    /// Bounds for bodies of at most `max_body_bytes`, all of which take their bytes from `memory`.
    pub fn new(max_body_bytes: usize, memory: Arc<BodyMemory>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let smaller = LARGE_BYTES.min(max_body_bytes).saturating_mul(SMALLER_CONVERTED);
        TextWork {
            memory,
            shares: [
                Shares::new(false, smaller),
                Shares::new(true, max_body_bytes.saturating_mul(BODIES_CONVERTED)),
            ],
            chats: Arc::new(Semaphore::new(cores.max(2))),
            chat_wait: CHAT_WAIT,
            max_body_bytes,
            trim: Arc::default(),
        }
    }

    fn shares(&self, bytes: usize) -> &Shares {
        &self.shares[usize::from(bytes >= LARGE_BYTES)]
    }

    /// Runs work on a long body of so many bytes on one of a few threads of its own. The allocator keeps freed memory
    /// by thread: on the runtime's many blocking threads, each would keep that of the largest body it has seen.
    ///
    /// # Errors
    /// 500 where the work panics or no thread can be had.
    pub async fn run<T, F>(&self, bytes: usize, work: F) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let jobs = self.shares(bytes).jobs();
        let (done, result) = oneshot::channel();
        // The request may be gone: then the result is dropped.
        let job = Box::new(move || drop(done.send(work())));
        let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the work on the body failed");
        jobs.send(job).map_err(|_| failed(()))?;
        result.await.map_err(|_| failed(()))
    }

    /// Lets a body in: a long one when all of it is here and may be worked on.
    ///
    /// # Errors
    /// 400 for a body of too many values, 503 for one for which no memory is free.
    pub async fn admit(&self, headers: &HeaderMap, body: Body) -> Result<Admitted, ApiError> {
        let announced = headers.get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        match announced {
            // Too long ones are refused by their reader, unread.
            Some(bytes) if bytes <= SHORT_BYTES || bytes > self.max_body_bytes => Ok(Admitted::Short(body)),
            Some(bytes) => {
                self.admit_long(Vec::with_capacity(bytes), body.into_data_stream())
                    .await
            }
            None => {
                // Its length shows while it comes; only a long one waits.
                let mut start = Vec::new();
                let mut rest = body.into_data_stream();
                while start.len() <= SHORT_BYTES {
                    match rest.next().await {
                        None => return Ok(Admitted::Short(Body::from(start))),
                        Some(Ok(bytes)) => start.extend_from_slice(&bytes),
                        Some(Err(error)) => return Ok(Admitted::Short(failing(error))),
                    }
                }
                self.admit_long(start, rest).await
            }
        }
    }

    /// Bytes of large bodies that could be converted now.
    pub fn free_bytes(&self) -> usize {
        self.shares(LARGE_BYTES).converting.available_permits() * PERMIT_BYTES
    }

    /// Takes all shares of conversion that are free for large bodies, until the answer is dropped.
    pub fn hold_all(&self) -> Option<OwnedSemaphorePermit> {
        let converting = &self.shares(LARGE_BYTES).converting;
        let free = u32::try_from(converting.available_permits()).unwrap_or(u32::MAX);
        Arc::clone(converting).try_acquire_many_owned(free).ok()
    }

    async fn admit_long(&self, start: Vec<u8>, rest: BodyDataStream) -> Result<Admitted, ApiError> {
        let mut place = self.memory.place();
        let bytes = match place.read(start, rest, self.max_body_bytes).await {
            Ok(bytes) => bytes,
            Err(ReadError::Body(error)) => return Ok(Admitted::Short(failing(error))),
            Err(ReadError::NoMemory(error)) => return Err(error),
        };
        if bytes.len() > self.max_body_bytes {
            // Its reader refuses it in the same words as one that said so before.
            return Ok(Admitted::Short(Body::from(bytes)));
        }
        let ((values, objects), bytes) = self.run(bytes.len(), move || (count_values(&bytes), bytes)).await?;
        if values > MAX_VALUES {
            let message = format!("the body holds {values} JSON values; at most {MAX_VALUES} are taken in one request");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
        }
        let shares = self.shares(bytes.len());
        let weight = permits(bytes.len() + values * VALUE_BYTES + objects * OBJECT_BYTES).min(shares.all);
        // The thread first: what waits for one holds no bytes that others could use.
        let thread = take(&shares.threads, 1).await?;
        let converting = take(&shares.converting, weight).await?;
        let held = Held {
            _place: place,
            _shares: [converting, thread],
            bytes: bytes.len(),
            trim: (bytes.len() >= LARGE_BYTES).then(|| self.trim.clone()),
            // Not those of large bodies: the allocator's locks are everybody's.
            trimmers: self.shares(0).jobs().clone(),
        };
        Ok(Admitted::Long(bytes, held))
    }

    /// A thread for a short chat: its template may take long, and others must not wait for it.
    ///
    /// # Errors
    /// 503 where none is free for 20 s, and while the server ends.
    pub async fn chat(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let turn = tokio::time::timeout(self.chat_wait, take(&self.chats, 1)).await;
        turn.unwrap_or_else(|_| {
            let message = format!(
                "no thread to render the chat was free for {} s: this model's template takes long for others; try \
                 again",
                self.chat_wait.as_secs()
            );
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
        })
    }
}

/// A body that was let in.
#[derive(Debug)]
pub enum Admitted {
    /// To be read where it is: it is short, or will be refused.
    Short(Body),
    /// All of it, with what it holds of the bounds.
    Long(Vec<u8>, Held),
}

/// The part of the bounds that a long body holds; freed on drop.
#[derive(Debug)]
pub struct Held {
    _place: Place,
    _shares: [OwnedSemaphorePermit; 2],
    bytes: usize,
    /// Whether a trim is due already; `None`: the body is not worth one.
    trim: Option<Arc<AtomicBool>>,
    trimmers: mpsc::Sender<Job>,
}

impl Held {
    /// Bytes of the body.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(due) = self.trim.take().filter(|due| !due.swap(true, Ordering::AcqRel)) else {
            return;
        };
        // Without threads there is nothing that took memory.
        let _ = self.trimmers.send(Box::new(move || {
            due.store(false, Ordering::Release);
            trim::give_back();
        }));
    }
}

/// How a request's body is worked on.
#[derive(Debug)]
pub enum Lane {
    /// Where it is.
    Short,
    /// On a thread of its own, with what it holds of the bounds.
    Long(Held),
}

/// Ends the work of a request that was dropped: lives in the request's future.
#[derive(Debug, Default)]
pub struct CancelOnDrop(CancelFlag);

impl CancelOnDrop {
    /// The flag that the work checks.
    pub fn flag(&self) -> CancelFlag {
        self.0.clone()
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Threads for long bodies, or for large ones. They end when the sender does.
fn start_threads(for_large: bool) -> mpsc::Sender<Job> {
    let (sender, receiver) = mpsc::channel::<Job>();
    let receiver = Arc::new(Mutex::new(receiver));
    let next = |receiver: &Mutex<mpsc::Receiver<Job>>| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
    for _ in 0..num_threads() {
        let receiver = Arc::clone(&receiver);
        let serve = move || {
            // Without it, others only wait longer.
            if for_large && let Err(error) = low_priority::take() {
                tracing::debug!("threads for large bodies keep their priority: {error}");
            }
            while let Ok(job) = next(&receiver) {
                // Its request sees that no result comes.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        };
        // With none at all, each job fails by itself.
        if let Err(error) = std::thread::Builder::new().name("halyard-bodies".into()).spawn(serve) {
            tracing::error!("no thread for long bodies: {error}");
        }
    }
    sender
}

/// One for each core, and no more than memory is worth: each may keep what its largest body took.
fn num_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES).max(1)).unwrap_or(u32::MAX >> 4)
}

async fn take(semaphore: &Arc<Semaphore>, count: u32) -> Result<OwnedSemaphorePermit, ApiError> {
    let taken = Arc::clone(semaphore).acquire_many_owned(count).await;
    taken.map_err(|error| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
}

/// A body that fails with the error of the original one.
fn failing(error: axum::Error) -> Body {
    Body::from_stream(stream::iter([Err::<Bytes, _>(error.into_inner())]))
}

/// JSON values of a body, counted by what separates them (keys count as values), and the objects among them.
fn count_values(json: &[u8]) -> (usize, usize) {
    let (mut count, mut objects) = (1, 0);
    let (mut in_text, mut is_escaped) = (false, false);
    for byte in json {
        if in_text {
            if is_escaped {
                is_escaped = false;
            } else {
                is_escaped = *byte == b'\\';
                in_text = *byte != b'"';
            }
        } else {
            match byte {
                b'"' => in_text = true,
                b'{' => {
                    count += 1;
                    objects += 1;
                }
                b',' | b':' | b'[' => count += 1,
                _ => {}
            }
        }
    }
    (count, objects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Whether a future is ready without waiting.
    fn is_ready(future: impl Future) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(pin!(future).poll(&mut context), Poll::Ready(_))
    }

    fn announced(bytes: usize) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, bytes.to_string().parse().expect("a number"));
        headers
    }

    async fn long(work: &TextWork, body: Vec<u8>) -> Admitted {
        let lane = work
            .admit(&announced(body.len()), Body::from(body))
            .await
            .expect("admitted");
        assert!(matches!(lane, Admitted::Long(..)));
        lane
    }

    #[tokio::test]
    async fn long_bodies_wait_for_each_other_and_short_ones_do_not() {
        let memory = Arc::new(BodyMemory::new(16 << 20));
        let work = TextWork::new(4 << 20, Arc::clone(&memory));
        let text = || vec![b' '; (4 << 20) - PERMIT_BYTES];
        let held = long(&work, text()).await;
        assert_eq!(
            memory.bytes(),
            text().len(),
            "it holds its bytes until its conversion ends"
        );
        let unannounced = |body: Vec<u8>| Body::from_stream(stream::iter([Ok::<_, std::io::Error>(Bytes::from(body))]));
        // Whatever the number of cores, no more than two of the largest are converted.
        let converting = work.shares(text().len()).converting.clone();
        let more = converting
            .clone()
            .try_acquire_many_owned(permits(4 << 20))
            .expect("memory for a second one");
        assert!(!is_ready(take(&converting, permits(4 << 20))), "a third one waits");
        let lane = work
            .admit(&announced(100), Body::from(vec![b' '; 100]))
            .await
            .expect("short");
        assert!(matches!(lane, Admitted::Short(_)));
        let lane = work
            .admit(&HeaderMap::new(), unannounced(text()[..100].to_vec()))
            .await
            .expect("short");
        assert!(matches!(lane, Admitted::Short(_)), "without a length too");
        drop((held, more));
        let lane = work.admit(&HeaderMap::new(), unannounced(text())).await.expect("long");
        assert!(
            matches!(lane, Admitted::Long(..)),
            "a long one is seen without its length"
        );
        drop(lane);
        assert_eq!(
            converting.available_permits(),
            permits(8 << 20) as usize,
            "all is given back"
        );
        assert_eq!(memory.bytes(), 0);
    }

    #[tokio::test]
    async fn bodies_of_too_many_values_are_refused() {
        let body = format!("{{\"prompt\":[{}1]}}", "1,".repeat(MAX_VALUES));
        let work = TextWork::new(16 << 20, Arc::new(BodyMemory::new(16 << 20)));
        let error = work
            .admit(&announced(body.len()), Body::from(body))
            .await
            .expect_err("refused");
        assert_eq!(error.status, 400);
        assert!(error.message.contains("at most 1048576"), "{}", error.message);
        assert_eq!(count_values(br#"{"a":"[1,2]\"{,","b":[1,{}]}"#), (8, 2));
    }

    #[tokio::test]
    async fn large_bodies_are_worked_on_at_the_lowest_priority() {
        let work = TextWork::new(1 << 20, Arc::new(BodyMemory::new(1 << 20)));
        assert!(work.run(LARGE_BYTES, low_priority::is_taken).await.expect("a thread"));
        assert!(
            !work
                .run(LARGE_BYTES - 1, low_priority::is_taken)
                .await
                .expect("a thread")
        );
    }

    #[tokio::test]
    async fn a_chat_waits_for_a_thread_and_not_for_ever() {
        let mut work = TextWork::new(1 << 20, Arc::new(BodyMemory::new(1 << 20)));
        work.chat_wait = Duration::from_millis(20);
        let mut held = Vec::new();
        while work.chats.available_permits() > 0 {
            held.push(work.chat().await.expect("a free thread"));
        }
        let error = work.chat().await.expect_err("none is free");
        assert_eq!(error.status, 503);
        drop(held.pop());
        assert!(work.chat().await.is_ok());
    }

    #[test]
    fn the_work_of_a_dropped_request_is_cancelled() {
        let guard = CancelOnDrop::default();
        let flag = guard.flag();
        assert!(!flag.is_cancelled());
        drop(guard);
        assert!(flag.is_cancelled());
    }
}
