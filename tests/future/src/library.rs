//! A plugin's library, opened without a host: where it lies, its entry and its manifest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use halyard_platform_api::Platform;
use halyard_platform_api::abi::tables::EntryFn;
use halyard_plugin_host::{Catalog, Manifest, Plugin, SearchPath};

use crate::{host, plugin};

/// The only plugin of a library.
#[derive(Clone, Debug)]
pub struct Library {
    /// Its entry.
    pub entry: EntryFn,
    /// What it says of itself.
    pub manifest: Manifest,
}

impl Library {
    /// Opens a library, which is never closed.
    ///
    /// # Panics
    /// When it is no library with a plugin.
    pub fn open(path: &Path) -> Library {
        let search = SearchPath {
            plugins: vec![path.to_path_buf()],
            ..SearchPath::default()
        };
        let catalog = Catalog::discover(&search);
        let manifest = match catalog.candidates() {
            [only] => only.manifest.clone(),
            _ => panic!("{}: {:?}", path.display(), catalog.failures().collect::<Vec<_>>()),
        };
        // SAFETY: a library of this workspace, whose initialisers do nothing.
        let library = unsafe { libloading::Library::new(path) };
        let library = Box::leak(Box::new(library.unwrap_or_else(|e| panic!("{}: {e}", path.display()))));
        // SAFETY: by the contract the symbol that a manifest names has this type.
        let entry = unsafe { library.get::<EntryFn>(manifest.entry.as_bytes()) };
        let entry = *entry.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Library { entry, manifest }
    }

    /// The library of a backend of this workspace, which cargo puts beside a test's own binary.
    ///
    /// # Panics
    /// As [`Library::open`].
    pub fn built(name: &str) -> Library {
        let test = std::env::current_exe().expect("a running test has a path");
        Library::open(&test.with_file_name(format!("libhalyard_{name}.so")))
    }

    /// The platform as this host has it behind a host of a later contract.
    ///
    /// # Panics
    /// When the plugin does not load.
    pub fn under_a_later_host(&self) -> Arc<dyn Platform> {
        let plugin = Plugin::from_entry(host::around(self.entry), self.manifest.clone());
        plugin.and_then(|p| p.platform()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The plugin as a later one, with the manifest that it would have.
    ///
    /// # Errors
    /// What this host says.
    pub fn as_a_later_plugin(&self, is: plugin::Is) -> Result<Plugin, String> {
        let section = plugin::manifest_section(&self.manifest);
        let mut read = Manifest::parse_section(section.as_bytes())?;
        let manifest = read.pop().filter(|_| read.is_empty()).ok_or("one is for this host")?;
        Plugin::from_entry(plugin::around(self.entry, is), manifest).map_err(|e| e.to_string())
    }
}

/// Compiles a C file of the repository as `folder/lib<its name>.so`.
///
/// # Panics
/// With the compiler's words.
pub fn compile(source: &str, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let stem = Path::new(source).file_stem().expect("a file's name").to_string_lossy();
    let out = folder.join(format!("lib{stem}.so"));
    let built = Command::new("cc")
        .args([
            "-std=c99",
            "-Wall",
            "-Werror",
            "-Wno-unused-function",
            "-O1",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .arg(root.join("platform-api/include"))
        .arg(root.join(source))
        .arg("-o")
        .arg(&out)
        .output()
        .expect("cc is needed for this test");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    out
}
