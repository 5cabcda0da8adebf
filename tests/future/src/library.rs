//! A plugin's library, opened without a host: its entry, its manifest, and its tables for calls by hand.

use std::ffi::c_void;
use std::path::Path;

use halyard_platform_api::abi::tables::{ABI_MAJOR, ABI_MINOR, EntryFn, Host, InterfaceFn, Plugin};
use halyard_platform_api::abi::{AbiTable, ErrorOut};
use halyard_plugin_host::{Catalog, Manifest, SearchPath};

/// The entry and the manifest of the only plugin in a library. The library is never closed.
///
/// # Errors
/// In words.
pub fn open(path: &Path) -> Result<(EntryFn, Manifest), String> {
    let search = SearchPath {
        plugins: vec![path.to_path_buf()],
        ..SearchPath::default()
    };
    let catalog = Catalog::discover(&search);
    let candidate = catalog.candidates().first().ok_or("no plugin is there")?;
    // SAFETY: a library of this workspace, whose initialisers do nothing.
    let library = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
    let library = Box::leak(Box::new(library));
    // SAFETY: by the contract the symbol that a manifest names has this type.
    let entry = unsafe { library.get::<EntryFn>(candidate.manifest.entry.as_bytes()) }.map_err(|e| e.to_string())?;
    Ok((*entry, candidate.manifest.clone()))
}

/// A plugin that was entered by hand.
pub struct Entered {
    /// Its instance.
    pub instance: *mut c_void,
    find: InterfaceFn,
}

impl Entered {
    /// Enters a plugin as a plain host of this contract does.
    ///
    /// # Errors
    /// The plugin's words.
    pub fn new(entry: EntryFn) -> Result<Entered, String> {
        let mut host = Host::zeroed();
        (host.abi_major, host.abi_minor_min, host.abi_minor_max) = (ABI_MAJOR, ABI_MINOR, ABI_MINOR);
        let host = Box::leak(Box::new(host));
        let mut out = Plugin::zeroed();
        told(|err| {
            // SAFETY: sized structs, and a host table that lives for ever.
            unsafe { entry(host, &mut out, err) }
        })?;
        let find = out.find_interface.ok_or("no function that finds interfaces")?;
        Ok(Entered {
            instance: out.instance,
            find,
        })
    }

    /// A copy of a table.
    ///
    /// # Errors
    /// The plugin's words.
    pub fn table<T: AbiTable>(&self) -> Result<T, String> {
        let (major, minor) = T::table_layout().version;
        let mut table = std::ptr::null();
        told(|err| {
            // SAFETY: the plugin's function and instance, valid outputs.
            unsafe { (self.find)(self.instance, T::ID, major, minor, &mut table, err) }
        })?;
        // SAFETY: a table of the plugin.
        unsafe { T::load(table.cast()) }.map_err(|e| e.to_string())
    }
}

/// Calls a function of a plugin; its status and words where it fails.
///
/// # Errors
/// `STATUS: words`.
pub fn told(function: impl FnOnce(*mut ErrorOut) -> u32) -> Result<(), String> {
    let mut text = [0; 4096];
    let mut err = ErrorOut::over(&mut text);
    match function(&mut err) {
        0 => Ok(()),
        // SAFETY: the text is the buffer above.
        code => Err(unsafe { err.load(code) }.to_string()),
    }
}
