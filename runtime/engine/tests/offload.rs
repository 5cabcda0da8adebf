//! The second tier of the prefix cache in host memory: prompts that the device has lost come back with the same tokens,
//! over one device and two, and sizes that cannot be are refused.

use std::sync::Arc;

use crate::common::wrapped::{Change, wrapped};
use crate::common::{config, cpu, fixtures, on_every_device, open, open_on};
use halyard_engine::{EngineConfig, Llm, RequestOutput, SamplingParams};
use halyard_platform_api::{Device, Platform};

/// Blocks of the device: one request of 96 tokens, and one more.
const DEVICE_BLOCKS: u32 = 7;

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(max_tokens)
    }
}

/// A prompt of four blocks and a bit.
fn prompt(number: u32) -> Vec<u32> {
    (0..70).map(|at| (at * 37 + number * 101 + 5) % 440).collect()
}

fn small(host_blocks: u64, page: u64) -> impl FnOnce(&mut EngineConfig) {
    move |c: &mut EngineConfig| {
        c.cache.num_gpu_blocks_override = Some(DEVICE_BLOCKS);
        c.cache.kv_offloading_bytes = host_blocks * page;
        c.model.max_model_len = Some(96);
    }
}

fn page_bytes(model: &str) -> u64 {
    open(&fixtures().join(model), cpu(), |_| {}).engine().info().block_bytes
}

fn ask(llm: &Llm, number: u32) -> RequestOutput {
    let mut outputs = llm.generate_ids(vec![prompt(number)], &greedy(12)).expect("taken");
    outputs.remove(0)
}

/// Prompts that push each other out of the device, three times over; the cached tokens of the last round.
fn rounds(llm: &Llm, expected: &[Vec<u32>]) -> Vec<u32> {
    let mut cached = Vec::new();
    for round in 0..3 {
        cached.clear();
        for (number, tokens) in expected.iter().enumerate() {
            let output = ask(llm, number as u32);
            assert_eq!(&output.outputs[0].token_ids, tokens, "prompt {number} in round {round}");
            cached.push(output.num_cached_tokens);
        }
    }
    cached
}

fn expected(model: &str) -> Vec<Vec<u32>> {
    let roomy = open(&fixtures().join(model), cpu(), |c| {
        c.cache.enable_prefix_caching = false
    });
    (0..4)
        .map(|number| ask(&roomy, number).outputs.remove(0).token_ids)
        .collect()
}

on_every_device! {
    what_the_device_has_lost_comes_back_with_the_same_tokens => |device: Arc<dyn Device>| {
        let (model, expected) = ("llama", expected("llama"));
        let page = page_bytes(model);
        let llm = open(&fixtures().join(model), device, small(64, page));
        assert_eq!(llm.engine().info().num_host_blocks, 64);
        assert_eq!(rounds(&llm, &expected), [64; 4], "four blocks of each prompt");
        let stats = llm.engine().stats();
        assert!(stats.kv_offload_store_blocks_total >= 16, "{stats:?}");
        assert!(stats.kv_offload_load_blocks_total >= 16, "{stats:?}");
        assert!(stats.external_prefix_cache_hits_total >= 256, "{stats:?}");
        // A reset reaches both tiers.
        assert!(llm.engine().reset_prefix_cache(false).blocking_wait().expect("alive"));
        assert_eq!(ask(&llm, 1).num_cached_tokens, 0);
    };

    a_tier_that_is_too_small_for_all_is_right_as_well => |device: Arc<dyn Device>| {
        let (model, expected) = ("llama", expected("llama"));
        let page = page_bytes(model);
        let llm = open(&fixtures().join(model), device, small(5, page));
        rounds(&llm, &expected);
        assert!(llm.engine().stats().kv_offload_store_blocks_total > 5);
    };

    preempted_requests_give_the_same => |device: Arc<dyn Device>| {
        let model = fixtures().join("llama");
        let prompts: Vec<Vec<u32>> = (0..4).map(|number| prompt(number)[..30].to_vec()).collect();
        let ids = |llm: &Llm| -> Vec<Vec<u32>> {
            let outputs = llm.generate_ids(prompts.clone(), &greedy(50)).expect("taken");
            outputs.into_iter().map(|output| output.outputs[0].token_ids.clone()).collect()
        };
        let roomy = ids(&open(&model, crate::common::cpu(), |_| {}));
        let llm = open(&model, device, small(64, page_bytes("llama")));
        assert_eq!(ids(&llm), roomy);
        let stats = llm.engine().stats();
        assert!(stats.preemptions_total > 0 && stats.kv_offload_load_blocks_total > 0, "{stats:?}");
    };
}

#[test]
fn windows_and_full_layers_come_back_together() {
    let (model, expected) = ("gemma3", expected("gemma3"));
    let page = page_bytes(model);
    let tight = |c: &mut EngineConfig| {
        small(128, page)(c);
        c.cache.num_gpu_blocks_override = Some(33);
    };
    let llm = open(&fixtures().join(model), cpu(), tight);
    rounds(&llm, &expected);
    let stats = llm.engine().stats();
    assert!(stats.kv_offload_load_blocks_total > 0, "{stats:?}");
}

#[test]
fn two_ranks_share_the_size_and_give_the_same() {
    let (model, expected) = ("qwen3", expected("qwen3"));
    let page = page_bytes(model);
    let one_thread = || -> Arc<dyn Device> { halyard_cpu::CpuPlatform::with_threads(1).open(0).expect("opens") };
    let llm = open_on(&fixtures().join(model), &[one_thread(), one_thread()], small(64, page));
    // Each rank has half of every block, in half of the memory.
    assert_eq!(llm.engine().info().block_bytes * 2, page);
    assert_eq!(llm.engine().info().num_host_blocks, 64);
    assert_eq!(rounds(&llm, &expected), [64; 4]);
    assert!(llm.engine().stats().kv_offload_load_blocks_total >= 16);
}

fn refusal(device: Arc<dyn Device>, change: impl FnOnce(&mut EngineConfig)) -> String {
    let mut config = config(&fixtures().join("llama"));
    change(&mut config);
    match Llm::open(config, device) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_with_their_figures() {
    let said = refusal(cpu(), |c| c.cache.kv_offloading_bytes = 100);
    assert!(
        said.contains("--kv-offloading-size: 100 bytes hold no KV block, which takes"),
        "{said}"
    );
    let said = refusal(cpu(), |c| c.cache.kv_offloading_bytes = 1 << 60);
    assert!(
        said.contains("--kv-offloading-size: 1073741824.00 GiB") && said.contains("available on this host"),
        "{said}"
    );
    let said = refusal(cpu(), |c| {
        c.cache.kv_offloading_bytes = 1 << 20;
        c.cache.enable_prefix_caching = false;
    });
    assert!(said.contains("prefix caching is off"), "{said}");
}

#[test]
fn a_platform_without_the_ops_says_which() {
    let device = wrapped(cpu(), Change::Lacks("scatter_rows"));
    let said = refusal(device.clone(), |c| c.cache.kv_offloading_bytes = 1 << 20);
    assert!(
        said.contains("--kv-offloading-size") && said.contains("scatter_rows"),
        "{said}"
    );
    open(&fixtures().join("llama"), device, |_| {});
}
