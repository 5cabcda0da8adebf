//! LoRA adapters in a running engine: PEFT's numbers in mixed batches, residency, the prefix cache, unloading under
//! load, and what is refused.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{cpu, delayed, fixtures, open, open_on, reference};
use halyard_device_check::goldens::{F32, Free};
use halyard_device_check::lora::{GGUF, LLAMA};
use halyard_engine::{
    AdapterError, AdapterSource, EngineConfig, FinishReason, Llm, LoraConfig, OutputStream, Request, RequestOutput,
    Residency, SamplingParams,
};
use halyard_platform_api::{Device, Platform};

fn adapter(name: &str) -> PathBuf {
    LLAMA.adapter(&fixtures(), name)
}

/// The three adapters from the start, `max_loras` of them on the device.
fn with_adapters(max_loras: u32) -> impl FnOnce(&mut EngineConfig) {
    move |config| config.lora = Some(LLAMA.config(&fixtures(), max_loras))
}

fn llama(device: Arc<dyn Device>, change: impl FnOnce(&mut EngineConfig)) -> Llm {
    open(&fixtures().join("llama"), device, change)
}

/// Base and every adapter in the same steps.
fn check_mixed(llm: &Llm) {
    let words = LLAMA
        .check_mixed(llm, &fixtures(), F32, Free::All)
        .unwrap_or_else(|why| panic!("{why}"));
    println!("{words}");
}

#[test]
fn mixed_batches_equal_peft_on_cpu() {
    check_mixed(&llama(cpu(), with_adapters(3)));
}

#[test]
fn mixed_batches_equal_peft_on_reference() {
    check_mixed(&llama(reference(), with_adapters(3)));
}

#[test]
fn mixed_batches_equal_peft_with_steps_in_flight_and_replayed() {
    let llm = llama(delayed(2), with_adapters(3));
    check_mixed(&llm);
    let stats = llm.engine().stats();
    assert!(
        stats.replayed_steps_total > 0,
        "recordings of steps with adapters were refused: {stats:?}"
    );
}

#[test]
fn an_adapter_on_a_gguf_base_equals_peft() {
    for device in [cpu(), reference()] {
        let llm = open(&fixtures().join(GGUF.base), device, |config| {
            config.lora = Some(GGUF.config(&fixtures(), 1));
        });
        let words = GGUF.check_mixed(&llm, &fixtures(), F32, Free::All);
        println!("{}", words.unwrap_or_else(|why| panic!("{why}")));
    }
}

#[test]
fn fewer_slots_than_adapters_give_the_same() {
    let llm = llama(cpu(), with_adapters(1));
    check_mixed(&llm);
    let status = llm.engine().adapters();
    let loads: u64 = status.iter().map(|adapter| adapter.device_loads_total).sum();
    assert!(loads >= 3, "{loads} loads of three adapters into one slot");
    let on_device = status.iter().filter(|adapter| adapter.residency == Residency::Device);
    assert_eq!(on_device.count(), 1);
    let reads: u64 = status.iter().map(|adapter| adapter.disk_reads_total).sum();
    assert!(
        reads > 3,
        "one place in host memory: files are read again, but {reads} reads were counted"
    );
}

fn request(prompt: &[u32], lora: Option<&str>, tokens: u32) -> Request {
    let mut request = Request::new("test", prompt.to_vec(), SamplingParams::greedy(tokens));
    request.lora = lora.map(str::to_owned);
    request
}

fn run(llm: &Llm, request: Request) -> RequestOutput {
    llm.engine().submit(request).expect("accepted").blocking_collect()
}

/// 40 tokens: two full blocks and a half.
fn prompt() -> Vec<u32> {
    (0..40).map(|i| (i * 7 + 3) % 400).collect()
}

#[test]
fn adapters_do_not_share_cached_prefixes() {
    let llm = llama(cpu(), with_adapters(2));
    let cached = |lora| run(&llm, request(&prompt(), lora, 4)).num_cached_tokens;
    assert_eq!(cached(Some("rank4")), 0);
    assert_eq!(cached(Some("rank4")), 32, "its own blocks are found");
    assert_eq!(cached(Some("rslora8")), 0, "another adapter's are not");
    assert_eq!(cached(None), 0, "nor by the model without one");
    assert_eq!(cached(None), 32);
}

