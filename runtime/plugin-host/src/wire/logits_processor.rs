//! Logits processors over their table. Checks what a processor did to a row: bits, tokens, biases. The caller handles
//! deadlines and threads.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use halyard_platform_api::abi::logits_tables::{
    LogitsModelWire, LogitsProcessorTable, LogitsRequestWire, LogitsRowWire,
};
use halyard_platform_api::abi::{ErrorOut, Str};
use halyard_platform_api::logits_processor::{
    LogitBias, LogitsModel, LogitsProcessor, LogitsProcessorFactory, LogitsRequest, LogitsRow, RequestLogits,
    SequenceLogits,
};
use halyard_platform_api::{Error, Result, Status};

use super::hook::Hook;
use super::{Handle, named, slot};

type Shared = Hook<LogitsProcessorTable>;

/// A logits-processor plugin.
pub struct HostLogitsProcessorFactory {
    shared: Arc<Shared>,
}

impl HostLogitsProcessorFactory {
    pub(crate) fn new(name: String, table: LogitsProcessorTable, instance: *mut c_void) -> HostLogitsProcessorFactory {
        HostLogitsProcessorFactory {
            shared: Hook::new(name, table, instance),
        }
    }
}

impl LogitsProcessorFactory for HostLogitsProcessorFactory {
    fn create(&self, config: &str, model: Arc<dyn LogitsModel>) -> Result<Arc<dyn LogitsProcessor>> {
        let shared = self.shared.clone();
        let model = Box::new(ModelContext(model));
        let end_tokens = model.0.end_tokens();
        let wire = LogitsModelWire {
            vocab_size: model.0.vocab_size(),
            end_tokens: end_tokens.as_ptr(),
            num_end_tokens: end_tokens.len() as u32,
            context: std::ptr::from_ref(&*model).cast_mut().cast(),
            encode: Some(encode),
            token_bytes: Some(token_bytes),
            ..LogitsModelWire::zeroed()
        };
        let handle = shared.create_by("a processor", |instance, out, err| {
            // SAFETY: a live instance, a text and a struct borrowed for the call; what the struct points to lives as
            // long as the processor; valid outputs.
            unsafe { slot(shared.table.create)(instance, Str::new(config), &wire, out, err) }
        })?;
        let processor = Object {
            handle,
            drop: slot(shared.table.drop),
            _of: model,
        };
        Ok(Arc::new(HostLogitsProcessor {
            shared,
            processor: Arc::new(processor),
        }))
    }
}

/// What the functions of the model's struct are called with.
struct ModelContext(Arc<dyn LogitsModel>);

/// Writes a list of the model for a plugin: as many entries as it has room for, and how many there are.
///
/// # Safety
/// `context` is a live [`ModelContext`]; `out` is null or valid for `capacity` entries, `num` is null or valid, `err`
/// is null or a sized error.
unsafe fn give<T: Copy>(
    context: *mut c_void,
    (out, capacity, num): (*mut T, u32, *mut u32),
    err: *mut ErrorOut,
    list: impl FnOnce(&dyn LogitsModel) -> Result<Vec<T>>,
) -> u32 {
    // SAFETY: as the caller promises.
    let model = unsafe { &*context.cast::<ModelContext>() };
    let given = catch_unwind(AssertUnwindSafe(|| list(&*model.0)));
    let given = given.unwrap_or_else(|_| Err(Error::new(Status::Internal, "the host panicked")));
    let result = given.and_then(|list| {
        let room = capacity.min(list.len() as u32);
        if num.is_null() || (out.is_null() && room > 0) {
            return Err(Error::invalid("an output pointer is null"));
        }
        // SAFETY: as the caller promises; not null.
        unsafe {
            std::ptr::copy_nonoverlapping(list.as_ptr(), out, room as usize);
            num.write(list.len() as u32);
        }
        Ok(())
    });
    let Err(error) = result else { return 0 };
    if !err.is_null() {
        // SAFETY: as the caller promises.
        unsafe { ErrorOut::store(err, &error) };
    }
    error.status as u32
}

unsafe extern "C" fn encode(
    context: *mut c_void,
    text: Str,
    out: *mut u32,
    capacity: u32,
    num: *mut u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the plugin passes the context on, a valid text and valid outputs.
    unsafe {
        give(context, (out, capacity, num), err, |model| {
            model.encode(&text.to_text())
        })
    }
}

unsafe extern "C" fn token_bytes(
    context: *mut c_void,
    token: u32,
    out: *mut u8,
    capacity: u32,
    num: *mut u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the plugin passes the context on, and valid outputs.
    unsafe { give(context, (out, capacity, num), err, |model| model.token_bytes(token)) }
}

