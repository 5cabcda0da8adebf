//! The export macros: they put a manifest into the library and define its entry symbol, `halyard_entry_<name>`.
//!
//! Names are part of the symbol, so that one program can link several plugins. `plugin()` gives the linked form.

/// Exports a platform. Invoke once, in the crate's root or a module of its own; defines `plugin()` there.
///
/// ```ignore
/// halyard_platform_api::export_platform! {
///     name: "cpu",
///     version: env!("CARGO_PKG_VERSION"),
///     priority: 10,
///     about: "the processor of this machine",
///     cpu_features: "",
///     platform: CpuPlatform::new(),
/// }
/// ```
///
/// `platform` is an expression of a type that implements [`crate::Platform`]; it runs at entry and should be cheap:
/// look for devices in `devices()`.
#[macro_export]
macro_rules! export_platform {
    (
        name: $name:literal, version: $version:expr, priority: $priority:literal, about: $about:literal,
        cpu_features: $features:literal, platform: $platform:expr $(,)?
    ) => {
        $crate::__export! {
            "platform", $name, $version, $priority, $about, $features,
            enter_platform, dyn $crate::Platform, $platform
        }
    };
}

/// Exports a stat logger, as [`export_platform!`] does a platform. `factory` is an expression of a type that implements
/// [`crate::hooks::StatLoggerFactory`].
#[macro_export]
macro_rules! export_stat_logger {
    (
        name: $name:literal, version: $version:expr, about: $about:literal, factory: $factory:expr $(,)?
    ) => {
        $crate::__export! {
            "stat-logger", $name, $version, 0, $about, "",
            enter_stat_logger, dyn $crate::hooks::StatLoggerFactory, $factory
        }
    };
}

/// Exports an IO processor, as [`export_platform!`] does a platform. `factory` is an expression of a type that
/// implements [`crate::io_processor::IoProcessorFactory`].
#[macro_export]
macro_rules! export_io_processor {
    (
        name: $name:literal, version: $version:expr, about: $about:literal, factory: $factory:expr $(,)?
    ) => {
        $crate::__export! {
            "io-processor", $name, $version, 0, $about, "",
            enter_io_processor, dyn $crate::io_processor::IoProcessorFactory, $factory
        }
    };
}

/// Exports a LoRA resolver, as [`export_platform!`] does a platform. `factory` is an expression of a type that
/// implements [`crate::lora_resolver::LoraResolverFactory`].
#[macro_export]
macro_rules! export_lora_resolver {
    (
        name: $name:literal, version: $version:expr, about: $about:literal, factory: $factory:expr $(,)?
    ) => {
        $crate::__export! {
            "lora-resolver", $name, $version, 0, $about, "",
            enter_lora_resolver, dyn $crate::lora_resolver::LoraResolverFactory, $factory
        }
    };
}

/// Exports a logits processor, as [`export_platform!`] does a platform. `factory` is an expression of a type that
/// implements [`crate::logits_processor::LogitsProcessorFactory`].
#[macro_export]
macro_rules! export_logits_processor {
    (
        name: $name:literal, version: $version:expr, about: $about:literal, factory: $factory:expr $(,)?
    ) => {
        $crate::__export! {
            "logits-processor", $name, $version, 0, $about, "",
            enter_logits_processor, dyn $crate::logits_processor::LogitsProcessorFactory, $factory
        }
    };
}

/// What the export macros share.
#[doc(hidden)]
#[macro_export]
macro_rules! __export {
    (
        $kind:literal, $name:literal, $version:expr, $priority:literal, $about:literal, $features:literal,
        $enter:ident, $root:ty, $make:expr
    ) => {
        const __HALYARD_MANIFEST: &str = ::std::concat!(
            "{\"manifest\":1,\"kind\":\"",
            $kind,
            "\",\"name\":\"",
            $name,
            "\",\"version\":\"",
            $version,
            "\",\"abi\":\"",
            $crate::__abi_version!(),
            "\",\"entry\":\"halyard_entry_",
            $name,
            "\",\"priority\":",
            $priority,
            ",\"about\":\"",
            $about,
            "\",\"cpu_features\":\"",
            $features,
            "\"}\n"
        );

        const _: () = {
            $crate::manifest::plain_text($name);
            $crate::manifest::plain_text($version);
            $crate::manifest::plain_text($about);
            $crate::manifest::plain_text($features);
        };

        #[used]
        // SAFETY: the section holds manifests only, and this is one.
        #[unsafe(link_section = ".halyard.manifest")]
        static __HALYARD_SECTION: [u8; __HALYARD_MANIFEST.len()] = $crate::manifest::section_bytes(__HALYARD_MANIFEST);

        static __HALYARD_SEED: $crate::abi::shim::Seed = $crate::abi::shim::Seed {
            name: $name,
            version: $version,
            manifest: &__HALYARD_SECTION,
        };

        fn __halyard_make() -> ::std::sync::Arc<$root> {
            ::std::sync::Arc::new($make)
        }

        // SAFETY: the symbol is this plugin's own, by its name.
        #[unsafe(export_name = ::std::concat!("halyard_entry_", $name))]
        unsafe extern "C" fn __halyard_entry(
            host: *const $crate::abi::tables::Host,
            out: *mut $crate::abi::tables::Plugin,
            err: *mut $crate::abi::ErrorOut,
        ) -> u32 {
            // SAFETY: the host promises what the entry's contract asks.
            unsafe { $crate::abi::shim::$enter(host, out, err, &__HALYARD_SEED, __halyard_make) }
        }

        /// This plugin for a program that links it: the same entry and tables as when loaded from its library.
        pub fn plugin() -> $crate::manifest::LinkedPlugin {
            $crate::manifest::LinkedPlugin {
                manifest: __HALYARD_MANIFEST,
                entry: __halyard_entry,
            }
        }
    };
}

/// The ABI version as a literal; `abi_version_literal_is_current` holds it to the constants.
#[doc(hidden)]
#[macro_export]
macro_rules! __abi_version {
    () => {
        "0.2"
    };
}

#[cfg(test)]
mod tests {
    use crate::abi::tables::{ABI_MAJOR, ABI_MINOR};

    #[test]
    fn abi_version_literal_is_current() {
        assert_eq!(__abi_version!(), format!("{ABI_MAJOR}.{ABI_MINOR}"));
    }
}
