//! The HIP runtime's functions, looked up in the library that is found: just those that the platform calls, with the
//! types that they have had since ROCm 5.2. Objects are opaque pointers as numbers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use halyard_gpu::{CollectiveLibrary, Library, RunTimeCompiler, find_symbol, symbol};
use halyard_platform_api::{Error, Result, Status};

use crate::env::{named_library_folders, usual_library_folders};
use crate::error::{Code, check_with};

/// A stream, event, module, function or graph.
pub(crate) type Object = usize;

/// Numbers of `hipDeviceAttribute_t`, the same since ROCm 5.2.
pub(crate) mod attribute {
    use std::ffi::c_int;
    pub(crate) const L2_CACHE_BYTES: c_int = 19;
    pub(crate) const MULTIPROCESSORS: c_int = 63;
    pub(crate) const SHARED_BYTES_PER_BLOCK: c_int = 74;
    pub(crate) const WARP_SIZE: c_int = 87;
    /// Of the clock that `peers.cuh` reads; since ROCm 5.3.
    pub(crate) const WALL_CLOCK_KHZ: c_int = 10017;
}

/// `hipMemcpyDefault`: addresses are unified.
pub(crate) const COPY_DEFAULT: c_int = 4;
/// `hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent`: no device caches it, so that each side sees
/// the other's writes.
pub(crate) const PINNED: c_uint = 1 | 2 | 0x4000_0000;
/// `hipDeviceMallocUncached` and, where a runtime or device does not have that, `hipDeviceMallocFinegrained`: memory
/// whose words other devices read and write while a kernel runs.
pub(crate) const PEER_MEMORY_FLAGS: [c_uint; 2] = [3, 1];
/// `hipErrorPeerAccessAlreadyEnabled`: no error.
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
/// `hipStreamNonBlocking`.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `hipEventBlockingSync | hipEventDisableTiming`.
pub(crate) const EVENT_SLEEPING: c_uint = 1 | 2;
/// `hipStreamCaptureModeThreadLocal`.
pub(crate) const CAPTURE_THREAD_LOCAL: c_int = 1;

/// Oldest runtime: executable graphs from a capture.
const OLDEST: c_int = 50_200_000;

const ENDINGS: &[&str] = &[".7", ".6", ".5", ""];

static HIP: Library = Library::new(
    "amdhip64",
    ENDINGS,
    "install ROCm (the HIP runtime) for an AMD GPU, and where it lies in neither the loader's path nor /opt/rocm/lib, \
     name its folder in HALYARD_ROCM_LIBRARY_PATH; in a container, start it with the GPU (for example \
     `--device=/dev/kfd --device=/dev/dri`)",
);

static HIPRTC: Library = Library::new(
    "hiprtc",
    ENDINGS,
    "install ROCm's run-time compiler (hiprtc), and where it lies in neither the loader's path nor /opt/rocm/lib, name \
     its folder in HALYARD_ROCM_LIBRARY_PATH",
);

static RCCL: Library = Library::new(
    "rccl",
    &[".1", ""],
    "more than one device needs it; install RCCL of the same ROCm, and where it lies in neither the loader's path nor \
     /opt/rocm/lib, name its folder in HALYARD_ROCM_LIBRARY_PATH",
);

/// A name that ends in 0.
fn c_name(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default()
}

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// What the runtime calls them.
        #[allow(non_upper_case_globals, dead_code)]
        pub(crate) mod names {
            $( pub(crate) const $field: &str = $symbol; )*
        }

        /// The runtime's functions.
        pub(crate) struct Hip {
            $( pub(crate) $field: unsafe extern "C" fn($($arg),*) -> $out, )*
            properties: Properties,
        }

        impl Hip {
            fn load() -> Result<Hip> {
                let library = HIP.open(named_library_folders, usual_library_folders)?;
                let properties = Properties::find(library)?;
                // SAFETY: the symbols have these types in every version of the library since ROCm 5.2.
                unsafe { Ok(Hip { properties, $(
                    $field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $out>(
                    symbol(library, c_name(concat!($symbol, "\0")))?
                ), )* }) }
            }
        }
    };
}

