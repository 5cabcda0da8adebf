//! The one place that looks at the environment: where compiled kernels and pipelines are kept, and whether the validation layer watches.
//!
//! `HALYARD_CACHE_DIR` names the cache folder itself (empty: no cache on disk); without it the folder is `halyard/vulkan` in
//! `$XDG_CACHE_HOME` or `~/.cache`. `HALYARD_VULKAN_VALIDATION=1` loads the Khronos validation layer and turns each of its messages into an
//! error of the next wait.

use std::env::var_os;
use std::path::PathBuf;

/// The folder for what can be made again; `None`: keep nothing.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    if let Some(folder) = var_os("HALYARD_CACHE_DIR") {
        return (!folder.is_empty()).then(|| PathBuf::from(folder).join("vulkan"));
    }
    let absolute = |name: &str| var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    Some(caches?.join("halyard").join("vulkan"))
}

/// Whether calls are to be checked by the validation layer.
pub(crate) fn validation_is_asked() -> bool {
    var_os("HALYARD_VULKAN_VALIDATION").is_some_and(|value| !value.is_empty() && value != "0")
}
