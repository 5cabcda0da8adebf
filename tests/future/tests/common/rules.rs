//! The rules of sizes, each as a check of any struct.
#![allow(dead_code, reason = "each test binary uses a part")]

use halyard_future::Newer;
use halyard_platform_api::abi::AbiLayout;
use halyard_platform_api::{Error, Status};

/// A call that must fail with this status and with words.
#[track_caller]
pub fn refused<R>(what: &str, status: Status, result: Result<R, Error>) {
    let Err(error) = result else {
        panic!("{what}: not refused");
    };
    assert_eq!(error.status, status, "{what}: {error}");
    assert!(
        error.message.len() > 10 && error.message != "no message was given",
        "{what}: {error}"
    );
}

/// A struct that asks. With a field set that the plugin cannot know, wherever it lies, it is refused with words.
/// Shorter than it ever was, it is an invalid argument. At its own size and larger it is taken. `call` passes it and
/// checks that a refusal changed nothing; what the last call made is returned.
#[track_caller]
pub fn asks<T: AbiLayout, R>(known: T, call: impl Fn(&Newer<T>) -> Result<R, Error>) -> R {
    let name = T::layout().name;
    for (at, value) in [(0, 1), (1, u64::MAX), (3, 1 << 63)] {
        let mut later = Newer::of(known);
        later.more[at] = value;
        refused(name, Status::Unsupported, call(&later));
    }
    refused(
        name,
        Status::InvalidArgument,
        call(&Newer::of(known).stating(T::MIN_SIZE - 4)),
    );
    drop(call(&Newer::of(known)).unwrap_or_else(|e| panic!("{name} with room for more: {e}")));
    call(&Newer::of(known).stating(size_of::<T>())).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A struct that the plugin fills: a larger one as far as it knows it, one that is shorter than it ever was not at all.
#[track_caller]
pub fn gives<T: AbiLayout>(out: T, call: impl Fn(*mut T) -> Result<(), Error>) -> T {
    let name = T::layout().name;
    let mut larger = Newer::marked(out);
    let more = larger.more;
    call(larger.out()).unwrap_or_else(|e| panic!("{name} with more room: {e}"));
    assert_eq!(larger.more, more, "{name}: written past what the plugin knows");
    let mut short = Newer::marked(out).stating(T::MIN_SIZE - 4);
    let before = bytes(&short);
    refused(name, Status::InvalidArgument, call(short.out()));
    assert_eq!(bytes(&short), before, "{name}: written though it is too short");
    larger.known
}

/// The bytes of a struct.
pub fn bytes<T: AbiLayout>(newer: &Newer<T>) -> Vec<u8> {
    // SAFETY: plain data without holes.
    unsafe { std::slice::from_raw_parts(newer.ptr().cast::<u8>(), size_of::<Newer<T>>()) }.to_vec()
}
