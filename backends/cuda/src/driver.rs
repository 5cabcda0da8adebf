//! The driver of one device: libcuda's functions behind the shared trait. Uses the bindings' raw layer only, since
//! their safe one tracks events that a capture must not see.

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cudarc::driver::sys as cuda;
use halyard_gpu::{
    BOX, Boxes, CollectiveLibrary, DevicePtr, Driver, Event, Facts, Function, Graph, KernelText, Module, Param, Pinned,
    Policy, Product, ProductSpec, RankDriver, Stream, param_addresses, short_of,
};
use halyard_platform_api::{Error, OpenOptions, Result, log};

use crate::env;
use crate::error::check;
use crate::facts::facts;
use crate::libraries;
use crate::product::Products;
use crate::tuning;

/// Compute capability from which kernels may start while their predecessor ends.
const CHAINING: u32 = 90;

/// Calls a function of the driver and turns its answer into a result.
macro_rules! call {
    ($name:ident ( $($arg:expr),* $(,)? )) => {
        check(stringify!($name), cuda::$name($($arg),*))
    };
}

/// An open device.
pub(crate) struct CudaDriver {
    ordinal: i32,
    context: usize,
    facts: Facts,
    policy: Policy,
    cache_folder: Option<PathBuf>,
    most_peer_sum_bytes: Option<u64>,
    compiler: OnceLock<Result<String>>,
    products: OnceLock<Result<Arc<Products>>>,
}

impl CudaDriver {
    /// Opens device `ordinal` in its primary context.
    pub(crate) fn open(ordinal: i32, options: &OpenOptions) -> Result<CudaDriver> {
        let facts = facts(ordinal)?;
        let most_peer_sum_bytes = env::most_peer_sum_bytes(options)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver is up and shows this device; the output is a live pointer.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut context, ordinal)) }.map_err(|e| Error {
            message: format!("device {ordinal} ({}): {}", facts.name, e.message),
            ..e
        })?;
        let policy = Policy::default();
        Ok(CudaDriver {
            ordinal,
            context: context as usize,
            facts,
            policy: Policy {
                dense_tiles: env::dense_tiles(options)?,
                common_key_bytes: env::common_key_bytes(options)?.unwrap_or(policy.common_key_bytes),
                ..policy
            },
            cache_folder: env::cache_folder(options),
            most_peer_sum_bytes,
            compiler: OnceLock::new(),
            products: OnceLock::new(),
        })
    }

    /// Makes this device the calling thread's. Cheap: the driver only stores a pointer.
    pub(crate) fn enter(&self) -> Result<()> {
        // SAFETY: retained until this is dropped.
        unsafe { call!(cuCtxSetCurrent(self.context as cuda::CUcontext)) }
    }

    /// Where choices are kept.
    pub(crate) fn cache_folder(&self) -> Option<PathBuf> {
        self.cache_folder.clone()
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // The handles of the product library belong to the context.
        drop(self.products.take());
        // SAFETY: retained once in `open`; everything made in it is gone, as its owners hold this.
        unsafe { cuda::cuDevicePrimaryCtxRelease_v2(self.ordinal) };
    }
}

fn stream(stream: Stream) -> cuda::CUstream {
    stream.0 as cuda::CUstream
}

fn event(event: Event) -> cuda::CUevent {
    event.0 as cuda::CUevent
}

