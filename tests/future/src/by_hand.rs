//! A plugin called through its bare tables: what a test passes is what the plugin gets. Nothing here is a host; it
//! checks that a refusal writes no output, and releases what was made.

use std::ffi::c_void;

use halyard_platform_api::abi::tables::{
    ABI_MAJOR, ABI_MINOR, AttentionPlanWire, AttentionTable, BufferDescWire, ClaimReportWire, CollectiveWire,
    CommunicatorDescWire, CommunicatorTable, DeviceTable, EncoderDescWire, EntryFn, Host, InterfaceFn, MemoryInfoWire,
    OpSupportWire, OpenDescWire, OpsTable, PlatformTable, Plugin, PreparedWire, QueueDescWire, StepWriteWire,
    WeightRowsWire,
};
use halyard_platform_api::abi::{AbiTable, ErrorOut};
use halyard_platform_api::{Error, Tensor};

use crate::program::{LaterProgram, LaterSpec};
use crate::{Newer, UNTOUCHED, violation};

/// A plugin that was entered.
pub struct Entered {
    /// Its instance.
    pub instance: *mut c_void,
    /// Its platform.
    pub platform: PlatformTable,
    /// Its devices.
    pub device: DeviceTable,
    /// Its ops.
    pub ops: OpsTable,
    /// Its attention, if it has any.
    pub attention: Option<AttentionTable>,
    /// Its communicators, if it has any.
    pub communicator: Option<CommunicatorTable>,
}

/// A handle with its number.
pub struct Object {
    /// The handle.
    pub handle: *mut c_void,
    /// The number.
    pub id: u64,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: a live object, used no more.
            unsafe { release(self.handle) };
        }
    }
}

/// Calls a function of a plugin.
///
/// # Errors
/// The plugin's.
pub fn told(function: impl FnOnce(*mut ErrorOut) -> u32) -> Result<(), Error> {
    let mut text = [0; 4096];
    let mut err = ErrorOut::over(&mut text);
    match function(&mut err) {
        0 => Ok(()),
        // SAFETY: the text is the buffer above.
        code => Err(unsafe { err.load(code) }),
    }
}

/// A required slot.
fn slot<F>(slot: Option<F>) -> F {
    slot.expect("required slots were checked when the table was loaded")
}

/// A marked output must be as it was past what the plugin knows.
fn stays<T>(what: &str, out: &Newer<T>) {
    if out.more != [UNTOUCHED; 4] {
        violation(format!("{what}: written past what the plugin knows"));
    }
}

/// What stands in outputs before a call.
const BEFORE: u64 = 0x0123_4567_89AB_CDEF;

/// Calls a function that makes an object.
fn made(
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    call: impl FnOnce(*mut *mut c_void, *mut u64, *mut ErrorOut) -> u32,
) -> Result<Object, Error> {
    let before = std::ptr::without_provenance_mut(BEFORE as usize);
    let (mut handle, mut id) = (before, BEFORE);
    let result = told(|err| call(&mut handle, &mut id, err));
    if result.is_err() && (handle, id) != (before, BEFORE) {
        violation("a call that failed wrote its outputs");
    }
    result.map(|()| Object { handle, id, release })
}

impl Entered {
    /// Enters a platform.
    ///
    /// # Errors
    /// The plugin's.
    pub fn new(entry: EntryFn) -> Result<Entered, Error> {
        let root = enter(entry)?;
        Ok(Entered {
            instance: root.instance,
            platform: root.table()?,
            device: root.table()?,
            ops: root.table()?,
            attention: root.table().ok(),
            communicator: root.table().ok(),
        })
    }

    /// Opens a device.
    ///
    /// # Errors
    /// The plugin's, as everywhere below.
    pub fn open(&self, desc: &Newer<OpenDescWire>) -> Result<Device<'_>, Error> {
        let open = slot(self.platform.open);
        let object = made(self.device.close, |handle, _, err| {
            // SAFETY: a live instance, a sized descriptor, valid outputs.
            unsafe { open(self.instance, desc.ptr(), handle, err) }
        })?;
        Ok(Device { plugin: self, object })
    }
}

/// A plugin that was entered, of whatever kind.
pub struct Root {
    /// Finds its interfaces.
    pub find: InterfaceFn,
    /// Its instance.
    pub instance: *mut c_void,
}