functions! {
    init = "hipInit": fn(c_uint) -> Code;
    runtime_version = "hipRuntimeGetVersion": fn(*mut c_int) -> Code;
    error_name = "hipGetErrorName": fn(Code) -> *const c_char;
    error_string = "hipGetErrorString": fn(Code) -> *const c_char;
    device_count = "hipGetDeviceCount": fn(*mut c_int) -> Code;
    device_attribute = "hipDeviceGetAttribute": fn(*mut c_int, c_int, c_int) -> Code;
    device_name = "hipDeviceGetName": fn(*mut c_char, c_int, c_int) -> Code;
    device_memory = "hipDeviceTotalMem": fn(*mut usize, c_int) -> Code;
    set_device = "hipSetDevice": fn(c_int) -> Code;
    memory_info = "hipMemGetInfo": fn(*mut usize, *mut usize) -> Code;
    allocate = "hipMalloc": fn(*mut u64, usize) -> Code;
    allocate_with_flags = "hipExtMallocWithFlags": fn(*mut u64, usize, c_uint) -> Code;
    free = "hipFree": fn(u64) -> Code;
    can_reach_peer = "hipDeviceCanAccessPeer": fn(*mut c_int, c_int, c_int) -> Code;
    reach_peer = "hipDeviceEnablePeerAccess": fn(c_int, c_uint) -> Code;
    allocate_host = "hipHostMalloc": fn(*mut *mut c_void, usize, c_uint) -> Code;
    free_host = "hipHostFree": fn(*mut c_void) -> Code;
    host_on_device = "hipHostGetDevicePointer": fn(*mut u64, *mut c_void, c_uint) -> Code;
    create_stream = "hipStreamCreateWithFlags": fn(*mut Object, c_uint) -> Code;
    destroy_stream = "hipStreamDestroy": fn(Object) -> Code;
    synchronize_stream = "hipStreamSynchronize": fn(Object) -> Code;
    stream_wait = "hipStreamWaitEvent": fn(Object, Object, c_uint) -> Code;
    write_value = "hipStreamWriteValue64": fn(Object, u64, u64, c_uint) -> Code;
    create_event = "hipEventCreateWithFlags": fn(*mut Object, c_uint) -> Code;
    destroy_event = "hipEventDestroy": fn(Object) -> Code;
    record_event = "hipEventRecord": fn(Object, Object) -> Code;
    synchronize_event = "hipEventSynchronize": fn(Object) -> Code;
    query_event = "hipEventQuery": fn(Object) -> Code;
    copy = "hipMemcpyAsync": fn(u64, u64, usize, c_int, Object) -> Code;
    copy_2d = "hipMemcpy2DAsync": fn(u64, usize, u64, usize, usize, usize, c_int, Object) -> Code;
    fill = "hipMemsetAsync": fn(u64, c_int, usize, Object) -> Code;
    load_module = "hipModuleLoadData": fn(*mut Object, *const c_void) -> Code;
    module_function = "hipModuleGetFunction": fn(*mut Object, Object, *const c_char) -> Code;
    launch = "hipModuleLaunchKernel":
        fn(Object, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Object, *mut *mut c_void, *mut *mut c_void)
            -> Code;
    begin_capture = "hipStreamBeginCapture": fn(Object, c_int) -> Code;
    end_capture = "hipStreamEndCapture": fn(Object, *mut Object) -> Code;
    instantiate = "hipGraphInstantiateWithFlags": fn(*mut Object, Object, u64) -> Code;
    destroy_graph = "hipGraphDestroy": fn(Object) -> Code;
    launch_graph = "hipGraphLaunch": fn(Object, Object) -> Code;
    destroy_executable = "hipGraphExecDestroy": fn(Object) -> Code;
}

