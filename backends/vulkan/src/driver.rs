//! The driver of one device: the shared trait over streams, memory and pipelines. Handles are addresses of
//! reference-counted objects.

use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use halyard_gpu::{
    DevicePtr, Driver, Event, Facts, Function, Graph, KernelText, Module, Modules, Param, Pinned, Policy, Product,
    ProductSpec, Source, Stream,
};
use halyard_kernels_gpu::{LINEAR_TILED, Language, PRODUCT};
use halyard_platform_api::{DType, Error, OpenOptions, Result, log};

use crate::compile;
use crate::core::Core;
use crate::env;
use crate::memory::Memory;
use crate::physical::Physical;
use crate::pipelines::{FunctionCore, ModuleCore, Pipelines};
use crate::policy::policy;
use crate::product::{self, Matrices, Tile};
use crate::recorder::MAX_REGIONS;
use crate::self_test;
use crate::stream::{GraphCore, Point, StreamCore, stream};

/// Bytes of each row of the table of constants, from which unaligned ends of fills are copied.
const CONSTANT_BYTES: u64 = 4;

/// An open device.
pub(crate) struct VulkanDriver {
    // In the order in which they must go.
    functions: Mutex<Vec<Arc<FunctionCore>>>,
    modules: Mutex<Vec<Arc<ModuleCore>>>,
    pipelines: Arc<Pipelines>,
    /// Of the product kernels, which no op asks for.
    products: Modules,
    /// The results of the products' self-test.
    tested: Mutex<Vec<Tested>>,
    /// Every byte value, a few times.
    constants: Pinned,
    memory: Arc<Memory>,
    policy: Policy,
    /// Whether products may run on matrices of whole workgroups.
    wide_matrices: bool,
    core: Arc<Core>,
}

/// What an event names; `None`: nothing yet, so it has passed.
type EventCore = Mutex<Option<Point>>;

impl VulkanDriver {
    pub(crate) fn open(physical: Physical, options: &OpenOptions) -> Result<VulkanDriver> {
        let core = Arc::new(Core::open(physical)?);
        let memory = Arc::new(Memory::new(core.clone()));
        let pipelines = Arc::new(Pipelines::new(&core, env::cache_folder(options))?);
        let constants = memory.allocate_pinned(256 * CONSTANT_BYTES)?;
        for at in 0..256 * CONSTANT_BYTES {
            // SAFETY: fresh memory of that size.
            unsafe { constants.host.add(at as usize).write((at / CONSTANT_BYTES) as u8) };
        }
        let rounding = env::rounding(options);
        let policy = policy(&core.physical, rounding, env::matrix_attention_is_allowed(options));
        Ok(VulkanDriver {
            functions: Mutex::default(),
            modules: Mutex::default(),
            pipelines,
            products: Modules::with_folder(env::cache_folder(options)),
            tested: Mutex::default(),
            constants,
            memory,
            policy,
            wide_matrices: env::wide_matrices_are_allowed(options),
            core,
        })
    }
}

/// A kind of product (types, accumulating or not, with matrices of workgroups or without), and what its test has shown.
type Tested = ((DType, DType, bool, bool), Result<()>);

