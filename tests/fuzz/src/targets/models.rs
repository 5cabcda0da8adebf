//! Files of a model folder: opened as the server opens them, and turned into a program.

use std::path::Path;

use halyard_models::gguf::GgufFile;
use halyard_models::lora::{LoraAdapter, LoraLimits, LoraTargets};
use halyard_models::program::{KvLayout, ProgramOptions, Shard, build_forward, build_head};
use halyard_models::{DummyWeights, LoadFormat, ModelFiles, TokenizerSource};
use halyard_platform_api::DType;
use halyard_text::{GgufTokenizer, Tokenizer};

use crate::target::{Case, Outcome, fixture, fixture_bytes, outcome};

/// Zeros behind a header, in place of the weights that it describes.
const WEIGHT_BYTES: u64 = 512 << 10;

/// What a file says before its weights, with holes for these.
fn write(path: &Path, input: &[u8]) {
    std::fs::write(path, input).expect("a file in the temporary folder");
}

fn write_with_weights(path: &Path, input: &[u8]) {
    write(path, input);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .expect("it was written");
    file.set_len(input.len() as u64 + WEIGHT_BYTES).expect("a sparse file");
}

fn copy(model: &str, name: &str, to: &Path) {
    write(&to.join(name), &fixture_bytes(&format!("models/{model}/{name}")));
}

/// What programs are built for.
pub fn options() -> ProgramOptions {
    ProgramOptions {
        act: DType::F32,
        kv: DType::F32,
        block_size: 16,
        attention_backend: 0,
        max_tokens: 64,
        max_seqs: 8,
        max_kv_len: 256,
        max_logits_rows: 8,
        allow_quantized_act: false,
        narrow_last_layer: true,
        communicator: 0,
        shard: Shard::WHOLE,
        expert_parallel: false,
        lora: None,
    }
}

/// Everything that is made of a model before a device is asked: programs and rope tables.
fn describe(files: &ModelFiles) {
    let description = &files.description;
    // A thousand layers make a large program: a few are enough to see how it is built.
    if description.num_layers() <= 64 {
        let format = |role| files.weights.format(role);
        let _ = build_forward(description, &KvLayout::of(description), &options(), &format);
        let _ = build_head(description, &options(), &format);
    }
    for rope in description.ropes.iter().filter(|rope| rope.rotary_dim <= 4096) {
        let _ = rope.table(16);
    }
}

fn open(path: &Path, format: LoadFormat) -> Outcome {
    let opened = ModelFiles::open(path, format, DummyWeights::default());
    if let Ok(files) = &opened {
        describe(files);
    }
    outcome(&opened)
}

/// Some files up to their weights.
pub fn gguf_seeds() -> Vec<Vec<u8>> {
    let names = [
        "llama-gguf",
        "llama3-rope-gguf",
        "qwen3-gguf",
        "gemma3-gguf",
        "llama-iq-mix-gguf",
    ];
    let header = |name: &str| {
        let path = fixture(&format!("models/gguf/{name}.gguf"));
        let file = GgufFile::open(&path).expect("a fixture");
        let first = file
            .tensor_names()
            .filter_map(|name| file.tensor(name))
            .map(|tensor| tensor.offset);
        let end = first.min().expect("tensors");
        let mut bytes = std::fs::read(&path).expect("a fixture");
        bytes.truncate(end);
        bytes
    };
    names.map(header).to_vec()
}

/// A GGUF file: metadata, tensors, tokenizer.
pub fn gguf(folder: &Path) -> Case {
    let path = folder.join("model.gguf");
    Box::new(move |input| {
        write_with_weights(&path, input);
        let opened = ModelFiles::open(&path, LoadFormat::Auto, DummyWeights::default());
        if let Ok(files) = &opened {
            describe(files);
            if let TokenizerSource::Gguf(data) = &files.tokenizer {
                let made = Tokenizer::from_gguf(&GgufTokenizer {
                    model: data.model.clone(),
                    pre: data.pre.clone(),
                    tokens: data.tokens.clone(),
                    scores: data.scores.clone(),
                    token_types: data.token_types.clone(),
                    merges: data.merges.clone(),
                    bos_id: data.bos,
                    eos_id: data.eos,
                    pad_id: data.pad,
                    unk_id: data.unk,
                    add_bos: data.add_bos,
                    add_eos: data.add_eos,
                    add_space_prefix: data.add_space_prefix,
                });
                if let Ok(tokenizer) = &made {
                    super::text::use_tokenizer(tokenizer);
                }
                return outcome(&made);
            }
        }
        outcome(&opened)
    })
}

