//! The vendor's libraries, found at run time: which are there, and what to do about one that is not. The bindings panic when a library
//! or a symbol is missing, so everything is looked for here before it is called.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::driver::sys as cuda;
use halyard_platform_api::{Error, Result, Status};

use crate::error::check;
use crate::surroundings::{named_library_folders, usual_library_folders};

/// Oldest driver: it speaks CUDA 12.4, whose functions this platform calls.
const OLDEST_DRIVER: i32 = 12040;

/// Functions beyond what every driver of that age has; a library without them is no driver.
const SYMBOLS: &[&[u8]] = &[
    b"cuInit",
    b"cuDeviceGetCount",
    b"cuMemAlloc_v2",
    b"cuLaunchKernelEx",
    b"cuFuncLoad",
    b"cuStreamBeginCapture_v2",
    b"cuGraphInstantiateWithFlags",
    b"cuStreamWriteValue64_v2",
];

fn unavailable(message: impl Into<String>) -> Error {
    Error::new(Status::Unavailable, message)
}

/// The driver, started once a process.
///
/// # Errors
/// `Unavailable` with what was found and what to install.
pub(crate) fn driver() -> Result<()> {
    static DRIVER: OnceLock<Result<()>> = OnceLock::new();
    DRIVER.get_or_init(start_driver).clone()
}

fn start_driver() -> Result<()> {
    // SAFETY: loads libcuda, whose initialisers have no preconditions.
    if !unsafe { cuda::is_culib_present() } {
        return Err(unavailable(
            "no libcuda.so.1 (NVIDIA driver) was found: install the NVIDIA driver; in a container, start it with the GPU (for \
             example `--gpus all`)",
        ));
    }
    // SAFETY: the library is there; asking for symbols has no effect.
    let library = unsafe { cuda::culib() };
    // SAFETY: the symbol is looked up, never called, through this type.
    let has = |name: &[u8]| unsafe { library.get::<unsafe extern "C" fn()>(name) }.is_ok();
    let mut version = 0;
    if has(b"cuDriverGetVersion") {
        // SAFETY: the output is a live integer.
        check("cuDriverGetVersion", unsafe { cuda::cuDriverGetVersion(&mut version) })?;
    }
    if version < OLDEST_DRIVER {
        return Err(unavailable(format!(
            "the NVIDIA driver is too old: it supports CUDA {}, and CUDA {} is needed; install driver 550 or newer",
            version_text(version),
            version_text(OLDEST_DRIVER)
        )));
    }
    if let Some(missing) = SYMBOLS.iter().find(|name| !has(name)) {
        return Err(unavailable(format!(
            "libcuda.so.1 says CUDA {} and lacks {}: the driver's installation is broken or a stub; install the NVIDIA driver anew",
            version_text(version),
            String::from_utf8_lossy(missing)
        )));
    }
    // SAFETY: flags must be 0.
    check("cuInit", unsafe { cuda::cuInit(0) }).map_err(|e| Error {
        status: Status::Unavailable,
        ..e
    })
}

/// Whether the driver has the functions with which devices address each other's memory.
pub(crate) fn reaches_peers() -> bool {
    // SAFETY: the driver is up, as a device of it is open; asking for symbols has no effect.
    let library = unsafe { cuda::culib() };
    let has = |name: &&[u8]| {
        // SAFETY: the symbol is looked up, never called, through this type.
        unsafe { library.get::<unsafe extern "C" fn()>(*name) }.is_ok()
    };
    [&b"cuDeviceCanAccessPeer"[..], b"cuCtxEnablePeerAccess"]
        .iter()
        .all(has)
}

/// The CUDA version that the driver supports, as text.
pub(crate) fn driver_version() -> String {
    let mut version = 0;
    // SAFETY: the output is a live integer; a failure leaves 0.
    unsafe { cuda::cuDriverGetVersion(&mut version) };
    version_text(version)
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// A library beside the driver.
pub(crate) struct Library {
    /// As in `lib<name>.so`.
    name: &'static str,
    /// Whether the bindings find it now; `None` where they are not used.
    present: Option<unsafe fn() -> bool>,
    /// Versions it may end in, the preferred first.
    endings: &'static [&'static str],
    /// Python package that brings it.
    package: &'static str,
    /// The loader's handle, or 1 where the bindings find it by themselves.
    found: OnceLock<Option<usize>>,
}

