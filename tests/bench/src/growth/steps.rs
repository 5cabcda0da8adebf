//! Curves of the whole engine on a device that answers at once: the host's time for a step, in microseconds. Nobody
//! reads the tokens, so that readers take no time from it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halyard_engine::{AdapterSource, EngineConfig, Llm, LoraConfig, OutputStream, Request, SamplingParams};
use halyard_models::LoadFormat;
use halyard_null::{EchoPlatform, echo_ranks};
use halyard_platform_api::{Device, Platform};

use super::Planned;
use super::curve::{Curve, Law};
use crate::error::BenchError;
use crate::step::write_config;

const WAITING: [u64; 4] = [10, 100, 1000, 10_000];
const RUNNING: [u64; 6] = [1, 4, 16, 64, 256, 1024];
const CONTEXT: [u64; 4] = [1 << 10, 8 << 10, 32 << 10, 128 << 10];
const ADAPTERS: [u64; 5] = [0, 1, 8, 32, 64];
/// A measurement's length, and how many there are: many short ones, of which some are not disturbed. Tokens gather
/// until they end.
const WINDOW: Duration = Duration::from_millis(12);
const WINDOWS: usize = 16;
const TOKENS: u32 = 1 << 17;

/// What runs.
#[derive(Clone, Copy)]
struct Load {
    rows: u32,
    prompt: usize,
    waiting: u64,
    adapters: u64,
    ranks: u32,
}

const USUAL: Load = Load {
    rows: 256,
    prompt: 8,
    waiting: 0,
    adapters: 0,
    ranks: 1,
};

/// All of them.
pub fn curves() -> Vec<Planned> {
    let curve = |id: &str, title: &str, x: &str, law| Curve::new(id, title, x, "us a step", law);
    let constant = |id: &str, title: &str, x: &str| curve(id, title, x, Law::Constant);
    vec![
        Planned::new(
            constant("step-waiting", "step, 256 decode, no row free", "waiting requests"),
            &WAITING,
            |n| measure(Load { waiting: n, ..USUAL }),
        ),
        Planned::new(
            curve("step-running", "step, all decode", "running requests", Law::Linear),
            &RUNNING,
            |n| {
                measure(Load {
                    rows: n as u32,
                    ..USUAL
                })
            },
        ),
        Planned::new(
            constant("step-context", "step, 16 decode", "tokens of context"),
            &CONTEXT,
            |n| {
                measure(Load {
                    rows: 16,
                    prompt: n as usize,
                    ..USUAL
                })
            },
        ),
        Planned::new(
            constant(
                "step-adapters",
                "step, 256 decode over n adapters",
                "adapters on the device",
            ),
            &ADAPTERS,
            |n| measure(Load { adapters: n, ..USUAL }),
        ),
        Planned::new(
            constant("step-ranks", "step, 256 decode", "ranks, a thread each"),
            &[1, 2],
            |n| {
                measure(Load {
                    ranks: n as u32,
                    ..USUAL
                })
            },
        ),
    ]
}

/// The host's time for a step under a load: the least of a few windows.
fn measure(load: Load) -> Result<f64, BenchError> {
    let folder = ModelFolder::new()?;
    let mut config = EngineConfig::for_model(&folder.0);
    config.model.load_format = LoadFormat::Dummy;
    config.scheduler.max_num_seqs = load.rows;
    config.scheduler.max_waiting = 1 << 16;
    config.scheduler.max_num_batched_tokens = Some(1 << 15);
    config.cache.kv_cache_memory_bytes = Some(48 << 30);
    let name = |adapter: u64| format!("adapter-{adapter}");
    config.lora = (load.adapters > 0).then(|| LoraConfig {
        adapters: (0..load.adapters)
            .map(|adapter| (name(adapter), AdapterSource::Dummy { rank: 4, seed: adapter }))
            .collect(),
        max_loras: load.adapters as u32,
        max_rank: 8,
        ..LoraConfig::default()
    });
    let devices: Vec<Arc<dyn Device>> = match load.ranks {
        1 => vec![EchoPlatform.open(0)?],
        ranks => echo_ranks(ranks)?,
    };
    let llm = Llm::open_on(config, &devices)?;
    let params = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(TOKENS)
    };
    let mut streams: Vec<OutputStream> = Vec::new();
    let submit = |index: u64, prompt: usize| {
        let mut tokens = vec![3; prompt];
        tokens[0] = 3 + (index % 500) as u32;
        let mut request = Request::new(format!("{index}"), tokens, params.clone());
        request.lora = index.checked_rem(load.adapters).map(name);
        llm.engine().submit(request)
    };
    for index in 0..u64::from(load.rows) {
        streams.push(submit(index, load.prompt)?);
    }
    let running = || llm.engine().stats().num_running;
    while running() < u64::from(load.rows) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for index in 0..load.waiting {
        streams.push(submit(u64::from(load.rows) + index, 16)?);
    }
    while llm.engine().stats().num_waiting < load.waiting {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Prompts are computed, and recordings made.
    window(&llm);
    Ok((0..WINDOWS).map(|_| window(&llm)).fold(f64::MAX, f64::min))
}

/// Microseconds a step over a window.
fn window(llm: &Llm) -> f64 {
    let (start, before) = (Instant::now(), llm.engine().stats().steps_total);
    std::thread::sleep(WINDOW);
    let steps = llm.engine().stats().steps_total - before;
    start.elapsed().as_secs_f64() * 1e6 / steps.max(1) as f64
}

/// The model's folder, as long as it is needed.
struct ModelFolder(PathBuf);

impl ModelFolder {
    fn new() -> Result<ModelFolder, BenchError> {
        let folder = std::env::temp_dir().join(format!("halyard-bench-growth-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(BenchError::io("making a folder for the model"))?;
        write_config(&folder, 1 << 18)?;
        Ok(ModelFolder(folder))
    }
}

impl Drop for ModelFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
