//! A KV cache of codes, 8 and 4 bits with a scale for each token and head: what it says against Hugging Face over such
//! keys and values, its size, its prefixes, its blocks in host memory and over two devices, and what refuses it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::wrapped::{Change, wrapped};
use crate::common::{config, cpu, fixtures, open, open_on, reference};
use halyard_device_check::goldens::{
    self, Bounds, Free, KV_FP8_MODELS, KV_INT4, KV_INT4_GOLDENS, KV_INT8, KV_INT8_GOLDENS,
};
use halyard_engine::{EngineConfig, Llm, SamplingParams, kv_dtype_name};
use halyard_models::LoadFormat;
use halyard_platform_api::{DType, Device, Platform};

const FORMATS: [(DType, &str, Bounds); 2] = [
    (DType::I8, KV_INT8_GOLDENS, KV_INT8),
    (DType::U4, KV_INT4_GOLDENS, KV_INT4),
];

fn held_in(kv: DType) -> impl FnOnce(&mut EngineConfig) {
    move |c: &mut EngineConfig| c.cache.kv_cache_dtype = Some(kv)
}

fn check_goldens(device: fn() -> Arc<dyn Device>) {
    for (kv, golden, bounds) in FORMATS {
        for model in KV_FP8_MODELS {
            let folder = fixtures().join(model);
            let llm = open(&folder, device(), held_in(kv));
            assert_eq!(llm.engine().info().kv_cache_dtype, kv);
            let cases = goldens::check(&llm, &folder.join(golden), bounds, Free::Only(&[]));
            for case in cases.unwrap_or_else(|why| panic!("{model}, {golden}: {why}")) {
                println!("{model} {kv:?} {}: worst {:.2e}", case.name, case.worst);
            }
        }
    }
}

#[test]
fn codes_say_what_hugging_face_says_over_them_on_cpu() {
    check_goldens(cpu);
}

#[test]
fn codes_say_what_hugging_face_says_over_them_on_reference() {
    check_goldens(reference);
}

#[test]
fn the_goldens_tell_codes_from_what_they_were_made_of() {
    for (_, golden, bounds) in FORMATS {
        for model in KV_FP8_MODELS {
            let folder = fixtures().join(model);
            let exact = open(&folder, cpu(), |_| {});
            goldens::check(&exact, &folder.join(golden), bounds, Free::Only(&[]))
                .expect_err("the bound is wide enough for exact keys and values");
        }
    }
}

/// A model whose heads have 64 values, as those of served models: a word of 4 bytes is little beside them.
fn long_heads() -> PathBuf {
    let from = fixtures().join("llama");
    let folder = std::env::temp_dir().join(format!("halyard-long-heads-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(from.join(name), folder.join(name)).expect(name);
    }
    let text = std::fs::read_to_string(from.join("config.json")).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for (key, value) in [
        ("hidden_size", 128),
        ("head_dim", 64),
        ("num_attention_heads", 2),
        ("num_key_value_heads", 2),
        ("intermediate_size", 128),
    ] {
        config[key] = value.into();
    }
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    folder
}

#[test]
fn the_same_memory_holds_more_tokens() {
    let folder = long_heads();
    let tokens = |kv| {
        let llm = open(&folder, cpu(), |c| {
            c.model.load_format = LoadFormat::Dummy;
            c.cache.kv_cache_memory_bytes = Some(8 << 20);
            c.scheduler.max_num_seqs = 256;
            c.scheduler.max_num_batched_tokens = Some(256);
            c.cache.kv_cache_dtype = Some(kv);
        });
        let info = llm.engine().info().clone();
        (f64::from(info.num_blocks), info.block_bytes)
    };
    let (bf16, bf16_bytes) = tokens(DType::BF16);
    let (int8, int8_bytes) = tokens(DType::I8);
    let (int4, int4_bytes) = tokens(DType::U4);
    std::fs::remove_dir_all(&folder).expect("removed");
    // A head of 64: 128 bytes, 64 and a word, 32 and a word.
    assert_eq!((int8_bytes * 128, int4_bytes * 128), (bf16_bytes * 68, bf16_bytes * 36));
    assert!((int8 / bf16 - 128.0 / 68.0).abs() < 0.02, "{bf16} and {int8} blocks");
    assert!((int4 / bf16 - 128.0 / 36.0).abs() < 0.04, "{bf16} and {int4} blocks");
}

fn prompt(number: u32) -> Vec<u32> {
    (0..70).map(|at| (at * 37 + number * 101 + 5) % 440).collect()
}

/// Tokens of an answer, and how many of its prompt's were cached.
fn ask(llm: &Llm, number: u32) -> (Vec<u32>, u32) {
    let params = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(12)
    };
    let output = llm
        .generate_ids(vec![prompt(number)], &params)
        .expect("taken")
        .remove(0);
    (output.outputs[0].token_ids.clone(), output.num_cached_tokens)
}

