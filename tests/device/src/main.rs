//! `halyard-device-check`: runs on a machine with a device and without Rust, loads the platform as the server does, and
//! prints a table: conformance per op, models and adapters against Hugging Face, and that recorded steps, many replays
//! and several devices are right. Exit status 0: nothing failed.

mod options;
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use halyard_device_check::goldens::{
    self, BF16, BF16_KV_FP8, BF16_KV_INT4, BF16_KV_INT8, Bounds, F16, F16_KV_FP8, F16_KV_INT4, F16_KV_INT8, F32, Free,
    KV_FP8, KV_FP8_GOLDENS, KV_FP8_MODELS, KV_INT4, KV_INT4_GOLDENS, KV_INT8, KV_INT8_GOLDENS, KV_SCALE_MODELS,
    NOT_IN_BF16, NOT_IN_F16, NOT_OVER_U4_IN_HALVES,
};
use halyard_device_check::{collectives, drafts, hidden_states, lora, recording, tensor_parallel};
use halyard_engine::{EngineConfig, Llm};
use halyard_platform_api::{DType, Device, Platform};
use halyard_plugin_host::{Catalog, SearchPath, select_platform};

use options::{Check, Options};
use table::Table;

/// Tiny models, their goldens.
const FAMILIES: [(&str, &str); 31] = [
    ("llama", "llama/goldens.json"),
    ("llama3-rope", "llama3-rope/goldens.json"),
    ("smollm2", "smollm2/goldens.json"),
    ("mistral", "mistral/goldens.json"),
    ("qwen2", "qwen2/goldens.json"),
    ("qwen3", "qwen3/goldens.json"),
    ("llama-fp8", "llama-fp8/goldens.json"),
    ("qwen3-fp8", "qwen3-fp8/goldens.json"),
    ("gemma3", "gemma3/goldens.json"),
    ("gemma2", "gemma2/goldens.json"),
    ("glm4", "glm4/goldens.json"),
    ("cohere2", "cohere2/goldens.json"),
    ("gpt2", "gpt2/goldens.json"),
    ("olmo2", "olmo2/goldens.json"),
    ("granite-moe", "granite-moe/goldens.json"),
    ("qwen2-moe", "qwen2-moe/goldens.json"),
    ("glm4-moe", "glm4-moe/goldens.json"),
    ("deepseek-v2", "deepseek-v2/goldens.json"),
    ("deepseek-v3", "deepseek-v3/goldens.json"),
    ("deepseek-v3-fp8", "deepseek-v3-fp8/goldens.json"),
    ("gguf/deepseek-v3-gguf.gguf", "gguf/deepseek-v3-gguf.golden.json"),
    ("gpt-oss", "gpt-oss/goldens.json"),
    ("nemotron", "nemotron/goldens.json"),
    ("cohere-plus", "cohere-plus/goldens.json"),
    ("gguf/llama-gguf.gguf", "gguf/llama-gguf.golden.json"),
    ("gguf/llama3-rope-gguf.gguf", "gguf/llama3-rope-gguf.golden.json"),
    ("gguf/qwen3-gguf.gguf", "gguf/qwen3-gguf.golden.json"),
    ("gguf/gemma3-gguf.gguf", "gguf/gemma3-gguf.golden.json"),
    ("gguf/llama-k-mix-gguf.gguf", "gguf/llama-k-mix-gguf.golden.json"),
    ("gguf/llama-iq-mix-gguf.gguf", "gguf/llama-iq-mix-gguf.golden.json"),
    ("gguf/qwen3-moe-iq-gguf.gguf", "gguf/qwen3-moe-iq-gguf.golden.json"),
];

/// Tiny models of quantised checkpoints, a folder each. They run where `--golden` names them; the first of them, one of
/// each kind of codes (U4, I8, E2M1, 8-bit floats), always.
const QUANTISED: [&str; 26] = [
    "quant/awq",
    "quant/gptq-8",
    "quant/ct-nvfp4",
    "quant/fp8-blocks",
    "quant/auto-round",
    "quant/autoawq",
    "quant/bnb-fp4",
    "quant/bnb-int8",
    "quant/bnb-nf4",
    "quant/ct-mixed",
    "quant/ct-mxfp4",
    "quant/ct-w4a16",
    "quant/ct-w4a16-asym",
    "quant/ct-w8a16",
    "quant/ct-w8a8",
    "quant/fp8-square-blocks",
    "quant/gptq-2-v2",
    "quant/gptq-3",
    "quant/gptq-4",
    "quant/gptq-4-act-order",
    "quant/gptq-4-cut-groups",
    "quant/gptq-4-sym-row",
    "quant/hqq-3-axis-0",
    "quant/hqq-4",
    "quant/hqq-mixed",
    "quant/modelopt-nvfp4",
];
/// How many of [`QUANTISED`] run unasked, in f32.
const ALWAYS: usize = 4;

