//! Recorded decode steps give the same results as newly encoded ones, on a device that runs late and poisons memory
//! that is read too early. A wrong recording is found before it is used.

use std::sync::Arc;

use crate::common::{delayed, fixtures, loaded, open, reference};
use halyard_delayed::{DelayedPlatform, Fault};
use halyard_device_check::recording as checks;
use halyard_engine::{EngineConfig, FinishReason, Llm, Request, RequestOutput, SamplingParams};
use halyard_platform_api::{DType, Device, Platform};

fn llm(device: Arc<dyn Device>, change: impl FnOnce(&mut EngineConfig)) -> Llm {
    open(&fixtures().join("llama"), device, change)
}

/// Replayed steps of all steps.
fn steps(llm: &Llm) -> (u64, u64) {
    llm.engine().shutdown(std::time::Duration::from_secs(60));
    let stats = llm.engine().stats();
    (stats.replayed_steps_total, stats.steps_total)
}

fn params(kind: &str, i: u32) -> SamplingParams {
    let greedy = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(3 + 5 * (i % 7))
    };
    match kind {
        "greedy" => greedy,
        "random" => SamplingParams {
            temperature: 0.9,
            top_p: 0.9,
            seed: Some(u64::from(i)),
            ..greedy
        },
        _ => SamplingParams {
            temperature: 0.7,
            repetition_penalty: 1.3,
            frequency_penalty: 0.4,
            seed: Some(u64::from(i)),
            ..greedy
        },
    }
}

/// Requests of other lengths and ends over eight rows, so that batches of every size come, and rows change owners
/// between steps.
fn serve(llm: &Llm, kind: &str) -> Vec<Vec<u32>> {
    let prompt = |i: u32| (0..1 + 7 * i % 30).map(|j| (11 * i + 3 * j) % 300 + 3).collect();
    let submit = |i: u32| {
        let request = Request::new(format!("{i}"), prompt(i), params(kind, i));
        llm.engine().submit(request).expect("taken")
    };
    let streams: Vec<_> = (0..20).map(submit).collect();
    let collect = |output: RequestOutput| output.outputs[0].token_ids.clone();
    streams
        .into_iter()
        .map(|stream| collect(stream.blocking_collect()))
        .collect()
}

fn eager(kind: &str) -> Vec<Vec<u32>> {
    let llm = llm(delayed(1), |c| c.recording.enforce_eager = true);
    let tokens = serve(&llm, kind);
    assert_eq!(steps(&llm).0, 0, "nothing is replayed under enforce_eager");
    tokens
}

fn recorded_is_eager(device: Arc<dyn Device>) {
    for kind in ["greedy", "random", "full"] {
        let llm = llm(device.clone(), |_| {});
        let tokens = serve(&llm, kind);
        assert_eq!(tokens, eager(kind), "{kind}");
        let (replayed, all) = steps(&llm);
        assert!(2 * replayed > all, "{kind}: {replayed} of {all} steps were replayed");
    }
}

#[test]
fn recorded_steps_give_what_encoded_ones_give_at_depth_0() {
    recorded_is_eager(delayed(0));
}

#[test]
fn recorded_steps_give_what_encoded_ones_give_at_depth_1() {
    recorded_is_eager(delayed(1));
}

#[test]
fn recorded_steps_give_what_encoded_ones_give_from_a_library() {
    recorded_is_eager(loaded("delayed"));
}

#[test]
fn recorded_steps_give_what_encoded_ones_give_with_several_kv_groups() {
    for family in ["gemma3", "qwen2"] {
        let run = |enforce_eager| {
            let llm = open(&fixtures().join(family), delayed(2), |c| {
                c.recording.enforce_eager = enforce_eager;
            });
            (serve(&llm, "greedy"), steps(&llm).0)
        };
        let (recorded, replayed) = run(false);
        assert_eq!(recorded, run(true).0, "{family}");
        assert!(replayed > 0, "{family}");
    }
}

#[test]
fn a_device_that_claims_no_recording_is_not_asked_for_one() {
    let llm = llm(reference(), |_| {});
    assert_eq!(serve(&llm, "greedy"), eager("greedy"));
    let notes = llm.engine().info().notes.join("\n");
    assert!(notes.contains("the device claims no recording"), "{notes}");
    assert_eq!(steps(&llm).0, 0);
}

#[test]
fn sizes_that_come_rarely_are_not_recorded() {
    let replayed = |from_step| {
        let llm = llm(delayed(1), |c| c.recording.from_step = from_step);
        let prompts = vec![vec![5, 6, 7]];
        llm.generate_ids(prompts, &params("greedy", 6)).expect("taken");
        steps(&llm)
    };
    // One prompt step, then 32 of one sequence.
    assert_eq!(replayed(33), (0, 33));
    assert_eq!(replayed(32), (1, 33));
    assert_eq!(replayed(8), (25, 33));
}

#[test]
fn steps_that_score_tokens_are_encoded_anew() {
    let llm = llm(delayed(1), |_| {});
    let params = SamplingParams {
        logprobs: Some(2),
        ..params("greedy", 3)
    };
    let output = llm.generate_ids(vec![vec![5, 6, 7]], &params).expect("taken").remove(0);
    assert_eq!(
        output.outputs[0].logprobs.as_ref().map(Vec::len),
        Some(output.outputs[0].token_ids.len())
    );
    assert_eq!(steps(&llm).0, 0);
}

#[test]
fn the_device_check_holds_here_and_sees_a_stale_recording() {
    let configure = |path: &std::path::Path| crate::common::config(path);
    for (name, outcome) in checks::check(&delayed(1), &fixtures(), &[DType::F32], |_| true, configure) {
        outcome.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    let llama = || crate::common::config(&fixtures().join("llama"));
    let shown = checks::many_replays(&delayed(1), llama(), 100, false).expect("no growth");
    assert!(shown.contains("0 bytes in buffers"), "{shown}");
    let refused = checks::check(&stale(), &fixtures(), &[DType::F32], |_| true, configure);
    assert!(refused.iter().all(|(_, outcome)| outcome.is_err()), "{refused:?}");
}

fn stale() -> Arc<dyn Device> {
    let platform = DelayedPlatform::new(1, 7).with_fault(Fault::StaleReplay);
    platform.open(0).expect("opens")
}

#[test]
fn a_recording_that_replays_old_step_data_is_found_and_never_used() {
    let llm = llm(stale(), |_| {});
    assert_eq!(serve(&llm, "greedy"), eager("greedy"));
    assert_eq!(steps(&llm).0, 0, "every recording was refused");
}

#[test]
fn without_the_check_such_a_recording_does_harm() {
    let llm = llm(stale(), |c| c.recording.check = false);
    let engine = llm.engine();
    let stream = engine
        .submit(Request::new("r", vec![5, 6, 7], params("greedy", 6)))
        .expect("taken");
    let output = stream.blocking_collect();
    assert!(
        matches!(&output.outputs[0].finish, FinishReason::Error(why) if why.contains("result ring entry")),
        "{output:?}"
    );
}
