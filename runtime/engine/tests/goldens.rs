//! Models against Hugging Face, teacher-forced and running free (tests/device has the rules). Tiny random models of
//! every family, and real ones where they are at hand.

use std::path::Path;
use std::sync::Arc;

use crate::common::{cpu, fixtures, open, reference};
use halyard_device_check::goldens::{
    self, Bounds, F32, Free, INT8, INT8_KV_BF16, KV_BF16, KV_FP8, KV_FP8_GOLDENS, KV_FP8_MODELS, KV_SCALE_MODELS,
};
use halyard_engine::{EngineConfig, Llm};
use halyard_platform_api::{DType, Device};

fn check(llm: &Llm, golden: &Path, bounds: Bounds, free: Free) {
    let file = golden.file_name().unwrap_or_default().display();
    for case in goldens::check(llm, golden, bounds, free).unwrap_or_else(|why| panic!("{file}: {why}")) {
        println!(
            "{file} {}: {} positions ({} near ties), worst logprob difference {:.2e}",
            case.name, case.positions, case.near_ties, case.worst
        );
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
    qwen3_moe_on_cpu, qwen3_moe_on_reference => "qwen3-moe", "qwen3-moe/goldens.json";
    gemma3_on_cpu, gemma3_on_reference => "gemma3", "gemma3/goldens.json";
    gemma_on_cpu, gemma_on_reference => "gemma", "gemma/goldens.json";
    gemma2_on_cpu, gemma2_on_reference => "gemma2", "gemma2/goldens.json";
    mixtral_on_cpu, mixtral_on_reference => "mixtral", "mixtral/goldens.json";
    ministral_on_cpu, ministral_on_reference => "ministral", "ministral/goldens.json";
    ministral3_on_cpu, ministral3_on_reference => "ministral3", "ministral3/goldens.json";
    consolidated_on_cpu, consolidated_on_reference => "mistral-consolidated", "mistral/goldens.json";
    consolidated_fp8_on_cpu, consolidated_fp8_on_reference => "mistral-fp8-consolidated", "mistral-fp8/goldens.json";
    phi3_on_cpu, phi3_on_reference => "phi3", "phi3/goldens.json";
    phi3_long_on_cpu, phi3_long_on_reference => "phi3-long", "phi3-long/goldens.json";
    qwen2_moe_on_cpu, qwen2_moe_on_reference => "qwen2-moe", "qwen2-moe/goldens.json";
    granite_on_cpu, granite_on_reference => "granite", "granite/goldens.json";
    glm4_moe_on_cpu, glm4_moe_on_reference => "glm4-moe", "glm4-moe/goldens.json";
    deepseek_v2_on_cpu, deepseek_v2_on_reference => "deepseek-v2", "deepseek-v2/goldens.json";
    deepseek_v3_on_cpu, deepseek_v3_on_reference => "deepseek-v3", "deepseek-v3/goldens.json";
    deepseek_v3_gguf_on_cpu, deepseek_v3_gguf_on_reference => "gguf/deepseek-v3-gguf.gguf",
        "gguf/deepseek-v3-gguf.golden.json";
    deepseek_v3_fp8_on_cpu, deepseek_v3_fp8_on_reference => "deepseek-v3-fp8", "deepseek-v3-fp8/goldens.json";
    gpt_oss_on_cpu, gpt_oss_on_reference => "gpt-oss", "gpt-oss/goldens.json";
    gpt_oss_mxfp4_on_cpu, gpt_oss_mxfp4_on_reference => "gpt-oss-mxfp4", "gpt-oss-mxfp4/goldens.json";
    nemotron_on_cpu, nemotron_on_reference => "nemotron", "nemotron/goldens.json";
    cohere_plus_on_cpu, cohere_plus_on_reference => "cohere-plus", "cohere-plus/goldens.json";
    stablelm_12b_on_cpu, stablelm_12b_on_reference => "stablelm-12b", "stablelm-12b/goldens.json";
    granite_moe_on_cpu, granite_moe_on_reference => "granite-moe", "granite-moe/goldens.json";
    smollm3_on_cpu, smollm3_on_reference => "smollm3", "smollm3/goldens.json";
    glm4_on_cpu, glm4_on_reference => "glm4", "glm4/goldens.json";
    glm_on_cpu, glm_on_reference => "glm", "glm/goldens.json";
    cohere_on_cpu, cohere_on_reference => "cohere", "cohere/goldens.json";
    cohere2_on_cpu, cohere2_on_reference => "cohere2", "cohere2/goldens.json";
    olmo2_on_cpu, olmo2_on_reference => "olmo2", "olmo2/goldens.json";
    olmo3_on_cpu, olmo3_on_reference => "olmo3", "olmo3/goldens.json";
    olmoe_on_cpu, olmoe_on_reference => "olmoe", "olmoe/goldens.json";
    exaone4_on_cpu, exaone4_on_reference => "exaone4", "exaone4/goldens.json";
    starcoder2_on_cpu, starcoder2_on_reference => "starcoder2", "starcoder2/goldens.json";
    stablelm_on_cpu, stablelm_on_reference => "stablelm", "stablelm/goldens.json";
    gpt_neox_on_cpu, gpt_neox_on_reference => "gpt-neox", "gpt-neox/goldens.json";
    gpt2_on_cpu, gpt2_on_reference => "gpt2", "gpt2/goldens.json";
    falcon_on_cpu, falcon_on_reference => "falcon", "falcon/goldens.json";
    falcon_new_on_cpu, falcon_new_on_reference => "falcon-new", "falcon-new/goldens.json";
    internlm2_on_cpu, internlm2_on_reference => "internlm2", "internlm2/goldens.json";
    internlm3_on_cpu, internlm3_on_reference => "internlm3", "internlm3/goldens.json";
    baichuan_on_cpu, baichuan_on_reference => "baichuan", "baichuan/goldens.json";
    qwen_on_cpu, qwen_on_reference => "qwen", "qwen/goldens.json";
    llama_linear_on_cpu, llama_linear_on_reference => "llama-linear", "llama-linear/goldens.json";
    qwen2_yarn_on_cpu, qwen2_yarn_on_reference => "qwen2-yarn", "qwen2-yarn/goldens.json";
    llama_gguf_on_cpu, llama_gguf_on_reference => "gguf/llama-gguf.gguf", "gguf/llama-gguf.golden.json";
    llama3_rope_gguf_on_cpu, llama3_rope_gguf_on_reference => "gguf/llama3-rope-gguf.gguf",
        "gguf/llama3-rope-gguf.golden.json";
    mistral_fp8_on_cpu, mistral_fp8_on_reference => "mistral-fp8", "mistral-fp8/goldens.json";
    llama_fp8_on_cpu, llama_fp8_on_reference => "llama-fp8", "llama-fp8/goldens.json";
    qwen3_fp8_on_cpu, qwen3_fp8_on_reference => "qwen3-fp8", "qwen3-fp8/goldens.json";
    qwen3_gguf_on_cpu, qwen3_gguf_on_reference => "gguf/qwen3-gguf.gguf", "gguf/qwen3-gguf.golden.json";
    qwen3_moe_gguf_on_cpu, qwen3_moe_gguf_on_reference => "gguf/qwen3-moe-gguf.gguf", "gguf/qwen3-moe-gguf.golden.json";
    llama_k_mix_gguf_on_cpu, llama_k_mix_gguf_on_reference => "gguf/llama-k-mix-gguf.gguf",
        "gguf/llama-k-mix-gguf.golden.json";
    llama_iq_mix_gguf_on_cpu, llama_iq_mix_gguf_on_reference => "gguf/llama-iq-mix-gguf.gguf",
        "gguf/llama-iq-mix-gguf.golden.json";
    qwen3_moe_iq_gguf_on_cpu, qwen3_moe_iq_gguf_on_reference => "gguf/qwen3-moe-iq-gguf.gguf",
        "gguf/qwen3-moe-iq-gguf.golden.json";
    gemma_gguf_on_cpu, gemma_gguf_on_reference => "gguf/gemma-gguf.gguf", "gguf/gemma-gguf.golden.json";
    gemma2_gguf_on_cpu, gemma2_gguf_on_reference => "gguf/gemma2-gguf.gguf", "gguf/gemma2-gguf.golden.json";
    mixtral_gguf_on_cpu, mixtral_gguf_on_reference => "gguf/mixtral-gguf.gguf", "gguf/mixtral-gguf.golden.json";
    phi3_gguf_on_cpu, phi3_gguf_on_reference => "gguf/phi3-gguf.gguf", "gguf/phi3-gguf.golden.json";
    granite_gguf_on_cpu, granite_gguf_on_reference => "gguf/granite-gguf.gguf", "gguf/granite-gguf.golden.json";
    nemotron_gguf_on_cpu, nemotron_gguf_on_reference => "gguf/nemotron-gguf.gguf", "gguf/nemotron-gguf.golden.json";
    gpt_oss_gguf_on_cpu, gpt_oss_gguf_on_reference => "gguf/gpt-oss-gguf.gguf", "gguf/gpt-oss-gguf.golden.json";
    granite_moe_gguf_on_cpu, granite_moe_gguf_on_reference => "gguf/granite-moe-gguf.gguf",
        "gguf/granite-moe-gguf.golden.json";
    olmo2_gguf_on_cpu, olmo2_gguf_on_reference => "gguf/olmo2-gguf.gguf", "gguf/olmo2-gguf.golden.json";
    olmoe_gguf_on_cpu, olmoe_gguf_on_reference => "gguf/olmoe-gguf.gguf", "gguf/olmoe-gguf.golden.json";
    smollm3_gguf_on_cpu, smollm3_gguf_on_reference => "gguf/smollm3-gguf.gguf", "gguf/smollm3-gguf.golden.json";
    exaone4_gguf_on_cpu, exaone4_gguf_on_reference => "gguf/exaone4-gguf.gguf", "gguf/exaone4-gguf.golden.json";
    cohere_gguf_on_cpu, cohere_gguf_on_reference => "gguf/cohere-gguf.gguf", "gguf/cohere-gguf.golden.json";
    cohere2_gguf_on_cpu, cohere2_gguf_on_reference => "gguf/cohere2-gguf.gguf", "gguf/cohere2-gguf.golden.json";
    glm4_gguf_on_cpu, glm4_gguf_on_reference => "gguf/glm4-gguf.gguf", "gguf/glm4-gguf.golden.json";
    starcoder2_gguf_on_cpu, starcoder2_gguf_on_reference => "gguf/starcoder2-gguf.gguf",
        "gguf/starcoder2-gguf.golden.json";
    qwen2_moe_gguf_on_cpu, qwen2_moe_gguf_on_reference => "gguf/qwen2-moe-gguf.gguf", "gguf/qwen2-moe-gguf.golden.json";
    gemma3_gguf_on_cpu, gemma3_gguf_on_reference => "gguf/gemma3-gguf.gguf", "gguf/gemma3-gguf.golden.json";
}

/// Keys and values in 8 bits, against HF with keys and values in 8 bits.
fn check_kv_in_fp8(device: fn() -> Arc<dyn Device>) {
    for model in KV_FP8_MODELS.iter().chain(&KV_SCALE_MODELS) {
        let folder = fixtures().join(model);
        let llm = open(&folder, device(), |c| c.cache.kv_cache_dtype = Some(DType::F8E4M3));
        assert_eq!(llm.engine().info().kv_cache_dtype, DType::F8E4M3);
        check(&llm, &folder.join(KV_FP8_GOLDENS), KV_FP8, Free::Only(&[]));
    }
}

#[test]
fn kv_in_fp8_on_cpu() {
    check_kv_in_fp8(cpu);
}

#[test]
fn kv_in_fp8_on_reference() {
    check_kv_in_fp8(reference);
}

#[test]
fn goldens_over_kv_in_fp8_tell_exact_keys_and_values_from_rounded_ones() {
    for model in KV_FP8_MODELS.iter().chain(&KV_SCALE_MODELS) {
        let folder = fixtures().join(model);
        let exact = open(&folder, cpu(), |_| {});
        goldens::check(&exact, &folder.join(KV_FP8_GOLDENS), KV_FP8, Free::Only(&[]))
            .expect_err("the bound is wide enough for a cache that does not round");
    }
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
    // The case without a position where HF's two best candidates are nearer to each other than the bound.
    real(SMOLLM2.0, SMOLLM2.1, INT8, Free::Only(&["code"]), |c| {
        c.model.allow_quantized_act = true;
        c.cache.kv_cache_dtype = Some(DType::F32);
    });
}

#[test]
fn smollm2_135m_rounded_as_the_server_does() {
    // Every case has such a position: none needs to run free to HF's ids.
    real(SMOLLM2.0, SMOLLM2.1, INT8_KV_BF16, Free::Only(&[]), |c| {
        c.model.allow_quantized_act = true
    });
}

#[test]
fn gemma3_270m_in_f32() {
    real(GEMMA3.0, GEMMA3.1, F32, Free::All, |_| {});
}
