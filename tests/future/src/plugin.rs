//! A plugin of a later contract on this host: tables with functions more, a larger answer at the entry, facts and
//! statuses that nobody knows yet, a manifest that says more. The work is done by a plugin of today.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::{Mutex, OnceLock};

use halyard_platform_api::abi::tables::{
    AttentionBackendWire, AttentionPlanWire, AttentionTable, ClaimReportWire, CommunicatorTable, DeviceInfoWire,
    DeviceTable, EntryFn, Host, InterfaceFn, MemoryInfoWire, OpSpecWire, OpSupportWire, OpenDescWire, OpsTable,
    PlatformTable, Plugin, PreparedWire, ProgramWire,
};
use halyard_platform_api::abi::{AbiLayout, AbiTable, ErrorOut};
use halyard_platform_api::{Error, Status};
use halyard_plugin_host::Manifest;

use crate::{LATER_INTERFACE, Newer, SLOTS, slot_of, violation};

/// What a later plugin does besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// Nothing.
    Later,
    /// Its interface of this number is of another major version.
    OfAnotherMajor(u32),
    /// It reads no program of today.
    WithoutPrograms,
    /// Its ops table ends before `claim`, as an older plugin's does.
    EndingEarly,
    /// It answers an ABI version that the host did not offer.
    OutOfRange,
}

/// A status of a later contract.
pub const LATER_STATUS: u32 = 1000;
/// The vendor's own code that comes with it.
pub const VENDOR_CODE: i64 = -7_000_000_000;
/// Capabilities of a later contract and of a vendor.
const LATER_CAPABILITIES: u64 = 1 << 40 | 1 << 50;
/// A type of a later contract.
const LATER_DTYPE: u64 = 1 << 60;

/// The plugin behind the proxy.
struct Inner {
    entry: OnceLock<EntryFn>,
    find: OnceLock<InterfaceFn>,
    platform: OnceLock<PlatformTable>,
    device: OnceLock<DeviceTable>,
    ops: OnceLock<OpsTable>,
    attention: OnceLock<AttentionTable>,
}

static INNER: [Inner; SLOTS] = [const {
    Inner {
        entry: OnceLock::new(),
        find: OnceLock::new(),
        platform: OnceLock::new(),
        device: OnceLock::new(),
        ops: OnceLock::new(),
        attention: OnceLock::new(),
    }
}; SLOTS];

thread_local! {
    /// What the plugin is that this thread loads.
    static IS: Cell<Is> = const { Cell::new(Is::Later) };
}

/// The plugin of `entry` as a later one, for the next load on this thread. At most [`SLOTS`] of them in a process.
///
/// # Panics
/// When there are more.
pub fn around(entry: EntryFn, is: Is) -> EntryFn {
    static USED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let entries: [EntryFn; SLOTS] = [
        enter::<0>, enter::<1>, enter::<2>, enter::<3>, enter::<4>, enter::<5>, enter::<6>, enter::<7>,
    ];
    IS.set(is);
    let slot = slot_of(entry, &USED);
    INNER[slot].entry.get_or_init(|| entry);
    entries[slot]
}

/// The manifest section of a later plugin's file: an object of a later form, one of a later kind, and the plugin's own
/// with keys that nobody knows.
pub fn manifest_section(today: &Manifest) -> String {
    let Manifest { name, entry, .. } = today;
    let form = r#"{"manifest":2,"plugins":[{"name":"x"}],"abi":[9,9]}"#;
    let kind = r#"{"manifest":1,"kind":"kv-connector","name":"x","version":"9","abi":"0.9","entry":"x","x":{}}"#;
    let own = format!(
        r#"{{"manifest":1,"kind":"platform","name":"{name}","version":"9.0","abi":"0.9","entry":"{entry}",
        "interfaces":{{"platform":"0.9"}},"signed":[1,2],"priority":3}}"#
    );
    format!("{form}\0\0{kind}\n{own}\0")
}

fn get<T: Copy>(cell: &OnceLock<T>) -> T {
    *cell.get().expect("the plugin was entered and its table was asked for")
}

