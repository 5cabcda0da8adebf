//! Host memory for buffers: zeroed, aligned, given back when the last user is gone; and how much of it there is.
//!
//! Buffers are cut from slabs of huge pages: the weights of a small model are shorter than such a page each, and on
//! pages of 4 KiB the processor would stop reading ahead at the end of every one.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use halyard_platform_api::{Error, MemoryInfo, Result};

const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;
/// Bytes of address space of a slab; larger buffers have one of their own.
const SLAB: usize = 64 << 20;

/// A mapping that begins at a huge page. Pages are mapped, not allocated: they are zero and cost nothing until touched,
/// which a large KV pool relies on.
struct Slab {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    base: *mut u8,
}

// SAFETY: plain memory; the contract's queue order, not this owner, decides when a thread reads or writes it.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// # Errors
    /// `OutOfMemory` when the system refuses.
    fn map(bytes: usize) -> Result<Slab> {
        let mapped_bytes = bytes + HUGE_PAGE;
        // SAFETY: an anonymous private mapping with no address wish has no preconditions.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let mapped = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED);
        let Some(mapped) = mapped else {
            return Err(Error::out_of_memory(format!("the system refused to map {bytes} bytes")));
        };
        let base = mapped.as_ptr().wrapping_add(mapped.as_ptr().align_offset(HUGE_PAGE));
        // SAFETY: advice on a part of the mapping just made; failure is harmless.
        unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(Slab {
            mapped,
            mapped_bytes,
            base,
        })
    }

    /// Has the system give and clear the first huge page. What is in it stays as it is; where the system does not know
    /// the advice, nothing happens.
    fn fault_in_first_page(&self) {
        // SAFETY: advice on a part of the mapping, which is longer than a huge page; it changes no byte that a program
        // sees.
        unsafe { libc::madvise(self.base.cast(), HUGE_PAGE, libc::MADV_POPULATE_WRITE) };
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: unmaps what `map` mapped; no buffer of it is left.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// A part of a slab.
pub(crate) struct Allocation {
    slab: Arc<Slab>,
    offset: usize,
    bytes: usize,
    used: Arc<AtomicU64>,
}

impl Allocation {
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.slab.base.wrapping_add(self.offset)
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
            // SAFETY: offset + len lies inside the slab.
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
        // Addresses of a slab are used once. Its memory goes back to the system now, page by page: the slab may live as
        // long as a model.
        let (first, end) = (
            self.offset.next_multiple_of(PAGE),
            (self.offset + self.bytes) / PAGE * PAGE,
        );
        if first < end {
            // SAFETY: whole pages of this buffer alone, which no object holds any more.
            unsafe { libc::madvise(self.slab.base.add(first).cast(), end - first, libc::MADV_DONTNEED) };
        }
        self.used.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// Counts and limits.
pub(crate) struct Memory {
    total: u64,
    available_at_open: u64,
    used: Arc<AtomicU64>,
    /// The slab that small buffers are cut from, and its bytes in use.
    open: Mutex<Option<(Arc<Slab>, usize)>>,
    /// Started with the first large buffer.
    faulter: OnceLock<Faulter>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let (total, available) = system_memory();
        Memory {
            total,
            available_at_open: available,
            used: Arc::new(AtomicU64::new(0)),
            open: Mutex::new(None),
            faulter: OnceLock::new(),
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
        let bytes = bytes as usize;
        let (slab, offset) = self.cut(bytes)?;
        self.used.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Allocation {
            slab,
            offset,
            bytes,
            used: self.used.clone(),
        })
    }

    /// A place for `bytes` zeroed bytes.
    fn cut(&self, bytes: usize) -> Result<(Arc<Slab>, usize)> {
        if bytes > SLAB / 2 {
            let slab = Arc::new(Slab::map(bytes)?);
            self.faulter.get_or_init(Faulter::start).send(&slab);
            return Ok((slab, 0));
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Small buffers share pages, others begin at one.
        let align = if bytes < PAGE { 64 } else { PAGE };
        if let Some((slab, end)) = &mut *open {
            let offset = end.next_multiple_of(align);
            if offset + bytes <= SLAB {
                *end = offset + bytes;
                return Ok((slab.clone(), offset));
            }
        }
        let slab = Arc::new(Slab::map(SLAB)?);
        *open = Some((slab.clone(), bytes));
        Ok((slab, 0))
    }
}

/// No large buffer has come for so long: the model is loaded, and its warm-up is over.
const LOADED: Duration = Duration::from_millis(300);

/// A thread that faults in the first page of large buffers behind their users' backs. The first request of a server
/// writes the first tokens of every layer's cache, a fresh huge page each; where a virtual machine's host has to find
/// those first, that takes as long as the prompt. It begins when loading is over: before, it would take a processor,
/// and the system's time for clearing pages, from packing weights and from the warm-up.
struct Faulter {
    slabs: Option<Sender<Arc<Slab>>>,
    /// `None` where the system gave no thread: users fault pages in themselves then.
    thread: Option<JoinHandle<()>>,
}

impl Faulter {
    fn start() -> Faulter {
        let (sender, slabs) = channel::<Arc<Slab>>();
        let thread = std::thread::Builder::new().name("halyard-cpu-pages".into());
        let work = move || fault_in(&slabs);
        Faulter {
            slabs: Some(sender),
            thread: thread.spawn(work).ok(),
        }
    }

    fn send(&self, slab: &Arc<Slab>) {
        // An error says that there is no thread.
        let _ = self.slabs.as_ref().map(|slabs| slabs.send(slab.clone()));
    }
}

/// Faults in the buffers that come, in batches that end with a pause. Ends with the senders.
fn fault_in(slabs: &Receiver<Arc<Slab>>) {
    let mut batch = Vec::new();
    while let Ok(first) = slabs.recv() {
        batch.push(first);
        loop {
            match slabs.recv_timeout(LOADED) {
                Ok(slab) => batch.push(slab),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        for slab in batch.drain(..) {
            slab.fault_in_first_page();
        }
    }
}

impl Drop for Faulter {
    fn drop(&mut self) {
        // No code of this library may run once it is unloaded.
        self.slabs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether every byte is `value`, of a buffer that the calling test alone uses.
    fn holds(allocation: &Allocation, value: u8) -> bool {
        // SAFETY: the buffer's own bytes, which no thread writes meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(allocation.ptr(), allocation.bytes()) };
        bytes.iter().all(|&byte| byte == value)
    }

    #[test]
    fn buffers_are_zeroed_aligned_apart_and_counted() {
        let memory = Memory::new();
        let sizes = [1, 100, PAGE as u64, 3 << 20, SLAB as u64 / 2, SLAB as u64, 5, 40 << 20];
        let mut all = Vec::new();
        for (i, &size) in sizes.iter().enumerate() {
            let allocation = memory.allocate(size).expect("memory");
            assert!(holds(&allocation, 0), "buffer {i}");
            // SAFETY: the buffer's own bytes.
            unsafe { allocation.ptr().write_bytes(i as u8 + 1, size as usize) };
            assert!(
                allocation
                    .ptr()
                    .addr()
                    .is_multiple_of(if size < PAGE as u64 { 64 } else { PAGE })
            );
            all.push(allocation);
        }
        assert_eq!(memory.info().used_bytes, sizes.iter().sum::<u64>());
        drop(all.remove(3));
        for (allocation, value) in all.iter().zip([1, 2, 3, 5, 6, 7, 8]) {
            assert!(holds(allocation, value), "buffer {value} keeps its bytes");
        }
        drop(all);
        assert_eq!(memory.info().used_bytes, 0);
        let after = memory.allocate(3 << 20).expect("memory");
        assert!(holds(&after, 0), "no byte of a dead buffer");
    }

    #[test]
    fn a_large_buffer_gets_its_first_huge_page_alone_before_it_is_used() {
        let memory = Memory::new();
        let large = memory.allocate(SLAB as u64).expect("memory");
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while resident(large.ptr(), HUGE_PAGE) < HUGE_PAGE / PAGE {
            assert!(
                std::time::Instant::now() < deadline,
                "the first page was not faulted in"
            );
            std::thread::yield_now();
        }
        assert_eq!(resident(large.ptr(), SLAB), HUGE_PAGE / PAGE, "no other page");
        assert!(holds(&large, 0));
    }

    /// How many 4 KiB pages of the `bytes` from `at` on have memory.
    fn resident(at: *mut u8, bytes: usize) -> usize {
        let mut pages = vec![0u8; bytes / PAGE];
        // SAFETY: whole pages inside a slab that the caller holds.
        let outcome = unsafe { libc::mincore(at.cast(), bytes, pages.as_mut_ptr()) };
        assert_eq!(outcome, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn memory_of_a_dead_buffer_goes_back_to_the_system_while_its_slab_lives() {
        let memory = Memory::new();
        let kept = memory.allocate(4096).expect("memory");
        let dead = memory.allocate(8 << 20).expect("memory");
        let at = dead.ptr();
        // SAFETY: this test alone uses it.
        unsafe { at.write_bytes(1, 8 << 20) };
        assert_eq!(resident(at, 8 << 20), (8 << 20) / PAGE);
        drop(dead);
        assert_eq!(resident(at, 8 << 20), 0);
        drop(kept);
    }
}
