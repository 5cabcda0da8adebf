//! Mistral's own folders: `params.json`, `consolidated.safetensors` and `tekken.json`. The parameters are read under
//! Hugging Face's names, and the weights under Mistral's. Rows of q and k stand as they were trained, in pairs of
//! neighbours, where Hugging Face's converter moves them.
//!
//! Sources: mistral-inference's `args.py`, `convert_mistral_weights_to_hf.py` of transformers, and for `yarn` and
//! `quantization` vLLM 0.33's `transformers_utils/configs/mistral.py`.

use std::path::Path;

use halyard_platform_api::ops::RopeStyle;
use serde_json::{Map, Value, json};

use crate::config::{JsonFields, ModelDescription};
use crate::error::Result;
use crate::overrides::ModelOverrides;
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, NameTables, NameTemplate, Norm, Role};

/// The file of parameters.
pub(crate) const PARAMS: &str = "params.json";
/// What the files of weights are called.
pub(crate) const WEIGHTS: &str = "consolidated";

/// Mistral's name of a parameter, and Hugging Face's.
const RENAMED: &[(&str, &str)] = &[
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("hidden_dim", "intermediate_size"),
    ("n_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("norm_eps", "rms_norm_eps"),
    ("tied_embeddings", "tie_word_embeddings"),
    ("max_seq_len", "max_position_embeddings"),
];
/// Parameters with one name, and those that change no result.
const SAME: &[&str] = &[
    "head_dim",
    "vocab_size",
    "rope_theta",
    "sliding_window",
    "max_position_embeddings",
    "model_type",
    "max_batch_size",
    "model_parallel",
    "moe",
    "causal",
    "use_biases",
    "yarn",
    "quantization",
];
/// Members of `yarn`, and Hugging Face's names of them in `rope_scaling`.
const YARN: &[(&str, &str)] = &[
    ("factor", "factor"),
    ("original_max_position_embeddings", "original_max_position_embeddings"),
    ("beta", "beta_fast"),
    ("alpha", "beta_slow"),
];
const REMEDY: &str = "serve the model's Hugging Face files (config.json)";
/// Positions where the file gives none (vLLM's default for these files).
const POSITIONS: u64 = 128_000;

pub(crate) static NAMES: NameTables = NameTables::own(&[TABLE]);

const TABLE: &[NameTemplate] = &[
    (Role::Embedding, "tok_embeddings.weight"),
    (Role::norm(0, Norm::Attention), "layers.{l}.attention_norm.weight"),
    (Role::weight(0, Linear::Q), "layers.{l}.attention.wq.weight"),
    (Role::weight(0, Linear::K), "layers.{l}.attention.wk.weight"),
    (Role::weight(0, Linear::V), "layers.{l}.attention.wv.weight"),
    (Role::weight(0, Linear::O), "layers.{l}.attention.wo.weight"),
    (Role::norm(0, Norm::Mlp), "layers.{l}.ffn_norm.weight"),
    (Role::weight(0, Linear::Mlp(Gate)), "layers.{l}.feed_forward.w1.weight"),
    (Role::weight(0, Linear::Mlp(Up)), "layers.{l}.feed_forward.w3.weight"),
    (Role::weight(0, Linear::Mlp(Down)), "layers.{l}.feed_forward.w2.weight"),
    (Role::weight(0, Linear::Router), "layers.{l}.feed_forward.gate.weight"),
    (
        Role::weight(0, Linear::Expert(0, Gate)),
        "layers.{l}.feed_forward.experts.{e}.w1.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Up)),
        "layers.{l}.feed_forward.experts.{e}.w3.weight",
    ),
    (
        Role::weight(0, Linear::Expert(0, Down)),
        "layers.{l}.feed_forward.experts.{e}.w2.weight",
    ),
    (Role::FinalNorm, "norm.weight"),
    (Role::LmHead, "output.weight"),
];

/// The folder's `params.json` as a config.json, with the operator's `--hf-overrides` (under Hugging Face's names) put
/// in.
///
/// # Errors
/// A parameter that changes the result and is not read here, by its name; what is wrong with one that is.
pub(crate) fn config(folder: &Path, over: &ModelOverrides) -> Result<JsonFields> {
    let params = JsonFields::open(&folder.join(PARAMS))?;
    let is_known = |key: &&str| SAME.contains(key) || RENAMED.iter().any(|(own, _)| own == key);
    if let Some(key) = params.keys().find(|key| !is_known(key)) {
        let value = params.value(key).map(Value::to_string).unwrap_or_default();
        return Err(params.unsupported(key, value.chars().take(60).collect::<String>(), REMEDY));
    }
    for (key, plain) in [("causal", true), ("use_biases", false)] {
        if params.bool(key)?.is_some_and(|value| value != plain) {
            return Err(params.unsupported(key, (!plain).to_string(), REMEDY));
        }
    }
    let mut fields = Map::new();
    let mut set = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    match params.object("moe")? {
        None => {
            set("architectures", json!(["MistralForCausalLM"]));
            set("model_type", json!("mistral"));
        }
        Some(moe) => {
            set("architectures", json!(["MixtralForCausalLM"]));
            set("model_type", json!("mixtral"));
            set("num_local_experts", json!(moe.required_unsigned("num_experts")?));
            set(
                "num_experts_per_tok",
                json!(moe.required_unsigned("num_experts_per_tok")?),
            );
        }
    }
    if let Some(yarn) = params.object("yarn")?.filter(|yarn| yarn.keys().next().is_some()) {
        set("rope_scaling", rope_scaling(&yarn)?);
    }
    if let Some(own) = params.object("quantization")?.filter(|own| own.keys().next().is_some()) {
        set("quantization_config", quantization(&own)?);
    }
    // That of every tokenizer of Mistral's.
    set("eos_token_id", json!(2));
    // A window that is not written would be Mistral 7B's in Hugging Face's configuration.
    set(
        "sliding_window",
        params.value("sliding_window").cloned().unwrap_or(Value::Null),
    );
    if !params.is_written("max_seq_len") && !params.is_written("max_position_embeddings") {
        set("max_position_embeddings", json!(POSITIONS));
    }
    Ok(over.put_into(params.renamed(RENAMED).with(&fields)))
}

/// `yarn` as Hugging Face's `rope_scaling`.
fn rope_scaling(yarn: &JsonFields) -> Result<Value> {
    let is_known = |key: &&str| *key == "apply_scale" || YARN.iter().any(|(own, _)| own == key);
    if let Some(key) = yarn.keys().find(|key| !is_known(key)) {
        return Err(yarn.unsupported(key, "a member of yarn that is not known", REMEDY));
    }
    for required in ["factor", "original_max_position_embeddings"] {
        yarn.required_float(required)?;
    }
    let mut scaling = Map::new();
    scaling.insert("rope_type".to_owned(), json!("yarn"));
    for (own, common) in YARN {
        if let Some(number) = yarn.float(own)? {
            // The number as it is written: positions are an integer.
            let written = yarn.value(own).cloned().unwrap_or_else(|| json!(number));
            scaling.insert((*common).to_owned(), written);
        }
    }
    // Without it cosines and sines are not scaled.
    if yarn.bool("apply_scale")? == Some(false) {
        scaling.insert("attention_factor".to_owned(), json!(1.0));
    }
    Ok(Value::Object(scaling))
}

/// `quantization` as Hugging Face's `quantization_config`.
fn quantization(own: &JsonFields) -> Result<Value> {
    const KNOWN: &str = "read are qformat_weight fp8_e4m3 and quant_method compressed-tensors: serve the model's \
         Hugging Face files (config.json)";
    if let Some(method) = own.string("quant_method")? {
        if !matches!(method.to_lowercase().replace('_', "-").as_str(), "compressed-tensors") {
            return Err(own.unsupported("quant_method", method, KNOWN));
        }
        let mut fields: Map<String, Value> = own
            .keys()
            .filter_map(|key| Some((key.to_owned(), own.value(key)?.clone())))
            .collect();
        fields.insert("quant_method".to_owned(), json!("compressed-tensors"));
        return Ok(Value::Object(fields));
    }
    match own.string("qformat_weight")? {
        Some("fp8_e4m3") => {}
        other => return Err(own.unsupported("qformat_weight", other.unwrap_or("none"), KNOWN)),
    }
    // How activations are rounded, which they are not here.
    match own.string("qscheme_act")? {
        None | Some("NO_SCALES" | "TENSOR") => Ok(json!({"quant_method": "fp8"})),
        Some(other) => Err(own.unsupported("qscheme_act", other, "known are NO_SCALES and TENSOR")),
    }
}

/// Has the description's ropes turn neighbours.
pub(crate) fn turn_neighbours(description: &mut ModelDescription) {
    for rope in &mut description.ropes {
        rope.style = RopeStyle::Interleaved;
    }
}
