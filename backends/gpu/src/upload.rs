//! Load-time traffic: weights and buffer contents through pinned chunks on a stream of their own, the host filling one
//! chunk while the device copies the other. Queues wait for it with an event, so no thread has to wait here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use halyard_platform_api::{Error, Result};

use crate::driver::{DevicePtr, Driver, Event, Pinned, Stream};
use crate::encoding::Encoding;
use crate::kernel::{Packer, RowSource};
use crate::run::{Scratch, run_commands};

/// Bytes of a chunk: large enough that the cost of starting a copy does not count.
const CHUNK_BYTES: u64 = 32 << 20;
/// Bytes that one thread copies; below twice that, threads cost more than they bring. An expert's matrix has a few
/// million.
const BYTES_PER_THREAD: usize = 512 << 10;
/// Most copying threads: a few saturate the memory bus.
const MAX_THREADS: usize = 8;

struct Chunk {
    memory: Pinned,
    free: Event,
}

/// The state of the load-time stream.
#[derive(Default)]
struct State {
    chunks: Vec<Chunk>,
    next: usize,
    /// Device copy of host rows that a kernel rearranges.
    staging: Option<(DevicePtr, u64)>,
}

/// The load-time stream of a device.
pub(crate) struct Uploads {
    driver: Arc<dyn Driver>,
    stream: Stream,
    done: Event,
    /// Counts what was enqueued, so that a queue knows whether it has waited for the last of it.
    version: AtomicU64,
    busy: AtomicBool,
    state: Mutex<State>,
}

