//! Encoding, and sealed command lists. A reusable list is captured when it is sealed (at its second submit, with
//! collectives) and replayed as one graph from then on; a list holds everything that its commands name, so an object
//! may be dropped early.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use halyard_platform_api::{CommandBuffer, CommandId, Encoder, EncoderMode, OpId, Result, SubmitMark, Tensor};

use crate::device::Inner;
use crate::driver::{DevicePtr, Driver, Graph, Group, Stream};
use crate::encoding::{Command, Encoding};
use crate::hazards::Hazards;
use crate::memory::Allocation;
use crate::objects::{Registered, SharedKernel, read, write};
use crate::queue::Work;
use crate::run::{Scratch, run_commands};
use crate::view::View;

/// A capture of a list for one queue and one place of its arena.
struct Recording {
    queue: u64,
    scratch: DevicePtr,
    graph: Graph,
}

/// Sealed commands.
pub(crate) struct CommandList {
    driver: Arc<dyn Driver>,
    encoding: Encoding,
    reusable: bool,
    pub(crate) mark: SubmitMark,
    has_run: AtomicBool,
    /// Most scratch of its ops.
    scratch_bytes: u64,
    recordings: Mutex<Vec<Recording>>,
    // Held, not used: what the commands name.
    _allocations: Vec<Arc<Allocation>>,
    _kernels: Vec<SharedKernel>,
}

impl CommandList {
    pub(crate) fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// The groups whose ranks its work waits for.
    pub(crate) fn groups(&self) -> &[Arc<dyn Group>] {
        &self.encoding.groups
    }

    /// Enqueues the list on `queue`'s stream.
    pub(crate) fn enqueue(&self, queue: u64, stream: Stream, scratch: Scratch) -> Result<()> {
        if self.encoding.commands.is_empty() {
            return Ok(());
        }
        // A recording does not pass through the group again.
        for group in self.groups() {
            group.check()?;
        }
        let is_first = !self.has_run.swap(true, Ordering::Relaxed);
        if !self.reusable || is_first && self.must_run_first() {
            return run_commands(&*self.driver, stream, &self.encoding, scratch);
        }
        let mut recordings = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.recorded(&mut recordings, queue, stream, scratch)?;
        // SAFETY: the list holds all memory that the graph names; the queue holds list and arena while work is in
        // flight.
        unsafe { self.driver.launch_graph(recordings[at].graph, stream) }
    }

    /// Captures the list ahead of its first submit, unless it must run first.
    pub(crate) fn capture_for(&self, queue: u64, stream: Stream, scratch: Scratch) -> Result<()> {
        if !self.reusable || self.encoding.commands.is_empty() || self.must_run_first() {
            return Ok(());
        }
        let mut recordings = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        self.recorded(&mut recordings, queue, stream, scratch).map(|_| ())
    }

    /// The position of the list's recording for a queue with its arena there, captured if there is none.
    fn recorded(&self, recordings: &mut Vec<Recording>, queue: u64, stream: Stream, scratch: Scratch) -> Result<usize> {
        let known = recordings.iter().position(|r| r.queue == queue);
        Ok(match known {
            Some(at) if recordings[at].scratch == scratch.base || self.scratch_bytes == 0 => at,
            stale => {
                let graph = self.capture(stream, scratch)?;
                let recording = Recording {
                    queue,
                    scratch: scratch.base,
                    graph,
                };
                match stale {
                    Some(at) => {
                        let old = std::mem::replace(&mut recordings[at], recording);
                        // SAFETY: the arena moves only on an idle stream, so no launch of the old graph is in flight.
                        unsafe { self.driver.destroy_graph(old.graph) };
                        at
                    }
                    None => {
                        recordings.push(recording);
                        recordings.len() - 1
                    }
                }
            }
        })
    }

    /// Whether the list has calls of the vendor's collectives: they connect ranks at their first call of a kind and
    /// size, which a capture does not allow; nor does it allow what some libraries' products do at their first.
    fn must_run_first(&self) -> bool {
        let connects = |command: &Command| match command {
            Command::Collective(..) => true,
            Command::Product { product, .. } => product.must_run_first(),
            _ => false,
        };
        self.encoding.commands.iter().any(connects)
    }

