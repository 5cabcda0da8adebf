//! Queues: a stream, submit numbers that the device itself writes to a word of pinned memory, and what unfinished work
//! must keep alive.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use halyard_kernels_gpu as kernels;
use halyard_platform_api::{
    CommandId, Encoder, EncoderMode, Error, MAX_STEP_WRITE_BYTES, Queue, QueueId, QueueWait, Result, Status, StepWrite,
    SubmitMark,
};

use crate::commands::{CommandList, GpuEncoder};
use crate::device::Inner;
use crate::driver::{Driver, Event, Group, Pinned, Stream};
use crate::objects::{read, write};
use crate::run::Scratch;
use crate::step_ring::{StepRing, Write};

/// How long a wait watches the word before it begins to sleep.
const WATCH: Duration = Duration::from_micros(200);
/// How long it sleeps between looks after that. (A blocking wait of the driver wakes no sooner and knows no deadline.)
const NAP: Duration = Duration::from_micros(20);
/// Looks between two questions whether the device still works.
const LOOKS_PER_CHECK: u32 = 32;
/// Submits whose end other queues can wait for exactly; older ones are waited for with a newer one.
const EVENTS: u64 = 16;
/// How long a queue that is dropped waits for its work: longer than steps in flight take, and not for ever, as the
/// device may hang.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// The arena grows in these steps.
const ARENA_STEP: u64 = 2 << 20;

/// The part of a queue that other queues see.
pub(crate) struct QueueCore {
    driver: Arc<dyn Driver>,
    id: u64,
    stream: Stream,
    /// The device writes a submit's number here when it is done.
    word: Pinned,
    events: Vec<Event>,
    last: AtomicU64,
    failure: OnceLock<Error>,
    seen_uploads: AtomicU64,
    /// Groups that work of this queue waits in.
    groups: RwLock<Vec<Arc<dyn Group>>>,
}

impl QueueCore {
    fn new(driver: Arc<dyn Driver>, id: u64) -> Result<QueueCore> {
        let word = driver.allocate_pinned(64)?;
        // SAFETY: fresh memory, aligned to a page.
        unsafe { word.host.cast::<u64>().write(0) };
        let stream = driver.create_stream().inspect_err(|_| {
            // SAFETY: just made, never used.
            unsafe { driver.free_pinned(word) };
        })?;
        let mut core = QueueCore {
            driver,
            id,
            stream,
            word,
            events: Vec::new(),
            last: AtomicU64::new(0),
            failure: OnceLock::new(),
            seen_uploads: AtomicU64::new(0),
            groups: RwLock::default(),
        };
        for _ in 0..EVENTS {
            core.events.push(core.driver.create_event()?);
        }
        Ok(core)
    }

    fn done(&self) -> u64 {
        // SAFETY: the word lives as long as this; the device writes it whole.
        unsafe { AtomicU64::from_ptr(self.word.host.cast()) }.load(Ordering::Acquire)
    }

    fn event(&self, number: u64) -> Event {
        self.events[(number % EVENTS) as usize]
    }

    fn failed(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Remembers the first failure: everything after it is void.
    fn fail(&self, number: u64, error: Error) -> Error {
        let message = format!(
            "submit {number} failed: {}; this queue runs nothing more",
            error.message
        );
        self.failure.get_or_init(|| Error { message, ..error }).clone()
    }

    fn note_groups(&self, list: &CommandList) {
        for group in list.groups() {
            let known = |groups: &[Arc<dyn Group>]| groups.iter().any(|known| Arc::ptr_eq(known, group));
            if !known(&read(&self.groups)) {
                write(&self.groups).push(group.clone());
            }
        }
    }

    /// Whether the work that is done, up to `number`, got what it waited for from other ranks. The device has said so
    /// before it wrote the number.
    fn heard_all_ranks(&self, number: u64) -> Result<()> {
        let outcome = read(&self.groups).iter().try_for_each(|group| group.outcome());
        outcome.map_err(|error| self.fail(number, error))
    }

    /// Asks the driver whether the work is still going on.
    fn check(&self, number: u64) -> Result<()> {
        match self.driver.query_event(self.event(number)) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.fail(number, error)),
        }
    }
}

impl Drop for QueueCore {
    fn drop(&mut self) {
        // SAFETY: the queue has waited for the stream, or the device is lost; this is the last owner.
        unsafe {
            for &event in &self.events {
                self.driver.destroy_event(event);
            }
            self.driver.destroy_stream(self.stream);
            self.driver.free_pinned(self.word);
        }
    }
}

/// Buffers that one submit at a time uses.
struct State {
    in_flight: VecDeque<(u64, Arc<CommandList>)>,
    /// Lists of the submit at hand.
    lists: Vec<Arc<CommandList>>,
    arena: Scratch,
    ring: Option<StepRing>,
}

