//! Where an engine's weights come from: opening a folder, whether it holds the same model, and what is done to opened
//! files before they are loaded. Knows no device.

use std::path::{Path, PathBuf};

use halyard_models::{ModelError, ModelFacts, ModelFiles};
use halyard_runner::{ModelInfo, RunnerConfig};

use crate::config::ModelConfig;
use crate::error::EngineError;
use crate::model_text::open_tokenizer;
use crate::pause::ControlError;

/// How the files of an engine's model are opened and loaded, at its start and later.
#[derive(Clone, Debug)]
pub(crate) struct ModelSource {
    pub model: ModelConfig,
    /// Everything that the first load chose is named in it: what is loaded later fits the scheduler.
    pub runner: RunnerConfig,
    /// A sleep may give the device back.
    pub sleep_mode: bool,
    facts: ModelFacts,
    /// Words of the tokenizer.
    num_words: usize,
    preparation: Preparation,
}

/// What is done to opened files before they are loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation {
    /// Keys and values are held in 8 bits.
    pub kv_in_8_bits: bool,
    /// Ranks divide the columns of some matrices.
    pub cuts_columns: bool,
    /// Adapters read and add to products.
    pub has_adapters: bool,
}

impl Preparation {
    /// Prepares them.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub(crate) fn apply(self, files: &mut ModelFiles) -> Result<(), EngineError> {
        if self.kv_in_8_bits && files.use_kv_scales()? {
            tracing::info!("keys and values are held by the checkpoint's scales");
        }
        let inputs = files.sort_columns(self.cuts_columns, self.has_adapters)?;
        if inputs > 0 {
            tracing::info!("weights in act-order are held sorted by group: {inputs} inputs are put in their order");
        }
        Ok(())
    }
}

/// Files of the engine's model, checked and prepared.
pub(crate) struct OpenedWeights {
    pub path: PathBuf,
    pub files: ModelFiles,
}

impl ModelSource {
    /// `facts`: of the files as they were opened. `info`: what loading them with `runner` came to.
    pub(crate) fn new(
        (model, mut runner, sleep_mode): (ModelConfig, RunnerConfig, bool),
        (facts, num_words): (ModelFacts, usize),
        preparation: Preparation,
        info: &ModelInfo,
    ) -> ModelSource {
        runner.dtype = Some(info.dtype);
        runner.max_model_len = Some(info.max_model_len);
        runner.attention_backend = Some(info.attention_backend.clone());
        runner.max_num_batched_tokens = Some(info.max_num_batched_tokens);
        runner.async_depth = Some(info.async_depth);
        runner.cache.block_size = Some(info.block_size);
        runner.cache.kv_cache_dtype = Some(info.kv_cache_dtype);
        runner.cache.num_gpu_blocks_override = Some(info.num_blocks);
        ModelSource {
            model,
            runner,
            sleep_mode,
            facts,
            num_words,
            preparation,
        }
    }

    /// Opens the weights in `path`, which take the model's place. Blocks for headers and the tokenizer.
    ///
    /// # Errors
    /// [`ControlError::CannotOpen`], [`ControlError::OtherModel`].
    pub(crate) fn open(&self, path: &Path) -> Result<OpenedWeights, ControlError> {
        let shown = || path.display().to_string();
        let unreadable = |error: EngineError| ControlError::CannotOpen {
            path: shown(),
            reason: error.to_string(),
        };
        let other = |what| ControlError::OtherModel { path: shown(), what };
        let mut files = self.open_files(path).map_err(unreadable)?;
        let difference = self.facts.difference(&files).map_err(EngineError::from);
        if let Some(what) = difference.map_err(unreadable)? {
            return Err(other(what));
        }
        let (tokenizer, ..) = open_tokenizer(&files).map_err(unreadable)?;
        if tokenizer.vocab_size() != self.num_words {
            let (own, its) = (self.num_words, tokenizer.vocab_size());
            return Err(other(format!(
                "its tokenizer has {its} tokens, and one of {own} is served"
            )));
        }
        self.preparation.apply(&mut files).map_err(unreadable)?;
        Ok(OpenedWeights {
            path: path.to_path_buf(),
            files,
        })
    }

    fn open_files(&self, path: &Path) -> Result<ModelFiles, EngineError> {
        let mut model = ModelConfig {
            path: path.to_path_buf(),
            ..self.model.clone()
        };
        match model.open() {
            // Trainers write weights without it: the model's own is the one that counts anyway.
            Err(EngineError::Model(ModelError::MissingTokenizer { .. }))
                if model.overrides.tokenizer.is_none() && self.model.path.is_dir() =>
            {
                model.overrides.tokenizer = Some(self.model.path.clone());
                model.open()
            }
            opened => opened,
        }
    }
}
