//! Safetensors files, single or sharded, over memory maps: names to checked byte ranges. Reads the
//! header and the shard index; computes nothing.
//!
//! Format: a u64 header length, a JSON header of `name → {dtype, shape, data_offsets}`, then the data.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use halyard_platform_api::WeightFormat;
use serde_json::{Map, Value};

use crate::config::JsonFields;
use crate::error::{ModelError, Result, near_names};
use crate::mapping::MappedFile;

/// Longest header, as the safetensors library has it.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const PREFIX_BYTES: u64 = 8;
/// Formats that the engine computes with, for messages.
pub(crate) const SUPPORTED: &str = "F32, F16, BF16, F8_E4M3 (matrices, with their weight_scale)";

/// Element types of the format: name, bits, and the engine's format where there is one.
const DTYPES: [(&str, u64, Option<WeightFormat>); 16] = [
    ("F32", 32, Some(WeightFormat::F32)),
    ("F16", 16, Some(WeightFormat::F16)),
    ("BF16", 16, Some(WeightFormat::BF16)),
    ("F64", 64, None),
    ("F8_E4M3", 8, Some(WeightFormat::F8E4M3)),
    ("F8_E5M2", 8, None),
    ("F8_E8M0", 8, None),
    ("F4", 4, None),
    ("BOOL", 8, None),
    ("U8", 8, None),
    ("I8", 8, None),
    ("U16", 16, None),
    ("I16", 16, None),
    ("U32", 32, None),
    ("I32", 32, None),
    ("I64", 64, None),
];

/// A tensor of the files, checked against its shard's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafetensorsTensor {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The file's name of the element type.
    pub dtype: String,
    /// The engine's format, `None` where the engine cannot compute with it.
    pub format: Option<WeightFormat>,
    shard: usize,
    offset: usize,
    len: usize,
}

/// One or several opened safetensors files.
#[derive(Debug)]
pub struct SafetensorsFiles {
    path: PathBuf,
    shards: Vec<MappedFile>,
    tensors: HashMap<String, SafetensorsTensor>,
}

impl SafetensorsFiles {
    /// Opens a model folder's weights: `model.safetensors`, else the shards that
    /// `model.safetensors.index.json` names, else the only `.safetensors` file.
    ///
    /// # Errors
    /// [`ModelError::NoModel`] if there are none (or several without an index); [`ModelError::Io`],
    /// [`ModelError::Truncated`], [`ModelError::Malformed`] about a file; [`ModelError::MissingTensor`] if a
    /// shard lacks a tensor that the index places there.
    pub fn open_folder(folder: &Path) -> Result<Self> {
        if let Some(found) = Self::open_named(folder, "model")? {
            return Ok(found);
        }
        let files = files_with_extension(folder, "safetensors")?;
        match files.as_slice() {
            [only] => Self::open(only.clone(), &files),
            [] => Err(no_model(folder, no_weights(folder)?)),
            several => {
                let found = format!(
                    "{} .safetensors files without model.safetensors.index.json",
                    several.len()
                );
                Err(no_model(folder, found))
            }
        }
    }

    /// The file `NAME.safetensors` of a folder, or the shards of `NAME.safetensors.index.json`; `None` without both.
    pub(crate) fn open_named(folder: &Path, name: &str) -> Result<Option<Self>> {
        let single = folder.join(format!("{name}.safetensors"));
        if single.is_file() {
            return Self::open(single.clone(), &[single]).map(Some);
        }
        let index = folder.join(format!("{name}.safetensors.index.json"));
        index.is_file().then(|| Self::open_sharded(&index)).transpose()
    }

