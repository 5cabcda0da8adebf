//! An op on a GPU: checked at construction without a device, prepared once (compiled, tuned), then encoded as launches.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use halyard_kernels_gpu::Source;
use halyard_platform_api::{Error, Result, log};

use crate::driver::{DevicePtr, Driver, Facts, Function};
use crate::encoding::Encoding;
use crate::modules::Modules;
use crate::policy::Policy;
use crate::view::View;

/// The resources for preparing an op.
pub struct Preparation<'a> {
    /// The device.
    pub driver: &'a Arc<dyn Driver>,
    /// Compiled kernel files.
    pub modules: &'a Modules,
}

impl Preparation<'_> {
    /// Facts of the device.
    pub fn facts(&self) -> &Facts {
        self.driver.facts()
    }

    /// How ops run on it.
    pub fn policy(&self) -> &Policy {
        self.driver.policy()
    }

    /// Entry point `name` of `source`, specialised by `defines` (`("ACT", "bf16")` becomes `-DACT=bf16`), compiled or
    /// from the cache.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub fn function(
        &self,
        source: Source,
        defines: &[(&str, &str)],
        name: &str,
        shared_bytes: u32,
    ) -> Result<Function> {
        self.modules
            .function(&**self.driver, source, defines, name, shared_bytes)
    }

    /// `function`, the kernel named `kernel`, where `test` finds nothing wrong with it; else `None`. A function is
    /// tested once, and the log has the outcome.
    pub fn self_test(
        &self,
        function: Function,
        kernel: &str,
        test: impl FnOnce(Function) -> Result<()>,
    ) -> Option<Function> {
        let device = &self.facts().name;
        let is_right = self.modules.self_test(function, || match test(function) {
            Ok(()) => {
                log::debug("gpu", &format!("{device}: {kernel}: tested, and right"));
                true
            }
            Err(why) => {
                let text = format!("{device}: {kernel}: {}; the plain kernel runs instead", why.message);
                log::warn("gpu", &text);
                false
            }
        });
        is_right.then_some(function)
    }
}

/// Does both at once. What an op needs is compiled side by side so, and the longest file decides.
///
/// # Errors
/// That of the first, or of the second.
pub(crate) fn both<A: Send, B>(
    first: impl FnOnce() -> Result<A> + Send,
    second: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        (ended(first), second)
    });
    Ok((first?, second?))
}

/// What a thread gave; its panic goes on here.
pub(crate) fn ended<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Where canonical weight rows come from.
#[derive(Clone, Copy)]
pub enum RowSource<'a> {
    /// Host memory.
    Host(&'a [u8]),
    /// Device memory, and how many bytes there are.
    Device(DevicePtr, u64),
}

impl RowSource<'_> {
    /// Checks that it holds `num_rows` rows of `row_bytes`: host memory exactly, device memory at least.
    ///
    /// # Errors
    /// `InvalidArgument` with the numbers.
    pub fn check(&self, num_rows: u32, row_bytes: u64) -> Result<()> {
        let bytes = u64::from(num_rows) * row_bytes;
        let (fits, given) = match self {
            RowSource::Host(host) => (host.len() as u64 == bytes, host.len() as u64),
            RowSource::Device(_, given) => (*given >= bytes, *given),
        };
        if fits {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{num_rows} rows of {row_bytes} bytes are {bytes} bytes, and {given} were given"
        )))
    }
}

/// Moves and rearranges weights at load time.
pub trait Packer {
    /// Copies `height` pieces of `width` bytes: from `source` at `offset`, `pitch` apart, to `to`, `to_pitch` apart.
    #[allow(clippy::too_many_arguments)]
    fn copy(
        &self,
        to: DevicePtr,
        to_pitch: u64,
        source: RowSource<'_>,
        offset: u64,
        pitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()>;

    /// The bytes `offset .. offset + bytes` of the source in device memory: where they lie, or a staging copy that
    /// stays until the next call.
    fn on_device(&self, source: RowSource<'_>, offset: u64, bytes: u64) -> Result<DevicePtr>;

    /// Runs what was encoded, without scratch, in order with the copies.
    fn run(&self, encoding: &Encoding) -> Result<()>;
}

/// A prepared op.
pub trait Kernel: Send + Sync {
    /// Compiles and tunes. Called once, before all others.
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()>;

    /// Name for reports: which implementation would run on a device, before it is prepared.
    fn implementation(&self, facts: &Facts, policy: &Policy) -> String {
        let _ = (facts, policy);
        "kernel".to_string()
    }

    /// A file without which it cannot run, where not every driver's language has it.
    fn needs(&self) -> Option<Source> {
        None
    }

    /// Scratch bytes while it runs. Asked once, when it is prepared.
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// Appends the op over `operands` in its documented order; an absent optional one is [`View::NONE`]. The host has
    /// validated shapes and types. Must not depend on anything but the views: a recording is replayed with other
    /// contents.
    ///
    /// # Errors
    /// `Unsupported` for strides that the op cannot take.
    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()>;

    /// Bytes of node `node`'s packed weight (0 for a single op).
    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        Err(Error::invalid(format!("node {node} has no weight")))
    }

    /// Packs rows `first_row .. first_row + num_rows`, canonical and contiguous at `source`, into `dst`.
    fn pack_weight(
        &self,
        packer: &dyn Packer,
        node: u32,
        first_row: u32,
        num_rows: u32,
        source: RowSource<'_>,
        dst: DevicePtr,
    ) -> Result<()> {
        let _ = (packer, first_row, num_rows, source, dst);
        Err(Error::invalid(format!("node {node} has no weight")))
    }
}

/// A constructed kernel as every family hands it out.
pub(crate) fn boxed(kernel: Result<impl Kernel + 'static>) -> Result<Box<dyn Kernel>> {
    Ok(Box::new(kernel?))
}
