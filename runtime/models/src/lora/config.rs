//! `adapter_config.json`: the fields that inference needs, and a refusal with reason of every feature that would change
//! the result and is not there.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{LoraLimits, MAX_LORA_RANK, unsupported};
use crate::config::JsonFields;
use crate::error::{ModelError, Result};

const NAME: &str = "adapter_config.json";
/// PEFT's `lora_alpha` where the file has none.
const DEFAULT_ALPHA: f64 = 8.0;
/// Characters that make a pattern more than a module's name. A dot is taken literally: in module names it only ever
/// means itself.
const PATTERN: &str = "^$*+?()[]{}|\\";

/// What the configuration says.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    pub path: PathBuf,
    rank: u32,
    alpha: f64,
    use_rslora: bool,
    rank_pattern: Vec<(String, f64)>,
    alpha_pattern: Vec<(String, f64)>,
    /// Short names that every layer must have matrices for; empty where the configuration does not say it so plainly.
    pub everywhere: Vec<String>,
}

impl AdapterConfig {
    pub(super) fn open(folder: &Path, limits: &LoraLimits) -> Result<AdapterConfig> {
        let path = folder.join(NAME);
        let Some(fields) = JsonFields::open_if_present(&path)? else {
            return Err(ModelError::NoAdapter {
                path: folder.to_path_buf(),
                missing: NAME,
            });
        };
        refuse_features(&fields)?;
        let rank = fields.required_unsigned("r")?;
        check_rank(&path, "r", rank as u64, limits)?;
        let alpha = fields.float("lora_alpha")?.unwrap_or(DEFAULT_ALPHA);
        let config = AdapterConfig {
            rank: rank as u32,
            alpha,
            use_rslora: fields.bool("use_rslora")?.unwrap_or(false),
            rank_pattern: pattern(&fields, "rank_pattern")?,
            alpha_pattern: pattern(&fields, "alpha_pattern")?,
            everywhere: everywhere(&fields)?,
            path,
        };
        for (module, rank) in &config.rank_pattern {
            check_rank(&config.path, &format!("rank_pattern.{module}"), *rank as u64, limits)?;
        }
        Ok(config)
    }

    /// alpha/rank or alpha/√rank, without patterns.
    pub(super) fn scale(&self) -> f32 {
        self.scale_of(self.alpha, self.rank)
    }

    fn scale_of(&self, alpha: f64, rank: u32) -> f32 {
        let rank = f64::from(rank);
        (if self.use_rslora {
            alpha / rank.sqrt()
        } else {
            alpha / rank
        }) as f32
    }

    /// Rank and scale of a module.
    pub(super) fn of_module(&self, module: &str) -> (u32, f32) {
        let matching = |patterns: &[(String, f64)]| {
            let matches = |name: &str| module == name || module.ends_with(&format!(".{name}"));
            patterns.iter().find(|(name, _)| matches(name)).map(|(_, value)| *value)
        };
        let rank = matching(&self.rank_pattern).map_or(self.rank, |rank| rank as u32);
        let alpha = matching(&self.alpha_pattern).unwrap_or(self.alpha);
        (rank, self.scale_of(alpha, rank))
    }
}

/// Refuses a rank that is none, or above a limit.
pub(super) fn check_rank(path: &Path, field: &str, rank: u64, limits: &LoraLimits) -> Result<()> {
    if rank >= 1 && rank <= u64::from(limits.max_rank) {
        return Ok(());
    }
    let limit = match rank > u64::from(MAX_LORA_RANK) {
        true => format!("from 1 to {MAX_LORA_RANK}, the largest rank here"),
        false => format!(
            "from 1 to --max-lora-rank {}; raise it to serve this adapter",
            limits.max_rank
        ),
    };
    Err(ModelError::BadField {
        path: path.to_path_buf(),
        field: field.to_owned(),
        value: rank.to_string(),
        limit,
    })
}

fn refuse_features(fields: &JsonFields) -> Result<()> {
    let path = fields.path();
    let kind = fields.string("peft_type")?.unwrap_or("LORA");
    if kind != "LORA" {
        return Err(unsupported(path, "peft_type", kind, "only LORA adapters are served"));
    }
    let task = fields.string("task_type")?.unwrap_or("CAUSAL_LM");
    if task != "CAUSAL_LM" {
        return Err(unsupported(
            path,
            "task_type",
            task,
            "adapters of text generation (CAUSAL_LM) are served",
        ));
    }
    let flags = [
        (
            "use_dora",
            "DoRA also rescales the base weights: train with use_dora=false, or merge the adapter into the model",
        ),
        (
            "fan_in_fan_out",
            "weights stored transposed belong to architectures that are not served",
        ),
        ("lora_bias", "biases of B are not served: train with lora_bias=false"),
        (
            "use_qalora",
            "QA-LoRA pools inputs before A: merge the adapter into the model",
        ),
        (
            "use_bdlora",
            "block-diagonal matrices are not served: merge the adapter into the model",
        ),
    ];
    for (field, remedy) in flags {
        if fields.bool(field)? == Some(true) {
            return Err(unsupported(path, field, "true", remedy));
        }
    }
    let bias = fields.string("bias")?.unwrap_or("none");
    if bias != "none" {
        let remedy = "biases of the base model cannot differ between adapters: train with bias=\"none\"";
        return Err(unsupported(path, "bias", bias, remedy));
    }
    let lists = [
        (
            "modules_to_save",
            "whole modules cannot differ between adapters: merge the adapter into the model",
        ),
        ("target_parameters", "parameters outside linears cannot be targets"),
        ("trainable_token_indices", "embeddings cannot differ between adapters"),
        (
            "alora_invocation_tokens",
            "activated LoRA switches within a request, which is not served",
        ),
        ("layer_replication", "layers cannot be repeated for one adapter"),
    ];
    for (field, remedy) in lists {
        match fields.value(field) {
            None => {}
            Some(Value::Array(list)) if list.is_empty() => {}
            Some(Value::Object(map)) if map.is_empty() => {}
            Some(other) => return Err(unsupported(path, field, other.to_string(), remedy)),
        }
    }
    Ok(())
}

/// Numbers by module name.
fn pattern(fields: &JsonFields, key: &str) -> Result<Vec<(String, f64)>> {
    let Some(map) = fields.object(key)? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for name in map.keys() {
        if name.contains(|c| PATTERN.contains(c)) {
            let remedy = "only plain module names are understood there, such as q_proj or model.layers.0.mlp.up_proj";
            return Err(unsupported(
                fields.path(),
                format!("{key}.{name}"),
                "a regular expression",
                remedy,
            ));
        }
        all.push((name.to_owned(), map.required_float(name)?));
    }
    Ok(all)
}

/// Targets of every layer, where `target_modules` is a list of short names and no layers are left out.
fn everywhere(fields: &JsonFields) -> Result<Vec<String>> {
    let some_layers = ["layers_to_transform", "layers_pattern", "exclude_modules"];
    let names = match fields.value("target_modules") {
        Some(Value::Array(_)) => fields.strings("target_modules")?.unwrap_or_default(),
        Some(Value::String(_)) | None => Vec::new(),
        Some(other) => return Err(fields.bad("target_modules", other, "a list of module names, or a pattern")),
    };
    if some_layers.iter().any(|key| fields.value(key).is_some()) {
        return Ok(Vec::new());
    }
    Ok(names
        .into_iter()
        .filter(|name| !name.contains('.'))
        .map(str::to_owned)
        .collect())
}