/// Writes a later struct to the host's, no further than the host's size.
unsafe fn give<T: AbiLayout>(later: &Newer<T>, out: *mut T) {
    // SAFETY: an output of the host, which states its size; the size stays.
    unsafe {
        let mut taken = *out.cast::<u32>() as usize;
        if taken != size_of::<T>() {
            violation(format!("{}: the host states {taken} bytes for it", T::layout().name));
            taken = size_of::<T>();
        }
        std::ptr::copy_nonoverlapping(later.ptr().cast::<u8>().add(4), out.cast::<u8>().add(4), taken - 4);
    }
}

unsafe fn fail(err: *mut ErrorOut, status: Status, words: &str) -> u32 {
    if !err.is_null() {
        // SAFETY: not null, so an error of the host.
        unsafe { ErrorOut::store(err, &Error::new(status, words)) };
    }
    status as u32
}

unsafe extern "C" fn enter<const S: usize>(host: *const Host, out: *mut Plugin, err: *mut ErrorOut) -> u32 {
    let entry = get(&INNER[S].entry);
    let mut answer = Newer::marked(Plugin::zeroed());
    // SAFETY: structs of the host, passed on.
    unsafe {
        let code = entry(host, answer.out(), err);
        if let Some(find) = answer.known.find_interface {
            INNER[S].find.get_or_init(|| find);
            answer.known.find_interface = Some(find_interface::<S>);
        }
        if IS.get() == Is::OutOfRange {
            answer.known.abi_minor = (*host).abi_minor_max + 1;
        }
        give(&answer, out);
        code
    }
}

/// A table with functions at its end that nobody knows yet.
#[repr(C)]
struct Larger<T> {
    known: T,
    more: [unsafe extern "C" fn(); 3],
}

unsafe extern "C" fn later_function() {
    violation("the host called a function that it cannot know");
}

/// The same table as a later plugin's.
fn larger<T: AbiTable>(known: T) -> *const c_void {
    let table = Larger {
        known,
        more: [later_function; 3],
    };
    let table = Box::leak(Box::new(table));
    let words = (&raw mut *table).cast::<u32>();
    // SAFETY: a table starts with its size and its minor version.
    unsafe {
        *words = size_of::<Larger<T>>() as u32;
        *words.add(1) += 3;
    }
    (&raw const *table).cast()
}

unsafe extern "C" fn find_interface<const S: usize>(
    instance: *mut c_void,
    id: u32,
    major: u32,
    max_minor: u32,
    out: *mut *const c_void,
    err: *mut ErrorOut,
) -> u32 {
    let (inner, is) = (&INNER[S], IS.get());
    // SAFETY: the plugin's function, instance and tables, and outputs of the host.
    unsafe {
        if is == Is::OfAnotherMajor(id) {
            return fail(err, Status::Incompatible, "this interface is of version 7.0");
        }
        if id == LATER_INTERFACE {
            *out = larger(get(&inner.device));
            return Status::Ok as u32;
        }
        let mut theirs = std::ptr::null();
        let code = get(&inner.find)(instance, id, major, max_minor, &mut theirs, err);
        if code != Status::Ok as u32 {
            return code;
        }
        *out = match id {
            PlatformTable::INTERFACE => {
                let today = *inner.platform.get_or_init(|| theirs.cast::<PlatformTable>().read());
                larger(PlatformTable {
                    device_info: Some(device_info::<S>),
                    open: Some(open::<S>),
                    ..today
                })
            }
            DeviceTable::INTERFACE => {
                let today = *inner.device.get_or_init(|| theirs.cast::<DeviceTable>().read());
                larger(DeviceTable {
                    info: Some(info::<S>),
                    memory: Some(memory::<S>),
                    ..today
                })
            }
            OpsTable::INTERFACE => {
                let today = *inner.ops.get_or_init(|| theirs.cast::<OpsTable>().read());
                let struct_size = offset_of!(OpsTable, claim) as u32;
                if is == Is::EndingEarly {
                    *out = (&raw const *Box::leak(Box::new(OpsTable { struct_size, ..today }))).cast();
                    return code;
                }
                let programs = match is {
                    Is::WithoutPrograms => OpsTable {
                        claim: Some(claims_nothing),
                        prepare_program: Some(prepare_program::<S>),
                        ..today
                    },
                    _ => OpsTable {
                        claim: today.claim.and(Some(claim::<S>)),
                        prepare_program: today.prepare_program.and(Some(prepare_program::<S>)),
                        ..today
                    },
                };
                larger(OpsTable {
                    support: Some(support::<S>),
                    prepare: Some(prepare::<S>),
                    ..programs
                })
            }
            AttentionTable::INTERFACE => {
                let today = *inner.attention.get_or_init(|| theirs.cast::<AttentionTable>().read());
                larger(AttentionTable {
                    backend_info: Some(backend_info::<S>),
                    plan: Some(plan::<S>),
                    ..today
                })
            }
            CommunicatorTable::INTERFACE => larger(theirs.cast::<CommunicatorTable>().read()),
            _ => theirs,
        };
        code
    }
}