#[test]
fn an_adapter_loaded_again_does_not_find_its_former_prefixes() {
    let llm = llama(cpu(), with_adapters(2));
    let cached = || run(&llm, request(&prompt(), Some("rank4"), 4)).num_cached_tokens;
    assert_eq!((cached(), cached()), (0, 32));
    llm.engine().remove_adapter("rank4").expect("it is there");
    let source = AdapterSource::Folder(adapter("rank4"));
    llm.engine().add_adapter("rank4", source).expect("free again");
    assert_eq!(cached(), 0, "its file may have changed");
}

#[test]
fn unloading_under_load_loses_nothing() {
    let llm = llama(delayed(2), with_adapters(2));
    let alone = run(&llm, request(&prompt(), Some("rank16"), 30))
        .outputs
        .remove(0)
        .token_ids;
    let submit = |_| {
        llm.engine()
            .submit(request(&prompt(), Some("rank16"), 30))
            .expect("accepted")
    };
    // More than there are rows: some wait when the adapter goes.
    let streams: Vec<OutputStream> = (0..20).map(submit).collect();
    llm.engine().remove_adapter("rank16").expect("it is there");
    let refused = llm
        .engine()
        .submit(request(&prompt(), Some("rank16"), 1))
        .err()
        .expect("it is gone");
    assert!(
        refused
            .to_string()
            .contains("no adapter `rank16`; loaded are: rank4, rslora8"),
        "{refused}"
    );
    for stream in streams {
        let output = stream.blocking_collect();
        assert_eq!(output.outputs[0].token_ids, alone);
    }
    assert!(llm.engine().adapters().iter().all(|adapter| adapter.name != "rank16"));
}

#[test]
fn a_file_that_changes_is_not_mixed_with_what_was_loaded() {
    let folder = tempfile_copy("rank4");
    let llm = llama(cpu(), |config| {
        with_adapters(1)(config);
        let lora = config.lora.as_mut().expect("just set");
        lora.adapters[0].1 = AdapterSource::Folder(folder.clone());
    });
    run(&llm, request(&prompt(), Some("rank4"), 2));
    run(&llm, request(&prompt(), Some("rank16"), 2));
    // Out of its slot and, with one place there, out of host memory. The file is another one now.
    let file = folder.join("adapter_model.safetensors");
    let mut bytes = std::fs::read(adapter("rank4").join("adapter_model.safetensors")).expect("readable");
    bytes.extend([0; 8]);
    std::fs::write(&file, bytes).expect("writable");
    let output = run(&llm, request(&prompt(), Some("rank4"), 2));
    let reason = output.outputs[0].finish.clone();
    assert!(
        matches!(&reason, FinishReason::Abort(why) if why.contains("has changed since")),
        "{reason:?}"
    );
    run(&llm, request(&prompt(), Some("rslora8"), 2));
    std::fs::remove_dir_all(folder).expect("removable");
}

/// A copy of an adapter that a test may change.
fn tempfile_copy(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("halyard-lora-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("writable");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(adapter(name).join(file), folder.join(file)).expect("copied");
    }
    folder
}

#[test]
fn what_is_wrong_is_said() {
    let llm = llama(cpu(), with_adapters(1));
    let add = |name: &str, source| llm.engine().add_adapter(name, source).expect_err("refused").to_string();
    let rank4 = || AdapterSource::Folder(adapter("rank4"));
    assert!(add("rank4", rank4()).contains("there already"));
    assert!(add("", rank4()).contains("is empty"));
    assert!(add("x", AdapterSource::Folder(fixtures())).contains("no adapter_config.json"));
    let large = AdapterSource::Dummy { rank: 17, seed: 1 };
    assert!(add("x", large).contains("--max-lora-rank 16"));
    let plain = llama(cpu(), |_| {});
    let error = plain.engine().add_adapter("x", rank4()).expect_err("no LoRA here");
    assert!(matches!(error, AdapterError::Disabled));
    let refused = plain
        .engine()
        .submit(request(&[1], Some("x"), 1))
        .err()
        .expect("no LoRA here");
    assert!(refused.to_string().contains("--enable-lora"), "{refused}");
}

