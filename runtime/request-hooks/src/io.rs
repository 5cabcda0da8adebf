//! The chain of IO processors around one request. Bodies pass through it in the operator's order, output texts in the
//! opposite one, so that the processor nearest to the client sees requests first and answers last.

use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::io_processor::{IoOutputs, IoProcessor, IoProcessorFactory, IoRequest, IoVerdict};
use halyard_platform_api::{Error, Status};
use prometheus_client::registry::Registry;
use serde_json::Value;

use crate::entry::{Failed, ProcessorFailure, ProcessorKind};
use crate::metrics::{CallKind, ProcessorMetrics};

/// Bounds of every processor.
#[derive(Clone, Copy, Debug)]
pub struct IoSettings {
    /// For each call.
    pub timeout: Duration,
    /// Most bytes of a rewritten body, and of all output texts of one request.
    pub max_bytes: u64,
}

type Entry = crate::entry::Entry<dyn IoProcessor>;

/// The processors that every generation request passes.
pub struct IoProcessors {
    entries: Vec<Arc<Entry>>,
    max_bytes: u64,
    metrics: ProcessorMetrics,
}

impl Default for IoProcessors {
    /// None.
    fn default() -> IoProcessors {
        IoProcessors {
            entries: Vec::new(),
            max_bytes: 0,
            metrics: ProcessorMetrics::new(CallKind::Text),
        }
    }
}

impl IoProcessors {
    /// Makes a processor of each (name, factory, configuration as JSON), in order. Blocks.
    ///
    /// # Errors
    /// The name of the processor that does not start, and its error.
    pub fn create(
        chosen: Vec<(String, Arc<dyn IoProcessorFactory>, String)>,
        settings: IoSettings,
    ) -> Result<IoProcessors, (String, Error)> {
        let metrics = ProcessorMetrics::new(CallKind::Text);
        let entry = |(name, factory, config): (String, Arc<dyn IoProcessorFactory>, String)| {
            let make = move || factory.create(&config);
            crate::entry::Entry::create(ProcessorKind::Io, name, settings.timeout, &metrics, make)
        };
        Ok(IoProcessors {
            entries: chosen.into_iter().map(entry).collect::<Result<_, _>>()?,
            max_bytes: settings.max_bytes,
            metrics,
        })
    }

    /// Whether there is none, and requests need not come by.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.instance.name())
    }

    /// Shows in `registry` what was counted of them; families without a processor have no text.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry, "io_processor");
    }

    /// Shows a request to every processor: its body as they leave it, and what its output texts have to pass.
    ///
    /// # Errors
    /// [`ProcessorFailure`] of the first processor that refuses or fails.
    pub async fn open(&self, route: &'static str, id: &str, body: Value) -> Result<(Value, IoRun), ProcessorFailure> {
        let mut run = IoRun { active: Vec::new() };
        let mut body = Body::Parsed(body);
        for entry in &self.entries {
            let (instance_of, id, max_bytes) = (Arc::clone(entry), id.to_owned(), self.max_bytes);
            let call = move || {
                let text = body.into_text();
                let opened = instance_of.instance.with(|processor| {
                    processor.open(&IoRequest {
                        route,
                        id: &id,
                        body: &text,
                        max_bytes,
                    })
                })?;
                let body = match &opened.verdict {
                    IoVerdict::Rewrite(rewritten) => read_body(rewritten).map(Body::Parsed)?,
                    _ => Body::Text(text),
                };
                Ok((opened, body))
            };
            entry.counts.shown();
            let (opened, next) = entry.call(CallKind::Request, call).await?;
            if let Some(outputs) = opened.outputs {
                run.active.push(Active {
                    entry: Arc::clone(entry),
                    outputs: Some(outputs),
                });
            }
            if let IoVerdict::Reject { status, reason } = opened.verdict {
                let status = u16::try_from(status).unwrap_or(400);
                return Err(entry.note(entry.failure(Failed::Rejected { status, reason })));
            }
            body = next;
        }
        let body = match body {
            Body::Parsed(body) => body,
            // Written by this function from a parsed body.
            Body::Text(text) => read_body(&text).map_err(|error| ProcessorFailure {
                kind: ProcessorKind::Io,
                processor: self.names().last().unwrap_or_default().to_owned(),
                what: Failed::Failed(error),
            })?,
        };
        Ok((body, run))
    }
}

/// A body on its way through the chain.
enum Body {
    Parsed(Value),
    Text(String),
}

impl Body {
    fn into_text(self) -> String {
        match self {
            Body::Parsed(value) => value.to_string(),
            Body::Text(text) => text,
        }
    }
}

fn read_body(text: &str) -> Result<Value, Error> {
    let broken = |reason: String| {
        Error::new(
            Status::Internal,
            format!("the body that it gave is not a JSON object: {reason}"),
        )
    };
    let value: Value = serde_json::from_str(text).map_err(|error| broken(error.to_string()))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(broken(value.to_string().chars().take(80).collect()))
    }
}

/// A processor that wants the output texts of a request.
struct Active {
    entry: Arc<Entry>,
    /// Absent while a call has it, and after one that failed.
    outputs: Option<Box<dyn IoOutputs>>,
}

impl Active {
    async fn output(&mut self, choice: u32, text: String, last: bool) -> Result<String, ProcessorFailure> {
        let entry = Arc::clone(&self.entry);
        let Some(mut outputs) = self.outputs.take() else {
            let error = Error::new(Status::Poisoned, "an earlier call failed");
            return Err(entry.failed(error));
        };
        let call = move || {
            let mut shown = String::new();
            if !text.is_empty() {
                shown = outputs.push(choice, &text)?;
            }
            if last {
                shown.push_str(&outputs.finish(choice)?);
            }
            Ok((outputs, shown))
        };
        let (outputs, shown) = entry.call(CallKind::Text, call).await?;
        self.outputs = Some(outputs);
        Ok(shown)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if let Some(outputs) = self.outputs.take() {
            self.entry.guard.drop_later(outputs);
        }
    }
}

/// What the output texts of one request pass. Dropping it ends the request for every processor.
#[derive(Default)]
pub struct IoRun {
    /// In the order in which the processors saw the request.
    active: Vec<Active>,
}

impl IoRun {
    /// Whether texts pass unchanged, without a call.
    pub fn is_passive(&self) -> bool {
        self.active.is_empty()
    }

    /// The next piece of a choice's text, `last` with its end: what may be shown by now.
    ///
    /// # Errors
    /// [`ProcessorFailure`]; the request is over then.
    pub async fn output(&mut self, choice: u32, text: String, last: bool) -> Result<String, ProcessorFailure> {
        let mut text = text;
        for active in self.active.iter_mut().rev() {
            if text.is_empty() && !last {
                break;
            }
            text = active.output(choice, text, last).await?;
        }
        Ok(text)
    }
}
