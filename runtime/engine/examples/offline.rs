//! The offline API at work: completes prompts, or with `--speed` times prefill and decode.
//!
//! `cargo run --release -p halyard-engine --example offline -- MODEL PLUGIN.so [--speed] [PROMPT…]`

use std::time::Instant;

use halyard_engine::{EngineConfig, Llm, SamplingParams};
use halyard_plugin_host::{Catalog, SearchPath, select_platform};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(plugin)) = (args.next(), args.next()) else {
        return Err("usage: offline MODEL PLUGIN.so [--speed] [--quantized-act] [PROMPT…]".into());
    };
    let rest: Vec<String> = args.collect();
    let search = SearchPath {
        plugins: vec![plugin.into()],
        ..SearchPath::default()
    };
    let selected = select_platform(&Catalog::discover(&search), None)?;
    let mut config = EngineConfig::for_model(&model);
    config.cache.enable_prefix_caching = false;
    config.model.allow_quantized_act = rest.iter().any(|a| a == "--quantized-act");
    let started = Instant::now();
    let llm = Llm::open(config, selected.platform.open(0)?)?;
    println!(
        "loaded in {:.2} s: {:?}",
        started.elapsed().as_secs_f64(),
        llm.engine().info()
    );
    if rest.iter().any(|a| a == "--speed") {
        return speed(&llm);
    }
    let prompts: Vec<&str> = rest
        .iter()
        .filter(|a| !a.starts_with("--"))
        .map(String::as_str)
        .collect();
    for output in llm.generate(&prompts, &SamplingParams::greedy(64))? {
        println!("{}: {}", output.id, output.outputs[0].text);
    }
    Ok(())
}

/// Best of three: one prompt of 512 tokens; 128 tokens after 64; 16 requests of 128 in and 64 out.
fn speed(llm: &Llm) -> Result<(), Box<dyn std::error::Error>> {
    let prompt = |tokens: u32, salt: u32| {
        (0..tokens)
            .map(|i| (i * 37 + salt * 101) % 40_000 + 100)
            .collect::<Vec<u32>>()
    };
    let greedy = |n| SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(n)
    };
    let time = |prompts: Vec<Vec<u32>>, n: u32| -> Result<f64, Box<dyn std::error::Error>> {
        let mut best = f64::MAX;
        for _ in 0..3 {
            let started = Instant::now();
            llm.generate_ids(prompts.clone(), &greedy(n))?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        Ok(best)
    };
    println!("prefill 512: {:.0} tok/s", 512.0 / time(vec![prompt(512, 1)], 1)?);
    let first = time(vec![prompt(64, 2)], 1)?;
    println!("decode: {:.1} tok/s", 128.0 / (time(vec![prompt(64, 2)], 129)? - first));
    let many = time((0..16).map(|i| prompt(128, 3 + i)).collect(), 64)?;
    println!("16 concurrent: {:.0} output tok/s", 16.0 * 64.0 / many);
    Ok(())
}
