//! Logits processors of one request: asked once whether they take part, on blocking threads; then before each token of
//! each sample, on a thread of the caller's that may block. What they leave behind is dropped on blocking threads.

use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::logits_processor::{
    LogitBias, LogitsModel, LogitsProcessor, LogitsProcessorFactory, LogitsRequest, LogitsRow, MAX_LOGIT_BIASES,
    RequestLogits, SequenceLogits,
};
use halyard_platform_api::{Error, Status};
use prometheus_client::registry::Registry;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::entry::{Failed, ProcessorFailure, ProcessorKind};
use crate::guard::{CallFailure, Guard};
use crate::metrics::{CallKind, ProcessorMetrics};

type Entry = crate::entry::Entry<dyn LogitsProcessor>;

/// The operator's logits processors.
pub struct LogitsProcessors {
    entries: Vec<Arc<Entry>>,
    vocab_size: u32,
    /// Names of fields that one of them reads.
    reads: Vec<&'static str>,
    metrics: ProcessorMetrics,
}

impl Default for LogitsProcessors {
    /// None.
    fn default() -> LogitsProcessors {
        LogitsProcessors {
            entries: Vec::new(),
            vocab_size: 0,
            reads: Vec::new(),
            metrics: ProcessorMetrics::new(CallKind::Token),
        }
    }
}

impl LogitsProcessors {
    /// Makes a processor of each (name, factory, configuration as JSON), in order, for `model`. `timeout`: for each
    /// call. `fields`: fields of a body that the processors are asked about. Blocks.
    ///
    /// # Errors
    /// The name of the processor that does not start, and its error.
    pub fn create(
        chosen: Vec<(String, Arc<dyn LogitsProcessorFactory>, String)>,
        model: &Arc<dyn LogitsModel>,
        timeout: Duration,
        fields: &[&'static str],
    ) -> Result<LogitsProcessors, (String, Error)> {
        let metrics = ProcessorMetrics::new(CallKind::Token);
        let entry = |(name, factory, config): (String, Arc<dyn LogitsProcessorFactory>, String)| {
            let model = Arc::clone(model);
            let make = move || factory.create(&config, Arc::clone(&model));
            Entry::create(ProcessorKind::Logits, name, timeout, &metrics, make)
        };
        let entries = chosen.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let mut reads = Vec::new();
        for &field in fields {
            for entry in &entries {
                let asked = entry.instance.with(|processor| Ok(processor.reads(field)));
                if asked.map_err(|error| (entry.instance.name().to_owned(), error))? {
                    reads.push(field);
                }
            }
        }
        Ok(LogitsProcessors {
            entries,
            vocab_size: model.vocab_size(),
            reads,
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

    /// Whether one of them reads a field of a body.
    pub fn reads(&self, field: &str) -> bool {
        self.reads.contains(&field)
    }

    /// Shows in `registry` what was counted of them; families without a processor have no text.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry, "logits_processor");
    }

    /// Shows a request to every processor. Gives those that take part, in order. Call inside a runtime.
    ///
    /// # Errors
    /// [`ProcessorFailure`] of the first processor that refuses or fails.
    pub async fn open(&self, request: LogitsRequest<'_>) -> Result<Vec<OpenedLogits>, ProcessorFailure> {
        let (id, prompt, args): (Arc<str>, Arc<[u32]>, Arc<str>) =
            (request.id.into(), request.prompt.into(), request.args.into());
        let max_tokens = request.max_tokens;
        let mut opened = Vec::new();
        for entry in &self.entries {
            let (of, id, prompt, args) = (Arc::clone(entry), id.clone(), prompt.clone(), args.clone());
            let call = move || {
                of.instance.with(|processor| {
                    processor.open(&LogitsRequest {
                        id: &id,
                        prompt: &prompt,
                        max_tokens,
                        args: &args,
                    })
                })
            };
            entry.counts.shown();
            let Some(logits) = entry.call(CallKind::Request, call).await? else {
                continue;
            };
            opened.push(OpenedLogits(Arc::new(Opened {
                logits: DroppedLater::new(&entry.guard, logits),
                entry: Arc::clone(entry),
                vocab_size: self.vocab_size,
            })));
        }
        Ok(opened)
    }
}

/// An object of a plugin that is dropped on a blocking thread, whoever lets go of it.
struct DroppedLater<T: Send + 'static> {
    object: Option<T>,
    guard: Guard,
    runtime: Handle,
}

impl<T: Send + 'static> DroppedLater<T> {
    fn new(guard: &Guard, object: T) -> DroppedLater<T> {
        DroppedLater {
            object: Some(object),
            guard: guard.clone(),
            runtime: Handle::current(),
        }
    }
}

impl<T: Send + 'static> Drop for DroppedLater<T> {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            self.guard.drop_on(&self.runtime, object);
        }
    }
}

