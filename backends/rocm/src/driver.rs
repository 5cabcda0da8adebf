//! The driver of one device: the HIP runtime's functions behind the shared trait.

use std::ffi::{CString, c_void};
use std::sync::{Arc, OnceLock};

use halyard_gpu::{
    CollectiveLibrary, DevicePtr, Driver, Event, Facts, Function, Graph, KernelText, Module, Param, Pinned, Policy,
    Product, ProductSpec, RankDriver, Stream, param_addresses, short_of,
};
use halyard_platform_api::{Error, OpenOptions, Result};

use crate::env;
use crate::error::NOT_READY;
use crate::facts::facts;
use crate::hip::{
    CAPTURE_THREAD_LOCAL, COPY_DEFAULT, EVENT_SLEEPING, Hip, PEER_ACCESS_ALREADY_ENABLED, PEER_MEMORY_FLAGS, PINNED,
    STREAM_NON_BLOCKING, attribute, collectives, compiler, hip, names,
};
use crate::policy::policy;
use crate::product::Products;

/// Calls a function of the runtime and turns its answer into a result.
macro_rules! call {
    ($hip:expr, $name:ident ( $($arg:expr),* $(,)? )) => {
        $hip.check(names::$name, ($hip.$name)($($arg),*))
    };
}

/// An open device.
pub(crate) struct HipDriver {
    ordinal: i32,
    hip: &'static Hip,
    facts: Facts,
    policy: Policy,
    most_peer_sum_bytes: u64,
    compiler: OnceLock<Result<String>>,
    products: OnceLock<Result<Arc<Products>>>,
}

impl HipDriver {
    /// Opens device `ordinal`.
    pub(crate) fn open(ordinal: i32, options: &OpenOptions) -> Result<HipDriver> {
        let facts = facts(ordinal)?;
        let driver = HipDriver {
            ordinal,
            hip: hip()?,
            policy: policy(&facts, env::matrix_attention_is_allowed(options)?),
            facts,
            most_peer_sum_bytes: env::most_peer_sum_bytes(options)?.unwrap_or(0),
            compiler: OnceLock::new(),
            products: OnceLock::new(),
        };
        driver.enter().map_err(|e| Error {
            message: format!("device {ordinal} ({}): {}", driver.facts.name, e.message),
            ..e
        })?;
        Ok(driver)
    }

    /// Makes this device the calling thread's. Cheap: the runtime stores a number.
    fn enter(&self) -> Result<()> {
        // SAFETY: a device that the runtime shows.
        unsafe { call!(self.hip, set_device(self.ordinal)) }
    }

    fn short_of(&self, error: Error, bytes: u64, memory: &str) -> Error {
        short_of(error, bytes, memory, &self.facts.name, || self.memory())
    }
}

