//! Streams: commands gathered in command buffers and submitted in order to a device queue, with a timeline semaphore
//! that counts the submits. Events are values of that semaphore. Several streams may share a queue: a wait always names
//! a value that was submitted before it, so sharing cannot lock up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;
use halyard_gpu::Pinned;
use halyard_platform_api::{Error, Result, Status};

use crate::core::Core;
use crate::error::Check;
use crate::instance::validated;
use crate::memory::Memory;
use crate::recorder::Recorder;

/// Commands after which the recorded ones are submitted, so that the device does not idle while the host records.
const COMMANDS_PER_SUBMIT: u32 = 256;

/// A stream.
pub(crate) struct StreamCore {
    core: Arc<Core>,
    memory: Arc<Memory>,
    queue: usize,
    timeline: vk::Semaphore,
    state: Mutex<State>,
}

/// The objects that one submit used; free again when it is done.
#[derive(Default)]
struct Used {
    commands: Vec<vk::CommandBuffer>,
    chunks: Vec<Pinned>,
    /// Streams whose semaphores it waits for.
    _waits: Vec<(Arc<StreamCore>, u64)>,
}

struct State {
    pool: vk::CommandPool,
    /// The last submit's value.
    submitted: u64,
    /// Takes commands.
    open: Option<Recorder>,
    /// Ended and not submitted, in order; graphs among them.
    ready: Vec<vk::CommandBuffer>,
    /// Of the submit to come.
    used: Used,
    waits: Vec<(Arc<StreamCore>, u64)>,
    in_flight: VecDeque<(u64, Used)>,
    free: Vec<vk::CommandBuffer>,
    capture: Option<Capture>,
}

/// A recording in the making.
struct Capture {
    pool: vk::CommandPool,
    recorder: Recorder,
}

/// A recording.
pub(crate) struct GraphCore {
    core: Arc<Core>,
    memory: Arc<Memory>,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    chunks: Vec<Pinned>,
}

impl Drop for GraphCore {
    fn drop(&mut self) {
        // SAFETY: the owner that drops a graph knows that no launch of it is in flight.
        unsafe {
            self.core.device.destroy_command_pool(self.pool, None);
            for chunk in self.chunks.drain(..) {
                self.memory.free(chunk.device);
            }
        }
    }
}

/// A point of a stream: the value that its semaphore has when it has passed.
pub(crate) type Point = (Arc<StreamCore>, u64);

fn make_pool(core: &Core) -> Result<vk::CommandPool> {
    let info = vk::CommandPoolCreateInfo::default()
        .queue_family_index(core.physical.queue_family)
        .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
    // SAFETY: the structure lives through the call.
    unsafe { core.device.create_command_pool(&info, None) }.check("vkCreateCommandPool")
}

fn make_commands(core: &Core, pool: vk::CommandPool) -> Result<vk::CommandBuffer> {
    let info = vk::CommandBufferAllocateInfo::default()
        .command_pool(pool)
        .level(vk::CommandBufferLevel::PRIMARY)
        .command_buffer_count(1);
    // SAFETY: the caller has the pool to itself.
    let made = unsafe { core.device.allocate_command_buffers(&info) }.check("vkAllocateCommandBuffers")?;
    Ok(made[0])
}

