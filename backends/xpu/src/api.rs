//! The functions and constants of OpenCL that this platform uses, found in the installed loader library at run time:
//! nothing is linked. Names and values are those of the OpenCL 3.0 headers (`cl.h`, `cl_ext.h`); handles are the
//! runtime's own pointers as numbers.

use std::ffi::{CString, c_char, c_void};

use halyard_platform_api::{Error, Result, Status};

/// A platform, device, context, queue, program, kernel, event or command buffer of the runtime; 0: none.
pub(crate) type Handle = usize;
/// A list of properties that ends in 0.
pub(crate) type Properties = *const u64;
/// Called for failures of a context, or at the end of a build.
type Callback = Option<unsafe extern "C" fn()>;

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const COMPLETE: i32 = 0;
pub(crate) const DEVICE_TYPE_CPU: u64 = 1 << 1;
pub(crate) const DEVICE_TYPE_GPU: u64 = 1 << 2;
pub(crate) const PLATFORM_VERSION: u32 = 0x0901;
pub(crate) const PLATFORM_NAME: u32 = 0x0902;
pub(crate) const DEVICE_TYPE: u32 = 0x1000;
pub(crate) const DEVICE_MAX_COMPUTE_UNITS: u32 = 0x1002;
pub(crate) const DEVICE_MAX_WORK_GROUP_SIZE: u32 = 0x1004;
pub(crate) const DEVICE_ADDRESS_BITS: u32 = 0x100D;
pub(crate) const DEVICE_MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
pub(crate) const DEVICE_SINGLE_FP_CONFIG: u32 = 0x101B;
pub(crate) const DEVICE_GLOBAL_MEM_CACHE_SIZE: u32 = 0x101E;
pub(crate) const DEVICE_GLOBAL_MEM_SIZE: u32 = 0x101F;
pub(crate) const DEVICE_LOCAL_MEM_SIZE: u32 = 0x1023;
pub(crate) const DEVICE_ENDIAN_LITTLE: u32 = 0x1026;
pub(crate) const DEVICE_AVAILABLE: u32 = 0x1027;
pub(crate) const DEVICE_COMPILER_AVAILABLE: u32 = 0x1028;
pub(crate) const DEVICE_NAME: u32 = 0x102B;
pub(crate) const DRIVER_VERSION: u32 = 0x102D;
pub(crate) const DEVICE_VERSION: u32 = 0x102F;
pub(crate) const DEVICE_EXTENSIONS: u32 = 0x1030;
pub(crate) const DEVICE_HOST_UNIFIED_MEMORY: u32 = 0x1035;
pub(crate) const DEVICE_SVM_CAPABILITIES: u32 = 0x1053;
pub(crate) const SVM_FINE_GRAIN_BUFFER: u64 = 1 << 1;
pub(crate) const FP_CORRECTLY_ROUNDED_DIVIDE_SQRT: u64 = 1 << 7;
/// `cl_intel_unified_shared_memory`: what the device does with host and device allocations; bit 0: it reaches them.
pub(crate) const DEVICE_HOST_MEM_CAPABILITIES_INTEL: u32 = 0x4190;
pub(crate) const DEVICE_DEVICE_MEM_CAPABILITIES_INTEL: u32 = 0x4191;
pub(crate) const USM_ACCESS: u64 = 1;
pub(crate) const MEM_SVM_FINE_GRAIN_BUFFER: u64 = 1 << 10;
pub(crate) const MEM_READ_WRITE: u64 = 1;
pub(crate) const PROGRAM_BINARY_SIZES: u32 = 0x1165;
pub(crate) const PROGRAM_BINARIES: u32 = 0x1166;
pub(crate) const PROGRAM_BUILD_LOG: u32 = 0x1183;
pub(crate) const KERNEL_NUM_ARGS: u32 = 0x1191;
pub(crate) const KERNEL_WORK_GROUP_SIZE: u32 = 0x11B0;
pub(crate) const EVENT_COMMAND_EXECUTION_STATUS: u32 = 0x11D3;

macro_rules! functions {
    ($(#[$meta:meta])* $table:ident { $( fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $out:ty; )* }) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        pub(crate) struct $table {
            $( pub(crate) $name: unsafe extern "C" fn($($arg: $kind),*) -> $out, )*
        }

        impl $table {
            /// The table filled by `find`; the first name that it does not know is the error.
            pub(crate) fn from(find: impl Fn(&str) -> *mut c_void) -> std::result::Result<$table, &'static str> {
                Ok($table {
                    $( $name: {
                        let address = find(stringify!($name));
                        if address.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: the symbol of this name has this signature in every version of the headers.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $out>(address)
                        }
                    }, )*
                })
            }
        }
    };
}

