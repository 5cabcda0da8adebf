//! The flag `--structured-outputs-config`: vLLM's keys, read strictly.

use clap::Args;
use halyard_engine::GrammarConfig;
use serde::Deserialize;

/// Names of vLLM's grammar libraries. Here one library compiles all constraints.
const BACKENDS: [&str; 5] = ["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"];

/// Structured output.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Requests")]
pub struct StructuredArgs {
    /// Settings of structured output, as JSON or key by key (--structured-outputs-config.KEY VALUE):
    /// disable_any_whitespace (JSON of answers has no white space between its parts), disable_additional_properties
    /// (objects have the properties that their schema names and no others), enable_in_reasoning (grammars bind from the
    /// first token on; otherwise a model with a reasoning parser reasons first); backend: any of vLLM's names
    #[arg(long, value_name = "JSON", env = "HALYARD_STRUCTURED_OUTPUTS_CONFIG", value_parser = parse)]
    structured_outputs_config: Option<StructuredConfig>,
}

/// A value of the flag.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StructuredConfig {
    backend: Option<String>,
    disable_any_whitespace: bool,
    disable_additional_properties: bool,
    reasoning_parser: String,
    reasoning_parser_plugin: String,
    enable_in_reasoning: bool,
}

fn parse(text: &str) -> Result<StructuredConfig, String> {
    let config: StructuredConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(backend) = config.backend.as_deref().filter(|backend| !BACKENDS.contains(backend)) {
        let known = BACKENDS.join(", ");
        return Err(format!(
            "backend `{backend}` is not known; known are {known}, and one library does the work of all"
        ));
    }
    if !config.reasoning_parser.is_empty() || !config.reasoning_parser_plugin.is_empty() {
        return Err("reasoning_parser: name the parser by --reasoning-parser; parsers are no plugins".to_owned());
    }
    Ok(config)
}

impl StructuredArgs {
    /// Whether grammars bind from the first token on, also where a model could reason.
    pub fn binds_reasoning(&self) -> bool {
        let config = self.structured_outputs_config.as_ref();
        config.is_some_and(|config| config.enable_in_reasoning)
    }

    /// The engine's bounds and defaults.
    pub fn config(&self) -> GrammarConfig {
        let asked = self.structured_outputs_config.clone().unwrap_or_default();
        if let Some(backend) = asked
            .backend
            .filter(|backend| backend != "auto" && backend != "guidance")
        {
            tracing::info!("--structured-outputs-config.backend {backend}: llguidance does its work here");
        }
        GrammarConfig {
            disable_any_whitespace: asked.disable_any_whitespace,
            disable_additional_properties: asked.disable_additional_properties,
            ..GrammarConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_vllms_and_others_are_refused() {
        let right = parse(r#"{"backend": "xgrammar", "disable_any_whitespace": true, "enable_in_reasoning": false}"#);
        assert!(right.is_ok_and(|config| config.disable_any_whitespace && !config.disable_additional_properties));
        for (wrong, words) in [
            ("{\"backend\": \"mine\"}", "`mine` is not known"),
            ("{\"reasoning_parser\": \"qwen3\"}", "--reasoning-parser"),
            ("{\"disable_whitespace\": true}", "unknown field"),
            ("{\"disable_any_whitespace\": 5}", "a boolean"),
            ("[1]", "expected"),
        ] {
            let error = parse(wrong).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