/// A required slot of a plugin of today.
fn slot<F>(slot: Option<F>) -> F {
    slot.expect("today's plugins have their required functions")
}

/// What a later plugin has to say in a struct of today.
trait LaterFacts {
    /// Adds it.
    fn add(&mut self) {}
}

impl LaterFacts for DeviceInfoWire {
    fn add(&mut self) {
        self.capabilities |= LATER_CAPABILITIES;
        self.compute_dtypes |= LATER_DTYPE;
        self.kv_dtypes |= LATER_DTYPE;
    }
}

impl LaterFacts for MemoryInfoWire {}
impl LaterFacts for OpSupportWire {}
impl LaterFacts for PreparedWire {}
impl LaterFacts for ClaimReportWire {}
impl LaterFacts for AttentionBackendWire {}
impl LaterFacts for AttentionPlanWire {}

/// Functions whose output is a larger struct, filled and then given as far as the host has room.
macro_rules! outputs {
    ($($cell:ident . $slot:ident as $name:ident ( $($arg:ident : $ty:ty),* ) -> $out:ty;)*) => {$(
        unsafe extern "C" fn $name<const S: usize>($($arg: $ty,)* out: *mut $out, err: *mut ErrorOut) -> u32 {
            // SAFETY: arguments of the host, passed on; the output holds what the host set in it.
            unsafe {
                let mut later = Newer::marked(out.read());
                let code = slot(get(&INNER[S].$cell).$slot)($($arg,)* later.out(), err);
                later.known.add();
                if code == Status::Ok as u32 {
                    give(&later, out);
                }
                code
            }
        }
    )*};
}

outputs! {
    platform.device_info as device_info(instance: *mut c_void, index: u32) -> DeviceInfoWire;
    device.info as info(device: *mut c_void) -> DeviceInfoWire;
    device.memory as memory(device: *mut c_void) -> MemoryInfoWire;
    ops.support as support(device: *mut c_void, spec: *const OpSpecWire) -> OpSupportWire;
    ops.prepare as prepare(device: *mut c_void, spec: *const OpSpecWire) -> PreparedWire;
    ops.claim as claim(device: *mut c_void, program: *const ProgramWire) -> ClaimReportWire;
    ops.prepare_program as prepare_program(device: *mut c_void, program: *const ProgramWire) -> PreparedWire;
    attention.backend_info as backend_info(device: *mut c_void, index: u32) -> AttentionBackendWire;
    attention.plan as plan(device: *mut c_void, spec: *const OpSpecWire) -> AttentionPlanWire;
}

/// A device that is not there has a status of its own one day.
unsafe extern "C" fn open<const S: usize>(
    instance: *mut c_void,
    desc: *const OpenDescWire,
    out: *mut *mut c_void,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: arguments of the host, passed on.
    unsafe {
        let code = slot(get(&INNER[S].platform).open)(instance, desc, out, err);
        if code != Status::NotFound as u32 || err.is_null() {
            return code;
        }
        ((*err).status, (*err).vendor_code) = (LATER_STATUS, VENDOR_CODE);
        LATER_STATUS
    }
}

unsafe extern "C" fn claims_nothing(
    _device: *mut c_void,
    _program: *const ProgramWire,
    _out: *mut ClaimReportWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: an error of the host.
    unsafe { fail(err, Status::Unsupported, "programs of this form are not read here") }
}
