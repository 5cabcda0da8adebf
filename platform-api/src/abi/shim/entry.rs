//! The entry: agreeing on a version with the host, starting the instance, handing out tables.

use std::ffi::c_void;
use std::sync::Arc;

use super::platform::PlatformState;
use super::stat_logger::FactoryState;
use super::{Handle, guarded, io_processor, logits_processor, lora_resolver, put, report};
use crate::abi::Str;
use crate::abi::logits_tables::{KIND_LOGITS_PROCESSOR, LogitsProcessorTable};
use crate::abi::request_tables::{IoProcessorTable, KIND_IO_PROCESSOR, KIND_LORA_RESOLVER, LoraResolverTable};
use crate::abi::tables::{
    ABI_MAJOR, ABI_MINOR, ABI_MINOR_MIN, AttentionTable, CommunicatorTable, DeviceTable, Host, InterfaceFn,
    KIND_PLATFORM, KIND_STAT_LOGGER, OpsTable, PlatformTable, Plugin, StatLoggerTable,
};
use crate::abi::types::{ErrorOut, read_known, write_struct};
use crate::device::Platform;
use crate::hooks::StatLoggerFactory;
use crate::io_processor::IoProcessorFactory;
use crate::logits_processor::LogitsProcessorFactory;
use crate::lora_resolver::LoraResolverFactory;
use crate::status::{Error, Result, Status};

/// What an export macro knows of its plugin.
pub struct Seed {
    /// Name.
    pub name: &'static str,
    /// Version.
    pub version: &'static str,
    /// The manifest's bytes. Named here so that the linker keeps the section wherever it keeps the entry.
    pub manifest: &'static [u8],
}

/// Makes a platform.
pub type PlatformMaker = fn() -> Arc<dyn Platform>;
/// Makes a stat-logger factory.
pub type StatLoggerMaker = fn() -> Arc<dyn StatLoggerFactory>;
/// Makes an IO-processor factory.
pub type IoProcessorMaker = fn() -> Arc<dyn IoProcessorFactory>;
/// Makes a LoRA-resolver factory.
pub type LoraResolverMaker = fn() -> Arc<dyn LoraResolverFactory>;
/// Makes a logits-processor factory.
pub type LogitsProcessorMaker = fn() -> Arc<dyn LogitsProcessorFactory>;

/// The entry of a platform plugin.
///
/// # Safety
/// As [`crate::abi::tables::EntryFn`]: each pointer is null or a sized struct of its type.
pub unsafe fn enter_platform(
    host: *const Host,
    out: *mut Plugin,
    err: *mut ErrorOut,
    seed: &'static Seed,
    make: PlatformMaker,
) -> u32 {
    let start = || Handle::into_raw(PlatformState::new(make()));
    // SAFETY: as the caller promises.
    unsafe { enter(host, out, err, seed, (KIND_PLATFORM, platform_interface), start) }
}

/// The entry of a stat-logger plugin.
///
/// # Safety
/// As [`enter_platform`].
pub unsafe fn enter_stat_logger(
    host: *const Host,
    out: *mut Plugin,
    err: *mut ErrorOut,
    seed: &'static Seed,
    make: StatLoggerMaker,
) -> u32 {
    let start = || Handle::<FactoryState>::into_raw(make());
    let kind = (KIND_STAT_LOGGER, stat_logger_interface as InterfaceFn);
    // SAFETY: as the caller promises.
    unsafe { enter(host, out, err, seed, kind, start) }
}

/// The entry of an IO-processor plugin.
///
/// # Safety
/// As [`enter_platform`].
pub unsafe fn enter_io_processor(
    host: *const Host,
    out: *mut Plugin,
    err: *mut ErrorOut,
    seed: &'static Seed,
    make: IoProcessorMaker,
) -> u32 {
    let start = || Handle::<io_processor::FactoryState>::into_raw(make());
    let kind = (KIND_IO_PROCESSOR, io_processor_interface as InterfaceFn);
    // SAFETY: as the caller promises.
    unsafe { enter(host, out, err, seed, kind, start) }
}

/// The entry of a LoRA-resolver plugin.
///
/// # Safety
/// As [`enter_platform`].
pub unsafe fn enter_lora_resolver(
    host: *const Host,
    out: *mut Plugin,
    err: *mut ErrorOut,
    seed: &'static Seed,
    make: LoraResolverMaker,
) -> u32 {
    let start = || Handle::<lora_resolver::FactoryState>::into_raw(make());
    let kind = (KIND_LORA_RESOLVER, lora_resolver_interface as InterfaceFn);
    // SAFETY: as the caller promises.
    unsafe { enter(host, out, err, seed, kind, start) }
}

