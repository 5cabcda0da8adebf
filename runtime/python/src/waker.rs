//! Tells an event loop that streams have something: a descriptor that becomes readable, and their numbers. So no
//! thread of the engine ever waits for the interpreter's lock.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// The part that streams share.
#[derive(Debug)]
pub struct Bell {
    descriptor: OwnedFd,
    ready: Mutex<Vec<u64>>,
}

impl Bell {
    /// Notes a stream. The descriptor becomes readable with the first one.
    pub fn ring(&self, stream: u64) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push(stream);
        if ready.len() == 1 {
            // Fails only when the counter is full, and then it is readable.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }
}

/// A descriptor for `loop.add_reader`, and the streams that made it readable.
#[pyclass(frozen, module = "halyard._halyard")]
pub struct Waker {
    pub(crate) bell: Arc<Bell>,
}

#[pymethods]
impl Waker {
    #[new]
    fn new() -> PyResult<Waker> {
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let ready = Mutex::default();
        Ok(Waker {
            bell: Arc::new(Bell { descriptor, ready }),
        })
    }

    /// The descriptor. It stays this object's.
    fn fileno(&self) -> i32 {
        self.bell.descriptor.as_raw_fd()
    }

    /// Numbers of the streams that got something since the last call; the descriptor is no longer readable.
    fn take(&self) -> Vec<u64> {
        let mut ready = self.bell.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell.descriptor, &mut count);
        std::mem::take(&mut *ready)
    }
}
