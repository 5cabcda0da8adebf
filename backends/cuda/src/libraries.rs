//! The vendor's libraries, found at run time: which are there, and what to do about one that is not. The bindings panic
//! when a library or a symbol is missing, so everything is looked for here before it is called.

use std::sync::OnceLock;

use cudarc::driver::sys as cuda;
use halyard_gpu::{CollectiveLibrary, KernelText, Library, RunTimeCompiler};
use halyard_platform_api::{Error, Result, Status};

use crate::env::{named_library_folders, usual_library_folders};
use crate::error::check;

/// Oldest driver: it speaks CUDA 12.4, whose functions this platform calls.
const OLDEST_DRIVER: i32 = 12040;

/// Functions that a driver must have besides those that every driver of that age has.
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
            "no libcuda.so.1 (NVIDIA driver) was found: install the NVIDIA driver; in a container, start it with the \
             GPU (for example `--gpus all`)",
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
            "libcuda.so.1 says CUDA {} and lacks {}: the driver's installation is broken or a stub; install the NVIDIA \
             driver anew",
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

/// What to do about a library that is missing, by the Python package that brings it.
macro_rules! remedy {
    ($package:literal) => {
        concat!(
            "install the CUDA toolkit or the Python package ",
            $package,
            ", and where it lies in neither the loader's path nor /usr/local/cuda/lib64, name its folder in \
             HALYARD_CUDA_LIBRARY_PATH"
        )
    };
}

static NVRTC: Library = Library::new("nvrtc", &[".13", ".12", ""], remedy!("nvidia-cuda-nvrtc"));
static CUBLASLT: Library = Library::new("cublasLt", &[".13", ".12", ""], remedy!("nvidia-cublas"));
static NCCL: Library = Library::new("nccl", &[".2", ""], remedy!("nvidia-nccl-cu13"));

fn open(library: &Library) -> Result<usize> {
    library.open(named_library_folders, usual_library_folders)
}

/// The run-time compiler.
///
/// # Errors
/// `Unavailable` naming the library and how to get it, as for the others.
pub(crate) fn nvrtc() -> Result<&'static RunTimeCompiler> {
    static COMPILER: OnceLock<Result<RunTimeCompiler>> = OnceLock::new();
    let find = || RunTimeCompiler::in_library(open(&NVRTC)?, "nvrtc", "CUBIN");
    COMPILER.get_or_init(find).as_ref().map_err(Error::clone)
}

/// Compiles a kernel file for an architecture.
///
/// # Errors
/// Those of [`RunTimeCompiler::compile`]; `Unavailable` naming the compiler and how to get it.
pub fn compile(name: &str, text: KernelText, options: &[String], arch: &str) -> Result<Vec<u8>> {
    let own = [&format!("--gpu-architecture={arch}"), "--std=c++17"];
    nvrtc()?.compile(arch, name, text, &own, options)
}

/// Makes matrix products known to the process: a library that is open is found by its bare name, and so by the
/// bindings.
///
/// # Errors
/// As [`nvrtc`].
pub(crate) fn cublaslt() -> Result<()> {
    open(&CUBLASLT)?;
    // SAFETY: opens the library by name; its initialisers have no preconditions.
    if unsafe { cudarc::cublaslt::sys::is_culib_present() } {
        return Ok(());
    }
    Err(unavailable(
        "the libcublasLt that was found is of a version that the bindings do not know: install that of CUDA 12 or 13",
    ))
}

/// Collectives.
///
/// # Errors
/// As [`nvrtc`].
pub(crate) fn nccl() -> Result<&'static CollectiveLibrary> {
    static COLLECTIVES: OnceLock<Result<CollectiveLibrary>> = OnceLock::new();
    let find = || CollectiveLibrary::in_library(open(&NCCL)?, "NCCL");
    COLLECTIVES.get_or_init(find).as_ref().map_err(Error::clone)
}