/// Every tiny model, and its goldens.
fn tiny_models() -> impl Iterator<Item = (&'static str, String)> {
    let families = FAMILIES.iter().map(|(model, golden)| (*model, (*golden).to_string()));
    families.chain(QUANTISED.iter().map(|model| (*model, format!("{model}/goldens.json"))))
}

/// Whether a tiny model runs in this type.
fn runs(options: &Options, model: &str, dtype: DType) -> bool {
    let named = options.only_models.iter().any(|name| name == model);
    let number = tiny_models().position(|(name, _)| name == model).unwrap_or_default();
    let unasked = match QUANTISED.iter().position(|name| *name == model) {
        Some(place) => place < ALWAYS && dtype == DType::F32,
        None => true,
    };
    let turns = match dtype {
        DType::BF16 => NOT_IN_BF16.contains(&model),
        DType::F16 => NOT_IN_F16.contains(&model),
        _ => false,
    };
    options.wants(model) && (named || unasked && options.shares(number)) && !turns
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("halyard-device-check: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let options = Options::parse(std::env::args().skip(1))?;
    let names: Vec<&str> = tiny_models().map(|(name, _)| name).collect();
    if let Some(unknown) = options
        .only_models
        .iter()
        .find(|model| !names.contains(&model.as_str()))
    {
        return Err(format!("--golden {unknown}: the tiny models are {}", names.join(", ")));
    }
    // What the engine cannot use, and what a platform says of its choices.
    tracing_subscriber::fmt()
        .with_env_filter("warn,halyard_plugin=debug")
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let platform = load(&options)?;
    let mut table = Table::default();
    for check in &options.checks {
        match check {
            Check::Conformance => conformance(&*platform, &options, &mut table)?,
            Check::Goldens => {
                if options.only_kv.is_empty() {
                    golden_models(&*platform, &options, &mut table)?;
                }
                if options.only_models.is_empty() {
                    golden_models_over_narrow_kv(&*platform, &options, &mut table)?;
                }
            }
            Check::Lora => adapters(&*platform, &options, &mut table)?,
            Check::Recording => recorded(&*platform, &options, &mut table)?,
            Check::Drafts => {
                let outcome = drafts::check(&open(&*platform)?, &options.fixtures, small);
                note("drafts", outcome, &mut table);
            }
            Check::HiddenStates => {
                for (name, outcome) in hidden_states::check_models(&open(&*platform)?, &options.fixtures, small) {
                    note_or_skip(&name, outcome, &mut table);
                }
            }
            Check::Replays => replays(&*platform, &options, &mut table)?,
            Check::Collectives => {
                for (name, outcome) in collectives::check(&several(&*platform, "collectives", &mut table)?) {
                    note(&name, outcome, &mut table);
                }
            }
            Check::TensorParallel => {
                let devices = several(&*platform, "tensor parallel", &mut table)?;
                for (name, outcome) in tensor_parallel::check(&devices, &options.fixtures, small) {
                    note(&name, outcome, &mut table);
                }
            }
        }
    }
    table.print();
    Ok(table.passed())
}

/// The platform, found and checked as the server does.
fn load(options: &Options) -> Result<Arc<dyn Platform>, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let search = SearchPath {
        plugins: options.plugin.iter().cloned().collect(),
        program_folder: program.parent().map(Path::to_path_buf),
        ..SearchPath::default()
    };
    let selected = select_platform(&Catalog::discover(&search), Some(&options.platform)).map_err(|e| e.to_string())?;
    for (i, info) in selected.devices.iter().enumerate() {
        println!("device {i}: {} ({})", info.name, info.detail);
    }
    Ok(selected.platform)
}

fn open(platform: &dyn Platform) -> Result<Arc<dyn Device>, String> {
    platform.open(0).map_err(|e| e.to_string())
}

fn conformance(platform: &dyn Platform, options: &Options, table: &mut Table) -> Result<(), String> {
    let settings = halyard_conformance::Options {
        only_op: options.only_op.clone(),
        filter: options.only_variant.clone(),
        share: options.share,
        ..halyard_conformance::Options::default()
    };
    let devices: Vec<_> = (0..options.jobs).map(|_| open(platform)).collect::<Result<_, _>>()?;
    let report = halyard_conformance::run_shared(&devices, &settings).map_err(|e| e.to_string())?;
    println!("{report}");
    for row in &report.rows {
        let name = format!("conformance {} {}", row.op, row.variant);
        match (&row.unsupported, row.failures.first()) {
            (_, Some(failure)) => table.fail(&name, failure),
            (Some(reason), None) => table.skip(&name, reason),
            (None, None) => table.pass(
                &name,
                &format!("{} cases, worst {:.2} of tolerance", row.cases, row.worst),
            ),
        }
    }
    Ok(())
}

