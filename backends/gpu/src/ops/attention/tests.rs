//! Specs, layout sizes and dispatch, without a device.

use halyard_platform_api::DType;

use super::*;

pub(super) fn spec() -> Attention {
    Attention {
        num_heads: 32,
        num_kv_heads: 8,
        head_dim: 128,
        scale: 0.1,
        window: 0,
        softcap: 0.0,
        has_sinks: false,
        act: DType::BF16,
        kv: DType::BF16,
        block_size: 64,
        backend: 0,
        max_seqs: 512,
        max_tokens: 8192,
        max_query_len: 8192,
        max_kv_len: 16384,
    }
}

#[test]
fn a_block_holds_keys_and_values_and_no_more_where_sizes_divide() {
    let plan = plan(&spec()).unwrap();
    assert_eq!(plan.block_bytes, 2 * 8 * 128 * 64 * 2);
    assert!(plan.record_decode);
    assert_eq!(plan.record_mixed_tokens, 8192);
}

#[test]
fn eight_bit_floats_take_half_the_memory() {
    let narrow = Attention {
        kv: DType::F8E4M3,
        ..spec()
    };
    assert_eq!(
        2 * plan(&narrow).unwrap().block_bytes,
        plan(&spec()).unwrap().block_bytes
    );
}

#[test]
fn odd_sizes_round_units_up() {
    // 20 dims are 3 rows of 8; 24 tokens are 3 units of 8.
    assert_eq!(
        block_bytes(DType::BF16, 1, 20, 24),
        u64::from((3 * 3 + 3 * 3) * 128_u32)
    );
    // 8-bit: 2 rows of 16 dims, 2 of 16 tokens.
    assert_eq!(
        block_bytes(DType::F8E4M3, 2, 20, 24),
        2 * u64::from((2 * 3 + 2 * 3) * 128_u32)
    );
}

#[test]
fn all_reasons_are_listed() {
    let wrong = Attention {
        backend: 3,
        act: DType::I8,
        kv: DType::I32,
        head_dim: 1000,
        block_size: 12,
        num_heads: 7,
        softcap: -1.0,
        ..spec()
    };
    let message = reasons(&wrong).unwrap_err().message;
    for part in ["backend 3", "I8", "I32", "1000", "12", "7 query heads", "softcap -1"] {
        assert!(message.contains(part), "{part} is missing in: {message}");
    }
    assert_eq!(message.lines().count(), 7);
}

#[test]
fn matrix_units_take_sixteen_bit_activations_over_the_same_or_eight_bit_floats() {
    let eight_bit = Attention {
        kv: DType::F8E4M3,
        ..spec()
    };
    for taken in [spec(), eight_bit] {
        assert!(decode::Form::of(&taken).is_some(), "{taken:?}");
    }
    for other in [
        Attention {
            act: DType::F32,
            ..spec()
        },
        Attention {
            kv: DType::F16,
            ..spec()
        },
        Attention {
            act: DType::F32,
            kv: DType::F8E4M3,
            ..spec()
        },
        Attention { head_dim: 72, ..spec() },
        Attention {
            num_heads: 8 * 17,
            ..spec()
        },
        Attention {
            block_size: 24,
            ..spec()
        },
    ] {
        assert!(decode::Form::of(&other).is_none(), "{other:?}");
    }
}
