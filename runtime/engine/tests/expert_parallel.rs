//! Expert parallelism over threads: ranks with whole experts give Hugging Face's numbers, and what they cannot share is
//! refused.

use std::sync::Arc;

use crate::common::wrapped::{Change, wrapped};
use crate::common::{config, delayed, fixtures, open_on, reference};
use halyard_device_check::goldens::{self, F32, Free};
use halyard_engine::{EngineConfig, Llm};
use halyard_platform_api::{Device, Platform};

type Open = fn() -> Arc<dyn Device>;

/// One thread a rank: the ranks already share the cores.
fn cpu() -> Arc<dyn Device> {
    halyard_cpu::CpuPlatform::with_threads(1).open(0).expect("opens")
}

fn delayed_by_2() -> Arc<dyn Device> {
    delayed(2)
}

fn with_experts(config: &mut EngineConfig) {
    config.model.enable_expert_parallel = true;
}

/// Hugging Face's golden at every position, and as free text.
fn agrees(model: &str, open_device: Open, size: usize) {
    let devices: Vec<_> = (0..size).map(|_| open_device()).collect();
    let llm = open_on(&fixtures().join(model), &devices, with_experts);
    let note = format!("each of {size} ranks");
    let notes = llm.engine().info().notes.join("\n");
    assert!(notes.contains(&note), "{notes}");
    let golden = fixtures().join(model).join("goldens.json");
    let cases =
        goldens::check(&llm, &golden, F32, Free::All).unwrap_or_else(|why| panic!("{model} over {size}: {why}"));
    let worst = cases.iter().map(|case| case.worst).fold(0.0, f64::max);
    let positions: usize = cases.iter().map(|case| case.positions).sum();
    assert!(positions > 100, "only {positions} positions were compared");
    println!("{model} over {size}: {positions} positions, worst log-probability difference {worst:.2e}");
}

macro_rules! ranks_of_experts_agree_with_hugging_face {
    ($($name:ident: $model:literal, $($size:literal)+;)*) => {$(
        mod $name {
            #[test] fn cpu() { $(super::agrees($model, super::cpu, $size);)+ }
            #[test] fn reference() { $(super::agrees($model, super::reference, $size);)+ }
        }
    )*};
}

ranks_of_experts_agree_with_hugging_face! {
    // Six experts over four ranks: two of them have one more.
    qwen3_moe: "qwen3-moe", 2 4;
    // A shared expert, whose columns are divided.
    qwen2_moe: "qwen2-moe", 2;
    mixtral: "mixtral", 2 4;
    granite_moe: "granite-moe", 2;
    glm4_moe: "glm4-moe", 2 4;
    deepseek_v2: "deepseek-v2", 2 4;
    deepseek_v3: "deepseek-v3", 2 4;
    deepseek_v3_fp8: "deepseek-v3-fp8", 2 4;
    // Biases of experts; blocks of MXFP4 that four ranks cannot cut.
    gpt_oss: "gpt-oss", 2 4;
    gpt_oss_mxfp4: "gpt-oss-mxfp4", 2 4;
}

/// With steps in flight and recorded ones.
#[test]
fn steps_in_flight_agree_too() {
    agrees("qwen3-moe", delayed_by_2, 2);
    agrees("qwen3-moe", delayed_by_2, 4);
}

fn refusal(model: &str, devices: &[Arc<dyn Device>]) -> String {
    let mut config = config(&fixtures().join(model));
    with_experts(&mut config);
    Llm::open_on(config, devices).err().expect("refused").to_string()
}

fn has(text: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_model_without_experts_is_refused() {
    for size in [1, 2] {
        let devices: Vec<_> = (0..size).map(|_| cpu()).collect();
        let text = refusal("qwen3", &devices);
        has(&text, &["--enable-expert-parallel", "Qwen3ForCausalLM", "leave it out"]);
    }
}

#[test]
fn a_platform_that_knows_whole_experts_only_is_refused_with_its_reason() {
    let devices = [cpu(), wrapped(cpu(), Change::WholeExperts)];
    let text = refusal("qwen3-moe", &devices);
    has(
        &text,
        &[
            "rank 1 of 2",
            "--enable-expert-parallel",
            "past the descriptor",
            "leave it out",
        ],
    );
    // And runs the model without it.
    open_on(&fixtures().join("qwen3-moe"), &devices, |_| {});
    let lacks = [cpu(), wrapped(cpu(), Change::Lacks("moe_linear"))];
    has(&refusal("qwen3-moe", &lacks), &["cannot run the model", "moe_linear"]);
}

#[test]
fn one_device_has_all_experts_and_says_so() {
    let llm = open_on(&fixtures().join("qwen3-moe"), &[cpu()], with_experts);
    let notes = llm.engine().info().notes.join("\n");
    has(&notes, &["--enable-expert-parallel: one device has all experts"]);
}
