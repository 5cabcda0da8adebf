//! One rank's membership in a collective group: the library's handle, the threads that are using it, and its release
//! without blocking. Each rank is a device, joined by a thread of its own.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use halyard_platform_api::communicator::CollectiveKind;
use halyard_platform_api::{CommunicatorDesc, CommunicatorId, Error, Result, Status};

use super::library::{CollectiveLibrary, Comm, SUM, UniqueId, data_type};
use super::rendezvous::{self, Endpoint};
use super::windows::{self, PeerWindows};
use crate::driver::{CollectiveCall, DevicePtr, Driver, Group, Peers, Stream};

/// Bytes of an id of NCCL and RCCL.
const ID_BYTES: usize = 128;
/// How long a rank that leaves waits for its own calls in the library.
const CALLS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the last holder of a group waits for the library to let go of it.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A fresh id, for ranks on devices of the driver's platform.
///
/// # Errors
/// `Unavailable` naming the library that is missing; what the library answers.
pub(crate) fn unique_id(driver: &dyn Driver) -> Result<CommunicatorId> {
    let ranks = driver.ranks()?;
    let library = ranks.library()?;
    ranks.enter()?;
    let mut id = UniqueId([0; ID_BYTES]);
    // SAFETY: the output is live.
    let code = unsafe { (library.get_unique_id)(&mut id) };
    library.check("ncclGetUniqueId", std::ptr::null_mut(), code)?;
    let id = CommunicatorId::new(id.0)?;
    rendezvous::announce(&id);
    Ok(id)
}

/// The library's handle, and the threads that use it.
struct Handle {
    comm: usize,
    users: Mutex<Users>,
    changed: Condvar,
}

#[derive(Default)]
struct Users {
    /// Calls that are in the library.
    running: u32,
    has_left: bool,
    /// The library has let go of the handle.
    ended: bool,
}

/// A call in the library, which must not lose its handle meanwhile.
struct Call<'a>(&'a Handle);

impl Handle {
    fn lock(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call; `None` once left.
    fn begin(&self) -> Option<Call<'_>> {
        let mut state = self.lock();
        if state.has_left {
            return None;
        }
        state.running += 1;
        Some(Call(self))
    }

    /// No call begins any more; whether this was the first to say so.
    fn leave(&self) -> bool {
        !std::mem::replace(&mut self.lock().has_left, true)
    }

    /// Waits for the calls that are in the library, which only enqueue; but not for ever, since one that waits there
    /// for another rank is released by the abort alone.
    fn wait_for_calls(&self, limit: Duration) {
        let state = self.lock();
        let _ended = self.changed.wait_timeout_while(state, limit, |state| state.running > 0);
    }

    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the end; whether it came.
    fn wait_for_end(&self, limit: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, limit, |state| !state.ended);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.changed.notify_all();
    }
}

/// One rank's membership in a group.
struct LibraryGroup {
    driver: Arc<dyn Driver>,
    library: &'static CollectiveLibrary,
    handle: Arc<Handle>,
    windows: Option<PeerWindows>,
    /// The thread that gives the handle back.
    leaving: Mutex<Option<JoinHandle<()>>>,
    rank: u32,
    size: u32,
}

/// Joins with the driver's device; blocks until all ranks have.
///
/// # Errors
/// `Timeout` when a rank does not come; `Unavailable` naming the library that is missing; what the library answers.
pub(crate) fn join(driver: &Arc<dyn Driver>, desc: &CommunicatorDesc) -> Result<Arc<dyn Group>> {
    let (id, rank, size) = (&desc.id, desc.rank, desc.size);
    let bytes = id.bytes().try_into().map_err(|_| {
        let len = id.bytes().len();
        Error::invalid(format!(
            "a communicator's id of {len} bytes; this platform's have {ID_BYTES}"
        ))
    })?;
    let join = || {
        let ranks = driver.ranks()?;
        ranks.most_peer_sum_bytes()?;
        let library = ranks.library()?;
        // Before the library, whose own wait has no end.
        let ordinal = ranks.ordinal();
        let endpoints = rendezvous::meet(desc, 0, Endpoint { ordinal, window: None })?;
        ranks.enter()?;
        let mut comm = std::ptr::null_mut();
        // SAFETY: the output is live; the id is one of the library's.
        let code = unsafe { (library.init_rank)(&mut comm, size as c_int, UniqueId(bytes), rank as c_int) };
        library.check("ncclCommInitRank", std::ptr::null_mut(), code)?;
        let mut group = LibraryGroup {
            driver: driver.clone(),
            library,
            handle: Arc::new(Handle {
                comm: comm as usize,
                users: Mutex::default(),
                changed: Condvar::new(),
            }),
            windows: None,
            leaving: Mutex::default(),
            rank,
            size,
        };
        if let Some(endpoints) = endpoints {
            group.windows = exchange(driver, desc, &endpoints)?;
        }
        Ok(group)
    };
    let joined = join().inspect_err(|error: &Error| {
        // A mistaken rank is not one that the others wait for.
        if error.status != Status::InvalidArgument {
            rendezvous::give_up(id);
        }
    });
    Ok(Arc::new(joined?))
}

