//! `quantization_config` of Hugging Face checkpoints: which ones the engine computes with. Tensors themselves state the
//! type of a weight, and a tensor next to it holds its scale; only what tensors do not show is read here.

use serde_json::Value;

use super::fields::JsonFields;
use crate::error::Result;

const OTHERWISE: &str = "use a checkpoint whose weights are FP8 (E4M3) with one scale a tensor or output channel, the \
    unquantised model \
                         (with --quantization fp8, where it should become smaller), or a GGUF file";

/// Whether weights are E4M3 with a scale a tensor or an output channel; false where nothing is quantised, and for
/// MXFP4, which tensors show. Activations are never rounded to 8 bits, whatever the file says of them: that is more
/// exact than the checkpoint asks for.
///
/// # Errors
/// [`crate::ModelError::Unsupported`] or [`crate::ModelError::BadField`] names what is not supported, and what would
/// be.
pub(crate) fn is_fp8(config: &JsonFields) -> Result<bool> {
    let Some(quantization) = config.object("quantization_config")? else {
        return Ok(false);
    };
    match quantization.string("quant_method")? {
        Some("fp8") => check_fp8(&quantization)?,
        Some("mxfp4") => return Ok(false),
        Some("compressed-tensors") => check_compressed(&quantization)?,
        method => {
            return Err(quantization.unsupported("quant_method", method.unwrap_or("an unnamed method"), OTHERWISE));
        }
    }
    Ok(true)
}

/// vLLM's and AutoFP8's own layout, and that of models released in FP8.
fn check_fp8(quantization: &JsonFields) -> Result<()> {
    if let Some(block) = quantization.value("weight_block_size") {
        return Err(quantization.unsupported("weight_block_size", format!("scales of {block} blocks"), OTHERWISE));
    }
    only(quantization, "fmt", &["e4m3", "float8_e4m3fn"])
}

/// The layout of the compressed-tensors library.
fn check_compressed(quantization: &JsonFields) -> Result<()> {
    only(quantization, "format", &["float-quantized", "naive-quantized"])?;
    if let Some(sparsity) = quantization.object("sparsity_config")? {
        only(&sparsity, "format", &["dense"])?;
    }
    if let Some(transform) = quantization.value("transform_config").filter(|value| !is_empty(value)) {
        return Err(quantization.unsupported("transform_config", transform.to_string(), OTHERWISE));
    }
    let Some(groups) = quantization.object("config_groups")? else {
        return Err(quantization.missing("config_groups"));
    };
    for name in groups.keys() {
        let Some(group) = groups.object(name)? else { continue };
        // A group's own format wins over the checkpoint's.
        only(&group, "format", &["float-quantized", "naive-quantized"])?;
        let Some(weights) = group.object("weights")? else {
            continue;
        };
        if weights.unsigned("num_bits")? != Some(8) {
            let bits = weights
                .value("num_bits")
                .map_or("no width".to_owned(), Value::to_string);
            return Err(weights.unsupported("num_bits", bits, OTHERWISE));
        }
        only(&weights, "type", &["float"])?;
        only(&weights, "strategy", &["tensor", "channel"])?;
    }
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Refuses other values of a field; it may be absent.
fn only(fields: &JsonFields, key: &str, supported: &[&str]) -> Result<()> {
    match fields.string(key)? {
        Some(value) if !supported.contains(&value) => Err(fields.unsupported(key, format!("`{value}`"), OTHERWISE)),
        _ => Ok(()),
    }
}