impl VulkanDriver {
    /// A function of a product kernel.
    fn product_function(
        &self,
        source: Source,
        entry: &str,
        definitions: &[(&'static str, String)],
        spec: &[(&str, &str)],
    ) -> Result<Arc<FunctionCore>> {
        let mut all = spec.to_vec();
        all.extend(definitions.iter().map(|(name, value)| (*name, value.as_str())));
        let function = self.products.function(self, source, &all, entry, 0)?;
        // SAFETY: functions live as long as the driver.
        Ok(unsafe { holder::<FunctionCore>(function.0) })
    }

    /// The kernels of a kind of product, tested, of the sizes that the test has.
    fn tested_product(&self, spec: &ProductSpec, definitions: &[(&str, &str)], wide: bool) -> Result<Matrices> {
        let physical = &self.core.physical;
        let tiles = product::tiles(&physical.wide, spec.act, wide).into_iter();
        let tiles = tiles.map(|tile| {
            let function =
                self.product_function(tile.kernel(), tile.kernel().name, &tile.definitions(), definitions)?;
            Ok((tile, function))
        });
        let matrices = Matrices {
            pipelines: self.pipelines.clone(),
            tiles: tiles.collect::<Result<_>>()?,
            small_batch: Some(self.product_function(PRODUCT, "product_few", &[], definitions)?),
            in_features: self_test::IN_FEATURES,
            out_features: self_test::OUT_FEATURES,
            num_sms: physical.facts.num_sms,
        };
        self.self_test(&matrices, spec, wide)?;
        Ok(matrices)
    }

    /// What the test of a kind of product says: the shapes of its kernels.
    #[cfg(test)]
    pub(crate) fn outcome_of_product(&self, spec: &ProductSpec, wide: bool) -> Result<Vec<Tile>> {
        let definitions = product::definitions(&self.core.physical, spec)?;
        let matrices = self.tested_product(spec, &definitions, wide)?;
        Ok(matrices.tiles.into_iter().map(|(tile, _)| tile).collect())
    }

    /// Whether products of such types give the right numbers: tested once.
    fn self_test(&self, matrices: &Matrices, spec: &ProductSpec, wide: bool) -> Result<()> {
        let kind = (spec.act, spec.out, spec.accumulate, wide);
        let mut tested = self.tested.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, outcome)) = tested.iter().find(|(known, _)| *known == kind) {
            return outcome.clone();
        }
        let outcome = self_test::check(self, matrices, spec);
        let (device, act) = (&self.core.physical.facts.name, spec.act);
        let of_whom = if wide { "workgroups" } else { "subgroups" };
        let subject = format!(
            "{device}: products of {act:?} to {:?} on matrices of {of_whom}",
            spec.out
        );
        match &outcome {
            Ok(()) => log::debug("vulkan", &format!("{subject}: tested, and right")),
            Err(why) => log::warn("vulkan", &format!("{subject}: {}; others run instead", why.message)),
        }
        tested.push((kind, outcome.clone()));
        outcome
    }
}

/// The object behind a handle.
///
/// # Safety
/// The handle came from `into_handle` and has not been ended.
unsafe fn object<'a, T>(handle: usize) -> &'a T {
    // SAFETY: as the caller promises.
    unsafe { &*(handle as *const T) }
}

/// Another holder of the object behind a handle.
///
/// # Safety
/// As [`object`].
unsafe fn holder<T>(handle: usize) -> Arc<T> {
    // SAFETY: as the caller promises; the handle keeps its own count.
    unsafe {
        Arc::increment_strong_count(handle as *const T);
        Arc::from_raw(handle as *const T)
    }
}

fn into_handle<T>(object: T) -> usize {
    Arc::into_raw(Arc::new(object)) as usize
}

/// Ends a handle.
///
/// # Safety
/// As [`object`]; the handle is not used again.
unsafe fn end<T>(handle: usize) {
    // SAFETY: as the caller promises.
    drop(unsafe { Arc::from_raw(handle as *const T) });
}

