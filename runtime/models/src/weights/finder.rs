//! The tensors beside a matrix in safetensors files, checked for type and shape.

use super::grouped::{Global, Numbers, Scales};
use crate::config::Quantization;
use crate::error::{ModelError, Result, near_names};
use crate::safetensors::{SafetensorsFiles, SafetensorsTensor};

/// The files of a quantised matrix `name` of `[rows, columns]`.
pub(super) struct Finder<'w, 'n> {
    pub files: &'w SafetensorsFiles,
    pub quantization: &'n Quantization,
    pub name: &'n str,
    pub rows: usize,
    pub columns: usize,
}

impl<'w> Finder<'w, '_> {
    pub(super) fn scales(
        &self,
        name: &str,
        shape: &[usize],
        row_stride: usize,
        group_stride: usize,
    ) -> Result<Scales<'w>> {
        let tensor = self.required(name)?;
        if tensor.shape != shape {
            return Err(self.wrong_shape(name, shape, &tensor.shape));
        }
        let bytes = self.files.tensor_bytes(tensor);
        let numbers = match tensor.dtype.as_str() {
            "F32" => Numbers::F32(bytes),
            "F16" => Numbers::F16(bytes),
            "BF16" => Numbers::BF16(bytes),
            other => return Err(self.unexpected(name, &format!("scales of type {other}"))),
        };
        Ok(Scales {
            numbers,
            rows: 1,
            row_stride,
            group_stride,
            period: usize::MAX,
            global: Global::None,
        })
    }

    pub(super) fn required(&self, name: &str) -> Result<&'w SafetensorsTensor> {
        self.files.tensor(name).ok_or_else(|| self.missing(name))
    }

    /// The bytes of a tensor of this type and shape.
    pub(super) fn of_shape(&self, name: &str, dtype: &str, shape: &[usize]) -> Result<&'w [u8]> {
        let tensor = self.required(name)?;
        if tensor.dtype != dtype {
            return Err(self.unexpected(name, &format!("type {}, not {dtype}", tensor.dtype)));
        }
        if tensor.shape != shape {
            return Err(self.wrong_shape(name, shape, &tensor.shape));
        }
        Ok(self.files.tensor_bytes(tensor))
    }

    pub(super) fn missing(&self, name: &str) -> ModelError {
        ModelError::MissingTensor {
            path: self.files.path().to_path_buf(),
            tensor: name.to_owned(),
            near: near_names(name, self.files.names()),
        }
    }

    pub(super) fn wrong_shape(&self, name: &str, expected: &[usize], found: &[usize]) -> ModelError {
        ModelError::WrongShape {
            path: self.files.path().to_path_buf(),
            tensor: name.to_owned(),
            expected: expected.to_vec(),
            found: found.to_vec(),
        }
    }

    pub(super) fn unexpected(&self, name: &str, value: &str) -> ModelError {
        ModelError::Unsupported {
            path: self.files.path().to_path_buf(),
            field: name.to_owned(),
            value: value.to_owned(),
            remedy: format!(
                "that is not how {:?} packs a matrix of {} x {}: use another conversion of the model, or the \
                 unquantised one",
                self.quantization.method, self.rows, self.columns
            ),
        }
    }
}
