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

/// What joins the gate and up of experts, as their kernels' definitions (`gated` in activate.cuh).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gate {
    /// Its number.
    pub(super) code: &'static str,
    /// Numbers of the bounded silu.
    pub(super) numbers: Vec<(&'static str, String)>,
}

/// Width, type and gate of a gating op that experts' kernels can do themselves.
pub(super) fn expert_gate_of(spec: &OpSpec) -> Option<(u32, DType, Gate)> {
    if let OpSpec::SiluMul(op) = spec
        && !op.is_plain()
        && op.limit > 0.0
    {
        let alpha = if op.alpha == 0.0 { 1.0 } else { op.alpha };
        let of = [
            ("GATE_LIMIT", op.limit),
            ("GATE_ALPHA", alpha),
            ("GATE_OFFSET", op.up_offset),
        ];
        // With an exponent a whole number is a literal of C++, too.
        let numbers = of.map(|(name, value)| (name, format!("{value:e}f")));
        let gate = Gate {
            code: "4",
            numbers: numbers.into(),
        };
        return Some((op.width, op.dtype, gate));
    }
    let (width, dtype, code) = gate_of(spec)?;
    let gate = Gate {
        code,
        numbers: Vec::new(),
    };
    Some((width, dtype, gate))
}

/// Definitions as the compiler takes them.
pub(super) fn borrowed<'a>(defines: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    defines.iter().map(|(name, value)| (*name, value.as_str())).collect()
}