/// The small configuration that tiny models run with: several chunks a prompt, several blocks a sequence.
fn small(path: &Path) -> EngineConfig {
    let mut config = EngineConfig::for_model(path);
    config.cache.kv_cache_memory_bytes = Some(16 << 20);
    config.cache.block_size = Some(16);
    config.scheduler.max_num_seqs = 8;
    config.scheduler.max_num_batched_tokens = Some(48);
    // Few steps come here: the first of each size is recorded.
    config.recording.from_step = 1;
    config
}

/// The types that were asked for, with how far each may be from Hugging Face's fp32.
fn types(options: &Options) -> impl Iterator<Item = (DType, Bounds)> {
    let types: BoundsOfTypes = [(DType::F32, F32), (DType::F16, F16), (DType::BF16, BF16)];
    let only = options.only_dtype;
    types
        .into_iter()
        .filter(move |(dtype, _)| only.is_none_or(|only| only == *dtype))
}

fn adapters(platform: &dyn Platform, options: &Options, table: &mut Table) -> Result<(), String> {
    let types: Vec<_> = types(options).collect();
    for (name, outcome) in lora::check(&open(platform)?, &options.fixtures, &types, small) {
        note_or_skip(&name, outcome, table);
    }
    Ok(())
}

fn golden_models(platform: &dyn Platform, options: &Options, table: &mut Table) -> Result<(), String> {
    let info = open(platform)?.info().clone();
    for (dtype, bounds) in types(options) {
        if !info.compute_dtypes.contains(dtype) || !info.kv_dtypes.contains(dtype) {
            table.skip(
                &format!("goldens in {dtype:?}"),
                "the device does not compute in it or hold KV in it",
            );
            continue;
        }
        for (model, golden) in tiny_models().filter(|(model, _)| runs(options, model, dtype)) {
            let mut config = small(&options.fixtures.join(model));
            (config.model.dtype, config.cache.kv_cache_dtype) = (Some(dtype), Some(dtype));
            // In half precision near ties fall either way, so only f32 runs free.
            let free = if dtype == DType::F32 {
                Free::All
            } else {
                Free::Only(&[])
            };
            let name = format!("goldens {model} {dtype:?}");
            golden_model(
                platform,
                config,
                &options.fixtures.join(golden),
                bounds,
                free,
                &name,
                table,
            )?;
        }
        if !options.only_models.is_empty() || !options.shares(0) {
            continue;
        }
        let Some(model) = &options.model else {
            table.skip(&format!("goldens SmolLM2-135M {dtype:?}"), "--model names no file");
            continue;
        };
        let golden = options.fixtures.join("smollm2-135m-q4_1.golden.json");
        let mut config = EngineConfig::for_model(model);
        config.cache.kv_cache_memory_bytes = Some(1 << 30);
        // One request at a time comes; more rows would only be recorded, for minutes on a CPU.
        config.scheduler.max_num_seqs = 8;
        (config.model.dtype, config.cache.kv_cache_dtype) = (Some(dtype), Some(dtype));
        let free = if dtype == DType::F32 {
            Free::All
        } else {
            Free::Only(&["code", "multiturn"])
        };
        let name = format!("goldens SmolLM2-135M Q4_1 {dtype:?}");
        golden_model(platform, config, &golden, bounds, free, &name, table)?;
    }
    Ok(())
}

/// What to hold activations of every type to.
type BoundsOfTypes = [(DType, Bounds); 3];

/// Types of keys and values narrower than any activations, with their golden files.
const NARROW_KV: [(DType, &str, BoundsOfTypes); 3] = [
    (
        DType::F8E4M3,
        KV_FP8_GOLDENS,
        [
            (DType::F32, KV_FP8),
            (DType::F16, F16_KV_FP8),
            (DType::BF16, BF16_KV_FP8),
        ],
    ),
    (
        DType::I8,
        KV_INT8_GOLDENS,
        [
            (DType::F32, KV_INT8),
            (DType::F16, F16_KV_INT8),
            (DType::BF16, BF16_KV_INT8),
        ],
    ),
    (
        DType::U4,
        KV_INT4_GOLDENS,
        [
            (DType::F32, KV_INT4),
            (DType::F16, F16_KV_INT4),
            (DType::BF16, BF16_KV_INT4),
        ],
    ),
];

