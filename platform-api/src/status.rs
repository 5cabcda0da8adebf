//! The closed list of statuses, and the error that crosses the boundary as (status, vendor code, text).

use std::fmt;

use crate::abi::coded_enum;

coded_enum! {
    /// What went wrong, as a closed list: what it has no word for is an internal error, and so is an unknown code.
    pub enum Status {
        /// Success.
        Ok = 0,
        /// An argument is outside what the function documents. The caller has a bug or passed on bad input.
        InvalidArgument = 1,
        /// Understood, and not offered here; the text says why.
        Unsupported = 2,
        /// Device or host memory is exhausted; the text says how much was asked and how much was free.
        OutOfMemory = 3,
        /// The device is gone; every object opened on it is dead.
        DeviceLost = 4,
        /// A name or index that does not exist.
        NotFound = 5,
        /// Versions or layouts do not fit together.
        Incompatible = 6,
        /// The deadline passed; the work goes on.
        Timeout = 7,
        /// The caller asked to stop.
        Cancelled = 8,
        /// An earlier panic left this handle unusable.
        Poisoned = 9,
        /// No device, driver or library of this kind on this machine.
        Unavailable = 10,
        /// Refused by policy (allow-list, permissions).
        Denied = 11,
        /// A defect of the callee.
        Internal = 12,
        /// The callee's code panicked or threw during this call; the handle that it was called on is poisoned.
        Panicked = 13,
    }
}

impl Status {
    /// All statuses, in code order.
    pub const ALL: [Status; 14] = [
        Status::Ok,
        Status::InvalidArgument,
        Status::Unsupported,
        Status::OutOfMemory,
        Status::DeviceLost,
        Status::NotFound,
        Status::Incompatible,
        Status::Timeout,
        Status::Cancelled,
        Status::Poisoned,
        Status::Unavailable,
        Status::Denied,
        Status::Internal,
        Status::Panicked,
    ];

    /// The status of a wire code; an unknown code is [`Status::Internal`], as the list is closed.
    pub fn from_code(code: u32) -> Status {
        Status::ALL.get(code as usize).copied().unwrap_or(Status::Internal)
    }
}

/// An error of the contract: what kind, the vendor's own code if any, and words for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub status: Status,
    /// The vendor's own code, 0 where there is none.
    pub vendor_code: i64,
    /// What was asked, what was found, what to do.
    pub message: String,
}

impl Error {
    /// An error of `status` with words.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Error {
            status,
            vendor_code: 0,
            message: message.into(),
        }
    }

    /// [`Status::InvalidArgument`] with words.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(Status::InvalidArgument, message)
    }

    /// [`Status::Unsupported`] with the reason.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Error::new(Status::Unsupported, message)
    }

    /// Whether it tells of a panic: one of this call, or an earlier one on the same handle.
    pub fn is_panic(&self) -> bool {
        matches!(self.status, Status::Panicked | Status::Poisoned)
    }

    /// [`Status::OutOfMemory`] with the arithmetic.
    pub fn out_of_memory(message: impl Into<String>) -> Self {
        Error::new(Status::OutOfMemory, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.status, self.message)?;
        if self.vendor_code != 0 {
            write!(f, " (vendor code {})", self.vendor_code)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The contract's result.
pub type Result<T> = std::result::Result<T, Error>;
