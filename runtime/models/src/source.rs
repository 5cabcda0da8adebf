//! Opens a model by its path on disk: description, weights, tokenizer, chat template, generation defaults. The path is
//! a Hugging Face folder, one of Mistral's own, a folder with one GGUF file, or a GGUF file. Hubs and downloads are the
//! server's part.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::config::{GenerationDefaults, JsonFields, Method, ModelDescription, Quantization};
use crate::consolidated;
use crate::error::{ModelError, Result};
use crate::families::Family;
use crate::gguf::{GgufFile, GgufTokenizerData};
use crate::overrides::ModelOverrides;
use crate::quant::Rounding;
use crate::safetensors::{SafetensorsFiles, files_with_extension, no_model};
use crate::weights::{DummyWeights, Weights};

/// Where weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// Whatever is there.
    #[default]
    Auto,
    /// A folder with config.json and safetensors files.
    Safetensors,
    /// A GGUF file.
    Gguf,
    /// Random weights in the shape of config.json or of a GGUF file.
    Dummy,
}

impl std::str::FromStr for LoadFormat {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "safetensors" => Ok(Self::Safetensors),
            "gguf" => Ok(Self::Gguf),
            "dummy" => Ok(Self::Dummy),
            _ => Err(ModelError::UnknownLoadFormat { found: name.to_owned() }),
        }
    }
}

/// What `--quantization` names: vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightQuantization {
    /// Weights are rounded to this while loading.
    Round(Rounding),
    /// The checkpoint holds weights that this method has quantised.
    Stored(&'static str),
}

/// Names of methods, and what `quantization_config` calls them.
const STORED: [(&str, &[&str]); 13] = [
    ("awq", &["awq", "auto-round"]),
    ("awq_marlin", &["awq", "auto-round"]),
    ("gptq", &["gptq", "auto-round"]),
    ("gptq_marlin", &["gptq", "auto-round"]),
    ("auto-round", &["auto-round"]),
    ("inc", &["auto-round"]),
    ("compressed-tensors", &["compressed-tensors"]),
    ("modelopt", &["modelopt"]),
    ("modelopt_fp4", &["modelopt", "modelopt_fp4"]),
    ("bitsandbytes", &["bitsandbytes"]),
    ("hqq", &["hqq"]),
    ("fbgemm_fp8", &["fbgemm_fp8"]),
    ("mxfp4", &["mxfp4"]),
];

const ROUNDED: [(&str, Rounding); 3] = [
    ("fp8", Rounding::Fp8),
    ("int8", Rounding::Int8),
    ("int4", Rounding::Int4),
];

impl WeightQuantization {
    /// Every name.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let rounded = ROUNDED.iter().map(|(name, _)| *name);
        rounded.chain(STORED.iter().map(|(name, _)| *name))
    }
}

impl std::str::FromStr for WeightQuantization {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self> {
        if let Some((_, rounding)) = ROUNDED.iter().find(|(known, _)| *known == name) {
            return Ok(Self::Round(*rounding));
        }
        match STORED.iter().find(|(known, _)| *known == name) {
            Some((known, _)) => Ok(Self::Stored(known)),
            None => Err(ModelError::UnknownQuantization { found: name.to_owned() }),
        }
    }
}

/// What the text crate builds a tokenizer from.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizerSource {
    /// A `tokenizer.json`.
    File(PathBuf),
    /// Mistral's `tekken.json`.
    Tekken(PathBuf),
    /// The arrays of a GGUF file.
    Gguf(Box<GgufTokenizerData>),
    /// None is there, which is accepted for dummy weights only.
    Absent,
}

/// An opened model.
#[derive(Debug)]
pub struct ModelFiles {
    /// The file's own name of the model, else the folder's or file's.
    pub name: String,
    /// The family's name.
    pub family: &'static str,
    /// The architecture.
    pub description: Arc<ModelDescription>,
    /// The weights, all present with the right shapes.
    pub weights: Weights,
    /// Bytes of the weights as stored.
    pub weight_bytes: u64,
    /// `quant_method` of a Hugging Face checkpoint that holds quantised weights.
    pub quant_method: Option<String>,
    /// The tokenizer.
    pub tokenizer: TokenizerSource,
    /// Jinja source of the chat template.
    pub chat_template: Option<String>,
    /// How its answers are to be read: `response_template` of tokenizer_config.json, as JSON.
    pub response_template: Option<String>,
    /// Text of the beginning-of-sequence token, for the template.
    pub bos_token: Option<String>,
    /// Text of the end-of-sequence token, for the template.
    pub eos_token: Option<String>,
    /// Sampling defaults of the authors. `eos_token_ids` holds the final list: generation_config.json's,
    /// else the description's.
    pub generation: GenerationDefaults,
}

