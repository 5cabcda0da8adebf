//! The host's table for plugins: its versions and its log. One for the process, shared by all plugins.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use halyard_platform_api::abi::Str;
use halyard_platform_api::abi::tables::{ABI_MAJOR, ABI_MINOR, ABI_MINOR_MIN, Host};

struct Offer(Host);

// SAFETY: never changed after it was made; its pointers are to constants, and its function may be called from any
// thread.
unsafe impl Send for Offer {}
// SAFETY: as above.
unsafe impl Sync for Offer {}

static OFFER: OnceLock<Offer> = OnceLock::new();

/// The host table, valid for the process's life.
pub(crate) fn offer() -> &'static Host {
    let offer = OFFER.get_or_init(|| {
        let mut host = Host::zeroed();
        host.abi_major = ABI_MAJOR;
        host.abi_minor_min = ABI_MINOR_MIN;
        host.abi_minor_max = ABI_MINOR;
        host.name = Str::new("halyard");
        host.version = Str::new(env!("CARGO_PKG_VERSION"));
        host.log = Some(log);
        Offer(host)
    });
    &offer.0
}

unsafe extern "C" fn log(_context: *mut c_void, level: u32, target: Str, text: Str) {
    // SAFETY: the plugin lends both texts for the call.
    let (plugin, text) = unsafe { (target.to_text(), text.to_text()) };
    // A panic of a log sink must not unwind into the plugin.
    let written = catch_unwind(AssertUnwindSafe(|| match level {
        1 => tracing::error!(target: "halyard_plugin", %plugin, "{text}"),
        2 => tracing::warn!(target: "halyard_plugin", %plugin, "{text}"),
        3 => tracing::info!(target: "halyard_plugin", %plugin, "{text}"),
        4 => tracing::debug!(target: "halyard_plugin", %plugin, "{text}"),
        _ => tracing::trace!(target: "halyard_plugin", %plugin, "{text}"),
    }));
    if let Err(panic) = written {
        // The payload's own destructor could panic again.
        std::mem::forget(panic);
    }
}
