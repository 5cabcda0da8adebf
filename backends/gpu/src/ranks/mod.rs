//! Groups of ranks, one a device, all in one process: the vendor's library of collectives, and memory of their own in
//! which they meet. What a platform brings is the library and a few calls of its driver ([`RankDriver`]).

mod group;
mod library;
mod rendezvous;
mod windows;

use halyard_platform_api::Result;

pub(crate) use group::{join, unique_id};
pub use library::CollectiveLibrary;

use crate::handles::DevicePtr;

/// Driver methods that only groups of ranks need. Each may be called from any thread; none blocks for long.
pub trait RankDriver {
    /// The device's number, as [`RankDriver::reach`] of other devices takes it.
    fn ordinal(&self) -> i32;

    /// Makes this device the calling thread's: the library works on that one.
    ///
    /// # Errors
    /// Errors of the driver.
    fn enter(&self) -> Result<()>;

    /// The library of collectives.
    ///
    /// # Errors
    /// `Unavailable` naming the library that is missing and how to get it.
    fn library(&self) -> Result<&'static CollectiveLibrary>;

    /// The longest sum that the operator leaves to an own kernel, bytes of one operand (0: the library does all);
    /// `None`: no word of it.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no number.
    fn most_peer_sum_bytes(&self) -> Result<Option<u64>>;

    /// Lets kernels of this device address the memory of device `other`; false where they cannot.
    ///
    /// # Errors
    /// Errors of the driver.
    fn reach(&self, other: i32) -> Result<bool>;

    /// Device memory in which a kernel that runs sees what other devices store meanwhile. Aligned to 256, contents
    /// undefined, given back by [`Driver::free`](crate::Driver::free).
    ///
    /// # Errors
    /// `OutOfMemory`; `Unsupported` where the device has no such memory.
    fn allocate_peer_memory(&self, bytes: u64) -> Result<DevicePtr>;

    /// Ticks a millisecond of the clock that `peers.cuh` reads.
    ///
    /// # Errors
    /// Errors of the driver.
    fn ticks_per_ms(&self) -> Result<u64>;
}