struct Opened {
    logits: DroppedLater<Box<dyn RequestLogits>>,
    entry: Arc<Entry>,
    vocab_size: u32,
}

/// A processor that takes part in a request.
#[derive(Clone)]
pub struct OpenedLogits(Arc<Opened>);

impl OpenedLogits {
    /// Its part in sample number `sample`. Calls nothing.
    pub fn sample(&self, sample: u32) -> SampleLogits {
        let DroppedLater { guard, runtime, .. } = &self.0.logits;
        SampleLogits {
            opened: self.clone(),
            sample,
            logits: DroppedLater {
                object: None,
                guard: guard.clone(),
                runtime: runtime.clone(),
            },
            room: Vec::new(),
        }
    }

    /// What it is, for a sentence.
    pub fn name(&self) -> String {
        format!("the logits processor `{}`", self.0.entry.instance.name())
    }

    /// The longest call for a token.
    pub fn timeout(&self) -> Duration {
        self.0.entry.guard.timeout()
    }

    /// A call for a token took longer: counts it, and gives the words for the client.
    pub fn give_up(&self) -> String {
        let entry = &self.0.entry;
        let late = Failed::Call(CallFailure::Timeout(entry.guard.timeout()));
        entry.note(entry.failure(late)).to_string()
    }
}

/// A processor's part in one sample.
pub struct SampleLogits {
    opened: OpenedLogits,
    sample: u32,
    /// Made at the first call.
    logits: DroppedLater<Box<dyn SequenceLogits>>,
    room: Vec<LogitBias>,
}

impl SampleLogits {
    /// The request's.
    pub fn opened(&self) -> &OpenedLogits {
        &self.opened
    }

    /// Gives it the tokens that came since the last call, and has it change the logits of the next one: `mask` and
    /// `biases` as they were left before. Blocks.
    ///
    /// # Errors
    /// Why the sample cannot go on, for the client.
    pub fn process(&mut self, tokens: &[u32], mask: &mut [u32], biases: &mut Vec<(u32, f32)>) -> Result<(), String> {
        let start = Instant::now();
        let processed = self.call(tokens, mask, biases);
        let entry = &self.opened.0.entry;
        entry.counts.called(CallKind::Token, start.elapsed());
        processed.map_err(|error| entry.note(entry.failure(Failed::Failed(error))).to_string())
    }

    fn call(&mut self, tokens: &[u32], mask: &mut [u32], biases: &mut Vec<(u32, f32)>) -> Result<(), Error> {
        let logits = match &mut self.logits.object {
            Some(logits) => logits,
            none => none.insert(
                self.opened
                    .0
                    .logits
                    .object
                    .as_ref()
                    .ok_or_else(gone)?
                    .start(self.sample)?,
            ),
        };
        let room = (MAX_LOGIT_BIASES as usize).saturating_sub(biases.len());
        self.room.resize(room, LogitBias::default());
        let mut row = LogitsRow::new(self.opened.0.vocab_size, mask, &mut self.room)?;
        logits.process(tokens, &mut row)?;
        if !row.allows_some() {
            return Err(Error::new(Status::Internal, "it leaves no token that may come next"));
        }
        biases.extend(row.biases().iter().map(|of| (of.token, of.bias)));
        Ok(())
    }
}

fn gone() -> Error {
    Error::new(Status::Internal, "its request has ended")
}
