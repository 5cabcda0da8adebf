//! bitsandbytes' matrices: 4-bit codes of blocks of the flattened matrix, whose scales may be quantised themselves, and
//! signed bytes with a scale a row.

use serde_json::Value;

use super::finder::Finder;
use super::grouped::{Elements, Global, Grouped, Numbers, Scales, Zeros};
use super::packed::PackedCodes;

use crate::error::{ModelError, Result};
use crate::safetensors::SafetensorsTensor;

/// Longest description of a matrix that is read.
const MAX_STATE_BYTES: usize = 4096;

/// Two codes a byte, the first one high. `weight.quant_state.bitsandbytes__nf4` (or `__fp4`) is JSON that says the
/// blocks' size; `weight.absmax` has their scales as f32, or as indices of `weight.nested_quant_map` times
/// `weight.nested_absmax` (a block of `nested_blocksize` of them), plus `nested_offset`.
pub(super) fn four_bits<'w>(finder: &Finder<'w, '_>, weight: &SafetensorsTensor) -> Result<Grouped<'w>> {
    let (rows, columns, name) = (finder.rows, finder.columns, finder.name);
    let kinds = [("nf4", Elements::Nf4), ("fp4", Elements::Fp4)];
    let state_name = |kind: &str| format!("{name}.quant_state.bitsandbytes__{kind}");
    let found = kinds
        .iter()
        .find(|(kind, _)| finder.files.tensor(&state_name(kind)).is_some());
    let Some(&(kind, elements)) = found else {
        return Err(finder.missing(&state_name("nf4")));
    };
    let num_bytes = (rows * columns).div_ceil(2);
    let bytes = finder.of_shape(name, &weight.dtype, &[num_bytes, 1])?;
    let state_name = state_name(kind);
    let state = finder.files.tensor_bytes(finder.required(&state_name)?);
    let state: Option<Value> = (state.len() <= MAX_STATE_BYTES)
        .then(|| serde_json::from_slice(state).ok())
        .flatten();
    let Some(state) = state else {
        return Err(finder.unexpected(&state_name, "a description that is no JSON"));
    };
    let number = |key: &str| state[key].as_u64().and_then(|n| usize::try_from(n).ok());
    let bad = |field: &str, limit: String| ModelError::BadField {
        path: finder.files.path().to_path_buf(),
        field: format!("{state_name}.{field}"),
        value: state[field].to_string(),
        limit,
    };
    if state["shape"] != serde_json::json!([rows, columns]) {
        return Err(bad("shape", format!("[{rows}, {columns}]")));
    }
    let block = match number("blocksize") {
        Some(block @ 1..) => block,
        _ => return Err(bad("blocksize", "1 or more".to_owned())),
    };
    // Blocks may run over the ends of rows, or hold several rows.
    let group = if block >= columns { columns } else { block };
    if !(block.is_multiple_of(columns) || columns.is_multiple_of(block)) {
        let limit = format!("a size that divides rows of {columns} values, or that they divide");
        return Err(bad("blocksize", limit));
    }
    let map = format!("{name}.quant_map");
    let map = finder.scales(&map, &[16], 0, 1)?.numbers;
    let table = if elements == Elements::Nf4 {
        &halyard_platform_api::weight_format::NF4
    } else {
        &halyard_platform_api::weight_format::FP4
    };
    if let Some(at) = (0..16).find(|&at| map.at(at) != table[at]) {
        return Err(ModelError::BadField {
            path: finder.files.path().to_path_buf(),
            field: format!("{name}.quant_map[{at}]"),
            value: map.at(at).to_string(),
            limit: format!("{} of {kind}", table[at]),
        });
    }
    let num_blocks = (rows * columns).div_ceil(block);
    let absmax = format!("{name}.absmax");
    let scales = match finder.required(&absmax)?.dtype.as_str() {
        "U8" => {
            let nested = match number("nested_blocksize") {
                Some(nested @ 1..) => nested,
                _ => return Err(bad("nested_blocksize", "1 or more".to_owned())),
            };
            let Some(offset) = state["nested_offset"].as_f64() else {
                return Err(bad("nested_offset", "a number".to_owned()));
            };
            let codes = finder.of_shape(&absmax, "U8", &[num_blocks])?;
            let values = finder
                .scales(&format!("{name}.nested_quant_map"), &[256], 0, 1)?
                .numbers;
            let of_blocks = [num_blocks.div_ceil(nested)];
            let largest = finder
                .scales(&format!("{name}.nested_absmax"), &of_blocks, 0, 1)?
                .numbers;
            let made = codes
                .iter()
                .enumerate()
                .map(|(at, &code)| values.at(usize::from(code)) * largest.at(at / nested) + offset as f32);
            Numbers::Made(made.collect())
        }
        _ => finder.scales(&absmax, &[num_blocks], 0, 1)?.numbers,
    };
    Ok(Grouped {
        codes: PackedCodes::Nibbles {
            bytes,
            high_first: true,
        },
        elements,
        group,
        scales: Scales {
            numbers: scales,
            rows: (block / columns).max(1),
            row_stride: columns.div_ceil(block),
            group_stride: 1,
            period: usize::MAX,
            global: Global::None,
        },
        zeros: Zeros::All(0.0),
        group_of: None,
        order: None,
        row_order: None,
    })
}

/// Signed bytes; `SCB` has the largest magnitude of each row, which the code 127 stands for.
pub(super) fn eight_bits<'w>(finder: &Finder<'w, '_>, weight: &SafetensorsTensor, stem: &str) -> Result<Grouped<'w>> {
    let bytes = finder.of_shape(finder.name, &weight.dtype, &[finder.rows, finder.columns])?;
    let largest = finder.scales(&format!("{stem}SCB"), &[finder.rows], 1, 0)?;
    Ok(Grouped {
        codes: PackedCodes::Bytes(bytes),
        elements: Elements::SignedByte,
        group: finder.columns,
        scales: Scales {
            global: Global::By(127.0),
            ..largest
        },
        zeros: Zeros::All(0.0),
        group_of: None,
        order: None,
        row_order: None,
    })
}
