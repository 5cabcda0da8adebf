//! The ops: dispatch, and what their formulas share. One family a file; each reads like the formula in platform-api.

mod attention;
mod data;
mod embedding;
mod latent;
mod linear;
mod logits;
mod lora;
mod moe;
mod norm;
mod pointwise;
mod rope;
mod sampling;
mod step;

use halyard_platform_api::{Error, OpSpec, Result};

use crate::operand::Args;

/// Runs one op over bound operands.
///
/// # Errors
/// `InvalidArgument` naming the operand or the index that is wrong.
pub(crate) fn run(spec: &OpSpec, args: &Args<'_>) -> Result<()> {
    match spec {
        OpSpec::Embedding(op) => embedding::embedding(op, args),
        OpSpec::Linear(op) => linear::linear(op, args),
        OpSpec::LoraShrink(op) => lora::shrink(op, args),
        OpSpec::LoraExpand(op) => lora::expand(op, args),
        OpSpec::RmsNorm(op) => norm::rms_norm(op, args),
        OpSpec::LayerNorm(op) => norm::layer_norm(op, args),
        OpSpec::Rope(op) => rope::rope(op, args),
        OpSpec::KvWrite(op) => attention::kv_write(op, args),
        OpSpec::Attention(op) => attention::attention(op, args),
        OpSpec::HeadLinear(op) => latent::head_linear(op, args),
        OpSpec::LatentWrite(op) => latent::latent_write(op, args),
        OpSpec::LatentAttention(op) => latent::latent_attention(op, args),
        OpSpec::SiluMul(op) => {
            pointwise::binary(args, op.width, op.dtype, |gate, up| pointwise::silu_mul(op, gate, up))
        }
        OpSpec::GeluMul(op) => {
            pointwise::binary(args, op.width, op.dtype, |gate, up| pointwise::gelu(op.kind, gate) * up)
        }
        OpSpec::Gelu(op) => pointwise::unary(args, op.width, op.dtype, |x| pointwise::gelu(op.kind, x)),
        OpSpec::ReluSquared(op) => pointwise::unary(args, op.width, op.dtype, |x| x.max(0.0) * x.max(0.0)),
        OpSpec::Add(op) => pointwise::binary(args, op.width, op.dtype, |a, b| a + b),
        OpSpec::Scale(op) => pointwise::unary(args, op.width, op.dtype, |x| op.factor * x),
        OpSpec::Softcap(op) => pointwise::unary(args, op.width, op.dtype, |x| op.cap * (x / op.cap).tanh()),
        OpSpec::GatherRows(op) => data::gather_rows(op, args),
        OpSpec::ScatterRows(op) => data::scatter_rows(op, args),
        OpSpec::PrepareInputs(_) => step::prepare_inputs(args),
        OpSpec::SlotMapping(op) => step::slot_mapping(op, args),
        OpSpec::UpdateRows(op) => step::update_rows(op, args),
        OpSpec::QuantizeAct(op) => data::quantize_act(op, args),
        OpSpec::MoeRoute(op) => moe::route(op, args),
        OpSpec::MoeLinear(op) => moe::linear(op, args),
        OpSpec::MoeCombine(op) => moe::combine(op, args),
        OpSpec::LogitsProcess(op) => logits::logits_process(op, args),
        OpSpec::Argmax(op) => sampling::argmax(op, args),
        OpSpec::Sample(op) => sampling::sample(op, args),
        OpSpec::TopLogprobs(op) => sampling::top_logprobs(op, args),
        OpSpec::Pool(op) => data::pool(op, args),
        OpSpec::Copy(op) => data::copy(op, args),
        OpSpec::FillRandom(op) => data::fill_random(op, args),
        OpSpec::Collective(_)
        | OpSpec::Cast(_)
        | OpSpec::CopyBlocks(_)
        | OpSpec::Fill(_)
        | OpSpec::Vendor(_)
        | OpSpec::Unknown(_) => Err(Error::unsupported(format!("this platform has no op {}", spec.name()))),
    }
}

/// Σ aᵢ·bᵢ in f32, in eight interleaved sums: always the same order, whatever the batch.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_chunks
        .remainder()
        .iter()
        .zip(b_chunks.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f32>() + tail
}