impl Driver for CudaDriver {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outputs are live.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free as u64, total as u64))
    }

    fn allocate(&self, bytes: u64) -> Result<DevicePtr> {
        self.enter()?;
        let mut ptr = 0;
        // SAFETY: the output is live.
        unsafe { call!(cuMemAlloc_v2(&mut ptr, bytes as usize)) }.map_err(|e| self.short_of(e, bytes, "device"))?;
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises. A failure is an earlier one's echo: the device is lost.
            unsafe { cuda::cuMemFree_v2(ptr) };
        }
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Pinned> {
        self.enter()?;
        let mut host = std::ptr::null_mut();
        let flags = cuda::CU_MEMHOSTALLOC_PORTABLE | cuda::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the outputs are live; the second call asks about what the first gave.
        unsafe {
            call!(cuMemHostAlloc(&mut host, bytes as usize, flags))
                .map_err(|e| self.short_of(e, bytes, "pinned host"))?;
            let mut device = 0;
            call!(cuMemHostGetDevicePointer_v2(&mut device, host, 0)).inspect_err(|_| {
                cuda::cuMemFreeHost(host);
            })?;
            Ok(Pinned {
                host: host.cast(),
                device,
            })
        }
    }

    unsafe fn free_pinned(&self, pinned: Pinned) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises.
            unsafe { cuda::cuMemFreeHost(pinned.host.cast()) };
        }
    }

    fn create_stream(&self) -> Result<Stream> {
        self.enter()?;
        let mut made = std::ptr::null_mut();
        let flags = cuda::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the output is live.
        unsafe { call!(cuStreamCreate(&mut made, flags))? };
        Ok(Stream(made as usize))
    }

    unsafe fn destroy_stream(&self, which: Stream) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises.
            unsafe { cuda::cuStreamDestroy_v2(stream(which)) };
        }
    }

    fn synchronize(&self, which: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: a live stream.
        unsafe { call!(cuStreamSynchronize(stream(which))) }
    }

    fn create_event(&self) -> Result<Event> {
        self.enter()?;
        let mut made = std::ptr::null_mut();
        let flags =
            cuda::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | cuda::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: the output is live.
        unsafe { call!(cuEventCreate(&mut made, flags))? };
        Ok(Event(made as usize))
    }

    unsafe fn destroy_event(&self, which: Event) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises.
            unsafe { cuda::cuEventDestroy_v2(event(which)) };
        }
    }

    fn record_event(&self, which: Event, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: both are live.
        unsafe { call!(cuEventRecord(event(which), stream(on))) }
    }

    fn stream_wait(&self, which: Stream, on: Event) -> Result<()> {
        self.enter()?;
        // SAFETY: both are live.
        unsafe { call!(cuStreamWaitEvent(stream(which), event(on), 0)) }
    }

    fn synchronize_event(&self, which: Event) -> Result<()> {
        self.enter()?;
        // SAFETY: a live event.
        unsafe { call!(cuEventSynchronize(event(which))) }
    }

    fn query_event(&self, which: Event) -> Result<bool> {
        self.enter()?;
        // SAFETY: a live event.
        match unsafe { cuda::cuEventQuery(event(which)) } {
            cuda::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises.
        unsafe { call!(cuMemcpyAsync(to, from, bytes as usize, stream(on))) }
    }

    unsafe fn copy_2d(
        &self,
        to: DevicePtr,
        to_pitch: u64,
        from: DevicePtr,
        from_pitch: u64,
        width: u64,
        height: u64,
        on: Stream,
    ) -> Result<()> {
        self.enter()?;
        let unified = cuda::CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        let copy = cuda::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: unified,
            srcHost: std::ptr::null(),
            srcDevice: from,
            srcArray: std::ptr::null_mut(),
            srcPitch: from_pitch as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: unified,
            dstHost: std::ptr::null_mut(),
            dstDevice: to,
            dstArray: std::ptr::null_mut(),
            dstPitch: to_pitch as usize,
            WidthInBytes: width as usize,
            Height: height as usize,
        };
        // SAFETY: as the caller promises.
        unsafe { call!(cuMemcpy2DAsync_v2(&copy, stream(on))) }
    }

    unsafe fn fill(&self, to: DevicePtr, value: u8, bytes: u64, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises.
        unsafe { call!(cuMemsetD8Async(to, value, bytes as usize, stream(on))) }
    }

    unsafe fn write_value(&self, to: DevicePtr, value: u64, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises. No flags: the write comes after a fence over all memory.
        unsafe { call!(cuStreamWriteValue64_v2(stream(on), to, value, 0)) }
    }

    fn compile(&self, name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>> {
        libraries::compile(name, text, options, &self.facts.arch)
    }

    fn compiler(&self) -> Result<String> {
        let version = || libraries::nvrtc()?.version();
        self.compiler.get_or_init(version).clone()
    }

    fn load(&self, image: &[u8]) -> Result<Module> {
        self.enter()?;
        let mut made = std::ptr::null_mut();
        // SAFETY: the image carries its own length.
        unsafe { call!(cuModuleLoadData(&mut made, image.as_ptr().cast()))? };
        Ok(Module(made as usize))
    }

    fn function(&self, module: Module, name: &str, shared_bytes: u32) -> Result<Function> {
        self.enter()?;
        let c_name = CString::new(name).map_err(|_| Error::invalid("an entry point's name with a zero byte"))?;
        let mut made = std::ptr::null_mut();
        let attribute = cuda::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live module and name; the function belongs to the module, which stays loaded.
        unsafe {
            call!(cuModuleGetFunction(
                &mut made,
                module.0 as cuda::CUmodule,
                c_name.as_ptr()
            ))
            .map_err(|e| Error {
                message: format!("entry point {name}: {}", e.message),
                ..e
            })?;
            // Loaded now: a first launch in a capture could not.
            call!(cuFuncLoad(made))?;
            if shared_bytes > 0 {
                call!(cuFuncSetAttribute(made, attribute, shared_bytes as i32)).map_err(|e| Error {
                    message: format!(
                        "{name} with {shared_bytes} bytes of dynamic shared memory ({} at most): {}",
                        self.facts.max_shared_bytes, e.message
                    ),
                    ..e
                })?;
            }
        }
        Ok(Function(made as usize))
    }

    fn prefer_shared(&self, function: Function, bytes: u32) -> Result<()> {
        self.enter()?;
        let attribute = cuda::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let percent = (u64::from(bytes) * 100)
            .div_ceil(u64::from(self.facts.max_shared_bytes.max(1)))
            .min(100);
        // SAFETY: a live function.
        unsafe {
            call!(cuFuncSetAttribute(
                function.0 as cuda::CUfunction,
                attribute,
                percent as i32
            ))
        }
    }

    fn boxes(&self, at: DevicePtr, rows: u64, width: u32) -> Result<Boxes> {
        self.enter()?;
        let mut made = cuda::CUtensorMap { opaque: [0; 16] };
        let (sizes, strides) = ([u64::from(width), rows], [2 * u64::from(width)]);
        let (of_box, steps) = ([BOX[1], BOX[0]], [1, 1]);
        // Zeros beyond the last row and value; rows of 128 bytes with swapped units, brought by 256 bytes at a time.
        // SAFETY: the driver copies sizes during the call, and reads nothing at `at`.
        unsafe {
            call!(cuTensorMapEncodeTiled(
                &mut made,
                cuda::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                2,
                at as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                of_box.as_ptr(),
                steps.as_ptr(),
                cuda::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                cuda::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                cuda::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                cuda::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ))
        }
        .map_err(|e| Error {
            message: format!("{rows} rows of {width} values for the copy engine: {}", e.message),
            ..e
        })?;
        let mut bytes = [0; 128];
        for (to, word) in bytes.chunks_exact_mut(8).zip(made.opaque) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(Boxes(bytes))
    }

    unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        params: &[Param<'_>],
        chained: bool,
        on: Stream,
    ) -> Result<()> {
        self.enter()?;
        let mut addresses = param_addresses(params)?;
        let mut attribute = cuda::CUlaunchAttribute {
            id: cuda::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: cuda::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let config = cuda::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared_bytes,
            hStream: stream(on),
            attrs: &mut attribute,
            numAttrs: u32::from(chained && self.facts.capability >= CHAINING),
        };
        // SAFETY: as the caller promises; the driver copies configuration and parameters during the call.
        unsafe {
            call!(cuLaunchKernelEx(
                &config,
                function.0 as cuda::CUfunction,
                addresses.as_mut_ptr(),
                std::ptr::null_mut()
            ))
        }
        .map_err(|e| Error {
            message: format!(
                "{} (grid {grid:?}, block {block:?}, {shared_bytes} bytes shared)",
                e.message
            ),
            ..e
        })
    }

    fn begin_capture(&self, on: Stream) -> Result<()> {
        self.enter()?;
        let mode = cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream.
        unsafe { call!(cuStreamBeginCapture_v2(stream(on), mode)) }
    }

    fn end_capture(&self, on: Stream) -> Result<Graph> {
        self.enter()?;
        let mut graph = std::ptr::null_mut();
        let mut made = std::ptr::null_mut();
        // SAFETY: a stream in capture; the template is destroyed once the executable graph is made of it.
        unsafe {
            call!(cuStreamEndCapture(stream(on), &mut graph))?;
            let outcome = call!(cuGraphInstantiateWithFlags(&mut made, graph, 0));
            cuda::cuGraphDestroy(graph);
            outcome?;
            call!(cuGraphUpload(made, stream(on)))?;
        }
        Ok(Graph(made as usize))
    }

    unsafe fn launch_graph(&self, graph: Graph, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises.
        unsafe { call!(cuGraphLaunch(graph.0 as cuda::CUgraphExec, stream(on))) }
    }

    unsafe fn destroy_graph(&self, graph: Graph) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises.
            unsafe { cuda::cuGraphExecDestroy(graph.0 as cuda::CUgraphExec) };
        }
    }

    fn product(&self, spec: &ProductSpec) -> Result<Arc<dyn Product>> {
        let products = self.products.get_or_init(|| {
            self.enter()?;
            let begun = Instant::now();
            let products = Products::new(self.context, &self.facts, self.cache_folder())?;
            log::debug(
                "cuda",
                &format!("cuBLASLt is there after {} ms", begun.elapsed().as_millis()),
            );
            Ok(Arc::new(products))
        });
        products
            .as_ref()
            .map_err(Error::clone)?
            .product(self, spec, tuning::choose)
    }

    fn ranks(&self) -> Result<&dyn RankDriver> {
        Ok(self)
    }
}