impl StreamCore {
    pub(crate) fn new(core: &Arc<Core>, memory: &Arc<Memory>) -> Result<StreamCore> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the structures live through the call.
        let timeline = unsafe { core.device.create_semaphore(&info, None) }.check("vkCreateSemaphore")?;
        let pool = make_pool(core).inspect_err(|_| {
            // SAFETY: just made.
            unsafe { core.device.destroy_semaphore(timeline, None) };
        })?;
        Ok(StreamCore {
            core: core.clone(),
            memory: memory.clone(),
            queue: core.assign_queue(),
            timeline,
            state: Mutex::new(State {
                pool,
                submitted: 0,
                open: None,
                ready: Vec::new(),
                used: Used::default(),
                waits: Vec::new(),
                in_flight: VecDeque::new(),
                free: Vec::new(),
                capture: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends what `record` records: to the capture if there is one, to the open command buffer otherwise.
    pub(crate) fn record(&self, record: impl FnOnce(&mut Recorder, &Memory) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(capture) = &mut state.capture {
            return record(&mut capture.recorder, &self.memory);
        }
        let recorder = self.open(state)?;
        record(recorder, &self.memory)?;
        if recorder.count >= COMMANDS_PER_SUBMIT {
            self.submit(state)?;
        }
        Ok(())
    }

    /// The open command buffer.
    fn open<'a>(&self, state: &'a mut State) -> Result<&'a mut Recorder> {
        if state.open.is_none() {
            let commands = match state.free.pop() {
                Some(commands) => commands,
                None => make_commands(&self.core, state.pool)?,
            };
            let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
            state.open = Some(Recorder::begin(&self.core, commands, once)?);
        }
        state
            .open
            .as_mut()
            .ok_or_else(|| Error::invalid("a stream without a command buffer"))
    }

    /// Ends the open command buffer.
    fn close(&self, state: &mut State) -> Result<()> {
        if let Some(recorder) = state.open.take() {
            let (commands, chunks) = recorder.end()?;
            state.ready.push(commands);
            state.used.commands.push(commands);
            state.used.chunks.extend(chunks);
        }
        Ok(())
    }

    /// Submits everything recorded; the value of the last submit.
    fn submit(&self, state: &mut State) -> Result<u64> {
        if state.open.is_none() && state.ready.is_empty() && state.waits.is_empty() {
            return Ok(state.submitted);
        }
        // What the host reads after a wait must have been made visible to it.
        self.open(state)?.show_host();
        self.close(state)?;
        self.reap(state);
        let value = state.submitted + 1;
        let waits: Vec<vk::Semaphore> = state.waits.iter().map(|(stream, _)| stream.timeline).collect();
        let wait_values: Vec<u64> = state.waits.iter().map(|&(_, value)| value).collect();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        let (signals, signal_values) = ([self.timeline], [value]);
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&signal_values);
        let info = vk::SubmitInfo::default()
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&stages)
            .command_buffers(&state.ready)
            .signal_semaphores(&signals)
            .push_next(&mut values);
        let outcome = {
            let queue = self.core.queue(self.queue);
            // SAFETY: the queue is locked; what is submitted lives until the value is reached.
            unsafe { self.core.device.queue_submit(*queue, &[info], vk::Fence::null()) }.check("vkQueueSubmit")
        };
        state.ready.clear();
        let mut used = std::mem::take(&mut state.used);
        used._waits = std::mem::take(&mut state.waits);
        // After a failure too: nothing of it is used again before the stream ends.
        state.in_flight.push_back((value, used));
        outcome?;
        state.submitted = value;
        Ok(value)
    }

    /// Takes back what finished submits used.
    fn reap(&self, state: &mut State) {
        // SAFETY: the semaphore lives.
        let Ok(done) = (unsafe { self.core.device.get_semaphore_counter_value(self.timeline) }) else {
            return;
        };
        while state.in_flight.front().is_some_and(|&(value, _)| value <= done) {
            let Some((_, used)) = state.in_flight.pop_front() else {
                return;
            };
            state.free.extend(used.commands);
            for chunk in used.chunks {
                // SAFETY: the submit that read it is done.
                unsafe { self.memory.free(chunk.device) };
            }
        }
    }

    /// Submits everything recorded and names its end.
    pub(crate) fn flush(&self) -> Result<u64> {
        let mut state = self.lock();
        state.refuse_capture("submitting")?;
        self.submit(&mut state)
    }

    /// The end of everything recorded so far, submitted or not.
    pub(crate) fn point(self: &Arc<Self>) -> Result<Point> {
        let state = self.lock();
        state.refuse_capture("an event")?;
        let open = state.open.is_some() || !state.ready.is_empty() || !state.waits.is_empty();
        Ok((self.clone(), state.submitted + u64::from(open)))
    }

    /// Submits what `value` needs.
    fn reach(&self, value: u64) -> Result<()> {
        let mut state = self.lock();
        if value > state.submitted {
            self.submit(&mut state)?;
        }
        Ok(())
    }

