//! libcuda's functions, looked up when the first is wanted.

use std::env::{split_paths, var_os};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use halyard_gpu::{Library, symbol};

use crate::Code;

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) stream: usize,
    pub(crate) attributes: *mut c_void,
    pub(crate) num_attributes: c_uint,
}

/// `CUDA_MEMCPY2D`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_type: c_uint,
    from_host: usize,
    from: u64,
    from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: c_uint,
    to_host: usize,
    to: u64,
    to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

impl Copy2d {
    /// Rows of `width` bytes between addresses of any kind.
    pub(crate) fn rows(to: (u64, usize), from: (u64, usize), width: usize, height: usize) -> Copy2d {
        /// `CU_MEMORYTYPE_UNIFIED`.
        const UNIFIED: c_uint = 4;
        Copy2d {
            from_type: UNIFIED,
            from: from.0,
            from_pitch: from.1,
            to_type: UNIFIED,
            to: to.0,
            to_pitch: to.1,
            width,
            height,
            ..Copy2d::default()
        }
    }
}

/// Folders that the operator names for CUDA's libraries.
pub(crate) fn named() -> Vec<PathBuf> {
    let list = var_os("HALYARD_CUDA_LIBRARY_PATH").unwrap_or_default();
    split_paths(&list).filter(|p| !p.as_os_str().is_empty()).collect()
}

/// Where the toolkit lies.
pub(crate) fn usual() -> Vec<PathBuf> {
    vec![PathBuf::from("/usr/local/cuda/lib64")]
}

static LIBRARY: Library = Library::new("cuda", &[".1", ""], "install the NVIDIA driver");

macro_rules! functions {
    ($(fn $name:ident($($ty:ty),*);)*) => {
        /// The driver's functions.
        pub(crate) struct Cuda {
            $( pub(crate) $name: unsafe extern "C" fn($($ty),*) -> Code, )*
        }

        impl Cuda {
            fn load() -> Option<Cuda> {
                let library = LIBRARY.open(named, usual).ok()?;
                let find = |name: &'static str| symbol(library, CStr::from_bytes_with_nul(name.as_bytes()).ok()?).ok();
                // SAFETY: the symbols have these types in every driver of CUDA 12 and 13.
                unsafe { Some(Cuda { $(
                    $name: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> Code>(
                        find(concat!(stringify!($name), "\0"))?
                    ),
                )* }) }
            }
        }
    };
}

functions! {
    fn cuInit(c_uint);
    fn cuDeviceGetCount(*mut c_int);
    fn cuDeviceGetName(*mut c_char, c_int, c_int);
    fn cuDeviceTotalMem_v2(*mut usize, c_int);
    fn cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    fn cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    fn cuDevicePrimaryCtxRetain(*mut usize, c_int);
    fn cuCtxEnablePeerAccess(usize, c_uint);
    fn cuCtxSetCurrent(usize);
    fn cuMemGetInfo_v2(*mut usize, *mut usize);
    fn cuMemAlloc_v2(*mut u64, usize);
    fn cuMemFree_v2(u64);
    fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    fn cuMemFreeHost(*mut c_void);
    fn cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, c_uint);
    fn cuStreamCreate(*mut usize, c_uint);
    fn cuStreamDestroy_v2(usize);
    fn cuStreamSynchronize(usize);
    fn cuStreamWaitEvent(usize, usize, c_uint);
    fn cuStreamWriteValue64_v2(usize, u64, u64, c_uint);
    fn cuEventCreate(*mut usize, c_uint);
    fn cuEventDestroy_v2(usize);
    fn cuEventRecord(usize, usize);
    fn cuEventSynchronize(usize);
    fn cuEventQuery(usize);
    fn cuMemcpyAsync(u64, u64, usize, usize);
    fn cuMemcpy2DAsync_v2(*const Copy2d, usize);
    fn cuMemsetD8Async(u64, u8, usize, usize);
    fn cuModuleLoadData(*mut usize, *const c_void);
    fn cuModuleGetFunction(*mut usize, usize, *const c_char);
    fn cuFuncSetAttribute(usize, c_int, c_int);
    fn cuLaunchKernelEx(*const LaunchConfig, usize, *mut *mut c_void, *mut *mut c_void);
    fn cuStreamBeginCapture_v2(usize, c_int);
    fn cuStreamEndCapture(usize, *mut usize);
    fn cuGraphInstantiateWithFlags(*mut usize, usize, u64);
    fn cuGraphDestroy(usize);
    fn cuGraphLaunch(usize, usize);
    fn cuGraphExecDestroy(usize);
    fn cuGetErrorName(Code, *mut *const c_char);
    fn cuGetErrorString(Code, *mut *const c_char);
}

/// The driver; `None` where there is none.
pub(crate) fn cuda() -> Option<&'static Cuda> {
    static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
    CUDA.get_or_init(Cuda::load).as_ref()
}
