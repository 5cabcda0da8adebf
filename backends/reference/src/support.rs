//! The conditions for preparing a spec. Every refusal lists all its reasons.

use halyard_platform_api::ops::{KvWrite, LatentWrite, QuantizeAct, QuantizeScheme};
use halyard_platform_api::{DType, Error, OpSpec, Result, WeightFormat};

use crate::attention_registry;
use crate::element::{FLOATS, KV_TYPES, LATENT_TYPES};

/// Reasons against a spec.
#[derive(Default)]
pub(crate) struct Reasons(Vec<String>);

impl Reasons {
    /// Notes the reason unless `holds`.
    pub(crate) fn require(&mut self, holds: bool, reason: impl FnOnce() -> String) {
        if !holds {
            self.0.push(reason());
        }
    }

    /// The verdict.
    ///
    /// # Errors
    /// `Unsupported` with all reasons, one a line.
    pub(crate) fn into_result(self, op: &str) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(format!("{op}: {}", self.0.join("\n"))))
    }
}

/// Notes a type outside `allowed`.
pub(crate) fn require_in(reasons: &mut Reasons, field: &str, dtype: DType, allowed: &[DType]) {
    reasons.require(allowed.contains(&dtype), || {
        format!("{field} {dtype:?} is not one of {allowed:?}")
    });
}

/// Whether `spec` runs here.
///
/// # Errors
/// `Unsupported` with all reasons; `NotFound` for an attention backend that does not exist.
pub(crate) fn check(spec: &OpSpec) -> Result<()> {
    let mut r = Reasons::default();
    let mut float = |field: &str, dtype: DType| require_in(&mut r, field, dtype, &FLOATS);
    match spec {
        OpSpec::Embedding(op) => {
            float("out", op.out);
            require_row(&mut r, op.weight, op.width);
        }
        OpSpec::Linear(op) => {
            float("act", op.act);
            float("out", op.out);
            require_row(&mut r, op.weight, op.in_features);
        }
        OpSpec::LoraShrink(op) => {
            float("act", op.act);
            float("weight", op.weight);
        }
        OpSpec::LoraExpand(op) => {
            float("weight", op.weight);
            float("out", op.out);
            let parts = op.check_parts();
            r.require(parts.is_ok(), || parts.err().map_or_else(String::new, |e| e.message));
        }
        OpSpec::RmsNorm(op) => float("dtype", op.dtype),
        OpSpec::LayerNorm(op) => float("dtype", op.dtype),
        OpSpec::Rope(op) => {
            float("dtype", op.dtype);
            r.require(op.rotary_dim.is_multiple_of(2) && op.rotary_dim <= op.head_dim, || {
                format!(
                    "rotary_dim {} is not even or above head_dim {}",
                    op.rotary_dim, op.head_dim
                )
            });
        }
        OpSpec::KvWrite(op) => return check_kv_write(op),
        OpSpec::Attention(op) => return attention_registry::check(op),
        OpSpec::HeadLinear(op) => {
            float("dtype", op.dtype);
            require_row(&mut r, op.weight, op.in_features);
        }
        OpSpec::LatentWrite(op) => return check_latent_write(op),
        OpSpec::LatentAttention(op) => return attention_registry::check_latent(op),
        OpSpec::SiluMul(op) => float("dtype", op.dtype),
        OpSpec::GeluMul(op) => float("dtype", op.dtype),
        OpSpec::Gelu(op) => float("dtype", op.dtype),
        OpSpec::ReluSquared(op) => float("dtype", op.dtype),
        OpSpec::Add(op) => float("dtype", op.dtype),
        OpSpec::Scale(op) => float("dtype", op.dtype),
        OpSpec::Softcap(op) => {
            float("dtype", op.dtype);
            r.require(op.cap > 0.0, || format!("cap {} is not above 0", op.cap));
        }
        OpSpec::QuantizeAct(op) => check_quantize(op, &mut r),
        OpSpec::MoeRoute(op) => {
            let fits = op.check();
            r.require(fits.is_ok(), || fits.err().map_or_else(String::new, |e| e.message));
        }
        OpSpec::MoeLinear(op) => {
            float("dtype", op.dtype);
            let fits = op.check();
            r.require(fits.is_ok(), || fits.err().map_or_else(String::new, |e| e.message));
            require_row(&mut r, op.weight, op.in_features);
        }
        OpSpec::MoeCombine(op) => float("dtype", op.dtype),
        OpSpec::Argmax(op) => r.require(op.vocab > 0, || "vocab is 0".to_string()),
        OpSpec::Sample(op) => r.require(op.vocab > 0, || "vocab is 0".to_string()),
        OpSpec::TopLogprobs(op) => r.require(op.vocab > 0 && op.k <= op.vocab, || {
            format!("k {} is above the vocabulary {}", op.k, op.vocab)
        }),
        OpSpec::Pool(op) => float("dtype", op.dtype),
        OpSpec::FillRandom(op) => {
            float("dtype", op.dtype);
            r.require(op.first.is_multiple_of(4), || {
                format!("first {} is not a multiple of 4", op.first)
            });
        }
        OpSpec::SlotMapping(op) => r.require(op.block_size > 0, || "block_size is 0".to_string()),
        OpSpec::GatherRows(_)
        | OpSpec::ScatterRows(_)
        | OpSpec::PrepareInputs(_)
        | OpSpec::UpdateRows(_)
        | OpSpec::LogitsProcess(_)
        | OpSpec::Copy(_) => {}
        OpSpec::Collective(_) => r.require(false, || "it runs by itself, in no region".to_string()),
        OpSpec::Cast(_) | OpSpec::CopyBlocks(_) | OpSpec::Fill(_) | OpSpec::Vendor(_) | OpSpec::Unknown(_) => {
            r.require(false, || "this platform has no such op".to_string());
        }
    }
    r.into_result(spec.name())
}

fn require_row(reasons: &mut Reasons, format: WeightFormat, width: u32) {
    reasons.require(format.row_bytes(width as usize).is_some(), || {
        format!(
            "a row of {width} values is not a whole number of {format:?} blocks of {}",
            format.block_values()
        )
    });
}

fn check_latent_write(op: &LatentWrite) -> Result<()> {
    attention_registry::check_backend(op.backend)?;
    let mut r = Reasons::default();
    require_in(&mut r, "act", op.act, &FLOATS);
    require_in(&mut r, "kv", op.kv, &LATENT_TYPES);
    r.require(op.latent_dim > 0 && op.rope_dim > 0, || {
        format!("latent_dim {} or rope_dim {} is 0", op.latent_dim, op.rope_dim)
    });
    r.require(op.block_size > 0, || "block_size is 0".to_string());
    r.into_result("latent_write")
}

fn check_kv_write(op: &KvWrite) -> Result<()> {
    attention_registry::check_backend(op.backend)?;
    let mut r = Reasons::default();
    require_in(&mut r, "act", op.act, &FLOATS);
    require_in(&mut r, "kv", op.kv, &KV_TYPES);
    r.require(op.block_size > 0, || "block_size is 0".to_string());
    r.into_result("kv_write")
}

fn check_quantize(op: &QuantizeAct, r: &mut Reasons) {
    require_in(r, "dtype", op.dtype, &FLOATS);
    r.require(
        op.scheme != QuantizeScheme::Int8Block32 || op.width.is_multiple_of(32),
        || format!("width {} is not a multiple of the block, 32", op.width),
    );
}
