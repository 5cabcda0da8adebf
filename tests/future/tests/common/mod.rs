//! The libraries that these tests run with, and models that computing ones serve.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use halyard_device_check::goldens::{self, F32, Free};
use halyard_engine::{EngineConfig, Llm};
use halyard_future::library::{Library, compile};
use halyard_future::violations;
use halyard_platform_api::Device;

/// Makes a test of each check with each library: `with computing` those that compute, a line each, `with every` also
/// those that do not.
#[allow(unused_macros, reason = "each test binary uses a part")]
macro_rules! on_libraries {
    ($($name:ident => $check:expr, with $which:ident;)*) => {$(
        mod $name {
            use super::*;
            #[test] fn cpu() { $crate::common::on(Library::built("cpu"), $check) }
            #[test] fn reference() { $crate::common::on(Library::built("reference"), $check) }
            #[test] fn plain_c() { $crate::common::on(Library::open(&halyard_platform_plain_c::complete()), $check) }
            $crate::common::on_libraries! { @$which $check }
        }
    )*};
    (@computing $check:expr) => {};
    (@every $check:expr) => {
        #[test] fn minimal_in_c() { $crate::common::on($crate::common::minimal(), $check) }
    };
}
#[allow(unused_imports, reason = "each test binary uses a part")]
pub(crate) use on_libraries;

/// Runs a check with a library, which must not do what a later host could not live with.
pub fn on(library: Library, check: impl FnOnce(&Library)) {
    check(&library);
    assert_eq!(violations(), Vec::<String>::new(), "{}", library.manifest.name);
}

/// The platform in C: memory, a queue and no op.
pub fn minimal() -> Library {
    Library::open(&in_c("runtime/plugin-host/tests/c/plugin.c"))
}

/// An empty folder of this test binary.
pub fn fresh_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(env!("CARGO_CRATE_NAME"))
        .join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("an old folder of tests can go");
    }
    std::fs::create_dir_all(&folder).expect("a folder for tests");
    folder
}

/// A library of the repository's C, compiled once a process.
pub fn in_c(source: &'static str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = || fresh_folder(source.rsplit('/').next().unwrap_or(source));
    built
        .entry(source)
        .or_insert_with(|| compile(source, &folder()))
        .clone()
}

/// Hugging Face's goldens of tiny models, with steps recorded from the first of each size on.
pub fn serves_goldens(device: &Arc<dyn Device>) {
    for model in ["llama", "gemma3", "qwen3-moe", "qwen3-fp8"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fixtures/models")
            .join(model);
        let mut config = EngineConfig::for_model(&folder);
        config.cache.kv_cache_memory_bytes = Some(16 << 20);
        config.cache.block_size = Some(16);
        config.scheduler.max_num_seqs = 8;
        config.scheduler.max_num_batched_tokens = Some(48);
        config.recording.from_step = 1;
        let llm = Llm::open(config, device.clone()).unwrap_or_else(|e| panic!("{model}: {e}"));
        let cases = goldens::check(&llm, &folder.join("goldens.json"), F32, Free::All);
        assert!(!cases.unwrap_or_else(|why| panic!("{model}: {why}")).is_empty());
    }
}
