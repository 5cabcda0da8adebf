//! A host of a later contract. Every struct that it passes is larger, with the new fields not used where they would ask
//! for something; every output has more room, filled with what must stay as it is; each op has an operand more, which
//! is absent; programs hold ops of a later catalogue, and what the plugin claims around them is passed back.

mod tables;

use std::ffi::c_void;
use std::sync::{Mutex, OnceLock};

use halyard_platform_api::Status;
use halyard_platform_api::abi::tables::{
    AttentionTable, CommunicatorTable, DeviceTable, EntryFn, Host, InterfaceFn, OpsTable, PlatformTable, Plugin,
};
use halyard_platform_api::abi::{AbiLayout, AbiTable, ErrorOut};

use crate::{LATER_INTERFACE, Newer, SLOTS, UNTOUCHED, slot_of, violation};

/// Minor versions that this host is ahead.
const MINORS_AHEAD: u32 = 5;

/// The plugin behind the proxy.
struct Inner {
    entry: OnceLock<EntryFn>,
    find: OnceLock<InterfaceFn>,
    platform: OnceLock<PlatformTable>,
    device: OnceLock<DeviceTable>,
    ops: OnceLock<OpsTable>,
    attention: OnceLock<AttentionTable>,
    communicator: OnceLock<CommunicatorTable>,
}

static INNER: [Inner; SLOTS] = [const {
    Inner {
        entry: OnceLock::new(),
        find: OnceLock::new(),
        platform: OnceLock::new(),
        device: OnceLock::new(),
        ops: OnceLock::new(),
        attention: OnceLock::new(),
        communicator: OnceLock::new(),
    }
}; SLOTS];

/// The plugin of `entry` as a later host would call it. At most [`SLOTS`] of them in a process.
///
/// # Panics
/// When there are more.
pub fn around(entry: EntryFn) -> EntryFn {
    static USED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let entries: [EntryFn; SLOTS] = [
        enter::<0>, enter::<1>, enter::<2>, enter::<3>, enter::<4>, enter::<5>, enter::<6>, enter::<7>,
    ];
    let slot = slot_of(entry, &USED);
    INNER[slot].entry.get_or_init(|| entry);
    entries[slot]
}

fn get<T: Copy>(cell: &OnceLock<T>) -> T {
    *cell.get().expect("the plugin was entered and its table was asked for")
}

/// Calls with an error that has more room than today's.
unsafe fn with_error(err: *mut ErrorOut, call: impl FnOnce(*mut ErrorOut) -> u32) -> u32 {
    if err.is_null() {
        return call(err);
    }
    // SAFETY: not null, so an error of this host.
    unsafe { output("halyard_error", err, call) }
}

/// Calls with an output that has more room than today's, and takes over what the callee knew.
unsafe fn output<T: AbiLayout>(name: &str, out: *mut T, call: impl FnOnce(*mut T) -> u32) -> u32 {
    // SAFETY: an output of this host, which states its own size.
    let mut newer = Newer::marked(unsafe { out.read() });
    let code = call(newer.out());
    if newer.more != [UNTOUCHED; 4] {
        violation(format!("{name}: room beyond what the plugin knows was written to"));
    }
    // SAFETY: as above; only the size stays this host's.
    unsafe {
        let size = *out.cast::<u32>();
        out.write(newer.known);
        *out.cast::<u32>() = size;
    }
    code
}

unsafe extern "C" fn enter<const S: usize>(host: *const Host, out: *mut Plugin, err: *mut ErrorOut) -> u32 {
    // SAFETY: structs of this host, passed on.
    unsafe {
        let mut later = Newer::read(host);
        later.known.abi_minor_max += MINORS_AHEAD;
        // What a host tells only informs.
        later.more = [UNTOUCHED; 4];
        // Plugins keep it for the process's life.
        let later = Box::leak(Box::new(later));
        let code = with_error(err, |err| {
            output("halyard_plugin", out, |out| get(&INNER[S].entry)(later.ptr(), out, err))
        });
        if code == Status::Ok as u32
            && let Some(find) = (*out).find_interface
        {
            INNER[S].find.get_or_init(|| find);
            (*out).find_interface = Some(find_interface::<S>);
        }
        code
    }
}

unsafe extern "C" fn find_interface<const S: usize>(
    instance: *mut c_void,
    id: u32,
    major: u32,
    max_minor: u32,
    out: *mut *const c_void,
    err: *mut ErrorOut,
) -> u32 {
    let (inner, find) = (&INNER[S], get(&INNER[S].find));
    // SAFETY: the plugin's function and instance, valid outputs.
    unsafe {
        let mut none = std::ptr::null();
        let later = find(instance, LATER_INTERFACE, 1, 0, &mut none, std::ptr::null_mut());
        if later != Status::Unsupported as u32 {
            violation(format!(
                "an interface that nobody knows was answered with status {later}"
            ));
        }
        let mut theirs = std::ptr::null();
        let code = with_error(err, |err| {
            find(instance, id, major, max_minor + MINORS_AHEAD, &mut theirs, err)
        });
        if code != Status::Ok as u32 {
            return code;
        }
        macro_rules! proxied {
            ($($table:ident in $cell:ident as $proxy:ident),*) => {
                match id {
                    $( $table::INTERFACE => match $table::load(theirs.cast()) {
                        Ok(table) => {
                            inner.$cell.get_or_init(|| table);
                            let proxy: &'static $table = const { &tables::$proxy::<S>() };
                            std::ptr::from_ref(proxy).cast()
                        }
                        // This host finds out by itself.
                        Err(_) => theirs,
                    }, )*
                    _ => theirs,
                }
            };
        }
        *out = proxied!(
            PlatformTable in platform as platform_table,
            DeviceTable in device as device_table,
            OpsTable in ops as ops_table,
            AttentionTable in attention as attention_table,
            CommunicatorTable in communicator as communicator_table
        );
        code
    }
}
