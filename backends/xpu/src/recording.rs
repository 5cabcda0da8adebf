//! Recordings: each launch has a kernel object of its own with its parameters set, so that a replay sets none. Where
//! the runtime has command buffers, runs of launches become one command of it; elsewhere, and between them, the host
//! enqueues step by step.

use halyard_gpu::DevicePtr;
use halyard_platform_api::Result;

use crate::api::{Api, CommandBuffers, Handle, SUCCESS};
use crate::error::{check, error};
use crate::memory::Memory;

/// `CL_COMMAND_BUFFER_FLAGS_KHR` and its value: enqueued again while it still runs.
const FLAGS: u64 = 0x1293;
const SIMULTANEOUS_USE: u64 = 1;

/// A launch whose parameters are set.
pub(crate) struct Launch {
    api: &'static Api,
    /// Owned.
    kernel: Handle,
    pub(crate) global: [usize; 3],
    pub(crate) local: [usize; 3],
}

impl Launch {
    /// Takes over `kernel`.
    pub(crate) fn new(api: &'static Api, kernel: Handle, global: [usize; 3], local: [usize; 3]) -> Launch {
        Launch {
            api,
            kernel,
            global,
            local,
        }
    }

    pub(crate) fn kernel(&self) -> Handle {
        self.kernel
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        // SAFETY: made once, released once; the runtime keeps it while a command of it is under way.
        unsafe { (self.api.clReleaseKernel)(self.kernel) };
    }
}

/// One thing to do.
pub(crate) enum Step {
    Launch(Launch),
    /// Consecutive launches as one command buffer.
    Commands(Commands),
    Copy {
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
    },
    Fill {
        to: DevicePtr,
        pattern: Vec<u8>,
        bytes: u64,
    },
}

/// A command buffer of the runtime.
pub(crate) struct Commands {
    release: unsafe extern "C" fn(Handle) -> i32,
    enqueue: unsafe extern "C" fn(u32, *mut Handle, Handle, u32, *const Handle, *mut Handle) -> i32,
    handle: Handle,
    /// The objects that the commands name.
    launches: Vec<Launch>,
}

impl Drop for Commands {
    fn drop(&mut self) {
        // SAFETY: made once, released once, and no launch of it is under way.
        unsafe { (self.release)(self.handle) };
    }
}

/// Steps in order.
pub(crate) struct Recording {
    steps: Vec<Step>,
}

impl Recording {
    /// Of what was captured on `queue`.
    pub(crate) fn new(steps: Vec<Step>, queue: Handle, buffers: Option<&CommandBuffers>) -> Result<Recording> {
        let Some(buffers) = buffers else {
            return Ok(Recording { steps });
        };
        let mut joined = Vec::new();
        let mut run = Vec::new();
        for step in steps {
            match step {
                Step::Launch(launch) => run.push(launch),
                other => {
                    join(&mut joined, &mut run, queue, buffers)?;
                    joined.push(other);
                }
            }
        }
        join(&mut joined, &mut run, queue, buffers)?;
        Ok(Recording { steps: joined })
    }

    /// Enqueues all steps.
    ///
    /// # Safety
    /// All memory that they name lives.
    pub(crate) unsafe fn enqueue(&self, api: &Api, memory: &Memory, queue: Handle) -> Result<()> {
        for step in &self.steps {
            // SAFETY: as the caller promises.
            let (call, code) = unsafe {
                match step {
                    Step::Launch(launch) => enqueue_launch(api, queue, launch.kernel, &launch.global, &launch.local),
                    Step::Copy { to, from, bytes } => memory.copy(queue, *to, *from, *bytes),
                    Step::Fill { to, pattern, bytes } => memory.fill(queue, *to, pattern, *bytes),
                    Step::Commands(commands) => {
                        let (none, no_event) = (std::ptr::null(), std::ptr::null_mut());
                        let mut queue = queue;
                        let code = (commands.enqueue)(1, &mut queue, commands.handle, 0, none, no_event);
                        ("clEnqueueCommandBufferKHR", code)
                    }
                }
            };
            check(call, code)?;
        }
        Ok(())
    }
}

/// Enqueues a kernel whose parameters are set.
///
/// # Safety
/// The memory that they name lives, and no thread changes them meanwhile.
pub(crate) unsafe fn enqueue_launch(
    api: &Api,
    queue: Handle,
    kernel: Handle,
    global: &[usize; 3],
    local: &[usize; 3],
) -> (&'static str, i32) {
    let (none, no_waits, no_event) = (std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
    // SAFETY: as the caller promises; both sizes have three axes.
    let code = unsafe {
        (api.clEnqueueNDRangeKernel)(
            queue,
            kernel,
            3,
            none,
            global.as_ptr(),
            local.as_ptr(),
            0,
            no_waits,
            no_event,
        )
    };
    ("clEnqueueNDRangeKernel", code)
}

/// Moves the launches of `run` into a command buffer at the end of `joined`.
fn join(joined: &mut Vec<Step>, run: &mut Vec<Launch>, queue: Handle, buffers: &CommandBuffers) -> Result<()> {
    if run.len() < 2 {
        joined.extend(run.drain(..).map(Step::Launch));
        return Ok(());
    }
    let mut code = SUCCESS;
    let properties = [FLAGS, SIMULTANEOUS_USE, 0];
    // SAFETY: one live queue; the properties end in 0.
    let handle = unsafe { (buffers.clCreateCommandBufferKHR)(1, &queue, properties.as_ptr(), &mut code) };
    check("clCreateCommandBufferKHR", code)?;
    let commands = Commands {
        release: buffers.clReleaseCommandBufferKHR,
        enqueue: buffers.clEnqueueCommandBufferKHR,
        handle,
        launches: std::mem::take(run),
    };
    for launch in &commands.launches {
        // SAFETY: a kernel whose parameters are set; queue 0 is the command buffer's own, whose order the launches
        // keep.
        let code = unsafe {
            (buffers.clCommandNDRangeKernelKHR)(
                handle,
                0,
                std::ptr::null(),
                launch.kernel,
                3,
                std::ptr::null(),
                launch.global.as_ptr(),
                launch.local.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        check("clCommandNDRangeKernelKHR", code)?;
    }
    // SAFETY: recorded above.
    let code = unsafe { (buffers.clFinalizeCommandBufferKHR)(handle) };
    if code != SUCCESS {
        return Err(error("clFinalizeCommandBufferKHR", code));
    }
    joined.push(Step::Commands(commands));
    Ok(())
}
