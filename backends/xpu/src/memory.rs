//! Memory with addresses: shared virtual memory or Intel's unified shared memory behind one face, and a count of what
//! is held, since OpenCL does not say what is free.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use halyard_gpu::DevicePtr;
use halyard_platform_api::{Error, Result, Status};

use crate::api::{self, Api, Handle, SUCCESS, Usm};
use crate::error::error;
use crate::facts::{Addressing, Found};

/// Alignment of device memory, bytes.
const ALIGNMENT: u64 = 256;
/// Alignment of host memory, bytes: a page.
const PAGE: u64 = 4096;

/// Where an allocation lies.
#[derive(Clone, Copy)]
enum Kind {
    Device,
    Host,
}

/// What is held: from the address handed out to the runtime's own and the size.
type Allocations = HashMap<DevicePtr, (usize, u64)>;

/// The memory of one device.
pub(crate) struct Memory {
    api: &'static Api,
    usm: Option<Usm>,
    context: Handle,
    device: Handle,
    name: String,
    total: u64,
    /// What may be held in all: less than the device has where it shares memory with the system.
    limit: u64,
    max_allocation: u64,
    held: Mutex<Allocations>,
}

impl Memory {
    /// # Errors
    /// `Unavailable` where the runtime lists an extension and lacks its functions.
    pub(crate) fn new(api: &'static Api, found: &Found, context: Handle) -> Result<Memory> {
        let usm = match found.addressing {
            Addressing::Svm => None,
            Addressing::Usm => Some(api.extension(found.platform, |find| Usm::from(find)).ok_or_else(|| {
                Error::new(
                    Status::Unavailable,
                    format!(
                        "{}: the runtime lists cl_intel_unified_shared_memory and lacks its functions; update it",
                        found.facts.name
                    ),
                )
            })?),
        };
        let total = found.facts.total_memory_bytes;
        Ok(Memory {
            api,
            usm,
            context,
            device: found.device,
            name: found.facts.name.clone(),
            total,
            limit: if found.unified_memory {
                total.min(available_to_process())
            } else {
                total
            },
            max_allocation: found.max_allocation_bytes,
            held: Mutex::default(),
        })
    }

    fn held(&self) -> MutexGuard<'_, Allocations> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Free and total, bytes. Free is the total less this process's memory: OpenCL does not show other processes'
    /// memory.
    pub(crate) fn free_and_total(&self) -> (u64, u64) {
        let held: u64 = self.held().values().map(|&(_, bytes)| bytes).sum();
        (self.limit.saturating_sub(held), self.total)
    }

    /// Device memory.
    pub(crate) fn device(&self, bytes: u64) -> Result<DevicePtr> {
        self.allocate(Kind::Device, bytes, ALIGNMENT)
    }

    /// Host memory that the device reaches, under one address for both.
    pub(crate) fn host(&self, bytes: u64) -> Result<DevicePtr> {
        self.allocate(Kind::Host, bytes, PAGE)
    }

    fn allocate(&self, kind: Kind, bytes: u64, alignment: u64) -> Result<DevicePtr> {
        let (free, total) = self.free_and_total();
        // Runtimes align to their largest vector type; the rest is done here.
        let padded = bytes.saturating_add(alignment);
        if padded > free || padded > self.max_allocation {
            return Err(self.refused(bytes, free, total, "the request passes what there is"));
        }
        let base = self
            .take(kind, padded as usize)
            .map_err(|e| self.refused(bytes, free, total, &e.message))?;
        let at = (base as u64).next_multiple_of(alignment);
        self.held().insert(at, (base, padded));
        Ok(at)
    }

    fn refused(&self, bytes: u64, free: u64, total: u64, why: &str) -> Error {
        Error::out_of_memory(format!(
            "{bytes} bytes on {}: {free} of {total} free, {} at most in one allocation: {why}; ask for less, or stop \
             other users of \
             the memory",
            self.name, self.max_allocation
        ))
    }