/// Fresh answers, without a cache.
fn fresh(model: &Path, kv: DType) -> Vec<Vec<u32>> {
    let llm = open(model, cpu(), |c| {
        c.cache.enable_prefix_caching = false;
        c.cache.kv_cache_dtype = Some(kv);
    });
    (0..4).map(|number| ask(&llm, number).0).collect()
}

#[test]
fn cached_prefixes_and_blocks_in_host_memory_give_the_same_tokens() {
    let model = fixtures().join("llama");
    for (kv, ..) in FORMATS {
        let expected = fresh(&model, kv);
        let roomy = open(&model, cpu(), held_in(kv));
        let page = roomy.engine().info().block_bytes;
        for round in 0..2 {
            for (number, tokens) in expected.iter().enumerate() {
                let cached = if round == 0 { 0 } else { 64 };
                assert_eq!(ask(&roomy, number as u32), (tokens.clone(), cached), "{kv:?}");
            }
        }
        let tight = open(&model, cpu(), |c| {
            c.cache.kv_cache_dtype = Some(kv);
            c.cache.num_gpu_blocks_override = Some(7);
            c.cache.kv_offloading_bytes = 64 * page;
            c.model.max_model_len = Some(96);
        });
        for round in 0..2 {
            for (number, tokens) in expected.iter().enumerate() {
                let cached = if round == 0 { 0 } else { 64 };
                assert_eq!(
                    ask(&tight, number as u32),
                    (tokens.clone(), cached),
                    "{kv:?} from the host"
                );
            }
        }
        assert!(tight.engine().stats().kv_offload_load_blocks_total >= 16);
    }
}

#[test]
fn two_devices_share_the_heads() {
    let model = fixtures().join("qwen3");
    let one_thread = || -> Arc<dyn Device> { halyard_cpu::CpuPlatform::with_threads(1).open(0).expect("opens") };
    for (kv, ..) in FORMATS {
        let one = open(&model, cpu(), held_in(kv));
        let two = open_on(&model, &[one_thread(), one_thread()], held_in(kv));
        assert_eq!(
            two.engine().info().block_bytes * 2,
            one.engine().info().block_bytes,
            "each has half the heads"
        );
        for number in 0..4 {
            assert_eq!(ask(&two, number), ask(&one, number), "{kv:?}");
        }
    }
}

fn refusal(model: &str, device: Arc<dyn Device>, kv: DType) -> String {
    let mut config = config(&fixtures().join(model));
    config.cache.kv_cache_dtype = Some(kv);
    match Llm::open(config, device) {
        Ok(_) => panic!("{model} was taken with {kv:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn latent_attention_and_platforms_without_such_caches_refuse_them() {
    for (kv, ..) in FORMATS {
        for device in [cpu(), reference()] {
            let said = refusal("deepseek-v2", device, kv);
            assert!(said.contains("latent") || said.contains(&format!("{kv:?}")), "{said}");
        }
        let said = refusal("llama", wrapped(cpu(), Change::HoldsFloats), kv);
        let name = kv_dtype_name(kv);
        assert!(
            said.contains("--kv-cache-dtype") && said.contains(&format!("{name} is not offered by")),
            "{said}"
        );
    }
}
