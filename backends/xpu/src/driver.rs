//! The driver of one device: OpenCL behind the trait that GPU platforms share. Streams are in-order queues, events
//! markers, addresses those of shared memory, graphs recordings made by the host.

use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use halyard_gpu::{
    DevicePtr, Driver, Event, Facts, Function, Graph, KernelText, Module, Param, Pinned, Policy, Product, ProductSpec,
    Source, Stream,
};
use halyard_kernels_gpu::Language;
use halyard_platform_api::{DType, Error, OpenOptions, Result, Status, log};

use crate::api::{self, Api, CommandBuffers, Handle, SUCCESS};
use crate::compile::{Compiler, Program};
use crate::env::rounding;
use crate::error::check;
use crate::facts::Found;
use crate::library;
use crate::memory::Memory;
use crate::policy::policy;
use crate::recording::{Launch, Recording, Step, enqueue_launch};
use crate::self_test;
use crate::stream::{EventState, StreamState};

/// Largest pattern of a fill, bytes: runtimes write it in one piece.
const PATTERN_BYTES: u64 = 16;
/// Work-items of a group that copies rows.
const COPY_ITEMS: usize = 64;
/// Most groups that share a row.
const COPY_GROUPS: u64 = 16;

/// An entry point.
struct Entry {
    api: &'static Api,
    program: Handle,
    name: CString,
    /// Takes the parameters of launches that run at once. Held over both: the object holds one set only.
    kernel: Mutex<Handle>,
    num_args: u32,
    /// Largest work-group that the device runs it with.
    max_items: usize,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let kernel = *self.kernel.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made once, released once.
        unsafe { (self.api.clReleaseKernel)(kernel) };
    }
}

/// A context that is released when it goes.
struct Context {
    api: &'static Api,
    handle: Handle,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made once, released once.
        unsafe { (self.api.clReleaseContext)(self.handle) };
    }
}

/// An open device. Fields are dropped in order: what is made in a context goes before it.
pub(crate) struct OpenClDriver {
    // Boxed: handles are their addresses.
    #[allow(clippy::vec_box)]
    entries: Mutex<Vec<Box<Entry>>>,
    #[allow(clippy::vec_box)]
    programs: Mutex<Vec<Box<Program>>>,
    memory: Memory,
    context: Context,
    buffers: Option<CommandBuffers>,
    copy_rows: OnceLock<Result<[Function; 2]>>,
    /// The results of self-tests of matrix units, by the type of their operands.
    tested: Mutex<Vec<(DType, Result<()>)>>,
    policy: Policy,
    found: Found,
    api: &'static Api,
}

fn stream<'a>(stream: Stream) -> &'a StreamState {
    // SAFETY: made by `create_stream`; the owner of the handle keeps it until `destroy_stream`.
    unsafe { &*(stream.0 as *const StreamState) }
}

fn event<'a>(event: Event) -> &'a EventState {
    // SAFETY: made by `create_event`; the owner of the handle keeps it until `destroy_event`.
    unsafe { &*(event.0 as *const EventState) }
}

impl OpenClDriver {
    /// Opens a device.
    pub(crate) fn open(found: Found, options: &OpenOptions) -> Result<OpenClDriver> {
        let api = library::api()?;
        let mut code = SUCCESS;
        // SAFETY: one live device; no properties, no callback.
        let handle = unsafe {
            (api.clCreateContext)(
                std::ptr::null(),
                1,
                &found.device,
                None,
                std::ptr::null_mut(),
                &mut code,
            )
        };
        check("clCreateContext", code).map_err(|e| Error {
            message: format!("{}: {}", found.facts.name, e.message),
            ..e
        })?;
        let context = Context { api, handle };
        let buffers = match found.command_buffers {
            true => api.extension(found.platform, |find| CommandBuffers::from(find)),
            false => None,
        };
        Ok(OpenClDriver {
            entries: Mutex::default(),
            programs: Mutex::default(),
            memory: Memory::new(api, &found, handle)?,
            context,
            buffers,
            copy_rows: OnceLock::new(),
            tested: Mutex::default(),
            policy: policy(found.matrix, found.dots, rounding(options)),
            found,
            api,
        })
    }

    fn compiler_of_device(&self) -> Compiler {
        Compiler {
            api: self.api,
            context: self.context.handle,
            device: self.found.device,
            for_cpu: self.found.for_cpu,
            subgroup: self.found.subgroup,
            matrix: self.found.matrix,
            native_dots: self.found.dots.native,
            exact_division: self.found.exact_division,
            keeps_code: self.found.keeps_code,
        }
    }

