//! The logits-processor table, and the host's model as the plugin's code sees it.

use std::ffi::c_void;
use std::sync::Arc;

use super::{Handle, put, slice};
use crate::abi::Str;
use crate::abi::limits::ERROR_TEXT_BYTES;
use crate::abi::logits_tables::{
    EncodeFn, LogitsModelWire, LogitsProcessorTable, LogitsRequestWire, LogitsRowWire, TokenBytesFn,
};
use crate::abi::types::{ErrorOut, read_known};
use crate::logits_processor::{
    LogitsModel, LogitsProcessor, LogitsProcessorFactory, LogitsRequest, LogitsRow, RequestLogits, SequenceLogits,
};
use crate::status::{Error, Result};

/// The plugin's root.
pub(super) type FactoryState = Arc<dyn LogitsProcessorFactory>;

type ProcessorHandle = Handle<Arc<dyn LogitsProcessor>>;
type RequestHandle = Handle<Box<dyn RequestLogits>>;
type SequenceHandle = Handle<Box<dyn SequenceLogits>>;

/// The table over any [`LogitsProcessorFactory`].
pub(super) static TABLE: LogitsProcessorTable = LogitsProcessorTable {
    struct_size: size_of::<LogitsProcessorTable>() as u32,
    minor: LogitsProcessorTable::VERSION.1,
    create: Some(create),
    drop: Some(ProcessorHandle::release_c),
    open: Some(open),
    request_drop: Some(RequestHandle::release_c),
    sequence_create: Some(sequence_create),
    sequence_drop: Some(SequenceHandle::release_c),
    process: Some(process),
    reads: Some(reads),
};

/// The host's model.
struct HostModel {
    vocab_size: u32,
    end_tokens: Vec<u32>,
    context: *mut c_void,
    encode: EncodeFn,
    token_bytes: TokenBytesFn,
}

// SAFETY: the contract lets any thread call the functions with the context.
unsafe impl Send for HostModel {}
// SAFETY: as above.
unsafe impl Sync for HostModel {}

impl HostModel {
    /// # Safety
    /// As [`read_known`], with functions and a context that are valid as long as the result is used.
    unsafe fn read(model: *const LogitsModelWire) -> Result<HostModel> {
        // SAFETY: as the caller promises.
        let wire = unsafe { read_known(model) }?;
        let (Some(encode), Some(token_bytes)) = (wire.encode, wire.token_bytes) else {
            return Err(Error::invalid("halyard_logits_model: a function is null"));
        };
        // SAFETY: as the caller promises.
        let end_tokens = unsafe { slice(wire.end_tokens, u64::from(wire.num_end_tokens)) }?;
        Ok(HostModel {
            vocab_size: wire.vocab_size,
            end_tokens: end_tokens.to_vec(),
            context: wire.context,
            encode,
            token_bytes,
        })
    }
}

/// A list from a function of the host that tells how many entries there are: asked again where there is no room.
fn ask<T: Copy + Default>(mut fill: impl FnMut(&mut [T], &mut u32, *mut ErrorOut) -> u32) -> Result<Vec<T>> {
    let mut text = vec![0; ERROR_TEXT_BYTES as usize];
    let mut room = 64;
    loop {
        let (mut list, mut num) = (vec![T::default(); room], 0);
        let mut err = ErrorOut::over(&mut text);
        let code = fill(&mut list, &mut num, &mut err);
        if code != 0 {
            // SAFETY: over the buffer above.
            return Err(unsafe { err.load(code) });
        }
        if num as usize <= room {
            list.truncate(num as usize);
            return Ok(list);
        }
        room = num as usize;
    }
}

impl LogitsModel for HostModel {
    fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let (function, context, text) = (self.encode, self.context, Str::new(text));
        // SAFETY: the host's function and context live as long as the processor; the outputs are valid.
        ask(|list, num, err| unsafe { function(context, text, list.as_mut_ptr(), list.len() as u32, num, err) })
    }

    fn token_bytes(&self, token: u32) -> Result<Vec<u8>> {
        let (function, context) = (self.token_bytes, self.context);
        // SAFETY: as above.
        ask(|list, num, err| unsafe { function(context, token, list.as_mut_ptr(), list.len() as u32, num, err) })
    }
}

unsafe extern "C" fn create(
    instance: *mut c_void,
    config: Str,
    model: *const LogitsModelWire,
    out: *mut *mut c_void,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live instance, a valid text, a model that outlives the processor, and valid outputs.
    unsafe {
        Handle::<FactoryState>::with(instance, err, |factory| {
            let model = Arc::new(HostModel::read(model)?);
            let processor = factory.create(&config.to_text(), model)?;
            put(out, ProcessorHandle::into_raw(processor))
        })
    }
}

unsafe extern "C" fn reads(processor: *mut c_void, field: Str, out: *mut u32, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live processor, a valid text and a valid output.
    unsafe {
        ProcessorHandle::with(processor, err, |processor| {
            put(out, u32::from(processor.reads(&field.to_text())))
        })
    }
}

unsafe extern "C" fn open(
    processor: *mut c_void,
    request: *const LogitsRequestWire,
    out: *mut *mut c_void,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live processor, a sized request with valid texts and lists, and a valid output.
    unsafe {
        ProcessorHandle::with(processor, err, |processor| {
            let wire = read_known(request)?;
            let opened = processor.open(&LogitsRequest {
                id: &wire.id.to_text(),
                prompt: slice(wire.prompt, wire.num_prompt)?,
                max_tokens: wire.max_tokens,
                args: &wire.args.to_text(),
            })?;
            put(out, opened.map_or(std::ptr::null_mut(), RequestHandle::into_raw))
        })
    }
}

unsafe extern "C" fn sequence_create(
    request: *mut c_void,
    sample: u32,
    out: *mut *mut c_void,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live request and a valid output.
    unsafe {
        RequestHandle::with(request, err, |request| {
            put(out, SequenceHandle::into_raw(request.start(sample)?))
        })
    }
}

unsafe extern "C" fn process(
    sequence: *mut c_void,
    tokens: *const u32,
    num_tokens: u32,
    row: *mut LogitsRowWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live sequence that this thread alone uses, a valid list, and a sized row over a mask
    // of its vocabulary and room for its biases, which nobody else touches.
    unsafe {
        SequenceHandle::with_mut(sequence, err, |sequence| {
            let wire = read_known(row.cast_const())?;
            let (mask, room) = (
                slice_mut(wire.mask, wire.vocab_size.div_ceil(32))?,
                slice_mut(wire.biases, wire.biases_capacity)?,
            );
            let mut changed = LogitsRow::new(wire.vocab_size, mask, room)?;
            sequence.process(slice(tokens, u64::from(num_tokens))?, &mut changed)?;
            let num_biases = changed.biases().len() as u32;
            // Not the whole struct: a newer host's has further fields.
            (&raw mut (*row).num_biases).write(num_biases);
            Ok(())
        })
    }
}

/// Borrows an array to write to; null is fine for no entries.
///
/// # Safety
/// `ptr` is null or valid for `len` entries during the call, which nobody else uses.
unsafe fn slice_mut<'a, T>(ptr: *mut T, len: u32) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as the caller promises; checked there.
    unsafe { slice(ptr.cast_const(), u64::from(len)) }?;
    // SAFETY: as the caller promises; not null, aligned, of a possible size, as was just checked.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len as usize) })
}
