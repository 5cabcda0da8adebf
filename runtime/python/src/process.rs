//! The process of an engine. A fork copies its memory and none of its threads: in the child every call is refused, and
//! nothing is given back.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, PyResult};

/// The process that first started an engine; 0: none has.
static FIRST: AtomicU32 = AtomicU32::new(0);

fn after_fork(owner: u32, now: u32) -> PyErr {
    PyRuntimeError::new_err(format!(
        "halyard was started in process {owner} and this is process {now}, its fork: a fork has none of the engine's \
         threads and cannot use its devices. Start the engine in the child alone, or make children with \
         multiprocessing.set_start_method(\"spawn\")"
    ))
}

/// Notes this process as the one that starts engines.
///
/// # Errors
/// The process from which this one was forked has started one.
pub fn claim() -> PyResult<u32> {
    let now = std::process::id();
    match FIRST.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Ok(now),
        Err(owner) if owner == now => Ok(now),
        Err(owner) => Err(after_fork(owner, now)),
    }
}

/// Whether this is the process `owner`.
pub fn is_here(owner: u32) -> bool {
    std::process::id() == owner
}

/// # Errors
/// This process is a fork of `owner`.
pub fn check(owner: u32) -> PyResult<()> {
    if is_here(owner) {
        return Ok(());
    }
    Err(after_fork(owner, std::process::id()))
}

/// A value that is dropped in its own process only: a fork has none of the threads that its end would wait for.
pub struct Here<T> {
    owner: u32,
    value: Option<T>,
}

impl<T> Here<T> {
    /// A value of process `owner`.
    pub fn new(owner: u32, value: T) -> Here<T> {
        Here {
            owner,
            value: Some(value),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// This process is a fork of its own.
    pub fn of(&self) -> PyResult<&T> {
        check(self.owner)?;
        self.value
            .as_ref()
            .ok_or_else(|| PyRuntimeError::new_err("it was given back"))
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if !is_here(self.owner) {
            std::mem::forget(self.value.take());
        }
    }
}
