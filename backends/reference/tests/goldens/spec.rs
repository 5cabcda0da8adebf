//! Descriptors from the fixtures' JSON: the fields by name, enums by variant name.

use halyard_platform_api::ops::*;
use halyard_platform_api::{DType, OpSpec, WeightFormat};
use serde_json::Value;

/// Reads fields of one case's parameters.
pub struct Params<'a>(pub &'a Value);

impl Params<'_> {
    pub fn u(&self, name: &str) -> u32 {
        self.0[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no number {name} in {}", self.0)) as u32
    }

    /// A field that was appended to an op: cases made before have none.
    pub fn appended<T>(&self, name: &str, read: impl FnOnce(&Self, &str) -> T) -> Option<T> {
        self.0.get(name).map(|_| read(self, name))
    }

    pub fn f(&self, name: &str) -> f32 {
        self.0[name]
            .as_f64()
            .unwrap_or_else(|| panic!("no number {name} in {}", self.0)) as f32
    }

    pub fn b(&self, name: &str) -> bool {
        self.0[name]
            .as_bool()
            .unwrap_or_else(|| panic!("no bool {name} in {}", self.0))
    }

    pub fn d(&self, name: &str) -> DType {
        self.variant(
            name,
            &(0..8).map(|c| DType::from_code(c).expect("a code")).collect::<Vec<_>>(),
        )
    }

    fn weight(&self) -> WeightFormat {
        self.variant("weight", &WeightFormat::ALL)
    }

    fn variant<T: std::marker::Copy + std::fmt::Debug>(&self, name: &str, all: &[T]) -> T {
        let wanted = self.0[name]
            .as_str()
            .unwrap_or_else(|| panic!("no name {name} in {}", self.0));
        all.iter()
            .copied()
            .find(|v| format!("{v:?}") == wanted)
            .unwrap_or_else(|| panic!("{name}: {wanted} is none of {all:?}"))
    }
}

/// The spec of a case.
pub fn parse(op: &str, params: &Value) -> OpSpec {
    let p = Params(params);
    dense(op, &p)
        .or_else(|| pointwise(op, &p))
        .or_else(|| moving(op, &p))
        .or_else(|| stepping(op, &p))
        .unwrap_or_else(|| panic!("op {op} is not known to this test"))
}

fn dense(op: &str, p: &Params) -> Option<OpSpec> {
    Some(match op {
        "embedding" => Embedding {
            num_rows: p.u("num_rows"),
            width: p.u("width"),
            weight: p.weight(),
            out: p.d("out"),
            scale: p.f("scale"),
            max_tokens: p.u("max_tokens"),
        }
        .into(),
        "linear" => Linear {
            in_features: p.u("in_features"),
            out_features: p.u("out_features"),
            weight: p.weight(),
            act: p.d("act"),
            out: p.d("out"),
            epilogue: p.variant(
                "epilogue",
                &[Epilogue::None, Epilogue::Silu, Epilogue::GeluTanh, Epilogue::GeluErf],
            ),
            max_tokens: p.u("max_tokens"),
            allow_quantized_act: p.b("allow_quantized_act"),
        }
        .into(),
        "lora_shrink" => LoraShrink {
            in_features: p.u("in_features"),
            max_rank: p.u("max_rank"),
            num_slots: p.u("num_slots"),
            act: p.d("act"),
            weight: p.d("weight"),
            max_tokens: p.u("max_tokens"),
        }
        .into(),
        "lora_expand" => LoraExpand {
            out_features: p.u("out_features"),
            max_rank: p.u("max_rank"),
            num_slots: p.u("num_slots"),
            weight: p.d("weight"),
            out: p.d("out"),
            max_tokens: p.u("max_tokens"),
            second_part: p.u("second_part"),
            third_part: p.u("third_part"),
        }
        .into(),
        "moe_route" => MoeRoute {
            num_experts: p.u("num_experts"),
            top_k: p.u("top_k"),
            scoring: p.variant("scoring", &[Scoring::Softmax, Scoring::Sigmoid]),
            normalize: p.b("normalize"),
            factor: p.f("factor"),
            num_groups: p.appended("num_groups", Params::u).unwrap_or(0),
            top_groups: p.appended("top_groups", Params::u).unwrap_or(0),
            group_best: p.appended("group_best", Params::u).unwrap_or(0),
        }
        .into(),
        "moe_linear" => MoeLinear {
            in_features: p.u("in_features"),
            out_features: p.u("out_features"),
            num_experts: p.u("num_experts"),
            top_k: p.u("top_k"),
            weight: p.weight(),
            dtype: p.d("dtype"),
            max_tokens: p.u("max_tokens"),
            first_expert: p.appended("first_expert", Params::u).unwrap_or(0),
            total_experts: p.appended("total_experts", Params::u).unwrap_or(0),
            allow_quantized_act: p.appended("allow_quantized_act", Params::b).unwrap_or(false),
        }
        .into(),
        "moe_combine" => MoeCombine {
            width: p.u("width"),
            top_k: p.u("top_k"),
            dtype: p.d("dtype"),
        }
        .into(),
        _ => return None,
    })
}