/// Enters a plugin as a plain host of this contract does.
///
/// # Errors
/// The plugin's.
pub fn enter(entry: EntryFn) -> Result<Root, Error> {
    let mut host = Host::zeroed();
    (host.abi_major, host.abi_minor_min, host.abi_minor_max) = (ABI_MAJOR, ABI_MINOR, ABI_MINOR);
    // Plugins keep it for the process's life.
    let host = Box::leak(Box::new(host));
    let mut plugin = Plugin::zeroed();
    // SAFETY: sized structs.
    told(|err| unsafe { entry(host, &mut plugin, err) })?;
    let find = plugin.find_interface.ok_or_else(|| Error::invalid("no interfaces"))?;
    let instance = plugin.instance;
    Ok(Root { find, instance })
}

impl Root {
    /// An interface's table.
    ///
    /// # Errors
    /// The plugin's, and what is missing in it.
    pub fn table<T: AbiTable>(&self) -> Result<T, Error> {
        let (major, minor) = T::table_layout().version;
        let mut table = std::ptr::null();
        // SAFETY: the plugin's function and instance, valid outputs.
        told(|err| unsafe { (self.find)(self.instance, T::ID, major, minor, &mut table, err) })?;
        // SAFETY: a table of the plugin.
        unsafe { T::load(table.cast()) }
    }
}

/// An open device.
pub struct Device<'a> {
    /// Whose it is.
    pub plugin: &'a Entered,
    /// Its handle.
    pub object: Object,
}

