//! Tensor parallelism over threads: several ranks give what one device gives, and a rank that fails ends the engine
//! with its words.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::wrapped::{Change, wrapped};
use crate::common::{config, delayed, fixtures, open, open_on};
use halyard_delayed::{DelayedPlatform, Fault};
use halyard_device_check::{collectives, tensor_parallel};
use halyard_engine::{
    EngineConfig, EngineHandle, FinishReason, Llm, LoadProgress, Request, RequestOutput, SamplingParams,
};
use halyard_models::{DummyWeights, LoadFormat, ModelFiles};
use halyard_platform_api::{Device, MemoryInfo, Platform};

/// Largest difference of a log-probability: f32 sums in another order.
const LOGPROB_BOUND: f32 = 1e-4;

type Open = fn() -> Arc<dyn Device>;

/// One thread a rank: the ranks already share the cores.
fn cpu() -> Arc<dyn Device> {
    halyard_cpu::CpuPlatform::with_threads(1).open(0).expect("opens")
}

fn delayed_by_2() -> Arc<dyn Device> {
    delayed(2)
}

fn devices(open: Open, count: usize) -> Vec<Arc<dyn Device>> {
    (0..count).map(|_| open()).collect()
}

/// Prompts of many lengths, one longer than a step.
fn prompts() -> Vec<Vec<u32>> {
    [2u32, 17, 1, 60, 8, 33]
        .iter()
        .map(|&n| (0..n).map(|i| (i * 37 + n * 11 + 5) % 440).collect())
        .collect()
}

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(max_tokens)
    }
}

fn ids(outputs: &[RequestOutput]) -> Vec<Vec<u32>> {
    outputs.iter().map(|o| o.outputs[0].token_ids.clone()).collect()
}

/// Log-probabilities of every prompt token after the first, prompt by prompt.
fn scores(llm: &Llm, sequences: &[Vec<u32>]) -> Vec<f32> {
    let params = SamplingParams {
        prompt_logprobs: Some(1),
        ..greedy(1)
    };
    let outputs = llm.generate_ids(sequences.to_vec(), &params).expect("taken");
    let scored = outputs.into_iter().flat_map(|o| o.prompt_logprobs.expect("asked for"));
    scored.flatten().map(|scored| scored.chosen.logprob).collect()
}

/// `size` ranks against one device: free-running ids, and log-probabilities teacher-forced on one device's ids.
fn equals_one(model: &str, open_device: Open, size: usize) {
    let path = fixtures().join(model);
    let roomy = |c: &mut EngineConfig| c.scheduler.max_num_seqs = 8;
    let one = open(&path, open_device(), roomy);
    let many = open_on(&path, &devices(open_device, size), roomy);
    assert_eq!(many.engine().info().tensor_parallel_size, size as u32);
    let expected = ids(&one.generate_ids(prompts(), &greedy(24)).expect("taken"));
    let found = ids(&many.generate_ids(prompts(), &greedy(24)).expect("taken"));
    assert_eq!(found, expected, "{model} over {size}");
    let fed: Vec<Vec<u32>> = prompts()
        .into_iter()
        .zip(&expected)
        .map(|(p, ids)| [&p[..], ids].concat())
        .collect();
    let (one, many) = (scores(&one, &fed), scores(&many, &fed));
    assert_eq!(one.len(), many.len());
    assert!(one.len() > 200, "only {} positions were compared", one.len());
    let worst = one.iter().zip(&many).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!(
        "{model} over {size}: {} positions, worst log-probability difference {worst:.2e}",
        one.len()
    );
    assert!(worst <= LOGPROB_BOUND, "{model} over {size}: {worst}");
}

macro_rules! ranks_equal_one_device {
    ($($name:ident: $model:literal, $($size:literal)+;)*) => {$(
        mod $name {
            #[test] fn cpu() { $(super::equals_one($model, super::cpu, $size);)+ }
            #[test] fn reference() { $(super::equals_one($model, crate::common::reference, $size);)+ }
            #[test] fn delayed() { $(super::equals_one($model, super::delayed_by_2, $size);)+ }
        }
    )*};
}

