//! Specs, layout sizes and dispatch, without a device.

use halyard_platform_api::DType;
use halyard_platform_api::ops::LatentAttention;

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
fn codes_take_a_byte_or_a_half_and_a_word_for_each_head_of_a_token() {
    for (kv, bytes) in [(DType::I8, 68), (DType::U4, 36)] {
        for block_size in [8, 16, 64, 128] {
            let coded = Attention {
                kv,
                head_dim: 64,
                block_size,
                ..spec()
            };
            let tokens = u64::from(block_size);
            assert_eq!(plan(&coded).unwrap().block_bytes, 2 * 8 * tokens * bytes, "{kv:?}");
        }
    }
    // Rows of 16 bytes: 80 codes of 8 bits are 5 of them, of 4 bits 3.
    assert_eq!(block_bytes(DType::I8, 1, 80, 8), 2 * 8 * 84);
    assert_eq!(block_bytes(DType::U4, 1, 80, 8), 2 * 8 * 52);
}

#[test]
fn latents_are_not_held_as_codes() {
    for kv in [DType::I8, DType::U4] {
        let latent = LatentAttention {
            num_heads: 16,
            latent_dim: 512,
            rope_dim: 64,
            scale: 0.1,
            act: DType::BF16,
            kv,
            block_size: 64,
            backend: 0,
            max_seqs: 8,
            max_tokens: 64,
            max_query_len: 64,
            max_kv_len: 1024,
        };
        let message = latent_reasons(&latent).unwrap_err().message;
        assert!(
            message.contains("latents are held in F32, F16, BF16 or F8E4M3"),
            "{message}"
        );
        assert!(
            latent_reasons(&LatentAttention {
                kv: DType::BF16,
                ..latent
            })
            .is_ok()
        );
    }
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
fn matrix_units_take_sixteen_bit_activations_over_the_same_eight_bit_floats_or_codes() {
    let eight_bit = Attention {
        kv: DType::F8E4M3,
        ..spec()
    };
    let coded = [DType::I8, DType::U4].map(|kv| Attention { kv, ..spec() });
    for taken in [spec(), eight_bit].into_iter().chain(coded) {
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
        // A block's words lie behind all its codes, and a tile has half of it.
        Attention {
            kv: DType::I8,
            block_size: 128,
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