/// Log-probabilities of the prompt.
fn scores(llm: &Llm, lora: Option<&str>) -> Vec<f32> {
    let mut request = request(&prompt(), lora, 1);
    request.params.prompt_logprobs = Some(1);
    let scored = run(llm, request).prompt_logprobs.expect("asked for");
    scored.into_iter().flatten().map(|at| at.chosen.logprob).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Log-probabilities of long prompts of every adapter and of the base, all in the same steps of up to `tokens` tokens.
fn scores_of_long_prompts(device: Arc<dyn Device>, tokens: u32) -> Vec<f32> {
    let llm = llama(device, |config| {
        with_adapters(3)(config);
        config.cache.enable_prefix_caching = false;
        config.scheduler.max_num_batched_tokens = Some(tokens);
    });
    let submit = |(i, lora): (u32, Option<&str>)| {
        let prompt: Vec<u32> = (0..90).map(|t| (t * 7 + i * 31) % 400 + 3).collect();
        let mut request = request(&prompt, lora, 1);
        request.params.prompt_logprobs = Some(1);
        llm.engine().submit(request).expect("accepted")
    };
    let adapters = [Some("rank4"), None, Some("rank16"), Some("rslora8"), Some("rank4")];
    let streams: Vec<_> = (0..).zip(adapters).map(submit).collect();
    let outputs = streams.into_iter().map(OutputStream::blocking_collect);
    let scored = outputs.flat_map(|output| output.prompt_logprobs.expect("asked for").into_iter().flatten());
    scored.map(|at| at.chosen.logprob).collect()
}

/// Steps of many tokens go by rows on the CPU platform, where threads wait for each other around an adapter's products
/// only: three threads and steps of 450 tokens, prompts of the base and three adapters in each, against one thread and
/// steps of 48 to the bit, and against the reference.
#[test]
fn long_steps_with_adapters_on_cpu_give_what_short_ones_and_the_reference_give() {
    let cpu = |threads| halyard_cpu::CpuPlatform::with_threads(threads).open(0).expect("opens");
    let bits = |scores: &[f32]| -> Vec<u32> { scores.iter().map(|score| score.to_bits()).collect() };
    let short = scores_of_long_prompts(cpu(1), 48);
    assert_eq!(short.len(), 5 * 89);
    let expected = scores_of_long_prompts(reference(), 450);
    let found = distance(&expected, &short);
    assert!(f64::from(found) < F32.logprob, "{found} from the reference's");
    for round in 0..5 {
        let long = scores_of_long_prompts(cpu(3), 450);
        assert!(
            bits(&long) == bits(&short),
            "round {round}: up to {} apart",
            distance(&long, &short)
        );
    }
}

#[test]
fn ranks_share_adapters() {
    let path = fixtures().join("llama3-rope");
    let one = open(&path, cpu(), |config| config.lora = Some(dummies(3)));
    let rank = || halyard_cpu::CpuPlatform::with_threads(1).open(0).expect("opens");
    let many = open_on(&path, &[rank(), rank()], |config| config.lora = Some(dummies(3)));
    let base = scores(&one, None);
    assert!(distance(&base, &scores(&many, None)) < 1e-4);
    for name in ["dummy-0", "dummy-2", "dummy-1"] {
        let expected = scores(&one, Some(name));
        let found = distance(&expected, &scores(&many, Some(name)));
        let changed = distance(&expected, &base);
        assert!(
            found < 1e-4 && changed > 5e-3,
            "{name}: {found} from one rank's, {changed} from the base's"
        );
    }
}

fn dummies(count: u64) -> LoraConfig {
    let dummy = |seed| (format!("dummy-{seed}"), AdapterSource::Dummy { rank: 32, seed });
    LoraConfig {
        adapters: (0..count).map(dummy).collect(),
        max_loras: 2,
        max_rank: 32,
        ..LoraConfig::default()
    }
}
