//! NCCL: a group of ranks, one a device, each joined by a thread of its own. The library is opened here and not by the bindings, which do
//! not know the name that it has when no development files are installed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use cudarc::driver::sys as cuda;
use halyard_gpu::{CollectiveCall, DevicePtr, Group, Peers, Stream, symbol};
use halyard_platform_api::communicator::CollectiveKind;
use halyard_platform_api::{CommunicatorId, DType, Error, Result, Status};

use crate::error;
use crate::libraries;
use crate::meeting::{self, Card};
use crate::peers::{self, Rooms};
use crate::surroundings;

/// How long a rank that leaves waits for its own calls in the library.
const CALLS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the last holder of a group waits for the library to let go of it.
const END_TIMEOUT: Duration = Duration::from_secs(5);

const SUCCESS: c_int = 0;
const SUM: c_int = 0;

type Comm = *mut c_void;

/// The library's `ncclUniqueId`, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// The library's functions.
        struct Nccl {
            $( $field: unsafe extern "C" fn($($arg),*) -> $out, )*
        }

        impl Nccl {
            fn load() -> Result<Nccl> {
                let library = libraries::nccl()?;
                // SAFETY: the symbols have these types in every version of the library since 2.7.
                unsafe { Ok(Nccl { $( $field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $out>(
                    symbol(library, $symbol)?
                ), )* }) }
            }
        }
    };
}

functions! {
    get_unique_id = c"ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
    init_rank = c"ncclCommInitRank": fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
    abort = c"ncclCommAbort": fn(Comm) -> c_int;
    last_error = c"ncclGetLastError": fn(Comm) -> *const c_char;
    error_string = c"ncclGetErrorString": fn(c_int) -> *const c_char;
    group_start = c"ncclGroupStart": fn() -> c_int;
    group_end = c"ncclGroupEnd": fn() -> c_int;
    all_reduce = c"ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    all_gather = c"ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> c_int;
    reduce_scatter = c"ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    broadcast = c"ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    send = c"ncclSend": fn(*const c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    recv = c"ncclRecv": fn(*mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
}

fn nccl() -> Result<&'static Nccl> {
    static LIBRARY: OnceLock<Result<Nccl>> = OnceLock::new();
    LIBRARY.get_or_init(Nccl::load).as_ref().map_err(Error::clone)
}

impl Nccl {
    fn check(&self, call: &str, comm: Comm, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: the library's texts end in 0 and live as long as it.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        // SAFETY: both take any code and any live group or null.
        let (kind, last) = unsafe { (text((self.error_string)(code)), text((self.last_error)(comm))) };
        // 1: a CUDA call failed, which leaves the device in doubt.
        let status = if code == 1 {
            Status::DeviceLost
        } else {
            Status::Internal
        };
        Err(Error {
            vendor_code: i64::from(code),
            ..Error::new(
                status,
                format!("{call} answered {code} ({kind}): {last}; run with NCCL_DEBUG=WARN to see more"),
            )
        })
    }
}

fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 0,
        // One byte of whatever meaning: collectives that do not compute move it.
        DType::U8 | DType::F8E4M3 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::BF16 => 9,
    }
}

/// A fresh id.
pub(crate) fn unique_id() -> Result<CommunicatorId> {
    let nccl = nccl()?;
    let mut id = UniqueId([0; 128]);
    // SAFETY: the output is live.
    let code = unsafe { (nccl.get_unique_id)(&mut id) };
    nccl.check("ncclGetUniqueId", std::ptr::null_mut(), code)?;
    meeting::announce(&CommunicatorId(id.0));
    Ok(CommunicatorId(id.0))
}

/// The library's handle, and who uses it.
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

    /// Waits for the calls that are in the library, which only enqueue; but not for ever, since one that waits there for another rank is
    /// released by the abort alone.
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

/// This rank's end.
pub(crate) struct NcclGroup {
    context: usize,
    handle: Arc<Handle>,
    rooms: Option<Rooms>,
    /// The thread that gives the handle back.
    leaving: Mutex<Option<JoinHandle<()>>>,
    rank: u32,
    size: u32,
}

/// Joins with device `ordinal`, whose context is `context` and current; blocks until all ranks have.
pub(crate) fn join(ordinal: i32, context: usize, id: &CommunicatorId, rank: u32, size: u32) -> Result<NcclGroup> {
    let join = || {
        surroundings::most_peer_sum_bytes()?;
        let nccl = nccl()?;
        // Before the library, whose own wait has no end.
        let cards = meeting::meet(id, 0, rank, size, Card { ordinal, room: None })?;
        let mut comm = std::ptr::null_mut();
        // SAFETY: the output is live; the id is one of the library's.
        let code = unsafe { (nccl.init_rank)(&mut comm, size as c_int, UniqueId(id.0), rank as c_int) };
        nccl.check("ncclCommInitRank", std::ptr::null_mut(), code)?;
        let mut group = NcclGroup {
            context,
            handle: Arc::new(Handle {
                comm: comm as usize,
                users: Mutex::default(),
                changed: Condvar::new(),
            }),
            rooms: None,
            leaving: Mutex::default(),
            rank,
            size,
        };
        if let Some(cards) = cards {
            group.enter()?;
            group.rooms = peers::exchange(id, rank, &cards)?;
        }
        Ok(group)
    };
    join().inspect_err(|error: &Error| {
        // A mistaken rank is not one that the others wait for.
        if error.status != Status::InvalidArgument {
            meeting::give_up(id);
        }
    })
}

