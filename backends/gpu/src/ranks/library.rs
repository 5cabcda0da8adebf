//! The vendor's library of collectives: NCCL, or RCCL, which has the same functions under the same names with the same
//! codes. So one table serves both, loaded by the platform that found the library. The library's configuration struct,
//! which differs between versions, is not used.

use std::ffi::{CStr, c_char, c_int, c_void};

use halyard_platform_api::{DType, Error, Result, Status};

use crate::libraries::{find_symbol, symbol};

const SUCCESS: c_int = 0;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// The library's handle of a rank.
pub(super) type Comm = *mut c_void;

/// The library's `ncclUniqueId`, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// An open library of collectives.
        pub struct CollectiveLibrary {
            words: Words,
            $( pub(super) $field: unsafe extern "C" fn($($arg),*) -> $out, )*
        }

        impl CollectiveLibrary {
            /// The table of an open library; `name` is for messages.
            ///
            /// # Errors
            /// `Unavailable` naming a function that it lacks.
            pub fn in_library(library: usize, name: &'static str) -> Result<CollectiveLibrary> {
                let words = Words::in_library(library, name)?;
                // SAFETY: the symbols have these types in every version of either library since 2.7.
                unsafe { Ok(CollectiveLibrary { words, $(
                    $field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $out>(
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
    group_start = c"ncclGroupStart": fn() -> c_int;
    group_end = c"ncclGroupEnd": fn() -> c_int;
    all_reduce = c"ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    all_gather = c"ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> c_int;
    reduce_scatter = c"ncclReduceScatter":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    broadcast = c"ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    send = c"ncclSend": fn(*const c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
    recv = c"ncclRecv": fn(*mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
}

impl CollectiveLibrary {
    /// The error of `call`, if `code` is one. `comm` may be null.
    pub(super) fn check(&self, call: &str, comm: Comm, code: c_int) -> Result<()> {
        self.words.check(call, comm, code)
    }
}

/// How the library says what went wrong.
struct Words {
    name: &'static str,
    kind: KindFn,
    /// Not in older libraries (NCCL has it since 2.13).
    last: Option<LastFn>,
}

type KindFn = unsafe extern "C" fn(c_int) -> *const c_char;
type LastFn = unsafe extern "C" fn(Comm) -> *const c_char;

impl Words {
    fn in_library(library: usize, name: &'static str) -> Result<Words> {
        let kind = symbol(library, c"ncclGetErrorString")?;
        let last = find_symbol(library, c"ncclGetLastError");
        // SAFETY: the symbols have these types in every version of either library.
        unsafe {
            Ok(Words {
                name,
                kind: std::mem::transmute::<*mut c_void, KindFn>(kind),
                last: last.map(|last| std::mem::transmute::<*mut c_void, LastFn>(last)),
            })
        }
    }

    fn check(&self, call: &str, comm: Comm, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: the library's texts end in 0 and live as long as it.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        // SAFETY: takes any code.
        let kind = text(unsafe { (self.kind)(code) });
        // SAFETY: takes any live rank or null.
        let last = self.last.map(|last| text(unsafe { last(comm) })).unwrap_or_default();
        let last = if last.is_empty() { "no more words" } else { &last };
        // 1: a call of the driver failed, which leaves the device in doubt.
        let status = match code {
            1 => Status::DeviceLost,
            _ => Status::Internal,
        };
        let name = self.name;
        Err(Error {
            vendor_code: i64::from(code),
            ..Error::new(
                status,
                format!("{call} of {name} answered {code} ({kind}): {last}; run with NCCL_DEBUG=WARN to see more"),
            )
        })
    }
}

/// The library's `ncclDataType_t`. Its 8-bit floats have other names and numbers in each version, and no collective
/// computes in them here.
pub(super) fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 0,
        // One byte of whatever meaning: collectives that do not compute move it.
        DType::U8 | DType::F8E4M3 | DType::U4 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::BF16 => 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(last: Option<LastFn>) -> Words {
        extern "C" fn kind(_: c_int) -> *const c_char {
            c"the kind".as_ptr()
        }
        Words {
            name: "ZCCL",
            kind,
            last,
        }
    }

    fn error(words: &Words, code: c_int) -> Error {
        words.check("ncclX", std::ptr::null_mut(), code).expect_err("not 0")
    }

    #[test]
    fn an_answer_becomes_an_error_with_the_librarys_words() {
        extern "C" fn last(_: Comm) -> *const c_char {
            c"what happened".as_ptr()
        }
        let words = words(Some(last));
        assert!(words.check("ncclX", std::ptr::null_mut(), 0).is_ok());
        let internal = error(&words, 3);
        assert_eq!((internal.status, internal.vendor_code), (Status::Internal, 3));
        let start = "ncclX of ZCCL answered 3 (the kind): what happened";
        assert!(internal.message.starts_with(start), "{internal}");
        assert_eq!(
            error(&words, 1).status,
            Status::DeviceLost,
            "a call of the driver failed"
        );
    }

    #[test]
    fn a_library_too_old_for_last_words_still_gives_an_error() {
        let old = error(&words(None), 5);
        assert!(old.message.contains("answered 5 (the kind): no more words"), "{old}");
    }

    #[test]
    fn a_library_that_is_none_is_refused_by_what_it_lacks() {
        static C: crate::Library = crate::Library::new("c", &[".6", ""], "install it");
        let handle = C.open(Vec::new, Vec::new).expect("every process has a C library");
        let error = CollectiveLibrary::in_library(handle, "ZCCL").err().expect("refused");
        assert_eq!(error.status, Status::Unavailable);
        assert!(error.message.contains("lacks ncclGet"), "{error}");
    }
}
