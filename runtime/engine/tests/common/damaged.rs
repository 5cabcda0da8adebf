//! A tiny model with some of its weights damaged, in a folder of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::fixtures;

/// The folder of a damaged copy; gone with it.
pub struct Damaged(PathBuf);

/// Values `range` of a tensor that become `value`.
pub struct Damage<'a> {
    pub tensor: &'a str,
    pub first: usize,
    pub count: usize,
    pub value: f32,
}

impl Damaged {
    /// A copy of the fixture `model` with `damages`. Its weights are f32 or bf16.
    pub fn new(model: &str, damages: &[Damage<'_>]) -> Damaged {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("halyard-damaged-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for entry in std::fs::read_dir(fixtures().join(model)).expect("the fixture") {
            let from = entry.expect("an entry").path();
            std::fs::copy(&from, folder.join(from.file_name().expect("a name"))).expect("copied");
        }
        let file = folder.join("model.safetensors");
        let mut bytes = std::fs::read(&file).expect("weights");
        let header_bytes = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).expect("a header");
        for damage in damages {
            let entry = &header[damage.tensor];
            let value = damage.value.to_le_bytes();
            let value = match entry["dtype"].as_str() {
                Some("F32") => &value[..],
                Some("BF16") => &value[2..],
                other => panic!("{} is {other:?}", damage.tensor),
            };
            let start = entry["data_offsets"][0].as_u64().expect("an offset") as usize;
            let at = 8 + header_bytes + start + value.len() * damage.first;
            for to in bytes[at..at + value.len() * damage.count].chunks_exact_mut(value.len()) {
                to.copy_from_slice(value);
            }
        }
        std::fs::write(&file, bytes).expect("written");
        Damaged(folder)
    }

    /// A copy of `model` in which these tokens' embeddings, of `width` values each, are NaN.
    pub fn embeddings(model: &str, width: usize, tokens: &[u32]) -> Damaged {
        let row = |&token: &u32| Damage {
            tensor: "model.embed_tokens.weight",
            first: token as usize * width,
            count: width,
            value: f32::NAN,
        };
        let rows: Vec<_> = tokens.iter().map(row).collect();
        Damaged::new(model, &rows)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Damaged {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
