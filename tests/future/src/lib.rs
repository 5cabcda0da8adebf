//! Contracts of tomorrow, spoken with today's binaries: [`host`] stands between this host and a plugin and passes on
//! every call as a later host would make it, [`plugin`] answers as a later plugin would. Structs have fields more,
//! arrays other strides, outputs more room, ops more operands, programs ops that nobody knows yet.
//!
//! What a plugin sees are the bytes that a later contract would send; no second build of the contract is needed, and
//! every struct that exists is covered because it is described (`AbiLayout`).

pub mod host;
pub mod library;

use std::sync::{Mutex, PoisonError};

use halyard_platform_api::abi::AbiLayout;

/// Plugins that one process can put behind a proxy of each kind. A table's functions carry no context, so each has its
/// own copy of them.
pub const SLOTS: usize = 8;

/// A struct as a later contract has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Newer<T> {
    /// What this contract knows of it.
    pub known: T,
    /// Fields that were appended.
    pub more: [u64; 4],
}

impl<T: AbiLayout> Newer<T> {
    /// The same with its new fields not used.
    pub fn of(known: T) -> Newer<T> {
        let mut newer = Newer { known, more: [0; 4] };
        newer.set_size();
        newer
    }

    /// Copies the struct at `ptr`.
    ///
    /// # Safety
    /// `ptr` points to one.
    pub unsafe fn read(ptr: *const T) -> Newer<T> {
        // SAFETY: as the caller promises.
        Newer::of(unsafe { ptr.read() })
    }

    fn set_size(&mut self) {
        // SAFETY: every sized struct starts with its size.
        unsafe { *(&raw mut self.known).cast::<u32>() = size_of::<Self>() as u32 };
    }
}

static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes what a plugin did that a later host could not live with.
pub(crate) fn violation(what: impl Into<String>) {
    let mut all = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(what.into());
}

/// What plugins behind [`host`] did wrong since the last call.
pub fn violations() -> Vec<String> {
    std::mem::take(&mut *VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner))
}
