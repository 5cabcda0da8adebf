//! Platforms and tiny models that the engine's tests run on.

pub mod answers;
pub mod constraints;
pub mod damaged;
pub mod wrapped;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halyard_engine::{EngineConfig, Llm};
use halyard_platform_api::{Device, Platform};
use halyard_plugin_host::{Catalog, Plugin, SearchPath, select_platform};

/// The folder of tiny models and goldens.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models")
}

/// The CPU platform as the server has it, through its tables.
pub fn cpu() -> Arc<dyn Device> {
    open_linked(halyard_cpu::plugin())
}

/// The reference platform through its tables.
pub fn reference() -> Arc<dyn Device> {
    open_linked(halyard_reference::plugin())
}

/// A platform from its library, which cargo puts into the folder of this test's binary: found, checked and loaded as
/// the server does.
pub fn loaded(name: &str) -> Arc<dyn Device> {
    let library = std::env::current_exe()
        .expect("a path")
        .with_file_name(format!("libhalyard_{name}.so"));
    let search = SearchPath {
        plugins: vec![library],
        ..SearchPath::default()
    };
    let selected = select_platform(&Catalog::discover(&search), Some(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    selected.platform.open(0).expect("the device opens")
}

/// The reference with delays and poison: steps are in flight while the host plans on.
pub fn delayed(depth: u32) -> Arc<dyn Device> {
    halyard_delayed::DelayedPlatform::new(depth, 7)
        .open(0)
        .expect("the delayed device opens")
}

/// The pace of a delayed device's steps.
pub struct Pace {
    half_latency_us: Arc<AtomicU64>,
    quick_us: u64,
}

impl Pace {
    /// A step takes some 0.2 s from now on: what a test does next comes long before a long answer ends.
    pub fn slow(&self) {
        self.half_latency_us.store(200_000, Ordering::Relaxed);
    }

    /// A step takes as long as at first.
    pub fn quick(&self) {
        self.half_latency_us.store(self.quick_us, Ordering::Relaxed);
    }
}

/// A delayed device whose pace the test sets.
pub fn paced(depth: u32) -> (Arc<dyn Device>, Pace) {
    let platform = halyard_delayed::DelayedPlatform::new(depth, 7);
    let half_latency_us = platform.half_latency_us();
    let pace = Pace {
        quick_us: half_latency_us.load(Ordering::Relaxed),
        half_latency_us,
    };
    (platform.open(0).expect("the delayed device opens"), pace)
}

fn open_linked(plugin: halyard_platform_api::LinkedPlugin) -> Arc<dyn Device> {
    let plugin = Plugin::from_linked(plugin).expect("the plugin negotiates");
    plugin
        .platform()
        .expect("a platform")
        .open(0)
        .expect("the device opens")
}

/// A small configuration: blocks of 16 tokens, 48 tokens a step, 8 rows.
pub fn config(path: &Path) -> EngineConfig {
    let mut config = EngineConfig::for_model(path);
    config.cache.kv_cache_memory_bytes = Some(16 << 20);
    config.cache.block_size = Some(16);
    config.scheduler.max_num_seqs = 8;
    config.scheduler.max_num_batched_tokens = Some(48);
    // Few steps come here: the first of each size is recorded.
    config.recording.from_step = 1;
    // Machines of tests stand still for a second at times.
    config.grammars.max_compile_time = Duration::from_secs(120);
    config.guides.max_mask_time = Duration::from_secs(600);
    config
}

/// Opens a model with `change` applied to the small configuration.
pub fn open(path: &Path, device: Arc<dyn Device>, change: impl FnOnce(&mut EngineConfig)) -> Llm {
    let mut config = config(path);
    change(&mut config);
    Llm::open(config, device).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Opens a model over several devices.
pub fn open_on(path: &Path, devices: &[Arc<dyn Device>], change: impl FnOnce(&mut EngineConfig)) -> Llm {
    let mut config = config(path);
    change(&mut config);
    Llm::open_on(config, devices).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Runs a check on every device that the engine must be right on.
macro_rules! on_every_device {
    ($($name:ident => $check:expr;)*) => {$(
        mod $name {
            use super::*;
            #[test] fn cpu() { ($check)($crate::common::cpu()) }
            #[test] fn cpu_from_its_library() { ($check)($crate::common::loaded("cpu")) }
            #[test] fn reference() { ($check)($crate::common::reference()) }
            #[test] fn reference_from_its_library() { ($check)($crate::common::loaded("reference")) }
            #[test] fn delayed_from_its_library() { ($check)($crate::common::loaded("delayed")) }
            #[test] fn delayed_depth_0() { ($check)($crate::common::delayed(0)) }
            #[test] fn delayed_depth_1() { ($check)($crate::common::delayed(1)) }
            #[test] fn delayed_depth_2() { ($check)($crate::common::delayed(2)) }
        }
    )*};
}
pub(crate) use on_every_device;
