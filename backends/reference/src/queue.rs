//! The queue: work is done when `submit` returns. It owns the submit numbers and the first failure, and must never run
//! two submits at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use halyard_platform_api::{
    CommandId, Encoder, EncoderMode, Error, Queue, QueueId, QueueWait, Result, StepWrite, SubmitMark,
};

use crate::device::Shared;
use crate::encoder::ReferenceEncoder;

/// Progress of a queue; other queues look at it by id.
pub(crate) struct QueueState {
    submitted: AtomicU64,
    /// The first failure; also held while a submit runs, which keeps submits in order.
    failure: Mutex<Option<Error>>,
    completed: AtomicU64,
}

impl QueueState {
    fn failed(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// The contract's queue.
pub(crate) struct ReferenceQueue {
    id: u64,
    state: Arc<QueueState>,
    shared: Arc<Shared>,
}

impl ReferenceQueue {
    pub(crate) fn create(shared: &Arc<Shared>) -> Self {
        let state = Arc::new(QueueState {
            submitted: AtomicU64::new(0),
            failure: Mutex::new(None),
            completed: AtomicU64::new(0),
        });
        ReferenceQueue {
            id: shared.queues.insert(Arc::clone(&state)),
            state,
            shared: Arc::clone(shared),
        }
    }

    /// A submit here runs at the call: what it waits for must have been submitted, and so is done.
    fn check_wait(&self, wait: &QueueWait) -> Result<()> {
        let other = self.shared.queues.find(wait.queue.0)?;
        other.failed()?;
        let submitted = other.submitted.load(Ordering::Acquire);
        if wait.number > submitted {
            return Err(Error::invalid(format!(
                "waits for submit {} of queue {:#x}, which has submitted {submitted}: submit there first",
                wait.number, wait.queue.0
            )));
        }
        Ok(())
    }
}

impl Queue for ReferenceQueue {
    fn id(&self) -> QueueId {
        QueueId(self.id)
    }

    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>> {
        Ok(Box::new(ReferenceEncoder::new(&self.shared, self.id(), mode)))
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        for wait in waits {
            self.check_wait(wait)?;
        }
        let commands = commands
            .iter()
            .map(|id| self.shared.commands.find(id.0))
            .collect::<Result<Vec<_>>>()?;
        let mut failure = self.state.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        SubmitMark::submit(commands.iter().map(|command| &command.mark), self.id())?;
        let number = self.state.submitted.fetch_add(1, Ordering::AcqRel) + 1;
        match commands.iter().try_for_each(|command| command.run()) {
            Ok(()) => self.state.completed.store(number, Ordering::Release),
            Err(error) => {
                *failure = Some(Error {
                    message: format!("submit {number}: {}", error.message),
                    ..error
                });
                self.state.completed.store(u64::MAX, Ordering::Release);
            }
        }
        Ok(number)
    }

    fn completed(&self) -> u64 {
        self.state.completed.load(Ordering::Acquire)
    }

    fn wait(&self, number: u64, _timeout_ns: u64) -> Result<()> {
        self.state.failed()?;
        let submitted = self.state.submitted.load(Ordering::Acquire);
        if number > submitted {
            return Err(Error::invalid(format!(
                "waits for submit {number}, the queue has submitted {submitted}"
            )));
        }
        Ok(())
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        self.state.failed()?;
        // All are checked before any is made: a refused call changes nothing.
        let mut checked = Vec::with_capacity(writes.len());
        for write in writes {
            let memory = self.shared.buffers.find(write.buffer.0)?;
            memory.check(write.offset, write.bytes.len() as u64)?;
            checked.push((memory, write));
        }
        let _in_order = self.state.failure.lock().unwrap_or_else(PoisonError::into_inner);
        for (memory, write) in checked {
            memory.write(write.offset, write.bytes)?;
        }
        Ok(())
    }

    fn reserve_scratch(&self, _bytes: u64) -> Result<()> {
        // The ops take their scratch from the host's heap.
        Ok(())
    }
}

impl Drop for ReferenceQueue {
    fn drop(&mut self) {
        self.shared.queues.remove(self.id);
    }
}
