//! Scales of keys and values in a checkpoint, for a cache of 8-bit floats: `k_scale` and `v_scale`, one number each a
//! layer.
//!
//! Such a cache holds key / k_scale and value / v_scale. Both come out of the weights: what makes keys is divided by
//! the scale and what makes queries multiplied by it, so that their products stay; likewise values and the output
//! projection. No op knows of it (docs/decisions/0032-kv-scales-in-weights.md).

use super::role::{Linear, Norm, Part, Role};
use super::scales::numbers;
use crate::config::{KvScale, ModelDescription};
use crate::error::{ModelError, Result};
use crate::safetensors::SafetensorsFiles;

/// What the scales of a layer's keys are called, behind the layer's prefix: by compressed-tensors; by vLLM itself; by
/// ModelOpt and AutoFP8; by Quark; and one for keys and values, of older files.
const KEYS: [&str; 5] = [
    "self_attn.k_scale",
    "self_attn.attn.k_scale",
    "self_attn.k_proj.k_scale",
    "self_attn.k_proj.output_scale",
    "self_attn.kv_scale",
];
/// The same of values.
const VALUES: [&str; 5] = [
    "self_attn.v_scale",
    "self_attn.attn.v_scale",
    "self_attn.v_proj.v_scale",
    "self_attn.v_proj.output_scale",
    "self_attn.kv_scale",
];

/// The scales of every layer; empty where the files have none. A layer without them has 1.
///
/// # Errors
/// [`ModelError::Unsupported`] for more than one number a layer, or another type; [`ModelError::BadField`] for one that
/// is not finite and positive.
pub(super) fn read(files: &SafetensorsFiles, prefix: &str, num_layers: usize) -> Result<Vec<KvScale>> {
    let one = |layer: usize, names: &[&str]| -> Result<Option<f32>> {
        let mut names = names.iter().map(|name| format!("{prefix}layers.{layer}.{name}"));
        let Some((tensor, name)) = names.find_map(|name| Some((files.tensor(&name)?, name))) else {
            return Ok(None);
        };
        let count: usize = tensor.shape.iter().product();
        let unsupported = |value: String| ModelError::Unsupported {
            path: files.path().to_path_buf(),
            field: name.clone(),
            value,
            remedy: "scales of keys and values are one number a layer, in F32, F16 or BF16; hold the cache in 16 bits \
                (--kv-cache-dtype bf16), which \
                     needs none"
                .to_owned(),
        };
        if count != 1 {
            return Err(unsupported(format!("scales of shape {:?}", tensor.shape)));
        }
        let values = numbers(tensor.format, files.tensor_bytes(tensor));
        match values.as_deref() {
            Some(&[value]) if value.is_finite() && value > 0.0 => Ok(Some(value)),
            Some(values) => Err(ModelError::BadField {
                path: files.path().to_path_buf(),
                field: name.clone(),
                value: format!("{values:?}"),
                limit: "a finite number above 0".to_owned(),
            }),
            None => Err(unsupported(format!("scales of type {}", tensor.dtype))),
        }
    };
    let mut found = false;
    let mut layers = Vec::with_capacity(num_layers);
    for layer in 0..num_layers {
        let (key, value) = (one(layer, &KEYS)?, one(layer, &VALUES)?);
        found |= key.is_some() || value.is_some();
        layers.push(KvScale {
            key: key.unwrap_or(1.0),
            value: value.unwrap_or(1.0),
        });
    }
    Ok(if found { layers } else { Vec::new() })
}

/// What a weight is multiplied by for the scales of its layer: 1 for all but a few.
pub(crate) fn factor(model: &ModelDescription, role: Role) -> f32 {
    let Role::Layer(layer, part) = role else {
        return 1.0;
    };
    let Some(scale) = model.kv_scales.get(layer) else {
        return 1.0;
    };
    // A norm of queries and keys undoes what comes before it.
    let normed = model.layers[layer].mixer.qk_norm.is_some();
    match part {
        Part::Norm(Norm::Query | Norm::QueryHead(_)) if normed => scale.key,
        Part::Norm(Norm::Key | Norm::KeyHead(_)) if normed => 1.0 / scale.key,
        Part::Weight(Linear::Q) | Part::Bias(Linear::Q) if !normed => scale.key,
        Part::Weight(Linear::K) | Part::Bias(Linear::K) if !normed => 1.0 / scale.key,
        Part::Weight(Linear::V) | Part::Bias(Linear::V) => 1.0 / scale.value,
        Part::Weight(Linear::O) => scale.value,
        _ => 1.0,
    }
}
