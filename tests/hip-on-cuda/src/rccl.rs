//! RCCL over NCCL: the same calls, types and codes, passed through. Copied to `librccl.so.1` in the same folder as the
//! others. Without NCCL every call fails, and the last error names what is missing.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use halyard_gpu::{Library, symbol};

use crate::cuda::{named, usual};
use crate::{Code, api};

/// `ncclSystemError`: the library beneath is missing.
const SYSTEM_ERROR: Code = 2;

static LIBRARY: Library = Library::new(
    "nccl",
    &[".2", ""],
    "librccl.so over CUDA passes its calls to NCCL; install it (the Python package nvidia-nccl-cu13 brings it), and \
     where it lies in neither the \
     loader's path nor /usr/local/cuda/lib64, name its folder in HALYARD_CUDA_LIBRARY_PATH",
);

/// The library beneath, or what is missing.
fn nccl() -> Result<usize, &'static CStr> {
    static OPENED: OnceLock<Result<usize, CString>> = OnceLock::new();
    let open = || {
        LIBRARY
            .open(named, usual)
            .map_err(|why| CString::new(why.message).unwrap_or_default())
    };
    let opened = OPENED.get_or_init(open);
    opened.as_ref().copied().map_err(CString::as_c_str)
}

fn find(name: &CStr) -> Option<*mut c_void> {
    symbol(nccl().ok()?, name).ok()
}

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) = $nccl:literal;)*) => {
        api! {
            $( fn $name($($arg: $ty),*) -> Code {
                match find($nccl) {
                    // SAFETY: NCCL's function of this name has this type.
                    Some(found) => std::mem::transmute::<*mut c_void,
                        unsafe extern "C" fn($($ty),*) -> Code>(found)($($arg),*),
                    None => SYSTEM_ERROR,
                }
            } )*
        }
    };
}

type From = *const c_void;
type To = *mut c_void;

forward! {
    fn ncclGetUniqueId(id: *mut UniqueId) = c"ncclGetUniqueId";
    fn ncclCommInitRank(comm: *mut usize, size: c_int, id: UniqueId, rank: c_int) = c"ncclCommInitRank";
    fn ncclCommAbort(comm: usize) = c"ncclCommAbort";
    fn ncclGroupStart() = c"ncclGroupStart";
    fn ncclGroupEnd() = c"ncclGroupEnd";
    fn ncclAllReduce(from: From, to: To, count: usize, dtype: c_int, op: c_int, comm: usize,
        stream: usize) = c"ncclAllReduce";
    fn ncclAllGather(from: From, to: To, count: usize, dtype: c_int, comm: usize, stream: usize) = c"ncclAllGather";
    fn ncclReduceScatter(from: From, to: To, count: usize, dtype: c_int, op: c_int, comm: usize,
        stream: usize) = c"ncclReduceScatter";
    fn ncclBroadcast(from: From, to: To, count: usize, dtype: c_int, root: c_int, comm: usize,
        stream: usize) = c"ncclBroadcast";
    fn ncclSend(from: From, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: usize) = c"ncclSend";
    fn ncclRecv(to: To, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: usize) = c"ncclRecv";
}

api! {
    fn ncclGetErrorString(code: Code) -> *const c_char {
        match find(c"ncclGetErrorString") {
            // SAFETY: NCCL's function of this name has this type.
            Some(found) => std::mem::transmute::<To, unsafe extern "C" fn(Code) -> *const c_char>(found)(code),
            None => c"the library beneath is missing".as_ptr(),
        }
    }

    fn ncclGetLastError(comm: usize) -> *const c_char {
        match (nccl(), find(c"ncclGetLastError")) {
            (Err(missing), _) => missing.as_ptr(),
            // SAFETY: NCCL's function of this name has this type.
            (_, Some(found)) => std::mem::transmute::<To, unsafe extern "C" fn(usize) -> *const c_char>(found)(comm),
            (_, None) => c"".as_ptr(),
        }
    }
}
