//! Buffers' memory: zeroed, counted, checked at its ends, and given back when its last user is gone. Submitted work is
//! such a user: queues hold what their unfinished work names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use halyard_platform_api::{Error, MemoryInfo, Result, Status};

use crate::driver::{DevicePtr, Driver, Pinned};
use crate::upload::Uploads;

/// One buffer's memory.
pub(crate) struct Allocation {
    driver: Arc<dyn Driver>,
    uploads: Arc<Uploads>,
    ptr: DevicePtr,
    /// The host's view of pinned memory.
    pinned: Option<Pinned>,
    bytes: u64,
    counts: Arc<Counts>,
}

/// State that all buffers of a device share.
#[derive(Default)]
struct Counts {
    /// Bytes of live device memory.
    used: AtomicU64,
    /// Work on the device does not end: what frees memory would wait for it.
    hangs: AtomicBool,
}

impl Allocation {
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the host reads and writes it without a copy command.
    pub(crate) fn host(&self) -> Option<*mut u8> {
        self.pinned.map(|pinned| pinned.host)
    }

    /// Checks that `len` bytes at `offset` lie inside.
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::invalid(format!(
                "bytes {offset} to {offset} + {len} pass the buffer's end at {}",
                self.bytes
            ))),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.counts.hangs.load(Ordering::Acquire) {
            return;
        }
        // An upload that is still under way may write here; queues' work is over, as it would hold this otherwise.
        self.uploads.settle();
        match self.pinned {
            // SAFETY: made by the same driver, and no work names it any more.
            Some(pinned) => unsafe { self.driver.free_pinned(pinned) },
            None => {
                // SAFETY: as above.
                unsafe { self.driver.free(self.ptr) };
                self.counts.used.fetch_sub(self.bytes, Ordering::Relaxed);
            }
        }
    }
}

/// Counts, and where buffers come from.
pub(crate) struct Memory {
    counts: Arc<Counts>,
    reserve: u64,
}

impl Memory {
    /// For a device of `total` bytes. Part of it stays unpromised: the driver takes memory of its own after start, for
    /// recorded graphs, code and library handles, and would otherwise fail in the middle of serving.
    pub(crate) fn new(total: u64) -> Memory {
        Memory {
            counts: Arc::default(),
            reserve: (total / 64).min(512 << 20),
        }
    }

    /// Nothing is freed from now on: the device hangs, and so would each call that frees.
    pub(crate) fn abandon(&self) {
        self.counts.hangs.store(true, Ordering::Release);
    }

    /// Memory now.
    pub(crate) fn info(&self, driver: &dyn Driver) -> Result<MemoryInfo> {
        let (free, total) = driver.memory()?;
        Ok(MemoryInfo {
            total_bytes: total,
            free_bytes: free.saturating_sub(self.reserve),
            used_bytes: self.counts.used.load(Ordering::Relaxed),
        })
    }

    /// Zeroed device memory.
    pub(crate) fn device(&self, driver: &Arc<dyn Driver>, uploads: &Arc<Uploads>, bytes: u64) -> Result<Allocation> {
        let ptr = driver.allocate(bytes).map_err(|e| self.explain(e, &**driver, bytes))?;
        self.counts.used.fetch_add(bytes, Ordering::Relaxed);
        // From here on the owner frees.
        let allocation = Allocation {
            driver: driver.clone(),
            uploads: uploads.clone(),
            ptr,
            pinned: None,
            bytes,
            counts: self.counts.clone(),
        };
        uploads.zero(ptr, bytes)?;
        Ok(allocation)
    }

    /// Zeroed host memory that the device reads and writes in place. Not counted: it takes none of the device's.
    pub(crate) fn host_visible(
        &self,
        driver: &Arc<dyn Driver>,
        uploads: &Arc<Uploads>,
        bytes: u64,
    ) -> Result<Allocation> {
        let pinned = driver.allocate_pinned(bytes)?;
        // SAFETY: fresh memory of that size, used nowhere else yet.
        unsafe { std::ptr::write_bytes(pinned.host, 0, bytes as usize) };
        Ok(Allocation {
            driver: driver.clone(),
            uploads: uploads.clone(),
            ptr: pinned.device,
            pinned: Some(pinned),
            bytes,
            counts: self.counts.clone(),
        })
    }

    fn explain(&self, error: Error, driver: &dyn Driver, bytes: u64) -> Error {
        if error.status != Status::OutOfMemory {
            return error;
        }
        let used = self.counts.used.load(Ordering::Relaxed);
        let (free, total) = driver.memory().unwrap_or((0, 0));
        let others = total.saturating_sub(free).saturating_sub(used);
        Error {
            message: format!(
                "{bytes} bytes of device memory asked, {free} of {total} free: this process's buffers hold {used}, \
                 other users and the \
                 driver {others}; stop other users of the device, or ask for less (fewer KV blocks, a smaller model \
                 or weight format, \
                 more devices)"
            ),
            ..error
        }
    }
}
