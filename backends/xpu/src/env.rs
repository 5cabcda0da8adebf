//! The operator's options: folders for compiled kernels and for OpenCL's loader library. The only module that reads the
//! environment.
//!
//! `HALYARD_CACHE_DIR` names the cache folder itself (empty: no cache on disk); without it the folder is `halyard/xpu`
//! in `$XDG_CACHE_HOME` or `~/.cache`. `HALYARD_OPENCL_LIBRARY_PATH` names folders, separated by `:`, in which
//! `libOpenCL.so.1` is looked for before anywhere else. (Which runtimes the loader then shows is its own matter:
//! `OCL_ICD_VENDORS`, `OCL_ICD_FILENAMES`.) The option `int8_dots=1` (or `HALYARD_OPENCL_INT8_DOTS=1`) rounds tokens to
//! 8 bits where an op allows it and the device is fast at products of bytes; `force` does on every device, with plain
//! operations where it lacks the instruction. `HALYARD_OPENCL_SUBGROUP=16` or `32` has kernels pass values within
//! subgroups of that size on every device that has them, `0` nowhere. `HALYARD_OPENCL_MATRIX=0` keeps matrix units
//! unused; `8` or `16` has devices without them compute the same by plain operations, in subgroups of that size, to
//! test what is built on them. `HALYARD_OPENCL_GPU_KERNELS=1` has processors run the products that are written for
//! GPUs: slowly, to test them.

use std::env::var_os;
use std::path::PathBuf;

use halyard_gpu::{Rounding, folders_of};
use halyard_platform_api::OpenOptions;

/// The options of a device.
pub(crate) const OPTIONS: [&str; 1] = ["int8_dots"];

/// The folder for what can be made again; `None`: keep nothing.
pub(crate) fn cache_folder(options: &OpenOptions) -> Option<PathBuf> {
    halyard_gpu::cache_folder("xpu", options, |variable| var_os(variable))
}

/// Whether tokens are to be rounded to 8 bits where an op allows it, as the operator says.
pub(crate) fn rounding(options: &OpenOptions) -> Rounding {
    Rounding::asked(options.get_or("int8_dots", var_os("HALYARD_OPENCL_INT8_DOTS")))
}

/// The subgroup size that the operator names, 0 for none; `None`: the device's best.
pub(crate) fn subgroup() -> Option<u32> {
    var_os("HALYARD_OPENCL_SUBGROUP")?.to_str()?.parse().ok()
}

/// The subgroup size for products on matrix units where the device has none of its own, 0 for no such products at all;
/// `None`: nothing was said.
pub(crate) fn matrix() -> Option<u32> {
    var_os("HALYARD_OPENCL_MATRIX")?.to_str()?.parse().ok()
}

/// Whether processors are to run what GPUs run.
pub(crate) fn gpu_kernels_are_asked() -> bool {
    var_os("HALYARD_OPENCL_GPU_KERNELS").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Folders that the operator names for the loader library.
pub(crate) fn named_library_folders() -> Vec<PathBuf> {
    folders_of(var_os("HALYARD_OPENCL_LIBRARY_PATH"))
}
