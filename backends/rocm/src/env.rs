//! The operator's options: folders for compiled kernels and for the vendor's libraries. The only module that reads the
//! environment.
//!
//! `HALYARD_CACHE_DIR` names the cache folder itself (empty: no cache on disk); without it the folder is `halyard/rocm`
//! in `$XDG_CACHE_HOME` or `~/.cache`. `HALYARD_ROCM_LIBRARY_PATH` names folders, separated by `:`, in which HIP,
//! hiprtc, rocBLAS and RCCL are looked for before anywhere else. The option `peer_sum_bytes` (or
//! `HALYARD_ROCM_PEER_SUM_BYTES`) gives sums between devices to an own kernel, up to so many bytes of one operand (0
//! and without it: RCCL does all). `matrix_attention=0` (or `HALYARD_ROCM_MATRIX_ATTENTION=0`) keeps prompts' attention
//! off matrix units.

use std::env::var_os;
use std::path::PathBuf;

use halyard_gpu::{entries, folders_of};
use halyard_platform_api::{OpenOptions, Result};

/// The options of a device.
pub(crate) const OPTIONS: [&str; 2] = ["matrix_attention", "peer_sum_bytes"];

/// The folder for what can be made again; `None`: keep nothing.
pub(crate) fn cache_folder(options: &OpenOptions) -> Option<PathBuf> {
    halyard_gpu::cache_folder("rocm", options, |variable| var_os(variable))
}

/// Folders that the operator names for libraries.
pub(crate) fn named_library_folders() -> Vec<PathBuf> {
    folders_of(var_os("HALYARD_ROCM_LIBRARY_PATH"))
}

/// Largest sum between devices by an own kernel, where the operator names it.
///
/// # Errors
/// A value that is no number.
pub(crate) fn most_peer_sum_bytes(options: &OpenOptions) -> Result<Option<u64>> {
    let said = options.get_or("peer_sum_bytes", var_os("HALYARD_ROCM_PEER_SUM_BYTES"));
    let variable = "peer_sum_bytes (or HALYARD_ROCM_PEER_SUM_BYTES)";
    halyard_gpu::number_of_bytes(variable, said, "to leave all sums to the vendor's library")
}

/// Whether attention may run on matrix units.
///
/// # Errors
/// A value that is neither 0 nor 1.
pub(crate) fn matrix_attention_is_allowed(options: &OpenOptions) -> Result<bool> {
    let said = options.get_or("matrix_attention", var_os("HALYARD_ROCM_MATRIX_ATTENTION"));
    halyard_gpu::is_on("matrix_attention (or HALYARD_ROCM_MATRIX_ATTENTION)", said)
}

/// Folders where ROCm and Python packages put libraries, besides the loader's own.
pub(crate) fn usual_library_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for name in ["ROCM_PATH", "HIP_PATH"] {
        folders.extend(var_os(name).map(|home| PathBuf::from(home).join("lib")));
    }
    folders.push(PathBuf::from("/opt/rocm/lib"));
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(var_os)
        .map(PathBuf::from);
    for prefix in prefixes.chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]) {
        for python in entries(&prefix.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                // `rocm-sdk-core` and its like: _rocm_sdk_<part>/lib.
                let parts = entries(&python.join(packages), "_rocm_sdk_");
                folders.extend(parts.into_iter().map(|part| part.join("lib")));
            }
        }
    }
    folders
}
