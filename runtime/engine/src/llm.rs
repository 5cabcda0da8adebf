//! The offline API: prompts in, finished outputs out, all in one process.

use std::collections::VecDeque;
use std::sync::Arc;

use halyard_hooks::RecordSender;
use halyard_platform_api::Device;

use crate::config::EngineConfig;
use crate::error::{EngineError, SubmitError};
use crate::handle::EngineHandle;
use crate::output::RequestOutput;
use crate::params::{Request, SamplingParams};
use crate::stream::OutputStream;

/// A model for batch use.
///
/// ```no_run
/// use halyard_engine::{EngineConfig, Llm, SamplingParams};
/// # fn complete(device: std::sync::Arc<dyn halyard_platform_api::Device>) -> Result<(), Box<dyn std::error::Error>> {
/// let llm = Llm::open(EngineConfig::for_model("models/smollm2.gguf"), device)?;
/// let prompts = ["The capital of France is", "Two and two are"];
/// for output in llm.generate(&prompts, &SamplingParams::greedy(16))? {
///     println!("{}", output.outputs[0].text);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Llm {
    engine: EngineHandle,
}

impl Llm {
    /// Opens the model that `config` names on `device`.
    ///
    /// # Errors
    /// As [`EngineHandle::start`].
    pub fn open(config: EngineConfig, device: Arc<dyn Device>) -> Result<Llm, EngineError> {
        Llm::open_on(config, &[device])
    }

    /// The same on several devices, tensor parallel.
    ///
    /// # Errors
    /// As [`EngineHandle::start_on`].
    pub fn open_on(config: EngineConfig, devices: &[Arc<dyn Device>]) -> Result<Llm, EngineError> {
        let files = config.model.open()?;
        Ok(Llm {
            engine: EngineHandle::start_on(config, devices, files, RecordSender::default(), &mut |_| {})?,
        })
    }

    /// The engine below.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Completes every prompt, batched; outputs in the order of the prompts.
    ///
    /// # Errors
    /// The first prompt that is refused; nothing is returned of the others.
    pub fn generate(&self, prompts: &[&str], params: &SamplingParams) -> Result<Vec<RequestOutput>, GenerateError> {
        let ids = prompts
            .iter()
            .map(|prompt| self.engine.tokenizer().encode(prompt, true))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(self.generate_ids(ids, params)?)
    }

    /// The same from token ids.
    ///
    /// # Errors
    /// As [`Llm::generate`].
    pub fn generate_ids(
        &self,
        prompts: Vec<Vec<u32>>,
        params: &SamplingParams,
    ) -> Result<Vec<RequestOutput>, SubmitError> {
        let mut streams = VecDeque::new();
        let mut outputs = Vec::with_capacity(prompts.len());
        for (i, prompt) in prompts.into_iter().enumerate() {
            let request = Request::new(format!("{i}"), prompt, params.clone());
            // More prompts than may wait: the oldest ones make room.
            loop {
                match (self.engine.submit(request.clone()), streams.is_empty()) {
                    (Ok(stream), _) => break streams.push_back(stream),
                    (Err(SubmitError::QueueFull { .. }), false) => {
                        outputs.extend(streams.pop_front().map(OutputStream::blocking_collect));
                    }
                    (Err(error), _) => return Err(error),
                }
            }
        }
        outputs.extend(streams.into_iter().map(OutputStream::blocking_collect));
        Ok(outputs)
    }
}

/// Why [`Llm::generate`] failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A prompt could not be tokenised.
    #[error(transparent)]
    Text(#[from] halyard_text::TextError),
    /// A request was refused.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}
