//! Brings step data to the device: the call copies it into a pinned slot, and one scatter kernel (or the driver's
//! copies) moves it on in stream order. A slot is used again when the event after it has passed.

use std::sync::Arc;

use halyard_platform_api::Result;

use crate::driver::{DevicePtr, Driver, Event, Function, Param, Pinned, Stream};
use crate::memory::Allocation;

/// Slots: more than the steps in flight, so that a writer seldom waits.
const SLOTS: usize = 8;
/// Bytes of a slot beyond those of a step's writes, as pieces keep their alignment.
const ALIGNMENT_BYTES: usize = 64 << 10;
/// Pieces of one launch, passed as a kernel parameter. Known to `step_write.cu`.
pub(crate) const PIECES: usize = 64;
/// Most bytes of a piece: one block copies it.
const PIECE_BYTES: usize = 16 << 10;
/// Threads of a block.
const THREADS: u32 = 256;

/// What one block copies: `bytes` from offset `from` of the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Piece {
    pub(crate) to: u64,
    pub(crate) from: u32,
    pub(crate) bytes: u32,
}

/// One write: where to, and what.
pub(crate) struct Write<'a> {
    pub(crate) to: DevicePtr,
    pub(crate) bytes: &'a [u8],
    pub(crate) holds: Arc<Allocation>,
}

struct Slot {
    memory: Pinned,
    free: Event,
    /// Destinations, alive until the scatter is done.
    holds: Vec<Arc<Allocation>>,
}

/// The pinned slots of a queue.
pub(crate) struct StepRing {
    driver: Arc<dyn Driver>,
    scatter: Option<Function>,
    slots: Vec<Slot>,
    slot_bytes: usize,
    next: usize,
}

impl StepRing {
    /// A ring for steps that write at most `step_bytes`, whose scatter kernel is `scatter`; without one the driver
    /// copies each piece.
    pub(crate) fn new(driver: Arc<dyn Driver>, scatter: Option<Function>, step_bytes: usize) -> StepRing {
        StepRing {
            driver,
            scatter,
            slots: Vec::new(),
            slot_bytes: step_bytes + ALIGNMENT_BYTES,
            next: 0,
        }
    }

    /// Copies the writes out of the caller's memory and enqueues their scatter, in order.
    pub(crate) fn write(&mut self, writes: &[Write<'_>], stream: Stream) -> Result<()> {
        if !overlap(writes) {
            return self.scatter(writes, stream);
        }
        // Blocks of one launch run in any order: later writes win only in launches of their own.
        writes
            .iter()
            .try_for_each(|write| self.scatter(std::slice::from_ref(write), stream))
    }

    fn scatter(&mut self, writes: &[Write<'_>], stream: Stream) -> Result<()> {
        let mut source = Cursor::default();
        while let Some(at) = self.slot(&source, writes)? {
            let driver = &*self.driver;
            let slot = &mut self.slots[at];
            // SAFETY: the slot's memory, which the device has finished reading.
            let memory = unsafe { std::slice::from_raw_parts_mut(slot.memory.host, self.slot_bytes) };
            let mut used = 0;
            loop {
                let mut pieces = [Piece::default(); PIECES];
                let count = source.fill(writes, memory, &mut used, &mut pieces, &mut slot.holds);
                if count == 0 {
                    break;
                }
                let Some(scatter) = self.scatter else {
                    for piece in &pieces[..count] {
                        let from = slot.memory.device + u64::from(piece.from);
                        // SAFETY: `holds` keeps the destination, the event the slot.
                        unsafe { driver.copy(piece.to, from, piece.bytes.into(), stream)? };
                    }
                    continue;
                };
                // SAFETY: words without padding.
                let bytes =
                    unsafe { std::slice::from_raw_parts((&raw const pieces).cast::<u8>(), size_of_val(&pieces)) };
                let params = &[Param::Bytes(bytes), Param::Ptr(slot.memory.device)];
                let grid = [count as u32, 1, 1];
                // SAFETY: `step_write` takes an array of pieces by value and the slot's address.
                unsafe { driver.launch(scatter, grid, [THREADS, 1, 1], 0, params, true, stream)? };
            }
            driver.record_event(slot.free, stream)?;
        }
        Ok(())
    }

    /// The next slot, free to fill; `None` when all is written.
    fn slot(&mut self, source: &Cursor, writes: &[Write<'_>]) -> Result<Option<usize>> {
        if source.is_done(writes) {
            return Ok(None);
        }
        if self.slots.len() < SLOTS {
            let memory = self.driver.allocate_pinned(self.slot_bytes as u64)?;
            let free = self.driver.create_event().inspect_err(|_| {
                // SAFETY: just made, never used.
                unsafe { self.driver.free_pinned(memory) };
            })?;
            self.slots.push(Slot {
                memory,
                free,
                holds: Vec::new(),
            });
            return Ok(Some(self.slots.len() - 1));
        }
        let at = self.next;
        self.next = (at + 1) % SLOTS;
        self.driver.synchronize_event(self.slots[at].free)?;
        self.slots[at].holds.clear();
        Ok(Some(at))
    }

    /// Lets go of destinations whose scatter is done.
    pub(crate) fn reap(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.holds.is_empty()) {
            if matches!(self.driver.query_event(slot.free), Ok(true)) {
                slot.holds.clear();
            }
        }
    }
}

impl Drop for StepRing {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            // SAFETY: the queue has waited for its stream, or its device is lost.
            unsafe {
                self.driver.free_pinned(slot.memory);
                self.driver.destroy_event(slot.free);
            }
        }
    }
}

/// Whether two writes touch the same byte.
fn overlap(writes: &[Write<'_>]) -> bool {
    writes.iter().enumerate().any(|(i, a)| {
        let end = a.to + a.bytes.len() as u64;
        writes[..i]
            .iter()
            .any(|b| a.to < b.to + b.bytes.len() as u64 && b.to < end)
    })
}

/// How far the writes have been cut into pieces.
#[derive(Default)]
struct Cursor {
    write: usize,
    done: usize,
}

impl Cursor {
    fn is_done(&self, writes: &[Write<'_>]) -> bool {
        writes[self.write..].iter().all(|write| write.bytes.is_empty())
    }

    /// Copies into the slot from `used` on and describes it, until slot or pieces are full; the number of pieces.
    fn fill(
        &mut self,
        writes: &[Write<'_>],
        slot: &mut [u8],
        used: &mut usize,
        pieces: &mut [Piece; PIECES],
        holds: &mut Vec<Arc<Allocation>>,
    ) -> usize {
        let mut count = 0;
        while let Some(write) = writes.get(self.write) {
            let rest = &write.bytes[self.done..];
            if rest.is_empty() {
                self.write += 1;
                self.done = 0;
                continue;
            }
            let to = write.to + self.done as u64;
            // Source and destination lie alike to 16 bytes, so that the middle is copied in vectors.
            let from = used.next_multiple_of(16) + (to % 16) as usize;
            let bytes = rest.len().min(PIECE_BYTES).min(slot.len().saturating_sub(from));
            if count == PIECES || bytes == 0 {
                break;
            }
            slot[from..from + bytes].copy_from_slice(&rest[..bytes]);
            pieces[count] = Piece {
                to,
                from: from as u32,
                bytes: bytes as u32,
            };
            if !holds.iter().any(|held| Arc::ptr_eq(held, &write.holds)) {
                holds.push(write.holds.clone());
            }
            count += 1;
            *used = from + bytes;
            self.done += bytes;
        }
        count
    }
}
