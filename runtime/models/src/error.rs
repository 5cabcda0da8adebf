//! Every way in which reading a model can fail, with the data a user needs to act on it.
//!
//! A message names the file, what was expected, what was found, and what to do. It never carries a
//! bare string as its whole content: callers match on variants and fields.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// The known architecture whose name looks most like an unknown one's.
#[derive(Debug)]
pub struct NearestArchitecture {
    /// Its name.
    pub name: &'static str,
    /// Why the configuration cannot be read as one of it.
    pub refusal: Option<String>,
    /// Fields of the configuration that say something and that it does not know.
    pub unread: Vec<String>,
}

impl std::fmt::Display for NearestArchitecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "; the nearest known one is `{}`", self.name)?;
        if let Some(refusal) = &self.refusal {
            return write!(f, ", as which it cannot be read: {refusal}");
        }
        if !self.unread.is_empty() {
            write!(f, ", which does not know: {}", self.unread.join(", "))?;
        }
        write!(
            f,
            "; if they compute the same, serve it with --hf-overrides '{{\"architectures\": [\"{}\"]}}'",
            self.name
        )
    }
}

/// Why a model, or a part of it, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system refused to open, map or read a file.
    #[error("{path}: cannot be read: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's message.
        source: std::io::Error,
    },

    /// The path holds no model.
    #[error("{path}: no model here: {found}; give a folder with config.json and *.safetensors, or a .gguf file")]
    NoModel {
        /// The value that was asked for.
        path: PathBuf,
        /// What was found instead.
        found: String,
    },

    /// A file ends before something that its own header announces.
    #[error(
        "{path}: truncated: {part} at offset {offset} needs {needed} bytes, only {available} are left; download the \
         file again"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The part that does not fit.
        part: String,
        /// Byte offset from the start of the file.
        offset: u64,
        /// Bytes that the part takes.
        needed: u64,
        /// Bytes from `offset` to the end of the file.
        available: u64,
    },

    /// A file's structure contradicts its format.
    #[error(
        "{path}: bad {part} at offset {offset}: expected {expected}, found {found}; the file is damaged or not of \
         this format: download it again"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The part that is wrong.
        part: String,
        /// Byte offset from the start of the file.
        offset: u64,
        /// What the format demands.
        expected: String,
        /// What was found.
        found: String,
    },

    /// A JSON file that is not JSON, or whose top level is not an object.
    #[error("{path}: not a valid JSON object: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's message, with line and column.
        reason: String,
    },

    /// A configuration field that must be there is absent.
    #[error(
        "{path}: field `{field}` is missing; the model's configuration is incomplete: download the whole model again"
    )]
    MissingField {
        /// The file.
        path: PathBuf,
        /// Name of the field or metadata key.
        field: String,
    },

    /// A configuration field with a value that no model can have.
    #[error("{path}: field `{field}` is {value}, but must be {limit}")]
    BadField {
        /// The file.
        path: PathBuf,
        /// Name of the field or metadata key.
        field: String,
        /// The value found.
        value: String,
        /// What is allowed.
        limit: String,
    },

    /// A field asks for something that exists elsewhere but not in this engine.
    #[error("{path}: `{field}` asks for {value}, which is not supported; {remedy}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Name of the field or metadata key.
        field: String,
        /// The value found.
        value: String,
        /// What to do instead.
        remedy: String,
    },

    /// The architecture is not one of the families of this engine.
    #[error(
        "{path}: architecture `{found}` is not known{}; known are: {}",
        nearest.as_ref().map(ToString::to_string).unwrap_or_default(),
        known.join(", ")
    )]
    UnknownArchitecture {
        /// The file that names it.
        path: PathBuf,
        /// The name found.
        found: String,
        /// Every name that is accepted.
        known: Vec<&'static str>,
        /// The one that looks most like it, for configurations of Hugging Face.
        nearest: Option<Box<NearestArchitecture>>,
    },

    /// A weight that the architecture needs is not in the files.
    #[error(
        "{path}: tensor `{tensor}` is missing{}; the files are incomplete or of another architecture: download \
         the whole model again",
        did_you_mean(near)
    )]
    MissingTensor {
        /// The file or index searched.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// Names in the file that look like it.
        near: Vec<String>,
    },

    /// A weight has another shape than the configuration implies.
    #[error(
        "{path}: tensor `{tensor}` has shape {found:?}, but the configuration implies {expected:?}; configuration and \
         weights do not belong together: take both from one download of the model"
    )]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// From the configuration, `[rows, columns]` or `[size]`.
        expected: Vec<usize>,
        /// From the file, same order.
        found: Vec<usize>,
    },

    /// A weight is stored in a format that the engine cannot compute with.
    #[error(
        "{path}: tensor `{tensor}` is stored as {found}, which is not supported; supported are: {supported}; use a \
         file in one of these"
    )]
    UnsupportedFormat {
        /// The file.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The format's name.
        found: String,
        /// Names of the formats that work.
        supported: &'static str,
    },

    /// The bytes handed to a conversion do not fit the elements asked for.
    #[error("{num_elements} elements as {format} take {expected_bytes} bytes, but {found_bytes} were given")]
    WrongByteCount {
        /// Format of the bytes.
        format: &'static str,
        /// Elements asked for.
        num_elements: usize,
        /// Bytes that they take.
        expected_bytes: usize,
        /// Bytes given.
        found_bytes: usize,
    },

    /// A number of the model that the ranks of tensor parallelism cannot share.
    #[error(
        "{quantity} is {value}, which {size} tensor-parallel ranks cannot share: {limit}; choose another \
         --tensor-parallel-size"
    )]
    Indivisible {
        /// The model's field, or the part of a weight.
        quantity: &'static str,
        /// Its value.
        value: usize,
        /// Number of ranks.
        size: u32,
        /// What would be allowed.
        limit: String,
    },

    /// The path holds no adapter.
    #[error("{path}: no LoRA adapter here: there is no {missing}; give the folder that PEFT's save_pretrained wrote")]
    NoAdapter {
        /// The value that was asked for.
        path: PathBuf,
        /// The file that is not there.
        missing: &'static str,
    },

    /// A matrix of an adapter has another shape than its configuration and the base model imply.
    #[error(
        "{path}: tensor `{tensor}` has shape {found:?}, but the base model and the adapter's rank imply {expected:?}; \
         the adapter belongs to another model, or its configuration to another file"
    )]
    AdapterShape {
        /// The file.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// `[rank, in_features]` of A, `[out_features, rank]` of B.
        expected: Vec<usize>,
        /// From the file, same order.
        found: Vec<usize>,
    },

    /// There is no tokenizer in the model's folder.
    #[error(
        "{path}: no tokenizer: looked for {}; put the model's tokenizer.json into the folder (Hugging Face \
         repositories carry it), or use a GGUF file, which holds its own",
        looked_for.join(", ")
    )]
    MissingTokenizer {
        /// The folder or file.
        path: PathBuf,
        /// The names tried.
        looked_for: Vec<&'static str>,
    },

    /// `--load-format` contradicts what is on disk.
    #[error("{path}: load format `{asked}` needs {needs}, found {found}; use `--load-format auto`")]
    WrongLoadFormat {
        /// The path.
        path: PathBuf,
        /// The format asked for.
        asked: &'static str,
        /// What it needs.
        needs: &'static str,
        /// What is there.
        found: String,
    },

    /// A name that is no way of rounding weights at load.
    #[error(
        "quantization `{found}` is not known; known are: fp8, int8 and int4, for weights in F32, F16 or BF16; weights \
         that a file holds quantised (awq, gptq, compressed-tensors, modelopt, bitsandbytes, hqq, auto-round, mxfp4) \
         need no flag"
    )]
    UnknownQuantization {
        /// The name given.
        found: String,
    },

    /// A name that is not a load format.
    #[error("load format `{found}` is not known; known are: auto, safetensors, gguf, dummy")]
    UnknownLoadFormat {
        /// The name given.
        found: String,
    },
}

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() {
        String::new()
    } else {
        format!(" (near names: {})", near.join(", "))
    }
}

/// Up to three names that look most like `name`, best first.
pub(crate) fn near_names<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let score = |other: &str| strsim::normalized_levenshtein(name, other);
    let mut near: Vec<(f64, &str)> = names.map(|n| (score(n), n)).filter(|(s, _)| *s >= 0.7).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    near.into_iter().take(3).map(|(_, n)| n.to_owned()).collect()
}
