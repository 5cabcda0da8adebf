//! Encoding and running: ids are resolved while encoding; a submit runs its lists as one parallel region.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use halyard_kernels_cpu::LINEAR_SCRATCH;
use halyard_platform_api::{
    CommandBuffer, CommandId, Encoder, EncoderMode, Error, OpId, Queue, QueueId, QueueWait, Result, Status, StepWrite,
    SubmitMark, Tensor,
};

use crate::device::Inner;
use crate::kernel::{Kernel, Worker, goes_by_rows, rows_of};
use crate::objects::{CommandList, Progress};
use crate::view::View;

/// Reads what objects of one device share.
pub(crate) fn read<T>(shared: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

/// Writes it.
pub(crate) fn write<T>(shared: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct CpuEncoder {
    pub inner: Arc<Inner>,
    pub list: CommandList,
}

impl Encoder for CpuEncoder {
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()> {
        self.list.push(op, operands, &read(&self.inner.objects))
    }

    fn finish(self: Box<Self>) -> Result<Arc<dyn CommandBuffer>> {
        let CpuEncoder { inner, list } = *self;
        let id = write(&inner.objects).commands.insert(Arc::new(list));
        Ok(Arc::new(CpuCommandBuffer {
            inner,
            id: CommandId(id),
        }))
    }
}

struct CpuCommandBuffer {
    inner: Arc<Inner>,
    id: CommandId,
}

impl CommandBuffer for CpuCommandBuffer {
    fn id(&self) -> CommandId {
        self.id
    }
}

impl Drop for CpuCommandBuffer {
    fn drop(&mut self) {
        write(&self.inner.objects).commands.remove(self.id.0);
    }
}

/// The state that one submit at a time uses.
struct Running {
    /// Shared scratch, 64-byte aligned at use.
    shared: Vec<u64>,
    /// One per thread.
    local: Vec<Vec<f32>>,
    /// What the threads have taken of each phase.
    taken: Vec<AtomicUsize>,
}

pub(crate) struct CpuQueue {
    inner: Arc<Inner>,
    id: QueueId,
    progress: Arc<Progress>,
    running: Mutex<Running>,
}

impl CpuQueue {
    pub(crate) fn new(inner: Arc<Inner>) -> CpuQueue {
        let local = (0..inner.threads).map(|_| vec![0.0; LINEAR_SCRATCH]).collect();
        let running = Running {
            shared: Vec::new(),
            local,
            taken: Vec::new(),
        };
        let progress = Arc::new(Progress::default());
        let id = write(&inner.objects).queues.insert(progress.clone());
        CpuQueue {
            inner,
            id: QueueId(id),
            progress,
            running: Mutex::new(running),
        }
    }

    /// Runs all commands of the lists in order.
    fn run(&self, lists: &[Arc<CommandList>], running: &mut Running) -> Result<()> {
        let steps: Vec<Step> = lists.iter().flat_map(|list| list.steps()).collect();
        if steps.is_empty() {
            return Ok(());
        }
        let scratch = steps
            .iter()
            .map(|(kernel, _)| kernel.scratch_bytes())
            .max()
            .unwrap_or(0);
        let num_phases = steps.iter().map(|(kernel, _)| kernel.phases()).sum();
        let size = self.inner.threads;
        let (waits, own) = by_rows(&steps, size);
        grow(&mut running.shared, scratch.max(own * size));
        running.taken.clear();
        running.taken.resize_with(num_phases, AtomicUsize::default);
        let shared = Scratch(running.shared.as_mut_ptr().cast::<u8>());
        let locals: Vec<Mutex<&mut [f32]>> = running.local.iter_mut().map(|l| Mutex::new(l.as_mut_slice())).collect();
        let taken = &running.taken;
        let kernels = self.inner.kernels;
        let region = |rank: usize, barrier: &crate::pool::Barrier| {
            let mut local = locals[rank].lock().unwrap_or_else(PoisonError::into_inner);
            let mut worker = Worker {
                rank,
                size,
                kernels,
                shared: shared.ptr(),
                own: shared.ptr().wrapping_add(rank * own),
                local: &mut local,
                taken: &taken[0],
            };
            let mut taken = taken.iter();
            for ((kernel, operands), wait) in steps.iter().zip(&waits) {
                for (phase, taken) in taken.by_ref().take(kernel.phases()).enumerate() {
                    worker.taken = taken;
                    // SAFETY: the lists keep their operands' allocations; all threads run the same list, and the
                    // barrier separates phases.
                    unsafe { kernel.run(phase, &mut worker, operands) };
                    if *wait && !barrier.wait() {
                        return;
                    }
                }
            }
        };
        if self.inner.pool.run(&region) {
            Ok(())
        } else {
            Err(Error::new(
                Status::Internal,
                "a kernel panicked; see the process's standard error",
            ))
        }
    }
}

/// An op and its operands.
type Step<'a> = (&'a dyn Kernel, &'a [View]);

/// For each step, whether threads wait for each other after its phases; and the bytes of scratch of a thread in the
/// steps that go by rows.
fn by_rows(steps: &[Step<'_>], threads: usize) -> (Vec<bool>, usize) {
    let tokens = |step: &Step<'_>| step.0.rows(step.1).filter(|&tokens| goes_by_rows(tokens, threads));
    let (mut waits, mut own) = (vec![true; steps.len()], 0);
    // The first step since threads last waited.
    let mut first = 0;
    let mut last = None;
    for (i, step) in steps.iter().enumerate() {
        let now = tokens(step);
        if let Some(tokens) = now {
            let rows = (0..threads).map(|rank| rows_of(tokens, threads, rank).len()).max();
            let bytes = step.0.rows_scratch_bytes(rows.unwrap_or(0));
            own = own.max(bytes.next_multiple_of(64));
        }
        let crosses = || {
            let earlier = steps[first..i].iter().flat_map(|step| step.1);
            let mut pairs = earlier.flat_map(|a| step.1.iter().map(move |b| (a, b)));
            pairs.any(|(a, b)| a.crosses_rows(b))
        };
        if i > 0 && now.is_some() && now == last && !crosses() {
            waits[i - 1] = false;
        } else {
            first = i;
        }
        last = now;
    }
    (waits, own)
}

/// A pointer that the region's threads share.
#[derive(Clone, Copy)]
struct Scratch(*mut u8);

// SAFETY: kernels share out the scratch among threads.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl Scratch {
    fn ptr(&self) -> *mut u8 {
        let unaligned = self.0;
        unaligned.wrapping_add(unaligned.align_offset(64))
    }
}

fn grow(shared: &mut Vec<u64>, bytes: usize) {
    let words = bytes.div_ceil(8) + 8;
    if shared.len() < words {
        shared.resize(words, 0);
    }
}

impl Queue for CpuQueue {
    fn id(&self) -> QueueId {
        self.id
    }

    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>> {
        Ok(Box::new(CpuEncoder {
            inner: self.inner.clone(),
            list: CommandList::new(self.id, mode),
        }))
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        // Every earlier submit of every queue is complete, so waits are over before they begin.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.progress.completed.load(Ordering::Relaxed);
        self.progress.check(last)?;
        let lists = {
            let objects = read(&self.inner.objects);
            waits.iter().try_for_each(|wait| objects.check_wait(wait))?;
            commands
                .iter()
                .map(|&id| objects.command(id).cloned())
                .collect::<Result<Vec<_>>>()?
        };
        SubmitMark::submit(lists.iter().map(|list| &list.mark), self.id)?;
        if let Err(error) = self.run(&lists, &mut running) {
            // After a panic the contents of the memory are unknown.
            self.progress.failure.get_or_init(|| error.clone());
            self.progress.completed.store(u64::MAX, Ordering::Release);
            return Err(error);
        }
        self.progress.completed.store(last + 1, Ordering::Release);
        Ok(last + 1)
    }

    fn completed(&self) -> u64 {
        self.progress.completed.load(Ordering::Acquire)
    }

    fn wait(&self, number: u64, _timeout_ns: u64) -> Result<()> {
        self.progress.check(number)
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        // No work is in flight between submits, so the destination itself is the ring.
        let _order = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.progress.check(0)?;
        let objects = read(&self.inner.objects);
        let place = |write: &StepWrite<'_>| objects.buffer(write.buffer)?.range(write.offset, write.bytes.len());
        // All are checked before any is made: a refused call changes nothing.
        writes.iter().try_for_each(|write| place(write).map(|_| ()))?;
        for write in writes {
            let to = place(write)?;
            // SAFETY: the range was checked; host bytes and device memory do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(write.bytes.as_ptr(), to, write.bytes.len()) };
        }
        Ok(())
    }

    fn reserve_scratch(&self, bytes: u64) -> Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        grow(&mut running.shared, bytes as usize);
        Ok(())
    }
}

impl Drop for CpuQueue {
    fn drop(&mut self) {
        write(&self.inner.objects).queues.remove(self.id.0);
    }
}

#[cfg(test)]
mod tests {
    use halyard_kernels_cpu::Kernels;
    use halyard_platform_api::{BufferId, BufferKind, DType, Device, EncoderMode, PreparedOp, QueueKind, ops};

    use super::*;
    use crate::device::{CpuDevice, CpuPrepared};

    struct Panics;

    impl Kernel for Panics {
        unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, _operands: &[View]) {
            assert!(worker.rank != 0, "a kernel's own fault");
        }
    }

    fn commands(queue: &dyn Queue, op: &dyn PreparedOp, operands: &[Tensor]) -> Arc<dyn CommandBuffer> {
        let mut encoder = queue.create_encoder(EncoderMode::OneShot).expect("an encoder");
        encoder.encode(op.id(), operands).expect("a live op");
        encoder.finish().expect("a list")
    }

    #[test]
    fn a_failed_queue_stays_failed() {
        let device = CpuDevice::open(2, Kernels::best()).expect("a device");
        let op = CpuPrepared::register(device.inner.clone(), Arc::new(Panics));
        let queue = device.create_queue(QueueKind::Compute).expect("a queue");
        let list = commands(&*queue, &*op, &[]);
        for submit in [&[list.id()][..], &[], &[]] {
            let error = queue.submit(submit, &[]).expect_err("failed");
            assert_eq!(error.status, Status::Internal);
            assert_eq!(queue.completed(), u64::MAX);
            assert_eq!(queue.wait(1, 0).map_err(|e| e.status), Err(Status::Internal));
        }
    }

    /// Goes by rows over its operands.
    struct ByRows;

    impl Kernel for ByRows {
        fn rows(&self, operands: &[View]) -> Option<usize> {
            operands.last().map(View::len)
        }

        fn rows_scratch_bytes(&self, rows: usize) -> usize {
            10 * rows
        }

        unsafe fn run(&self, _phase: usize, _worker: &mut Worker<'_>, _operands: &[View]) {}
    }

    #[test]
    fn threads_wait_where_rows_change_or_memory_is_used_again() {
        let device = CpuDevice::open(2, Kernels::best()).expect("a device");
        let buffer = device.create_buffer(1 << 20, BufferKind::Device).expect("memory");
        let objects = read(&device.inner.objects);
        let view = |offset: u64, rows: u32, columns: u32, stride: u32| {
            let mut tensor = Tensor::contiguous(buffer.id(), offset, DType::F32, &[rows, columns]);
            tensor.strides[0] = stride;
            View::resolve(&tensor, &objects).expect("in range").0
        };
        let waits = |views: &[View]| {
            let steps: Vec<_> = views.chunks(2).map(|pair| (&ByRows as &dyn Kernel, pair)).collect();
            by_rows(&steps, 2)
        };
        let (wide, narrow) = (view(0, 256, 64, 64), view(1 << 17, 256, 16, 16));
        // One after the other over their own rows; a scratch of half of them.
        assert_eq!(
            waits(&[wide, narrow, narrow, wide]),
            (vec![false, true], (128 * 10_usize).next_multiple_of(64))
        );
        // Columns of one matrix are rows of it.
        let (left, right) = (view(0, 256, 16, 64), view(64, 256, 48, 64));
        assert_eq!(waits(&[left, narrow, narrow, right]).0, [false, true]);
        // A dead tensor's memory with other rows, even two steps later.
        let again = view(0, 256, 16, 16);
        assert_eq!(waits(&[wide, narrow, narrow, again]).0, [true, true]);
        assert_eq!(
            waits(&[wide, narrow, narrow, narrow, narrow, again]).0,
            [false, true, true]
        );
        // Shifted by a row.
        assert_eq!(waits(&[wide, narrow, narrow, view(256, 256, 16, 64)]).0, [true, true]);
        // Other numbers of tokens, and too few of them.
        assert_eq!(
            waits(&[wide, narrow, view(0, 200, 64, 64), view(1 << 17, 200, 16, 16)]).0,
            [true, true]
        );
        let few = (view(0, 100, 64, 64), view(1 << 17, 100, 16, 16));
        assert_eq!(waits(&[few.0, few.1, few.1, few.0]), (vec![true, true], 0));
    }

    #[test]
    fn a_refused_op_is_not_in_the_list() {
        let device = CpuDevice::open(1, Kernels::best()).expect("a device");
        let op = device.ops().prepare(
            &ops::Scale {
                width: 4,
                factor: 2.0,
                dtype: DType::F32,
            }
            .into(),
        );
        let op = op.expect("scale is there");
        let buffer = device.create_buffer(16, BufferKind::Device).expect("16 bytes");
        let bytes: Vec<u8> = [1.0f32; 4].iter().flat_map(|v| v.to_le_bytes()).collect();
        buffer.write(0, &bytes).expect("in range");
        let row = |buffer| Tensor::contiguous(buffer, 0, DType::F32, &[1, 4]);
        let (live, dead) = (row(buffer.id()), row(BufferId(buffer.id().0 ^ (7 << 40))));
        let queue = device.create_queue(QueueKind::Compute).expect("a queue");
        let mut encoder = queue.create_encoder(EncoderMode::OneShot).expect("an encoder");
        encoder.encode(op.id(), &[live, live]).expect("a live op");
        let error = encoder.encode(op.id(), &[live, dead]).expect_err("a dead buffer");
        assert_eq!(error.status, Status::InvalidArgument);
        encoder.encode(op.id(), &[live, live]).expect("the encoder goes on");
        let list = encoder.finish().expect("a list");
        assert_eq!(queue.submit(&[list.id()], &[]), Ok(1));
        let mut after = [0; 16];
        buffer.read(0, &mut after).expect("in range");
        assert_eq!(after[..4], 4.0f32.to_le_bytes(), "scaled twice");
    }
}
