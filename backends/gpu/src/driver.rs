//! The driver: what a vendor's driver, run-time compiler and libraries do for the shared code. Handles are the vendor's
//! own opaque pointers as numbers; the owner of one keeps the order of creation and destruction.
//!
//! Threads: every method from any thread; the driver makes its context current itself. While one thread captures,
//! others may go on.

use std::sync::Arc;

use halyard_kernels_gpu::{Language, Source};
use halyard_platform_api::communicator::Collective;
use halyard_platform_api::{DType, Error, Result, Status};

pub use crate::handles::{BOX, Boxes, DevicePtr, Event, Function, Graph, Module, Param, Pinned, Stream};
use crate::policy::Policy;
use crate::ranks::RankDriver;

/// Facts of the device.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Product name.
    pub name: String,
    /// Driver and run-time versions, for bug reports.
    pub detail: String,
    /// What the run-time compiler is asked for (`sm_90a`, `gfx942`).
    pub arch: String,
    /// Compute capability as major · 10 + minor; 0 where there is no such thing.
    pub capability: u32,
    /// Multiprocessors.
    pub num_sms: u32,
    /// Lanes of a warp.
    pub warp_size: u32,
    /// Whether the kernels on matrix units (`mma.cuh`) run here; without them ops use the plain kernels and no region
    /// is claimed.
    pub matrix_units: bool,
    /// Whether kernels take structs of addresses by value: step data is then scattered by one launch instead of copied
    /// piece by piece.
    pub struct_params: bool,
    /// Shared memory that one block may ask for, bytes.
    pub max_shared_bytes: u32,
    /// Second-level cache, bytes.
    pub l2_bytes: u64,
    /// Memory, bytes.
    pub total_memory_bytes: u64,
}

/// A kernel file in a driver's language.
#[derive(Clone, Copy, Debug)]
pub struct KernelText {
    /// The file.
    pub text: &'static str,
    /// What it may include, by name.
    pub headers: &'static [(&'static str, &'static str)],
}

impl KernelText {
    /// A kernel file in a language.
    ///
    /// # Errors
    /// `Unsupported` with the reason why the language lacks it.
    pub fn of(source: Source, language: Language) -> Result<KernelText> {
        let lacks = || Error::unsupported(format!("{} is not in {language:?}: {}", source.name, source.lacking));
        Ok(KernelText {
            text: source.text(language).ok_or_else(lacks)?,
            headers: language.headers(),
        })
    }
}

/// What a refused allocation says: how much of which `memory` was asked, on which
/// device, and what is free (`account`: free and total bytes).
pub fn short_of(
    error: Error,
    bytes: u64,
    memory: &str,
    device: &str,
    account: impl FnOnce() -> Result<(u64, u64)>,
) -> Error {
    if error.status != Status::OutOfMemory {
        return error;
    }
    let free = match account() {
        Ok((free, total)) => format!("{free} of {total} free"),
        Err(_) => "unknown".to_string(),
    };
    Error {
        message: format!(
            "{bytes} bytes of {memory} memory on {device} asked ({free} on the device): {}",
            error.message
        ),
        ..error
    }
}

/// out\[t, n\] = Σₖ x\[t, k\]·w\[n, k\] (+ out\[t, n\]) by the vendor's library, w row-major \[N, K\]. Where x and w
/// are 8-bit floats the sum is multiplied by the scale of its token and the one of its weight row, or the sums of every
/// `scale_depth` products by theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductSpec {
    /// K.
    pub in_features: u32,
    /// N.
    pub out_features: u32,
    /// Type of x.
    pub act: DType,
    /// Type of w.
    pub weight: DType,
    /// Type of out.
    pub out: DType,
    /// Adds to what out holds.
    pub accumulate: bool,
    /// Most tokens of one call.
    pub max_tokens: u32,
    /// Of 8-bit floats: neighbours of a row, of x and of w, that share a scale; 0: all of a row.
    pub scale_depth: u32,
    /// Whether as many rows of w share it, too.
    pub weight_blocks: bool,
}

impl ProductSpec {
    /// What the tokens of a call are a multiple of: the library reads scales of several depths four at a time.
    pub fn token_step(&self) -> u32 {
        if self.scale_depth == 0 { 1 } else { 4 }
    }
}

/// One call of a product. Row strides are in elements.
#[derive(Clone, Copy, Debug)]
pub struct ProductCall {
    /// Rows of x.
    pub tokens: u32,
    /// x.
    pub x: DevicePtr,
    /// Distance of its rows.
    pub x_stride: u32,
    /// w.
    pub weight: DevicePtr,
    /// out.
    pub out: DevicePtr,
    /// Distance of its rows.
    pub out_stride: u32,
    /// Of 8-bit floats: f32, a scale a row of x, or with a `scale_depth` \[K / depth, rows\]; else 0.
    pub x_scales: DevicePtr,
    /// The same of w; with `weight_blocks` \[rows / depth, K / depth rounded up to a multiple of four\].
    pub weight_scales: DevicePtr,
}

