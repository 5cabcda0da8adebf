//! LoRA resolvers over their table. Deadlines, waiting together and remembering are the caller's.

use std::ffi::{OsString, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use halyard_platform_api::abi::Str;
use halyard_platform_api::abi::request_tables::{LoraAnswerWire, LoraQueryWire, LoraResolverTable};
use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};
use halyard_platform_api::{Error, Result, Status};

use super::{Handle, call, slot};

/// Longest path that a resolver may answer, in bytes (the system's own limit).
const MAX_PATH_BYTES: usize = 4096;

struct Shared {
    name: String,
    table: LoraResolverTable,
    instance: Handle,
}

impl Shared {
    /// A defect of the plugin.
    fn defect(&self, message: impl std::fmt::Display) -> Error {
        Error::new(Status::Internal, format!("{}: {message}", self.name))
    }
}

/// A LoRA-resolver plugin.
pub struct HostLoraResolverFactory {
    shared: Arc<Shared>,
}

impl HostLoraResolverFactory {
    pub(crate) fn new(name: String, table: LoraResolverTable, instance: *mut c_void) -> HostLoraResolverFactory {
        HostLoraResolverFactory {
            shared: Arc::new(Shared {
                name,
                table,
                instance: Handle(instance),
            }),
        }
    }
}

impl LoraResolverFactory for HostLoraResolverFactory {
    fn create(&self, config: &str) -> Result<Arc<dyn LoraResolver>> {
        let shared = &self.shared;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live instance, a text borrowed for the call, valid output.
        call(&shared.name, |err| unsafe {
            slot(shared.table.create)(shared.instance.0, Str::new(config), &mut handle, err)
        })?;
        if handle.is_null() {
            return Err(shared.defect("made a resolver that is a null handle"));
        }
        Ok(Arc::new(HostLoraResolver {
            shared: shared.clone(),
            handle: Handle(handle),
        }))
    }
}

/// A resolver of a plugin.
struct HostLoraResolver {
    shared: Arc<Shared>,
    handle: Handle,
}

impl LoraResolver for HostLoraResolver {
    fn resolve(&self, query: &LoraQuery<'_>) -> Result<Option<PathBuf>> {
        let shared = &self.shared;
        let wire = LoraQueryWire {
            timeout_ms: query.timeout_ms,
            name: Str::new(query.name),
            base_model: Str::new(query.base_model),
            ..LoraQueryWire::zeroed()
        };
        let mut path = vec![0u8; MAX_PATH_BYTES];
        let mut answer = LoraAnswerWire {
            path: path.as_mut_ptr(),
            path_capacity: MAX_PATH_BYTES as u32,
            ..LoraAnswerWire::zeroed()
        };
        // SAFETY: a live resolver, texts borrowed for the call, a sized answer over a buffer of the stated capacity.
        call(&shared.name, |err| unsafe {
            slot(shared.table.resolve)(self.handle.0, &wire, &mut answer, err)
        })?;
        if answer.found == 0 {
            return Ok(None);
        }
        let len = answer.path_len as usize;
        if answer.found != 1 || len > MAX_PATH_BYTES {
            return Err(shared.defect(format_args!(
                "answered found {} with a path of {len} bytes",
                answer.found
            )));
        }
        path.truncate(len);
        let path = PathBuf::from(OsString::from_vec(path));
        if !path.is_absolute() {
            return Err(shared.defect(format_args!("answered {path:?}, which is no absolute path")));
        }
        Ok(Some(path))
    }
}

impl Drop for HostLoraResolver {
    fn drop(&mut self) {
        // SAFETY: a live resolver, used no more.
        unsafe { slot(self.shared.table.drop)(self.handle.0) };
    }
}
