//! An IO processor that replaces e-mail addresses and keys in requests and in answers, streamed or whole. Also the
//! example to copy for a processor of one's own.
//!
//! Configuration: `{"replacement": "[REDACTED]"}`, which is also the default. What counts as a key stands in
//! [`patterns`]; which fields are text in `request`. Requests for log-probabilities or token ids are refused, as they
//! would show what the text hides.

pub mod patterns;
pub mod redactor;
mod request;

use std::collections::HashMap;
use std::sync::Arc;

use halyard_platform_api::io_processor::{IoOpened, IoOutputs, IoProcessor, IoProcessorFactory, IoRequest, IoVerdict};
use halyard_platform_api::{Error, Result};
use serde::Deserialize;

use redactor::Redactor;

halyard_platform_api::export_io_processor! {
    name: "redact",
    version: env!("CARGO_PKG_VERSION"),
    about: "replaces e-mail addresses and keys in requests and answers",
    factory: RedactFactory,
}

/// Longest replacement in bytes.
const MAX_REPLACEMENT_BYTES: usize = 64;

/// Makes the processors.
pub struct RedactFactory;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "default_replacement")]
    replacement: String,
}

fn default_replacement() -> String {
    "[REDACTED]".to_owned()
}

impl IoProcessorFactory for RedactFactory {
    fn create(&self, config: &str) -> Result<Arc<dyn IoProcessor>> {
        let config: Config = serde_json::from_str(config).map_err(|e| {
            Error::invalid(format!(
                "configuration {config}: {e}; the only key is `replacement`, a text"
            ))
        })?;
        if config.replacement.len() > MAX_REPLACEMENT_BYTES {
            return Err(Error::invalid(format!(
                "configuration key `replacement` has {} bytes, at most {MAX_REPLACEMENT_BYTES} are taken",
                config.replacement.len()
            )));
        }
        Ok(Arc::new(Redact {
            replacement: config.replacement.into(),
        }))
    }
}

struct Redact {
    replacement: Arc<str>,
}

impl IoProcessor for Redact {
    fn open(&self, request: &IoRequest<'_>) -> Result<IoOpened> {
        let mut body = serde_json::from_str(request.body)
            .map_err(|e| Error::invalid(format!("the body of {} is not JSON: {e}", request.id)))?;
        let redact = |text: &str| Redactor::whole(&self.replacement, text);
        let verdict = match request::redact_request(request.route, &mut body, &redact) {
            Ok(true) => IoVerdict::Rewrite(body.to_string()),
            Ok(false) => IoVerdict::Pass,
            Err(reason) => IoVerdict::Reject { status: 400, reason },
        };
        Ok(IoOpened {
            verdict,
            outputs: Some(Box::new(Outputs {
                replacement: Arc::clone(&self.replacement),
                choices: HashMap::new(),
            })),
        })
    }
}

/// The answer's texts, each with its own place.
struct Outputs {
    replacement: Arc<str>,
    choices: HashMap<u32, Redactor>,
}

impl IoOutputs for Outputs {
    fn push(&mut self, choice: u32, text: &str) -> Result<String> {
        let fresh = || Redactor::new(&self.replacement);
        Ok(self.choices.entry(choice).or_insert_with(fresh).push(text))
    }

    fn finish(&mut self, choice: u32) -> Result<String> {
        let redactor = self.choices.remove(&choice);
        Ok(redactor.map(|mut redactor| redactor.finish()).unwrap_or_default())
    }
}
