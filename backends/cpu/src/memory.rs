//! Host memory for buffers: zeroed, aligned, given back when the last user is gone; and how much of it there is.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_platform_api::{Error, MemoryInfo, Result};

/// Pages are mapped, not allocated: they are zero and cost nothing until touched, which a large KV pool relies on.
const HUGE_PAGE: usize = 2 << 20;

/// One mapping.
pub(crate) struct Allocation {
    base: NonNull<u8>,
    bytes: usize,
    used: Arc<AtomicU64>,
}

// SAFETY: plain memory; who reads and writes it when is ruled by the contract's queue order, not by this owner.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Maps `bytes` zeroed bytes.
    ///
    /// # Errors
    /// `OutOfMemory` when the system refuses.
    fn map(bytes: usize, used: Arc<AtomicU64>) -> Result<Allocation> {
        // SAFETY: an anonymous private mapping with no address wish has no preconditions.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED);
        let Some(base) = base else {
            return Err(Error::out_of_memory(format!("the system refused to map {bytes} bytes")));
        };
        if bytes >= HUGE_PAGE {
            // SAFETY: advice on the mapping just made; failure is harmless.
            unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        used.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Allocation { base, bytes, used })
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The range as an offset, checked.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Result<*mut u8> {
        let end = usize::try_from(offset)
            .ok()
            .and_then(|o| o.checked_add(len))
            .filter(|&end| end <= self.bytes);
        match end {
            // SAFETY: offset + len lies inside the mapping.
            Some(_) => Ok(unsafe { self.ptr().add(offset as usize) }),
            None => Err(Error::invalid(format!(
                "bytes {offset} to {offset} + {len} pass the buffer's end at {}",
                self.bytes
            ))),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: unmaps what `map` mapped; nobody holds the allocation any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        self.used.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// Counts and limits.
pub(crate) struct Memory {
    total: u64,
    available_at_open: u64,
    used: Arc<AtomicU64>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let (total, available) = system_memory();
        Memory {
            total,
            available_at_open: available,
            used: Arc::new(AtomicU64::new(0)),
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn info(&self) -> MemoryInfo {
        let used = self.used.load(Ordering::Relaxed);
        MemoryInfo {
            total_bytes: self.total,
            free_bytes: self.available_at_open.saturating_sub(used),
            used_bytes: used,
        }
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<Allocation> {
        let info = self.info();
        if bytes > info.free_bytes {
            return Err(Error::out_of_memory(format!(
                "{bytes} bytes asked, {} free: {} were available when the device was opened and buffers hold {}",
                info.free_bytes, self.available_at_open, info.used_bytes
            )));
        }
        Allocation::map(bytes as usize, self.used.clone())
    }
}

/// Total and available bytes of this machine, or of its control group where that is less.
fn system_memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    };
    let total = field("MemTotal:").unwrap_or(1 << 30);
    let available = field("MemAvailable:").unwrap_or(total / 2);
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    match number("/sys/fs/cgroup/memory.max") {
        Some(limit) if limit < total => {
            let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
            (limit, available.min(limit.saturating_sub(used)))
        }
        _ => (total, available),
    }
}