    fn open_sharded(index_path: &Path) -> Result<Self> {
        let index = JsonFields::open(index_path)?;
        let placements = match index.value("weight_map") {
            Some(Value::Object(map)) => map.clone(),
            Some(other) => {
                return Err(index.bad("weight_map", other, "an object of tensor names to file names"));
            }
            None => return Err(index.missing("weight_map")),
        };
        let mut names = BTreeSet::new();
        for file in placements.values() {
            // A shard is in the folder of its index: any other path could read files outside the model.
            let name = file.as_str().filter(|n| Path::new(n).file_name() == Some(n.as_ref()));
            names.insert(name.ok_or_else(|| index.bad("weight_map", file, "the name of a file in the same folder"))?);
        }
        let folder = index_path.parent().unwrap_or(Path::new(""));
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        let files = Self::open(index_path.to_path_buf(), &paths)?;
        for (tensor, file) in &placements {
            let shard = files.tensors.get(tensor).map(|t| files.shards[t.shard].path());
            let expected = folder.join(file.as_str().unwrap_or_default());
            if shard != Some(expected.as_path()) {
                return Err(ModelError::MissingTensor {
                    near: near_names(tensor, files.names()),
                    path: expected,
                    tensor: tensor.clone(),
                });
            }
        }
        Ok(files)
    }

    /// Opens one file.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Truncated`] or [`ModelError::Malformed`].
    pub fn open_file(path: &Path) -> Result<Self> {
        Self::open(path.to_path_buf(), &[path.to_path_buf()])
    }

    fn open(path: PathBuf, shards: &[PathBuf]) -> Result<Self> {
        let mut files = Self {
            path,
            shards: Vec::with_capacity(shards.len()),
            tensors: HashMap::new(),
        };
        for shard in shards {
            let file = MappedFile::open(shard)?;
            read_header(&file, files.shards.len(), &mut files.tensors)?;
            files.shards.push(file);
        }
        Ok(files)
    }

    /// The single file, or the index.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether every file still holds what it held when it was opened ([`MappedFile::check_unchanged`]).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.shards.iter().try_for_each(MappedFile::check_unchanged)
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&SafetensorsTensor> {
        self.tensors.get(name)
    }

    /// All tensor names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The stored bytes of a tensor of these files.
    #[must_use]
    pub fn tensor_bytes(&self, tensor: &SafetensorsTensor) -> &[u8] {
        &self.shards[tensor.shard].bytes()[tensor.offset..tensor.offset + tensor.len]
    }
}