impl ModelFiles {
    /// Opens the model at `path`. `dummy` is read for [`LoadFormat::Dummy`] only.
    ///
    /// # Errors
    /// [`ModelError::NoModel`], [`ModelError::WrongLoadFormat`], [`ModelError::MissingTokenizer`], and
    /// whatever is wrong with configuration or weights.
    pub fn open(path: &Path, format: LoadFormat, dummy: DummyWeights) -> Result<Self> {
        Self::open_with(path, format, dummy, &ModelOverrides::default())
    }

    /// As [`ModelFiles::open`], with what the operator puts in place of the model's own files.
    ///
    /// # Errors
    /// As there; overrides that do not fit.
    pub fn open_with(path: &Path, format: LoadFormat, dummy: DummyWeights, over: &ModelOverrides) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|source| ModelError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        if !metadata.is_dir() {
            return open_gguf(path, format, dummy, over);
        }
        let has_config = path.join("config.json").is_file() || path.join(consolidated::PARAMS).is_file();
        if format == LoadFormat::Gguf || (!has_config && format != LoadFormat::Safetensors) {
            return open_gguf(&only_gguf(path, format)?, format, dummy, over);
        }
        open_folder(path, format, dummy, over)
    }

    /// Has weights handed out that give keys and values divided by the checkpoint's scales
    /// ([`Weights::use_kv_scales`]), for a cache of 8-bit floats. Whether it has such scales.
    ///
    /// # Errors
    /// As there.
    pub fn use_kv_scales(&mut self) -> Result<bool> {
        let described = self.weights.use_kv_scales()?;
        let found = described.is_some();
        self.description = described.unwrap_or_else(|| self.description.clone());
        Ok(found)
    }

    /// Has matrices in act-order handed out with their columns sorted ([`Weights::sort_columns`]); how many inputs are
    /// put in order for them.
    ///
    /// # Errors
    /// As there.
    pub fn sort_columns(&mut self, cuts_columns: bool, has_adapters: bool) -> Result<usize> {
        let Some(described) = self.weights.sort_columns(cuts_columns, has_adapters)? else {
            return Ok(0);
        };
        self.description = described;
        self.weight_bytes = self.weights.check()?;
        Ok(self.description.sorted.len())
    }

    /// Does what `--quantization` asks: has the matrices of layers rounded ([`Weights::quantise`]), or checks that the
    /// checkpoint is of the named method.
    ///
    /// # Errors
    /// As there; [`ModelError::Unsupported`] for a checkpoint of another method.
    pub fn quantise(&mut self, quantization: WeightQuantization) -> Result<()> {
        match quantization {
            WeightQuantization::Round(rounding) => {
                self.weights.quantise(rounding)?;
                self.weight_bytes = self.weights.check()?;
                Ok(())
            }
            WeightQuantization::Stored(name) => self.check_method(name),
        }
    }

    fn check_method(&self, name: &str) -> Result<()> {
        let found = self.quant_method.as_deref().unwrap_or("no quantised weights");
        let known = STORED.iter().find(|(known, _)| *known == name);
        if known.is_some_and(|(_, methods)| methods.contains(&found)) {
            return Ok(());
        }
        Err(ModelError::Unsupported {
            path: self.weights.path().map(PathBuf::from).unwrap_or_default(),
            field: "--quantization".to_owned(),
            value: format!("{name}, while the checkpoint has {found}"),
            remedy: "leave it out: what a checkpoint holds is read without it. fp8, int8 and int4 round 16-bit weights"
                .to_owned(),
        })
    }
}

/// The one GGUF file of a folder.
fn only_gguf(folder: &Path, format: LoadFormat) -> Result<PathBuf> {
    let mut files = files_with_extension(folder, "gguf")?;
    match (files.len(), format) {
        (1, _) => Ok(files.remove(0)),
        (0, LoadFormat::Gguf) => Err(wrong_format(folder, "gguf", "a .gguf file", "none in the folder")),
        (0, _) => Err(no_model(folder, "neither config.json nor a .gguf file".into())),
        _ => {
            let names = files.iter().filter_map(|f| f.file_name()).map(|n| n.to_string_lossy());
            let names: Vec<_> = names.collect();
            Err(no_model(
                folder,
                format!("several .gguf files ({}): name one", names.join(", ")),
            ))
        }
    }
}

fn wrong_format(path: &Path, asked: &'static str, needs: &'static str, found: &str) -> ModelError {
    ModelError::WrongLoadFormat {
        path: path.to_path_buf(),
        asked,
        needs,
        found: found.to_owned(),
    }
}

