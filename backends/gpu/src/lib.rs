//! What GPU platforms share: memory, queues, recordings, the op catalogue as kernel launches. It speaks to the hardware
//! through one [`Driver`] only, so a platform's own crate is that driver, its libraries, and the export.

mod cache;
mod commands;
mod communicator;
mod device;
mod driver;
mod encoding;
mod handles;
mod hazards;
mod kernel;
mod libraries;
mod memory;
mod modules;
mod objects;
mod ops;
mod policy;
mod prebuilt;
mod queue;
mod ranks;
mod rounding;
mod run;
mod run_time_compiler;
pub mod self_test;
mod step_ring;
mod upload;
mod view;

pub use cache::{cache_folder, write_whole};
pub use device::{GpuDevice, KV_DTYPES_WITH_CODES, device_info, no_such_device};
pub use driver::{
    CollectiveCall, Driver, Facts, Group, KernelText, MAX_PEERS, PEER_CALLS_BYTES, Peers, Product, ProductCall,
    ProductSpec, short_of,
};
pub use encoding::{Arg, BoxesOf, Command, Encoding, InScratch, Launch};
pub use halyard_kernels_gpu::{ATTENTION_TILES, Language, Source};
pub use handles::{
    BOX, Boxes, DevicePtr, Event, Function, Graph, MAX_ARGS, Module, Param, Pinned, Stream, param_addresses,
};
pub use kernel::{Kernel, Packer, Preparation, RowSource};
pub use libraries::{Library, beside_this_library, entries, find_symbol, folders_of, symbol};
pub use modules::Modules;
pub use ops::attention_self_test;
pub use policy::{AttentionTiles, BlockProduct, Policy, Tile, Tiling, is_on, number_of_bytes};
pub use prebuilt::{KernelKey, PrebuiltKernels, kernel_key, prebuilt_file};
pub use ranks::{CollectiveLibrary, RankDriver};
pub use rounding::Rounding;
pub use run_time_compiler::RunTimeCompiler;
pub use view::View;