    /// Blocks until the semaphore has `value`.
    pub(crate) fn wait(&self, value: u64) -> Result<()> {
        self.reach(value)?;
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore lives.
        unsafe { self.core.device.wait_semaphores(&info, u64::MAX) }.check("vkWaitSemaphores")?;
        validated()
    }

    /// Whether the semaphore has `value`.
    pub(crate) fn has_passed(&self, value: u64) -> Result<bool> {
        self.reach(value)?;
        // SAFETY: the semaphore lives.
        let done = unsafe { self.core.device.get_semaphore_counter_value(self.timeline) };
        let done = done.check("vkGetSemaphoreCounterValue")?;
        if done == u64::MAX {
            return Err(Error::new(
                Status::DeviceLost,
                "the semaphore of a stream answers as on a lost device",
            ));
        }
        Ok(done >= value)
    }

    /// Makes later work wait for a point of another stream.
    pub(crate) fn wait_for(&self, (other, value): Point) -> Result<()> {
        if std::ptr::eq(self, Arc::as_ptr(&other)) {
            return Ok(());
        }
        other.reach(value)?;
        let mut state = self.lock();
        state.refuse_capture("waiting for another stream")?;
        if state.open.is_some() || !state.ready.is_empty() {
            // Earlier work does not wait.
            self.submit(&mut state)?;
        }
        match state.waits.iter_mut().find(|(stream, _)| Arc::ptr_eq(stream, &other)) {
            Some((_, known)) => *known = value.max(*known),
            None => state.waits.push((other, value)),
        }
        Ok(())
    }

    /// From here on commands go to a recording.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        let mut state = self.lock();
        state.refuse_capture("a second capture")?;
        let pool = make_pool(&self.core)?;
        let begun = make_commands(&self.core, pool)
            .and_then(|commands| Recorder::begin(&self.core, commands, vk::CommandBufferUsageFlags::SIMULTANEOUS_USE));
        let recorder = begun.inspect_err(|_| {
            // SAFETY: just made.
            unsafe { self.core.device.destroy_command_pool(pool, None) };
        })?;
        state.capture = Some(Capture { pool, recorder });
        Ok(())
    }

    /// The recording.
    pub(crate) fn end_capture(&self) -> Result<GraphCore> {
        let capture = self.lock().capture.take();
        let Capture { pool, recorder } =
            capture.ok_or_else(|| Error::invalid("no capture was begun on this stream"))?;
        let (commands, chunks) = recorder.end().inspect_err(|_| {
            // SAFETY: never submitted.
            unsafe { self.core.device.destroy_command_pool(pool, None) };
        })?;
        Ok(GraphCore {
            core: self.core.clone(),
            memory: self.memory.clone(),
            pool,
            commands,
            chunks,
        })
    }

    /// Appends a recording.
    pub(crate) fn launch_graph(&self, graph: &GraphCore) -> Result<()> {
        let mut state = self.lock();
        state.refuse_capture("a recording within a recording")?;
        self.close(&mut state)?;
        state.ready.push(graph.commands);
        Ok(())
    }
}

impl State {
    fn refuse_capture(&self, call: &str) -> Result<()> {
        match self.capture {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!("{call} while the stream records"))),
        }
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (semaphores, values) = ([self.timeline], [state.submitted]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let device = &self.core.device;
        // SAFETY: the last owner; what was submitted is waited for, unless the device is lost, and what was not never
        // runs.
        unsafe {
            let _ = device.wait_semaphores(&info, u64::MAX);
            if let Some(capture) = state.capture.take() {
                device.destroy_command_pool(capture.pool, None);
            }
            device.destroy_command_pool(state.pool, None);
            device.destroy_semaphore(self.timeline, None);
        }
        let submits = state.in_flight.drain(..).map(|(_, used)| used);
        for used in submits.chain([std::mem::take(&mut state.used)]) {
            for chunk in used.chunks {
                // SAFETY: as above.
                unsafe { self.memory.free(chunk.device) };
            }
        }
    }
}

/// The stream behind a handle.
///
/// # Safety
/// The handle is a live stream's.
pub(crate) unsafe fn stream<'a>(which: halyard_gpu::Stream) -> &'a StreamCore {
    // SAFETY: as the caller promises.
    unsafe { &*(which.0 as *const StreamCore) }
}