/// An in-order queue over a stream of its own.
pub(crate) struct GpuQueue(Arc<Work>);

/// State that a queue and its encoders share.
pub(crate) struct Work {
    pub(crate) inner: Arc<Inner>,
    core: Arc<QueueCore>,
    state: Mutex<State>,
    step_bytes: usize,
}

impl GpuQueue {
    pub(crate) fn new(inner: Arc<Inner>, id: u64, step_bytes: u64) -> Result<GpuQueue> {
        let core = Arc::new(QueueCore::new(inner.driver.clone(), id)?);
        inner.queues().insert(id, core.clone());
        Ok(GpuQueue(Arc::new(Work {
            inner,
            core,
            state: Mutex::new(State {
                in_flight: VecDeque::new(),
                lists: Vec::new(),
                arena: Scratch { base: 0, bytes: 0 },
                ring: None,
            }),
            step_bytes: (step_bytes as usize).max(MAX_STEP_WRITE_BYTES),
        })))
    }
}

impl Deref for GpuQueue {
    type Target = Work;

    fn deref(&self) -> &Work {
        &self.0
    }
}

impl Work {
    pub(crate) fn queue_id(&self) -> QueueId {
        QueueId(self.core.id)
    }

    /// Captures a list for this queue, if it can be before it has run. What goes wrong is the list's matter: the queue
    /// goes on.
    pub(crate) fn capture(&self, list: &CommandList) -> Result<()> {
        let mut state = self.lock();
        self.core.failed()?;
        self.grow_arena(&mut state, list.scratch_bytes())?;
        list.capture_for(self.core.id, self.core.stream, state.arena)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of what finished work has named.
    fn reap(&self, state: &mut State) {
        let done = self.core.done();
        while state.in_flight.front().is_some_and(|&(number, _)| number <= done) {
            state.in_flight.pop_front();
        }
        if let Some(ring) = &mut state.ring {
            ring.reap();
        }
    }

    fn grow_arena(&self, state: &mut State, bytes: u64) -> Result<()> {
        if bytes <= state.arena.bytes {
            return Ok(());
        }
        let driver = &*self.core.driver;
        driver.synchronize(self.core.stream)?;
        let old = std::mem::replace(&mut state.arena, Scratch { base: 0, bytes: 0 });
        // SAFETY: the stream is idle, and the arena is this queue's own.
        unsafe { old.free(driver) };
        state.arena = Scratch::allocate(driver, bytes.next_multiple_of(ARENA_STEP), self.core.stream)?;
        Ok(())
    }

    /// The queues to wait for, with the numbers that are not reached yet.
    fn others(&self, waits: &[QueueWait]) -> Result<Vec<(Arc<QueueCore>, u64)>> {
        let mut others = Vec::new();
        if waits.is_empty() {
            return Ok(others);
        }
        let queues = self.inner.queues();
        for wait in waits {
            let core = queues
                .get(&wait.queue.0)
                .ok_or_else(|| Error::invalid(format!("queue {} is not alive", wait.queue.0)))?;
            let last = core.last.load(Ordering::Acquire);
            if wait.number > last {
                return Err(Error::invalid(format!(
                    "a wait for submit {} of queue {}, whose last is {last}: submit there first",
                    wait.number, wait.queue.0
                )));
            }
            core.failed()?;
            if core.id != self.core.id && core.done() < wait.number {
                others.push((core.clone(), wait.number));
            }
        }
        Ok(others)
    }

    fn enqueue(&self, state: &State, others: &[(Arc<QueueCore>, u64)], number: u64) -> Result<()> {
        let core = &*self.core;
        let driver = &*core.driver;
        self.inner.uploads.order(core.stream, &core.seen_uploads)?;
        for (other, number) in others {
            driver.stream_wait(core.stream, other.event(*number))?;
        }
        for list in &state.lists {
            list.enqueue(core.id, core.stream, state.arena)?;
        }
        // SAFETY: the word lives until the stream is destroyed.
        unsafe { driver.write_value(core.word.device, number, core.stream)? };
        driver.record_event(core.event(number), core.stream)
    }
}

impl Queue for GpuQueue {
    fn id(&self) -> QueueId {
        self.queue_id()
    }

    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>> {
        Ok(Box::new(GpuEncoder::new(self.0.clone(), mode)))
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        let mut state = self.lock();
        let state = &mut *state;
        self.core.failed()?;
        self.reap(state);
        state.lists.clear();
        {
            let objects = read(&self.inner.objects);
            for &id in commands {
                let list = objects.command(id)?;
                self.core.note_groups(list);
                state.lists.push(list.clone());
            }
        }
        let others = self.others(waits)?;
        SubmitMark::submit(state.lists.iter().map(|list| &list.mark), self.id())?;
        let scratch = state.lists.iter().map(|list| list.scratch_bytes()).max();
        self.grow_arena(state, scratch.unwrap_or(0))?;
        let number = self.core.last.load(Ordering::Relaxed) + 1;
        let outcome = self.enqueue(state, &others, number);
        // Also after a failure: part of the work may be under way.
        state.in_flight.extend(state.lists.drain(..).map(|list| (number, list)));
        outcome.map_err(|error| self.core.fail(number, error))?;
        self.core.last.store(number, Ordering::Release);
        Ok(number)
    }

