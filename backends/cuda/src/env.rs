//! The operator's options: folders for compiled kernels and tuned choices, and for the vendor's libraries. The only
//! module that reads the environment.
//!
//! `HALYARD_CACHE_DIR` names the cache folder itself (empty: no cache on disk); without it the folder is
//! `halyard/cuda` in `$XDG_CACHE_HOME` or `~/.cache`. `HALYARD_CUDA_LIBRARY_PATH` names folders, separated by `:`, in
//! which NVRTC, cuBLASLt and NCCL are looked for before anywhere else. The option `peer_sum_bytes` (or
//! `HALYARD_CUDA_PEER_SUM_BYTES`) bounds the sums between devices that an own kernel does, in bytes of one operand (0:
//! NCCL does all). `dense_tiles=0` (or `HALYARD_CUDA_DENSE_TILES=0`) leaves products of up to some hundred tokens on
//! Hopper to other kernels. `common_key_bytes` (or `HALYARD_CUDA_COMMON_KEY_BYTES`) says from when on sequences read
//! together the keys that they have in common.

use std::env::var_os;
use std::path::PathBuf;

use halyard_gpu::{entries, folders_of};
use halyard_platform_api::{OpenOptions, Result};

/// The options of a device.
pub(crate) const OPTIONS: [&str; 3] = ["common_key_bytes", "dense_tiles", "peer_sum_bytes"];

/// The folder for what can be made again; `None`: keep nothing.
pub(crate) fn cache_folder(options: &OpenOptions) -> Option<PathBuf> {
    halyard_gpu::cache_folder("cuda", options, |variable| var_os(variable))
}

/// Folders that the operator names for libraries.
pub(crate) fn named_library_folders() -> Vec<PathBuf> {
    folders_of(var_os("HALYARD_CUDA_LIBRARY_PATH"))
}

/// Largest sum between devices by an own kernel, where the operator names it.
///
/// # Errors
/// A value that is no number.
pub(crate) fn most_peer_sum_bytes(options: &OpenOptions) -> Result<Option<u64>> {
    let said = options.get_or("peer_sum_bytes", var_os("HALYARD_CUDA_PEER_SUM_BYTES"));
    let variable = "peer_sum_bytes (or HALYARD_CUDA_PEER_SUM_BYTES)";
    halyard_gpu::number_of_bytes(variable, said, "to leave all sums to the vendor's library")
}

/// Whether products of up to some hundred tokens run on an own kernel on Hopper: unless the operator says 0.
///
/// # Errors
/// A value that is neither 0 nor 1.
pub(crate) fn dense_tiles(options: &OpenOptions) -> Result<bool> {
    let said = options.get_or("dense_tiles", var_os("HALYARD_CUDA_DENSE_TILES"));
    halyard_gpu::is_on("dense_tiles (or HALYARD_CUDA_DENSE_TILES)", said)
}

/// Bytes from which on keys in common are read once, where the operator names them.
///
/// # Errors
/// A value that is no number.
pub(crate) fn common_key_bytes(options: &OpenOptions) -> Result<Option<u64>> {
    let said = options.get_or("common_key_bytes", var_os("HALYARD_CUDA_COMMON_KEY_BYTES"));
    let variable = "common_key_bytes (or HALYARD_CUDA_COMMON_KEY_BYTES)";
    halyard_gpu::number_of_bytes(variable, said, "to read all that sequences have in common once")
}

/// Folders where toolkits and Python packages put libraries, besides the loader's own.
pub(crate) fn usual_library_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(var_os(name).map(|home| PathBuf::from(home).join("lib64")));
    }
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(var_os)
        .map(PathBuf::from)
        .collect();
    prefixes.extend(["/usr/local", "/usr", "/opt/venv"].map(PathBuf::from));
    for prefix in prefixes {
        for python in entries(&prefix.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                // `nvidia-cuda-nvrtc` and its like: nvidia/<part>/lib.
                let parts = entries(&python.join(packages).join("nvidia"), "");
                folders.extend(parts.into_iter().map(|part| part.join("lib")));
            }
        }
    }
    folders
}
