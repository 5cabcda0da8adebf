//! A HIP runtime and hiprtc over an NVIDIA GPU: the entry points that the ROCm platform uses, over libcuda and NVRTC,
//! so that its host code, its graphs, its collectives and the portable kernels run for real where there is no AMD GPU.
//! A library for tests only: copied to `libamdhip64.so`, `libhiprtc.so`, `librocblas.so` and `librccl.so` in a folder
//! that HALYARD_ROCM_LIBRARY_PATH names, never linked, never installed. The CUDA libraries beneath are looked for in
//! the folders of HALYARD_CUDA_LIBRARY_PATH, by the loader, and in the toolkit's folder.
//!
//! What it cannot show: AMD's instructions and compiler (kernels compile as CUDA, with PORTABLE defined so that C++
//! stands where PTX would), waves of 64 lanes (a warp has 32), MFMA, the memory model and the caches of AMD's devices,
//! and whatever HIP itself does otherwise than CUDA. A runtime's structs are filled only as far as the platform reads
//! them. It also runs over the fake libcuda of tests/fixtures, which plays faults.
#![allow(non_snake_case, missing_docs)]

mod cuda;
mod hiprtc;
mod rccl;
mod rocblas;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use cuda::{Copy2d, LaunchConfig, cuda};

/// Codes have the same numbers on both sides.
pub(crate) type Code = c_int;
pub(crate) const SUCCESS: Code = 0;
const NO_DEVICE: Code = 100;

/// Ticks of CUDA's global timer in a millisecond.
const CLOCK_KHZ: c_int = 1_000_000;
/// What a block may share on AMD's devices; more than CUDA gives without being asked.
const SHARED_BYTES: c_int = 65536;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DYNAMIC_SHARED: c_int = 8;

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $out:ty $body:block)*) => {
        $(
            #[doc = concat!("As `", stringify!($name), "` of HIP.")]
            ///
            /// # Safety
            /// As the original's.
            // SAFETY: the name is HIP's, which this library stands in for.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> $out {
                // SAFETY: outputs and objects are live, as the caller promises.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
        )*
    };
}
pub(crate) use api;

/// Functions that only have another name.
macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) = $cuda:ident($($passed:expr),*);)*) => {
        api! {
            $( fn $name($($arg: $ty),*) -> Code {
                match cuda() {
                    Some(cuda) => (cuda.$cuda)($($passed),*),
                    None => NO_DEVICE,
                }
            } )*
        }
    };
}

forward! {
    fn hipInit(flags: c_uint) = cuInit(flags);
    fn hipGetDeviceCount(count: *mut c_int) = cuDeviceGetCount(count);
    fn hipDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) = cuDeviceGetName(name, bytes, device);
    fn hipDeviceTotalMem(bytes: *mut usize, device: c_int) = cuDeviceTotalMem_v2(bytes, device);
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) = cuMemGetInfo_v2(free, total);
    fn hipMalloc(ptr: *mut u64, bytes: usize) = cuMemAlloc_v2(ptr, bytes);
    // Peers see all memory here.
    fn hipExtMallocWithFlags(ptr: *mut u64, bytes: usize, _flags: c_uint) = cuMemAlloc_v2(ptr, bytes);
    fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) = cuDeviceCanAccessPeer(can, device, peer);
    fn hipFree(ptr: u64) = cuMemFree_v2(ptr);
    // Portable and mapped have the same bits; all pinned memory is coherent.
    fn hipHostMalloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) = cuMemHostAlloc(ptr, bytes, flags & 3);
    fn hipHostFree(ptr: *mut c_void) = cuMemFreeHost(ptr);
    fn hipHostGetDevicePointer(device: *mut u64, host: *mut c_void,
        flags: c_uint) = cuMemHostGetDevicePointer_v2(device, host, flags);
    fn hipStreamCreateWithFlags(stream: *mut usize, flags: c_uint) = cuStreamCreate(stream, flags);
    fn hipStreamDestroy(stream: usize) = cuStreamDestroy_v2(stream);
    fn hipStreamSynchronize(stream: usize) = cuStreamSynchronize(stream);
    fn hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint) = cuStreamWaitEvent(stream, event, flags);
    fn hipStreamWriteValue64(stream: usize, ptr: u64, value: u64, flags: c_uint) = cuStreamWriteValue64_v2(stream, ptr,
        value, flags);
    fn hipEventCreateWithFlags(event: *mut usize, flags: c_uint) = cuEventCreate(event, flags);
    fn hipEventDestroy(event: usize) = cuEventDestroy_v2(event);
    fn hipEventRecord(event: usize, stream: usize) = cuEventRecord(event, stream);
    fn hipEventSynchronize(event: usize) = cuEventSynchronize(event);
    fn hipEventQuery(event: usize) = cuEventQuery(event);
    fn hipMemcpyAsync(to: u64, from: u64, bytes: usize, _kind: c_int, stream: usize) = cuMemcpyAsync(to, from, bytes,
        stream);
    fn hipMemsetAsync(to: u64, value: c_int, bytes: usize, stream: usize) = cuMemsetD8Async(to, value as u8, bytes,
        stream);
    fn hipModuleLoadData(module: *mut usize, image: *const c_void) = cuModuleLoadData(module, image);
    fn hipStreamBeginCapture(stream: usize, mode: c_int) = cuStreamBeginCapture_v2(stream, mode);
    fn hipStreamEndCapture(stream: usize, graph: *mut usize) = cuStreamEndCapture(stream, graph);
    fn hipGraphInstantiateWithFlags(made: *mut usize, graph: usize, flags: u64) = cuGraphInstantiateWithFlags(made,
        graph, flags);
    fn hipGraphDestroy(graph: usize) = cuGraphDestroy(graph);
    fn hipGraphLaunch(graph: usize, stream: usize) = cuGraphLaunch(graph, stream);
    fn hipGraphExecDestroy(graph: usize) = cuGraphExecDestroy(graph);
}

