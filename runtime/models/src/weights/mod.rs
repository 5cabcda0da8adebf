//! A model's weights by their place in the architecture, whatever file they come from. Bytes stay as
//! stored: backends pack them. A tensor that is handed out has the shape that the description implies.

mod dummy;
mod role;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halyard_platform_api::WeightFormat;

pub use dummy::{DummyFormat, DummyValues, DummyWeights};
pub use role::{LayerWeight, Role};

use crate::config::ModelDescription;
use crate::error::{ModelError, Result};
use crate::families::Family;
use crate::gguf::GgufFile;
use crate::quant::dequantize;
use crate::safetensors::SafetensorsFiles;
use crate::{gguf, safetensors};

/// What the names of decoder weights start with, in the order tried: text models; then the text part
/// of multimodal checkpoints, before and after transformers 4.52.
const HF_PREFIXES: [&str; 4] = ["model.", "language_model.model.", "model.language_model.", ""];

/// Stored bytes of one weight.
#[derive(Clone, Debug)]
pub struct WeightTensor<'a> {
    /// Its name in the file, for messages.
    pub name: String,
    /// Row-major, whole blocks of `format`.
    pub bytes: Cow<'a, [u8]>,
    /// How values are stored.
    pub format: WeightFormat,
    /// `[out_features, in_features]` of a matrix, `[size]` of a vector.
    pub shape: Vec<usize>,
}

impl WeightTensor<'_> {
    /// Rows of a matrix, 1 of a vector.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        if self.shape.len() == 2 { self.shape[0] } else { 1 }
    }

    /// Values of a row.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Stored bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.num_rows()
    }

    /// Stored bytes of some rows. A range past the end is a bug of the caller and panics, as for slices.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> &[u8] {
        let row_bytes = self.row_bytes();
        &self.bytes[rows.start * row_bytes..rows.end * row_bytes]
    }

    /// Stored bytes of some rows, of each the columns `columns`, which begin and end between blocks. Copies unless rows are taken
    /// whole. A range past the end is a bug of the caller and panics, as for slices.
    #[must_use]
    pub fn submatrix(&self, rows: Range<usize>, columns: Range<usize>) -> Cow<'_, [u8]> {
        if columns == (0..self.row_len()) {
            return Cow::Borrowed(self.rows(rows));
        }
        let bytes_at = |column: usize| column / self.format.block_values() * self.format.block_bytes();
        let part = bytes_at(columns.start)..bytes_at(columns.end);
        let mut bytes = Vec::with_capacity(rows.len() * part.len());
        for row in self.rows(rows).chunks_exact(self.row_bytes()) {
            bytes.extend_from_slice(&row[part.clone()]);
        }
        Cow::Owned(bytes)
    }

    /// All values as f32, row-major: for norms, biases and tests.
    ///
    /// # Errors
    /// [`ModelError::WrongByteCount`] if bytes and shape do not belong together, which no tensor handed
    /// out by [`Weights`] shows.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.shape.iter().product()];
        dequantize(self.format, &self.bytes, &mut values)?;
        Ok(values)
    }
}

/// All weights of a model.
#[derive(Debug)]
pub struct Weights {
    description: Arc<ModelDescription>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Safetensors {
        files: SafetensorsFiles,
        family: &'static Family,
        prefix: &'static str,
    },
    Gguf(Arc<GgufFile>),
    Dummy(DummyWeights),
}

impl Weights {
    /// The weights of a Hugging Face checkpoint.
    #[must_use]
    pub fn from_safetensors(
        description: Arc<ModelDescription>,
        family: &'static Family,
        files: SafetensorsFiles,
    ) -> Self {
        let holds = |prefix: &&str| files.tensor(&format!("{prefix}embed_tokens.weight")).is_some();
        let prefix = HF_PREFIXES.into_iter().find(holds).unwrap_or(HF_PREFIXES[0]);
        let source = Source::Safetensors { files, family, prefix };
        Self { description, source }
    }

    /// The weights of a GGUF file.
    #[must_use]
    pub fn from_gguf(description: Arc<ModelDescription>, file: Arc<GgufFile>) -> Self {
        Self {
            description,
            source: Source::Gguf(file),
        }
    }

    /// Random weights of the described shapes.
    #[must_use]
    pub fn dummy(description: Arc<ModelDescription>, dummy: DummyWeights) -> Self {
        Self {
            description,
            source: Source::Dummy(dummy),
        }
    }

