//! Models against Hugging Face, teacher-forced: fed HF's ids, at every position the argmax agrees unless HF's own top-2 gap
//! is under the bound, and the log-probability is within tolerance. Tiny random models of every family run free as well.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use halyard_engine::{EngineConfig, Llm, SamplingParams};
use halyard_platform_api::{Device, Platform};
use serde_json::Value;

/// Bounds of an f32 path against HF in fp32: both round every product, in different orders.
const LOGPROB_TOLERANCE: f64 = 2e-3;
/// A top-2 gap below this may fall either way.
const GAP: f64 = 2e-3;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models")
}

fn cpu() -> Arc<dyn Device> {
    halyard_cpu::CpuPlatform::new().open(0).expect("the CPU opens")
}

fn reference() -> Arc<dyn Device> {
    halyard_reference::ReferencePlatform::new()
        .open(0)
        .expect("the reference opens")
}

fn open(path: &Path, device: Arc<dyn Device>) -> Llm {
    let mut config = EngineConfig::for_model(path);
    config.cache.kv_cache_memory_bytes = Some(64 << 20);
    config.cache.block_size = Some(16);
    config.scheduler.max_num_seqs = 8;
    config.scheduler.max_num_batched_tokens = Some(48);
    Llm::open(config, device).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .expect("a list")
        .iter()
        .map(|v| v.as_u64().expect("an id") as u32)
        .collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

struct Worst {
    positions: usize,
    skipped: usize,
    logprob: f64,
}

/// Feeds prompt and HF's ids, and checks every position of the answer.
fn check_case(llm: &Llm, case: &Value, gap_bound: f64, tolerance: f64) -> Worst {
    let (prompt, golden) = (ids(&case["prompt_ids"]), &case["hf_fp32"]);
    let answer = ids(&golden["ids"]);
    let all: Vec<u32> = prompt.iter().chain(&answer).copied().collect();
    let params = SamplingParams {
        prompt_logprobs: Some(1),
        ..SamplingParams::greedy(1)
    };
    let output = llm.generate_ids(vec![all.clone()], &params).expect("taken").remove(0);
    let scored = output.prompt_logprobs.expect("asked for");
    assert_eq!(scored.len(), all.len());
    let mut worst = Worst {
        positions: 0,
        skipped: 0,
        logprob: 0.0,
    };
    for (i, &id) in answer.iter().enumerate() {
        let at = scored[prompt.len() + i]
            .as_ref()
            .expect("every position after the first");
        assert_eq!(at.chosen.token, id);
        let name = &case["name"];
        let error = (f64::from(at.chosen.logprob) - number(&golden["logprobs"][i])).abs();
        assert!(
            error <= tolerance,
            "{name} position {i}: logprob {} against {}",
            at.chosen.logprob,
            golden["logprobs"][i]
        );
        worst.logprob = worst.logprob.max(error);
        let gap = number(&golden["top2_gap"][i]);
        if gap < gap_bound {
            worst.skipped += 1;
        } else {
            assert_eq!(at.top[0].token, id, "{name} position {i}: argmax, HF's gap is {gap}");
        }
        worst.positions += 1;
    }
    if let Some(expected) = golden["prompt_logprobs"].as_array() {
        for (i, value) in expected.iter().enumerate().skip(1) {
            let got = f64::from(scored[i].as_ref().expect("scored").chosen.logprob);
            let error = (got - number(value)).abs();
            assert!(
                error <= tolerance,
                "{} prompt position {i}: {got} against {value}",
                case["name"]
            );
            worst.logprob = worst.logprob.max(error);
        }
    }
    worst
}

fn check(path: &Path, goldens: &Path, device: Arc<dyn Device>, free_running: bool) {
    let golden: Value = serde_json::from_slice(&std::fs::read(goldens).expect("goldens")).expect("JSON");
    let llm = open(path, device);
    for case in golden["cases"].as_array().expect("cases") {
        let worst = check_case(&llm, case, GAP, LOGPROB_TOLERANCE);
        println!(
            "{} {}: {} positions ({} near ties), worst logprob difference {:.2e}",
            path.file_name().unwrap_or_default().display(),
            case["name"],
            worst.positions,
            worst.skipped,
            worst.logprob
        );
        if free_running {
            let answer = ids(&case["hf_fp32"]["ids"]);
            let params = SamplingParams::greedy(golden["max_new_tokens"].as_u64().expect("a count") as u32);
            let output = llm
                .generate_ids(vec![ids(&case["prompt_ids"])], &params)
                .expect("taken")
                .remove(0);
            assert_eq!(
                output.outputs[0].token_ids,
                answer,
                "{} {}",
                path.display(),
                case["name"]
            );
        }
        if let Some(text) = case["prompt_text"].as_str() {
            let encoded = llm
                .engine()
                .tokenizer()
                .encode(text, case["messages"].is_null())
                .expect("encodes");
            assert_eq!(encoded, ids(&case["prompt_ids"]), "ids of {}", case["name"]);
        }
    }
}

macro_rules! families {
    ($($test:ident, $reference:ident => $path:literal, $golden:literal;)*) => {$(
        #[test]
        fn $test() {
            check(&fixtures().join($path), &fixtures().join($golden), cpu(), true);
        }

        #[test]
        fn $reference() {
            check(&fixtures().join($path), &fixtures().join($golden), reference(), true);
        }
    )*};
}

families! {
    llama_on_cpu, llama_on_reference => "llama", "llama/goldens.json";
    llama3_rope_on_cpu, llama3_rope_on_reference => "llama3-rope", "llama3-rope/goldens.json";
    smollm2_on_cpu, smollm2_on_reference => "smollm2", "smollm2/goldens.json";
    mistral_on_cpu, mistral_on_reference => "mistral", "mistral/goldens.json";
    qwen2_on_cpu, qwen2_on_reference => "qwen2", "qwen2/goldens.json";
    qwen3_on_cpu, qwen3_on_reference => "qwen3", "qwen3/goldens.json";
    gemma3_on_cpu, gemma3_on_reference => "gemma3", "gemma3/goldens.json";
    llama_gguf_on_cpu, llama_gguf_on_reference => "gguf/llama-gguf.gguf", "gguf/llama-gguf.golden.json";
    llama3_rope_gguf_on_cpu, llama3_rope_gguf_on_reference => "gguf/llama3-rope-gguf.gguf", "gguf/llama3-rope-gguf.golden.json";
    qwen3_gguf_on_cpu, qwen3_gguf_on_reference => "gguf/qwen3-gguf.gguf", "gguf/qwen3-gguf.golden.json";
    gemma3_gguf_on_cpu, gemma3_gguf_on_reference => "gguf/gemma3-gguf.gguf", "gguf/gemma3-gguf.golden.json";
}

/// The real demo model, where the test command has fetched it.
#[test]
fn smollm2_135m_on_cpu() {
    let Some(model) = std::env::var_os("HALYARD_TEST_MODEL") else {
        println!("skipped: HALYARD_TEST_MODEL names no model file (the test command fetches it where pip is at hand)");
        return;
    };
    let golden = fixtures().join("smollm2-135m-q4_1.golden.json");
    check(Path::new(&model), &golden, cpu(), true);
}