/// The entry of a logits-processor plugin.
///
/// # Safety
/// As [`enter_platform`].
pub unsafe fn enter_logits_processor(
    host: *const Host,
    out: *mut Plugin,
    err: *mut ErrorOut,
    seed: &'static Seed,
    make: LogitsProcessorMaker,
) -> u32 {
    let start = || Handle::<logits_processor::FactoryState>::into_raw(make());
    let kind = (KIND_LOGITS_PROCESSOR, logits_processor_interface as InterfaceFn);
    // SAFETY: as the caller promises.
    unsafe { enter(host, out, err, seed, kind, start) }
}

/// # Safety
/// As [`enter_platform`].
unsafe fn enter(
    host: *const Host,
    out: *mut Plugin,
    err: *mut ErrorOut,
    seed: &'static Seed,
    (kind, interface): (u32, InterfaceFn),
    start: impl FnOnce() -> *mut c_void,
) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        guarded(None, err, || {
            let host = read_known(host)?;
            let minor = agree(&host)?;
            crate::log::set_host(&host);
            std::hint::black_box(seed.manifest);
            let mut plugin = Plugin::zeroed();
            plugin.abi_major = ABI_MAJOR;
            plugin.abi_minor = minor;
            plugin.kind = kind;
            plugin.name = Str::new(seed.name);
            plugin.version = Str::new(seed.version);
            plugin.find_interface = Some(interface);
            if out.is_null() {
                return Err(Error::invalid("halyard_plugin: null pointer"));
            }
            // Lives as long as the process, as libraries are never closed.
            plugin.instance = start();
            write_struct(out, &plugin)
        })
    }
}

/// The highest ABI minor version that both sides know.
fn agree(host: &Host) -> Result<u32> {
    let highest = host.abi_minor_max.min(ABI_MINOR);
    let lowest = host.abi_minor_min.max(ABI_MINOR_MIN);
    if host.abi_major == ABI_MAJOR && lowest <= highest {
        return Ok(highest);
    }
    // SAFETY: the host's texts are valid for the process's life.
    let (name, version) = unsafe { (host.name.to_text(), host.version.to_text()) };
    Err(Error::new(
        Status::Incompatible,
        format!(
            "this plugin speaks ABI {ABI_MAJOR}.{ABI_MINOR_MIN} to {ABI_MAJOR}.{ABI_MINOR}, the host ({name} \
             {version}) speaks {0}.{1} to {0}.{2}",
            host.abi_major, host.abi_minor_min, host.abi_minor_max
        ),
    ))
}

/// Writes the table of an interface, whose version is `(major, minor)` here, if the host's major version is the same. A
/// higher minor version than the host's is fine, as tables only grow.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn offer<T>(
    out: *mut *const c_void,
    table: &'static T,
    name: &str,
    (major, minor): (u32, u32),
    host_major: u32,
) -> Result<()> {
    if major != host_major {
        return Err(Error::new(
            Status::Incompatible,
            format!("this plugin has interface {name} {major}.{minor}, the host asks for {host_major}.x"),
        ));
    }
    // SAFETY: as the caller promises.
    unsafe { put(out, std::ptr::from_ref(table).cast()) }
}

macro_rules! interfaces {
    ($name:ident { $($table:ident = $static:path),* $(,)? }) => {
        unsafe extern "C" fn $name(
            _instance: *mut c_void,
            id: u32,
            major: u32,
            _max_minor: u32,
            out: *mut *const c_void,
            err: *mut ErrorOut,
        ) -> u32 {
            let found = match id {
                // SAFETY: the wire promises valid outputs.
                $( $table::INTERFACE => unsafe {
                    offer(out, &$static, $table::INTERFACE_NAME, $table::VERSION, major)
                }, )*
                other => Err(Error::unsupported(format!("this plugin has no interface {other}"))),
            };
            match found {
                Ok(()) => Status::Ok as u32,
                // SAFETY: the wire promises a null or sized error.
                Err(error) => unsafe { report(err, &error) },
            }
        }
    };
}

interfaces!(platform_interface {
    PlatformTable = super::platform::TABLE,
    DeviceTable = super::device::TABLE,
    OpsTable = super::ops::TABLE,
    AttentionTable = super::attention::TABLE,
    CommunicatorTable = super::communicator::TABLE,
});

interfaces!(stat_logger_interface {
    StatLoggerTable = super::stat_logger::TABLE,
});

interfaces!(io_processor_interface {
    IoProcessorTable = io_processor::TABLE,
});

interfaces!(lora_resolver_interface {
    LoraResolverTable = lora_resolver::TABLE,
});

interfaces!(logits_processor_interface {
    LogitsProcessorTable = logits_processor::TABLE,
});
