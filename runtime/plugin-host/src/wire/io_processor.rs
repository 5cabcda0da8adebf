//! IO processors over their table. Checks a processor's answers: codes, sizes, UTF-8. The caller handles deadlines and
//! threads.

use std::ffi::c_void;
use std::sync::Arc;

use halyard_platform_api::Result;
use halyard_platform_api::abi::Str;
use halyard_platform_api::abi::request_tables::{IoProcessorTable, IoRequestWire, IoVerdictWire};
use halyard_platform_api::io_processor::{
    IoAction, IoOpened, IoOutputs, IoProcessor, IoProcessorFactory, IoRequest, IoVerdict, too_large,
};

use super::hook::Hook;
use super::{Handle, named, slot};

/// Most bytes of a refusal's reason.
const MAX_REASON_BYTES: u64 = 16 << 10;

type Shared = Hook<IoProcessorTable>;

impl Shared {
    /// A copy of a text that the plugin gave.
    ///
    /// # Safety
    /// `text` is null or valid for its length, if that is at most `limit`.
    unsafe fn read(&self, part: &str, text: Str, limit: u64) -> Result<String> {
        if text.len > limit {
            return Err(too_large(&self.name, part, text.len, limit));
        }
        if text.len == 0 {
            return Ok(String::new());
        }
        if text.ptr.is_null() {
            return Err(self.defect(format_args!("gave {part} of {} bytes at a null pointer", text.len)));
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(text.ptr, text.len as usize) };
        let text = std::str::from_utf8(bytes);
        text.map(str::to_owned)
            .map_err(|error| self.defect(format_args!("gave {part} that is not UTF-8: {error}")))
    }
}

/// An IO-processor plugin.
pub struct HostIoProcessorFactory {
    shared: Arc<Shared>,
}

impl HostIoProcessorFactory {
    pub(crate) fn new(name: String, table: IoProcessorTable, instance: *mut c_void) -> HostIoProcessorFactory {
        HostIoProcessorFactory {
            shared: Hook::new(name, table, instance),
        }
    }
}

impl IoProcessorFactory for HostIoProcessorFactory {
    fn create(&self, config: &str) -> Result<Arc<dyn IoProcessor>> {
        let shared = self.shared.clone();
        let handle = shared.create("a processor", shared.table.create, config)?;
        Ok(Arc::new(HostIoProcessor { shared, handle }))
    }
}

/// A processor of a plugin.
struct HostIoProcessor {
    shared: Arc<Shared>,
    handle: Handle,
}

impl IoProcessor for HostIoProcessor {
    fn open(&self, request: &IoRequest<'_>) -> Result<IoOpened> {
        let shared = &self.shared;
        let wire = IoRequestWire {
            route: Str::new(request.route),
            id: Str::new(request.id),
            body: Str::new(request.body),
            max_bytes: request.max_bytes,
            ..IoRequestWire::zeroed()
        };
        let mut handle = std::ptr::null_mut();
        let mut verdict = IoVerdictWire::zeroed();
        // SAFETY: a live processor, a sized request whose texts are borrowed for the call, valid outputs.
        shared.call(|err| unsafe { slot(shared.table.open)(self.handle.0, &wire, &mut handle, &mut verdict, err) })?;
        // Released on every way out.
        let outputs = HostIoOutputs {
            shared: shared.clone(),
            handle: Handle(handle),
            left: request.max_bytes,
        };
        let action = IoAction::from_code(verdict.action).map_err(|error| named(&shared.name, error))?;
        let verdict_text = |part, limit| {
            // SAFETY: the request's memory, which no call has touched since.
            unsafe { shared.read(part, verdict.text, limit) }
        };
        let decision = match action {
            IoAction::Pass => IoVerdict::Pass,
            IoAction::Rewrite => IoVerdict::Rewrite(verdict_text("a body", request.max_bytes)?),
            IoAction::Reject => {
                if !(400..=499).contains(&verdict.http_status) {
                    let status = verdict.http_status;
                    return Err(shared.defect(format_args!("refused a request with status {status}, not 400 to 499")));
                }
                IoVerdict::Reject {
                    status: verdict.http_status,
                    reason: verdict_text("a reason", MAX_REASON_BYTES)?,
                }
            }
        };
        if verdict.wants_outputs > 1 {
            let found = verdict.wants_outputs;
            return Err(shared.defect(format_args!("answered {found} for wants_outputs, not 0 or 1")));
        }
        let wanted = verdict.wants_outputs == 1 && shared.table.push.is_some();
        if wanted && outputs.handle.0.is_null() {
            return Err(shared.defect("wants output texts and gave no request object"));
        }
        Ok(IoOpened {
            verdict: decision,
            outputs: wanted.then(|| Box::new(outputs) as Box<dyn IoOutputs>),
        })
    }
}

impl Drop for HostIoProcessor {
    fn drop(&mut self) {
        // SAFETY: a live processor, used no more.
        unsafe { slot(self.shared.table.drop)(self.handle.0) };
    }
}

/// A request object of a plugin; null is a request that it keeps nothing of.
struct HostIoOutputs {
    shared: Arc<Shared>,
    handle: Handle,
    /// Bytes of output that it may still give.
    left: u64,
}

impl HostIoOutputs {
    fn take(&mut self, text: Str) -> Result<String> {
        // SAFETY: the request's memory, which no call has touched since the one that gave it.
        let text = unsafe { self.shared.read("output text", text, self.left)? };
        self.left -= text.len() as u64;
        Ok(text)
    }
}

impl IoOutputs for HostIoOutputs {
    fn push(&mut self, choice: u32, text: &str) -> Result<String> {
        let mut out = Str::EMPTY;
        // SAFETY: a live request that `&mut` makes ours alone, a text borrowed for the call, valid output.
        self.shared.call(|err| unsafe {
            slot(self.shared.table.push)(self.handle.0, choice, Str::new(text), &mut out, err)
        })?;
        self.take(out)
    }

    fn finish(&mut self, choice: u32) -> Result<String> {
        let Some(finish) = self.shared.table.finish else {
            return Ok(String::new());
        };
        let mut out = Str::EMPTY;
        self.shared.call(|err| {
            // SAFETY: a live request that `&mut` makes ours alone, valid output.
            unsafe { finish(self.handle.0, choice, &mut out, err) }
        })?;
        self.take(out)
    }
}

impl Drop for HostIoOutputs {
    fn drop(&mut self) {
        if !self.handle.0.is_null() {
            // SAFETY: a live request, used no more.
            unsafe { slot(self.shared.table.request_drop)(self.handle.0) };
        }
    }
}