/// A prepared library product: an algorithm per token bucket. Enqueues without waiting, and can be captured.
pub trait Product: Send + Sync {
    /// Scratch while it runs, bytes.
    fn workspace_bytes(&self) -> u64;

    /// Whether lists with calls of it run once before they are captured: libraries that load code at a first call
    /// cannot in a capture.
    fn must_run_first(&self) -> bool {
        false
    }

    /// Enqueues one call; `workspace` holds [`Product::workspace_bytes`].
    ///
    /// # Safety
    /// The addresses are live device memory of the spec's sizes.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn run(&self, call: &ProductCall, workspace: DevicePtr, stream: Stream) -> Result<()>;
}

/// One call of a collective. Operands are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveCall {
    /// Which.
    pub spec: Collective,
    /// This rank's input; 0: none.
    pub input: DevicePtr,
    /// Its elements.
    pub given: u64,
    /// This rank's output; 0: none.
    pub out: DevicePtr,
    /// Its elements.
    pub taken: u64,
}

/// Most ranks that sum in one kernel.
pub const MAX_PEERS: usize = 8;
/// Bytes of a number and flags that kernels of one rank share, in its own memory before the windows.
pub const PEER_CALLS_BYTES: u64 = 256;

/// Memory of all ranks, through which the kernels of `all_reduce.cu` exchange their parts of a sum. Zeroed before the
/// first call, and alive as long as the group of any rank.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Each rank's memory as this device addresses it: [`PEER_CALLS_BYTES`], then two windows
    /// for each rank that sends.
    pub memory: Vec<DevicePtr>,
    /// Bytes of a window: the largest operand, a multiple of 1024. All words of a window are empty at first.
    pub window_bytes: u64,
    /// Two words of pinned memory: the host's "a rank has left", and the device's "a wait was given up".
    pub host_words: DevicePtr,
    /// How long a kernel waits for the other ranks, in ticks of the clock that it reads.
    pub limit_ticks: u64,
}

impl Peers {
    /// Bytes of one rank's memory.
    pub fn memory_bytes(ranks: u64, window_bytes: u64) -> u64 {
        PEER_CALLS_BYTES + 2 * ranks * window_bytes
    }
}

/// This rank's end of a vendor's group. Enqueues without waiting, and can be captured.
pub trait Group: Send + Sync {
    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn size(&self) -> u32;

    /// Enqueues one call.
    ///
    /// # Safety
    /// The addresses are live memory of the sizes given.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn run(&self, call: &CollectiveCall, stream: Stream) -> Result<()>;

    /// Memory for sums by an own kernel; `None`: [`Group::run`] does them all. The same answer on every rank.
    fn peers(&self) -> Option<&Peers> {
        None
    }

    /// Whether more calls make sense: asked before a recording is replayed, which does not pass through [`Group::run`].
    ///
    /// # Errors
    /// `Unavailable` once this rank has left; as [`Group::outcome`].
    fn check(&self) -> Result<()> {
        self.outcome()
    }

    /// Whether all calls that are done have done what they should: asked when a queue's work is done.
    ///
    /// # Errors
    /// `Timeout` once a kernel of this rank has given up waiting for the others.
    fn outcome(&self) -> Result<()> {
        Ok(())
    }

    /// Leaves the group without waiting: its work that runs on this device is given up, so that no thread here waits
    /// for a rank that does not come. Later calls of [`Group::run`] fail, later ones of this do nothing.
    fn leave(&self);
}

/// A vendor's driver for one open device.
pub trait Driver: Send + Sync {
    /// Facts of the device.
    fn facts(&self) -> &Facts;

    /// How ops run on it.
    fn policy(&self) -> &Policy;

    /// Free and total memory in bytes.
    fn memory(&self) -> Result<(u64, u64)>;

    /// Device memory, contents undefined, aligned to 256.
    ///
    /// # Errors
    /// `OutOfMemory` with what was asked and what is free.
    fn allocate(&self, bytes: u64) -> Result<DevicePtr>;

    /// Frees device memory.
    ///
    /// # Safety
    /// `ptr` came from [`Driver::allocate`] and no work uses it.
    unsafe fn free(&self, ptr: DevicePtr);

    /// Pinned host memory, contents undefined, page aligned.
    fn allocate_pinned(&self, bytes: u64) -> Result<Pinned>;

    /// Frees pinned memory.
    ///
    /// # Safety
    /// As [`Driver::free`].
    unsafe fn free_pinned(&self, pinned: Pinned);

    /// A new stream, independent of all others.
    fn create_stream(&self) -> Result<Stream>;

    /// Ends a stream.
    ///
    /// # Safety
    /// Nothing uses it any more.
    unsafe fn destroy_stream(&self, stream: Stream);

    /// Blocks until all work of the stream is done.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// An event without timing, whose waits sleep.
    fn create_event(&self) -> Result<Event>;

    /// Ends an event.
    ///
    /// # Safety
    /// Nothing uses it any more.
    unsafe fn destroy_event(&self, event: Event);

    /// Marks the stream's end of now.
    fn record_event(&self, event: Event, stream: Stream) -> Result<()>;

    /// Later work of the stream waits for the event.
    fn stream_wait(&self, stream: Stream, event: Event) -> Result<()>;