/// Primary contexts by device, retained once.
static CONTEXTS: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());

fn context(device: c_int) -> Result<usize, Code> {
    let cuda = cuda().ok_or(NO_DEVICE)?;
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&(_, context)) = contexts.iter().find(|(of, _)| *of == device) {
        return Ok(context);
    }
    let mut context = 0;
    // SAFETY: the output is live; a wrong device is answered with a code.
    match unsafe { (cuda.cuDevicePrimaryCtxRetain)(&mut context, device) } {
        SUCCESS => {
            contexts.push((device, context));
            Ok(context)
        }
        code => Err(code),
    }
}

api! {
    fn hipSetDevice(device: c_int) -> Code {
        match (context(device), cuda()) {
            (Ok(context), Some(cuda)) => (cuda.cuCtxSetCurrent)(context),
            (Err(code), _) => code,
            (_, None) => NO_DEVICE,
        }
    }

    fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Code {
        match (context(peer), cuda()) {
            (Ok(context), Some(cuda)) => (cuda.cuCtxEnablePeerAccess)(context, flags),
            (Err(code), _) => code,
            (_, None) => NO_DEVICE,
        }
    }

    // The oldest with this layout of properties.
    fn hipRuntimeGetVersion(version: *mut c_int) -> Code {
        *version = 60_000_000;
        SUCCESS
    }

    fn hipDeviceGetAttribute(value: *mut c_int, which: c_int, device: c_int) -> Code {
        let Some(cuda) = cuda() else { return NO_DEVICE };
        let which = match which {
            74 => {
                *value = SHARED_BYTES;
                return SUCCESS;
            }
            10017 => {
                *value = CLOCK_KHZ;
                return SUCCESS;
            }
            19 => 38,
            63 => 16,
            87 => 10,
            _ => return 1,
        };
        (cuda.cuDeviceGetAttribute)(value, which, device)
    }

    // Only the architecture's name: one that goes through the platform and back to `hiprtcCompileProgram` here.
    fn hipGetDevicePropertiesR0600(properties: *mut u8, device: c_int) -> Code {
        let Some(cuda) = cuda() else { return NO_DEVICE };
        let mut capability = [0; 2];
        for (which, value) in [75, 76].into_iter().zip(&mut capability) {
            let code = (cuda.cuDeviceGetAttribute)(value, which, device);
            if code != SUCCESS {
                return code;
            }
        }
        let name = format!("{}{}{}\0", hiprtc::ARCH, capability[0], capability[1]);
        std::ptr::copy_nonoverlapping(name.as_ptr(), properties.add(1160), name.len());
        SUCCESS
    }

    fn hipGetErrorName(code: Code) -> *const c_char {
        let mut text = std::ptr::null();
        if let Some(cuda) = cuda() {
            (cuda.cuGetErrorName)(code, &mut text);
        }
        text
    }

    fn hipGetErrorString(code: Code) -> *const c_char {
        let mut text = std::ptr::null();
        if let Some(cuda) = cuda() {
            (cuda.cuGetErrorString)(code, &mut text);
        }
        text
    }

    fn hipModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> Code {
        let Some(cuda) = cuda() else { return NO_DEVICE };
        match (cuda.cuModuleGetFunction)(function, module, name) {
            SUCCESS => (cuda.cuFuncSetAttribute)(*function, DYNAMIC_SHARED, SHARED_BYTES),
            code => code,
        }
    }

    fn hipModuleLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code {
        let Some(cuda) = cuda() else { return NO_DEVICE };
        let config = LaunchConfig {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared,
            stream,
            attributes: null_mut(),
            num_attributes: 0,
        };
        (cuda.cuLaunchKernelEx)(&config, function, params, extra)
    }

    fn hipMemcpy2DAsync(
        to: u64,
        to_pitch: usize,
        from: u64,
        from_pitch: usize,
        width: usize,
        height: usize,
        _kind: c_int,
        stream: usize,
    ) -> Code {
        let Some(cuda) = cuda() else { return NO_DEVICE };
        let copy = Copy2d::rows((to, to_pitch), (from, from_pitch), width, height);
        (cuda.cuMemcpy2DAsync_v2)(&copy, stream)
    }
}
