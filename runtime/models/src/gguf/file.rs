//! A GGUF file opened over a memory map: metadata by key, tensors by name. Everything in the tensor
//! table is checked when the file is opened, so that taking a tensor's bytes later cannot fail.

use std::collections::HashMap;
use std::path::Path;

use super::cursor::Cursor;
use super::tensor_type::TensorType;
use super::value::{GgufArray, GgufValue};
use crate::error::{ModelError, Result};
use crate::mapping::MappedFile;

/// Axes that ggml allows.
const MAX_AXES: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

/// One row of the tensor table, checked against the file's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Extents, outermost first (`[out_features, in_features]`), the reverse of ggml's order.
    pub shape: Vec<usize>,
    /// How the values are stored.
    pub tensor_type: TensorType,
    /// First byte, from the start of the file.
    pub offset: usize,
    /// Bytes taken.
    pub len: usize,
}

/// An opened GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    file: MappedFile,
    version: u32,
    metadata: HashMap<String, GgufValue>,
    tensors: HashMap<String, GgufTensor>,
}

impl GgufFile {
    /// Maps `path` and reads its header, metadata and tensor table.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Truncated`] or [`ModelError::Malformed`] with the part, its
    /// offset, what was expected and what was found.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let mut cursor = Cursor::new(path, file.bytes());
        let version = read_version(&mut cursor)?;
        // The shortest tensor entry: name length, one byte of name, axes, type, offset.
        let num_tensors = cursor.count(8 + 1 + 4 + 4 + 8, "tensor count")?;
        // The shortest metadata entry: key length, one byte of key, type, one byte of value.
        let num_keys = cursor.count(8 + 1 + 4 + 1, "metadata count")?;
        let metadata = read_metadata(&mut cursor, num_keys)?;
        let tensors = read_tensors(&mut cursor, num_tensors, &metadata, file.bytes().len() as u64)?;
        Ok(Self {
            file,
            version,
            metadata,
            tensors,
        })
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether the file still holds what it held when it was opened ([`MappedFile::check_unchanged`]).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()
    }

    /// The format version, 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata value of `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(key)
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.get(name)
    }

    /// All tensor names, in no order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The stored bytes of a tensor of this file.
    #[must_use]
    pub fn tensor_bytes(&self, tensor: &GgufTensor) -> &[u8] {
        &self.file.bytes()[tensor.offset..tensor.offset + tensor.len]
    }

    /// The string at `key`, `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is of another type.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.value(key) {
            None => Ok(None),
            Some(GgufValue::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.bad(key, other, "a string")),
        }
    }

    /// The bool at `key`, `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(GgufValue::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.bad(key, other, "a bool")),
        }
    }

    /// The integer at `key` of any width, `None` if the key is absent. An array of equal integers
    /// (one a layer) counts as that integer.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is negative, of another type, or differs between layers.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let same = |numbers: &[u64]| numbers.first().copied().filter(|f| numbers.iter().all(|n| n == f));
        let number = match value {
            GgufValue::Unsigned(n) => Some(*n),
            GgufValue::Signed(n) => u64::try_from(*n).ok(),
            GgufValue::Array(GgufArray::Unsigned(numbers)) => same(numbers),
            GgufValue::Array(GgufArray::Signed(numbers)) => {
                let numbers: Option<Vec<u64>> = numbers.iter().map(|&n| u64::try_from(n).ok()).collect();
                numbers.and_then(|n| same(&n))
            }
            _ => None,
        };
        let limit = "an integer from 0 up, the same for every layer";
        number.map(Some).ok_or_else(|| self.bad(key, value, limit))
    }

    /// The number at `key`, `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is of another type or not finite.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = match value {
            GgufValue::Float(f) => *f,
            GgufValue::Unsigned(n) => *n as f64,
            GgufValue::Signed(n) => *n as f64,
            _ => f64::NAN,
        };
        if number.is_finite() {
            Ok(Some(number))
        } else {
            Err(self.bad(key, value, "a finite number"))
        }
    }

    pub(crate) fn bad(&self, key: &str, value: &GgufValue, limit: &str) -> ModelError {
        ModelError::BadField {
            path: self.path().to_path_buf(),
            field: key.to_owned(),
            value: value.describe(),
            limit: limit.to_owned(),
        }
    }
}

fn read_version(cursor: &mut Cursor) -> Result<u32> {
    let magic: [u8; 4] = cursor.array("magic")?;
    if &magic != b"GGUF" {
        return Err(cursor.malformed("magic", 0, "the bytes `GGUF`", format!("{magic:02x?}")));
    }
    let version = cursor.u32("version")?;
    if !(2..=3).contains(&version) {
        let found = if (2..=3).contains(&version.swap_bytes()) {
            format!("version {} in big endian", version.swap_bytes())
        } else {
            version.to_string()
        };
        return Err(cursor.malformed("version", 4, "2 or 3, little endian", found));
    }
    Ok(version)
}

