//! What GPU platforms share: memory, queues, recordings, the op catalogue as kernel launches. It speaks to the hardware through one
//! [`Driver`] only, so a platform's own crate is that driver, its libraries, and the export.

mod cache;
mod commands;
mod communicator;
mod device;
mod driver;
mod encoding;
mod hazards;
mod kernel;
mod libraries;
mod memory;
mod modules;
mod objects;
mod ops;
mod queue;
mod ranks;
mod rounding;
mod run;
mod run_time_compiler;
mod step_ring;
pub mod trial;
mod upload;
mod view;

pub use cache::{cache_folder, write_whole};
pub use device::{GpuDevice, device_info, no_such_device};
pub use driver::{
    CollectiveCall, DevicePtr, Driver, Event, Facts, Function, Graph, Group, KernelText, MAX_PEERS, Module,
    PEER_CALLS_BYTES, Param, Peers, Pinned, Product, ProductCall, ProductSpec, Stream, Tile, Tiling, param_addresses,
    short_of,
};
pub use encoding::{Arg, Command, Encoding, InScratch, Launch, MAX_ARGS};
pub use halyard_kernels_gpu::{ATTENTION_TILES, Language, Source};
pub use kernel::{Kernel, Packer, Preparation, RowSource};
pub use libraries::{Library, entries, find_symbol, folders_of, symbol};
pub use modules::Modules;
pub use ranks::{CollectiveLibrary, RankDriver, peer_sum_bytes};
pub use rounding::Rounding;
pub use run_time_compiler::RunTimeCompiler;
pub use view::View;
