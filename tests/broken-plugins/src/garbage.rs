//! Two plugins without the shim, like careless ones in C: `garbage` returns statuses that do not exist and lengths of
//! texts that it never wrote; the table of `short` ends after its first function.

use std::ffi::c_void;

use halyard_platform_api::abi::tables::{
    ABI_MAJOR, ABI_MINOR, BatchWire, Host, KIND_STAT_LOGGER, Plugin, StatLoggerTable,
};
use halyard_platform_api::abi::{ErrorOut, Str, write_struct};

/// No status has this number.
const NO_STATUS: u32 = 4711;

macro_rules! manifest {
    ($name:literal, $section:ident, $entry:ident) => {
        const MANIFEST: &str = concat!(
            "{\"manifest\":1,\"kind\":\"stat-logger\",\"name\":\"",
            $name,
            "\",\"version\":\"1\",\"abi\":\"0.2\",\"entry\":\"halyard_entry_",
            $name,
            "\",\"priority\":0,\"about\":\"breaks the contract\",\"cpu_features\":\"\"}\n"
        );

        #[used]
        // SAFETY: the section holds manifests only, and this is one.
        #[unsafe(link_section = ".halyard.manifest")]
        static $section: [u8; MANIFEST.len()] = halyard_platform_api::manifest::section_bytes(MANIFEST);

        // SAFETY: the symbol is this plugin's own, by its name.
        #[unsafe(export_name = concat!("halyard_entry_", $name))]
        unsafe extern "C" fn $entry(_host: *const Host, out: *mut Plugin, _err: *mut ErrorOut) -> u32 {
            let mut plugin = Plugin::zeroed();
            plugin.abi_major = ABI_MAJOR;
            plugin.abi_minor = ABI_MINOR;
            plugin.kind = KIND_STAT_LOGGER;
            plugin.name = Str::new($name);
            plugin.version = Str::new("1");
            plugin.find_interface = Some(interface);
            // SAFETY: the host gives a sized struct.
            match unsafe { write_struct(out, &plugin) } {
                Ok(()) => 0,
                Err(error) => error.status as u32,
            }
        }

        unsafe extern "C" fn interface(
            _instance: *mut c_void,
            _id: u32,
            _major: u32,
            _max_minor: u32,
            out: *mut *const c_void,
            _err: *mut ErrorOut,
        ) -> u32 {
            // SAFETY: the host gives a valid output.
            unsafe { out.write(std::ptr::from_ref(&TABLE).cast()) };
            0
        }
    };
}

mod garbage_hook {
    use super::*;

    manifest!("garbage", SECTION, entry);

    static TABLE: StatLoggerTable = StatLoggerTable {
        struct_size: size_of::<StatLoggerTable>() as u32,
        minor: 9999,
        create: Some(create),
        drop: Some(drop_logger),
        log_batch: Some(log_batch),
        flush: Some(flush),
        expose: Some(expose),
    };

    unsafe extern "C" fn create(_: *mut c_void, _: Str, out: *mut *mut c_void, _: *mut ErrorOut) -> u32 {
        // SAFETY: the host gives a valid output. The handle is never looked at.
        unsafe { out.write(std::ptr::without_provenance_mut(0xdead)) };
        0
    }

    unsafe extern "C" fn drop_logger(_: *mut c_void) {}

    unsafe extern "C" fn log_batch(_: *mut c_void, _: *const BatchWire, err: *mut ErrorOut) -> u32 {
        // SAFETY: the host gives an error of its own; a text longer than its buffer is what this one claims.
        unsafe { (*err).text_len = u32::MAX };
        NO_STATUS
    }

    unsafe extern "C" fn flush(_: *mut c_void, _: u64, _: *mut ErrorOut) -> u32 {
        NO_STATUS
    }

    unsafe extern "C" fn expose(_: *mut c_void, _: *mut u8, _: u64, len: *mut u64, _: *mut ErrorOut) -> u32 {
        // SAFETY: the host gives a valid output.
        unsafe { len.write(u64::MAX) };
        0
    }
}

mod short_hook {
    use super::*;

    manifest!("short", SECTION, entry);

    /// As large as the sizes and one function.
    #[repr(C)]
    struct Short {
        struct_size: u32,
        minor: u32,
        create: Option<unsafe extern "C" fn(*mut c_void, Str, *mut *mut c_void, *mut ErrorOut) -> u32>,
    }

    static TABLE: Short = Short {
        struct_size: size_of::<Short>() as u32,
        minor: 2,
        create: Some(create),
    };

    unsafe extern "C" fn create(_: *mut c_void, _: Str, _: *mut *mut c_void, _: *mut ErrorOut) -> u32 {
        NO_STATUS
    }
}
