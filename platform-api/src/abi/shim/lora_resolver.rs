//! The LoRA-resolver table.

use std::ffi::c_void;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::{Handle, put};
use crate::abi::Str;
use crate::abi::request_tables::{LoraAnswerWire, LoraQueryWire, LoraResolverTable};
use crate::abi::types::{ErrorOut, read_known, write_struct};
use crate::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};
use crate::status::Error;

/// The plugin's root.
pub(super) type FactoryState = Arc<dyn LoraResolverFactory>;

type ResolverHandle = Handle<Arc<dyn LoraResolver>>;

/// The table over any [`LoraResolverFactory`].
pub(super) static TABLE: LoraResolverTable = LoraResolverTable {
    struct_size: size_of::<LoraResolverTable>() as u32,
    minor: LoraResolverTable::VERSION.1,
    create: Some(create),
    drop: Some(ResolverHandle::release_c),
    resolve: Some(resolve),
};

unsafe extern "C" fn create(instance: *mut c_void, config: Str, out: *mut *mut c_void, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live instance, a valid text and valid outputs.
    unsafe {
        Handle::<FactoryState>::with(instance, err, |factory| {
            let resolver = factory.create(&config.to_text())?;
            put(out, ResolverHandle::into_raw(resolver))
        })
    }
}

unsafe extern "C" fn resolve(
    resolver: *mut c_void,
    query: *const LoraQueryWire,
    out: *mut LoraAnswerWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live resolver, a sized query with valid texts, and a sized answer with a valid
    // buffer.
    unsafe {
        ResolverHandle::with(resolver, err, |resolver| {
            let wire = read_known(query)?;
            let mut answer = read_known(out.cast_const())?;
            let found = resolver.resolve(&LoraQuery {
                name: &wire.name.to_text(),
                base_model: &wire.base_model.to_text(),
                timeout_ms: wire.timeout_ms,
            })?;
            let path = found.as_deref().map_or(&[][..], |path| path.as_os_str().as_bytes());
            if path.len() > answer.path_capacity as usize || (answer.path.is_null() && !path.is_empty()) {
                return Err(Error::invalid(format!(
                    "the adapter's path has {} bytes, the host takes {}",
                    path.len(),
                    answer.path_capacity
                )));
            }
            if !path.is_empty() {
                std::ptr::copy_nonoverlapping(path.as_ptr(), answer.path, path.len());
            }
            answer.found = u32::from(found.is_some());
            answer.path_len = path.len() as u32;
            write_struct(out, &answer)
        })
    }
}