    /// The file that the weights come from; `None` for dummy weights.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Safetensors { files, .. } => Some(files.path()),
            Source::Gguf(file) => Some(file.path()),
            Source::Dummy(_) => None,
        }
    }

    /// The weight with a role, checked for shape and format. A tied output projection is the embedding.
    /// Nothing is copied, except that dummy weights are made at the call.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] with near names, [`ModelError::WrongShape`] or [`ModelError::UnsupportedFormat`].
    pub fn tensor(&self, role: Role) -> Result<WeightTensor<'_>> {
        let role = self.stored_role(role);
        let name = self.file_name(role);
        let expected = role.shape(&self.description);
        let (found, stored_as, format, bytes, supported) = match &self.source {
            Source::Dummy(dummy) => {
                return Ok(dummy.tensor(name, role, expected, &self.description));
            }
            Source::Safetensors { files, .. } => {
                let tensor = files.tensor(&name).ok_or_else(|| self.missing(&name, files.names()))?;
                let bytes = files.tensor_bytes(tensor);
                (
                    &tensor.shape,
                    tensor.dtype.as_str(),
                    tensor.format,
                    bytes,
                    safetensors::SUPPORTED,
                )
            }
            Source::Gguf(file) => {
                let tensor = file
                    .tensor(&name)
                    .ok_or_else(|| self.missing(&name, file.tensor_names()))?;
                let stored = tensor.tensor_type;
                let bytes = file.tensor_bytes(tensor);
                (
                    &tensor.shape,
                    stored.name(),
                    stored.weight_format(),
                    bytes,
                    gguf::SUPPORTED,
                )
            }
        };
        let path = || self.path().map(PathBuf::from).unwrap_or_default();
        if *found != expected {
            return Err(ModelError::WrongShape {
                path: path(),
                tensor: name,
                expected,
                found: found.clone(),
            });
        }
        let Some(format) = format else {
            return Err(ModelError::UnsupportedFormat {
                path: path(),
                tensor: name,
                found: stored_as.to_owned(),
                supported,
            });
        };
        Ok(WeightTensor {
            name,
            bytes: Cow::Borrowed(bytes),
            format,
            shape: expected,
        })
    }

    /// The stored format of a weight, without touching its bytes.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn format(&self, role: Role) -> Result<WeightFormat> {
        match &self.source {
            Source::Dummy(dummy) => Ok(dummy.format_of(self.stored_role(role))),
            _ => Ok(self.tensor(role)?.format),
        }
    }

    /// How the matrix with a role is made, where it is a dummy; `None` for weights of files, norms and biases.
    #[must_use]
    pub fn dummy_values(&self, role: Role) -> Option<DummyValues> {
        match &self.source {
            Source::Dummy(dummy) if DummyWeights::is_matrix(role) => Some(dummy.values(self.stored_role(role))),
            _ => None,
        }
    }

    /// The shape that the description implies for a role, as [`WeightTensor::shape`].
    #[must_use]
    pub fn shape(&self, role: Role) -> Vec<usize> {
        self.stored_role(role).shape(&self.description)
    }

    /// Checks that every weight of the description is there with its shape and a usable format, and
    /// returns the bytes that they take as stored.
    ///
    /// # Errors
    /// As [`Weights::tensor`], for the first weight that fails.
    pub fn check(&self) -> Result<u64> {
        let mut total_bytes = 0;
        for role in Role::all(&self.description) {
            if self.stored_role(role) != role {
                continue;
            }
            let values: usize = role.shape(&self.description).iter().product();
            let format = self.format(role)?;
            total_bytes += (values / format.block_values() * format.block_bytes()) as u64;
        }
        Ok(total_bytes)
    }

    /// The name that a weight has in the files.
    #[must_use]
    pub fn file_name(&self, role: Role) -> String {
        match &self.source {
            Source::Gguf(_) => role.gguf_name(),
            Source::Safetensors { family, prefix, .. } => role.hf_name(family, prefix),
            Source::Dummy(_) => format!("{role:?}"),
        }
    }

    fn stored_role(&self, role: Role) -> Role {
        match role {
            Role::LmHead if self.description.tie_word_embeddings => Role::Embedding,
            other => other,
        }
    }

    fn missing<'n>(&self, name: &str, names: impl Iterator<Item = &'n str>) -> ModelError {
        ModelError::MissingTensor {
            path: self.path().map(PathBuf::from).unwrap_or_default(),
            tensor: name.to_owned(),
            near: near_names(name, names),
        }
    }
}

/// Up to three names that look most like `name`, best first.
pub(crate) fn near_names<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let score = |other: &str| strsim::normalized_levenshtein(name, other);
    let mut near: Vec<(f64, &str)> = names.map(|n| (score(n), n)).filter(|(s, _)| *s >= 0.7).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    near.into_iter().take(3).map(|(_, n)| n.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submatrix_of_blocks_is_the_submatrix_of_values() {
        let format = WeightFormat::Q8_0;
        let (rows, columns) = (3, 96);
        // Each block: a scale of 1 as f16, then 32 signed bytes.
        let block = |first: u8| [vec![0, 0x3c], (first..first + 32).collect()].concat();
        let tensor = WeightTensor {
            name: "w".to_owned(),
            bytes: (0..9).flat_map(|i| block(i * 8)).collect(),
            format,
            shape: vec![rows, columns],
        };
        let whole = tensor.to_f32().expect("decodes");
        let part = tensor.submatrix(1..3, 32..96);
        let mut values = vec![0.0; 2 * 64];
        dequantize(format, &part, &mut values).expect("whole blocks");
        let expected: Vec<f32> = (1..3)
            .flat_map(|row| whole[row * 96 + 32..row * 96 + 96].to_vec())
            .collect();
        assert_eq!(values, expected);
        assert!(matches!(tensor.submatrix(0..2, 0..96), Cow::Borrowed(_)));
    }
}