fn open_gguf(path: &Path, format: LoadFormat, dummy: DummyWeights, over: &ModelOverrides) -> Result<ModelFiles> {
    if format == LoadFormat::Safetensors {
        return Err(wrong_format(path, "safetensors", "a folder with config.json", "a file"));
    }
    if path.extension().is_none_or(|e| e != "gguf") {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        return Err(no_model(path, format!("a file called `{name}`")));
    }
    over.refuse_config(path)?;
    let file = Arc::new(GgufFile::open(path)?);
    if let Some(parts) = file.unsigned("split.count")?.filter(|&n| n > 1) {
        return Err(ModelError::Unsupported {
            path: path.to_path_buf(),
            field: "split.count".into(),
            value: format!("{parts} parts"),
            remedy: "join the parts into one file (llama-gguf-split --merge)".into(),
        });
    }
    let (family, description) = Family::describe_file(&file)?;
    let tokenizer = GgufTokenizerData::read(&file)?;
    let description = Arc::new(description);
    let weights = match format {
        LoadFormat::Dummy => Weights::dummy(description.clone(), dummy),
        _ => Weights::from_gguf(description.clone(), &family.gguf_names, file.clone()),
    };
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.tokens.get(id as usize)).cloned();
    let (own_bos, own_eos) = (text(tokenizer.bos), text(tokenizer.eos));
    let name = file
        .string("general.name")?
        .map_or_else(|| file_name(path.file_stem()), str::to_owned);
    let given = match &over.tokenizer {
        Some(folder) if folder.is_dir() => Some(FolderTexts::read(folder)?),
        _ => None,
    };
    let given = given.unwrap_or_default();
    let mut generation = over.generation(Path::new(""))?;
    settle_eos(&mut generation, &description, path)?;
    Ok(ModelFiles {
        name,
        family: family.name,
        weight_bytes: weights.check()?,
        quant_method: None,
        weights,
        chat_template: over
            .chat_template
            .clone()
            .or(given.chat_template)
            .or_else(|| tokenizer.chat_template.clone()),
        response_template: given.response_template,
        bos_token: given.bos_token.or(own_bos),
        eos_token: given.eos_token.or(own_eos),
        generation,
        tokenizer: match over.tokenizer_file()? {
            Some(file) => TokenizerSource::File(file),
            None => TokenizerSource::Gguf(Box::new(tokenizer)),
        },
        description,
    })
}

/// What config.json says of quantised weights; else Model Optimizer's own file, which older checkpoints have.
fn read_quantization(folder: &Path, config: &JsonFields) -> Result<Quantization> {
    let own = folder.join("hf_quant_config.json");
    if config.is_written("quantization_config") || !own.is_file() {
        return Quantization::read(config);
    }
    let own = JsonFields::open(&own)?;
    Quantization::model_optimizer(&own)
}

fn open_folder(folder: &Path, format: LoadFormat, dummy: DummyWeights, over: &ModelOverrides) -> Result<ModelFiles> {
    let config_path = folder.join("config.json");
    let is_consolidated = !config_path.is_file() && folder.join(consolidated::PARAMS).is_file();
    let config = match is_consolidated {
        true => consolidated::config(folder, over)?,
        false if config_path.is_file() => over.open_config(&config_path)?,
        false => return Err(wrong_format(folder, "safetensors", "config.json", "none in the folder")),
    };
    let (family, mut description) = Family::describe_config(&config)?;
    if is_consolidated {
        consolidated::turn_neighbours(&mut description);
    }
    let description = Arc::new(description);
    let quantization = read_quantization(folder, &config)?;
    let quant_method = match config.object("quantization_config")? {
        Some(fields) => fields.string("quant_method")?.map(str::to_owned),
        None => (quantization.method != Method::None).then(|| "modelopt".to_owned()),
    };
    let weights = match format {
        LoadFormat::Dummy => {
            let rounds = quantization.has_fp8_rows();
            let mut weights = Weights::dummy_of(description.clone(), dummy, quantization);
            if rounds {
                weights.quantise(Rounding::Fp8)?;
            }
            weights
        }
        _ if is_consolidated => {
            let files = SafetensorsFiles::open_named(folder, consolidated::WEIGHTS)?;
            let files = files.ok_or_else(|| no_model(folder, "params.json without consolidated.safetensors".into()))?;
            Weights::from_safetensors(description.clone(), &consolidated::NAMES, files, quantization)
        }
        _ => Weights::from_safetensors(
            description.clone(),
            &family.hf_names,
            SafetensorsFiles::open_folder(folder)?,
            quantization,
        ),
    };
    let generation_path = folder.join("generation_config.json");
    let mut generation = over.generation(&generation_path)?;
    settle_eos(&mut generation, &description, &generation_path)?;
    let texts = FolderTexts::read(over.text_folder(folder))?;
    let resolved = std::fs::canonicalize(folder);
    Ok(ModelFiles {
        name: file_name(resolved.as_deref().unwrap_or(folder).file_name()),
        family: family.name,
        weight_bytes: weights.check()?,
        quant_method,
        weights,
        tokenizer: match over.tokenizer_file()? {
            Some(file) => TokenizerSource::File(file),
            None => tokenizer_file(folder, format)?,
        },
        chat_template: over.chat_template.clone().or(texts.chat_template),
        response_template: texts.response_template,
        bos_token: texts.bos_token,
        eos_token: texts.eos_token,
        generation,
        description,
    })
}

