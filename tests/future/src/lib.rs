//! Contracts of tomorrow, spoken with today's binaries: [`host`] stands between this host and a plugin and passes on
//! every call as a later host would make it, [`plugin`] answers as a later plugin would, [`by_hand`] calls bare tables
//! with whatever a test makes up. Structs have fields more, arrays other strides, outputs more room, ops more operands,
//! programs ops that nobody knows yet.
//!
//! What a plugin sees are the bytes that a later contract would send; no second build of the contract is needed.

pub mod by_hand;
pub mod host;
pub mod library;
pub mod plugin;
pub mod program;

use std::sync::{Mutex, PoisonError};

use halyard_platform_api::abi::AbiLayout;
use halyard_platform_api::abi::tables::EntryFn;

/// Plugins that one process can put behind a proxy of each kind. A table's functions carry no context, so each has its
/// own copy of them.
pub const SLOTS: usize = 8;
/// What the room of an output beyond what today's contract knows is filled with.
pub const UNTOUCHED: u64 = 0xA5A5_5A5A_A5A5_5A5A;
/// An interface of a later contract.
pub const LATER_INTERFACE: u32 = 77;
/// An op of a later catalogue.
pub const LATER_OP: u32 = 999;
/// A way to use an operand that nobody knows yet.
pub const LATER_ACCESS: u8 = 9;
/// A value that no enum of today's contract has.
pub const LATER_VALUE: u32 = 99;

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
        const { assert!(size_of::<T>().is_multiple_of(8), "the new fields would follow a hole") };
        let newer = Newer { known, more: [0; 4] };
        newer.stating(size_of::<Newer<T>>())
    }

    /// An output whose room beyond today's contract is marked.
    pub fn marked(known: T) -> Newer<T> {
        Newer {
            more: [UNTOUCHED; 4],
            ..Newer::of(known)
        }
    }

    /// The same with another size stated.
    pub fn stating(mut self, size: usize) -> Newer<T> {
        // SAFETY: every sized struct starts with its size.
        unsafe { *(&raw mut self).cast::<u32>() = size as u32 };
        self
    }

    /// Copies the struct at `ptr`.
    ///
    /// # Safety
    /// `ptr` points to one.
    pub unsafe fn read(ptr: *const T) -> Newer<T> {
        // SAFETY: as the caller promises.
        Newer::of(unsafe { ptr.read() })
    }

    /// As it is passed to a function.
    pub fn ptr(&self) -> *const T {
        (&raw const *self).cast()
    }

    /// As an output.
    pub fn out(&mut self) -> *mut T {
        (&raw mut *self).cast()
    }
}

/// The place of a plugin among those that a proxy stands around.
fn slot_of(entry: EntryFn, used: &Mutex<Vec<usize>>) -> usize {
    let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
    let known = used.iter().position(|address| *address == entry as usize);
    let slot = known.unwrap_or_else(|| {
        used.push(entry as usize);
        used.len() - 1
    });
    assert!(slot < SLOTS, "more than {SLOTS} plugins behind a proxy");
    slot
}

static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes what a plugin did that a later host could not live with.
pub(crate) fn violation(what: impl Into<String>) {
    let mut all = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(what.into());
}

/// What plugins did so far in this process that a later host could not live with.
pub fn violations() -> Vec<String> {
    VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
