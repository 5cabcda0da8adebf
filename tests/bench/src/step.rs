//! What the host does for one decode step of the whole engine at 256 running requests: planning, step writes, encoding a 30-layer
//! model, reading results and handing tokens over. The device computes nothing, so the time is the host's. Budget: 100 µs.

use std::path::Path;
use std::time::{Duration, Instant};

use halyard_engine::{EngineConfig, Llm, Request, SamplingParams};
use halyard_models::LoadFormat;
use halyard_null::EchoPlatform;
use halyard_platform_api::Platform;
use serde_json::json;

use crate::error::BenchError;
use crate::report::Report;

const BUDGET_US: f64 = 100.0;
const ROWS: u32 = 256;
const TOKENS: u32 = 1000;
const PROMPT: usize = 8;

/// Runs the engine on a device that answers at once.
pub fn measure() -> Result<Vec<Report>, BenchError> {
    let folder = std::env::temp_dir().join(format!("halyard-bench-step-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(BenchError::io("making a folder for the model"))?;
    let outcome = write_config(&folder).and_then(|()| run(&folder));
    std::fs::remove_dir_all(&folder).map_err(BenchError::io("removing the model's folder"))?;
    Ok(vec![outcome?])
}

/// 30 layers as SmolLM2-135M has, but narrow: nothing computes, and dummy weights take time to make.
fn write_config(folder: &Path) -> Result<(), BenchError> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 72, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 96, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    });
    std::fs::write(folder.join("config.json"), config.to_string()).map_err(BenchError::io("writing config.json"))
}

fn run(folder: &Path) -> Result<Report, BenchError> {
    let mut config = EngineConfig::for_model(folder);
    config.model.load_format = LoadFormat::Dummy;
    config.scheduler.max_num_seqs = ROWS;
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
    let streams = (0..ROWS).map(submit).collect::<Result<Vec<_>, _>>()?;
    let engine = llm.engine();
    let (before, start) = (engine.stats().steps_total, Instant::now());
    let wall_us = std::thread::scope(|scope| {
        // Detokenising takes longer than the engine does; the engine never waits for it, and neither does the clock.
        let ended = scope.spawn(|| {
            while engine.stats().requests_finished[1] < u64::from(ROWS) {
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
        name: "engine step, host side".to_string(),
        measured: wall_us / steps as f64,
        unit: "us a step",
        budget: BUDGET_US,
        details: json!({ "rows": ROWS, "steps": steps, "ops": info.num_step_ops }),
    })
}
