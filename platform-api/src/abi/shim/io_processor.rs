//! The IO-processor table. A request's object owns the texts that its last call gave out.

use std::ffi::c_void;
use std::sync::Arc;

use super::{Handle, put};
use crate::abi::Str;
use crate::abi::request_tables::{IoProcessorTable, IoRequestWire, IoVerdictWire};
use crate::abi::types::{ErrorOut, read_known, write_struct};
use crate::io_processor::{IoAction, IoOutputs, IoProcessor, IoProcessorFactory, IoRequest, IoVerdict};
use crate::status::{Error, Result};

/// The plugin's root.
pub(super) type FactoryState = Arc<dyn IoProcessorFactory>;

type ProcessorHandle = Handle<Arc<dyn IoProcessor>>;
type RequestHandle = Handle<RequestState>;

/// A request and the text that its last call gave out.
struct RequestState {
    outputs: Option<Box<dyn IoOutputs>>,
    text: String,
}

impl RequestState {
    fn give(&mut self, text: String, out: *mut Str) -> Result<()> {
        self.text = text;
        // SAFETY: the wire promises a valid output; the text lives in the request.
        unsafe { put(out, Str::new(&self.text)) }
    }

    fn outputs(&mut self) -> Result<&mut Box<dyn IoOutputs>> {
        let missing = || Error::invalid("this request did not ask for its output texts");
        self.outputs.as_mut().ok_or_else(missing)
    }
}

/// The table over any [`IoProcessorFactory`].
pub(super) static TABLE: IoProcessorTable = IoProcessorTable {
    struct_size: size_of::<IoProcessorTable>() as u32,
    minor: IoProcessorTable::VERSION.1,
    create: Some(create),
    drop: Some(ProcessorHandle::release_c),
    open: Some(open),
    request_drop: Some(RequestHandle::release_c),
    push: Some(push),
    finish: Some(finish),
};

unsafe extern "C" fn create(instance: *mut c_void, config: Str, out: *mut *mut c_void, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live instance, a valid text and valid outputs.
    unsafe {
        Handle::<FactoryState>::with(instance, err, |factory| {
            let processor = factory.create(&config.to_text())?;
            put(out, ProcessorHandle::into_raw(processor))
        })
    }
}

unsafe extern "C" fn open(
    processor: *mut c_void,
    request: *const IoRequestWire,
    out: *mut *mut c_void,
    verdict: *mut IoVerdictWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live processor, a sized request with valid texts, and valid outputs.
    unsafe {
        ProcessorHandle::with(processor, err, |processor| {
            let wire = read_known(request)?;
            let (route, id, body) = (wire.route.to_text(), wire.id.to_text(), wire.body.to_text());
            let opened = processor.open(&IoRequest {
                route: &route,
                id: &id,
                body: &body,
                max_bytes: wire.max_bytes,
            })?;
            let mut answer = IoVerdictWire::zeroed();
            let (action, http_status, text) = match opened.verdict {
                IoVerdict::Pass => (IoAction::Pass, 0, String::new()),
                IoVerdict::Rewrite(body) => (IoAction::Rewrite, 0, body),
                IoVerdict::Reject { status, reason } => (IoAction::Reject, status, reason),
            };
            answer.action = action as u32;
            answer.http_status = http_status;
            answer.wants_outputs = u32::from(opened.outputs.is_some());
            // The text's bytes stay where they are when the string moves into the request.
            answer.text = Str::new(&text);
            let state = RequestState {
                outputs: opened.outputs,
                text,
            };
            write_struct(verdict, &answer)?;
            put(out, RequestHandle::into_raw(state))
        })
    }
}

unsafe extern "C" fn push(request: *mut c_void, choice: u32, text: Str, out: *mut Str, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live request that this thread alone uses, and a valid text.
    unsafe {
        RequestHandle::with_mut(request, err, |request| {
            let shown = request.outputs()?.push(choice, &text.to_text())?;
            request.give(shown, out)
        })
    }
}

unsafe extern "C" fn finish(request: *mut c_void, choice: u32, out: *mut Str, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live request that this thread alone uses.
    unsafe {
        RequestHandle::with_mut(request, err, |request| {
            let rest = request.outputs()?.finish(choice)?;
            request.give(rest, out)
        })
    }
}
