//! Memory that the ranks of a group reach on each other's devices, for sums by an own kernel (`all_reduce.cu`). All ranks have it or none:
//! where a device cannot address another's memory, NCCL does everything.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cudarc::driver::sys as cuda;
use halyard_gpu::{DevicePtr, MAX_PEERS, PEER_CALLS_BYTES, Peers};
use halyard_platform_api::{CommunicatorId, Error, Result, Status};

use crate::error::check;
use crate::libraries;
use crate::meeting::{self, Card};
use crate::surroundings;

/// How long a kernel waits for the other ranks' packets: longer than any of them is away at work, compiling included.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// A room is a multiple of this: 64 pairs of packets.
const ROOM_STEP: u64 = 1024;
/// Largest sum, bytes, times the ranks: what one rank stores into all others' memory before NCCL's way is the shorter one.
const BYTES_TIMES_RANKS: u64 = 1 << 20;

/// One rank's own memory, and its two words of pinned memory.
pub(crate) struct Room {
    ordinal: i32,
    context: usize,
    memory: DevicePtr,
    /// The host's address of the words: "a rank has left", "a wait was given up".
    words: usize,
}

impl Room {
    /// Zeroed memory on the device whose context is current.
    fn new(ordinal: i32, bytes: u64) -> Result<Room> {
        let mut context = std::ptr::null_mut();
        // SAFETY: outputs are live. The context is retained for as long as this lives, so other ranks may still store here when this rank's
        // device is closed.
        unsafe {
            check(
                "cuDevicePrimaryCtxRetain",
                cuda::cuDevicePrimaryCtxRetain(&mut context, ordinal),
            )?;
            // From here on dropping gives back what there is.
            let mut room = Room {
                ordinal,
                context: context as usize,
                memory: 0,
                words: 0,
            };
            check("cuMemAlloc", cuda::cuMemAlloc_v2(&mut room.memory, bytes as usize))?;
            let flags = cuda::CU_MEMHOSTALLOC_PORTABLE | cuda::CU_MEMHOSTALLOC_DEVICEMAP;
            let mut host = std::ptr::null_mut();
            check("cuMemHostAlloc", cuda::cuMemHostAlloc(&mut host, 64, flags))?;
            room.words = host as usize;
            host.cast::<u64>().write(0);
            let stream = std::ptr::null_mut();
            check(
                "cuMemsetD8Async",
                cuda::cuMemsetD8Async(room.memory, 0, bytes as usize, stream),
            )?;
            check("cuStreamSynchronize", cuda::cuStreamSynchronize(stream))?;
            Ok(room)
        }
    }

    fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: pinned memory of 64 bytes that lives as long as this; host and device read and write whole words.
        unsafe { &*(self.words as *const [AtomicU32; 2]) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed once: the last rank has left, and no kernel waits for ranks that have.
        unsafe {
            if cuda::cuCtxSetCurrent(self.context as cuda::CUcontext) == cuda::CUresult::CUDA_SUCCESS {
                if self.memory != 0 {
                    cuda::cuMemFree_v2(self.memory);
                }
                if self.words != 0 {
                    cuda::cuMemFreeHost(self.words as *mut _);
                }
            }
            cuda::cuDevicePrimaryCtxRelease_v2(self.ordinal);
        }
    }
}

/// This rank's view of the rooms.
pub(crate) struct Rooms {
    rank: u32,
    rooms: Vec<Arc<Room>>,
    peers: Peers,
}

impl Rooms {
    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Whether a kernel of this rank has given up waiting.
    pub(crate) fn outcome(&self) -> Result<()> {
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
    pub(crate) fn leave(&self) {
        for room in &self.rooms {
            room.words()[0].store(1, Ordering::Release);
        }
    }
}

/// Largest sum by the own kernel, bytes.
fn most_bytes(size: u32) -> Result<u64> {
    let most = BYTES_TIMES_RANKS / u64::from(size.max(1));
    Ok(surroundings::most_peer_sum_bytes()?.map_or(most, |named| named.min(most)))
}

/// Lets this rank's device, whose context is current, address the others' memory.
fn reach(cards: &[Card], rank: u32) -> Result<bool> {
    for (card, peer) in cards.iter().zip(0..) {
        if peer == rank {
            continue;
        }
        let (own, other) = (cards[rank as usize].ordinal, card.ordinal);
        let (mut can, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the outputs are live; the other context is retained for the length of the call, and by its rank for longer.
        unsafe {
            check(
                "cuDeviceCanAccessPeer",
                cuda::cuDeviceCanAccessPeer(&mut can, own, other),
            )?;
            if own == other || can == 0 {
                return Ok(false);
            }
            check(
                "cuDevicePrimaryCtxRetain",
                cuda::cuDevicePrimaryCtxRetain(&mut context, other),
            )?;
            let code = cuda::cuCtxEnablePeerAccess(context, c_uint::default());
            cuda::cuDevicePrimaryCtxRelease_v2(other);
            if code != cuda::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                check("cuCtxEnablePeerAccess", code)?;
            }
        }
    }
    Ok(true)
}

/// Makes this rank's room and meets the others with theirs; `None` where a rank has none. The device's context is current.
///
/// # Errors
/// A rank that does not come.
pub(crate) fn exchange(id: &CommunicatorId, rank: u32, cards: &[Card]) -> Result<Option<Rooms>> {
    let size = cards.len() as u32;
    let room_bytes = 2 * most_bytes(size)? / ROOM_STEP * ROOM_STEP;
    let wanted = (2..=MAX_PEERS as u32).contains(&size) && room_bytes > 0 && libraries::reaches_peers();
    // A device that cannot is no error: NCCL knows other ways.
    let able = wanted && reach(cards, rank).unwrap_or(false);
    let ordinal = cards[rank as usize].ordinal;
    let bytes = Peers::memory_bytes(u64::from(size), room_bytes);
    let room = able.then(|| Room::new(ordinal, bytes).ok()).flatten().map(Arc::new);
    let cards = meeting::meet(id, 1, rank, size, Card { ordinal, room })?;
    let rooms: Option<Vec<Arc<Room>>> = cards.into_iter().flatten().map(|card| card.room).collect();
    let Some(rooms) = rooms.filter(|rooms| rooms.len() == size as usize) else {
        return Ok(None);
    };
    let own = &rooms[rank as usize];
    let mut host_words = 0;
    // SAFETY: the output is live, and the words are pinned memory.
    let code = unsafe { cuda::cuMemHostGetDevicePointer_v2(&mut host_words, own.words as *mut _, 0) };
    check("cuMemHostGetDevicePointer", code)?;
    let peers = Peers {
        memory: rooms.iter().map(|room| room.memory).collect(),
        room_bytes,
        host_words,
        limit_ns: WAIT_LIMIT.as_nanos() as u64,
    };
    const { assert!(PEER_CALLS_BYTES.is_multiple_of(256), "rooms are aligned") };
    Ok(Some(Rooms { rank, rooms, peers }))
}
