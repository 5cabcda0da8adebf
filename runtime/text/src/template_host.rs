//! A chat template that runs in another process: the messages between the processes, and that process's loop. Starts no
//! process itself.
//!
//! A frame is its length (4 bytes, little end first) and JSON. The server sends [`Call::Open`] once, then renders; each
//! call has one answer.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::long_text::CancelFlag;
use crate::template_engine::{RenderCall, STACK_BYTES, TemplateEngine};
use crate::tokenizer_config::SpecialTokens;
use crate::{Result, TextError};

/// Longest frame: a request's body is bounded far below it.
const MAX_FRAME_BYTES: usize = 1 << 30;

/// Runs template processes: each call goes to one that knows the template, and comes back or kills that process.
pub trait TemplateHost: Send + Sync + fmt::Debug {
    /// Sends `call` to a process that was sent `open` first, and returns its answer. Blocks, for a bounded time, and
    /// until it is cancelled.
    ///
    /// # Errors
    /// [`HostFailure`]; the process is gone then.
    fn call(
        &self,
        open: &Arc<[u8]>,
        call: &[u8],
        cancel: Option<&CancelFlag>,
    ) -> std::result::Result<Vec<u8>, HostFailure>;
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostFailure {
    /// The template ended its process or was ended with it; how, in words.
    Ended(String),
    /// No process can be had, or others took what it needed; why, in words.
    Unavailable(String),
    /// The answer is no longer wanted.
    Cancelled,
}

#[derive(Serialize, Deserialize)]
enum Call<'a> {
    Open {
        source: Cow<'a, str>,
        special_tokens: Cow<'a, SpecialTokens>,
    },
    Render(Cow<'a, RenderCall>),
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Opened,
    Text(String),
    Syntax { line: usize, reason: String },
    Raised { line: usize, message: String },
    Failed { line: usize, reason: String },
    Bound(String),
    Other(String),
}

/// A template that is known to compile on a host.
pub(crate) struct HostedTemplate {
    host: Arc<dyn TemplateHost>,
    open: Arc<[u8]>,
}

impl HostedTemplate {
    pub(crate) fn open(host: Arc<dyn TemplateHost>, source: &str, special_tokens: &SpecialTokens) -> Result<Self> {
        crate::template_source::check_source(source)?;
        let open = frame(&Call::Open {
            source: Cow::Borrowed(source),
            special_tokens: Cow::Borrowed(special_tokens),
        })?;
        let hosted = HostedTemplate { host, open };
        hosted.call(&[], None)?;
        Ok(hosted)
    }

    pub(crate) fn render(&self, call: &RenderCall, cancel: Option<&CancelFlag>) -> Result<String> {
        self.call(&frame(&Call::Render(Cow::Borrowed(call)))?, cancel)
    }

    /// Sends a frame; an empty one asks for the answer to the opening.
    fn call(&self, call: &[u8], cancel: Option<&CancelFlag>) -> Result<String> {
        let unavailable = |reason: String| TextError::TemplateUnavailable { reason };
        let answer = self
            .host
            .call(&self.open, call, cancel)
            .map_err(|failure| match failure {
                HostFailure::Ended(reason) => TextError::TemplateBound { reason },
                HostFailure::Unavailable(reason) => unavailable(reason),
                HostFailure::Cancelled => TextError::Cancelled,
            })?;
        let answer: Answer = serde_json::from_slice(&answer)
            .map_err(|error| unavailable(format!("its process answered with what is no answer: {error}")))?;
        Err(match answer {
            Answer::Opened => return Ok(String::new()),
            Answer::Text(text) => return Ok(text),
            Answer::Syntax { line, reason } => TextError::TemplateSyntax { line, reason },
            Answer::Raised { line, message } => TextError::TemplateRaised { line, message },
            Answer::Failed { line, reason } => TextError::TemplateRender { line, reason },
            Answer::Bound(reason) => TextError::TemplateBound { reason },
            Answer::Other(reason) => unavailable(reason),
        })
    }
}

/// Whether an answer says that the template was compiled.
pub fn opens_template(answer: &[u8]) -> bool {
    matches!(serde_json::from_slice(answer), Ok(Answer::Opened))
}

impl From<TextError> for Answer {
    fn from(error: TextError) -> Self {
        match error {
            TextError::TemplateSyntax { line, reason } => Answer::Syntax { line, reason },
            TextError::TemplateRaised { line, message } => Answer::Raised { line, message },
            TextError::TemplateRender { line, reason } => Answer::Failed { line, reason },
            TextError::TemplateBound { reason } => Answer::Bound(reason),
            error => Answer::Other(error.to_string()),
        }
    }
}

impl RenderCall {
    /// With the length of its JSON.
    pub(crate) fn measured(mut self) -> Self {
        struct Counter(usize);
        impl Write for Counter {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut counter = Counter(0);
        // Counting cannot fail; what cannot be written as JSON has no length.
        let _ = serde_json::to_writer(&mut counter, &self);
        self.input_bytes = counter.0;
        self
    }
}

/// Length and JSON of a call or an answer.
fn frame<T: Serialize>(value: &T) -> Result<Arc<[u8]>> {
    let mut bytes = vec![0; 4];
    let unavailable = |reason: String| TextError::TemplateUnavailable { reason };
    serde_json::to_writer(&mut bytes, value).map_err(|error| unavailable(error.to_string()))?;
    let len = bytes.len() - 4;
    if len > MAX_FRAME_BYTES {
        return Err(unavailable(format!("{len} bytes do not fit into one call")));
    }
    bytes[..4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    Ok(bytes.into())
}

/// Answers the calls that come from `input` until it ends: the whole life of a template process. `before` is
/// called before each call is carried out, to bound it.
///
/// # Errors
/// What reading and writing fail with, and a frame that is none.
pub fn serve_templates(
    mut input: impl Read + Send,
    mut output: impl Write + Send,
    mut before: impl FnMut() + Send,
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let serve = move || -> io::Result<()> {
            let mut engine: Option<TemplateEngine> = None;
            while let Some(bytes) = read_frame(&mut input)? {
                before();
                let call = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
                let carry_out = || match call {
                    Call::Open { source, special_tokens } => TemplateEngine::compile(&source, &special_tokens)
                        .map_or_else(Answer::from, |compiled| {
                            engine = Some(compiled);
                            Answer::Opened
                        }),
                    Call::Render(call) => {
                        let mut call = call.into_owned();
                        call.input_bytes = bytes.len();
                        match &engine {
                            Some(engine) => engine.render_here(&call).map_or_else(Answer::from, Answer::Text),
                            None => Answer::Other("it was asked to render before a template was opened".to_owned()),
                        }
                    }
                };
                // A panic's message is that of a bound: such as a capacity that overflows.
                let answer = catch_unwind(AssertUnwindSafe(carry_out))
                    .unwrap_or_else(|_| Answer::Bound("the template engine panicked".to_owned()));
                output.write_all(&frame(&answer).map_err(io::Error::other)?)?;
                output.flush()?;
            }
            Ok(())
        };
        let builder = std::thread::Builder::new().name("halyard-template".into());
        let thread = builder.stack_size(STACK_BYTES).spawn_scoped(scope, serve)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the template engine panicked")))
    })
}

/// The next frame's JSON; none at the end.
fn read_frame(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match input.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::other("a frame that is none"));
    }
    let mut bytes = vec![0; len];
    input.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
