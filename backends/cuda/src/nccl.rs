//! NCCL: a group of ranks, one a device, each joined by a thread of its own. The library is opened here and not by the bindings, which do
//! not know the name that it has when no development files are installed.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys as cuda;
use halyard_gpu::{CollectiveCall, DevicePtr, Group, Stream};
use halyard_platform_api::communicator::CollectiveKind;
use halyard_platform_api::{CommunicatorId, DType, Error, Result, Status};

use crate::error;
use crate::libraries::{NCCL, symbol};

/// How long a rank waits for the others to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

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
                let library = NCCL.open()?;
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

/// Who has joined a group whose id this process made.
struct Meeting {
    size: u32,
    joined: Vec<u32>,
    /// A rank gave up waiting: nobody may go on to the library, whose wait has no end.
    failed: bool,
}

static MEETINGS: Mutex<Option<HashMap<[u8; 128], Meeting>>> = Mutex::new(None);
static JOINED: Condvar = Condvar::new();

/// A fresh id.
pub(crate) fn unique_id() -> Result<CommunicatorId> {
    let nccl = nccl()?;
    let mut id = UniqueId([0; 128]);
    // SAFETY: the output is live.
    let code = unsafe { (nccl.get_unique_id)(&mut id) };
    nccl.check("ncclGetUniqueId", std::ptr::null_mut(), code)?;
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let meeting = Meeting {
        size: 0,
        joined: Vec::new(),
        failed: false,
    };
    meetings.get_or_insert_default().insert(id.0, meeting);
    Ok(CommunicatorId(id.0))
}

/// Waits for the other ranks before the library does, since its own wait has no end. Ids of other processes are left to it.
fn meet(id: &CommunicatorId, rank: u32, size: u32) -> Result<()> {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(meeting) = meetings.get_or_insert_default().get_mut(&id.0) else {
        return Ok(());
    };
    if meeting.joined.is_empty() {
        meeting.size = size;
    }
    if meeting.size != size {
        let others = meeting.size;
        return Err(Error::invalid(format!(
            "rank {rank} joins with size {size}, others with {others}"
        )));
    }
    if meeting.joined.contains(&rank) {
        return Err(Error::invalid(format!(
            "rank {rank} of {size} has joined already; every rank joins once"
        )));
    }
    meeting.joined.push(rank);
    JOINED.notify_all();
    loop {
        let Some(meeting) = meetings.get_or_insert_default().get_mut(&id.0) else {
            return Ok(());
        };
        let joined = meeting.joined.len();
        if joined == size as usize && !meeting.failed {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || meeting.failed {
            meeting.failed = true;
            JOINED.notify_all();
            return Err(Error::new(
                Status::Timeout,
                format!(
                    "{joined} of {size} ranks joined in {} s; each rank must join from a thread of its own",
                    JOIN_TIMEOUT.as_secs()
                ),
            ));
        }
        meetings = JOINED
            .wait_timeout(meetings, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

/// This rank's end.
pub(crate) struct NcclGroup {
    context: usize,
    /// 0 once left.
    comm: AtomicUsize,
    rank: u32,
    size: u32,
}

/// Joins with the device whose context is `context` and current; blocks until all ranks have.
pub(crate) fn join(context: usize, id: &CommunicatorId, rank: u32, size: u32) -> Result<NcclGroup> {
    let nccl = nccl()?;
    meet(id, rank, size)?;
    let mut comm = std::ptr::null_mut();
    // SAFETY: the output is live; the id is one of the library's.
    let code = unsafe { (nccl.init_rank)(&mut comm, size as c_int, UniqueId(id.0), rank as c_int) };
    nccl.check("ncclCommInitRank", std::ptr::null_mut(), code)?;
    Ok(NcclGroup {
        context,
        comm: AtomicUsize::new(comm as usize),
        rank,
        size,
    })
}

impl NcclGroup {
    fn enter(&self) -> Result<()> {
        // SAFETY: the device that this belongs to retains the context.
        error::check("cuCtxSetCurrent", unsafe {
            cuda::cuCtxSetCurrent(self.context as cuda::CUcontext)
        })
    }

    fn comm(&self) -> Result<Comm> {
        match self.comm.load(Ordering::Acquire) {
            0 => Err(Error::new(
                Status::Unavailable,
                format!("rank {} has left its group of {}", self.rank, self.size),
            )),
            comm => Ok(comm as Comm),
        }
    }

    /// Every rank sends part r of its input to rank r.
    unsafe fn all_to_all(&self, nccl: &Nccl, call: &CollectiveCall, stream: *mut c_void) -> Result<()> {
        let (comm, dtype) = (self.comm()?, data_type(call.spec.dtype));
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
        let (comm, stream) = (self.comm()?, stream.0 as *mut c_void);
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
                CollectiveKind::AllToAll => return self.all_to_all(nccl, call, stream),
            }
        };
        nccl.check(name, comm, code)
    }

    fn leave(&self) {
        let (comm, context) = (self.comm.swap(0, Ordering::AcqRel), self.context);
        let Ok(nccl) = nccl() else {
            return;
        };
        if comm == 0 {
            return;
        }
        // The library stops its kernels at once, then waits until no recording names the group: not on the caller's thread, which may
        // hold those recordings. It keeps the device's context itself.
        let abort = move || {
            // SAFETY: takes any context; a dead one is refused, and the library then sets its own.
            unsafe { cuda::cuCtxSetCurrent(context as cuda::CUcontext) };
            // SAFETY: made in `join`, given up once.
            unsafe { (nccl.abort)(comm as Comm) }
        };
        let _ = std::thread::Builder::new().name("nccl-leave".to_string()).spawn(abort);
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        self.leave();
    }
}
