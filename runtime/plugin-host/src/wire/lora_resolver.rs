//! LoRA resolvers over their table. The caller handles deadlines, joint waiting and the memory of answers.

use std::ffi::{OsString, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use halyard_platform_api::Result;
use halyard_platform_api::abi::Str;
use halyard_platform_api::abi::request_tables::{LoraAnswerWire, LoraQueryWire, LoraResolverTable};
use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};

use super::hook::Hook;
use super::{Handle, slot};

/// Longest path that a resolver may answer, in bytes (the system's own limit).
const MAX_PATH_BYTES: usize = 4096;

/// A LoRA-resolver plugin.
pub struct HostLoraResolverFactory {
    shared: Arc<Hook<LoraResolverTable>>,
}

impl HostLoraResolverFactory {
    pub(crate) fn new(name: String, table: LoraResolverTable, instance: *mut c_void) -> HostLoraResolverFactory {
        HostLoraResolverFactory {
            shared: Hook::new(name, table, instance),
        }
    }
}

impl LoraResolverFactory for HostLoraResolverFactory {
    fn create(&self, config: &str) -> Result<Arc<dyn LoraResolver>> {
        let shared = self.shared.clone();
        let handle = shared.create("a resolver", shared.table.create, config)?;
        Ok(Arc::new(HostLoraResolver { shared, handle }))
    }
}

/// A resolver of a plugin.
struct HostLoraResolver {
    shared: Arc<Hook<LoraResolverTable>>,
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
        shared.call(|err| unsafe { slot(shared.table.resolve)(self.handle.0, &wire, &mut answer, err) })?;
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
