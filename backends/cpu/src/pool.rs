//! Threads that run a region together: the submitting one and some workers, which sleep when there is nothing to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a worker looks for the next region before it sleeps: the time between two decode steps, at most.
const SPIN: Duration = Duration::from_micros(100);
/// Looks at what another thread will soon write, about a microsecond of them, before the core is given away between
/// looks: the other may be waiting for it, as happens when threads of the server or of clients have pushed two of this
/// pool onto one core.
const LOOKS: u32 = 64;

/// Returns when `done` says so: looks at once, then again and again.
fn wait_until(mut done: impl FnMut() -> bool) {
    let mut looks = 0;
    while !done() {
        if looks < LOOKS {
            looks += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

type Region = &'static (dyn Fn(usize, &Barrier) + Sync);

struct State {
    /// Number of regions so far.
    epoch: usize,
    region: Option<Region>,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// `state.epoch`, to look at without the lock.
    epoch: AtomicUsize,
    /// Workers that have finished the current region.
    finished: AtomicUsize,
    panicked: AtomicBool,
    barrier: Barrier,
    size: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// On cache lines of its own (two, as processors fetch them in pairs): a write takes the line away from all threads
/// that read it.
#[repr(align(128))]
struct Apart<T>(T);

/// Where the threads of a region wait for each other.
pub(crate) struct Barrier {
    arrived: Apart<AtomicUsize>,
    /// All that waiting threads look at.
    waiting: Apart<Waiting>,
    size: usize,
}

struct Waiting {
    generation: AtomicUsize,
    /// A thread panicked: waiting for it would be for ever.
    broken: AtomicBool,
}

impl Barrier {
    fn new(size: usize) -> Barrier {
        Barrier {
            arrived: Apart(AtomicUsize::new(0)),
            waiting: Apart(Waiting {
                generation: AtomicUsize::new(0),
                broken: AtomicBool::new(false),
            }),
            size,
        }
    }

    /// Releases threads that wait for one that panicked.
    fn set_broken(&self) {
        self.waiting.0.broken.store(true, Ordering::Relaxed);
    }

    /// Resets it after a panic; no thread waits.
    fn reset(&self) {
        self.waiting.0.broken.store(false, Ordering::Relaxed);
        self.arrived.0.store(0, Ordering::Relaxed);
    }

    /// Returns when all threads have come; false if one never will.
    pub(crate) fn wait(&self) -> bool {
        if self.size == 1 {
            return true;
        }
        let Waiting {
            generation: now,
            broken,
        } = &self.waiting.0;
        let generation = now.load(Ordering::Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.0.store(0, Ordering::Relaxed);
            now.store(generation + 1, Ordering::Release);
            return true;
        }
        let passed = || now.load(Ordering::Acquire) != generation;
        wait_until(|| passed() || broken.load(Ordering::Relaxed));
        passed()
    }
}

/// The pool.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<std::thread::JoinHandle<()>>,
    /// One region at a time.
    running: Mutex<()>,
}

impl Pool {
    /// Starts `size - 1` workers.
    pub(crate) fn new(size: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                epoch: 0,
                region: None,
                stop: false,
            }),
            wake: Condvar::new(),
            epoch: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            barrier: Barrier::new(size),
            size,
        });
        let mut workers = Vec::with_capacity(size - 1);
        for rank in 1..size {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("halyard-cpu-{rank}"));
            workers.push(thread.spawn(move || work(&shared, rank))?);
        }
        Ok(Pool {
            shared,
            workers,
            running: Mutex::new(()),
        })
    }

    /// Runs `region(rank, barrier)` on all threads and returns when all are done; false when one panicked.
    pub(crate) fn run(&self, region: &(dyn Fn(usize, &Barrier) + Sync)) -> bool {
        let _one = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: workers use the region only until they count themselves as finished, which is waited for below.
        let region: Region = unsafe { std::mem::transmute::<&(dyn Fn(usize, &Barrier) + Sync), Region>(region) };
        if shared.size > 1 {
            shared.finished.store(0, Ordering::Relaxed);
            let mut state = shared.lock();
            state.region = Some(region);
            state.epoch += 1;
            shared.epoch.store(state.epoch, Ordering::Release);
            drop(state);
            shared.wake.notify_all();
        }
        enter(shared, region, 0);
        wait_until(|| shared.finished.load(Ordering::Acquire) + 1 == shared.size);
        if shared.panicked.swap(false, Ordering::Relaxed) {
            shared.barrier.reset();
            return false;
        }
        true
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.epoch.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches what regions throw; nothing to report here.
            let _ = worker.join();
        }
    }
}

fn enter(shared: &Shared, region: Region, rank: usize) {
    if catch_unwind(AssertUnwindSafe(|| region(rank, &shared.barrier))).is_err() {
        shared.panicked.store(true, Ordering::Relaxed);
        shared.barrier.set_broken();
    }
}

fn work(shared: &Shared, rank: usize) {
    let mut seen = 0;
    loop {
        let idle_since = Instant::now();
        wait_until(|| shared.epoch.load(Ordering::Acquire) != seen || idle_since.elapsed() >= SPIN);
        let region = {
            let mut state = shared.lock();
            while state.epoch == seen && !state.stop {
                state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stop {
                return;
            }
            seen = state.epoch;
            state.region
        };
        if let Some(region) = region {
            enter(shared, region, rank);
        }
        shared.finished.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_a_barrier_before_all_have_come() {
        let pool = Pool::new(4).expect("threads");
        let (written, phases) = ([const { AtomicUsize::new(0) }; 4], 200);
        for _ in 0..3 {
            let ok = pool.run(&|rank, barrier| {
                for phase in 1..=phases {
                    written[rank].store(phase, Ordering::Relaxed);
                    assert!(barrier.wait());
                    assert!(written.iter().all(|other| other.load(Ordering::Relaxed) == phase));
                    assert!(barrier.wait());
                }
            });
            assert!(ok);
        }
    }

    #[test]
    fn a_region_ends_when_its_last_thread_has() {
        let pool = Pool::new(3).expect("threads");
        let done = AtomicUsize::new(0);
        let ok = pool.run(&|rank, _| {
            std::thread::sleep(Duration::from_millis(20) * rank as u32);
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert!(ok);
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_panic_frees_who_waits_and_the_next_region_runs() {
        let pool = Pool::new(3).expect("threads");
        for _ in 0..3 {
            let freed = AtomicUsize::new(0);
            let ok = pool.run(&|rank, barrier| {
                assert!(rank != 1, "this thread panics");
                if !barrier.wait() {
                    freed.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(!ok);
            assert_eq!(freed.into_inner(), 2);
            let passed = AtomicUsize::new(0);
            let ok = pool.run(&|_, barrier| {
                if barrier.wait() {
                    passed.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(ok);
            assert_eq!(passed.into_inner(), 3);
        }
    }
}