    /// Blocks until the event has passed.
    fn synchronize_event(&self, event: Event) -> Result<()>;

    /// Whether the event has passed.
    fn query_event(&self, event: Event) -> Result<bool>;

    /// Host memory to device memory (or back, or within: addresses are unified), in stream order.
    ///
    /// # Safety
    /// Both ranges live until the copy is done.
    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, stream: Stream) -> Result<()>;

    /// `height` rows of `width` bytes.
    ///
    /// # Safety
    /// As [`Driver::copy`].
    #[allow(clippy::too_many_arguments)]
    unsafe fn copy_2d(
        &self,
        to: DevicePtr,
        to_pitch: u64,
        from: DevicePtr,
        from_pitch: u64,
        width: u64,
        height: u64,
        stream: Stream,
    ) -> Result<()>;

    /// Fills with a byte, in stream order.
    ///
    /// # Safety
    /// As [`Driver::copy`].
    unsafe fn fill(&self, to: DevicePtr, value: u8, bytes: u64, stream: Stream) -> Result<()>;

    /// Writes `value` to a host word that the device can address, after all earlier work of the stream.
    ///
    /// # Safety
    /// The address is pinned memory, 8-byte aligned.
    unsafe fn write_value(&self, to: DevicePtr, value: u64, stream: Stream) -> Result<()>;

    /// A kernel file in this driver's language: CUDA C++ / HIP unless it says otherwise. Entry points, definitions and
    /// parameters are the same in every language.
    ///
    /// # Errors
    /// `Unsupported` for a file that the language lacks.
    fn kernel_text(&self, source: Source) -> Result<KernelText> {
        KernelText::of(source, Language::Cuda)
    }

    /// Compiles a kernel file for this device.
    ///
    /// # Errors
    /// `Unsupported` with the compiler's log; `Unavailable` naming the library that is missing and how to get it.
    fn compile(&self, name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>>;

    /// Name and version of the compiler: part of the cache's key.
    fn compiler(&self) -> Result<String>;

    /// Loads compiled code.
    fn load(&self, image: &[u8]) -> Result<Module>;

    /// An entry point, allowed to use `shared_bytes` of dynamic shared memory.
    fn function(&self, module: Module, name: &str, shared_bytes: u32) -> Result<Function>;

    /// The shared memory that multiprocessors should set aside while the function runs, where that is the first-level
    /// cache's memory too: kernels that follow each other without a pause keep what the first of them got.
    ///
    /// # Errors
    /// Errors of the driver.
    fn prefer_shared(&self, function: Function, bytes: u32) -> Result<()> {
        let _ = (function, bytes);
        Ok(())
    }

    /// Describes `rows` rows of `width` 16-bit values, one behind the other from `at` on, to the copy engine.
    ///
    /// # Errors
    /// `Unsupported` where there is none that kernels may ask; errors of the driver.
    fn boxes(&self, at: DevicePtr, rows: u64, width: u32) -> Result<Boxes> {
        let _ = (at, rows, width);
        Err(Error::unsupported(
            "this platform's kernels do not ask a copy engine for boxes",
        ))
    }

    /// Starts a kernel; `chained` lets it start while its predecessor ends (where the device can).
    ///
    /// # Safety
    /// The parameters are what the kernel takes.
    #[allow(clippy::too_many_arguments)]
    unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        params: &[Param<'_>],
        chained: bool,
        stream: Stream,
    ) -> Result<()>;

    /// Marks the next command of the stream as independent: it shares no memory with the commands since the last one
    /// without this mark, and need not wait for them. Streams that order all their work may ignore the mark.
    ///
    /// # Errors
    /// Errors of the driver.
    fn mark_independent(&self, stream: Stream) -> Result<()> {
        let _ = stream;
        Ok(())
    }

    /// Begins a capture of what this thread enqueues on the stream.
    fn begin_capture(&self, stream: Stream) -> Result<()>;

    /// Ends it and makes an executable graph.
    fn end_capture(&self, stream: Stream) -> Result<Graph>;

    /// Enqueues a graph.
    ///
    /// # Safety
    /// All memory that it names lives.
    unsafe fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<()>;

    /// Ends a graph.
    ///
    /// # Safety
    /// No launch of it is in flight.
    unsafe fn destroy_graph(&self, graph: Graph);

    /// The library product, or why there is none (then own kernels run).
    fn product(&self, spec: &ProductSpec) -> Result<Arc<dyn Product>>;

    /// Multiplies matrices of a type on the matrix units of [`Policy::matrix_tiling`] once, and compares. Drivers whose
    /// units need no test of their own say that all is well.
    ///
    /// # Errors
    /// `Unsupported` with what is wrong: other kernels run then.
    fn self_test_matrix_units(&self, dtype: DType) -> Result<()> {
        let _ = dtype;
        Ok(())
    }

    /// What groups of ranks need of this driver.
    ///
    /// # Errors
    /// `Unsupported` where the platform has no communicator.
    fn ranks(&self) -> Result<&dyn RankDriver> {
        Err(Error::unsupported("this platform has no communicator"))
    }
}
