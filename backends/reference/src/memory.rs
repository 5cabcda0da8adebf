//! Device memory: byte vectors with an account. It owns the arithmetic of what is used and free, and must never give
//! out a buffer that the account does not cover.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use halyard_platform_api::{Buffer, BufferId, Error, MemoryInfo, Result};

use crate::device::Shared;

/// The account of one device's memory.
pub(crate) struct Pool {
    total_bytes: u64,
    /// The total was given by the operator: free memory is then what the account says, whatever the machine has.
    fixed: bool,
    used_bytes: AtomicU64,
}

impl Pool {
    /// A pool of `limit` bytes, or of the machine's memory.
    pub(crate) fn new(limit: Option<u64>) -> Arc<Pool> {
        Arc::new(Pool {
            total_bytes: limit.unwrap_or_else(|| meminfo("MemTotal:").unwrap_or(FALLBACK_BYTES)),
            fixed: limit.is_some(),
            used_bytes: AtomicU64::new(0),
        })
    }

    /// The account now.
    pub(crate) fn info(&self) -> MemoryInfo {
        let used_bytes = self.used_bytes.load(Ordering::Acquire);
        let unused = self.total_bytes.saturating_sub(used_bytes);
        let free_bytes = if self.fixed {
            unused
        } else {
            meminfo("MemAvailable:").map_or(unused, |available| available.min(unused))
        };
        MemoryInfo {
            total_bytes: self.total_bytes,
            free_bytes,
            used_bytes,
        }
    }

    /// Zero-filled memory.
    ///
    /// # Errors
    /// `OutOfMemory` with the arithmetic.
    pub(crate) fn allocate(self: &Arc<Pool>, bytes: u64) -> Result<Allocation> {
        let info = self.info();
        let refuse = || {
            Error::out_of_memory(format!(
                "{bytes} bytes asked, {} free ({} total − {} used by this device, and no more than the machine has \
                 available)",
                info.free_bytes, info.total_bytes, info.used_bytes
            ))
        };
        if bytes > info.free_bytes {
            return Err(refuse());
        }
        let len = usize::try_from(bytes).map_err(|_| refuse())?;
        // A zeroed vector ends the process where memory is short; a plain reservation of the same size says so instead.
        Vec::<u8>::new().try_reserve_exact(len).map_err(|_| refuse())?;
        let data = Mutex::new(vec![0u8; len]);
        self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        Ok(Allocation {
            data,
            bytes,
            pool: Arc::clone(self),
        })
    }
}

/// Where the operating system does not say how much memory there is: 4 GiB.
const FALLBACK_BYTES: u64 = 4 << 30;

/// A line of `/proc/meminfo` in bytes (proc(5): the values are in kB).
fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// A buffer's memory, alive while the buffer or a command buffer that names it is.
pub(crate) struct Allocation {
    data: Mutex<Vec<u8>>,
    bytes: u64,
    pool: Arc<Pool>,
}

impl Allocation {
    /// The bytes, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks a range.
    ///
    /// # Errors
    /// `InvalidArgument` past the end.
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::invalid(format!(
                "bytes {offset} .. {offset} + {len} are past the end of a buffer of {} bytes",
                self.bytes
            ))),
        }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `InvalidArgument` past the end.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let start = offset as usize;
        self.lock()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.pool.used_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The contract's buffer: an allocation and its id.
pub(crate) struct ReferenceBuffer {
    id: u64,
    allocation: Arc<Allocation>,
    shared: Arc<Shared>,
}

impl ReferenceBuffer {
    /// Allocates and numbers a buffer.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; `OutOfMemory`.
    pub(crate) fn create(shared: &Arc<Shared>, bytes: u64) -> Result<Self> {
        if bytes == 0 {
            return Err(Error::invalid("a buffer of 0 bytes: ask for at least 1"));
        }
        let allocation = Arc::new(shared.pool.allocate(bytes)?);
        let id = shared.buffers.insert(Arc::clone(&allocation));
        Ok(ReferenceBuffer {
            id,
            allocation,
            shared: Arc::clone(shared),
        })
    }
}

impl Buffer for ReferenceBuffer {
    fn id(&self) -> BufferId {
        BufferId(self.id)
    }

    fn bytes(&self) -> u64 {
        self.allocation.bytes()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.allocation.write(offset, bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.allocation.check(offset, out.len() as u64)?;
        let start = offset as usize;
        out.copy_from_slice(&self.allocation.lock()[start..start + out.len()]);
        Ok(())
    }
}

impl Drop for ReferenceBuffer {
    fn drop(&mut self) {
        self.shared.buffers.remove(self.id);
    }
}
