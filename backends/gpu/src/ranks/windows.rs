//! Peer memory windows: memory that the ranks of a group write on each other's devices, for sums by a kernel of ours
//! (`all_reduce.cu`). All ranks have one or none: where a device cannot address another's memory, the library does
//! everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use halyard_platform_api::{Error, Result, Status};

use crate::driver::{DevicePtr, Driver, MAX_PEERS, PEER_CALLS_BYTES, Peers, Pinned};

/// How long a kernel waits for the other ranks' data: longer than any of them computes or compiles meanwhile.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// The bytes of each sender in a window are a multiple of this.
const WINDOW_STEP: u64 = 1024;
/// Largest sum in bytes, times the ranks. Beyond it, storing into all others' memory takes longer than the library:
/// with more than two ranks that is more bytes than it sends.
const BYTES_TIMES_RANKS: u64 = 2 << 20;
/// What an empty word of a window is made of (`EMPTY` in peers.cuh).
const EMPTY: u8 = 0xff;

/// One rank's own memory, and its two words of pinned memory. It keeps the device open: other ranks may store here when
/// this rank has left.
pub(super) struct PeerWindow {
    driver: Arc<dyn Driver>,
    memory: DevicePtr,
    /// "A rank has left", "a wait was given up".
    words: Pinned,
}

// SAFETY: two addresses; host and device read and write the words whole.
unsafe impl Send for PeerWindow {}
// SAFETY: as above.
unsafe impl Sync for PeerWindow {}

impl PeerWindow {
    /// Memory on the driver's device: no call yet, and windows without data.
    fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<PeerWindow> {
        let memory = driver.ranks()?.allocate_peer_memory(bytes)?;
        let words = driver.allocate_pinned(64).inspect_err(|_| {
            // SAFETY: just allocated, and used nowhere else.
            unsafe { driver.free(memory) };
        })?;
        // SAFETY: new pinned memory of a page's alignment.
        unsafe { words.host.cast::<u64>().write(0) };
        // From here on dropping gives back what there is.
        let window = PeerWindow {
            driver: driver.clone(),
            memory,
            words,
        };
        let stream = driver.create_stream()?;
        // SAFETY: the memory was just allocated with as many bytes, of which the calls' come first.
        let filled = unsafe {
            driver
                .fill(memory, EMPTY, bytes, stream)
                .and_then(|()| driver.fill(memory, 0, PEER_CALLS_BYTES, stream))
        };
        let filled = filled.and_then(|()| driver.synchronize(stream));
        // SAFETY: just made, and idle or lost.
        unsafe { driver.destroy_stream(stream) };
        filled.map(|()| window)
    }

    fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: pinned memory of 64 bytes that lives as long as this; host and device read and write whole words.
        unsafe { &*(self.words.host.cast::<[AtomicU32; 2]>()) }
    }
}

impl Drop for PeerWindow {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed once: the last rank has left, and no kernel waits for ranks that have.
        unsafe {
            self.driver.free(self.memory);
            self.driver.free_pinned(self.words);
        }
    }
}

/// The windows of all ranks, as one rank reaches them.
pub(super) struct PeerWindows {
    rank: u32,
    windows: Vec<Arc<PeerWindow>>,
    peers: Peers,
}

impl PeerWindows {
    /// All ranks' windows in rank order.
    ///
    /// # Errors
    /// Errors of the driver when it reads its clock.
    pub(super) fn of(
        driver: &dyn Driver,
        rank: u32,
        windows: Vec<Arc<PeerWindow>>,
        window_bytes: u64,
    ) -> Result<PeerWindows> {
        const { assert!(PEER_CALLS_BYTES.is_multiple_of(256), "windows are aligned") };
        let peers = Peers {
            memory: windows.iter().map(|window| window.memory).collect(),
            window_bytes,
            host_words: windows[rank as usize].words.device,
            limit_ticks: WAIT_LIMIT.as_millis() as u64 * driver.ranks()?.ticks_per_ms()?,
        };
        Ok(PeerWindows { rank, windows, peers })
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Whether a kernel of this rank has given up waiting.
    pub(super) fn outcome(&self) -> Result<()> {
        let rank = self.rank;
        let [left, given_up] = self.windows[rank as usize].words();
        if given_up.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let size = self.windows.len();
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
        for window in &self.windows {
            window.words()[0].store(1, Ordering::Release);
        }
    }
}

/// Largest sum by the own kernel, bytes, where the operator may have `named` a smaller one.
fn most_bytes(size: u32, named: Option<u64>) -> u64 {
    let most = BYTES_TIMES_RANKS / u64::from(size.max(1));
    named.map_or(most, |named| named.min(most))
}

/// Bytes of the window of one sender, where the operator may have `named` the largest sum.
pub(super) fn window_bytes(size: u32, named: Option<u64>) -> u64 {
    most_bytes(size, named) / WINDOW_STEP * WINDOW_STEP
}

/// Lets this rank's device address the others' memory; false where it cannot.
fn reach(driver: &dyn Driver, ordinals: &[i32], rank: u32) -> Result<bool> {
    let (ranks, own) = (driver.ranks()?, ordinals[rank as usize]);
    let others = ordinals.iter().zip(0..).filter(|&(_, peer)| peer != rank);
    for (&other, _) in others {
        if other == own || !ranks.reach(other)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// This rank's window, for devices of these ordinals in rank order; `None` where its device cannot have one. That is no
/// error: the library knows other ways.
pub(super) fn make(
    driver: &Arc<dyn Driver>,
    ordinals: &[i32],
    rank: u32,
    window_bytes: u64,
) -> Option<Arc<PeerWindow>> {
    let size = ordinals.len();
    let wanted = (2..=MAX_PEERS).contains(&size) && window_bytes > 0;
    let able = wanted && reach(&**driver, ordinals, rank).unwrap_or(false);
    let bytes = Peers::memory_bytes(size as u64, window_bytes);
    able.then(|| PeerWindow::new(driver, bytes).ok())
        .flatten()
        .map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_lowers_the_longest_sum_and_cannot_raise_it() {
        assert_eq!(most_bytes(2, None), 1 << 20);
        assert_eq!(most_bytes(8, None), 256 << 10);
        assert_eq!(most_bytes(2, Some(8192)), 8192);
        assert_eq!(most_bytes(2, Some(0)), 0);
        assert_eq!(most_bytes(8, Some(1 << 30)), 256 << 10);
    }
}
