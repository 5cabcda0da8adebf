//! Sampling defaults that a model's authors ship (`generation_config.json`). Absent values stay absent:
//! the engine's own defaults are the engine's business.

use super::fields::JsonFields;
use super::limits::bad;
use crate::error::Result;

/// Defaults for requests that leave a parameter out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// 0: all.
    pub top_k: Option<u32>,
    /// In \[0, 1\].
    pub min_p: Option<f32>,
    /// Above 0; 1: none.
    pub repetition_penalty: Option<f32>,
    /// In \[-2, 2\].
    pub presence_penalty: Option<f32>,
    /// In \[-2, 2\].
    pub frequency_penalty: Option<f32>,
    /// Most tokens to generate.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end a sequence; empty: as the model's configuration says.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationDefaults {
    /// Reads the fields of a `generation_config.json`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadField`] for a value outside its range.
    pub fn read(config: &JsonFields) -> Result<Self> {
        let number = |key: &str, from: f64, to: f64| match config.float(key)? {
            Some(value) if !(from..=to).contains(&value) => {
                Err(bad(config.path(), key, value, format!("from {from} to {to}")))
            }
            value => Ok(value.map(|v| v as f32)),
        };
        let smallest = f64::from(f32::MIN_POSITIVE);
        let top_k = config.unsigned("top_k")?;
        Ok(Self {
            temperature: number("temperature", 0.0, 100.0)?,
            top_p: number("top_p", smallest, 1.0)?,
            top_k: top_k.map(|k| k.min(i32::MAX as usize) as u32),
            min_p: number("min_p", 0.0, 1.0)?,
            repetition_penalty: number("repetition_penalty", smallest, 1e6)?,
            presence_penalty: number("presence_penalty", -2.0, 2.0)?,
            frequency_penalty: number("frequency_penalty", -2.0, 2.0)?,
            max_new_tokens: config.unsigned("max_new_tokens")?,
            eos_token_ids: config.token_ids("eos_token_id")?.unwrap_or_default(),
        })
    }
}
