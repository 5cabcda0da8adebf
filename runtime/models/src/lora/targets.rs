//! The linears that adapters can change, by PEFT's names, and where such a name stands in a tensor's name.

use std::fmt;
use std::str::FromStr;

use crate::weights::{Linear, MlpLinear};

/// Every linear that may be a target, with its name in Hugging Face modules and the block it stands in.
const ALL: [(Linear, &str, &str); 7] = [
    (Linear::Q, "q_proj", "self_attn"),
    (Linear::K, "k_proj", "self_attn"),
    (Linear::V, "v_proj", "self_attn"),
    (Linear::O, "o_proj", "self_attn"),
    (Linear::Mlp(MlpLinear::Gate), "gate_proj", "mlp"),
    (Linear::Mlp(MlpLinear::Up), "up_proj", "mlp"),
    (Linear::Mlp(MlpLinear::Down), "down_proj", "mlp"),
];

/// What stands before `layers.N.` in the modules of a decoder.
const DECODERS: [&str; 3] = ["model", "language_model.model", "model.language_model"];

/// A set of linears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoraTargets(u8);

impl LoraTargets {
    /// All linears of a layer.
    pub const ALL: LoraTargets = LoraTargets((1 << ALL.len()) - 1);

    /// Whether a linear is one of them.
    #[must_use]
    pub fn has(self, linear: Linear) -> bool {
        ALL.iter()
            .enumerate()
            .any(|(i, (target, ..))| *target == linear && self.0 >> i & 1 == 1)
    }

    /// Their names, in the order of use.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = ALL.iter().enumerate();
        all.filter(|(i, _)| self.0 >> i & 1 == 1)
            .map(|(_, (_, name, _))| *name)
            .collect()
    }
}

impl Default for LoraTargets {
    fn default() -> Self {
        LoraTargets::ALL
    }
}

impl fmt::Display for LoraTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

impl FromStr for LoraTargets {
    type Err = String;

    /// Names with commas between them.
    fn from_str(list: &str) -> Result<Self, String> {
        let mut set = 0;
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let Some(at) = ALL.iter().position(|(_, known, _)| *known == name) else {
                return Err(format!(
                    "`{name}` is no linear that adapters change; known are {}",
                    LoraTargets::ALL
                ));
            };
            set |= 1 << at;
        }
        match set {
            0 => Err(format!("no linear is named; known are {}", LoraTargets::ALL)),
            set => Ok(LoraTargets(set)),
        }
    }
}

/// The linear of a decoder's module such as `model.layers.3.self_attn.q_proj`.
pub(super) fn linear_of(module: &str) -> Option<(usize, Linear)> {
    let rest = DECODERS
        .iter()
        .find_map(|decoder| module.strip_prefix(decoder)?.strip_prefix(".layers."))?;
    let (layer, rest) = rest.split_once('.')?;
    let (block, name) = rest.split_once('.')?;
    let (linear, ..) = ALL.iter().find(|(_, n, b)| *n == name && *b == block)?;
    Some((layer.parse().ok()?, *linear))
}

/// The linear called `name` in every layer.
pub(super) fn target_called(name: &str) -> Option<Linear> {
    ALL.iter().find(|(_, n, _)| *n == name).map(|(linear, ..)| *linear)
}

/// PEFT's name of a linear.
pub(super) fn name_of(linear: Linear) -> &'static str {
    ALL.iter()
        .find(|(target, ..)| *target == linear)
        .map_or("", |(_, name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_outside_the_decoders_layers_are_no_targets() {
        let q = Some((3, Linear::Q));
        assert_eq!(linear_of("model.layers.3.self_attn.q_proj"), q);
        assert_eq!(linear_of("language_model.model.layers.3.self_attn.q_proj"), q);
        for other in [
            "vision_tower.layers.3.self_attn.q_proj",
            "model.layers.3.mlp.q_proj",
            "model.layers.x.self_attn.q_proj",
            "model.layers.3.self_attn.qkv_proj",
            "lm_head",
        ] {
            assert_eq!(linear_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_list_of_names_is_a_set() {
        let set: LoraTargets = "v_proj, q_proj".parse().expect("known names");
        assert_eq!(set.names(), ["q_proj", "v_proj"]);
        assert!(set.has(Linear::V) && !set.has(Linear::O));
        assert!(
            "q_proj,lm_head"
                .parse::<LoraTargets>()
                .expect_err("no target")
                .contains("`lm_head`")
        );
        assert!("".parse::<LoraTargets>().is_err());
    }
}