/// The header of a safetensors file, its length before it.
fn header(path: &str) -> Vec<u8> {
    let mut bytes = fixture_bytes(path);
    let len = bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word)) as usize;
    bytes.truncate(8 + len);
    bytes
}

pub fn safetensors_seeds() -> Vec<Vec<u8>> {
    let models = ["llama", "llama-fp8", "qwen3-fp8", "gemma3", "llama-fp8-kv"];
    models
        .map(|model| header(&format!("models/{model}/model.safetensors")))
        .to_vec()
}

/// A safetensors header in a folder whose other files are right.
pub fn safetensors(folder: &Path) -> Case {
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        copy("llama", name, folder);
    }
    let folder = folder.to_path_buf();
    Box::new(move |input| {
        write_with_weights(&folder.join("model.safetensors"), input);
        open(&folder, LoadFormat::Auto)
    })
}

pub fn index_seeds() -> Vec<Vec<u8>> {
    vec![fixture_bytes("models/qwen2/model.safetensors.index.json")]
}

/// The index of a model in several files.
pub fn index(folder: &Path) -> Case {
    let files = [
        "config.json",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    for name in files {
        copy("qwen2", name, folder);
    }
    let folder = folder.to_path_buf();
    Box::new(move |input| {
        write(&folder.join("model.safetensors.index.json"), input);
        open(&folder, LoadFormat::Auto)
    })
}

pub fn config_seeds() -> Vec<Vec<u8>> {
    let models = [
        "llama",
        "llama3-rope",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma3",
        "llama-fp8",
        "qwen3-fp8",
        "qwen3-kv",
    ];
    models
        .map(|model| fixture_bytes(&format!("models/{model}/config.json")))
        .to_vec()
}

/// `config.json`, with dummy weights.
pub fn config(folder: &Path) -> Case {
    let folder = folder.to_path_buf();
    Box::new(move |input| {
        write(&folder.join("config.json"), input);
        open(&folder, LoadFormat::Dummy)
    })
}

pub fn generation_seeds() -> Vec<Vec<u8>> {
    ["llama", "qwen2", "gemma3"]
        .map(|model| fixture_bytes(&format!("models/{model}/generation_config.json")))
        .to_vec()
}

/// `generation_config.json` together with a right configuration.
pub fn generation(folder: &Path) -> Case {
    copy("llama", "config.json", folder);
    let folder = folder.to_path_buf();
    Box::new(move |input| {
        write(&folder.join("generation_config.json"), input);
        open(&folder, LoadFormat::Dummy)
    })
}

pub fn lora_config_seeds() -> Vec<Vec<u8>> {
    ["rank4", "rslora8", "rank16"]
        .map(|name| fixture_bytes(&format!("models/llama-lora/{name}/adapter_config.json")))
        .to_vec()
}

/// `adapter_config.json` together with right matrices.
pub fn lora_config(folder: &Path) -> Case {
    copy("llama-lora/rank4", "adapter_model.safetensors", folder);
    let model =
        ModelFiles::open(&fixture("models/llama"), LoadFormat::Auto, DummyWeights::default()).expect("a fixture");
    let limits = LoraLimits {
        max_rank: 16,
        targets: LoraTargets::ALL,
        dtype: DType::F32,
    };
    let folder = folder.to_path_buf();
    Box::new(move |input| {
        write(&folder.join("adapter_config.json"), input);
        outcome(&LoraAdapter::open(&folder, &model.description, &limits))
    })
}
