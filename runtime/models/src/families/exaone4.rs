//! EXAONE 4: norms behind each part, norms of each head of q and k, windows on some layers with rope on those alone.
//! Sources: `configuration_exaone4.py`, `modeling_exaone4.py` of transformers; llama.cpp's `LLM_ARCH_EXAONE4`.

use halyard_platform_api::ops::RopeStyle;

use super::{Family, names, olmo2};
use crate::config::gguf::GgufConfig;
use crate::config::huggingface::{Defaults, describe, sliding_layers};
use crate::config::{JsonFields, ModelDescription, NormPlacement, QkNorm};
use crate::error::Result;
use crate::weights::NameTables;

pub(super) static FAMILY: Family = Family {
    name: "exaone4",
    hf_architectures: &["Exaone4ForCausalLM", "exaone4"],
    gguf_architectures: &["exaone4"],
    describe_hf,
    describe_gguf,
    hf_names: NameTables::own(&[olmo2::POST_NORM, names::PRE_NORM]),
    gguf_names: NameTables::own(&[names::GGUF]),
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(102_400),
    num_heads: Some(32),
    eps: 1e-5,
    ..Defaults::LLAMA
};

fn describe_hf(config: &JsonFields) -> Result<ModelDescription> {
    let mut model = describe(config, &DEFAULTS)?;
    let window = match config.is_written("sliding_window") {
        true => config.unsigned("sliding_window")?,
        false => Some(4096),
    };
    let num_layers = model.layers.len();
    let sliding = sliding_layers(config, num_layers, sliding_pattern(config, num_layers)?)?;
    apply(&mut model, window, &sliding);
    Ok(model)
}

/// `sliding_window_pattern`: the period of full layers, or one letter a layer of a period (`LLLG`). The last layer is
/// always a full one.
fn sliding_pattern(config: &JsonFields, num_layers: usize) -> Result<Box<dyn Fn(usize) -> bool>> {
    const FIELD: &str = "sliding_window_pattern";
    let letters = match config.value(FIELD).and_then(|value| value.as_str()) {
        Some("") => return Err(config.bad(FIELD, &"".into(), "a number, or letters L and G")),
        Some(letters) => letters.chars().map(|letter| letter == 'L').collect(),
        None => {
            let period = config.unsigned(FIELD)?.unwrap_or(4).clamp(1, num_layers.max(1));
            (1..=period).map(|i| i != period).collect::<Vec<bool>>()
        }
    };
    Ok(Box::new(move |layer| {
        layer + 1 != num_layers && letters[layer % letters.len()]
    }))
}

fn describe_gguf(config: &GgufConfig) -> Result<ModelDescription> {
    let mut model = config.describe(RopeStyle::Neox)?;
    let num_layers = model.layers.len();
    let window = config
        .unsigned("attention.sliding_window")?
        .filter(|&window| window > 0);
    let sliding = match config.layer_pattern("attention.sliding_window_pattern", num_layers)? {
        Some(pattern) => pattern,
        None => (1..=num_layers).map(|i| !i.is_multiple_of(4)).collect(),
    };
    apply(&mut model, window, &sliding);
    Ok(model)
}

/// Without windows every layer is full and has rope.
fn apply(model: &mut ModelDescription, window: Option<usize>, sliding: &[bool]) {
    model.norm.placement = NormPlacement::Post;
    for (layer, &slides) in model.layers.iter_mut().zip(sliding) {
        layer.mixer.qk_norm = Some(QkNorm::Heads);
        layer.mixer.window = window.filter(|_| slides);
        layer.mixer.rope = (slides || window.is_none()).then_some(0);
    }
}
