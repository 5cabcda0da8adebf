//! Models against Hugging Face, teacher-forced: fed HF's ids, at every position the argmax agrees unless HF's own top-2 gap
//! is under the bound, and the log-probability is within tolerance. Tiny random models of every family run free as well.

mod common;

use std::path::Path;

use common::{cpu, fixtures, open, reference};
use halyard_engine::{EngineConfig, Llm, SamplingParams};
use halyard_platform_api::DType;
use serde_json::Value;

/// How far a path may be from HF in fp32.
#[derive(Clone, Copy)]
struct Bounds {
    /// Largest difference of a log-probability.
    logprob: f64,
    /// A top-2 gap of HF's below this may fall either way.
    gap: f64,
}

/// f32 throughout: both sides round every product, in different orders.
const F32: Bounds = Bounds {
    logprob: 2e-3,
    gap: 2e-3,
};
/// KV in bf16: keys and values keep 8 bits, half a unit in 256 each.
const KV_BF16: Bounds = Bounds {
    logprob: 0.15,
    gap: 0.3,
};
/// Activations in int8 blocks of 32, as llama.cpp's products have them: 1/254 of the block's largest value.
const INT8: Bounds = Bounds {
    logprob: 0.35,
    gap: 0.3,
};

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
fn check_case(llm: &Llm, case: &Value, bounds: Bounds) -> Worst {
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
            error <= bounds.logprob,
            "{name} position {i}: logprob {} against {}",
            at.chosen.logprob,
            golden["logprobs"][i]
        );
        worst.logprob = worst.logprob.max(error);
        let gap = number(&golden["top2_gap"][i]);
        if gap < bounds.gap {
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
                error <= bounds.logprob,
                "{} prompt position {i}: {got} against {value}",
                case["name"]
            );
            worst.logprob = worst.logprob.max(error);
        }
    }
    worst
}

/// Which cases also run free to HF's ids.
#[derive(Clone, Copy)]
enum Free {
    All,
    Only(&'static [&'static str]),
}

fn check(llm: &Llm, goldens: &Path, bounds: Bounds, free: Free) {
    let golden: Value = serde_json::from_slice(&std::fs::read(goldens).expect("goldens")).expect("JSON");
    for case in golden["cases"].as_array().expect("cases") {
        let name = case["name"].as_str().expect("a name");
        let worst = check_case(llm, case, bounds);
        println!(
            "{} {name}: {} positions ({} near ties), worst logprob difference {:.2e}",
            goldens.file_name().unwrap_or_default().display(),
            worst.positions,
            worst.skipped,
            worst.logprob
        );
        if matches!(free, Free::All) || matches!(free, Free::Only(names) if names.contains(&name)) {
            let params = SamplingParams::greedy(golden["max_new_tokens"].as_u64().expect("a count") as u32);
            let output = llm
                .generate_ids(vec![ids(&case["prompt_ids"])], &params)
                .expect("taken")
                .remove(0);
            assert_eq!(
                output.outputs[0].token_ids,
                ids(&case["hf_fp32"]["ids"]),
                "free-running {name}"
            );
        }
        if let Some(text) = case["prompt_text"].as_str() {
            let encoded = llm
                .engine()
                .tokenizer()
                .encode(text, case["messages"].is_null())
                .expect("encodes");
            assert_eq!(encoded, ids(&case["prompt_ids"]), "ids of {name}");
        }
    }
}

macro_rules! families {
    ($($test:ident, $reference:ident => $path:literal, $golden:literal;)*) => {$(
        #[test]
        fn $test() {
            check(&open(&fixtures().join($path), cpu(), |_| {}), &fixtures().join($golden), F32, Free::All);
        }

        #[test]
        fn $reference() {
            check(&open(&fixtures().join($path), reference(), |_| {}), &fixtures().join($golden), F32, Free::All);
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

/// A real model, where the test command or the environment brings it.
fn real(variable: &str, golden: &str, bounds: Bounds, free: Free, change: impl FnOnce(&mut EngineConfig)) {
    let Some(model) = std::env::var_os(variable) else {
        println!("skipped: {variable} names no model file (CONTRIBUTING.md says where the models come from)");
        return;
    };
    let roomy = |c: &mut EngineConfig| {
        c.cache.kv_cache_memory_bytes = Some(256 << 20);
        change(c);
    };
    check(
        &open(Path::new(&model), cpu(), roomy),
        &fixtures().join(golden),
        bounds,
        free,
    );
}

const SMOLLM2: (&str, &str) = ("HALYARD_TEST_MODEL", "smollm2-135m-q4_1.golden.json");
const GEMMA3: (&str, &str) = ("HALYARD_TEST_GEMMA", "gemma3-270m-q4_k_m.golden.json");

#[test]
fn smollm2_135m_in_f32() {
    real(SMOLLM2.0, SMOLLM2.1, F32, Free::All, |_| {});
}

#[test]
fn smollm2_135m_with_kv_in_bf16() {
    let free = Free::Only(&["code", "multiturn"]);
    real(SMOLLM2.0, SMOLLM2.1, KV_BF16, free, |c| {
        c.cache.kv_cache_dtype = Some(DType::BF16)
    });
}

#[test]
fn smollm2_135m_with_int8_activations() {
    let free = Free::Only(&["code", "multiturn"]);
    real(SMOLLM2.0, SMOLLM2.1, INT8, free, |c| c.model.allow_quantized_act = true);
}

#[test]
fn gemma3_270m_in_f32() {
    real(GEMMA3.0, GEMMA3.1, F32, Free::All, |_| {});
}