/// Regular files of `folder` with this extension, sorted by name.
pub(crate) fn files_with_extension(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let io = |source| ModelError::Io {
        path: folder.to_path_buf(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e == extension) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What a folder has in place of .safetensors files.
fn no_weights(folder: &Path) -> Result<String> {
    for extension in ["bin", "pt", "pth"] {
        if let Some(file) = files_with_extension(folder, extension)?.first() {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            return Ok(format!(
                "no .safetensors file but `{name}`, a PyTorch pickle, which can run code (save the model with \
                 safe_serialization=True, or HQQ's save_to_safetensors)"
            ));
        }
    }
    Ok("no .safetensors file".to_owned())
}

pub(crate) fn no_model(path: &Path, found: String) -> ModelError {
    ModelError::NoModel {
        path: path.to_path_buf(),
        found,
    }
}

fn malformed(file: &MappedFile, part: String, offset: u64, expected: &str, found: String) -> ModelError {
    ModelError::Malformed {
        path: file.path().to_path_buf(),
        part,
        offset,
        expected: expected.to_owned(),
        found,
    }
}

fn read_header(file: &MappedFile, shard: usize, tensors: &mut HashMap<String, SafetensorsTensor>) -> Result<()> {
    let bytes = file.bytes();
    let truncated = |part: String, offset: u64, needed: u64| ModelError::Truncated {
        path: file.path().to_path_buf(),
        part,
        offset,
        needed,
        available: (bytes.len() as u64).saturating_sub(offset),
    };
    let Some((prefix, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(truncated("header length".into(), 0, PREFIX_BYTES));
    };
    let header_len = u64::from_le_bytes(*prefix);
    if header_len > MAX_HEADER_BYTES {
        let expected = format!("at most {MAX_HEADER_BYTES} bytes");
        return Err(malformed(
            file,
            "header length".into(),
            0,
            &expected,
            header_len.to_string(),
        ));
    }
    if header_len > rest.len() as u64 {
        return Err(truncated("header".into(), PREFIX_BYTES, header_len));
    }
    let (header, data) = rest.split_at(header_len as usize);
    let header: Map<String, Value> = serde_json::from_slice(header)
        .map_err(|e| malformed(file, "header".into(), PREFIX_BYTES, "a JSON object", e.to_string()))?;
    let data_start = PREFIX_BYTES + header_len;
    let mut spans = Vec::with_capacity(header.len());
    for (name, entry) in &header {
        if name == "__metadata__" {
            continue;
        }
        let entry = Entry::parse(entry).map_err(|problem| {
            let part = format!("header entry `{name}`");
            malformed(file, part, PREFIX_BYTES, problem.expected, entry.to_string())
        })?;
        if entry.end > data.len() as u64 {
            let needed = entry.end - entry.begin;
            return Err(truncated(
                format!("data of tensor `{name}`"),
                data_start.saturating_add(entry.begin),
                needed,
            ));
        }
        spans.push((entry.begin, entry.end, name.as_str()));
        let tensor = entry.place(shard, data_start);
        if tensors.insert(name.clone(), tensor).is_some() {
            let found = format!("`{name}` again, after another shard had it");
            return Err(malformed(
                file,
                "tensor name".into(),
                PREFIX_BYTES,
                "each name once",
                found,
            ));
        }
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[0].1 > pair[1].0 {
            let part = format!("data of tensor `{}`", pair[1].2);
            let expected = format!("an offset of at least {}, where `{}` ends", pair[0].1, pair[0].2);
            return Err(malformed(
                file,
                part,
                data_start + pair[1].0,
                &expected,
                pair[1].0.to_string(),
            ));
        }
    }
    Ok(())
}

/// A header entry; offsets count from the start of the data.
struct Entry {
    dtype: String,
    format: Option<WeightFormat>,
    shape: Vec<usize>,
    begin: u64,
    end: u64,
}

/// What a header entry should have been.
struct Problem {
    expected: &'static str,
}

impl Entry {
    fn parse(entry: &Value) -> Result<Self, Problem> {
        let need = |expected| Problem { expected };
        let dtype = entry["dtype"].as_str().ok_or(need("a `dtype` name"))?;
        let known = DTYPES.iter().find(|(name, ..)| *name == dtype);
        let &(_, bits, format) = known.ok_or(need("a `dtype` of the safetensors format"))?;
        let numbers = |key: &str| -> Option<Vec<u64>> { entry[key].as_array()?.iter().map(Value::as_u64).collect() };
        let shape = numbers("shape").ok_or(need("a `shape` of integers from 0 up"))?;
        let offsets = numbers("data_offsets");
        let Some(&[begin, end]) = offsets.as_deref() else {
            return Err(need("`data_offsets` of two integers"));
        };
        let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        let bytes = elements.and_then(|n| n.checked_mul(bits)).map(|bits| bits.div_ceil(8));
        if bytes.is_none() || end.checked_sub(begin) != bytes {
            return Err(need("`data_offsets` that span shape times element size"));
        }
        let shape = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>();
        Ok(Self {
            dtype: dtype.to_owned(),
            format,
            shape: shape.map_err(|_| need("extents that fit the address space"))?,
            begin,
            end,
        })
    }

    fn place(self, shard: usize, data_start: u64) -> SafetensorsTensor {
        SafetensorsTensor {
            shape: self.shape,
            dtype: self.dtype,
            format: self.format,
            shard,
            offset: (data_start + self.begin) as usize,
            len: (self.end - self.begin) as usize,
        }
    }
}