fn pointwise(op: &str, p: &Params) -> Option<OpSpec> {
    let (width, dtype) = (|| p.u("width"), || p.d("dtype"));
    let kind = || p.variant("kind", &[GeluKind::Tanh, GeluKind::Erf]);
    Some(match op {
        "rms_norm" => RmsNorm {
            width: width(),
            eps: p.f("eps"),
            weight_offset: p.f("weight_offset"),
            dtype: dtype(),
        }
        .into(),
        "layer_norm" => LayerNorm {
            width: width(),
            eps: p.f("eps"),
            dtype: dtype(),
            num_weights: p.appended("num_weights", Params::u).unwrap_or(0),
        }
        .into(),
        "rope" => Rope {
            head_dim: p.u("head_dim"),
            rotary_dim: p.u("rotary_dim"),
            style: p.variant("style", &[RopeStyle::Neox, RopeStyle::Interleaved]),
            dtype: dtype(),
        }
        .into(),
        "silu_mul" => SiluMul {
            limit: p.appended("limit", Params::f).unwrap_or(0.0),
            alpha: p.appended("alpha", Params::f).unwrap_or(0.0),
            up_offset: p.appended("up_offset", Params::f).unwrap_or(0.0),
            ..SiluMul::plain(width(), dtype())
        }
        .into(),
        "relu_squared" => ReluSquared {
            width: width(),
            dtype: dtype(),
        }
        .into(),
        "gelu_mul" => GeluMul {
            width: width(),
            dtype: dtype(),
            kind: kind(),
        }
        .into(),
        "gelu" => Gelu {
            width: width(),
            dtype: dtype(),
            kind: kind(),
        }
        .into(),
        "add" => Add {
            width: width(),
            dtype: dtype(),
        }
        .into(),
        "scale" => Scale {
            width: width(),
            dtype: dtype(),
            factor: p.f("factor"),
        }
        .into(),
        "softcap" => Softcap {
            width: width(),
            dtype: dtype(),
            cap: p.f("cap"),
        }
        .into(),
        _ => return None,
    })
}

fn moving(op: &str, p: &Params) -> Option<OpSpec> {
    let (width, dtype) = (|| p.u("width"), || p.d("dtype"));
    Some(match op {
        "gather_rows" => GatherRows {
            width: width(),
            dtype: dtype(),
        }
        .into(),
        "scatter_rows" => ScatterRows {
            width: width(),
            dtype: dtype(),
        }
        .into(),
        "quantize_act" => QuantizeAct {
            width: width(),
            dtype: dtype(),
            scheme: p.variant(
                "scheme",
                &[
                    QuantizeScheme::Int8Row,
                    QuantizeScheme::Int8Block32,
                    QuantizeScheme::Fp8Row,
                ],
            ),
        }
        .into(),
        "pool" => Pool {
            width: width(),
            dtype: dtype(),
            mode: p.variant("mode", &[PoolMode::Last, PoolMode::Mean, PoolMode::First]),
            normalize: p.b("normalize"),
        }
        .into(),
        "copy" => Copy { dtype: dtype() }.into(),
        "fill_random" => FillRandom {
            dtype: dtype(),
            seed_low: p.u("seed_low"),
            seed_high: p.u("seed_high"),
            scale: p.f("scale"),
            first: p.u("first"),
        }
        .into(),
        _ => return None,
    })
}

fn stepping(op: &str, p: &Params) -> Option<OpSpec> {
    let (vocab, max_seqs) = (|| p.u("vocab"), || p.u("max_seqs"));
    Some(match op {
        "prepare_inputs" => PrepareInputs {
            max_seqs: max_seqs(),
            max_tokens: p.u("max_tokens"),
        }
        .into(),
        "slot_mapping" => SlotMapping {
            block_size: p.u("block_size"),
        }
        .into(),
        "update_rows" => UpdateRows {
            max_seqs: max_seqs(),
            max_sampled: p.u("max_sampled"),
        }
        .into(),
        "logits_process" => LogitsProcess {
            vocab: vocab(),
            max_seqs: max_seqs(),
        }
        .into(),
        "argmax" => Argmax {
            vocab: vocab(),
            max_seqs: max_seqs(),
        }
        .into(),
        "sample" => Sample {
            vocab: vocab(),
            max_seqs: max_seqs(),
        }
        .into(),
        "top_logprobs" => TopLogprobs {
            vocab: vocab(),
            k: p.u("k"),
            max_rows: p.u("max_rows"),
        }
        .into(),
        "head_linear" => HeadLinear {
            num_heads: p.u("num_heads"),
            in_features: p.u("in_features"),
            out_features: p.u("out_features"),
            weight: p.weight(),
            dtype: p.d("dtype"),
            max_tokens: p.u("max_tokens"),
        }
        .into(),
        "latent_attention" => LatentAttention {
            num_heads: p.u("num_heads"),
            latent_dim: p.u("latent_dim"),
            rope_dim: p.u("rope_dim"),
            scale: p.f("scale"),
            act: p.d("act"),
            kv: p.d("kv"),
            block_size: p.u("block_size"),
            backend: 0,
            max_seqs: max_seqs(),
            max_tokens: p.u("max_tokens"),
            max_query_len: p.u("max_query_len"),
            max_kv_len: p.u("max_kv_len"),
        }
        .into(),
        "attention" => Attention {
            num_heads: p.u("num_heads"),
            num_kv_heads: p.u("num_kv_heads"),
            head_dim: p.u("head_dim"),
            scale: p.f("scale"),
            window: p.u("window"),
            softcap: p.f("softcap"),
            has_sinks: p.b("has_sinks"),
            act: p.d("act"),
            kv: p.d("kv"),
            block_size: p.u("block_size"),
            backend: 0,
            max_seqs: max_seqs(),
            max_tokens: p.u("max_tokens"),
            max_query_len: p.u("max_query_len"),
            max_kv_len: p.u("max_kv_len"),
        }
        .into(),
        _ => return None,
    })
}