    fn completed(&self) -> u64 {
        let done = self.core.done();
        match self.core.failed().and_then(|()| self.core.heard_all_ranks(done)) {
            Err(_) => u64::MAX,
            Ok(()) => done,
        }
    }

    fn wait(&self, number: u64, timeout_ns: u64) -> Result<()> {
        let core = &*self.core;
        core.failed()?;
        let last = core.last.load(Ordering::Acquire);
        if number > last {
            return Err(Error::invalid(format!(
                "submit {number} was never made; the last is {last}"
            )));
        }
        let start = Instant::now();
        let timeout = Duration::from_nanos(timeout_ns);
        let mut looks = 0u32;
        while core.done() < number {
            core.failed()?;
            let waited = start.elapsed();
            if waited >= timeout {
                core.check(number)?;
                if core.done() >= number {
                    break;
                }
                return Err(Error::new(
                    Status::Timeout,
                    format!(
                        "submit {number} is not done after {timeout_ns} ns; the last done is {}",
                        core.done()
                    ),
                ));
            }
            if waited < WATCH {
                std::hint::spin_loop();
                continue;
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_CHECK) {
                core.check(number)?;
            }
            std::thread::sleep(NAP.min(timeout - waited));
        }
        if let Ok(mut state) = self.state.try_lock() {
            self.reap(&mut state);
        }
        core.heard_all_ranks(number)
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        let mut state = self.lock();
        self.core.failed()?;
        let bytes: usize = writes.iter().map(|write| write.bytes.len()).sum();
        if bytes > self.step_bytes {
            return Err(Error::invalid(format!(
                "a step writes {bytes} bytes; this queue was created for {}",
                self.step_bytes
            )));
        }
        let mut checked = Vec::with_capacity(writes.len());
        {
            let objects = read(&self.inner.objects);
            for write in writes {
                let allocation = objects.buffer(write.buffer)?;
                allocation.check(write.offset, write.bytes.len() as u64)?;
                checked.push(Write {
                    to: allocation.ptr() + write.offset,
                    bytes: write.bytes,
                    holds: allocation.clone(),
                });
            }
        }
        if state.ring.is_none() {
            let driver = &self.inner.driver;
            let modules = &self.inner.modules;
            let scatter = match driver.facts().struct_params {
                true => Some(modules.function(&**driver, kernels::STEP_WRITE, &[], "step_write", 0)?),
                false => None,
            };
            state.ring = Some(StepRing::new(driver.clone(), scatter, self.step_bytes));
        }
        self.inner.uploads.order(self.core.stream, &self.core.seen_uploads)?;
        let Some(ring) = &mut state.ring else { return Ok(()) };
        let next = self.core.last.load(Ordering::Relaxed) + 1;
        ring.write(&checked, self.core.stream)
            .map_err(|error| self.core.fail(next, error))
    }

    fn reserve_scratch(&self, bytes: u64) -> Result<()> {
        // Called at load, with the weights in place: what loading needed can go.
        self.inner.uploads.release();
        self.grow_arena(&mut self.lock(), bytes)
    }
}

impl Work {
    /// Waits for the stream's work, with an end; whether nothing runs on it any more.
    fn ended(&self) -> bool {
        let core = &*self.core;
        let event = core.event(core.last.load(Ordering::Acquire) + 1);
        if core.driver.record_event(event, core.stream).is_err() {
            // The device is lost, and its work with it.
            return true;
        }
        let deadline = Instant::now() + LAST_WAIT;
        while let Ok(false) = core.driver.query_event(event) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(NAP);
        }
        true
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.inner.queues().remove(&self.core.id);
        let ended = self.ended();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !ended {
            // Work that may still run keeps all that it names, and the device: the process ends without them.
            self.inner.memory.abandon();
            std::mem::forget((
                std::mem::take(&mut state.in_flight),
                state.ring.take(),
                self.core.clone(),
                self.inner.clone(),
            ));
            return;
        }
        state.in_flight.clear();
        state.ring = None;
        // SAFETY: the stream is idle, and the arena is this queue's own.
        unsafe { state.arena.free(&*self.core.driver) };
    }
}