ranks_equal_one_device! {
    // Four ranks over two KV heads: pairs of ranks hold the same one.
    llama3_rope: "llama3-rope", 2 4;
    mistral: "mistral", 2 4;
    qwen2: "qwen2", 2 4;
    qwen3: "qwen3", 2 4;
    qwen3_moe: "qwen3-moe", 2 4;
    // 562 logits: ranks' parts overlap.
    gemma3: "gemma3", 2 4;
    smollm2: "smollm2", 3;
    // Every rank holds the whole cache of latents.
    deepseek_v3: "deepseek-v3", 2 4;
    // Blocks of 128 rows and columns are cut inside, by heads and by ranks.
    deepseek_v3_fp8: "deepseek-v3-fp8", 2 4;
}

/// The check that GPU machines run.
#[test]
fn ranks_agree_with_hugging_face() {
    let outcomes = tensor_parallel::check(&devices(cpu, 4), &fixtures(), config);
    assert_eq!(
        outcomes.len(),
        26,
        "five families, and four with experts in two ways, over two and four ranks"
    );
    for (name, outcome) in outcomes {
        println!("{name}: {}", outcome.unwrap_or_else(|why| panic!("{name}: {why}")));
    }
}

/// The check of sums that GPU machines run.
#[test]
fn sums_are_right_in_every_size_and_place() {
    let outcomes = collectives::check(&devices(cpu, 2));
    assert_eq!(
        outcomes.len(),
        8,
        "every kind, two types, replays, chains, no numbers, a norm behind, a lost rank"
    );
    for (name, outcome) in outcomes {
        println!("{name}: {}", outcome.unwrap_or_else(|why| panic!("{name}: {why}")));
    }
}

/// Everything that changes rows between steps, at once: seeds, penalties, logprobs, preemption, prefix reuse, aborted
/// requests.
fn busy(llm: &Llm) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let random = SamplingParams {
        temperature: 0.9,
        top_p: 0.9,
        top_k: 40,
        seed: Some(11),
        ..greedy(40)
    };
    all.extend(ids(&llm.generate_ids(prompts(), &random).expect("taken")));
    let full = SamplingParams {
        frequency_penalty: 1.0,
        logprobs: Some(2),
        bad_words_token_ids: vec![vec![3], vec![5, 7]],
        ..greedy(40)
    };
    all.extend(ids(&llm.generate_ids(prompts(), &full).expect("taken")));
    let mut dropped = llm
        .engine()
        .submit(Request::new("drop", vec![1, 2, 3], greedy(100)))
        .expect("taken");
    assert!(dropped.blocking_next().is_some());
    drop(dropped);
    all.extend(ids(&llm.generate_ids(prompts(), &greedy(30)).expect("taken")));
    all
}

#[test]
fn loading_counts_the_bytes_of_a_rank() {
    let last = |count: usize| {
        let (config, mut last) = (config(&fixtures().join("mistral")), (0, 0));
        let files =
            ModelFiles::open(&config.model.path, LoadFormat::Auto, DummyWeights::default()).expect("the fixture");
        let mut shown = |p: LoadProgress| last = (p.done_bytes, p.total_bytes);
        EngineHandle::start_on(config, &devices(cpu, count), files, Default::default(), &mut shown).expect("starts");
        last
    };
    let (one, two) = (last(1), last(2));
    assert_eq!((one.0, two.0), (one.1, two.1), "complete");
    assert!(
        two.1 < one.1 && 2 * two.1 > one.1,
        "the embedding stands on both: {one:?}, {two:?}"
    );
}

