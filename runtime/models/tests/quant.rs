//! Dequantisation against values that the Python package `gguf` gave (tests/fixtures/quant).

mod support;

use halyard_models::ModelError;
use halyard_models::quant::{dequantize, format_name};
use halyard_platform_api::WeightFormat;
use serde_json::Value;

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

#[test]
fn dequantises_every_format_bit_for_bit_as_gguf_py_does() {
    let golden = std::fs::read(support::fixtures().join("quant/quant.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    for format in WeightFormat::ALL {
        let name = format_name(format);
        let bytes = hex(&golden[name]["bytes"]);
        let expected: Vec<u32> = hex(&golden[name]["values"])
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes(w.try_into().unwrap()))
            .collect();
        assert!(expected.len() >= 24, "{name}: golden is too short");
        let mut values = vec![f32::NAN; expected.len()];
        dequantize(format, &bytes, &mut values).unwrap();
        for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
            assert_eq!(
                value.to_bits(),
                *expected,
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
