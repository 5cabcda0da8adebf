//! Baichuan 7B: Llama with q, k and v packed. Source: `modeling_baichuan.py` beside the published files. Its 13B has
//! ALiBi instead of rope, and Baichuan 2 normalises the rows of the output projection: both are refused.

use super::{Family, names};
use crate::config::huggingface::{Defaults, describe};
use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::weights::{NameTables, PackedOrder, PackedTensor};

pub(super) static FAMILY: Family = Family {
    name: "baichuan",
    hf_architectures: &["BaichuanForCausalLM", "BaiChuanForCausalLM", "baichuan"],
    gguf_architectures: &[],
    describe_hf,
    describe_gguf: super::not_read,
    hf_names: NameTables {
        own: &[names::PRE_NORM],
        packed: &[PackedTensor {
            name: "model.layers.{l}.self_attn.W_pack.weight",
            parts: names::QKV,
            order: PackedOrder::Stacked,
        }],
    },
    gguf_names: NameTables::own(&[names::GGUF]),
};

/// The vocabulary of Baichuan 2, by which vLLM knows it, too.
const VOCAB_OF_2: usize = 125_696;

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let model = describe(config, &Defaults::LLAMA)?;
    if !config.is_written("max_position_embeddings") {
        let remedy = "positions by ALiBi are not here: serve the 7B model";
        return Err(config.unsupported("max_position_embeddings", "nothing, as Baichuan 13B does", remedy));
    }
    if model.vocab_size == VOCAB_OF_2 {
        let remedy = "an output projection with normalised rows is not here: serve Baichuan 1";
        return Err(config.unsupported("vocab_size", VOCAB_OF_2.to_string(), remedy));
    }
    Ok(model)
}
