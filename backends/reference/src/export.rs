//! The export: manifest and entry symbol `halyard_entry_reference`. The one place where the macro's `unsafe` is
//! allowed.
#![allow(unsafe_code)]

use crate::platform::ReferencePlatform;

halyard_platform_api::export_platform! {
    name: "reference",
    version: env!("CARGO_PKG_VERSION"),
    priority: -10,
    about: "plain f32 on the host: the oracle, slow",
    cpu_features: "",
    platform: ReferencePlatform::new(),
}