/// Ends of a sequence: those of the generation defaults, else the model's; all of them in the vocabulary. `path` is the
/// file to blame.
fn settle_eos(generation: &mut GenerationDefaults, description: &ModelDescription, path: &Path) -> Result<()> {
    if generation.eos_token_ids.is_empty() {
        generation.eos_token_ids.clone_from(&description.eos_token_ids);
    }
    let mut ids = generation.eos_token_ids.iter();
    match ids.find(|&&id| id as usize >= description.vocab_size) {
        None => Ok(()),
        Some(&id) => {
            let limit = format!("below vocab_size, {}", description.vocab_size);
            Err(crate::config::bad(path, "eos_token_id", id, limit))
        }
    }
}

/// What the other files in a tokenizer.json's folder say.
#[derive(Default)]
struct FolderTexts {
    chat_template: Option<String>,
    response_template: Option<String>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl FolderTexts {
    fn read(folder: &Path) -> Result<Self> {
        let tokenizer_config = JsonFields::open_if_present(&folder.join("tokenizer_config.json"))?;
        let special = JsonFields::open_if_present(&folder.join("special_tokens_map.json"))?;
        let token = |key: &str| {
            let files = [tokenizer_config.as_ref(), special.as_ref()];
            files
                .into_iter()
                .flatten()
                .find_map(|fields| token_text(fields.value(key)?))
        };
        Ok(FolderTexts {
            chat_template: chat_template(folder, tokenizer_config.as_ref())?,
            response_template: tokenizer_config
                .as_ref()
                .and_then(|fields| fields.value("response_template"))
                .filter(|template| !template.is_null())
                .map(Value::to_string),
            bos_token: token("bos_token"),
            eos_token: token("eos_token"),
        })
    }
}

fn file_name(name: Option<&std::ffi::OsStr>) -> String {
    name.unwrap_or_default().to_string_lossy().into_owned()
}

fn tokenizer_file(folder: &Path, format: LoadFormat) -> Result<TokenizerSource> {
    let [json, tekken] = ["tokenizer.json", "tekken.json"].map(|name| folder.join(name));
    if json.is_file() {
        return Ok(TokenizerSource::File(json));
    }
    match (tekken.is_file(), format) {
        (true, _) => Ok(TokenizerSource::Tekken(tekken)),
        (false, LoadFormat::Dummy) => Ok(TokenizerSource::Absent),
        (false, _) => Err(ModelError::MissingTokenizer {
            path: folder.to_path_buf(),
            looked_for: vec!["tokenizer.json", "tekken.json"],
        }),
    }
}

/// A special token: its text, or an object that holds it.
fn token_text(value: &Value) -> Option<String> {
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

/// The template of a folder, in Hugging Face's order: chat_template.jinja, then chat_template.json, then
/// tokenizer_config.json (one template, or a list of named ones, of which `default` is taken).
fn chat_template(folder: &Path, tokenizer_config: Option<&JsonFields>) -> Result<Option<String>> {
    let jinja = folder.join("chat_template.jinja");
    if jinja.is_file() {
        let source = std::fs::read_to_string(&jinja);
        return source
            .map(Some)
            .map_err(|source| ModelError::Io { path: jinja, source });
    }
    let separate = JsonFields::open_if_present(&folder.join("chat_template.json"))?;
    for fields in separate.iter().chain(tokenizer_config) {
        match fields.value("chat_template") {
            None => {}
            Some(Value::String(template)) => return Ok(Some(template.clone())),
            Some(value) => {
                let limit = "a string, or a list of {name, template} with one called `default`";
                let default = value
                    .as_array()
                    .and_then(|list| list.iter().find(|t| t["name"] == "default"));
                let template = default.and_then(|t| t["template"].as_str());
                let template = template.ok_or_else(|| fields.bad("chat_template", value, limit))?;
                return Ok(Some(template.to_owned()));
            }
        }
    }
    Ok(None)
}
