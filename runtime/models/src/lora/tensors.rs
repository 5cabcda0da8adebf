//! Reads an adapter's tensors and checks them: no unknown name, no matrix without its pair, no shape that the model
//! does not have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use halyard_platform_api::WeightFormat;

use super::config::{AdapterConfig, check_rank};
use super::targets::{linear_of, name_of, target_called};
use super::{LoraAdapter, LoraLimits, LoraModule, encode, unsupported};
use crate::config::{MlpDescription, ModelDescription};
use crate::error::{ModelError, Result};
use crate::quant::dequantize;
use crate::safetensors::{SafetensorsFiles, SafetensorsTensor};
use crate::weights::{Linear, Role, kv_scales};

const NAME: &str = "adapter_model.safetensors";
const SUPPORTED: &str = "F32, F16, BF16";

/// The tensors of one linear.
#[derive(Default)]
struct Pair<'f> {
    module: String,
    a: Option<(&'f str, &'f SafetensorsTensor)>,
    b: Option<(&'f str, &'f SafetensorsTensor)>,
}

pub(super) fn weights_file(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Reads every matrix.
pub(super) fn read(
    folder: &Path,
    config: &AdapterConfig,
    model: &ModelDescription,
    limits: &LoraLimits,
) -> Result<LoraAdapter> {
    let path = weights_file(folder);
    if !path.is_file() {
        if folder.join("adapter_model.bin").is_file() {
            let remedy = "pickled weights can run code: save the adapter with safe_serialization=True";
            return Err(unsupported(folder, "adapter_model.bin", "PyTorch pickle", remedy));
        }
        return Err(ModelError::NoAdapter {
            path: folder.to_path_buf(),
            missing: NAME,
        });
    }
    let files = SafetensorsFiles::open_file(&path)?;
    let reader = Reader {
        files: &files,
        config,
        model,
        limits,
    };
    let pairs = reader.pairs()?;
    reader.check_everywhere(&pairs)?;
    let scale = config.scale();
    let mut modules = BTreeMap::new();
    for (linear, pair) in pairs {
        modules.insert(linear, reader.module(linear, &pair, scale)?);
    }
    let rank = modules.values().map(|module| module.rank).max().unwrap_or(0);
    Ok(LoraAdapter {
        rank,
        scale,
        dtype: limits.dtype,
        modules,
    })
}

struct Reader<'a> {
    files: &'a SafetensorsFiles,
    config: &'a AdapterConfig,
    model: &'a ModelDescription,
    limits: &'a LoraLimits,
}