/// Keys and values in 8 and 4 bits, under activations of every type.
fn golden_models_over_narrow_kv(platform: &dyn Platform, options: &Options, table: &mut Table) -> Result<(), String> {
    let info = open(platform)?.info().clone();
    let wanted = |dtype: DType| options.only_dtype.is_none_or(|only| only == dtype);
    let mut number = 0..;
    let wanted_kv = |kv: DType| options.only_kv.is_empty() || options.only_kv.contains(&kv);
    for (kv, golden, types) in NARROW_KV.into_iter().filter(|(kv, ..)| wanted_kv(*kv)) {
        for (dtype, bounds) in types.into_iter().filter(|(dtype, _)| wanted(*dtype)) {
            if !info.compute_dtypes.contains(dtype) || !info.kv_dtypes.contains(kv) {
                table.skip(
                    &format!("goldens in {dtype:?}, kv {kv:?}"),
                    "the device does not compute in it or hold such KV",
                );
                continue;
            }
            let scaled = KV_SCALE_MODELS
                .iter()
                .filter(|_| kv == DType::F8E4M3 && dtype == DType::F32);
            let told = |model: &&&str| dtype == DType::F32 || kv != DType::U4 || **model != NOT_OVER_U4_IN_HALVES;
            let models = KV_FP8_MODELS.iter().filter(told).chain(scaled);
            for (model, _) in models.zip(&mut number).filter(|(_, number)| options.shares(*number)) {
                let folder = options.fixtures.join(model);
                let mut config = small(&folder);
                (config.model.dtype, config.cache.kv_cache_dtype) = (Some(dtype), Some(kv));
                let name = format!("goldens {model} {dtype:?}, kv {kv:?}");
                let golden = folder.join(golden);
                golden_model(platform, config, &golden, bounds, Free::Only(&[]), &name, table)?;
            }
        }
    }
    Ok(())
}

fn golden_model(
    platform: &dyn Platform,
    config: EngineConfig,
    golden: &Path,
    bounds: Bounds,
    free: Free,
    name: &str,
    table: &mut Table,
) -> Result<(), String> {
    let checked = Llm::open(config, open(platform)?)
        .map_err(|e| e.to_string())
        .and_then(|llm| goldens::check(&llm, golden, bounds, free));
    let summary = checked.map(|cases| {
        let worst = cases.iter().map(|c| c.worst).fold(0.0, f64::max);
        let positions: usize = cases.iter().map(|c| c.positions).sum();
        format!(
            "{positions} positions, worst logprob difference {worst:.2e}, root mean square {:.2e}",
            goldens::root_mean_square(&cases)
        )
    });
    note_or_skip(name, summary, table);
    Ok(())
}

/// Whether the model was refused because the platform's language lacks the kernel of an op that others have: a stated
/// limit, and no fault.
fn lacks_a_kernel(why: &str) -> bool {
    why.starts_with("this platform cannot run the model") && why.contains("has no kernel in")
}

fn recorded(platform: &dyn Platform, options: &Options, table: &mut Table) -> Result<(), String> {
    let device = open(platform)?;
    if let Err(why) = recording::applies(&*device) {
        table.skip("recording", &why);
        return Ok(());
    }
    for (name, outcome) in recording::check(
        &device,
        &options.fixtures,
        &[DType::F32, DType::F16, DType::BF16],
        |number| options.shares(number),
        small,
    ) {
        note(&name, outcome, table);
    }
    Ok(())
}

fn replays(platform: &dyn Platform, options: &Options, table: &mut Table) -> Result<(), String> {
    let device = open(platform)?;
    if let Err(why) = recording::applies(&*device) {
        table.skip("replays", &why);
        return Ok(());
    }
    let config = small(&options.fixtures.join("llama"));
    let outcome = recording::many_replays(&device, config, u64::from(options.replays), true);
    note("replays", outcome, table);
    Ok(())
}

fn note(name: &str, outcome: Result<String, String>, table: &mut Table) {
    match outcome {
        Ok(measured) => table.pass(name, &measured),
        Err(why) => table.fail(name, &why),
    }
}

/// As [`note`]; a model that needs a kernel which the platform's language lacks is skipped.
fn note_or_skip(name: &str, outcome: Result<String, String>, table: &mut Table) {
    match outcome {
        Err(why) if lacks_a_kernel(&why) => table.skip(name, &why),
        outcome => note(name, outcome, table),
    }
}

/// Up to four devices; none where there are fewer than two.
fn several(platform: &dyn Platform, check: &str, table: &mut Table) -> Result<Vec<Arc<dyn Device>>, String> {
    let count = platform.devices().map_err(|e| e.to_string())?.len();
    if count < 2 {
        table.skip(check, &format!("{count} device here; two are needed"));
        return Ok(Vec::new());
    }
    if count < 4 {
        let name = format!("{check} 4");
        table.skip(&name, &format!("{count} devices here; four are needed"));
    }
    let open = |index| platform.open(index).map_err(|e| format!("device {index}: {e}"));
    (0..count.min(4) as u32).map(open).collect()
}
