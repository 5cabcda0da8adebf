//! Perplexity over a fixed text: e to the mean of −ln p of its tokens, with exact activations and with rounded ones, so
//! that what rounding costs is a number for each weight format. The text is the beginning of a novel out of copyright
//! (tests/fixtures/text/perplexity).

use halyard_engine::{EngineConfig, Llm, SamplingParams, kv_dtype_name};
use halyard_plugin_host::{Catalog, SearchPath, select_platform};
use serde_json::json;

use crate::error::BenchError;
use crate::figures::{self, Better, Column, Pair, Row};
use crate::options::Options;

const TEXT: &str = include_str!("../../fixtures/text/perplexity/alice.txt");
/// Tokens of a window; each is scored with what precedes it there.
const WINDOW: usize = 512;

/// Scores the text with every model, exact and rounded, and prints a line each.
///
/// # Errors
/// A model or platform that does not open.
pub fn run(options: &Options) -> Result<(), BenchError> {
    let models = &options.models;
    if models.is_empty() {
        return Err(BenchError::Usage {
            found: "perplexity needs --model, which may be repeated".to_string(),
        });
    }
    let (exact_kv, rounded_kv) = match options.kv {
        None => ("f32".to_owned(), "the platform's choice".to_owned()),
        Some(kv) => (kv_dtype_name(kv), kv_dtype_name(kv)),
    };
    println!(
        "| model | tokens | exact (f32, KV {exact_kv}) | rounded activations, KV {rounded_kv} | change \
         |\n|---|---|---|---|---|"
    );
    for model in models {
        let (tokens, exact) = score(options, model, false)?;
        let (_, rounded) = score(options, model, true)?;
        let change = 100.0 * (rounded / exact - 1.0);
        println!("| {model} | {tokens} | {exact:.4} | {rounded:.4} | {change:+.3} % |");
        println!(
            "{}",
            json!({ "bench": "perplexity", "model": model, "tokens": tokens, "exact": exact, "rounded": rounded,
                "change_percent": change })
        );
        let Some(path) = &options.json else { continue };
        let units = [("exact", "perplexity"), ("rounded", "perplexity"), ("change", "%")];
        let columns = units.map(|(name, unit)| Column::new(name, unit, Better::Lower));
        let mut row = Row::of_today(options.row.as_ref().unwrap_or(model), None);
        for ((name, _), value) in units.iter().zip([exact, rounded, change]) {
            row.figures.insert((*name).into(), Pair::new(&[value], &[]));
        }
        figures::record(path, &columns, vec![row])?;
    }
    Ok(())
}

/// (tokens scored, perplexity).
fn score(options: &Options, model: &str, rounded: bool) -> Result<(usize, f64), BenchError> {
    let search = SearchPath {
        plugins: options.plugin.iter().cloned().collect(),
        ..SearchPath::default()
    };
    let selected = select_platform(&Catalog::discover(&search), None)?;
    let mut config = EngineConfig::for_model(model);
    config.cache.enable_prefix_caching = false;
    config.cache.kv_cache_memory_bytes = Some(256 << 20);
    config.scheduler.max_num_seqs = 2;
    config.model.max_model_len = Some(2 * WINDOW as u32);
    config.model.allow_quantized_act = rounded;
    config.cache.kv_cache_dtype = options.kv;
    let llm = Llm::open(config, selected.platform.open(0)?)?;
    let ids = llm.engine().tokenizer().encode(TEXT, true);
    let mut ids = ids.map_err(|error| BenchError::Text {
        message: error.to_string(),
    })?;
    ids.truncate(options.tokens);
    let params = SamplingParams {
        prompt_logprobs: Some(0),
        ..SamplingParams::greedy(1)
    };
    let windows = ids
        .chunks(WINDOW)
        .filter(|window| window.len() > 1)
        .map(<[u32]>::to_vec);
    let (mut count, mut sum) = (0, 0.0);
    for window in windows {
        for output in llm.generate_ids(vec![window], &params)? {
            for position in output.prompt_logprobs.unwrap_or_default().into_iter().flatten() {
                count += 1;
                sum += f64::from(position.chosen.logprob);
            }
        }
    }
    if count == 0 {
        return Err(BenchError::Text {
            message: "no token of the text was scored".to_string(),
        });
    }
    Ok((count, (-sum / count as f64).exp()))
}