fn point_of(which: Event) -> Option<Point> {
    // SAFETY: the trait's callers use events until they end them.
    let event: &EventCore = unsafe { object(which.0) };
    event.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Driver for VulkanDriver {
    fn facts(&self) -> &Facts {
        &self.core.physical.facts
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn memory(&self) -> Result<(u64, u64)> {
        Ok(self.memory.info())
    }

    fn allocate(&self, bytes: u64) -> Result<DevicePtr> {
        self.memory.allocate(bytes)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        // SAFETY: as the caller promises.
        unsafe { self.memory.free(ptr) };
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Pinned> {
        self.memory.allocate_pinned(bytes)
    }

    unsafe fn free_pinned(&self, pinned: Pinned) {
        // SAFETY: as the caller promises.
        unsafe { self.memory.free(pinned.device) };
    }

    fn create_stream(&self) -> Result<Stream> {
        Ok(Stream(into_handle(StreamCore::new(&self.core, &self.memory)?)))
    }

    unsafe fn destroy_stream(&self, which: Stream) {
        // SAFETY: as the caller promises.
        unsafe { end::<StreamCore>(which.0) };
    }

    fn synchronize(&self, which: Stream) -> Result<()> {
        // SAFETY: a live stream.
        let stream = unsafe { stream(which) };
        let last = stream.flush()?;
        stream.wait(last)
    }

    fn create_event(&self) -> Result<Event> {
        Ok(Event(into_handle(EventCore::new(None))))
    }

    unsafe fn destroy_event(&self, which: Event) {
        // SAFETY: as the caller promises.
        unsafe { end::<EventCore>(which.0) };
    }

    fn record_event(&self, which: Event, on: Stream) -> Result<()> {
        // SAFETY: a live stream and a live event.
        let (stream, event) = unsafe { (holder::<StreamCore>(on.0), object::<EventCore>(which.0)) };
        let point = stream.point()?;
        *event.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
        Ok(())
    }

    fn stream_wait(&self, which: Stream, on: Event) -> Result<()> {
        match point_of(on) {
            // SAFETY: a live stream.
            Some(point) => unsafe { stream(which) }.wait_for(point),
            None => Ok(()),
        }
    }

    fn synchronize_event(&self, which: Event) -> Result<()> {
        match point_of(which) {
            Some((stream, value)) => stream.wait(value),
            None => Ok(()),
        }
    }

    fn query_event(&self, which: Event) -> Result<bool> {
        match point_of(which) {
            Some((stream, value)) => stream.has_passed(value),
            None => Ok(true),
        }
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, on: Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.copy_2d(to, bytes, from, bytes, bytes, 1, on) }
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
        if width == 0 || height == 0 {
            return Ok(());
        }
        let target = self.memory.locate(to, (height - 1) * to_pitch + width)?;
        let source = self.memory.locate(from, (height - 1) * from_pitch + width)?;
        let region = |row: u64, bytes: u64| vk::BufferCopy {
            src_offset: source.offset + row * from_pitch,
            dst_offset: target.offset + row * to_pitch,
            size: bytes,
        };
        let regions: Vec<vk::BufferCopy> = match to_pitch == width && from_pitch == width {
            true => vec![region(0, width * height)],
            false => (0..height).map(|row| region(row, width)).collect(),
        };
        // SAFETY: a live stream.
        unsafe { stream(on) }.record(|recorder, _| {
            for part in regions.chunks(MAX_REGIONS) {
                recorder.copy(source.buffer, target.buffer, part);
            }
            Ok(())
        })
    }

    unsafe fn fill(&self, to: DevicePtr, value: u8, bytes: u64, on: Stream) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let target = self.memory.locate(to, bytes)?;
        let constant = self.memory.locate(
            self.constants.device + u64::from(value) * CONSTANT_BYTES,
            CONSTANT_BYTES,
        )?;
        // Fills are of whole words; up to three bytes on either side are copied from the table.
        let head = (target.offset.next_multiple_of(4) - target.offset).min(bytes);
        let words = (bytes - head) / 4 * 4;
        let tail = bytes - head - words;
        // SAFETY: a live stream.
        unsafe { stream(on) }.record(|recorder, _| {
            if words > 0 {
                let mut middle = target;
                middle.offset += head;
                recorder.fill(middle, words, value);
            }
            for (offset, bytes) in [(0, head), (head + words, tail)] {
                if bytes > 0 {
                    let region = vk::BufferCopy {
                        src_offset: constant.offset,
                        dst_offset: target.offset + offset,
                        size: bytes,
                    };
                    recorder.copy(constant.buffer, target.buffer, &[region]);
                }
            }
            Ok(())
        })
    }

    unsafe fn write_value(&self, to: DevicePtr, value: u64, on: Stream) -> Result<()> {
        let target = self.memory.locate(to, 8)?;
        // SAFETY: a live stream.
        let stream = unsafe { stream(on) };
        stream.record(|recorder, _| {
            recorder.write_value(target, value);
            Ok(())
        })?;
        // A thread that polls the word calls nothing that would submit it.
        stream.flush().map(|_| ())
    }

    fn kernel_text(&self, source: Source) -> Result<KernelText> {
        if self.core.physical.passes_in_vectors && source.name == LINEAR_TILED.name {
            return Err(Error::unsupported(
                "a processor takes many tokens as it takes few: tiles meet at barriers, which cost it more than they \
                 save",
            ));
        }
        KernelText::of(source, Language::Glsl)
    }

    fn compile(&self, name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>> {
        let mut options = options.to_vec();
        if let Some(lanes) = self.core.physical.subgroup() {
            options.push(format!("-DSUBGROUP={lanes}"));
        }
        compile::compile(name, text, &options)
    }

    fn compiler(&self) -> Result<String> {
        Ok(compile::COMPILER.to_string())
    }

    fn load(&self, image: &[u8]) -> Result<Module> {
        let module = Arc::new(ModuleCore::load(&self.core, image)?);
        let handle = Arc::as_ptr(&module) as usize;
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
        Ok(Module(handle))
    }

    fn function(&self, module: Module, name: &str, shared_bytes: u32) -> Result<Function> {
        let most = self.core.physical.facts.max_shared_bytes;
        if shared_bytes > most {
            return Err(Error::unsupported(format!(
                "{name} with {shared_bytes} bytes of dynamic shared memory; the device has {most} a workgroup"
            )));
        }
        // SAFETY: modules live as long as the driver.
        let module = unsafe { holder::<ModuleCore>(module.0) };
        let function = Arc::new(FunctionCore::new(name, module));
        let handle = Arc::as_ptr(&function) as usize;
        self.functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(function);
        Ok(Function(handle))
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
        // SAFETY: functions live as long as the driver; the stream is live.
        let (function, stream) = unsafe { (object::<FunctionCore>(function.0), stream(on)) };
        if block[1] != 1 || block[2] != 1 {
            return Err(Error::unsupported(format!(
                "{} with workgroups of {block:?}: shaders here have one axis",
                function.name()
            )));
        }
        let bound = self.pipelines.bound(function, block[0], shared_bytes)?;
        stream.record(|recorder, memory| recorder.launch(memory, bound, grid, params))
    }

    fn mark_independent(&self, on: Stream) -> Result<()> {
        // SAFETY: a live stream.
        unsafe { stream(on) }.record(|recorder, _| {
            recorder.mark_independent();
            Ok(())
        })
    }

    fn begin_capture(&self, on: Stream) -> Result<()> {
        // SAFETY: a live stream.
        unsafe { stream(on) }.begin_capture()
    }

    fn end_capture(&self, on: Stream) -> Result<Graph> {
        // SAFETY: a live stream.
        Ok(Graph(into_handle(unsafe { stream(on) }.end_capture()?)))
    }

    unsafe fn launch_graph(&self, graph: Graph, on: Stream) -> Result<()> {
        // SAFETY: both are live.
        let (stream, graph) = unsafe { (stream(on), object::<GraphCore>(graph.0)) };
        stream.launch_graph(graph)
    }

    unsafe fn destroy_graph(&self, graph: Graph) {
        // SAFETY: as the caller promises.
        unsafe { end::<GraphCore>(graph.0) };
    }

    fn product(&self, spec: &ProductSpec) -> Result<Arc<dyn Product>> {
        let physical = &self.core.physical;
        let definitions = product::definitions(physical, spec)?;
        let there = product::tiles(&physical.wide, spec.act, true).iter().any(Tile::is_wide);
        let wide = there && self.wide_matrices;
        let matrices = match wide.then(|| self.tested_product(spec, &definitions, true)) {
            // What is wrong in workgroups may be right in subgroups.
            None | Some(Err(_)) => self.tested_product(spec, &definitions, false)?,
            Some(Ok(matrices)) => matrices,
        };
        let suits = product::takes_small_batches(spec.in_features, spec.out_features);
        Ok(Arc::new(Matrices {
            small_batch: matrices.small_batch.filter(|_| suits),
            in_features: spec.in_features,
            out_features: spec.out_features,
            ..matrices
        }))
    }
}