/// The run-time compiler.
pub(crate) static NVRTC: Library = Library {
    name: "nvrtc",
    present: Some(cudarc::nvrtc::sys::is_culib_present),
    endings: &[".13", ".12", ""],
    package: "nvidia-cuda-nvrtc",
    found: OnceLock::new(),
};

/// Matrix products.
pub(crate) static CUBLASLT: Library = Library {
    name: "cublasLt",
    present: Some(cudarc::cublaslt::sys::is_culib_present),
    endings: &[".13", ".12", ""],
    package: "nvidia-cublas",
    found: OnceLock::new(),
};

/// Collectives.
pub(crate) static NCCL: Library = Library {
    name: "nccl",
    present: None,
    endings: &[".2", ""],
    package: "nvidia-nccl-cu13",
    found: OnceLock::new(),
};

impl Library {
    /// Makes the library known to the process.
    ///
    /// # Errors
    /// `Unavailable` naming it and how to get it.
    pub(crate) fn require(&self) -> Result<()> {
        self.open().map(|_| ())
    }

    /// As [`Library::require`]; for a library without bindings, its handle.
    pub(crate) fn open(&self) -> Result<usize> {
        let found = *self.found.get_or_init(|| self.find());
        found.ok_or_else(|| {
            unavailable(format!(
                "lib{}.so{} was not found: install the CUDA toolkit or the Python package {}, and where it lies in neither the \
                 loader's path nor /usr/local/cuda/lib64, name its folder in HALYARD_CUDA_LIBRARY_PATH",
                self.name, self.endings[0], self.package
            ))
        })
    }

    fn find(&self) -> Option<usize> {
        let bare = || match self.present {
            // SAFETY: opens the library by name; its initialisers have no preconditions.
            Some(present) => unsafe { present() }.then_some(1),
            None => self.files(Path::new("")).find_map(|file| open(&file)),
        };
        self.open_in(&named_library_folders())
            .or_else(bare)
            .or_else(|| self.open_in(&usual_library_folders()))
    }

    fn files<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let name = move |ending: &&str| folder.join(format!("lib{}.so{ending}", self.name));
        self.endings.iter().map(name)
    }

    /// Opens the library by path. A library that is open is found by its bare name afterwards, and so by the bindings; by the library itself, too, so
    /// its parts that it opens later by name (NVRTC's builtins) are opened first.
    fn open_in(&self, folders: &[PathBuf]) -> Option<usize> {
        let files = folders.iter().flat_map(|folder| self.files(folder));
        // SAFETY: as in `find`.
        let known = |_: &usize| self.present.is_none_or(|present| unsafe { present() });
        files.filter(|file| file.is_file()).find_map(|file| {
            for part in self.parts_beside(&file) {
                open(&part);
            }
            open(&file).filter(known)
        })
    }

    /// `lib<name>-builtins.so…` in the library's folder.
    fn parts_beside(&self, file: &Path) -> Vec<PathBuf> {
        let prefix = format!("lib{}-builtins.so", self.name);
        let listing = file.parent().and_then(|folder| std::fs::read_dir(folder).ok());
        let files = listing.into_iter().flatten().flatten().map(|entry| entry.path());
        files
            .filter(|part| {
                part.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
            })
            .collect()
    }
}

/// Opens a library for the process's life.
fn open(file: &Path) -> Option<usize> {
    let path = CString::new(file.as_os_str().as_bytes()).ok()?;
    // SAFETY: a path that ends in 0; initialisers of these libraries have no preconditions.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    (!handle.is_null()).then_some(handle as usize)
}

/// A function of an open library.
///
/// # Errors
/// `Unavailable` naming it: the library is too old.
pub(crate) fn symbol(library: usize, name: &CStr) -> Result<*mut c_void> {
    // SAFETY: a handle that the loader gave, and a name that ends in 0.
    let found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    if found.is_null() {
        let name = name.to_string_lossy();
        return Err(unavailable(format!(
            "a library lacks {name}: it is too old; install a newer one"
        )));
    }
    Ok(found)
}
