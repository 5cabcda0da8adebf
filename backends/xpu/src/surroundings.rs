//! The one place that looks at the environment: where compiled kernels are kept, and where OpenCL's loader library may lie.
//!
//! `HALYARD_CACHE_DIR` names the cache folder itself (empty: no cache on disk); without it the folder is `halyard/xpu` in `$XDG_CACHE_HOME`
//! or `~/.cache`. `HALYARD_OPENCL_LIBRARY_PATH` names folders, separated by `:`, in which `libOpenCL.so.1` is looked for before anywhere
//! else. (Which runtimes the loader then shows is its own matter: `OCL_ICD_VENDORS`, `OCL_ICD_FILENAMES`.)
//! `HALYARD_OPENCL_INT8_DOTS=1` rounds tokens to 8 bits where an op allows it and the device is fast at products of bytes; `force` does on
//! every device, with plain operations where it lacks the instruction.

use std::env::var_os;
use std::path::PathBuf;

use halyard_gpu::folders_of;

/// The folder for what can be made again; `None`: keep nothing.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    halyard_gpu::cache_folder("xpu", |variable| var_os(variable))
}

/// Whether tokens are to be rounded to 8 bits where an op allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// They are not.
    Never,
    /// Where the device multiplies and adds bytes fast.
    WhereFast,
    /// On every device that can.
    Always,
}

/// As the operator says; nothing said: never.
pub(crate) fn rounding() -> Rounding {
    match var_os("HALYARD_OPENCL_INT8_DOTS") {
        Some(value) if value == "force" => Rounding::Always,
        Some(value) if !value.is_empty() && value != "0" => Rounding::WhereFast,
        _ => Rounding::Never,
    }
}

/// Folders that the operator names for the loader library.
pub(crate) fn named_library_folders() -> Vec<PathBuf> {
    folders_of(var_os("HALYARD_OPENCL_LIBRARY_PATH"))
}