/// Dummy matrices are made on the device, a rank's columns of them too.
#[test]
fn dummy_weights_do_not_depend_on_the_ranks() {
    let path = fixtures().join("mistral");
    for open_device in [cpu as Open, crate::common::reference] {
        let dummy = |c: &mut EngineConfig| c.model.load_format = LoadFormat::Dummy;
        let one = open(&path, open_device(), dummy);
        let four = open_on(&path, &devices(open_device, 4), dummy);
        let pairs = scores(&one, &prompts()).into_iter().zip(scores(&four, &prompts()));
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= LOGPROB_BOUND, "{worst}");
    }
}

#[test]
fn ranks_stay_together_through_sampling_preemption_and_cancelling() {
    let path = fixtures().join("qwen3");
    let page = open(&path, cpu(), |_| {}).engine().info().block_bytes;
    for open_device in [cpu as Open, delayed_by_2] {
        let tight = |page: u64| {
            move |c: &mut EngineConfig| {
                c.cache.kv_cache_memory_bytes = Some(page * 14);
                c.model.max_model_len = Some(128);
            }
        };
        let one = open(&path, open_device(), tight(page));
        let two = open_on(&path, &devices(open_device, 2), tight(page / 2));
        assert_eq!(
            two.engine().info().block_bytes * 2,
            page,
            "each rank holds half the heads"
        );
        assert_eq!(two.engine().info().num_blocks, 14);
        assert_eq!(busy(&two), busy(&one));
        assert!(
            two.engine().stats().preemptions_total > 0,
            "the pool of 14 blocks was meant to overflow"
        );
    }
}

fn faulty(fault: Fault) -> Arc<dyn Device> {
    DelayedPlatform::new(1, 7).with_fault(fault).open(0).expect("opens")
}

#[test]
fn recordings_are_used_by_all_ranks_or_none() {
    let path = fixtures().join("qwen3");
    let ok = || delayed(1);
    let stale = || faulty(Fault::StaleReplay);
    let expected = busy(&open(&path, cpu(), |_| {}));
    for (devices, replays) in [([ok(), ok()], true), ([ok(), stale()], false), ([stale(), ok()], false)] {
        let two = open_on(&path, &devices, |_| {});
        assert_eq!(busy(&two), expected);
        two.engine().shutdown(Duration::from_secs(30));
        assert_eq!(two.engine().stats().replayed_steps_total > 0, replays);
    }
}

#[test]
fn a_left_out_sum_shows() {
    let path = fixtures().join("qwen3");
    let one = open(&path, cpu(), |_| {});
    let faulty: Vec<_> = devices(cpu, 2)
        .into_iter()
        .map(|d| wrapped(d, Change::SkipsAllReduce))
        .collect();
    let two = open_on(&path, &faulty, |_| {});
    let fed = prompts();
    let pairs = scores(&one, &fed).into_iter().zip(scores(&two, &fed));
    let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst > 100.0 * LOGPROB_BOUND, "a difference of {worst} would pass");
}

/// The refusal of a model on these devices.
fn refusal(model: &str, devices: &[Arc<dyn Device>]) -> String {
    let error = Llm::open_on(config(&fixtures().join(model)), devices).err();
    error.expect("refused").to_string()
}

#[test]
fn what_ranks_cannot_share_is_refused() {
    let heads = refusal("llama", &devices(cpu, 2));
    assert!(
        heads.contains("num_attention_heads is 3, which 2") && heads.contains("--tensor-parallel-size"),
        "{heads}"
    );
    let blocks = refusal("gguf/llama3-rope-gguf.gguf", &devices(cpu, 4));
    assert!(blocks.contains("is 24, which 4"), "{blocks}");
    let alone = vec![cpu(), wrapped(cpu(), Change::NoCommunicator)];
    let alone = refusal("qwen3", &alone);
    assert!(
        alone.contains("--tensor-parallel-size: 2, but") && alone.contains("no communication"),
        "{alone}"
    );
}