/// A function of the tables each, by its name there.
impl Device<'_> {
    /// Bytes that the device holds.
    ///
    /// # Panics
    /// When it is refused.
    pub fn used_bytes(&self) -> u64 {
        let mut info = MemoryInfoWire::zeroed();
        let memory = slot(self.plugin.device.memory);
        // SAFETY: a live device, a sized output.
        told(|err| unsafe { memory(self.object.handle, &mut info, err) }).expect("it counts");
        info.used_bytes
    }

    /// A buffer.
    ///
    /// # Errors
    /// The plugin's.
    pub fn buffer_create(&self, desc: &Newer<BufferDescWire>) -> Result<Object, Error> {
        let (table, device) = (&self.plugin.device, self.object.handle);
        // SAFETY: a live device, a sized descriptor, valid outputs.
        made(table.buffer_drop, |handle, id, err| unsafe {
            slot(table.buffer_create)(device, desc.ptr(), handle, id, err)
        })
    }

    /// Writes to the start of a buffer.
    ///
    /// # Errors
    /// The plugin's.
    pub fn buffer_write(&self, buffer: &Object, bytes: &[u8]) -> Result<(), Error> {
        let write = slot(self.plugin.device.buffer_write);
        // SAFETY: a live buffer and readable bytes.
        told(|err| unsafe { write(buffer.handle, 0, bytes.as_ptr(), bytes.len() as u64, err) })
    }

    /// The first `len` bytes of a buffer.
    ///
    /// # Panics
    /// When it is refused.
    pub fn buffer_read(&self, buffer: &Object, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = slot(self.plugin.device.buffer_read);
        // SAFETY: a live buffer and writable bytes.
        let read = told(|err| unsafe { read(buffer.handle, 0, bytes.as_mut_ptr(), len as u64, err) });
        read.expect("within the buffer");
        bytes
    }

    /// A queue.
    ///
    /// # Errors
    /// The plugin's.
    pub fn queue_create(&self, desc: &Newer<QueueDescWire>) -> Result<Object, Error> {
        let (table, device) = (&self.plugin.device, self.object.handle);
        // SAFETY: a live device, a sized descriptor, valid outputs.
        made(table.queue_drop, |handle, id, err| unsafe {
            slot(table.queue_create)(device, desc.ptr(), handle, id, err)
        })
    }

    /// Writes of a step, with the stride of a later host.
    ///
    /// # Errors
    /// The plugin's.
    pub fn write_step(&self, queue: &Object, writes: &[Newer<StepWriteWire>]) -> Result<(), Error> {
        let write = slot(self.plugin.device.write_step);
        let (num, stride) = (writes.len() as u32, size_of::<Newer<StepWriteWire>>() as u32);
        // SAFETY: a live queue, an array of that stride whose bytes are borrowed for the call.
        told(|err| unsafe { write(queue.handle, writes.as_ptr().cast(), num, stride, err) })
    }

    /// An encoder, abandoned when it is dropped.
    ///
    /// # Errors
    /// The plugin's.
    pub fn encoder_create(&self, queue: &Object, desc: &Newer<EncoderDescWire>) -> Result<Object, Error> {
        let table = &self.plugin.device;
        // SAFETY: a live queue, a sized descriptor, valid outputs.
        made(table.encoder_drop, |handle, _, err| unsafe {
            slot(table.encoder_create)(queue.handle, desc.ptr(), handle, err)
        })
    }

    /// Appends an op.
    ///
    /// # Errors
    /// The plugin's.
    pub fn encode(&self, encoder: &Object, op: &Object, operands: &[Tensor]) -> Result<(), Error> {
        let encode = slot(self.plugin.device.encode);
        // SAFETY: a live encoder that this thread alone uses, tensors of that number.
        told(|err| unsafe { encode(encoder.handle, op.id, operands.as_ptr(), operands.len() as u32, err) })
    }

    /// Seals, submits and waits.
    ///
    /// # Errors
    /// The plugin's.
    pub fn run(&self, queue: &Object, mut encoder: Object) -> Result<(), Error> {
        let table = &self.plugin.device;
        encoder.release = None;
        // SAFETY: a live encoder, which is consumed, and valid outputs.
        let command = made(table.command_drop, |handle, id, err| unsafe {
            slot(table.encoder_finish)(encoder.handle, handle, id, err)
        })?;
        let mut number = 0;
        // SAFETY: a live queue, one command, valid outputs.
        told(|err| unsafe { slot(table.submit)(queue.handle, &command.id, 1, std::ptr::null(), 0, &mut number, err) })?;
        // SAFETY: a live queue.
        told(|err| unsafe { slot(table.wait)(queue.handle, number, 10_000_000_000, err) })
    }

    /// Whether an op runs.
    ///
    /// # Errors
    /// The plugin's.
    pub fn support(&self, spec: &mut LaterSpec) -> Result<(), Error> {
        let (support, mut out) = (slot(self.plugin.ops.support), Newer::marked(OpSupportWire::zeroed()));
        // SAFETY: a live device, a spec that is borrowed for the call, a sized output.
        let result = told(|err| unsafe { support(self.object.handle, spec.ptr(), out.out(), err) });
        stays("support", &out);
        result
    }

    /// An op, prepared.
    ///
    /// # Errors
    /// The plugin's.
    pub fn prepare(&self, spec: &mut LaterSpec) -> Result<Object, Error> {
        let (prepare, device) = (slot(self.plugin.ops.prepare), self.object.handle);
        // SAFETY: a live device, a spec that is borrowed for the call, a sized output.
        self.prepared(|out, err| unsafe { prepare(device, spec.ptr(), out, err) })
    }

    /// None where the plugin has no programs.
    pub fn prepare_program(&self, program: &mut LaterProgram) -> Option<Result<Object, Error>> {
        let (prepare, device) = (self.plugin.ops.prepare_program?, self.object.handle);
        // SAFETY: a live device, a program that is borrowed for the call, a sized output.
        Some(program.call(|wire| self.prepared(|out, err| unsafe { prepare(device, wire, out, err) })))
    }

    fn prepared(&self, call: impl FnOnce(*mut PreparedWire, *mut ErrorOut) -> u32) -> Result<Object, Error> {
        made(self.plugin.ops.prepared_drop, |handle, id, err| {
            let mut out = Newer::marked(PreparedWire::zeroed());
            let code = call(out.out(), err);
            stays("prepare", &out);
            // SAFETY: outputs of the caller; what was left alone stays as it was there.
            unsafe {
                if code == 0 || !out.known.handle.is_null() {
                    (*handle, *id) = (out.known.handle, out.known.id);
                }
            }
            code
        })
    }

    /// Claims as (first, count); none where the plugin has no programs.
    pub fn claim(&self, program: &mut LaterProgram) -> Option<Result<Vec<(u32, u32)>, Error>> {
        let claim = self.plugin.ops.claim?;
        let (mut claims, mut out) = ([[0; 2]; 16], Newer::marked(ClaimReportWire::zeroed()));
        out.known.claims = claims.as_mut_ptr().cast();
        out.known.claims_capacity = claims.len() as u32;
        // SAFETY: a live device, a program that is borrowed for the call, a sized output over `claims`.
        let asked = program.call(|wire| told(|err| unsafe { claim(self.object.handle, wire, out.out(), err) }));
        stays("claim", &out);
        let found = &claims[..out.known.num_claims as usize];
        Some(asked.map(|()| found.iter().map(|&[first, count]| (first, count)).collect()))
    }

    /// Bytes of an op's packed weight.
    ///
    /// # Errors
    /// The plugin's.
    pub fn packed_weight_bytes(&self, op: &Object) -> Result<u64, Error> {
        let mut bytes = 0;
        let packed = slot(self.plugin.ops.packed_weight_bytes);
        // SAFETY: a live op, a valid output.
        told(|err| unsafe { packed(op.handle, 0, &mut bytes, err) }).map(|()| bytes)
    }

    /// Packs rows from host memory.
    ///
    /// # Errors
    /// The plugin's.
    pub fn pack_weight(&self, op: &Object, rows: &Newer<WeightRowsWire>, dst: &Tensor) -> Result<(), Error> {
        let pack = slot(self.plugin.ops.pack_weight);
        // SAFETY: a live op, rows whose bytes live, a tensor.
        told(|err| unsafe { pack(op.handle, rows.ptr(), dst, err) })
    }

    /// None where the plugin packs from host memory only.
    pub fn pack_weight_from(
        &self,
        op: &Object,
        rows: &Newer<WeightRowsWire>,
        [src, dst]: [&Tensor; 2],
    ) -> Option<Result<(), Error>> {
        let pack = self.plugin.ops.pack_weight_from?;
        // SAFETY: a live op, sized rows, tensors.
        Some(told(|err| unsafe { pack(op.handle, rows.ptr(), src, dst, err) }))
    }

    /// None where the plugin has no attention.
    pub fn attention_support(&self, spec: &mut LaterSpec) -> Option<Result<(), Error>> {
        let support = slot(self.plugin.attention?.support);
        // SAFETY: a live device, a spec that is borrowed for the call.
        Some(told(|err| unsafe { support(self.object.handle, spec.ptr(), err) }))
    }

    /// None where the plugin has no attention.
    pub fn attention_plan(&self, spec: &mut LaterSpec) -> Option<Result<(), Error>> {
        let (plan, mut out) = (
            slot(self.plugin.attention?.plan),
            Newer::marked(AttentionPlanWire::zeroed()),
        );
        // SAFETY: a live device, a spec that is borrowed for the call, a sized output.
        let result = told(|err| unsafe { plan(self.object.handle, spec.ptr(), out.out(), err) });
        stays("attention plan", &out);
        Some(result)
    }

    /// A fresh group's id; none where the plugin has no communicators.
    pub fn unique_id(&self) -> Option<Vec<u8>> {
        let (mut id, mut len) = (vec![0; 16 << 10], 0);
        let unique_id = slot(self.plugin.communicator?.unique_id);
        // SAFETY: a live device, as many writable bytes as stated, a valid output.
        told(|err| unsafe { unique_id(self.object.handle, id.as_mut_ptr(), id.len() as u32, &mut len, err) }).ok()?;
        id.truncate(len as usize);
        Some(id)
    }

    /// Joins a group.
    ///
    /// # Errors
    /// The plugin's.
    pub fn join(&self, desc: &Newer<CommunicatorDescWire>) -> Result<Object, Error> {
        let table = self.plugin.communicator.expect("an id came from it");
        // SAFETY: a live device, a sized descriptor whose id lives, valid outputs.
        made(Some(slot(table.drop)), |handle, id, err| unsafe {
            slot(table.create)(self.object.handle, desc.ptr(), handle, id, err)
        })
    }

    /// A collective, prepared.
    ///
    /// # Errors
    /// The plugin's.
    pub fn prepare_collective(&self, group: &Object, spec: &Newer<CollectiveWire>) -> Result<Object, Error> {
        let prepare = slot(self.plugin.communicator.expect("an id came from it").prepare);
        // SAFETY: a live communicator, a sized spec and output.
        self.prepared(|out, err| unsafe { prepare(group.handle, spec.ptr(), out, err) })
    }
}
