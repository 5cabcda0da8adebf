//! The scales of a safetensors matrix of 8-bit floats: a separate tensor of one number, or of one number a row.

use half::{bf16, f16};
use halyard_platform_api::WeightFormat;

use crate::error::{ModelError, Result, near_names};
use crate::safetensors::SafetensorsFiles;

/// What the scale of `x.weight` is called: `x.` and one of these. In spite of its name the second one, too, is what
/// codes are multiplied by. The third is Mistral's own.
const NAMES: [&str; 3] = ["weight_scale", "weight_scale_inv", "qscale_weight"];

/// The scales of the matrix `name` with `num_rows` rows: one, or one a row.
///
/// # Errors
/// [`ModelError::MissingTensor`]; [`ModelError::Unsupported`] for another number of scales or another type;
/// [`ModelError::BadField`] for a scale that is not finite.
pub(super) fn read(files: &SafetensorsFiles, name: &str, num_rows: usize) -> Result<Vec<f32>> {
    let path = || files.path().to_path_buf();
    let stem = name.strip_suffix("weight").unwrap_or(name);
    let found = NAMES.iter().find_map(|end| {
        let scale = format!("{stem}{end}");
        files.tensor(&scale).map(|tensor| (tensor, scale))
    });
    let Some((tensor, scale)) = found else {
        return Err(ModelError::MissingTensor {
            path: path(),
            tensor: format!("{stem}{}", NAMES[0]),
            near: near_names(&format!("{stem}{}", NAMES[0]), files.names()),
        });
    };
    let unsupported = |value: String| ModelError::Unsupported {
        path: path(),
        field: scale.clone(),
        value,
        remedy: format!(
            "`{name}` needs 1 scale or {num_rows}, one a row, in F32, F16 or BF16: use a checkpoint with FP8 scales a \
             tensor or channel"
        ),
    };
    let count: usize = tensor.shape.iter().product();
    let by_row = tensor.shape == [num_rows] || tensor.shape == [num_rows, 1];
    if count != 1 && !by_row {
        return Err(unsupported(format!("scales of shape {:?}", tensor.shape)));
    }
    let bytes = files.tensor_bytes(tensor);
    let Some(values) = numbers(tensor.format, bytes) else {
        return Err(unsupported(format!("scales of type {}", tensor.dtype)));
    };
    if let Some(bad) = values.iter().position(|value| !value.is_finite()) {
        return Err(ModelError::BadField {
            path: path(),
            field: format!("{scale}[{bad}]"),
            value: values[bad].to_string(),
            limit: "a finite number".to_owned(),
        });
    }
    Ok(values)
}

/// Numbers of a plain format; `None` for others.
pub(super) fn numbers(format: Option<WeightFormat>, bytes: &[u8]) -> Option<Vec<f32>> {
    Some(match format? {
        WeightFormat::F32 => four(bytes).map(f32::from_le_bytes).collect(),
        WeightFormat::F16 => two(bytes).map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        WeightFormat::BF16 => two(bytes).map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => return None,
    })
}

fn four(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]])
}

fn two(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> {
    bytes.chunks_exact(2).map(|b| [b[0], b[1]])
}