#[test]
fn the_smallest_memory_decides() {
    let memory = |mib: u64| MemoryInfo {
        total_bytes: 1 << 30,
        free_bytes: (mib << 20) + (1 << 30) / 10,
        used_bytes: 0,
    };
    let num_blocks = |mib: [u64; 2]| {
        let devices: Vec<_> = mib
            .into_iter()
            .map(|m| wrapped(cpu(), Change::HasMemory(memory(m))))
            .collect();
        let open = |c: &mut EngineConfig| {
            c.cache.kv_cache_memory_bytes = None;
            c.scheduler.max_num_seqs = 32;
        };
        open_on(&fixtures().join("qwen3"), &devices, open)
            .engine()
            .info()
            .num_blocks
    };
    let small = num_blocks([2, 2]);
    assert!(small < num_blocks([3, 3]));
    assert_eq!(num_blocks([2, 3]), small);
    assert_eq!(num_blocks([3, 2]), small);
}

/// Two ranks of which `rank` has a change; requests run until it shows. Returns their error text.
fn failure_of(open_device: Open, rank: usize, change: Change) -> String {
    let mut ranks = devices(open_device, 2);
    ranks[rank] = wrapped(ranks[rank].clone(), change);
    failure_on(ranks, rank)
}

/// Two devices of which that of `rank` fails; requests run until it does. Returns their error text.
fn failure_on(ranks: Vec<Arc<dyn Device>>, rank: usize) -> String {
    let llm = open_on(&fixtures().join("qwen3"), &ranks, |_| {});
    let start = Instant::now();
    let output = llm.generate_ids(vec![vec![1, 2, 3]; 3], &greedy(400)).expect("taken");
    let mut words = Vec::new();
    for output in output {
        match &output.outputs[0].finish {
            FinishReason::Error(error) => words.push(error.clone()),
            other => panic!("finished with {other:?}"),
        }
    }
    let health = llm.engine().health().expect_err("it has failed");
    assert!(health.contains(&format!("rank {rank} of 2")), "{health}");
    let refused = llm.engine().submit(Request::new("late", vec![1], greedy(1))).err();
    assert!(refused.expect("refused").to_string().contains("has stopped"));
    llm.engine().shutdown(Duration::from_secs(30));
    drop(llm);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    for device in ranks {
        assert_eq!(Arc::strong_count(&device), 1, "a thread still holds a device");
    }
    words.swap_remove(0)
}

#[test]
fn a_failed_device_ends_the_engine_with_its_error() {
    for open_device in [cpu as Open, crate::common::reference, delayed_by_2] {
        for rank in [0, 1] {
            let words = failure_of(open_device, rank, Change::FailsAtSubmit(30));
            let expected = format!("rank {rank} of 2: device: ");
            assert!(
                words.contains(&expected) && words.contains("fell off the bus"),
                "{words}"
            );
        }
    }
}

#[test]
fn a_device_that_is_lost_while_steps_run_ends_the_engine() {
    for rank in [0, 1] {
        let mut ranks = devices(|| delayed(1), 2);
        ranks[rank] = faulty(Fault::LostAt(40));
        let words = failure_on(ranks, rank);
        assert!(words.contains(&format!("rank {rank} of 2: device: ")), "{words}");
    }
}

#[test]
fn a_rank_that_panics_ends_the_engine() {
    for open_device in [cpu as Open, delayed_by_2] {
        let words = failure_of(open_device, 1, Change::PanicsAtSubmit(30));
        assert!(words.contains("rank 1 of 2: its thread panicked"), "{words}");
    }
}

#[test]
fn a_shutdown_joins_every_rank() {
    for open_device in [cpu as Open, delayed_by_2] {
        let ranks = devices(open_device, 4);
        let llm = open_on(&fixtures().join("qwen3"), &ranks, |_| {});
        let mut stream = llm
            .engine()
            .submit(Request::new("long", vec![1, 2], greedy(400)))
            .expect("taken");
        assert!(stream.blocking_next().is_some());
        llm.engine().shutdown(Duration::ZERO);
        drop((stream, llm));
        for device in ranks {
            assert_eq!(Arc::strong_count(&device), 1, "a thread still holds a device");
        }
    }
}