/// Makes this rank's window and exchanges it for the others'; `None` where a rank has none.
///
/// # Errors
/// A rank that does not come.
fn exchange(driver: &Arc<dyn Driver>, desc: &CommunicatorDesc, endpoints: &[Endpoint]) -> Result<Option<PeerWindows>> {
    let (ranks, rank, size) = (driver.ranks()?, desc.rank, desc.size);
    let window_bytes = windows::window_bytes(size, ranks.most_peer_sum_bytes()?);
    let ordinals: Vec<i32> = endpoints.iter().map(|endpoint| endpoint.ordinal).collect();
    let window = windows::make(driver, &ordinals, rank, window_bytes);
    let ordinal = ranks.ordinal();
    let endpoints = rendezvous::meet(desc, 1, Endpoint { ordinal, window })?;
    let windows: Option<Vec<_>> = endpoints
        .into_iter()
        .flatten()
        .map(|endpoint| endpoint.window)
        .collect();
    let windows = windows.filter(|windows| windows.len() == size as usize);
    windows
        .map(|all| PeerWindows::of(&**driver, rank, all, window_bytes))
        .transpose()
}

impl LibraryGroup {
    fn begin(&self) -> Result<(Call<'_>, Comm)> {
        let call = self.handle.begin().ok_or_else(|| self.has_left())?;
        Ok((call, self.handle.comm as Comm))
    }

    fn has_left(&self) -> Error {
        Error::new(
            Status::Unavailable,
            format!("rank {} has left its group of {}", self.rank, self.size),
        )
    }

    /// Every rank sends part r of its input to rank r.
    unsafe fn all_to_all(&self, comm: Comm, call: &CollectiveCall, stream: *mut c_void) -> Result<()> {
        let library = self.library;
        let dtype = data_type(call.spec.dtype);
        let part = call.given / u64::from(self.size);
        let bytes = part * call.spec.dtype.bytes() as u64;
        // SAFETY: as the caller of `run` promises; the parts lie inside the operands.
        unsafe {
            library.check("ncclGroupStart", comm, (library.group_start)())?;
            let mut outcome = Ok(());
            for peer in 0..self.size {
                let at = u64::from(peer) * bytes;
                let (from, to) = (call.input + at, call.out + at);
                let sent = (library.send)(from as *const c_void, part as usize, dtype, peer as c_int, comm, stream);
                let received = (library.recv)(to as *mut c_void, part as usize, dtype, peer as c_int, comm, stream);
                let codes = library
                    .check("ncclSend", comm, sent)
                    .and(library.check("ncclRecv", comm, received));
                outcome = outcome.and(codes);
            }
            outcome.and(library.check("ncclGroupEnd", comm, (library.group_end)()))
        }
    }
}

impl Group for LibraryGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    unsafe fn run(&self, call: &CollectiveCall, stream: Stream) -> Result<()> {
        self.driver.ranks()?.enter()?;
        let library = self.library;
        let (_call, comm) = self.begin()?;
        let stream = stream.0 as *mut c_void;
        let dtype = data_type(call.spec.dtype);
        let pointers = |from: DevicePtr, to: DevicePtr| (from as *const c_void, to as *mut c_void);
        let (from, to) = pointers(call.input, call.out);
        let (given, taken, peer) = (call.given as usize, call.taken as usize, call.spec.peer as c_int);
        // SAFETY: as the caller promises.
        let (name, code) = unsafe {
            match call.spec.kind {
                CollectiveKind::AllReduce => (
                    "ncclAllReduce",
                    (library.all_reduce)(from, to, given, dtype, SUM, comm, stream),
                ),
                CollectiveKind::AllGather => (
                    "ncclAllGather",
                    (library.all_gather)(from, to, given, dtype, comm, stream),
                ),
                CollectiveKind::ReduceScatter => (
                    "ncclReduceScatter",
                    (library.reduce_scatter)(from, to, taken, dtype, SUM, comm, stream),
                ),
                CollectiveKind::Broadcast => (
                    "ncclBroadcast",
                    (library.broadcast)(from, to, given, dtype, peer, comm, stream),
                ),
                CollectiveKind::Send => ("ncclSend", (library.send)(from, given, dtype, peer, comm, stream)),
                CollectiveKind::Recv => ("ncclRecv", (library.recv)(to, taken, dtype, peer, comm, stream)),
                CollectiveKind::AllToAll => return self.all_to_all(comm, call, stream),
            }
        };
        library.check(name, comm, code)
    }

    fn peers(&self) -> Option<&Peers> {
        self.windows.as_ref().map(PeerWindows::peers)
    }

    fn check(&self) -> Result<()> {
        match self.handle.lock().has_left {
            true => Err(self.has_left()),
            false => self.outcome(),
        }
    }

    fn outcome(&self) -> Result<()> {
        self.windows.as_ref().map_or(Ok(()), PeerWindows::outcome)
    }

    fn leave(&self) {
        if !self.handle.leave() {
            return;
        }
        if let Some(windows) = &self.windows {
            windows.leave();
        }
        let (library, handle, driver) = (self.library, self.handle.clone(), self.driver.clone());
        // The library stops its kernels at once, then waits until no recording names the group: not on the caller's
        // thread, which may hold those recordings.
        let abort = move || {
            handle.wait_for_calls(CALLS_TIMEOUT);
            // A device that is lost does not keep the library from letting go.
            let _ = driver.ranks().and_then(|ranks| ranks.enter());
            // SAFETY: made in `join`, given up once.
            unsafe { (library.abort)(handle.comm as Comm) };
            handle.end();
        };
        let thread = std::thread::Builder::new().name("leave-group".to_string()).spawn(abort);
        *self.leaving.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
    }
}

impl Drop for LibraryGroup {
    fn drop(&mut self) {
        self.leave();
        // No recording names the group any more, so the library ends soon. A process that ended before it would take
        // the driver away from under the library's threads.
        let thread = self.leaving.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && self.handle.wait_for_end(END_TIMEOUT)
        {
            let _ = thread.join();
        }
    }
}