    fn take(&self, kind: Kind, bytes: usize) -> Result<usize> {
        let (api, context) = (self.api, self.context);
        let none = std::ptr::null();
        let mut code = SUCCESS;
        let (call, base) = match (&self.usm, kind) {
            // SAFETY: a live context and device, and a live output; no properties.
            (Some(usm), Kind::Device) => ("clDeviceMemAllocINTEL", unsafe {
                (usm.clDeviceMemAllocINTEL)(context, self.device, none, bytes, 0, &mut code)
            }),
            // SAFETY: as above.
            (Some(usm), Kind::Host) => ("clHostMemAllocINTEL", unsafe {
                (usm.clHostMemAllocINTEL)(context, none, bytes, 0, &mut code)
            }),
            (None, kind) => {
                let flags = match kind {
                    Kind::Device => api::MEM_READ_WRITE,
                    Kind::Host => api::MEM_READ_WRITE | api::MEM_SVM_FINE_GRAIN_BUFFER,
                };
                // SAFETY: a live context; the device has shared virtual memory of both kinds.
                ("clSVMAlloc", unsafe { (api.clSVMAlloc)(context, flags, bytes, 0) })
            }
        };
        match (base, code) {
            (0, SUCCESS) => Err(Error::out_of_memory(format!("{call} gave nothing"))),
            (base, SUCCESS) => Ok(base),
            (_, code) => Err(error(call, code)),
        }
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// `at` came from this and no work uses it.
    pub(crate) unsafe fn free(&self, at: DevicePtr) {
        let Some((base, _)) = self.held().remove(&at) else {
            debug_assert!(false, "{at:#x} is no allocation");
            return;
        };
        // SAFETY: as the caller promises.
        unsafe {
            match &self.usm {
                Some(usm) => {
                    (usm.clMemBlockingFreeINTEL)(self.context, base);
                }
                None => (self.api.clSVMFree)(self.context, base),
            }
        }
    }

    /// Sets an address as parameter `index` of a kernel.
    pub(crate) fn set_address(&self, kernel: Handle, index: u32, address: DevicePtr) -> (&'static str, i32) {
        let at = address as usize;
        match &self.usm {
            // SAFETY: a live kernel that the caller holds alone.
            Some(usm) => ("clSetKernelArgMemPointerINTEL", unsafe {
                (usm.clSetKernelArgMemPointerINTEL)(kernel, index, at)
            }),
            // SAFETY: as above.
            None => ("clSetKernelArgSVMPointer", unsafe {
                (self.api.clSetKernelArgSVMPointer)(kernel, index, at)
            }),
        }
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Both ranges live until it is done.
    pub(crate) unsafe fn copy(&self, queue: Handle, to: DevicePtr, from: DevicePtr, bytes: u64) -> (&'static str, i32) {
        let (to, from, bytes) = (to as usize, from as usize, bytes as usize);
        let (none, no_event) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: as the caller promises.
        unsafe {
            match &self.usm {
                Some(usm) => (
                    "clEnqueueMemcpyINTEL",
                    (usm.clEnqueueMemcpyINTEL)(queue, 0, to, from, bytes, 0, none, no_event),
                ),
                None => (
                    "clEnqueueSVMMemcpy",
                    (self.api.clEnqueueSVMMemcpy)(queue, 0, to, from, bytes, 0, none, no_event),
                ),
            }
        }
    }

    /// Enqueues a fill with `pattern`, whose length (a power of two) divides address and size. The runtime copies the
    /// pattern at the call.
    ///
    /// # Safety
    /// The range lives until it is done.
    pub(crate) unsafe fn fill(&self, queue: Handle, to: DevicePtr, pattern: &[u8], bytes: u64) -> (&'static str, i32) {
        let (to, bytes) = (to as usize, bytes as usize);
        let at = pattern.as_ptr().cast();
        let (none, no_event) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: as the caller promises.
        unsafe {
            match &self.usm {
                Some(usm) => (
                    "clEnqueueMemFillINTEL",
                    (usm.clEnqueueMemFillINTEL)(queue, to, at, pattern.len(), bytes, 0, none, no_event),
                ),
                None => (
                    "clEnqueueSVMMemFill",
                    (self.api.clEnqueueSVMMemFill)(queue, to, at, pattern.len(), bytes, 0, none, no_event),
                ),
            }
        }
    }
}

/// What the system could give to a process now, bytes; no limit where it does not say.
fn available_to_process() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}
