//! Checks what a file says of its experts' router against the router that its family has: a family reads the numbers of
//! a router, and the names of its kind are checked here, once for all families.

use halyard_platform_api::ops::Scoring;

use crate::config::gguf::GgufConfig;
use crate::config::{ExpertsMlp, JsonFields, MlpDescription, ModelDescription, bad};
use crate::error::Result;

/// Codes of `expert_gating_func` in GGUF files (llama.cpp's `llama_expert_gating_func_type`).
const SOFTMAX: usize = 1;
const SIGMOID: usize = 2;
/// A softmax over the chosen experts: that over all, divided by its sum over the chosen.
const SOFTMAX_OF_CHOSEN: usize = 3;

/// The first layer with experts; the others have the same router.
fn experts(model: &ModelDescription) -> Option<ExpertsMlp> {
    model.layers.iter().find_map(|layer| match layer.mlp {
        MlpDescription::Experts(experts) => Some(experts),
        MlpDescription::Dense(_) => None,
    })
}

fn name(scoring: Scoring) -> &'static str {
    match scoring {
        Scoring::Softmax => "softmax",
        Scoring::Sigmoid => "sigmoid",
    }
}

/// `scoring_func` and `topk_method` of a configuration, DeepSeek's names, which other makers took over.
///
/// # Errors
/// [`crate::ModelError::Unsupported`] for a name that says something else than the family's router does.
pub(super) fn check_config(config: &JsonFields, model: &ModelDescription) -> Result<()> {
    let Some(experts) = experts(model) else {
        return Ok(());
    };
    let method = match (experts.choice_bias, experts.groups) {
        (true, _) => "noaux_tc",
        (false, Some(_)) => "group_limited_greedy",
        (false, None) => "greedy",
    };
    for (field, known) in [("scoring_func", name(experts.scoring)), ("topk_method", method)] {
        if let Some(other) = config.string(field)?.filter(|&other| other != known) {
            let remedy = format!(
                "the router of {} is known with {known}: take the model's own config.json, or name its own \
                 architecture",
                model.architecture
            );
            return Err(config.unsupported(field, other, &remedy));
        }
    }
    Ok(())
}

/// `expert_gating_func` of a GGUF file.
///
/// # Errors
/// [`crate::ModelError::BadField`] for a function that the family's router does not have.
pub(super) fn check_file(config: &GgufConfig, model: &ModelDescription) -> Result<()> {
    let (Some(experts), Some(found)) = (experts(model), config.unsigned("expert_gating_func")?) else {
        return Ok(());
    };
    let fits = match experts.scoring {
        // 0: the converter did not say.
        Scoring::Softmax => found <= SOFTMAX || (found == SOFTMAX_OF_CHOSEN && experts.norm_topk),
        Scoring::Sigmoid => found == 0 || found == SIGMOID,
    };
    if fits {
        return Ok(());
    }
    let code = match experts.scoring {
        Scoring::Softmax => SOFTMAX,
        Scoring::Sigmoid => SIGMOID,
    };
    let limit = format!(
        "{code} ({}), as the router of {} has it",
        name(experts.scoring),
        model.architecture
    );
    let field = format!("{}.expert_gating_func", config.arch);
    Err(bad(config.file.path(), &field, found, limit))
}