    fn entry(&self, function: Function) -> &Entry {
        // SAFETY: made by `function`; entries live as long as this.
        unsafe { &*(function.0 as *const Entry) }
    }

    /// A kernel object of its own.
    fn create_kernel(&self, program: Handle, name: &CString) -> Result<Handle> {
        let mut code = SUCCESS;
        // SAFETY: a live program and a name that ends in 0.
        let kernel = unsafe { (self.api.clCreateKernel)(program, name.as_ptr(), &mut code) };
        check("clCreateKernel", code).map_err(|e| Error {
            message: format!("entry point {}: {}", name.to_string_lossy(), e.message),
            ..e
        })?;
        Ok(kernel)
    }

    /// Sets all parameters of `kernel`, which the caller holds alone.
    fn set_params(&self, entry: &Entry, kernel: Handle, params: &[Param<'_>], shared_bytes: u32) -> Result<()> {
        let count = params.len() as u32;
        // A kernel that keeps its arrays elsewhere than its twins do leaves the local memory of the launch alone.
        let takes_shared = entry.num_args == count + 1;
        if !takes_shared && entry.num_args != count {
            let takes = entry.num_args;
            return Err(Error::new(
                Status::Internal,
                format!("{count} parameters for a kernel that takes {takes} in all"),
            ));
        }
        for (index, param) in params.iter().enumerate() {
            let index = index as u32;
            let set = |bytes: usize, at: *const u8| {
                // SAFETY: a live kernel, a value of the size given.
                let code = unsafe { (self.api.clSetKernelArg)(kernel, index, bytes, at.cast()) };
                ("clSetKernelArg", code)
            };
            let (call, code) = match param {
                Param::Ptr(address) => self.memory.set_address(kernel, index, *address),
                Param::Word(value) => set(size_of::<u32>(), std::ptr::from_ref(value).cast()),
                Param::Long(value) => set(size_of::<u64>(), std::ptr::from_ref(value).cast()),
                Param::Bytes(_) => return Err(Error::unsupported("a struct by value: no kernel here takes one")),
            };
            check(call, code).map_err(|e| Error {
                message: format!("parameter {index} ({param:?}): {}", e.message),
                ..e
            })?;
        }
        if takes_shared {
            // An empty local array is not allowed.
            let bytes = (shared_bytes as usize).max(16);
            // SAFETY: a size without a value is how local memory is given.
            let code = unsafe { (self.api.clSetKernelArg)(kernel, count, bytes, std::ptr::null()) };
            check("clSetKernelArg", code)?;
        }
        Ok(())
    }

    /// The kernels that copy rows: of 16-byte units, of bytes.
    fn copy_rows(&self) -> Result<[Function; 2]> {
        let make = || {
            let text = KernelText {
                text: include_str!("copy_rows.cl"),
                headers: &[],
            };
            let compiler = self.compiler_of_device();
            let module = self.load(&compiler.compile("copy_rows", text, &[])?)?;
            Ok([
                self.function(module, "copy_rows_16", 0)?,
                self.function(module, "copy_rows_1", 0)?,
            ])
        };
        self.copy_rows.get_or_init(make).clone()
    }
}

/// Puts a name in front of a failure.
fn named(entry: &Entry, grid: [u32; 3], block: [u32; 3], error: Error) -> Error {
    Error {
        message: format!(
            "{} (grid {grid:?}, block {block:?}): {}",
            entry.name.to_string_lossy(),
            error.message
        ),
        ..error
    }
}

impl Driver for OpenClDriver {
    fn facts(&self) -> &Facts {
        &self.found.facts
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn memory(&self) -> Result<(u64, u64)> {
        Ok(self.memory.free_and_total())
    }

    fn allocate(&self, bytes: u64) -> Result<DevicePtr> {
        self.memory.device(bytes)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        // SAFETY: as the caller promises.
        unsafe { self.memory.free(ptr) };
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Pinned> {
        let at = self.memory.host(bytes)?;
        Ok(Pinned {
            host: at as *mut u8,
            device: at,
        })
    }

    unsafe fn free_pinned(&self, pinned: Pinned) {
        // SAFETY: as the caller promises.
        unsafe { self.memory.free(pinned.device) };
    }

    fn create_stream(&self) -> Result<Stream> {
        let state = StreamState::new(self.api, self.context.handle, self.found.device)?;
        Ok(Stream(Box::into_raw(Box::new(state)) as usize))
    }

    unsafe fn destroy_stream(&self, which: Stream) {
        // SAFETY: made by `create_stream`, and nothing uses it any more.
        drop(unsafe { Box::from_raw(which.0 as *mut StreamState) });
    }

    fn synchronize(&self, which: Stream) -> Result<()> {
        let state = stream(which);
        state.not_in_capture("waiting")?;
        // SAFETY: a live queue.
        check("clFinish", unsafe { (self.api.clFinish)(state.queue) })
    }

    fn create_event(&self) -> Result<Event> {
        Ok(Event(Box::into_raw(Box::new(EventState::new(self.api))) as usize))
    }

    unsafe fn destroy_event(&self, which: Event) {
        // SAFETY: made by `create_event`, and nothing uses it any more.
        drop(unsafe { Box::from_raw(which.0 as *mut EventState) });
    }

    fn record_event(&self, which: Event, on: Stream) -> Result<()> {
        let state = stream(on);
        state.not_in_capture("an event")?;
        event(which).record(state.queue)
    }

    fn stream_wait(&self, on: Stream, which: Event) -> Result<()> {
        let state = stream(on);
        state.not_in_capture("waiting for an event")?;
        event(which).hold_back(state.queue)
    }

    fn synchronize_event(&self, which: Event) -> Result<()> {
        event(which).wait()
    }

    fn query_event(&self, which: Event) -> Result<bool> {
        event(which).passed()
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, on: Stream) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let state = stream(on);
        if let Some(steps) = &mut *state.capture() {
            steps.push(Step::Copy { to, from, bytes });
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let (call, code) = unsafe { self.memory.copy(state.queue, to, from, bytes) };
        check(call, code)
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
        let [vectors, bytes] = self.copy_rows()?;
        let whole = [to, to_pitch, from, from_pitch, width]
            .iter()
            .all(|n| n.is_multiple_of(16));
        let (function, unit) = if whole { (vectors, 16) } else { (bytes, 1) };
        let groups = (width / unit).div_ceil(COPY_ITEMS as u64).min(COPY_GROUPS) as u32;
        let rows = u32::try_from(height).map_err(|_| Error::invalid(format!("a copy of {height} rows")))?;
        if groups == 0 || rows == 0 {
            return Ok(());
        }
        let params = [
            Param::Ptr(to),
            Param::Long(to_pitch / unit),
            Param::Ptr(from),
            Param::Long(from_pitch / unit),
            Param::Long(width / unit),
        ];
        // SAFETY: the parameters of `copy_rows.cl`; the ranges live as the caller promises.
        unsafe {
            self.launch(
                function,
                [groups, rows, 1],
                [COPY_ITEMS as u32, 1, 1],
                0,
                &params,
                false,
                on,
            )
        }
    }

    unsafe fn fill(&self, to: DevicePtr, value: u8, bytes: u64, on: Stream) -> Result<()> {
        // In large patterns as far as they fit, the rest byte by byte.
        let head = if to.is_multiple_of(PATTERN_BYTES) {
            bytes - bytes % PATTERN_BYTES
        } else {
            0
        };
        let pattern = [value; PATTERN_BYTES as usize];
        let parts = [(to, head, &pattern[..]), (to + head, bytes - head, &pattern[..1])];
        let state = stream(on);
        for (to, bytes, pattern) in parts.into_iter().filter(|part| part.1 > 0) {
            if let Some(steps) = &mut *state.capture() {
                let pattern = pattern.to_vec();
                steps.push(Step::Fill { to, pattern, bytes });
                continue;
            }
            // SAFETY: as the caller promises.
            let (call, code) = unsafe { self.memory.fill(state.queue, to, pattern, bytes) };
            check(call, code)?;
        }
        Ok(())
    }

    unsafe fn write_value(&self, to: DevicePtr, value: u64, on: Stream) -> Result<()> {
        let state = stream(on);
        state.not_in_capture("writing a value")?;
        let pattern = value.to_le_bytes();
        // SAFETY: as the caller promises. The queue is in order: the fill comes after all earlier work.
        let (call, code) = unsafe { self.memory.fill(state.queue, to, &pattern, pattern.len() as u64) };
        check(call, code)
    }

    fn self_test_matrix_units(&self, dtype: DType) -> Result<()> {
        let Some(matrix) = self.found.matrix else {
            return Err(Error::unsupported("this device has no matrix units"));
        };
        let mut tested = self.tested.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, outcome)) = tested.iter().find(|(known, _)| *known == dtype) {
            return outcome.clone();
        }
        let outcome = self_test::check(self, dtype, &matrix.tiling());
        let subject = format!("{}: products of {dtype:?} on matrix units", self.found.facts.name);
        match &outcome {
            Ok(()) => log::debug("xpu", &format!("{subject}: tested, and right")),
            Err(why) => log::warn("xpu", &format!("{subject}: {}; others run instead", why.message)),
        }
        tested.push((dtype, outcome.clone()));
        outcome
    }

