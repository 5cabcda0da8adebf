//! Memory that the ranks of a group reach on each other's devices, for sums by an own kernel (`all_reduce.cu`). All ranks have it or none:
//! where a device cannot address another's memory, the library does everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use halyard_platform_api::{CommunicatorId, Error, Result, Status};

use super::meeting::{self, Card};
use crate::driver::{DevicePtr, Driver, MAX_PEERS, PEER_CALLS_BYTES, Peers, Pinned};

/// How long a kernel waits for the other ranks' packets: longer than any of them is away at work, compiling included.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// A room is a multiple of this: 64 pairs of packets.
const ROOM_STEP: u64 = 1024;
/// Largest sum, bytes, times the ranks: what one rank stores into all others' memory before the library's way is the shorter one.
const BYTES_TIMES_RANKS: u64 = 1 << 20;

/// One rank's own memory, and its two words of pinned memory. It keeps the device open: other ranks may store here when this rank has left.
pub(super) struct Room {
    driver: Arc<dyn Driver>,
    memory: DevicePtr,
    /// "A rank has left", "a wait was given up".
    words: Pinned,
}

// SAFETY: two addresses; host and device read and write the words whole.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    /// Zeroed memory on the driver's device.
    fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<Room> {
        let memory = driver.ranks()?.allocate_room(bytes)?;
        let words = driver.allocate_pinned(64).inspect_err(|_| {
            // SAFETY: just allocated, and nobody else knows it.
            unsafe { driver.free(memory) };
        })?;
        // SAFETY: fresh pinned memory of a page's alignment.
        unsafe { words.host.cast::<u64>().write(0) };
        // From here on dropping gives back what there is.
        let room = Room {
            driver: driver.clone(),
            memory,
            words,
        };
        let stream = driver.create_stream()?;
        // SAFETY: the memory was just allocated with as many bytes.
        let zeroed = unsafe { driver.fill(memory, 0, bytes, stream) }.and_then(|()| driver.synchronize(stream));
        // SAFETY: just made, and idle or lost.
        unsafe { driver.destroy_stream(stream) };
        zeroed.map(|()| room)
    }

    fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: pinned memory of 64 bytes that lives as long as this; host and device read and write whole words.
        unsafe { &*(self.words.host.cast::<[AtomicU32; 2]>()) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed once: the last rank has left, and no kernel waits for ranks that have.
        unsafe {
            self.driver.free(self.memory);
            self.driver.free_pinned(self.words);
        }
    }
}

/// This rank's view of the rooms.
pub(super) struct Rooms {
    rank: u32,
    rooms: Vec<Arc<Room>>,
    peers: Peers,
}

impl Rooms {
    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Whether a kernel of this rank has given up waiting.
    pub(super) fn outcome(&self) -> Result<()> {
        let rank = self.rank;
        let [left, given_up] = self.rooms[rank as usize].words();
        if given_up.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let size = self.rooms.len();
        let message = match left.load(Ordering::Acquire) {
            0 => format!(
                "rank {rank} of {size} waited {WAIT_LIMIT:?} for the other ranks' part of a sum; see their logs"
            ),
            _ => format!("rank {rank} of {size}: another rank left the group in the middle of a sum"),
        };
        Err(Error::new(Status::Timeout, message))
    }

    /// Releases every kernel that waits for a rank.
    pub(super) fn leave(&self) {
        for room in &self.rooms {
            room.words()[0].store(1, Ordering::Release);
        }
    }
}

/// Largest sum by the own kernel, bytes, where the operator may have `named` a smaller one.
fn most_bytes(size: u32, named: Option<u64>) -> u64 {
    let most = BYTES_TIMES_RANKS / u64::from(size.max(1));
    named.map_or(most, |named| named.min(most))
}

/// Lets this rank's device address the others' memory; false where it cannot.
fn reach(driver: &dyn Driver, cards: &[Card], rank: u32) -> Result<bool> {
    let (ranks, own) = (driver.ranks()?, cards[rank as usize].ordinal);
    let others = cards.iter().zip(0..).filter(|&(_, peer)| peer != rank);
    for (other, _) in others {
        if other.ordinal == own || !ranks.reach(other.ordinal)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes this rank's room and meets the others with theirs; `None` where a rank has none.
///
/// # Errors
/// A rank that does not come.
pub(super) fn exchange(
    driver: &Arc<dyn Driver>,
    id: &CommunicatorId,
    rank: u32,
    cards: &[Card],
) -> Result<Option<Rooms>> {
    let (ranks, size) = (driver.ranks()?, cards.len() as u32);
    let room_bytes = 2 * most_bytes(size, ranks.most_peer_sum_bytes()?) / ROOM_STEP * ROOM_STEP;
    let wanted = (2..=MAX_PEERS as u32).contains(&size) && room_bytes > 0;
    // A device that cannot is no error: the library knows other ways.
    let able = wanted && reach(&**driver, cards, rank).unwrap_or(false);
    let bytes = Peers::memory_bytes(u64::from(size), room_bytes);
    let room = able.then(|| Room::new(driver, bytes).ok()).flatten().map(Arc::new);
    let ordinal = ranks.ordinal();
    let cards = meeting::meet(id, 1, rank, size, Card { ordinal, room })?;
    let rooms: Option<Vec<Arc<Room>>> = cards.into_iter().flatten().map(|card| card.room).collect();
    let Some(rooms) = rooms.filter(|rooms| rooms.len() == size as usize) else {
        return Ok(None);
    };
    let peers = Peers {
        memory: rooms.iter().map(|room| room.memory).collect(),
        room_bytes,
        host_words: rooms[rank as usize].words.device,
        limit_ticks: WAIT_LIMIT.as_millis() as u64 * ranks.ticks_per_ms()?,
    };
    const { assert!(PEER_CALLS_BYTES.is_multiple_of(256), "rooms are aligned") };
    Ok(Some(Rooms { rank, rooms, peers }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_lowers_the_longest_sum_and_cannot_raise_it() {
        assert_eq!(most_bytes(2, None), 512 << 10);
        assert_eq!(most_bytes(8, None), 128 << 10);
        assert_eq!(most_bytes(2, Some(8192)), 8192);
        assert_eq!(most_bytes(2, Some(0)), 0);
        assert_eq!(most_bytes(8, Some(1 << 30)), 128 << 10);
    }
}
