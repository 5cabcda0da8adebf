//! The operator's options: the folder for compiled kernels and pipelines, and the validation layer. The only module
//! that reads the environment.
//!
//! `HALYARD_CACHE_DIR` names the cache folder itself (empty: no cache on disk); without it the folder is
//! `halyard/vulkan` in `$XDG_CACHE_HOME` or `~/.cache`. `HALYARD_VULKAN_VALIDATION=1` loads the Khronos validation
//! layer and turns each of its messages into an error of the next wait. `HALYARD_VULKAN_GPU_KERNELS=1` has processors
//! run the products that are written for GPUs: slowly, to test them.
//!
//! Options, each with its variable: `matrix_attention=0` (`HALYARD_VULKAN_MATRIX_ATTENTION`) keeps prompts' attention
//! off matrix units, `wide_matrices=0` (`HALYARD_VULKAN_WIDE_MATRICES`) keeps products off matrices of whole
//! workgroups. `int8_dots=1` (`HALYARD_VULKAN_INT8_DOTS`) rounds tokens to 8 bits where an op allows it and the device
//! is fast at products of bytes; `force` does on every device that has the instruction.

use std::env::var_os;
use std::path::PathBuf;

use halyard_gpu::Rounding;
use halyard_platform_api::OpenOptions;

/// The options of a device.
pub(crate) const OPTIONS: [&str; 3] = ["int8_dots", "matrix_attention", "wide_matrices"];

/// The folder for what can be made again; `None`: keep nothing.
pub(crate) fn cache_folder(options: &OpenOptions) -> Option<PathBuf> {
    halyard_gpu::cache_folder("vulkan", options, |variable| var_os(variable))
}

/// Whether calls are to be checked by the validation layer.
pub(crate) fn validation_is_asked() -> bool {
    is_set("HALYARD_VULKAN_VALIDATION")
}

/// Whether processors are to run what GPUs run.
pub(crate) fn gpu_kernels_are_asked() -> bool {
    is_set("HALYARD_VULKAN_GPU_KERNELS")
}

/// Whether tests are to make the tables of whole sizes that people tune kernels by, and not only see that the kernels
/// are right.
#[cfg(test)]
pub(crate) fn tables_are_asked() -> bool {
    is_set("HALYARD_VULKAN_TABLES")
}

/// A number for those tables.
#[cfg(test)]
pub(crate) fn number(variable: &str) -> Option<u32> {
    var_os(variable)?.to_str()?.parse().ok()
}

/// Whether attention may run on matrix units.
pub(crate) fn matrix_attention_is_allowed(options: &OpenOptions) -> bool {
    is_allowed(options, "matrix_attention", "HALYARD_VULKAN_MATRIX_ATTENTION")
}

/// Whether products may run on matrices of whole workgroups.
pub(crate) fn wide_matrices_are_allowed(options: &OpenOptions) -> bool {
    is_allowed(options, "wide_matrices", "HALYARD_VULKAN_WIDE_MATRICES")
}

fn is_allowed(options: &OpenOptions, key: &str, variable: &str) -> bool {
    options.get_or(key, var_os(variable)).is_none_or(|value| value != "0")
}

/// Whether tokens are to be rounded to 8 bits where an op allows it, as the operator says.
pub(crate) fn rounding(options: &OpenOptions) -> Rounding {
    Rounding::asked(options.get_or("int8_dots", var_os("HALYARD_VULKAN_INT8_DOTS")))
}

fn is_set(name: &str) -> bool {
    var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}