    fn capture(&self, stream: Stream, scratch: Scratch) -> Result<Graph> {
        self.driver.begin_capture(stream)?;
        let outcome = run_commands(&*self.driver, stream, &self.encoding, scratch);
        // Ended in any case, or the stream would stay in capture for ever.
        let graph = self.driver.end_capture(stream);
        match (outcome, graph) {
            (Ok(()), graph) => graph,
            (Err(error), Ok(graph)) => {
                // SAFETY: never launched.
                unsafe { self.driver.destroy_graph(graph) };
                Err(error)
            }
            (Err(error), Err(_)) => Err(error),
        }
    }
}

impl Drop for CommandList {
    fn drop(&mut self) {
        let recordings = self.recordings.get_mut().unwrap_or_else(PoisonError::into_inner);
        for recording in recordings.drain(..) {
            // SAFETY: queues hold a list while a launch of it is in flight; this was the last holder.
            unsafe { self.driver.destroy_graph(recording.graph) };
        }
    }
}

/// Collects launches.
pub(crate) struct GpuEncoder {
    queue: Arc<Work>,
    mode: EncoderMode,
    encoding: Encoding,
    /// Where the driver runs ops side by side.
    hazards: Option<Hazards>,
    scratch_bytes: u64,
    allocations: Vec<Arc<Allocation>>,
    kernels: Vec<SharedKernel>,
    views: Vec<View>,
}

impl GpuEncoder {
    pub(crate) fn new(queue: Arc<Work>, mode: EncoderMode) -> GpuEncoder {
        let hazards = queue.inner.driver.policy().concurrent_commands.then(Hazards::default);
        GpuEncoder {
            queue,
            mode,
            encoding: Encoding::default(),
            hazards,
            scratch_bytes: 0,
            allocations: Vec::new(),
            kernels: Vec::new(),
            views: Vec::new(),
        }
    }
}

impl Encoder for GpuEncoder {
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()> {
        let objects = read(&self.queue.inner.objects);
        let Registered {
            kernel,
            access,
            scratch_bytes,
        } = objects.op(op)?;
        self.views.clear();
        for operand in operands {
            let (view, allocation) = objects.resolve(operand)?;
            self.views.push(view);
            if let Some(allocation) = allocation {
                // The newest first: neighbours name the same buffers.
                if !self.allocations.iter().rev().any(|held| Arc::ptr_eq(held, allocation)) {
                    self.allocations.push(allocation.clone());
                }
            }
        }
        let before = (self.encoding.commands.len(), self.encoding.args.len());
        if let Err(error) = kernel.encode(&mut self.encoding, &self.views) {
            self.encoding.truncate(before.0, before.1);
            return Err(error);
        }
        let (scratch, made) = (*scratch_bytes, self.encoding.commands.len() - before.0);
        if let Some(hazards) = &mut self.hazards
            && hazards.admit(access, &self.views, scratch > 0, made)
        {
            self.encoding.commands.insert(before.0, Command::Independent);
        }
        for (at, view) in self.views.iter().enumerate() {
            if !view.is_none() && access.get(at).is_none_or(|access| access.writes()) {
                self.encoding.note_write(view);
            }
        }
        self.scratch_bytes = self.scratch_bytes.max(scratch);
        if !self.kernels.iter().rev().any(|held| Arc::ptr_eq(held, kernel)) {
            self.kernels.push(kernel.clone());
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Arc<dyn CommandBuffer>> {
        let inner = &self.queue.inner;
        let list = CommandList {
            driver: inner.driver.clone(),
            encoding: self.encoding,
            reusable: self.mode == EncoderMode::Reusable,
            mark: SubmitMark::new(self.queue.queue_id(), self.mode),
            has_run: AtomicBool::new(false),
            scratch_bytes: self.scratch_bytes,
            recordings: Mutex::default(),
            _allocations: self.allocations,
            _kernels: self.kernels,
        };
        self.queue.capture(&list)?;
        let id = write(&inner.objects).commands.insert(Arc::new(list));
        Ok(Arc::new(GpuCommandBuffer {
            inner: inner.clone(),
            id: CommandId(id),
        }))
    }
}

struct GpuCommandBuffer {
    inner: Arc<Inner>,
    id: CommandId,
}

impl CommandBuffer for GpuCommandBuffer {
    fn id(&self) -> CommandId {
        self.id
    }
}

impl Drop for GpuCommandBuffer {
    fn drop(&mut self) {
        let list = write(&self.inner.objects).commands.remove(self.id.0);
        // Outside the lock: freeing memory and graphs takes a while.
        drop(list);
    }
}
