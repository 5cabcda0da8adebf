//! A driver's handles and addresses as numbers, and parameters of kernels. The owner of a handle keeps the order
//! of creation and destruction.

use std::ffi::c_void;

use halyard_platform_api::{Error, Result};

/// Most parameters of a kernel.
pub const MAX_ARGS: usize = 48;

/// An address in device memory (or of pinned host memory as the device sees it).
pub type DevicePtr = u64;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        $( $(#[$meta])* #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)] pub struct $name(pub usize); )*
    };
}

handles! {
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// Loaded device code.
    Module,
    /// An entry point of a module.
    Function,
    /// An executable graph.
    Graph,
}

/// Pinned host memory that the device can address.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// For the host.
    pub host: *mut u8,
    /// For kernels.
    pub device: DevicePtr,
}

// SAFETY: two addresses; their users order the accesses.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// Rows of a box that the copy engine brings at a time, and their values.
pub const BOX: [u32; 2] = [128, 64];

/// 16-bit matrices as the copy engine takes them, in boxes of [`BOX`]: hopper.cuh's `Boxes`.
#[derive(Clone, Copy, Debug)]
pub struct Boxes(pub [u8; 128]);

/// A kernel parameter's value.
#[derive(Clone, Copy, Debug)]
pub enum Param<'a> {
    /// An address in device or pinned memory; 0: absent.
    Ptr(DevicePtr),
    /// Four bytes: an integer, or a float's bits.
    Word(u32),
    /// Eight bytes that are no address.
    Long(u64),
    /// A struct by value.
    Bytes(&'a [u8]),
}

/// Where each parameter's value lies: how C drivers take parameters. Valid as long as the parameters are.
///
/// # Errors
/// `InvalidArgument` for more parameters than fit.
pub fn param_addresses(params: &[Param<'_>]) -> Result<[*mut c_void; MAX_ARGS]> {
    if params.len() > MAX_ARGS {
        return Err(Error::invalid(format!(
            "a kernel of {} parameters; at most {MAX_ARGS} fit",
            params.len()
        )));
    }
    let mut addresses = [std::ptr::null_mut(); MAX_ARGS];
    for (address, param) in addresses.iter_mut().zip(params) {
        *address = match param {
            Param::Ptr(value) | Param::Long(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Param::Word(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Param::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
        };
    }
    Ok(addresses)
}
