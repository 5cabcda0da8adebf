//! Dequantisation against values that the Python packages `gguf`, `bitsandbytes` and `torch` gave
//! (tests/fixtures/quant); the same values in canonical forms.

mod support;

use halyard_models::ModelError;
use halyard_models::quant::{dequantize, format_name};
use halyard_platform_api::WeightFormat;
use halyard_platform_api::weight_format::convert_row;
use serde_json::Value;

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

/// Rows of square blocks are rows of groups.
fn golden_name(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::F8B128 => format_name(WeightFormat::F8G128),
        format => format_name(format),
    }
}

#[test]
fn dequantises_every_format_bit_for_bit_as_its_own_library_does() {
    let golden = std::fs::read(support::fixtures().join("quant/quant.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    for format in WeightFormat::ALL {
        let name = golden_name(format);
        let bytes = hex(&golden[name]["bytes"]);
        let expected: Vec<u32> = hex(&golden[name]["values"])
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes(w.try_into().unwrap()))
            .collect();
        assert!(expected.len() >= 24, "{name}: golden is too short");
        let mut values = vec![f32::NAN; expected.len()];
        dequantize(format, &bytes, &mut values).unwrap();
        for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
            // gguf-py has one zero where E2M1 has two.
            let is_zero = format == WeightFormat::Mxfp4 && *value == 0.0 && f32::from_bits(*expected) == 0.0;
            assert!(
                value.to_bits() == *expected || is_zero,
                "{name} value {i}: {value} instead of {}",
                f32::from_bits(*expected)
            );
        }
    }
}

#[test]
fn refuses_bytes_that_are_not_whole_blocks_of_the_values_asked_for() {
    for (format, num_bytes, num_values) in [
        (WeightFormat::Q4_0, 17, 32),
        (WeightFormat::Q4_0, 36, 32),
        (WeightFormat::Q4K, 144, 255),
        (WeightFormat::F32, 4, 0),
    ] {
        let error = dequantize(format, &vec![0; num_bytes], &mut vec![0.0; num_values]).unwrap_err();
        let ModelError::WrongByteCount {
            found_bytes,
            num_elements,
            ..
        } = error
        else {
            panic!("another error: {error}");
        };
        assert_eq!((found_bytes, num_elements), (num_bytes, num_values));
    }
}

/// Every format in its canonical form, and every canonical form in narrower groups: the same bits, but where an offset
/// of codes becomes a minimum, which adds a rounding for scales that have more than 16 bits.
#[test]
fn canonical_forms_have_the_values_of_the_format() {
    let golden = std::fs::read(support::fixtures().join("quant/quant.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let mut converted = Vec::new();
    for from in WeightFormat::ALL {
        let bytes = hex(&golden[golden_name(from)]["bytes"]);
        let tail = from.row_tail_bytes();
        let num_values = (bytes.len() - tail) / from.block_bytes() * from.block_values();
        let mut values = vec![0.0; num_values];
        dequantize(from, &bytes, &mut values).unwrap();
        for columns in [256, 128, 64, 32, 16] {
            let Some(to) = from
                .narrowed(columns)
                .filter(|to| num_values.is_multiple_of(to.block_values()))
            else {
                continue;
            };
            let mut row = Vec::new();
            convert_row(from, to, &bytes, &mut row).unwrap();
            let mut again = vec![0.0; num_values];
            dequantize(to, &row, &mut again).unwrap();
            assert_eq!(values, again, "{from:?} as {to:?}");
            converted.push((from, to));
        }
        if let Some(canonical) = from.layout().canonical {
            assert_eq!(from.narrowed(256), Some(canonical));
        }
    }
    for pair in [
        (WeightFormat::Q4_0, WeightFormat::U4G16),
        (WeightFormat::Q4K, WeightFormat::U4G32),
        (WeightFormat::Q6K, WeightFormat::I8G16),
        (WeightFormat::U4G128, WeightFormat::U4G32),
        (WeightFormat::F8G128, WeightFormat::F8G64),
        (WeightFormat::Nvfp4, WeightFormat::E2M1G16),
    ] {
        assert!(converted.contains(&pair), "{pair:?}");
    }
    // A row with one scale: every code that is a number, in groups of each size that divides it.
    let mut bytes: Vec<u8> = (0..=255)
        .map(|code| if code & 0x7f == 0x7f { 0 } else { code })
        .collect();
    bytes.extend(0.75f32.to_le_bytes());
    let mut values = vec![0.0; 256];
    dequantize(WeightFormat::F8E4M3, &bytes, &mut values).unwrap();
    for (columns, to) in [
        (256, WeightFormat::F8G128),
        (192, WeightFormat::F8G64),
        (96, WeightFormat::F8G32),
    ] {
        assert_eq!(WeightFormat::F8E4M3.narrowed(columns), Some(to));
        let mut row = Vec::new();
        convert_row(WeightFormat::F8E4M3, to, &bytes, &mut row).unwrap();
        let mut again = vec![0.0; 256];
        dequantize(to, &row, &mut again).unwrap();
        assert_eq!(values, again, "F8E4M3 as {to:?}");
    }
    assert_eq!(WeightFormat::F8E4M3.narrowed(37), None);
    let error = convert_row(WeightFormat::U4G32, WeightFormat::U4G128, &[0; 96], &mut Vec::new());
    assert!(error.unwrap_err().message.contains("U4_G32"));
}
