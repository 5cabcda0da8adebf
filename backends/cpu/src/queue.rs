//! Encoding and running: commands are a list of op ids and tensors; a submit resolves them and runs one parallel region.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use halyard_kernels_cpu::LINEAR_SCRATCH;
use halyard_platform_api::{
    CommandBuffer, CommandId, Encoder, Error, OpId, Queue, QueueId, QueueWait, Result, Status, StepWrite, Tensor,
};

use crate::device::Inner;
use crate::kernel::{Kernel, Worker};
use crate::objects::{Command, CommandList, Objects};
use crate::view::View;

/// Reads of one device's objects.
pub(crate) fn read(objects: &RwLock<Objects>) -> std::sync::RwLockReadGuard<'_, Objects> {
    objects.read().unwrap_or_else(PoisonError::into_inner)
}

/// Writes of one device's objects.
pub(crate) fn write(objects: &RwLock<Objects>) -> std::sync::RwLockWriteGuard<'_, Objects> {
    objects.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct CpuEncoder {
    pub inner: Arc<Inner>,
    pub list: CommandList,
}

impl Encoder for CpuEncoder {
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()> {
        read(&self.inner.objects).op(op)?;
        let first = self.list.operands.len() as u32;
        self.list.operands.extend_from_slice(operands);
        self.list.commands.push(Command {
            op,
            first,
            count: operands.len() as u32,
        });
        Ok(())
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
    operands: Vec<View>,
    failure: Option<Error>,
}

pub(crate) struct CpuQueue {
    inner: Arc<Inner>,
    id: QueueId,
    completed: AtomicU64,
    running: Mutex<Running>,
}

impl CpuQueue {
    pub(crate) fn new(inner: Arc<Inner>, id: u64) -> CpuQueue {
        let local = (0..inner.threads).map(|_| vec![0.0; LINEAR_SCRATCH]).collect();
        let running = Running {
            shared: Vec::new(),
            local,
            operands: Vec::new(),
            failure: None,
        };
        CpuQueue {
            inner,
            id: QueueId(id),
            completed: AtomicU64::new(0),
            running: Mutex::new(running),
        }
    }

    /// Runs all commands of the lists in order, or none when one of them names something that is not there.
    fn run(&self, lists: &[Arc<CommandList>], running: &mut Running) -> Result<()> {
        let objects = read(&self.inner.objects);
        let num_commands = lists.iter().map(|list| list.commands.len()).sum();
        let mut steps: Vec<(&dyn Kernel, usize, usize)> = Vec::with_capacity(num_commands);
        running.operands.clear();
        let mut scratch = 0;
        for (list, command) in lists.iter().flat_map(|l| l.commands.iter().map(move |c| (l, c))) {
            let kernel = &**objects.op(command.op)?;
            scratch = scratch.max(kernel.scratch_bytes());
            let operands = &list.operands[command.first as usize..][..command.count as usize];
            let first = running.operands.len();
            for operand in operands {
                running.operands.push(View::resolve(operand, &objects)?);
            }
            steps.push((kernel, first, operands.len()));
        }
        if steps.is_empty() {
            return Ok(());
        }
        grow(&mut running.shared, scratch);
        let shared = Scratch(running.shared.as_mut_ptr().cast::<u8>());
        let locals: Vec<Mutex<&mut [f32]>> = running.local.iter_mut().map(|l| Mutex::new(l.as_mut_slice())).collect();
        let (views, size, kernels) = (&running.operands, self.inner.threads, self.inner.kernels);
        let region = |rank: usize, barrier: &crate::pool::Barrier| {
            let mut local = locals[rank].lock().unwrap_or_else(PoisonError::into_inner);
            let mut worker = Worker {
                rank,
                size,
                kernels,
                shared: shared.ptr(),
                local: &mut local,
            };
            for (kernel, first, count) in &steps {
                for phase in 0..kernel.phases() {
                    // SAFETY: operands were resolved above and their allocations live as long as `objects` is held; all
                    // threads run the same list, and the barrier separates phases.
                    unsafe { kernel.run(phase, &mut worker, &views[*first..][..*count]) };
                    if !barrier.wait() {
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

    fn submit(&self, commands: &[CommandId], _waits: &[QueueWait]) -> Result<u64> {
        // Every earlier submit of every queue is complete, so waits are over before they begin.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &running.failure {
            return Err(error.clone());
        }
        let lists = {
            let objects = read(&self.inner.objects);
            commands
                .iter()
                .map(|&id| objects.command(id).cloned())
                .collect::<Result<Vec<_>>>()?
        };
        let number = self.completed.load(Ordering::Relaxed) + 1;
        if let Err(error) = self.run(&lists, &mut running) {
            // A bad argument ran nothing; after a panic nobody knows what the memory holds.
            if error.status == Status::Internal {
                running.failure = Some(error.clone());
                self.completed.store(u64::MAX, Ordering::Release);
            }
            return Err(error);
        }
        self.completed.store(number, Ordering::Release);
        Ok(number)
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    fn wait(&self, number: u64, _timeout_ns: u64) -> Result<()> {
        let completed = self.completed();
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &running.failure {
            Some(error) => Err(error.clone()),
            None if number <= completed => Ok(()),
            None => Err(Error::invalid(format!(
                "submit {number} was never made; the last is {completed}"
            ))),
        }
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        // No work is in flight between submits, so the destination itself is the ring.
        let _order = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let objects = read(&self.inner.objects);
        for write in writes {
            let to = objects.buffer(write.buffer)?.range(write.offset, write.bytes.len())?;
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

    fn commands(device: &dyn Device, op: &dyn PreparedOp, operands: &[Tensor]) -> Arc<dyn CommandBuffer> {
        let mut encoder = device.create_encoder(EncoderMode::OneShot).expect("an encoder");
        encoder.encode(op.id(), operands).expect("a live op");
        encoder.finish().expect("a list")
    }

    #[test]
    fn a_failed_queue_stays_failed() {
        let device = CpuDevice::open(2, Kernels::best()).expect("a device");
        let op = CpuPrepared::register(device.inner.clone(), Arc::new(Panics));
        let queue = device.create_queue(QueueKind::Compute).expect("a queue");
        let list = commands(&*device, &*op, &[]);
        for submit in [&[list.id()][..], &[], &[]] {
            let error = queue.submit(submit, &[]).expect_err("failed");
            assert_eq!(error.status, Status::Internal);
            assert_eq!(queue.completed(), u64::MAX);
            assert_eq!(queue.wait(1, 0).map_err(|e| e.status), Err(Status::Internal));
        }
    }

    #[test]
    fn a_bad_argument_in_a_later_list_runs_nothing() {
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
        let good = commands(&*device, &*op, &[live, live]);
        let bad = commands(&*device, &*op, &[dead, live]);
        let queue = device.create_queue(QueueKind::Compute).expect("a queue");
        let error = queue.submit(&[good.id(), bad.id()], &[]).expect_err("a dead buffer");
        assert_eq!(error.status, Status::InvalidArgument);
        let mut after = [0; 16];
        buffer.read(0, &mut after).expect("in range");
        assert_eq!(after[..], bytes[..], "the first list ran");
        assert_eq!(queue.submit(&[good.id()], &[]), Ok(1));
    }
}
