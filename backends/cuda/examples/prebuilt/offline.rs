//! A device that computes nothing: memory is addresses alone, and work is done at once and leaves everything as it was.
//! A model starts on it as on the device whose facts it has, and asks for the same kernels. With the first weights that
//! is over: kernels are asked for before, and the device takes nothing more.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use halyard_cuda::takes;
use halyard_gpu::{
    DevicePtr, Driver, Event, Facts, Function, Graph, KernelKey, KernelText, Module, Param, Pinned, Policy, Product,
    ProductCall, ProductSpec, Stream, kernel_key,
};
use halyard_platform_api::{Error, Result, Status};

/// Alignment of both kinds of memory.
const ALIGNMENT: u64 = 4096;
/// Where addresses of device memory begin: no host memory lies there.
const FIRST_ADDRESS: u64 = 1 << 56;

/// Makes machine code of a kernel file: of its name, text and definitions, for an architecture.
pub type Compile = dyn Fn(&str, KernelText, &[String], &str) -> Result<Vec<u8>> + Send + Sync;

/// A kernel file under one set of definitions for one architecture.
struct Asked {
    /// File, definitions and architecture.
    name: String,
    image: OnceLock<Result<Vec<u8>>>,
}

/// The kernels that were asked for, each compiled once.
pub struct Collected {
    compile: Box<Compile>,
    kernels: Mutex<BTreeMap<KernelKey, Arc<Asked>>>,
}

fn lock<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collected {
    pub fn new(compile: Box<Compile>) -> Collected {
        Collected {
            compile,
            kernels: Mutex::default(),
        }
    }

    fn image(&self, name: &str, text: KernelText, options: &[String], arch: &str) -> Result<Vec<u8>> {
        let asked = || {
            Arc::new(Asked {
                name: format!("{arch} {name} {}", options.join(" ")),
                image: OnceLock::new(),
            })
        };
        let key = kernel_key(name, text, options, arch);
        let kernel = lock(&self.kernels).entry(key).or_insert_with(asked).clone();
        // Who asks for the same file meanwhile waits for it.
        let compile = || (self.compile)(name, text, options, arch);
        kernel.image.get_or_init(compile).clone()
    }

    /// Every image by its key.
    pub fn images(&self) -> BTreeMap<KernelKey, Vec<u8>> {
        let kernels = lock(&self.kernels);
        let made = |(key, kernel): (&KernelKey, &Arc<Asked>)| {
            let image = kernel.image.get()?.as_ref().ok()?;
            Some((*key, image.clone()))
        };
        kernels.iter().filter_map(made).collect()
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        lock(&self.kernels).len()
    }

    /// "sm_90a sample " and the like, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = lock(&self.kernels).values().map(|kernel| kernel.name.clone()).collect();
        names.sort();
        names
    }
}

/// The driver of such a device.
pub struct Offline {
    facts: Facts,
    policy: Policy,
    collected: Arc<Collected>,
    next_address: AtomicU64,
    next_handle: AtomicUsize,
    is_over: AtomicBool,
    pinned: Mutex<HashMap<usize, Layout>>,
}

impl Offline {
    pub fn new(facts: Facts, collected: Arc<Collected>) -> Offline {
        Offline {
            facts,
            policy: Policy::default(),
            collected,
            next_address: AtomicU64::new(FIRST_ADDRESS),
            next_handle: AtomicUsize::new(1),
            is_over: AtomicBool::new(false),
            pinned: Mutex::default(),
        }
    }

    fn handle(&self) -> usize {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets work that comes from now on fail.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn work(&self) -> Result<()> {
        match self.is_over() {
            true => Err(Error::new(Status::Unavailable, "this device computes nothing")),
            false => Ok(()),
        }
    }
}

/// Products of a library, as cuBLASLt has them.
struct NoProduct;

impl Product for NoProduct {
    fn workspace_bytes(&self) -> u64 {
        32 << 20
    }

    unsafe fn run(&self, _call: &ProductCall, _workspace: DevicePtr, _stream: Stream) -> Result<()> {
        Ok(())
    }
}

impl Driver for Offline {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    /// All of it is always free: weights, which fill it, do not come.
    fn memory(&self) -> Result<(u64, u64)> {
        let total = self.facts.total_memory_bytes;
        Ok((total, total))
    }

