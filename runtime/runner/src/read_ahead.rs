//! Reads weights of mapped files before they are packed: a few threads touch the pages of the next matrices, each at a
//! place of its own, so that a disk has several reads to do at a time. Owns no bytes, and changes nothing but when a
//! page is read; never further ahead than [`AHEAD_BYTES`].

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};

use halyard_models::program::{ModelProgram, WeightSpec};
use halyard_models::{Role, Weights};

/// Threads: 2 and 4 read a cold file of 1 GB at 2.1 and 1.5 GB/s in the median of 24 runs, none ahead at 1.1
/// (docs/notes/2026-11-25-loading.md).
const THREADS: usize = 4;
/// Bytes that are read before they are used, at most.
const AHEAD_BYTES: u64 = 512 << 20;
/// Bytes that a thread reads at a time.
const PIECE_BYTES: usize = 8 << 20;
/// No system has smaller pages.
const PAGE_BYTES: usize = 4096;

/// The matrices of a load in the order of use, and how far reading and packing are.
pub(crate) struct ReadAhead<'w> {
    weights: &'w Weights,
    roles: Vec<Role>,
    ahead_bytes: u64,
    state: Mutex<State<'w>>,
    changed: Condvar,
}

#[derive(Default)]
struct State<'w> {
    /// Matrices that were looked up, with the bytes of all up to each.
    ends: Vec<u64>,
    /// What is left of the last one of these.
    left: &'w [u8],
    /// Matrices that were packed.
    used: usize,
    over: bool,
}

/// Ends reading when it is dropped.
pub(crate) struct Running<'a, 'w>(&'a ReadAhead<'w>);

impl<'w> ReadAhead<'w> {
    /// Of programs that are loaded one after the other.
    pub(crate) fn of(weights: &'w Weights, programs: [&ModelProgram; 2]) -> Self {
        let specs = programs.into_iter().flat_map(|program| &program.weights);
        let parts = specs.flat_map(|spec| match spec {
            WeightSpec::Matrix { parts, .. } => parts.as_slice(),
            WeightSpec::Vector { .. } => &[],
        });
        ReadAhead {
            weights,
            roles: parts.map(|part| part.role).collect(),
            ahead_bytes: AHEAD_BYTES,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Starts the threads; weights that are in no file need none.
    pub(crate) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>) -> Running<'s, 'w> {
        let threads = if self.weights.path().is_some() { THREADS } else { 0 };
        for _ in 0..threads {
            let thread = Builder::new().name("halyard-read".into());
            if let Err(error) = thread.spawn_scoped(scope, || self.read()) {
                tracing::debug!("weights are read with fewer threads: {error}");
            }
        }
        Running(self)
    }

    /// The next matrix of the order was packed.
    pub(crate) fn used_one(&self) {
        self.lock().used += 1;
        self.changed.notify_all();
    }

    /// No code panics under the lock.
    fn lock(&self) -> MutexGuard<'_, State<'w>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) {
        while let Some(piece) = self.next() {
            for page in piece.chunks(PAGE_BYTES) {
                std::hint::black_box(page[0]);
            }
        }
    }

    /// Waits until a piece may be read. `None`: all are.
    fn next(&self) -> Option<&'w [u8]> {
        let mut state = self.lock();
        loop {
            if state.over {
                return None;
            }
            if state.left.is_empty() || state.used >= state.ends.len() {
                // What was packed before it was looked up needs no reading.
                let known = state.ends.len();
                let role = *self.roles.get(known)?;
                let bytes = self.weights.stored_bytes(role).unwrap_or_default();
                let before = state.ends.last().copied().unwrap_or(0);
                state.ends.push(before + bytes.len() as u64);
                state.left = if known < state.used { &[] } else { bytes };
                continue;
            }
            let taken = state.ends.last().copied().unwrap_or(0) - state.left.len() as u64;
            let used = state.used.checked_sub(1).map_or(0, |last| state.ends[last]);
            if taken < used + self.ahead_bytes {
                let (piece, left) = state.left.split_at(state.left.len().min(PIECE_BYTES));
                state.left = left;
                return Some(piece);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use halyard_models::weights::{Linear, MlpLinear};
    use halyard_models::{DummyWeights, LoadFormat, ModelFiles};

    use super::*;

    fn files(format: LoadFormat) -> ModelFiles {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
        ModelFiles::open(&folder, format, DummyWeights::default()).expect("the fixture")
    }

    fn ahead(weights: &Weights, ahead_bytes: u64) -> ReadAhead<'_> {
        let linears = [MlpLinear::Gate, MlpLinear::Up, MlpLinear::Down];
        let roles = linears.map(|linear| Role::weight(0, Linear::Mlp(linear)));
        ReadAhead {
            weights,
            roles: [&[Role::Embedding], &roles[..]].concat(),
            ahead_bytes,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn place(bytes: Option<&[u8]>) -> Option<(usize, usize)> {
        bytes.map(|bytes| (bytes.as_ptr().addr(), bytes.len()))
    }

    #[test]
    fn matrices_are_read_in_their_order_and_what_was_packed_is_not() {
        let files = files(LoadFormat::Auto);
        let ahead = ahead(&files.weights, u64::MAX >> 1);
        let of = |index: usize| place(files.weights.stored_bytes(ahead.roles[index]));
        assert!(of(0).is_some_and(|(_, len)| len > 0), "the fixture is a file");
        assert_eq!(place(ahead.next()), of(0));
        // The second and the third one were packed before anybody read them.
        (0..3).for_each(|_| ahead.used_one());
        assert_eq!(place(ahead.next()), of(3));
        assert_eq!(place(ahead.next()), None);
    }

    #[test]
    fn reading_waits_for_packing_and_ends_with_it() {
        let files = files(LoadFormat::Auto);
        let ahead = ahead(&files.weights, 1);
        let pieces = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let running = Running(&ahead);
            let reader = scope.spawn(|| {
                while let Some(piece) = ahead.next() {
                    pieces.lock().expect("no panic").push(place(Some(piece)));
                    ahead.used_one();
                }
            });
            reader.join().expect("all are read");
            drop(running);
        });
        let expected: Vec<_> = ahead
            .roles
            .iter()
            .map(|&role| place(files.weights.stored_bytes(role)))
            .collect();
        assert_eq!(pieces.into_inner().expect("no panic"), expected);

        // Nobody packs: the first matrix is read, and the wait for room ends with the load.
        let ahead = self::ahead(&files.weights, 1);
        std::thread::scope(|scope| {
            let running = ahead.start(scope);
            while ahead.lock().ends.len() < 2 {
                std::thread::yield_now();
            }
            assert_eq!(ahead.lock().ends.len(), 2, "one was read, the second one waits");
            drop(running);
        });
        assert!(!ahead.lock().left.is_empty(), "the second one was not read");
    }

    #[test]
    fn weights_that_are_in_no_file_are_not_made_for_it() {
        let files = files(LoadFormat::Dummy);
        let ahead = ahead(&files.weights, 1 << 30);
        assert_eq!(files.weights.stored_bytes(Role::Embedding), None);
        std::thread::scope(|scope| drop(ahead.start(scope)));
        assert!(ahead.lock().ends.is_empty());
    }
}
