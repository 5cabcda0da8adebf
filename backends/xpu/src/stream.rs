//! Streams and events: an in-order queue that may be in capture, and a marker that can be set again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use halyard_platform_api::{Error, Result, Status};

use crate::api::{self, Api, Handle, SUCCESS};
use crate::error::{check, error};
use crate::recording::Step;

/// A stream.
pub(crate) struct StreamState {
    api: &'static Api,
    pub(crate) queue: Handle,
    /// What was captured so far; `None`: not in capture.
    capture: Mutex<Option<Vec<Step>>>,
}

impl StreamState {
    /// An in-order queue.
    pub(crate) fn new(api: &'static Api, context: Handle, device: Handle) -> Result<StreamState> {
        let mut code = SUCCESS;
        // SAFETY: a live context and device; no properties: in order, without profiling.
        let queue = unsafe { (api.clCreateCommandQueueWithProperties)(context, device, std::ptr::null(), &mut code) };
        check("clCreateCommandQueueWithProperties", code)?;
        Ok(StreamState {
            api,
            queue,
            capture: Mutex::default(),
        })
    }

    /// The steps captured so far, while in capture.
    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<Vec<Step>>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// While in capture: `call` cannot be recorded.
    pub(crate) fn not_in_capture(&self, call: &str) -> Result<()> {
        match *self.capture() {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!("{call} while a stream is recorded"))),
        }
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        // SAFETY: made once, released once.
        unsafe { (self.api.clReleaseCommandQueue)(self.queue) };
    }
}

/// An event: the marker of its last recording; 0: never recorded, which counts as passed.
pub(crate) struct EventState {
    api: &'static Api,
    marker: Mutex<Handle>,
}

impl EventState {
    pub(crate) fn new(api: &'static Api) -> EventState {
        EventState {
            api,
            marker: Mutex::new(0),
        }
    }

    fn marker(&self) -> MutexGuard<'_, Handle> {
        self.marker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the end of `queue` as it is now, and sends it off.
    pub(crate) fn record(&self, queue: Handle) -> Result<()> {
        let mut made = 0;
        // SAFETY: a live queue and output; no list of waits: everything before.
        let code = unsafe { (self.api.clEnqueueMarkerWithWaitList)(queue, 0, std::ptr::null(), &mut made) };
        check("clEnqueueMarkerWithWaitList", code)?;
        let old = std::mem::replace(&mut *self.marker(), made);
        self.release(old);
        // SAFETY: a live queue. A thread that waits for the marker may never call into this queue again.
        check("clFlush", unsafe { (self.api.clFlush)(queue) })
    }

    /// Makes later work of `queue` wait.
    pub(crate) fn hold_back(&self, queue: Handle) -> Result<()> {
        let marker = self.marker();
        if *marker == 0 {
            return Ok(());
        }
        // SAFETY: a live queue and event, held by the lock.
        let code = unsafe { (self.api.clEnqueueBarrierWithWaitList)(queue, 1, &*marker, std::ptr::null_mut()) };
        check("clEnqueueBarrierWithWaitList", code)
    }

    /// Blocks until it has passed.
    pub(crate) fn wait(&self) -> Result<()> {
        let marker = self.marker();
        if *marker == 0 {
            return Ok(());
        }
        // SAFETY: a live event, held by the lock.
        check("clWaitForEvents", unsafe { (self.api.clWaitForEvents)(1, &*marker) })
    }

    /// Whether it has passed.
    pub(crate) fn passed(&self) -> Result<bool> {
        let marker = self.marker();
        if *marker == 0 {
            return Ok(true);
        }
        let mut status = 0i32;
        let (bytes, none) = (size_of::<i32>(), std::ptr::null_mut());
        let at = (&raw mut status).cast();
        // SAFETY: a live event, held by the lock; the output has the size given.
        let code = unsafe { (self.api.clGetEventInfo)(*marker, api::EVENT_COMMAND_EXECUTION_STATUS, bytes, at, none) };
        check("clGetEventInfo", code)?;
        match status {
            failed if failed < 0 => Err(Error {
                status: Status::DeviceLost,
                ..error("a command", failed)
            }),
            status => Ok(status == api::COMPLETE),
        }
    }

    fn release(&self, marker: Handle) {
        if marker != 0 {
            // SAFETY: made once, released once; the runtime keeps what it still needs.
            unsafe { (self.api.clReleaseEvent)(marker) };
        }
    }
}

impl Drop for EventState {
    fn drop(&mut self) {
        let marker = *self.marker();
        self.release(marker);
    }
}