    fn allocate(&self, bytes: u64) -> Result<DevicePtr> {
        self.work()?;
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        Ok(self.next_address.fetch_add(bytes, Ordering::Relaxed))
    }

    unsafe fn free(&self, _ptr: DevicePtr) {}

    /// Real memory, all zeros: what the device answers there is what nothing has written.
    fn allocate_pinned(&self, bytes: u64) -> Result<Pinned> {
        let layout = Layout::from_size_align(bytes.max(1) as usize, ALIGNMENT as usize)
            .map_err(|_| Error::invalid(format!("{bytes} bytes of pinned memory")))?;
        // SAFETY: not of size 0.
        let host = unsafe { alloc_zeroed(layout) };
        if host.is_null() {
            return Err(Error::new(
                Status::OutOfMemory,
                format!("{bytes} bytes of pinned memory"),
            ));
        }
        lock(&self.pinned).insert(host as usize, layout);
        Ok(Pinned {
            host,
            device: host as u64,
        })
    }

    unsafe fn free_pinned(&self, pinned: Pinned) {
        if let Some(layout) = lock(&self.pinned).remove(&(pinned.host as usize)) {
            // SAFETY: allocated with this layout, and removed so that it is freed once.
            unsafe { dealloc(pinned.host, layout) };
        }
    }

    fn create_stream(&self) -> Result<Stream> {
        Ok(Stream(self.handle()))
    }

    unsafe fn destroy_stream(&self, _stream: Stream) {}

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn create_event(&self) -> Result<Event> {
        Ok(Event(self.handle()))
    }

    unsafe fn destroy_event(&self, _event: Event) {}

    fn record_event(&self, _event: Event, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn stream_wait(&self, _stream: Stream, _event: Event) -> Result<()> {
        Ok(())
    }

    fn synchronize_event(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    fn query_event(&self, _event: Event) -> Result<bool> {
        Ok(true)
    }

    unsafe fn copy(&self, _to: DevicePtr, _from: DevicePtr, _bytes: u64, _stream: Stream) -> Result<()> {
        self.work()
    }

    unsafe fn copy_2d(
        &self,
        _to: DevicePtr,
        _to_pitch: u64,
        _from: DevicePtr,
        _from_pitch: u64,
        _width: u64,
        _height: u64,
        _stream: Stream,
    ) -> Result<()> {
        self.work()
    }

    unsafe fn fill(&self, _to: DevicePtr, _value: u8, _bytes: u64, _stream: Stream) -> Result<()> {
        self.work()
    }

    /// Who waits for a number in host memory would wait for ever: this alone is done.
    unsafe fn write_value(&self, to: DevicePtr, value: u64, _stream: Stream) -> Result<()> {
        // SAFETY: pinned memory, 8-byte aligned, as the caller promises.
        unsafe { AtomicU64::from_ptr(to as *mut u64) }.store(value, Ordering::Release);
        Ok(())
    }

    fn compile(&self, name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>> {
        self.collected.image(name, text, options, &self.facts.arch)
    }

    fn compiler(&self) -> Result<String> {
        Ok("ahead".to_string())
    }

    fn load(&self, _image: &[u8]) -> Result<Module> {
        Ok(Module(self.handle()))
    }

    fn function(&self, _module: Module, _name: &str, _shared_bytes: u32) -> Result<Function> {
        Ok(Function(self.handle()))
    }

    unsafe fn launch(
        &self,
        _function: Function,
        _grid: [u32; 3],
        _block: [u32; 3],
        _shared_bytes: u32,
        _params: &[Param<'_>],
        _chained: bool,
        _stream: Stream,
    ) -> Result<()> {
        self.work()
    }

    fn begin_capture(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn end_capture(&self, _stream: Stream) -> Result<Graph> {
        Ok(Graph(self.handle()))
    }

    unsafe fn launch_graph(&self, _graph: Graph, _stream: Stream) -> Result<()> {
        Ok(())
    }

    unsafe fn destroy_graph(&self, _graph: Graph) {}

    fn product(&self, spec: &ProductSpec) -> Result<Arc<dyn Product>> {
        if !takes(spec) {
            return Err(Error::unsupported(format!("{spec:?}")));
        }
        Ok(Arc::new(NoProduct))
    }
}
