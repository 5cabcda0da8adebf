//! What the tests of this crate share: temporary folders and hand-written GGUF files.
#![allow(dead_code)] // Each test file uses a part.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder of its own, removed when dropped.
pub struct TempFolder(PathBuf);

impl TempFolder {
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("halyard-models-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        // A new file each time: ext4 flushes a file that is truncated and written again to disk.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The fixtures of the repository.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Bytes of a GGUF file, written from the format's description and from nothing of the crate.
#[derive(Clone)]
pub struct GgufWriter {
    pub version: u32,
    pub metadata: Vec<(String, Vec<u8>)>,
    /// Name, ggml dims (innermost first), type number, data.
    pub tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
    pub alignment: usize,
}

pub fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn tagged(tag: u32, value: &[u8]) -> Vec<u8> {
    [&tag.to_le_bytes(), value].concat()
}

pub fn u32_value(value: u32) -> Vec<u8> {
    tagged(4, &value.to_le_bytes())
}

pub fn i32_value(value: i32) -> Vec<u8> {
    tagged(5, &value.to_le_bytes())
}

pub fn f32_value(value: f32) -> Vec<u8> {
    tagged(6, &value.to_le_bytes())
}

pub fn bool_value(value: u8) -> Vec<u8> {
    tagged(7, &[value])
}

pub fn string_value(value: &str) -> Vec<u8> {
    tagged(8, &string(value))
}

pub fn array_value(element_tag: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    let mut body = element_tag.to_le_bytes().to_vec();
    body.extend((elements.len() as u64).to_le_bytes());
    body.extend(elements.concat());
    tagged(9, &body)
}

pub fn strings_value(values: &[&str]) -> Vec<u8> {
    let elements: Vec<Vec<u8>> = values.iter().map(|v| string(v)).collect();
    array_value(8, &elements)
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl GgufWriter {
    pub fn new() -> Self {
        Self {
            version: 3,
            metadata: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
        }
    }

    pub fn set(&mut self, key: &str, value: Vec<u8>) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    pub fn tensor_f32(&mut self, name: &str, dims: &[u64]) -> &mut Self {
        let count: u64 = dims.iter().product();
        let values: Vec<f32> = (0..count).map(|i| i as f32 * 0.01 + name.len() as f32).collect();
        self.tensors
            .push((name.to_owned(), dims.to_vec(), 0, f32_bytes(&values)));
        self
    }

    /// Length of everything before the tensor data, unpadded.
    pub fn header_len(&self) -> usize {
        self.header().0.len()
    }

    fn header(&self) -> (Vec<u8>, Vec<usize>) {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            out.extend(string(key));
            out.extend(value);
        }
        let mut offset = 0usize;
        let mut offsets = Vec::new();
        for (name, dims, kind, data) in &self.tensors {
            out.extend(string(name));
            out.extend((dims.len() as u32).to_le_bytes());
            for dim in dims {
                out.extend(dim.to_le_bytes());
            }
            out.extend(kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offsets.push(offset);
            offset = (offset + data.len()).next_multiple_of(self.alignment);
        }
        (out, offsets)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (mut out, offsets) = self.header();
        let start = out.len().next_multiple_of(self.alignment);
        for (offset, (.., data)) in offsets.iter().zip(&self.tensors) {
            out.resize(start + offset, 0);
            out.extend(data);
        }
        out
    }

    /// A complete tiny Llama: 2 layers, hidden 8, 2 heads over 1 KV head of 4, 6 tokens.
    pub fn tiny_llama() -> Self {
        let mut file = Self::new();
        file.set("general.architecture", string_value("llama"))
            .set("general.name", string_value("Tiny"))
            .set("llama.block_count", u32_value(2))
            .set("llama.context_length", u32_value(64))
            .set("llama.embedding_length", u32_value(8))
            .set("llama.feed_forward_length", u32_value(12))
            .set("llama.attention.head_count", u32_value(2))
            .set("llama.attention.head_count_kv", u32_value(1))
            .set("llama.attention.layer_norm_rms_epsilon", f32_value(1e-5))
            .set("tokenizer.ggml.model", string_value("gpt2"))
            .set("tokenizer.ggml.pre", string_value("smollm"))
            .set(
                "tokenizer.ggml.tokens",
                strings_value(&["a", "b", "ab", "<s>", "</s>", "<|im_end|>"]),
            )
            .set("tokenizer.ggml.merges", strings_value(&["a b"]))
            .set("tokenizer.ggml.bos_token_id", u32_value(3))
            .set("tokenizer.ggml.eos_token_id", u32_value(4))
            .set("tokenizer.ggml.add_bos_token", bool_value(1))
            .set("tokenizer.chat_template", string_value("{{ messages }}"));
        file.tensor_f32("token_embd.weight", &[8, 6])
            .tensor_f32("output_norm.weight", &[8]);
        for layer in 0..2 {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            file.tensor_f32(&name("attn_norm"), &[8])
                .tensor_f32(&name("attn_q"), &[8, 8])
                .tensor_f32(&name("attn_k"), &[8, 4])
                .tensor_f32(&name("attn_v"), &[8, 4])
                .tensor_f32(&name("attn_output"), &[8, 8])
                .tensor_f32(&name("ffn_norm"), &[8])
                .tensor_f32(&name("ffn_gate"), &[8, 12])
                .tensor_f32(&name("ffn_up"), &[8, 12])
                .tensor_f32(&name("ffn_down"), &[12, 8]);
        }
        file
    }
}