fn read_metadata(cursor: &mut Cursor, num_keys: usize) -> Result<HashMap<String, GgufValue>> {
    let mut metadata = HashMap::with_capacity(num_keys);
    for _ in 0..num_keys {
        let offset = cursor.position();
        let key = cursor.string("metadata key")?.to_owned();
        let value = GgufValue::read(cursor, &key)?;
        if metadata.contains_key(&key) {
            return Err(cursor.malformed("metadata key", offset, "each key once", format!("`{key}` again")));
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn read_tensors(
    cursor: &mut Cursor,
    num_tensors: usize,
    metadata: &HashMap<String, GgufValue>,
    file_len: u64,
) -> Result<HashMap<String, GgufTensor>> {
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(GgufValue::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n,
        Some(other) => {
            let expected = "a power of two up to 1048576";
            return Err(cursor.malformed("general.alignment", cursor.position(), expected, other.describe()));
        }
    };
    let mut entries = Vec::with_capacity(num_tensors);
    for _ in 0..num_tensors {
        entries.push(Entry::read(cursor, alignment)?);
    }
    let data_start = cursor.position().next_multiple_of(alignment);
    let mut spans = Vec::with_capacity(num_tensors);
    let mut tensors = HashMap::with_capacity(num_tensors);
    for entry in entries {
        let tensor = entry.place(cursor, data_start, file_len)?;
        spans.push((tensor.offset, tensor.len, entry.name.clone()));
        if tensors.insert(entry.name.clone(), tensor).is_some() {
            let found = format!("`{}` again", entry.name);
            return Err(cursor.malformed("tensor name", entry.entry_offset, "each name once", found));
        }
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let ((first, len, name), (second, _, next_name)) = (&pair[0], &pair[1]);
        if first + len > *second {
            return Err(cursor.malformed(
                format!("data of tensor `{next_name}`"),
                *second as u64,
                format!("an offset of at least {}, where `{name}` ends", first + len),
                second.to_string(),
            ));
        }
    }
    Ok(tensors)
}

/// A row of the tensor table before its place in the file is checked.
struct Entry {
    name: String,
    entry_offset: u64,
    shape: Vec<usize>,
    tensor_type: TensorType,
    relative_offset: u64,
    len: u64,
}

impl Entry {
    fn read(cursor: &mut Cursor, alignment: u64) -> Result<Self> {
        let entry_offset = cursor.position();
        let name = cursor.string("tensor name")?.to_owned();
        let at = cursor.position();
        let num_axes = cursor.u32("number of axes")?;
        if !(1..=MAX_AXES).contains(&num_axes) {
            let part = format!("number of axes of `{name}`");
            return Err(cursor.malformed(part, at, format!("1 to {MAX_AXES}"), num_axes.to_string()));
        }
        let shape_at = cursor.position();
        let mut dims = Vec::with_capacity(num_axes as usize);
        for _ in 0..num_axes {
            dims.push(cursor.u64("tensor shape")?);
        }
        let type_at = cursor.position();
        let code = cursor.u32("tensor type")?;
        let Some(tensor_type) = TensorType::from_code(code) else {
            let part = format!("type of tensor `{name}`");
            return Err(cursor.malformed(part, type_at, "a type number of ggml", code.to_string()));
        };
        let offset_at = cursor.position();
        let relative_offset = cursor.u64("tensor offset")?;
        if !relative_offset.is_multiple_of(alignment) {
            let part = format!("offset of tensor `{name}`");
            let expected = format!("a multiple of {alignment}");
            return Err(cursor.malformed(part, offset_at, expected, relative_offset.to_string()));
        }
        let Some(len) = stored_bytes(&dims, tensor_type) else {
            let expected = format!(
                "axes from 1 up, the first a multiple of {} for {}, fewer than 2^63 bytes in all",
                tensor_type.block_values(),
                tensor_type.name()
            );
            let part = format!("shape of tensor `{name}`");
            return Err(cursor.malformed(part, shape_at, expected, format!("{dims:?}")));
        };
        let shape = dims.iter().rev().map(|&d| d as usize).collect();
        Ok(Self {
            name,
            entry_offset,
            shape,
            tensor_type,
            relative_offset,
            len,
        })
    }

    fn place(&self, cursor: &Cursor, data_start: u64, file_len: u64) -> Result<GgufTensor> {
        let offset = data_start.saturating_add(self.relative_offset);
        if offset.saturating_add(self.len) > file_len {
            return Err(ModelError::Truncated {
                path: cursor.path().to_path_buf(),
                part: format!("data of tensor `{}`", self.name),
                offset,
                needed: self.len,
                available: file_len.saturating_sub(offset),
            });
        }
        Ok(GgufTensor {
            shape: self.shape.clone(),
            tensor_type: self.tensor_type,
            offset: offset as usize,
            len: self.len as usize,
        })
    }
}

/// Bytes of a tensor with ggml's `dims` (innermost first), `None` if that is no valid shape.
fn stored_bytes(dims: &[u64], tensor_type: TensorType) -> Option<u64> {
    let rows = dims[1..].iter().try_fold(1u64, |rows, &d| rows.checked_mul(d))?;
    let row = dims[0];
    if rows == 0 || row == 0 || !row.is_multiple_of(tensor_type.block_values()) {
        return None;
    }
    let row_bytes = (row / tensor_type.block_values()).checked_mul(tensor_type.block_bytes())?;
    row_bytes.checked_mul(rows).filter(|&bytes| bytes < 1 << 63)
}