/// `hipGetDeviceProperties`, of which only the architecture's name is wanted. ROCm 6 moved it and gave the function
/// another name.
struct Properties {
    get: unsafe extern "C" fn(*mut PropertyBytes, c_int) -> Code,
    arch_at: usize,
}

/// More than any version writes: 792 bytes in ROCm 5, 1472 since.
#[repr(C, align(16))]
pub(crate) struct PropertyBytes([u8; 4096]);

/// Bytes of `gcnArchName`.
const ARCH_BYTES: usize = 256;

impl Properties {
    fn find(library: usize) -> Result<Properties> {
        let (function, arch_at) = match find_symbol(library, c"hipGetDevicePropertiesR0600") {
            Some(function) => (function, 1160),
            None => (symbol(library, c"hipGetDeviceProperties")?, 396),
        };
        // SAFETY: either function takes an output and a device; the output is larger than what either writes.
        let get = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut PropertyBytes, c_int) -> Code>(function)
        };
        Ok(Properties { get, arch_at })
    }
}

impl Hip {
    /// The error of `call`, if it is one.
    pub(crate) fn check(&self, call: &str, code: Code) -> Result<()> {
        check_with(call, code, |code| {
            let text = |text: *const c_char| match text.is_null() {
                true => String::new(),
                // SAFETY: the library's texts end in 0 and are constants.
                false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            };
            // SAFETY: both take any code.
            unsafe { (text((self.error_name)(code)), text((self.error_string)(code))) }
        })
    }

    /// The architecture that the device's code is compiled for, with its features: `gfx90a:sramecc+:xnack-`.
    pub(crate) fn arch(&self, ordinal: c_int) -> Result<String> {
        let mut bytes = PropertyBytes([0; 4096]);
        // SAFETY: the output is live and large enough.
        self.check("hipGetDeviceProperties", unsafe {
            (self.properties.get)(&mut bytes, ordinal)
        })?;
        let name = &bytes.0[self.properties.arch_at..][..ARCH_BYTES];
        let text = CStr::from_bytes_until_nul(name).map(|name| name.to_string_lossy().into_owned());
        match text {
            Ok(text) if text.starts_with("gfx") => Ok(text),
            other => Err(Error::unsupported(format!(
                "device {ordinal}: this HIP runtime gives no architecture's name where one is expected (found \
                 {other:?}); it is newer than what this platform knows"
            ))),
        }
    }

    /// The runtime's version as its number.
    pub(crate) fn version(&self) -> Result<c_int> {
        let mut version = 0;
        // SAFETY: the output is live.
        self.check("hipRuntimeGetVersion", unsafe { (self.runtime_version)(&mut version) })?;
        Ok(version)
    }
}

/// A version as text.
pub(crate) fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 10_000_000, version / 100_000 % 100)
}

/// The runtime, started once a process.
///
/// # Errors
/// `Unavailable` with what was found and what to install.
pub(crate) fn hip() -> Result<&'static Hip> {
    static RUNTIME: OnceLock<Result<Hip>> = OnceLock::new();
    RUNTIME.get_or_init(start).as_ref().map_err(Error::clone)
}

fn start() -> Result<Hip> {
    let hip = Hip::load()?;
    let unavailable = |e: Error| Error {
        status: Status::Unavailable,
        ..e
    };
    // SAFETY: flags must be 0.
    hip.check("hipInit", unsafe { (hip.init)(0) }).map_err(unavailable)?;
    let version = hip.version().map_err(unavailable)?;
    if version < OLDEST {
        return Err(Error::new(
            Status::Unavailable,
            format!(
                "the HIP runtime is too old: version {}, and {} is needed; install a newer ROCm",
                version_text(version),
                version_text(OLDEST)
            ),
        ));
    }
    Ok(hip)
}

