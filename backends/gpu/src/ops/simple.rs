//! Norms, pointwise ops, `rope`, moving and converting, `embedding`, device rows: everything that is bound by memory or
//! by latency. One launch an op (`pool` may take two); whether it moves 16 bytes a thread or single elements is settled
//! at each encode, from addresses and strides.

mod copy;
mod embedding;
mod norm;
mod pointwise;
mod rope;
mod rows;
mod step;
mod support;

use halyard_platform_api::{OpSpec, Result};

pub(super) use norm::block_of_row;

use crate::kernel::Kernel;
use crate::kernel::boxed;

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    Some(match spec {
        OpSpec::Embedding(op) => boxed(embedding::Embedding::new(op)),
        OpSpec::RmsNorm(op) => boxed(norm::Norm::rms(op)),
        OpSpec::LayerNorm(op) => boxed(norm::Norm::layer(op)),
        OpSpec::Rope(op) => boxed(rope::Rope::new(op)),
        OpSpec::SiluMul(op) => boxed(pointwise::silu_mul(op)),
        OpSpec::GeluMul(op) => boxed(pointwise::gelu_mul(op)),
        OpSpec::Gelu(op) => boxed(pointwise::gelu(op)),
        OpSpec::ReluSquared(op) => boxed(pointwise::relu_squared(op)),
        OpSpec::Add(op) => boxed(pointwise::add(op)),
        OpSpec::Scale(op) => boxed(pointwise::scale(op)),
        OpSpec::Softcap(op) => boxed(pointwise::softcap(op)),
        OpSpec::GatherRows(op) => boxed(rows::MoveRows::gather(op)),
        OpSpec::ScatterRows(op) => boxed(rows::MoveRows::scatter(op)),
        OpSpec::QuantizeAct(op) => boxed(rows::QuantizeAct::new(op)),
        OpSpec::Pool(op) => boxed(rows::Pool::new(op)),
        OpSpec::Copy(op) => boxed(copy::Copy::new(op)),
        OpSpec::FillRandom(op) => boxed(copy::FillRandom::new(op)),
        OpSpec::PrepareInputs(op) => boxed(step::PrepareInputs::new(op)),
        OpSpec::SlotMapping(op) => boxed(step::SlotMapping::new(op)),
        OpSpec::UpdateRows(op) => boxed(step::UpdateRows::new(op)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