impl RankDriver for CudaDriver {
    fn ordinal(&self) -> i32 {
        self.ordinal
    }

    fn enter(&self) -> Result<()> {
        CudaDriver::enter(self)
    }

    fn library(&self) -> Result<&'static CollectiveLibrary> {
        libraries::nccl()
    }

    fn most_peer_sum_bytes(&self) -> Result<Option<u64>> {
        Ok(self.most_peer_sum_bytes)
    }

    fn reach(&self, other: i32) -> Result<bool> {
        if !libraries::reaches_peers() {
            return Ok(false);
        }
        CudaDriver::enter(self)?;
        let (mut can, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the outputs are live; the other context is retained for the length of the call, and by its rank for
        // longer.
        unsafe {
            call!(cuDeviceCanAccessPeer(&mut can, self.ordinal, other))?;
            if can == 0 {
                return Ok(false);
            }
            call!(cuDevicePrimaryCtxRetain(&mut context, other))?;
            let code = cuda::cuCtxEnablePeerAccess(context, 0);
            cuda::cuDevicePrimaryCtxRelease_v2(other);
            if code != cuda::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                check("cuCtxEnablePeerAccess", code)?;
            }
        }
        Ok(true)
    }

    fn allocate_peer_memory(&self, bytes: u64) -> Result<DevicePtr> {
        self.allocate(bytes)
    }

    /// The global timer counts nanoseconds.
    fn ticks_per_ms(&self) -> Result<u64> {
        Ok(1_000_000)
    }
}

impl CudaDriver {
    fn short_of(&self, error: Error, bytes: u64, memory: &str) -> Error {
        short_of(error, bytes, memory, &self.facts.name, || self.memory())
    }
}