functions! {
    /// OpenCL 2.1's functions, which loader libraries since 2015 export.
    Api {
        fn clGetPlatformIDs(num: u32, platforms: *mut Handle, count: *mut u32) -> i32;
        fn clGetPlatformInfo(platform: Handle, name: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> i32;
        fn clGetDeviceIDs(platform: Handle, kind: u64, num: u32, devices: *mut Handle, count: *mut u32) -> i32;
        fn clGetDeviceInfo(device: Handle, name: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> i32;
        fn clCreateContext(
            properties: Properties, num: u32, devices: *const Handle, notify: Callback, data: *mut c_void,
            code: *mut i32,
        ) -> Handle;
        fn clReleaseContext(context: Handle) -> i32;
        fn clCreateCommandQueueWithProperties(
            context: Handle, device: Handle, properties: Properties, code: *mut i32,
        ) -> Handle;
        fn clReleaseCommandQueue(queue: Handle) -> i32;
        fn clFlush(queue: Handle) -> i32;
        fn clFinish(queue: Handle) -> i32;
        fn clCreateProgramWithSource(
            context: Handle, num: u32, texts: *const *const c_char, lengths: *const usize, code: *mut i32,
        ) -> Handle;
        fn clCreateProgramWithBinary(
            context: Handle, num: u32, devices: *const Handle, lengths: *const usize, images: *const *const u8,
            statuses: *mut i32, code: *mut i32,
        ) -> Handle;
        fn clBuildProgram(
            program: Handle, num: u32, devices: *const Handle, options: *const c_char, notify: Callback,
        data: *mut c_void,
        ) -> i32;
        fn clGetProgramInfo(program: Handle, name: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> i32;
        fn clGetProgramBuildInfo(
            program: Handle, device: Handle, name: u32, bytes: usize, value: *mut c_void, needed: *mut usize,
        ) -> i32;
        fn clReleaseProgram(program: Handle) -> i32;
        fn clCreateKernel(program: Handle, name: *const c_char, code: *mut i32) -> Handle;
        fn clReleaseKernel(kernel: Handle) -> i32;
        fn clGetKernelInfo(kernel: Handle, name: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> i32;
        fn clGetKernelWorkGroupInfo(
            kernel: Handle, device: Handle, name: u32, bytes: usize, value: *mut c_void, needed: *mut usize,
        ) -> i32;
        fn clSetKernelArg(kernel: Handle, index: u32, bytes: usize, value: *const c_void) -> i32;
        fn clSetKernelArgSVMPointer(kernel: Handle, index: u32, value: usize) -> i32;
        fn clEnqueueNDRangeKernel(
            queue: Handle, kernel: Handle, axes: u32, offset: *const usize, global: *const usize, local: *const usize,
            num: u32, waits: *const Handle, event: *mut Handle,
        ) -> i32;
        fn clEnqueueMarkerWithWaitList(queue: Handle, num: u32, waits: *const Handle, event: *mut Handle) -> i32;
        fn clEnqueueBarrierWithWaitList(queue: Handle, num: u32, waits: *const Handle, event: *mut Handle) -> i32;
        fn clWaitForEvents(num: u32, events: *const Handle) -> i32;
        fn clGetEventInfo(event: Handle, name: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> i32;
        fn clReleaseEvent(event: Handle) -> i32;
        fn clSVMAlloc(context: Handle, flags: u64, bytes: usize, alignment: u32) -> usize;
        fn clSVMFree(context: Handle, at: usize) -> ();
        fn clEnqueueSVMMemcpy(
            queue: Handle, blocking: u32, to: usize, from: usize, bytes: usize, num: u32, waits: *const Handle,
            event: *mut Handle,
        ) -> i32;
        fn clEnqueueSVMMemFill(
            queue: Handle, to: usize, pattern: *const c_void, pattern_bytes: usize, bytes: usize, num: u32,
            waits: *const Handle, event: *mut Handle,
        ) -> i32;
        fn clGetExtensionFunctionAddressForPlatform(platform: Handle, name: *const c_char) -> *mut c_void;
    }
}

functions! {
    /// `cl_intel_unified_shared_memory`: memory of the device's own, and of the host's that the device reaches.
    Usm {
        fn clHostMemAllocINTEL(
            context: Handle, properties: Properties, bytes: usize, alignment: u32, code: *mut i32,
        ) -> usize;
        fn clDeviceMemAllocINTEL(
            context: Handle, device: Handle, properties: Properties, bytes: usize, alignment: u32, code: *mut i32,
        ) -> usize;
        fn clMemBlockingFreeINTEL(context: Handle, at: usize) -> i32;
        fn clSetKernelArgMemPointerINTEL(kernel: Handle, index: u32, value: usize) -> i32;
        fn clEnqueueMemcpyINTEL(
            queue: Handle, blocking: u32, to: usize, from: usize, bytes: usize, num: u32, waits: *const Handle,
            event: *mut Handle,
        ) -> i32;
        fn clEnqueueMemFillINTEL(
            queue: Handle, to: usize, pattern: *const c_void, pattern_bytes: usize, bytes: usize, num: u32,
            waits: *const Handle, event: *mut Handle,
        ) -> i32;
    }
}

functions! {
    /// `cl_khr_command_buffer`: launches recorded once, with their parameters, and enqueued as one command.
    CommandBuffers {
        fn clCreateCommandBufferKHR(num: u32, queues: *const Handle, properties: Properties, code: *mut i32) -> Handle;
        fn clFinalizeCommandBufferKHR(commands: Handle) -> i32;
        fn clReleaseCommandBufferKHR(commands: Handle) -> i32;
        fn clEnqueueCommandBufferKHR(
            num: u32, queues: *mut Handle, commands: Handle, num_waits: u32, waits: *const Handle, event: *mut Handle,
        ) -> i32;
        fn clCommandNDRangeKernelKHR(
            commands: Handle, queue: Handle, properties: *const c_void, kernel: Handle, axes: u32, offset: *const usize,
            global: *const usize, local: *const usize, num: u32, waits: *const u32, point: *mut u32,
        mutable: *mut Handle,
        ) -> i32;
    }
}

impl Api {
    /// The extension's functions on `platform`; `None` where one is missing.
    pub(crate) fn extension<T>(
        &self,
        platform: Handle,
        from: impl FnOnce(&dyn Fn(&str) -> *mut c_void) -> std::result::Result<T, &'static str>,
    ) -> Option<T> {
        let find = |name: &str| match CString::new(name) {
            // SAFETY: a live platform and a name that ends in 0.
            Ok(name) => unsafe { (self.clGetExtensionFunctionAddressForPlatform)(platform, name.as_ptr()) },
            Err(_) => std::ptr::null_mut(),
        };
        from(&find).ok()
    }

    /// An integer of a device, or 0 where the runtime does not know the question.
    pub(crate) fn number(&self, device: Handle, name: u32) -> u64 {
        let mut value = 0u64;
        let at = (&raw mut value).cast();
        // SAFETY: the output has the size given; 4-byte answers fill its lower half on little-endian hosts.
        match unsafe { (self.clGetDeviceInfo)(device, name, size_of::<u64>(), at, std::ptr::null_mut()) } {
            SUCCESS => value,
            _ => 0,
        }
    }

    /// Truth values of a device, all false where the runtime does not know the question.
    pub(crate) fn truths<const N: usize>(&self, device: Handle, name: u32) -> [bool; N] {
        let mut values = [0u32; N];
        let (bytes, at) = (size_of_val(&values), values.as_mut_ptr().cast());
        // SAFETY: the output has the size given.
        match unsafe { (self.clGetDeviceInfo)(device, name, bytes, at, std::ptr::null_mut()) } {
            SUCCESS => values.map(|value| value != 0),
            _ => [false; N],
        }
    }

    /// Sizes of a device, at most 16; none where the runtime does not know the question.
    pub(crate) fn sizes(&self, device: Handle, name: u32) -> Vec<u64> {
        let (mut values, mut bytes) = ([0u64; 16], 0usize);
        let at = values.as_mut_ptr().cast();
        // SAFETY: the output has the size given; sizes have 8 bytes, as devices of 64-bit addresses are spoken to from
        // such hosts.
        let code = unsafe { (self.clGetDeviceInfo)(device, name, size_of_val(&values), at, &mut bytes) };
        let count = if code == SUCCESS { bytes / size_of::<u64>() } else { 0 };
        values[..count.min(values.len())].to_vec()
    }

    /// A text of a device.
    pub(crate) fn device_text(&self, device: Handle, name: u32) -> Result<String> {
        // SAFETY: asked first for the size, then with an output of that size.
        text(|bytes, at, needed| unsafe { (self.clGetDeviceInfo)(device, name, bytes, at, needed) })
    }

    /// A text of a platform.
    pub(crate) fn platform_text(&self, platform: Handle, name: u32) -> Result<String> {
        // SAFETY: as above.
        text(|bytes, at, needed| unsafe { (self.clGetPlatformInfo)(platform, name, bytes, at, needed) })
    }

    /// The compiler's words on a build.
    pub(crate) fn build_log(&self, program: Handle, device: Handle) -> String {
        // SAFETY: as above.
        let log = text(|bytes, at, needed| unsafe {
            (self.clGetProgramBuildInfo)(program, device, PROGRAM_BUILD_LOG, bytes, at, needed)
        });
        log.unwrap_or_default()
    }
}

/// A text by the two calls that every such question takes.
fn text(ask: impl Fn(usize, *mut c_void, *mut usize) -> i32) -> Result<String> {
    let mut bytes = 0;
    let mut value = Vec::new();
    let mut code = ask(0, std::ptr::null_mut(), &mut bytes);
    if code == SUCCESS {
        value.resize(bytes, 0u8);
        code = ask(bytes, value.as_mut_ptr().cast(), std::ptr::null_mut());
    }
    if code != SUCCESS {
        let message = format!("the OpenCL runtime answered {code} when asked for a text");
        return Err(Error::new(Status::Internal, message));
    }
    let value = String::from_utf8_lossy(&value);
    Ok(value.trim_end_matches('\0').trim().to_string())
}