impl<'a> Reader<'a> {
    /// The tensors by linear.
    fn pairs(&self) -> Result<BTreeMap<(usize, Linear), Pair<'a>>> {
        let mut names: Vec<&'a str> = self.files.names().collect();
        names.sort_unstable();
        let mut pairs: BTreeMap<(usize, Linear), Pair<'a>> = BTreeMap::new();
        for name in names {
            let (module, is_a) = self.parse(name)?;
            let linear = self.linear(name, module)?;
            let Some(tensor) = self.files.tensor(name) else {
                continue;
            };
            let pair = pairs.entry(linear).or_default();
            pair.module = module.to_owned();
            let place = if is_a { &mut pair.a } else { &mut pair.b };
            if let Some((other, _)) = place.replace((name, tensor)) {
                return Err(self.refuse(name, format!("the same matrix as `{other}`"), "keep one of them"));
            }
        }
        if pairs.is_empty() {
            return Err(self.refuse("tensors", "none", "the file holds no adapter: save it again"));
        }
        Ok(pairs)
    }

    /// Module of a tensor, and whether the tensor is its A.
    fn parse<'n>(&self, name: &'n str) -> Result<(&'n str, bool)> {
        if name.contains("lora_magnitude_vector") {
            return Err(self.refuse(name, "a magnitude of DoRA", "train with use_dora=false"));
        }
        if name.contains("lora_embedding_") {
            let remedy = "embeddings cannot be targets: train with linears of the layers as target_modules";
            return Err(self.refuse(name, "an adapted embedding", remedy));
        }
        let bare = name.strip_prefix("base_model.model.").unwrap_or(name);
        // Adapters saved by older versions keep the adapter's name, mostly `default`, before `weight`.
        let ends = [
            (".lora_A.weight", true),
            (".lora_B.weight", false),
            (".lora_A.default.weight", true),
            (".lora_B.default.weight", false),
        ];
        let found = ends
            .iter()
            .find_map(|(end, is_a)| Some((bare.strip_suffix(end)?, *is_a)));
        found.ok_or_else(|| {
            let remedy = "an adapter here holds lora_A.weight and lora_B.weight of linears only";
            self.refuse(name, "a tensor that is neither A nor B of a linear", remedy)
        })
    }

    /// The linear of a module, which the model must have and the server must let adapters change.
    fn linear(&self, name: &str, module: &str) -> Result<(usize, Linear)> {
        let Some((layer, linear)) = linear_of(module) else {
            let remedy = format!(
                "adapters can change {} of the layers; train with these as target_modules, or merge the adapter into \
                 the model",
                super::LoraTargets::ALL
            );
            return Err(self.refuse(name, format!("a change of `{module}`"), &remedy));
        };
        let layers = self.model.num_layers();
        if layer >= layers {
            let remedy = format!(
                "the base model has layers 0 to {}: the adapter belongs to another model",
                layers - 1
            );
            return Err(self.refuse(name, format!("layer {layer}"), &remedy));
        }
        if !self.limits.targets.has(linear) {
            let remedy = format!("--lora-target-modules allows {}; add it there", self.limits.targets);
            return Err(self.refuse(name, format!("a change of {}", name_of(linear)), &remedy));
        }
        if !self.has(layer, linear) {
            let instead = match linear {
                Linear::Mlp(_) => "experts",
                _ => "latent attention",
            };
            let found = format!("a change of {} in layer {layer}, which has {instead}", name_of(linear));
            let remedy = "adapters change linears of attention (of latent attention o_proj alone) and of dense MLPs: \
                          train with those as target_modules";
            return Err(self.refuse(name, found, remedy));
        }
        Ok((layer, linear))
    }

    /// Whether a layer has a linear that may be a target.
    fn has(&self, layer: usize, linear: Linear) -> bool {
        let layer = &self.model.layers[layer];
        match linear {
            Linear::Mlp(_) => !matches!(layer.mlp, MlpDescription::Experts(_)),
            Linear::Q | Linear::K | Linear::V => layer.mixer.latent.is_none(),
            _ => true,
        }
    }

    /// A target that the configuration lists must be there in every layer that has it: a file that lacks some of them
    /// would serve another adapter.
    fn check_everywhere(&self, pairs: &BTreeMap<(usize, Linear), Pair<'_>>) -> Result<()> {
        for name in &self.config.everywhere {
            let Some(linear) = target_called(name) else { continue };
            let lacks = |layer: &usize| self.has(*layer, linear) && !pairs.contains_key(&(*layer, linear));
            if let Some(layer) = (0..self.model.num_layers()).find(lacks) {
                let found = format!("{name}, of which layer {layer} has no matrices in {NAME}");
                let remedy = "the file is incomplete or of a smaller model: save or download it again";
                return Err(unsupported(&self.config.path, "target_modules", found, remedy));
            }
        }
        Ok(())
    }

    fn module(&self, (layer, linear): (usize, Linear), pair: &Pair<'a>, scale: f32) -> Result<LoraModule> {
        let (Some((a_name, a)), Some((b_name, b))) = (pair.a, pair.b) else {
            let (has, lacks) = if pair.a.is_some() {
                ("A", "lora_B")
            } else {
                ("B", "lora_A")
            };
            let tensor = format!("base_model.model.{}.{lacks}.weight", pair.module);
            return Err(ModelError::MissingTensor {
                path: self.files.path().to_path_buf(),
                near: vec![format!("only {has} of this linear is there")],
                tensor,
            });
        };
        let (rank, own_scale) = self.config.of_module(&pair.module);
        // What the file holds is checked before what the configuration says of it: memory is sized by it.
        if let Some(&found) = a.shape.first() {
            check_rank(self.files.path(), a_name, found as u64, self.limits)?;
        }
        let role = Role::weight(layer, linear);
        let shape = role.shape(self.model);
        self.check_shape(a_name, a, [rank as usize, shape[1]])?;
        self.check_shape(b_name, b, [shape[0], rank as usize])?;
        let a = self.values(a_name, a)?;
        let mut b = self.values(b_name, b)?;
        // What changes the base's linear changes what is added to it.
        let own = if own_scale == scale { 1.0 } else { own_scale / scale };
        let ratio = own * kv_scales::factor(self.model, role);
        if ratio != 1.0 {
            b.iter_mut().for_each(|value| *value *= ratio);
        }
        if let Some(heads) = self.interleaved_heads(layer, linear) {
            b = interleave(&b, heads, rank as usize);
        }
        Ok(LoraModule {
            rank,
            a: encode(self.limits.dtype, &a),
            b: encode(self.limits.dtype, &b),
        })
    }

    /// Heads whose rows this model holds in another order than Hugging Face's: GGUF files of Llama have the two halves
    /// of each q and k head interleaved (llama.cpp, `LlamaModel.permute`).
    fn interleaved_heads(&self, layer: usize, linear: Linear) -> Option<usize> {
        let mixer = self.model.layers[layer].mixer;
        let heads = match linear {
            Linear::Q => mixer.num_heads,
            Linear::K => mixer.num_kv_heads,
            _ => return None,
        };
        self.model.interleaved_heads.then_some(heads)
    }

    fn check_shape(&self, name: &str, tensor: &SafetensorsTensor, expected: [usize; 2]) -> Result<()> {
        if tensor.shape == expected {
            return Ok(());
        }
        Err(ModelError::AdapterShape {
            path: self.files.path().to_path_buf(),
            tensor: name.to_owned(),
            expected: expected.to_vec(),
            found: tensor.shape.clone(),
        })
    }

    fn values(&self, name: &str, tensor: &SafetensorsTensor) -> Result<Vec<f32>> {
        let format = match tensor.format {
            Some(format @ (WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16)) => format,
            _ => {
                return Err(ModelError::UnsupportedFormat {
                    path: self.files.path().to_path_buf(),
                    tensor: name.to_owned(),
                    found: tensor.dtype.clone(),
                    supported: SUPPORTED,
                });
            }
        };
        let mut values = vec![0.0; tensor.shape.iter().product()];
        dequantize(format, self.files.tensor_bytes(tensor), &mut values)?;
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(self.refuse(
                name,
                format!("a matrix with {value}"),
                "every value must be a finite number: train it again",
            ));
        }
        Ok(values)
    }

    fn refuse(&self, field: &str, value: impl Into<String>, remedy: &str) -> ModelError {
        unsupported(self.files.path(), field, value, remedy)
    }
}

/// Rows of B (`rank` values each) from halves of heads one after the other to halves interleaved.
fn interleave(b: &[f32], heads: usize, rank: usize) -> Vec<f32> {
    let head_dim = b.len() / rank / heads;
    let mut out = Vec::with_capacity(b.len());
    for head in 0..heads {
        for row in 0..head_dim {
            let from = head * head_dim + row % 2 * (head_dim / 2) + row / 2;
            out.extend_from_slice(&b[from * rank..][..rank]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_head_are_interleaved() {
        let b: Vec<f32> = (0..16).map(|v| v as f32).collect();
        // Two heads of four rows, rank 2: rows 0 2 1 3 of each.
        let expected = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15].map(|v| v as f32);
        assert_eq!(interleave(&b, 2, 2), expected);
    }
}