    fn kernel_text(&self, source: Source) -> Result<KernelText> {
        KernelText::of(source, Language::OpenCl)
    }

    fn compile(&self, name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>> {
        self.compiler_of_device().compile(name, text, options)
    }

    fn compiler(&self) -> Result<String> {
        Ok(self.found.runtime.clone())
    }

    fn load(&self, image: &[u8]) -> Result<Module> {
        let program = Box::new(self.compiler_of_device().load(image)?);
        let module = Module(program.handle);
        self.programs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(program);
        Ok(module)
    }

    fn function(&self, module: Module, name: &str, shared_bytes: u32) -> Result<Function> {
        let limit = self.found.facts.max_shared_bytes;
        if shared_bytes > limit {
            return Err(Error::unsupported(format!(
                "{name} with {shared_bytes} bytes of local memory: {} has {limit}",
                self.found.facts.name
            )));
        }
        let name = CString::new(name).map_err(|_| Error::invalid("an entry point's name with a zero byte"))?;
        let program = module.0;
        let mut entry = Box::new(Entry {
            api: self.api,
            program,
            kernel: Mutex::new(self.create_kernel(program, &name)?),
            name,
            num_args: 0,
            max_items: 0,
        });
        let kernel = *entry.kernel.get_mut().unwrap_or_else(PoisonError::into_inner);
        let none = std::ptr::null_mut();
        let device = self.found.device;
        // SAFETY: a live kernel and device; each output has the size given.
        unsafe {
            let at = (&raw mut entry.num_args).cast();
            let code = (self.api.clGetKernelInfo)(kernel, api::KERNEL_NUM_ARGS, size_of::<u32>(), at, none);
            check("clGetKernelInfo", code)?;
            let (at, bytes) = ((&raw mut entry.max_items).cast(), size_of::<usize>());
            let property = api::KERNEL_WORK_GROUP_SIZE;
            let code = (self.api.clGetKernelWorkGroupInfo)(kernel, device, property, bytes, at, none);
            check("clGetKernelWorkGroupInfo", code)?;
        }
        let function = Function(std::ptr::from_ref::<Entry>(&entry) as usize);
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        Ok(function)
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
        let (state, entry) = (stream(on), self.entry(function));
        let local = block.map(|n| n as usize);
        let items: usize = local.iter().product();
        if items > entry.max_items {
            let limit = entry.max_items;
            let error = Error::unsupported(format!("this device runs it with {limit} work-items a group at most"));
            return Err(named(entry, grid, block, error));
        }
        let global = [0, 1, 2].map(|axis| grid[axis] as usize * local[axis]);
        let name = |error| named(entry, grid, block, error);
        if let Some(steps) = &mut *state.capture() {
            let kernel = self.create_kernel(entry.program, &entry.name)?;
            let launch = Launch::new(self.api, kernel, global, local);
            self.set_params(entry, launch.kernel(), params, shared_bytes)
                .map_err(name)?;
            steps.push(Step::Launch(launch));
            return Ok(());
        }
        let kernel = entry.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_params(entry, *kernel, params, shared_bytes).map_err(name)?;
        // SAFETY: as the caller promises; the kernel is held until the runtime has taken its parameters.
        let (call, code) = unsafe { enqueue_launch(self.api, state.queue, *kernel, &global, &local) };
        check(call, code).map_err(name)
    }

    fn begin_capture(&self, on: Stream) -> Result<()> {
        let state = stream(on);
        state.not_in_capture("beginning to record")?;
        *state.capture() = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, on: Stream) -> Result<Graph> {
        let state = stream(on);
        let Some(steps) = state.capture().take() else {
            return Err(Error::invalid("the stream is not being recorded"));
        };
        let recording = Recording::new(steps, state.queue, self.buffers.as_ref())?;
        Ok(Graph(Box::into_raw(Box::new(recording)) as usize))
    }

    unsafe fn launch_graph(&self, graph: Graph, on: Stream) -> Result<()> {
        // SAFETY: made by `end_capture`, alive until `destroy_graph`.
        let recording = unsafe { &*(graph.0 as *const Recording) };
        // SAFETY: as the caller promises.
        unsafe { recording.enqueue(self.api, &self.memory, stream(on).queue) }
    }

    unsafe fn destroy_graph(&self, graph: Graph) {
        // SAFETY: made by `end_capture`, and no launch of it is in flight.
        drop(unsafe { Box::from_raw(graph.0 as *mut Recording) });
    }

    fn product(&self, _spec: &ProductSpec) -> Result<Arc<dyn Product>> {
        Err(Error::unsupported(
            "OpenCL brings no library of matrix products: the platform's own kernels run",
        ))
    }
}
