//! What the kernels call types and activations in their definitions.

use halyard_platform_api::ops::{Epilogue, GeluKind};
use halyard_platform_api::{DType, OpSpec};

/// A float type.
pub(crate) fn float_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

/// A type that a KV cache can hold.
pub(super) fn kv_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F8E4M3 => Some("e4m3"),
        DType::I8 => Some("code8"),
        DType::U4 => Some("code4"),
        other => float_name(other),
    }
}

/// Bits of a code of a KV cache that holds codes with a scale for each token and head; `None` for numbers.
pub(crate) fn kv_code_bits(dtype: DType) -> Option<u32> {
    match dtype {
        DType::I8 => Some(8),
        DType::U4 => Some(4),
        _ => None,
    }
}

/// A float type of an op that was checked.
pub(super) fn type_name(dtype: DType) -> &'static str {
    float_name(dtype).unwrap_or("f32")
}

/// The number of an activation.
pub(super) fn epilogue_code(epilogue: Epilogue) -> &'static str {
    match epilogue {
        Epilogue::None => "0",
        Epilogue::Silu => "1",
        Epilogue::GeluTanh => "2",
        Epilogue::GeluErf => "3",
    }
}

/// The number of a gate's gelu.
pub(super) fn gelu_code(kind: GeluKind) -> &'static str {
    match kind {
        GeluKind::Tanh => "2",
        GeluKind::Erf => "3",
    }
}

/// Width, type and the activation's number of a gating op that a product's kernel can do itself.
pub(super) fn gate_of(spec: &OpSpec) -> Option<(u32, DType, &'static str)> {
    match spec {
        OpSpec::SiluMul(op) if op.is_plain() => Some((op.width, op.dtype, "1")),
        OpSpec::GeluMul(op) => Some((op.width, op.dtype, gelu_code(op.kind))),
        _ => None,
    }
}

/// Definitions as the compiler takes them.
pub(super) fn borrowed<'a>(defines: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    defines.iter().map(|(name, value)| (*name, value.as_str())).collect()
}
