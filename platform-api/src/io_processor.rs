//! IO processors: hook plugins that see a generation request before it is read and its texts before they are sent.
//!
//! A processor may pass a request, rewrite its body, or refuse it with a status and a reason; it may rewrite the text
//! of each choice, piece by piece. A whole answer comes as one piece, so a processor that does not care how a text is
//! cut gives the same answer streamed and whole. The host calls it off its own threads, each call with a deadline and a
//! size limit; a call that fails, fails that request only.

use std::sync::Arc;

use crate::abi::wire_enum;
use crate::status::{Error, Result, Status};

wire_enum! {
    /// What becomes of a request.
    pub enum IoAction {
        /// It goes on as it came.
        Pass = 0,
        /// It goes on with another body.
        Rewrite = 1,
        /// It is refused.
        Reject = 2,
    }
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub struct IoRequest<'a> {
    /// Route, such as `/v1/chat/completions`.
    pub route: &'a str,
    /// The request's id, for logs.
    pub id: &'a str,
    /// The body: one JSON object.
    pub body: &'a str,
    /// Most bytes of a rewritten body, and of all output texts of the request together.
    pub max_bytes: u64,
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoVerdict {
    /// It goes on as it came.
    Pass,
    /// It goes on with this body, one JSON object.
    Rewrite(String),
    /// It is refused.
    Reject {
        /// HTTP status, 400 to 499.
        status: u32,
        /// For the client.
        reason: String,
    },
}

/// How the words of [`too_large`] end.
const ALLOWED: &str = " are allowed";

/// The failure of a processor that gave `bytes` of `what` where its request has `allowed` left
/// ([`IoRequest::max_bytes`]).
pub fn too_large(processor: &str, what: &str, bytes: u64, allowed: u64) -> Error {
    Error::new(
        Status::Internal,
        format!("{processor}: gave {what} of {bytes} bytes; {allowed}{ALLOWED}"),
    )
}

/// Whether `error` tells of too many bytes, as [`too_large`] words it.
pub fn is_too_large(error: &Error) -> bool {
    error.status == Status::Internal && error.message.ends_with(ALLOWED)
}

/// What opening a request gives.
pub struct IoOpened {
    /// The decision about the request.
    pub verdict: IoVerdict,
    /// Takes the request's output texts; `None` leaves them alone, at no cost.
    pub outputs: Option<Box<dyn IoOutputs>>,
}

/// Rewrites the output texts of one request. One thread at a time uses it; dropping it ends the request, complete or
/// not.
pub trait IoOutputs: Send {
    /// Takes the next piece of a choice's text (choices are counted from 0 over all prompts) and returns what may be
    /// shown by now. May block.
    ///
    /// # Errors
    /// `Denied` refuses the answer with the reason; anything else is the processor's failure. The request ends with
    /// either.
    fn push(&mut self, choice: u32, text: &str) -> Result<String>;

    /// The choice's text is complete: returns what was held back. May block.
    ///
    /// # Errors
    /// As [`IoOutputs::push`].
    fn finish(&mut self, choice: u32) -> Result<String>;
}

/// A processor with its configuration. Any thread, several at once.
pub trait IoProcessor: Send + Sync {
    /// Looks at a request. May block.
    ///
    /// # Errors
    /// Any: the processor's failure, which ends the request. A bad request is no error but [`IoVerdict::Reject`].
    fn open(&self, request: &IoRequest<'_>) -> Result<IoOpened>;
}

/// Makes processors of one plugin.
pub trait IoProcessorFactory: Send + Sync {
    /// A processor configured by `config`, a JSON object (`{}` when the operator gave none). May block.
    ///
    /// # Errors
    /// `InvalidArgument` naming the key.
    fn create(&self, config: &str) -> Result<Arc<dyn IoProcessor>>;
}
