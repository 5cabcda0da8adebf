//! The ops: a descriptor becomes a kernel, or a reason why not.

mod acts;
mod attention;
mod coded;
mod data;
mod embedding;
mod expert_groups;
mod forms;
mod latent;
mod linear;
mod lora;
mod moe;
mod norm;
mod pointwise;
mod rope;
mod sampling;
mod step;

use std::sync::Arc;

use halyard_kernels_cpu as kernels;
use halyard_platform_api::{DType, Error, OpSpec, Result};

use crate::kernel::Kernel;

pub(crate) use attention::{kv_layout, reasons as attention_reasons};
pub(crate) use latent::{latent_layout, reasons as latent_reasons};

/// The kernel of a descriptor, for a device whose kernels are of `isa`.
///
/// # Errors
/// `Unsupported` with the reason.
pub(crate) fn build(spec: &OpSpec, isa: kernels::Isa) -> Result<Arc<dyn Kernel>> {
    Ok(match spec {
        OpSpec::Embedding(op) => Arc::new(embedding::Embedding::new(op)?),
        OpSpec::Linear(op) => Arc::new(linear::Linear::new(op, isa)?),
        OpSpec::LoraShrink(op) => Arc::new(lora::Shrink::new(op)?),
        OpSpec::LoraExpand(op) => Arc::new(lora::Expand::new(op)?),
        OpSpec::RmsNorm(op) => Arc::new(norm::RmsNorm::new(op)?),
        OpSpec::LayerNorm(op) => Arc::new(norm::LayerNorm::new(op)?),
        OpSpec::Rope(op) => Arc::new(rope::Rope::new(op)?),
        OpSpec::KvWrite(op) => Arc::new(attention::KvWrite::new(op)?),
        OpSpec::Attention(op) => Arc::new(attention::Attention::new(op)?),
        OpSpec::HeadLinear(op) => Arc::new(latent::HeadLinear::new(op)?),
        OpSpec::LatentWrite(op) => Arc::new(latent::LatentWrite::new(op)?),
        OpSpec::LatentAttention(op) => Arc::new(latent::LatentAttention::new(op)?),
        OpSpec::SiluMul(op) => pointwise::silu_mul(op)?,
        OpSpec::GeluMul(op) => pointwise::gelu_mul(op)?,
        OpSpec::Gelu(op) => pointwise::gelu(op)?,
        OpSpec::ReluSquared(op) => pointwise::relu_squared(op)?,
        OpSpec::Add(op) => pointwise::add(op)?,
        OpSpec::Scale(op) => pointwise::scale(op)?,
        OpSpec::Softcap(op) => pointwise::softcap(op)?,
        OpSpec::GatherRows(op) => Arc::new(data::GatherRows::new(op)),
        OpSpec::ScatterRows(op) => Arc::new(data::ScatterRows::new(op)),
        OpSpec::PrepareInputs(_) => Arc::new(step::PrepareInputs),
        OpSpec::SlotMapping(op) => Arc::new(step::SlotMapping::new(op)),
        OpSpec::UpdateRows(op) => Arc::new(step::UpdateRows::new(op)),
        OpSpec::QuantizeAct(op) => Arc::new(data::QuantizeAct::new(op)?),
        OpSpec::MoeRoute(op) => Arc::new(moe::Route::new(op)?),
        OpSpec::MoeLinear(op) => Arc::new(moe::Linear::new(op, isa)?),
        OpSpec::MoeCombine(op) => Arc::new(moe::Combine::new(op)?),
        OpSpec::LogitsProcess(op) => Arc::new(sampling::LogitsProcess::new(op)),
        OpSpec::Argmax(op) => Arc::new(sampling::Argmax::new(op)),
        OpSpec::Sample(op) => Arc::new(sampling::Sample::new(op)),
        OpSpec::TopLogprobs(op) => Arc::new(sampling::TopLogprobs::new(op)),
        OpSpec::Pool(op) => Arc::new(data::Pool::new(op)?),
        OpSpec::Copy(op) => Arc::new(data::Copy::new(op)),
        OpSpec::FillRandom(op) => Arc::new(data::FillRandom::new(op)?),
        OpSpec::Collective(_)
        | OpSpec::Cast(_)
        | OpSpec::CopyBlocks(_)
        | OpSpec::Fill(_)
        | OpSpec::Vendor(_)
        | OpSpec::Unknown(_) => {
            return Err(Error::unsupported(format!("this platform has no op {}", spec.name())));
        }
    })
}

/// This platform computes in f32.
fn only_f32(op: &str, dtype: DType) -> Result<()> {
    if dtype == DType::F32 {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "{op} in {dtype:?}: this platform computes in F32, with weights and KV in smaller types"
    )))
}
