//! OpenCL's loader library, opened once a process. If none is found, the error says what to install.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use halyard_platform_api::{Error, Result, Status};

use crate::api::Api;
use crate::env::named_library_folders;

/// Names of the library, the one of run-time packages first.
const NAMES: [&str; 2] = ["libOpenCL.so.1", "libOpenCL.so"];

/// What brings a runtime.
pub(crate) const REMEDY: &str = "install the runtime of the device (on Debian and Ubuntu: intel-opencl-icd for Intel \
    GPUs, pocl-opencl-icd for processors)";

/// OpenCL's functions.
///
/// # Errors
/// `Unavailable` with what was tried and what to install.
pub(crate) fn api() -> Result<&'static Api> {
    static API: OnceLock<Result<Api>> = OnceLock::new();
    API.get_or_init(open).as_ref().map_err(Error::clone)
}

fn open() -> Result<Api> {
    let named = named_library_folders()
        .into_iter()
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .filter(|path| path.exists());
    let candidates = named.chain(NAMES.map(PathBuf::from));
    let mut reasons = Vec::new();
    for path in candidates {
        match open_library(&path) {
            Ok(library) => return functions(library, &path),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(Error::new(
        Status::Unavailable,
        format!(
            "no OpenCL loader library: {}; install it (on Debian and Ubuntu: ocl-icd-libopencl1) and {REMEDY}, or name \
             its folder in HALYARD_OPENCL_LIBRARY_PATH",
            reasons.join("; ")
        ),
    ))
}

/// Opens the library for the rest of the process: runtimes leave threads behind that outlive every user.
fn open_library(path: &Path) -> std::result::Result<*mut c_void, String> {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return Err(format!("{} is no path", path.display()));
    };
    // SAFETY: a name that ends in 0; the library's initialisers have no preconditions.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: the text of the failure just met, this thread's own.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return Err(format!("{} does not open", path.display()));
    }
    // SAFETY: a text that ends in 0.
    Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn functions(library: *mut c_void, path: &Path) -> Result<Api> {
    let find = |name: &str| match CString::new(name) {
        // SAFETY: a live library and a name that ends in 0.
        Ok(name) => unsafe { libc::dlsym(library, name.as_ptr()) },
        Err(_) => std::ptr::null_mut(),
    };
    Api::from(find).map_err(|missing| {
        Error::new(
            Status::Unavailable,
            format!(
                "{} lacks {missing}, a function of OpenCL 2.1: install a newer loader library (ocl-icd-libopencl1 \
                 2.2.11 or newer)",
                path.display()
            ),
        )
    })
}