impl Driver for HipDriver {
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
        unsafe { call!(self.hip, memory_info(&mut free, &mut total))? };
        Ok((free as u64, total as u64))
    }

    fn allocate(&self, bytes: u64) -> Result<DevicePtr> {
        self.enter()?;
        let mut ptr = 0;
        // SAFETY: the output is live.
        unsafe { call!(self.hip, allocate(&mut ptr, bytes as usize)) }
            .map_err(|e| self.short_of(e, bytes, "device"))?;
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises. A failure is an earlier one's echo: the device is lost.
            unsafe { (self.hip.free)(ptr) };
        }
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Pinned> {
        self.enter()?;
        let mut host = std::ptr::null_mut();
        // SAFETY: the outputs are live; the second call asks about what the first gave.
        unsafe {
            call!(self.hip, allocate_host(&mut host, bytes as usize, PINNED))
                .map_err(|e| self.short_of(e, bytes, "pinned host"))?;
            let mut device = 0;
            call!(self.hip, host_on_device(&mut device, host, 0)).inspect_err(|_| {
                (self.hip.free_host)(host);
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
            unsafe { (self.hip.free_host)(pinned.host.cast()) };
        }
    }

    fn create_stream(&self) -> Result<Stream> {
        self.enter()?;
        let mut made = 0;
        // SAFETY: the output is live.
        unsafe { call!(self.hip, create_stream(&mut made, STREAM_NON_BLOCKING))? };
        Ok(Stream(made))
    }

    unsafe fn destroy_stream(&self, which: Stream) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises.
            unsafe { (self.hip.destroy_stream)(which.0) };
        }
    }

    fn synchronize(&self, which: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: a live stream.
        unsafe { call!(self.hip, synchronize_stream(which.0)) }
    }

    fn create_event(&self) -> Result<Event> {
        self.enter()?;
        let mut made = 0;
        // SAFETY: the output is live.
        unsafe { call!(self.hip, create_event(&mut made, EVENT_SLEEPING))? };
        Ok(Event(made))
    }

    unsafe fn destroy_event(&self, which: Event) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises.
            unsafe { (self.hip.destroy_event)(which.0) };
        }
    }

    fn record_event(&self, which: Event, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: both are live.
        unsafe { call!(self.hip, record_event(which.0, on.0)) }
    }

    fn stream_wait(&self, which: Stream, on: Event) -> Result<()> {
        self.enter()?;
        // SAFETY: both are live.
        unsafe { call!(self.hip, stream_wait(which.0, on.0, 0)) }
    }

    fn synchronize_event(&self, which: Event) -> Result<()> {
        self.enter()?;
        // SAFETY: a live event.
        unsafe { call!(self.hip, synchronize_event(which.0)) }
    }

    fn query_event(&self, which: Event) -> Result<bool> {
        self.enter()?;
        // SAFETY: a live event.
        match unsafe { (self.hip.query_event)(which.0) } {
            NOT_READY => Ok(false),
            code => self.hip.check(names::query_event, code).map(|()| true),
        }
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises.
        unsafe { call!(self.hip, copy(to, from, bytes as usize, COPY_DEFAULT, on.0)) }
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
        let (to_pitch, from_pitch) = (to_pitch as usize, from_pitch as usize);
        let (width, height) = (width as usize, height as usize);
        // SAFETY: as the caller promises.
        unsafe {
            call!(
                self.hip,
                copy_2d(to, to_pitch, from, from_pitch, width, height, COPY_DEFAULT, on.0)
            )
        }
    }

    unsafe fn fill(&self, to: DevicePtr, value: u8, bytes: u64, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises.
        unsafe { call!(self.hip, fill(to, i32::from(value), bytes as usize, on.0)) }
    }

    unsafe fn write_value(&self, to: DevicePtr, value: u64, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises. The flags are reserved.
        unsafe { call!(self.hip, write_value(on.0, to, value, 0)) }
    }

    fn compile(&self, name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>> {
        let arch = &self.facts.arch;
        let own = [&format!("--offload-arch={arch}"), "-std=c++17", "-O3"];
        compiler()?.compile(arch, name, text, &own, options)
    }

    fn compiler(&self) -> Result<String> {
        // Two versions of ROCm may bring the same version of hiprtc.
        let version = || Ok(format!("{}, HIP {}", compiler()?.version()?, self.hip.version()?));
        self.compiler.get_or_init(version).clone()
    }

    fn load(&self, image: &[u8]) -> Result<Module> {
        self.enter()?;
        let mut made = 0;
        // SAFETY: the image carries its own length.
        unsafe { call!(self.hip, load_module(&mut made, image.as_ptr().cast()))? };
        Ok(Module(made))
    }

    fn function(&self, module: Module, name: &str, shared_bytes: u32) -> Result<Function> {
        self.enter()?;
        let most = self.facts.max_shared_bytes;
        if shared_bytes > most {
            return Err(Error::unsupported(format!(
                "{name} takes {shared_bytes} bytes of shared memory, and a block has {most} at most on {}",
                self.facts.name
            )));
        }
        let c_name = CString::new(name).map_err(|_| Error::invalid("an entry point's name with a zero byte"))?;
        let mut made = 0;
        // SAFETY: a live module and name; the function belongs to the module, which stays loaded.
        unsafe { call!(self.hip, module_function(&mut made, module.0, c_name.as_ptr())) }.map_err(|e| Error {
            message: format!("entry point {name}: {}", e.message),
            ..e
        })?;
        Ok(Function(made))
    }

    unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        params: &[Param<'_>],
        _chained: bool,
        on: Stream,
    ) -> Result<()> {
        self.enter()?;
        let mut addresses: [*mut c_void; _] = param_addresses(params)?;
        let [x, y, z] = block;
        // SAFETY: as the caller promises; the runtime copies the parameters during the call.
        unsafe {
            call!(
                self.hip,
                launch(
                    function.0,
                    grid[0],
                    grid[1],
                    grid[2],
                    x,
                    y,
                    z,
                    shared_bytes,
                    on.0,
                    addresses.as_mut_ptr(),
                    std::ptr::null_mut()
                )
            )
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
        // SAFETY: a live stream.
        unsafe { call!(self.hip, begin_capture(on.0, CAPTURE_THREAD_LOCAL)) }
    }

    fn end_capture(&self, on: Stream) -> Result<Graph> {
        self.enter()?;
        let (mut graph, mut made) = (0, 0);
        // SAFETY: a stream in capture; the template is destroyed once the executable graph is made of it.
        unsafe {
            call!(self.hip, end_capture(on.0, &mut graph))?;
            let outcome = call!(self.hip, instantiate(&mut made, graph, 0));
            (self.hip.destroy_graph)(graph);
            outcome?;
        }
        Ok(Graph(made))
    }

    unsafe fn launch_graph(&self, graph: Graph, on: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: as the caller promises.
        unsafe { call!(self.hip, launch_graph(graph.0, on.0)) }
    }

    unsafe fn destroy_graph(&self, graph: Graph) {
        if self.enter().is_ok() {
            // SAFETY: as the caller promises.
            unsafe { (self.hip.destroy_executable)(graph.0) };
        }
    }

    fn product(&self, spec: &ProductSpec) -> Result<Arc<dyn Product>> {
        let products = self.products.get_or_init(|| {
            self.enter()?;
            Products::new(self.hip, self.ordinal).map(Arc::new)
        });
        products.as_ref().map_err(Error::clone)?.product(spec)
    }

    fn ranks(&self) -> Result<&dyn RankDriver> {
        Ok(self)
    }
}

impl RankDriver for HipDriver {
    fn ordinal(&self) -> i32 {
        self.ordinal
    }

    fn enter(&self) -> Result<()> {
        HipDriver::enter(self)
    }

    fn library(&self) -> Result<&'static CollectiveLibrary> {
        collectives()
    }

    /// None unless asked for: the kernel has never run on these devices, where the library has.
    fn most_peer_sum_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(self.most_peer_sum_bytes))
    }

    fn reach(&self, other: i32) -> Result<bool> {
        HipDriver::enter(self)?;
        let mut can = 0;
        // SAFETY: the output is live.
        unsafe { call!(self.hip, can_reach_peer(&mut can, self.ordinal, other))? };
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: devices that the runtime shows; the flags are reserved.
        match unsafe { (self.hip.reach_peer)(other, 0) } {
            PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            code => self.hip.check(names::reach_peer, code).map(|()| true),
        }
    }

    fn allocate_peer_memory(&self, bytes: u64) -> Result<DevicePtr> {
        HipDriver::enter(self)?;
        let allocate = |flags| {
            let mut ptr = 0;
            // SAFETY: the output is live.
            unsafe { call!(self.hip, allocate_with_flags(&mut ptr, bytes as usize, flags)) }.map(|()| ptr)
        };
        let [uncached, fine_grained] = PEER_MEMORY_FLAGS;
        allocate(uncached)
            .or_else(|_| allocate(fine_grained))
            .map_err(|e| self.short_of(e, bytes, "device"))
    }

    /// Runtimes before ROCm 5.3 do not say; the clocks of that time ran at 100 MHz (of MI100: 25, which only makes a
    /// limit longer).
    fn ticks_per_ms(&self) -> Result<u64> {
        let mut khz = 0;
        // SAFETY: the output is live.
        let code = unsafe { (self.hip.device_attribute)(&mut khz, attribute::WALL_CLOCK_KHZ, self.ordinal) };
        Ok(if code == 0 && khz > 0 { khz as u64 } else { 100_000 })
    }
}
