//! Code that all hook plugins (stat loggers, IO processors, LoRA resolvers, logits processors) share: making an object
//! with its configuration, and errors that start with the plugin's name.

use std::ffi::c_void;
use std::sync::Arc;

use halyard_platform_api::abi::{ErrorOut, Str};
use halyard_platform_api::{Error, Result, Status};

use super::{Handle, slot};

/// The slot that makes an object.
type Create = unsafe extern "C" fn(*mut c_void, Str, *mut *mut c_void, *mut ErrorOut) -> u32;

/// A hook plugin, shared by its factory and the objects that it made.
pub(super) struct Hook<T> {
    pub(super) name: String,
    pub(super) table: T,
    instance: Handle,
}

impl<T> Hook<T> {
    /// A started plugin whose table was checked.
    pub(super) fn new(name: String, table: T, instance: *mut c_void) -> Arc<Hook<T>> {
        Arc::new(Hook {
            name,
            table,
            instance: Handle(instance),
        })
    }

    /// A defect of the plugin.
    pub(super) fn defect(&self, message: impl std::fmt::Display) -> Error {
        Error::new(Status::Internal, format!("{}: {message}", self.name))
    }

    /// Calls the plugin; says so where its answer is no status at all.
    pub(super) fn call(&self, function: impl FnOnce(*mut ErrorOut) -> u32) -> Result<()> {
        let mut answered = 0;
        let called = super::call(&self.name, |err| {
            answered = function(err);
            answered
        });
        called.map_err(|error| {
            if Status::ALL.iter().any(|status| *status as u32 == answered) {
                return error;
            }
            let message = format!("{} (it answered {answered}, which is no status)", error.message);
            Error { message, ..error }
        })
    }

    /// Makes an object of the plugin by its table's slot `create`. `kind`: the object, for error texts.
    pub(super) fn create(&self, kind: &str, create: Option<Create>, config: &str) -> Result<Handle> {
        self.create_by(kind, |instance, out, err| {
            // SAFETY: a live instance, a text borrowed for the call, valid output.
            unsafe { slot(create)(instance, Str::new(config), out, err) }
        })
    }

    /// Makes an object of the plugin by `create`, which is given the instance.
    pub(super) fn create_by(
        &self,
        kind: &str,
        create: impl FnOnce(*mut c_void, *mut *mut c_void, *mut ErrorOut) -> u32,
    ) -> Result<Handle> {
        let mut handle = std::ptr::null_mut();
        self.call(|err| create(self.instance.0, &mut handle, err))?;
        if handle.is_null() {
            return Err(self.defect(format_args!("made {kind} that is a null handle")));
        }
        Ok(Handle(handle))
    }
}