impl NcclGroup {
    fn enter(&self) -> Result<()> {
        // SAFETY: the device that this belongs to retains the context.
        error::check("cuCtxSetCurrent", unsafe {
            cuda::cuCtxSetCurrent(self.context as cuda::CUcontext)
        })
    }

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
    unsafe fn all_to_all(&self, nccl: &Nccl, comm: Comm, call: &CollectiveCall, stream: *mut c_void) -> Result<()> {
        let dtype = data_type(call.spec.dtype);
        let part = call.given / u64::from(self.size);
        let bytes = part * call.spec.dtype.bytes() as u64;
        // SAFETY: as the caller of `run` promises; the parts lie inside the operands.
        unsafe {
            nccl.check("ncclGroupStart", comm, (nccl.group_start)())?;
            let mut outcome = Ok(());
            for peer in 0..self.size {
                let at = u64::from(peer) * bytes;
                let (from, to) = (call.input + at, call.out + at);
                let sent = (nccl.send)(from as *const c_void, part as usize, dtype, peer as c_int, comm, stream);
                let received = (nccl.recv)(to as *mut c_void, part as usize, dtype, peer as c_int, comm, stream);
                let codes = nccl
                    .check("ncclSend", comm, sent)
                    .and(nccl.check("ncclRecv", comm, received));
                outcome = outcome.and(codes);
            }
            outcome.and(nccl.check("ncclGroupEnd", comm, (nccl.group_end)()))
        }
    }
}

impl Group for NcclGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    unsafe fn run(&self, call: &CollectiveCall, stream: Stream) -> Result<()> {
        self.enter()?;
        let nccl = nccl()?;
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
                    (nccl.all_reduce)(from, to, given, dtype, SUM, comm, stream),
                ),
                CollectiveKind::AllGather => ("ncclAllGather", (nccl.all_gather)(from, to, given, dtype, comm, stream)),
                CollectiveKind::ReduceScatter => (
                    "ncclReduceScatter",
                    (nccl.reduce_scatter)(from, to, taken, dtype, SUM, comm, stream),
                ),
                CollectiveKind::Broadcast => (
                    "ncclBroadcast",
                    (nccl.broadcast)(from, to, given, dtype, peer, comm, stream),
                ),
                CollectiveKind::Send => ("ncclSend", (nccl.send)(from, given, dtype, peer, comm, stream)),
                CollectiveKind::Recv => ("ncclRecv", (nccl.recv)(to, taken, dtype, peer, comm, stream)),
                CollectiveKind::AllToAll => return self.all_to_all(nccl, comm, call, stream),
            }
        };
        nccl.check(name, comm, code)
    }

    fn peers(&self) -> Option<&Peers> {
        self.rooms.as_ref().map(Rooms::peers)
    }

    fn check(&self) -> Result<()> {
        match self.handle.lock().has_left {
            true => Err(self.has_left()),
            false => self.outcome(),
        }
    }

    fn outcome(&self) -> Result<()> {
        self.rooms.as_ref().map_or(Ok(()), Rooms::outcome)
    }

    fn leave(&self) {
        if !self.handle.leave() {
            return;
        }
        if let Some(rooms) = &self.rooms {
            rooms.leave();
        }
        let Ok(nccl) = nccl() else {
            return;
        };
        let (handle, context) = (self.handle.clone(), self.context);
        // The library stops its kernels at once, then waits until no recording names the group: not on the caller's thread, which may
        // hold those recordings. It keeps the device's context itself.
        let abort = move || {
            handle.wait_for_calls(CALLS_TIMEOUT);
            // SAFETY: takes any context; a dead one is refused, and the library then sets its own.
            unsafe { cuda::cuCtxSetCurrent(context as cuda::CUcontext) };
            // SAFETY: made in `join`, given up once.
            unsafe { (nccl.abort)(handle.comm as Comm) };
            handle.end();
        };
        let thread = std::thread::Builder::new().name("nccl-leave".to_string()).spawn(abort);
        *self.leaving.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        self.leave();
        // No recording names the group any more, so the library ends soon. A process that ended before it would take the driver away from
        // under the library's threads.
        let thread = self.leaving.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && self.handle.wait_for_end(END_TIMEOUT)
        {
            let _ = thread.join();
        }
    }
}