impl Uploads {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Result<Uploads> {
        let stream = driver.create_stream()?;
        let done = driver.create_event().inspect_err(|_| {
            // SAFETY: just made, never used.
            unsafe { driver.destroy_stream(stream) };
        })?;
        Ok(Uploads {
            driver,
            stream,
            done,
            version: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills fresh memory with zeros and waits for it.
    pub(crate) fn zero(&self, to: DevicePtr, bytes: u64) -> Result<()> {
        let _order = self.lock();
        // SAFETY: the caller's own memory of that size; waited for below.
        unsafe { self.driver.fill(to, 0, bytes, self.stream)? };
        self.finish()
    }

    /// Copies host bytes to the device and waits for it.
    pub(crate) fn write(&self, to: DevicePtr, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let outcome = self.copy_in(&mut state, to, bytes.len() as u64, bytes, bytes.len() as u64, 1);
        outcome.and(self.finish())
    }

    /// Copies device bytes to the host and waits for it.
    pub(crate) fn read(&self, from: DevicePtr, out: &mut [u8]) -> Result<()> {
        let mut state = self.lock();
        let mut done = 0;
        while done < out.len() {
            let part = (out.len() - done).min(CHUNK_BYTES as usize);
            let chunk = self.chunk(&mut state)?;
            // SAFETY: chunk and source live until the wait below.
            unsafe {
                self.driver
                    .copy(chunk.memory.device, from + done as u64, part as u64, self.stream)?
            };
            self.finish()?;
            copy_rows(chunk.memory.host, out[done..].as_mut_ptr(), part, part, 1);
            done += part;
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        self.driver.synchronize(self.stream)?;
        self.busy.store(false, Ordering::Release);
        Ok(())
    }

    /// Waits for everything enqueued so far.
    pub(crate) fn wait(&self) -> Result<()> {
        let _order = self.lock();
        self.finish()
    }

    /// Waits until nothing is under way; the next call that meets an error reports it.
    pub(crate) fn settle(&self) {
        if !self.busy.load(Ordering::Acquire) {
            return;
        }
        // Under the lock: work that another thread enqueues meanwhile must not be forgotten with this one's.
        let _order = self.lock();
        if self.driver.synchronize(self.stream).is_ok() {
            self.busy.store(false, Ordering::Release);
        }
    }

    /// Makes later work of `stream` see everything uploaded so far; `seen` is what it has seen.
    pub(crate) fn order(&self, stream: Stream, seen: &AtomicU64) -> Result<()> {
        let version = self.version.load(Ordering::Acquire);
        if seen.load(Ordering::Relaxed) != version {
            self.driver.stream_wait(stream, self.done)?;
            seen.store(version, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Runs `pack` with a [`Packer`] on the load-time stream. Its host bytes have been taken when this returns.
    pub(crate) fn pack(&self, pack: impl FnOnce(&dyn Packer) -> Result<()>) -> Result<()> {
        let state = self.lock();
        self.busy.store(true, Ordering::Release);
        let packing = Packing {
            uploads: self,
            state: Mutex::new(state),
        };
        let outcome = pack(&packing);
        drop(packing);
        self.driver.record_event(self.done, self.stream)?;
        self.version.fetch_add(1, Ordering::AcqRel);
        outcome
    }

    /// A chunk that the device is done with.
    fn chunk<'a>(&self, state: &'a mut State) -> Result<&'a Chunk> {
        if state.chunks.len() < 2 {
            let memory = self.driver.allocate_pinned(CHUNK_BYTES)?;
            let free = self.driver.create_event().inspect_err(|_| {
                // SAFETY: just made, never used.
                unsafe { self.driver.free_pinned(memory) };
            })?;
            state.chunks.push(Chunk { memory, free });
            state.next = 0;
            return Ok(&state.chunks[state.chunks.len() - 1]);
        }
        let at = state.next;
        state.next = 1 - at;
        self.driver.synchronize_event(state.chunks[at].free)?;
        Ok(&state.chunks[at])
    }

    /// `height` rows of `width` bytes, `pitch` apart in `bytes`, to `to`, `to_pitch` apart there.
    fn copy_in(
        &self,
        state: &mut State,
        to: DevicePtr,
        to_pitch: u64,
        bytes: &[u8],
        pitch: u64,
        height: u64,
    ) -> Result<()> {
        let width = if height == 1 {
            bytes.len() as u64
        } else {
            bytes.len() as u64 - (height - 1) * pitch
        };
        let rows_at_once = (CHUNK_BYTES / width.max(1)).max(1);
        let mut row = 0;
        while row < height {
            let rows = rows_at_once.min(height - row);
            let mut column = 0;
            // One turn, unless a single row is larger than a chunk.
            while column < width {
                let part = (width - column).min(CHUNK_BYTES / rows);
                let chunk = self.chunk(state)?;
                let from = bytes[(row * pitch + column) as usize..].as_ptr();
                gather(from, pitch as usize, chunk.memory.host, part as usize, rows as usize);
                let target = to + row * to_pitch + column;
                // SAFETY: the caller checked the target; the chunk is not touched before its event has passed.
                unsafe {
                    if rows == 1 || to_pitch == part {
                        self.driver
                            .copy(target, chunk.memory.device, part * rows, self.stream)?;
                    } else {
                        self.driver
                            .copy_2d(target, to_pitch, chunk.memory.device, part, part, rows, self.stream)?;
                    }
                }
                self.driver.record_event(chunk.free, self.stream)?;
                column += part;
            }
            row += rows;
        }
        Ok(())
    }

    fn staging(&self, state: &mut State, bytes: u64) -> Result<DevicePtr> {
        if let Some((ptr, size)) = state.staging {
            if size >= bytes {
                return Ok(ptr);
            }
            self.driver.synchronize(self.stream)?;
            state.staging = None;
            // SAFETY: nothing of the stream uses it any more, and it is used nowhere else.
            unsafe { self.driver.free(ptr) };
        }
        let size = bytes.next_multiple_of(2 << 20);
        let ptr = self.driver.allocate(size)?;
        state.staging = Some((ptr, size));
        Ok(ptr)
    }

    /// Gives the chunks and the staging copy back: loading is over, or pauses.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        if self.driver.synchronize(self.stream).is_err() && !state.chunks.is_empty() {
            return;
        }
        let state = std::mem::take(&mut *state);
        // SAFETY: the stream is idle, and these are used nowhere else.
        unsafe {
            for chunk in state.chunks {
                self.driver.free_pinned(chunk.memory);
                self.driver.destroy_event(chunk.free);
            }
            if let Some((ptr, _)) = state.staging {
                self.driver.free(ptr);
            }
        }
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.release();
        // SAFETY: the last owner; the stream is idle or its device lost.
        unsafe {
            self.driver.destroy_event(self.done);
            self.driver.destroy_stream(self.stream);
        }
    }
}

/// The packer of one `pack_weight` call.
struct Packing<'a> {
    uploads: &'a Uploads,
    state: Mutex<MutexGuard<'a, State>>,
}

impl Packing<'_> {
    /// The piece of host memory that `height` rows span.
    fn span(bytes: &[u8], offset: u64, pitch: u64, width: u64, height: u64) -> Result<&[u8]> {
        let end = (height - 1)
            .checked_mul(pitch)
            .and_then(|b| b.checked_add(offset)?.checked_add(width));
        let end = end.filter(|&end| end <= bytes.len() as u64).ok_or_else(|| {
            Error::invalid(format!(
                "{height} rows of {width} bytes, {pitch} apart from {offset} on, pass the {} bytes given",
                bytes.len()
            ))
        })?;
        Ok(&bytes[offset as usize..end as usize])
    }
}

impl Packer for Packing<'_> {
    fn copy(
        &self,
        to: DevicePtr,
        to_pitch: u64,
        source: RowSource<'_>,
        offset: u64,
        pitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()> {
        if width == 0 || height == 0 {
            return Ok(());
        }
        match source {
            RowSource::Host(bytes) => {
                let bytes = Self::span(bytes, offset, pitch, width, height)?;
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                self.uploads.copy_in(&mut state, to, to_pitch, bytes, pitch, height)
            }
            // SAFETY: the op's own source and target, checked by its caller; the stream orders the copies.
            RowSource::Device(from, _) => unsafe {
                let (driver, stream) = (&self.uploads.driver, self.uploads.stream);
                if height == 1 || (to_pitch == width && pitch == width) {
                    driver.copy(to, from + offset, width * height, stream)
                } else {
                    driver.copy_2d(to, to_pitch, from + offset, pitch, width, height, stream)
                }
            },
        }
    }

    fn on_device(&self, source: RowSource<'_>, offset: u64, bytes: u64) -> Result<DevicePtr> {
        match source {
            RowSource::Device(from, _) => Ok(from + offset),
            RowSource::Host(host) => {
                let host = Self::span(host, offset, bytes, bytes, 1)?;
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let ptr = self.uploads.staging(&mut state, bytes.max(1))?;
                self.uploads.copy_in(&mut state, ptr, bytes, host, bytes, 1)?;
                Ok(ptr)
            }
        }
    }

    fn run(&self, encoding: &Encoding) -> Result<()> {
        let scratch = Scratch { base: 0, bytes: 0 };
        run_commands(&*self.uploads.driver, self.uploads.stream, encoding, scratch)
    }
}

/// Packs rows densely: what [`copy_rows`] does, for a strided source.
fn gather(from: *const u8, pitch: usize, to: *mut u8, width: usize, height: usize) {
    if height == 1 || pitch == width {
        return copy_rows(from, to, width * height, width * height, 1);
    }
    copy_rows(from, to, width, pitch, height);
}

/// Copies `height` rows of `width` bytes, `pitch` apart, to dense memory, on a few threads when it pays.
fn copy_rows(from: *const u8, to: *mut u8, width: usize, pitch: usize, height: usize) {
    #[derive(Clone, Copy)]
    struct Ends(*const u8, *mut u8);
    // SAFETY: the threads below end before this function does, and share the target out among themselves.
    unsafe impl Send for Ends {}
    // SAFETY: as above.
    unsafe impl Sync for Ends {}

    let total = width * height;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (total / BYTES_PER_THREAD).clamp(1, cores.min(MAX_THREADS));
    let ends = Ends(from, to);
    let part = move |thread: usize| {
        let Ends(from, to) = { ends };
        // In dense bytes, so that one long row is shared out too.
        let (mut at, end) = (total * thread / threads, total * (thread + 1) / threads);
        while at < end {
            let (row, column) = (at / width, at % width);
            let len = (width - column).min(end - at);
            // SAFETY: both ranges lie inside what the caller lends; parts do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.add(row * pitch + column), to.add(at), len) };
            at += len;
        }
    };
    if threads == 1 {
        return part(0);
    }
    std::thread::scope(|scope| {
        for thread in 1..threads {
            scope.spawn(move || part(thread));
        }
        part(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_packed_densely_by_any_number_of_threads() {
        for (width, pitch, height) in [(3, 5, 4), (7, 7, 9), (5000, 5003, 4001), (9 << 20, 9 << 20, 1)] {
            let from: Vec<u8> = (0..pitch * height).map(|i| ((i * 31) >> 3) as u8).collect();
            let mut to = vec![0xEE; width * height];
            gather(from.as_ptr(), pitch, to.as_mut_ptr(), width, height);
            for row in 0..height {
                assert_eq!(
                    to[row * width..][..width],
                    from[row * pitch..][..width],
                    "{width} {pitch} {row}"
                );
            }
        }
    }
}