/// An object of the plugin, and what it was made of, which is dropped after it.
struct Object<T> {
    handle: Handle,
    drop: unsafe extern "C" fn(*mut c_void),
    _of: T,
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: a live object with the function that releases it, used no more.
        unsafe { (self.drop)(self.handle.0) };
    }
}

type Processor = Object<Box<ModelContext>>;
type Request = Object<Arc<Processor>>;
type Sequence = Object<Arc<Request>>;

/// A processor of a plugin.
struct HostLogitsProcessor {
    shared: Arc<Shared>,
    processor: Arc<Processor>,
}

impl LogitsProcessor for HostLogitsProcessor {
    fn open(&self, request: &LogitsRequest<'_>) -> Result<Option<Box<dyn RequestLogits>>> {
        let shared = &self.shared;
        let wire = LogitsRequestWire {
            max_tokens: request.max_tokens,
            id: Str::new(request.id),
            prompt: request.prompt.as_ptr(),
            num_prompt: request.prompt.len() as u64,
            args: Str::new(request.args),
            ..LogitsRequestWire::zeroed()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live processor, a sized request whose lists are borrowed for the call, a valid output.
        shared.call(|err| unsafe { slot(shared.table.open)(self.processor.handle.0, &wire, &mut handle, err) })?;
        if handle.is_null() {
            return Ok(None);
        }
        let request = Object {
            handle: Handle(handle),
            drop: slot(shared.table.request_drop),
            _of: Arc::clone(&self.processor),
        };
        Ok(Some(Box::new(HostRequestLogits {
            shared: Arc::clone(shared),
            request: Arc::new(request),
        })))
    }

    fn reads(&self, field: &str) -> bool {
        let Some(reads) = self.shared.table.reads else {
            return false;
        };
        let mut answer = 0;
        let asked = self.shared.call(|err| {
            // SAFETY: a live processor, a text borrowed for the call, a valid output.
            unsafe { reads(self.processor.handle.0, Str::new(field), &mut answer, err) }
        });
        match asked {
            Ok(()) => answer == 1,
            Err(error) => {
                tracing::warn!("{error}");
                false
            }
        }
    }
}

/// A request that a processor takes part in.
struct HostRequestLogits {
    shared: Arc<Shared>,
    request: Arc<Request>,
}

impl RequestLogits for HostRequestLogits {
    fn start(&self, sample: u32) -> Result<Box<dyn SequenceLogits>> {
        let shared = &self.shared;
        let create = slot(shared.table.sequence_create);
        let handle = shared.create_by("a sequence", |_, out, err| {
            // SAFETY: a live request and valid outputs.
            unsafe { create(self.request.handle.0, sample, out, err) }
        })?;
        let sequence = Object {
            handle,
            drop: slot(shared.table.sequence_drop),
            _of: Arc::clone(&self.request),
        };
        Ok(Box::new(HostSequenceLogits {
            shared: Arc::clone(shared),
            sequence,
            mask: Vec::new(),
            room: Vec::new(),
        }))
    }
}

/// A sample of such a request.
struct HostSequenceLogits {
    shared: Arc<Shared>,
    sequence: Sequence,
    /// What the processor writes to, so that nothing else of a row is within its reach.
    mask: Vec<u32>,
    room: Vec<LogitBias>,
}

impl SequenceLogits for HostSequenceLogits {
    fn process(&mut self, tokens: &[u32], row: &mut LogitsRow<'_>) -> Result<()> {
        self.mask.clear();
        self.mask.extend_from_slice(row.mask_mut());
        self.room.resize(row.room(), LogitBias::default());
        let mut wire = LogitsRowWire {
            vocab_size: row.vocab_size(),
            mask: self.mask.as_mut_ptr(),
            biases: self.room.as_mut_ptr(),
            biases_capacity: self.room.len() as u32,
            ..LogitsRowWire::zeroed()
        };
        let (process, handle) = (slot(self.shared.table.process), self.sequence.handle.0);
        self.shared.call(|err| {
            // SAFETY: a live sequence that `&mut` makes ours alone, a list borrowed for the call, a sized row over
            // buffers of the stated sizes.
            unsafe { process(handle, tokens.as_ptr(), tokens.len() as u32, &mut wire, err) }
        })?;
        let Some(biases) = self.room.get(..wire.num_biases as usize) else {
            let (given, room) = (wire.num_biases, self.room.len());
            return Err(self
                .shared
                .defect(format_args!("gave {given} biases where there is room for {room}")));
        };
        row.mask_mut()
            .iter_mut()
            .zip(&self.mask)
            .for_each(|(word, mask)| *word &= mask);
        let added = biases.iter().try_for_each(|of| row.add_bias(of.token, of.bias));
        added.map_err(|error| Error::new(Status::Internal, named(&self.shared.name, error).message))
    }
}
