//! The Python module `halyard._halyard`: an engine, streams and a waker. Owns how they cross into Python; what users
//! see (`LLM`, `AsyncLLM`, `SamplingParams`) is Python, in `python/halyard`. It reads no environment: Python hands in
//! what it read. It never takes the interpreter's lock on a thread that Python did not start.

mod engine;
mod error;
mod inbox;
mod options;
mod process;
mod stream;
mod waker;

use pyo3::prelude::*;

/// The native part of the package `halyard`.
#[pymodule]
mod _halyard {
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::error::{EngineDeadError, QueueFullError};
    #[pymodule_export]
    use super::stream::Stream;
    #[pymodule_export]
    use super::waker::Waker;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
