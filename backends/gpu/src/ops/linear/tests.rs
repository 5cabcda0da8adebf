//! What construction refuses, how weights lie and how large they are.

use halyard_platform_api::ops::Epilogue;

use super::*;

fn op(weight: WeightFormat, act: DType) -> ops::Linear {
    ops::Linear {
        in_features: 512,
        out_features: 33,
        weight,
        act,
        out: act,
        epilogue: Epilogue::None,
        max_tokens: 8,
        allow_quantized_act: false,
    }
}

#[test]
fn half_activations_hold_weights_of_their_own_type() {
    assert_eq!(
        WeightLayout::of(&op(WeightFormat::F32, DType::BF16)),
        WeightLayout::Plain(DType::BF16)
    );
    assert_eq!(
        WeightLayout::of(&op(WeightFormat::BF16, DType::F32)),
        WeightLayout::Plain(DType::BF16)
    );
    let bytes = |weight, act| Linear::new(&op(weight, act)).unwrap().packed_weight_bytes(0).unwrap();
    assert_eq!(bytes(WeightFormat::F32, DType::BF16), 33 * 512 * 2);
    assert_eq!(bytes(WeightFormat::F32, DType::F32), 33 * 512 * 4);
    // 8-bit floats stay what they are, whatever they meet.
    assert_eq!(
        WeightLayout::of(&op(WeightFormat::F8E4M3, DType::BF16)),
        WeightLayout::Scaled
    );
    assert_eq!(bytes(WeightFormat::F8E4M3, DType::F32), 33 * 512 + 33 * 4);
    assert_eq!(bytes(WeightFormat::F8E4M3, DType::BF16), 33 * 512 + 33 * 4);
}

#[test]
fn planes_and_records_are_little_larger_than_the_file() {
    for format in WeightFormat::ALL
        .into_iter()
        .filter(|&f| f.block_values() > 1 && reads(f))
    {
        let linear = Linear::new(&ops::Linear {
            in_features: 4096,
            out_features: 1024,
            ..op(format, DType::BF16)
        });
        let packed = linear.unwrap().packed_weight_bytes(0).unwrap();
        let file = (1024 * format.row_bytes(4096).unwrap()) as u64;
        assert!(
            packed >= file && packed * 100 <= file * 106,
            "{format:?}: {packed} for {file}"
        );
    }
}

#[test]
fn a_refusal_names_value_and_remedy() {
    let error = |op: ops::Linear| Linear::new(&op).err().unwrap().message;
    let int8 = error(op(WeightFormat::BF16, DType::I8));
    assert!(int8.contains("I8") && int8.contains("BF16"), "{int8}");
    let odd = error(ops::Linear {
        in_features: 500,
        ..op(WeightFormat::Q4K, DType::BF16)
    });
    assert!(odd.contains("500") && odd.contains("256"), "{odd}");
    let fine = error(ops::Linear {
        in_features: 48,
        ..op(WeightFormat::U4G16, DType::BF16)
    });
    assert!(fine.contains("48 inputs of U4_G16") && fine.contains("BF16"), "{fine}");
    let foreign = error(op(WeightFormat::Q2K, DType::BF16));
    assert!(
        foreign.contains("Q2_K are not read here") && foreign.contains("NF4"),
        "{foreign}"
    );
    let empty = error(ops::Linear {
        out_features: 0,
        ..op(WeightFormat::BF16, DType::BF16)
    });
    assert!(empty.contains("at least 1"), "{empty}");
}

#[test]
fn rows_are_aligned_by_address_and_distance() {
    let view = View {
        ptr: 4096,
        shape: [3, 320, 1, 1],
        strides: [320, 1, 1, 1],
        dtype: DType::BF16,
        rank: 2,
    };
    assert!(rows_aligned(&view, 16));
    assert!(!rows_aligned(&View { ptr: 4104, ..view }, 16));
    let gapped = View {
        strides: [323, 1, 1, 1],
        ..view
    };
    assert!(!rows_aligned(&gapped, 16));
    // A single row has no distance.
    let single = View {
        shape: [1, 320, 1, 1],
        ..gapped
    };
    assert!(rows_aligned(&single, 16));
}
