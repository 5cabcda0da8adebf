//! What GPU platforms share: memory, queues, recordings, the op catalogue as kernel launches. It speaks to the hardware through one
//! [`Driver`] only, so a platform's own crate is that driver, its library products and collectives, and the export.

mod driver;
mod encoding;
mod kernel;
mod modules;
mod ops;
mod view;

pub use driver::{
    DevicePtr, Driver, Event, Facts, Function, Graph, Module, Pinned, Product, ProductCall, ProductSpec, Stream,
};
pub use encoding::{Arg, Command, Encoding, Launch};
pub use kernel::{Kernel, Packer, Preparation, RowSource};
pub use modules::Modules;
pub use view::View;
