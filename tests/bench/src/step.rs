//! Measures the host's work for one decode step of the whole engine at 256 and 512 running requests: planning, step
//! writes, replaying a recording or encoding a 30-layer model, reading results and handing tokens over. The device
//! computes nothing, so the time is the host's. Budget: 100 µs at 256, 150 µs at 512.

use std::path::Path;
use std::time::{Duration, Instant};

use halyard_engine::{EngineConfig, Llm, Request, SamplingParams};
use halyard_models::LoadFormat;
use halyard_null::EchoPlatform;
use halyard_platform_api::Platform;
use serde_json::json;

use crate::error::BenchError;
use crate::report::Report;

/// Rows, whether steps are encoded one by one, and the budget in microseconds.
const CASES: [(u32, bool, f64); 3] = [(256, true, 100.0), (256, false, 100.0), (512, false, 150.0)];
const TOKENS: u32 = 1000;
const PROMPT: usize = 8;

/// Runs the engine on a device that answers at once.
pub fn measure() -> Result<Vec<Report>, BenchError> {
    let folder = std::env::temp_dir().join(format!("halyard-bench-step-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(BenchError::io("making a folder for the model"))?;
    let cases = CASES
        .iter()
        .map(|&(rows, eager, budget)| run(&folder, rows, eager, budget));
    let outcome = write_config(&folder, 2048).and_then(|()| cases.collect());
    std::fs::remove_dir_all(&folder).map_err(BenchError::io("removing the model's folder"))?;
    outcome
}

/// 30 layers as SmolLM2-135M has, but narrow: nothing computes, and dummy weights take time to make. Two ranks can
/// share its heads.
pub fn write_config(folder: &Path, context: u32) -> Result<(), BenchError> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
            "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 96, "max_position_embeddings": context,
        "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    });
    std::fs::write(folder.join("config.json"), config.to_string()).map_err(BenchError::io("writing config.json"))
}

fn run(folder: &Path, rows: u32, enforce_eager: bool, budget: f64) -> Result<Report, BenchError> {
    let mut config = EngineConfig::for_model(folder);
    config.model.load_format = LoadFormat::Dummy;
    config.scheduler.max_num_seqs = rows;
    config.recording.enforce_eager = enforce_eager;
    config.cache.kv_cache_memory_bytes = Some(8 << 30);
    let llm = Llm::open(config, EchoPlatform.open(0)?)?;
    let params = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(TOKENS)
    };
    let submit = |i: u32| {
        llm.engine()
            .submit(Request::new(format!("{i}"), vec![i % 500 + 3; PROMPT], params.clone()))
    };
    let streams = (0..rows).map(submit).collect::<Result<Vec<_>, _>>()?;
    let engine = llm.engine();
    let (before, start) = (engine.stats().steps_total, Instant::now());
    let wall_us = std::thread::scope(|scope| {
        // Detokenising takes longer than the engine does; the engine never waits for it, and neither does the clock.
        let ended = scope.spawn(|| {
            while engine.stats().requests_finished[1] < u64::from(rows) {
                std::thread::sleep(Duration::from_micros(500));
            }
            start.elapsed().as_secs_f64() * 1e6
        });
        for mut stream in streams {
            while stream.blocking_next().is_some() {}
        }
        ended.join().unwrap_or(f64::NAN)
    });
    let steps = engine.stats().steps_total - before;
    let info = engine.info();
    Ok(Report {
        name: format!(
            "engine step, host side, {rows} rows, {}",
            if enforce_eager { "encoded" } else { "replayed" }
        ),
        measured: wall_us / steps as f64,
        unit: "us a step",
        budget,
        details: json!({ "rows": rows, "steps": steps, "replayed": engine.stats().replayed_steps_total,
            "ops": info.num_step_ops }),
    })
}