/// The run-time compiler. Older runtimes carry it in their own library.
///
/// # Errors
/// `Unavailable` naming the library and how to get it.
pub(crate) fn compiler() -> Result<&'static RunTimeCompiler> {
    static COMPILER: OnceLock<Result<RunTimeCompiler>> = OnceLock::new();
    let find = || {
        let library = HIPRTC
            .open(named_library_folders, usual_library_folders)
            .or_else(|missing| match HIP.open(named_library_folders, usual_library_folders) {
                Ok(hip) if find_symbol(hip, c"hiprtcCreateProgram").is_some() => Ok(hip),
                _ => Err(missing),
            })?;
        RunTimeCompiler::in_library(library, "hiprtc", "Code")
    };
    COMPILER.get_or_init(find).as_ref().map_err(Error::clone)
}

/// Collectives.
///
/// # Errors
/// `Unavailable` naming the library and how to get it.
pub(crate) fn collectives() -> Result<&'static CollectiveLibrary> {
    static COLLECTIVES: OnceLock<Result<CollectiveLibrary>> = OnceLock::new();
    let find = || {
        let library = RCCL.open(named_library_folders, usual_library_folders)?;
        CollectiveLibrary::in_library(library, "RCCL")
    };
    COLLECTIVES.get_or_init(find).as_ref().map_err(Error::clone)
}

#[cfg(test)]
mod tests {
    use halyard_gpu::KernelText;
    use halyard_kernels_gpu::{ALL_REDUCE, ATTENTION_PLAIN, ATTENTION_TILES, LINEAR_TILED, Language, SAMPLE, Source};

    use super::*;

    /// The compiler itself, with its own headers, takes the kernels: it needs no device.
    #[test]
    fn the_run_time_compiler_takes_the_kernels() {
        let compiler = match compiler() {
            Ok(compiler) => compiler,
            Err(why) => {
                assert_eq!(why.status, Status::Unavailable, "{why}");
                assert!(why.message.contains("HALYARD_ROCM_LIBRARY_PATH"), "{why}");
                println!("skipped: {}", why.message);
                return;
            }
        };
        let compile = |source: Source, defines: &[&str]| {
            let text = KernelText::of(source, Language::Cuda).expect("HIP has it");
            let defines: Vec<String> = defines.iter().map(|d| format!("-D{d}")).collect();
            let own = ["--offload-arch=gfx90a", "-std=c++17", "-O3"];
            compiler.compile("gfx90a", source.name, text, &own, &defines)
        };
        let types = ["ACT=bf16", "WEIGHT=bf16", "OUT=bf16", "EPILOGUE=1"];
        let image = compile(LINEAR_TILED, &types).expect("tiles compile");
        assert!(image.starts_with(b"\x7fELF") || image.starts_with(b"__CLANG_OFFLOAD_BUNDLE__"));
        compile(ATTENTION_PLAIN, &["ACT=f16", "KV=e4m3", "HEAD_DIM=64", "BLOCK=16"]).expect("attention compiles");
        compile(ATTENTION_TILES, &["ACT=bf16", "KV=bf16", "HEAD_DIM=128", "BLOCK=64"]).expect("matrix units compile");
        compile(SAMPLE, &[]).expect("sampling compiles");
        compile(ALL_REDUCE, &["ACT=bf16", "RANKS=2"]).expect("sums between devices compile");
        let why = compile(LINEAR_TILED, &types[1..]).expect_err("ACT is not defined");
        assert_eq!(why.status, Status::Unsupported);
        assert!(why.message.contains("ACT") && why.message.contains("gfx90a"), "{why}");
        println!("{}: compiled for gfx90a", compiler.version().expect("a version"));
    }

    #[test]
    fn versions_read_as_rocm_writes_them() {
        assert_eq!(version_text(60_342_134), "6.3");
        assert_eq!(version_text(50_221_153), "5.2");
    }
}
