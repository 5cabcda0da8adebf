//! Structured output on tiny models with random weights, at temperature 1: what is finished passes its judge, together
//! with everything else that a request may ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::constraints::{Case, cases, choice, regex};
use crate::common::{cpu, delayed, fixtures, on_every_device, open, reference};
use halyard_engine::{
    CompletionOutput, Constraint, EngineConfig, FinishReason, GrammarError, Llm, OutputStream, Request, RequestOutput,
    SamplingParams, SpeculativeConfig, StructuredOutputs, SubmitError,
};
use halyard_platform_api::Device;

fn llm(device: Arc<dyn Device>, change: impl FnOnce(&mut EngineConfig)) -> Llm {
    open(&fixtures().join("llama"), device, change)
}

fn many_rows(config: &mut EngineConfig) {
    config.scheduler.max_num_seqs = 64;
    config.scheduler.max_num_batched_tokens = Some(128);
}

fn params(asked: &StructuredOutputs, max_tokens: u32) -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        max_tokens: Some(max_tokens),
        structured_outputs: Some(asked.clone()),
        ..SamplingParams::default()
    }
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..9).map(|i| (11 * seed + 3 * i) % 200 + 3).collect()
}

fn submit(llm: &Llm, seed: u32, params: SamplingParams) -> OutputStream {
    let request = Request::new(format!("{seed}"), prompt(seed), params);
    llm.engine().submit(request).expect("taken")
}

fn output(stream: OutputStream) -> CompletionOutput {
    stream.blocking_collect().outputs.remove(0)
}

/// What came of many generations.
#[derive(Debug, Default)]
struct Count {
    finished: usize,
    cut: usize,
}

/// Draws `n` samples under each constraint, all at once, and judges what is finished.
fn judge(llm: &Llm, cases: &[Case], n: u32, max_tokens: u32, seed: u64) -> Count {
    let streams: Vec<OutputStream> = (0..)
        .zip(cases)
        .map(|(i, case)| {
            let params = SamplingParams {
                n,
                seed: Some(seed + 1000 * u64::from(i)),
                ..params(&case.asked, max_tokens)
            };
            submit(llm, i, params)
        })
        .collect();
    let mut count = Count::default();
    for (stream, case) in streams.into_iter().zip(cases) {
        for output in stream.blocking_collect().outputs {
            match &output.finish {
                FinishReason::Eos => {
                    let judged = (case.judge)(&output.text);
                    assert!(judged.is_ok(), "{judged:?}: {:?} under {:?}", output.text, case.asked);
                    count.finished += 1;
                }
                FinishReason::Length => count.cut += 1,
                other => panic!("{other:?}: {:?} under {:?}", output.text, case.asked),
            }
        }
    }
    count
}

fn what_is_finished_passes_its_judge(device: Arc<dyn Device>) {
    let llm = llm(device, |_| {});
    let cases = cases();
    assert!(cases.len() >= 40, "{}", cases.len());
    let count = judge(&llm, &cases, 2, 100, 1);
    assert!(count.finished > count.cut, "{count:?}");
}

on_every_device! {
    judged => what_is_finished_passes_its_judge;
}

/// The large count, over tokenizers of both kinds.
#[test]
fn two_thousand_generations_pass_their_judges() {
    let mut all = Count::default();
    for model in ["llama", "gemma3", "qwen2"] {
        let llm = open(&fixtures().join(model), cpu(), many_rows);
        for round in 0..4 {
            let count = judge(&llm, &cases(), 8, 300, 77 * round);
            all.finished += count.finished;
            all.cut += count.cut;
        }
    }
    println!(
        "{} constraints: {} finished, all right; {} cut by length",
        cases().len(),
        all.finished,
        all.cut
    );
    assert!(all.finished >= 2_000, "{all:?}");
}

/// Both ends of a model with two may come, and end the text.
#[test]
fn every_end_of_the_model_ends_the_text() {
    let llm = open(&fixtures().join("qwen2"), cpu(), |_| {});
    assert_eq!(llm.engine().info().eos_token_ids, [2, 0]);
    let asked = choice(&["a"]).asked;
    let drawn = SamplingParams {
        n: 64,
        ..params(&asked, 10)
    };
    let outputs = submit(&llm, 1, drawn).blocking_collect().outputs;
    let ends: std::collections::BTreeSet<u32> = outputs
        .iter()
        .map(|output| *output.token_ids.last().expect("a token"))
        .collect();
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), [0, 2]);
    assert!(
        outputs
            .iter()
            .all(|output| output.text == "a" && output.finish == FinishReason::Eos)
    );
}

#[test]
fn stops_and_limits_of_the_request_hold() {
    let llm = llm(cpu(), |_| {});
    let word = regex("[a-z]{6}").asked;
    // A token of the request's own may come where the text may end, and no earlier.
    let own = llm
        .engine()
        .tokenizer()
        .token_to_id("<|im_start|>")
        .expect("a special token");
    let ends = SamplingParams {
        n: 32,
        stop_token_ids: vec![own],
        ..params(&word, 20)
    };
    let outputs = submit(&llm, 1, ends).blocking_collect().outputs;
    assert!(outputs.iter().all(|output| output.text.len() == 6));
    let stopped = outputs
        .iter()
        .filter(|output| output.finish == FinishReason::StopToken(own))
        .count();
    assert!((1..32).contains(&stopped), "{stopped}");
    // A stop string cuts the text where it comes.
    let cut = SamplingParams {
        stop: vec!["-".to_string()],
        ..params(&regex("[a-z]{3}-[a-z]{3}").asked, 20)
    };
    let output_of = |params| output(submit(&llm, 2, params));
    let output = output_of(cut);
    assert_eq!(
        (output.text.len(), &output.finish),
        (3, &FinishReason::StopString("-".to_string()))
    );
    // Ends wait for min_tokens where the text may go on, and it is said where it may not.
    let many = SamplingParams {
        min_tokens: 12,
        ..params(&regex("[0-9]*").asked, 40)
    };
    assert!(output_of(many).token_ids.len() >= 12);
    let few = SamplingParams {
        min_tokens: 12,
        ..params(&choice(&["a"]).asked, 40)
    };
    let finish = output_of(few).finish;
    assert!(
        matches!(&finish,
            FinishReason::NoTokenAllowed(why) if why.contains("min_tokens") && why.contains("structured")),
        "{finish:?}"
    );
    // Behind the end of a text whose end does not stop it, only ends come.
    let past = SamplingParams {
        ignore_eos: true,
        ..params(&choice(&["a"]).asked, 8)
    };
    let output = output_of(past);
    assert_eq!(
        (output.text.as_str(), output.token_ids.len(), output.finish),
        ("a", 8, FinishReason::Length)
    );
    assert!(output.token_ids[1..].iter().all(|id| *id == 2));
}

#[test]
fn log_probabilities_are_the_models_own() {
    let llm = llm(cpu(), |_| {});
    let asked = SamplingParams {
        logprobs: Some(3),
        ..params(&regex("[a-z]{4}").asked, 20)
    };
    let output = output(submit(&llm, 1, asked));
    let logprobs = output.logprobs.expect("asked for");
    assert_eq!(logprobs.len(), output.token_ids.len());
    // Masks do not change them: the likeliest tokens are not those that the grammar allows.
    assert!(logprobs.iter().any(|entry| entry.rank > 1), "{logprobs:?}");
}

/// A sequence that loses its row goes on under its grammar; so does one whose prompt is cached.
fn rows_come_and_go(device: Arc<dyn Device>) {
    let roomy = llm(device.clone(), |_| {});
    let page = roomy.engine().info().block_bytes;
    drop(roomy);
    let tight = llm(device, |config| {
        config.cache.kv_cache_memory_bytes = Some(page * 11);
        config.model.max_model_len = Some(128);
    });
    let list = regex("[0-9]{2}(,[0-9]{2}){11}");
    // Prompts of two blocks each.
    let submit = |seed: u32| {
        let prompt = (0..34).map(|i| (7 * seed + 5 * i) % 200 + 3).collect();
        let params = SamplingParams {
            seed: Some(u64::from(seed)),
            ..params(&list.asked, 80)
        };
        tight.engine().submit(Request::new("r", prompt, params)).expect("taken")
    };
    let ends_under_its_grammar = |collected: &RequestOutput| {
        let output = &collected.outputs[0];
        let ended = output.finish == FinishReason::Eos;
        if ended {
            (list.judge)(&output.text).unwrap_or_else(|why| panic!("{why}: {}", output.text));
        } else {
            assert_eq!(output.finish, FinishReason::Length, "{}", output.text);
        }
        ended
    };
    for _ in 0..2 {
        let streams: Vec<OutputStream> = (0..8).map(submit).collect();
        let finished = streams
            .into_iter()
            .map(|stream| ends_under_its_grammar(&stream.blocking_collect()))
            .filter(|ended| *ended)
            .count();
        assert!(finished > 0);
    }
    assert!(
        tight.engine().stats().preemptions_total > 0,
        "the pool of 11 blocks was meant to overflow"
    );
    // Alone: nothing takes the blocks of its prompt from one turn to the next.
    submit(0).blocking_collect();
    let again = submit(0).blocking_collect();
    assert_eq!(
        again.num_cached_tokens, 32,
        "two blocks of the prompt were meant to be cached"
    );
    assert!(ends_under_its_grammar(&again));
}

on_every_device! {
    rows => rows_come_and_go;
}

/// Sixty-four streams under eight constraints; every third is cancelled on its way. The others are right, plain rows
/// beside them are what they are alone, and nothing of the cancelled ones is left.
#[test]
fn many_streams_with_cancels() {
    let alone = llm(reference(), |_| {});
    let plain = |llm: &Llm| submit(llm, 900, SamplingParams::greedy(40));
    let expected = output(plain(&alone)).token_ids;
    let llm = llm(delayed(1), many_rows);
    let cases: Vec<Case> = cases().into_iter().step_by(6).take(8).collect();
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for i in 0..64_u32 {
            let (llm, case, finished) = (&llm, &cases[i as usize % cases.len()].asked, &finished);
            let (params, cancels) = (params(case, 120), i % 3 == 0);
            scope.spawn(move || {
                let mut stream = submit(llm, i, params);
                for step in 0.. {
                    let Some(chunk) = stream.blocking_next() else { break };
                    if cancels && step == 1 + i as usize % 5 {
                        return;
                    }
                    match chunk.finish {
                        Some(FinishReason::Eos | FinishReason::Length) => _ = finished.fetch_add(1, Ordering::Relaxed),
                        Some(other) => panic!("{other:?}"),
                        None => {}
                    }
                }
            });
        }
        let unguided = output(plain(&llm));
        assert_eq!(unguided.token_ids, expected);
    });
    assert!(finished.load(Ordering::Relaxed) >= 42);
    let count = judge(&llm, &cases, 2, 120, 5);
    assert_eq!(count.finished + count.cut, 16);
    llm.engine().shutdown(Duration::from_secs(60));
    let stats = llm.engine().stats();
    assert_eq!((stats.num_running, stats.num_waiting), (0, 0));
}

#[test]
fn structured_rows_stand_beside_drafting_ones() {
    let llm = llm(delayed(1), |config| {
        config.speculative = Some(SpeculativeConfig {
            num_speculative_tokens: 2,
            prompt_lookup_min: 1,
            prompt_lookup_max: 2,
        });
    });
    let long = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(100)
    };
    let drafting = submit(&llm, 1, long);
    let likeliest = SamplingParams {
        temperature: 0.0,
        ..params(&regex("(ab){20}").asked, 60)
    };
    assert_eq!(output(submit(&llm, 2, likeliest)).text, "ab".repeat(20));
    assert_eq!(output(drafting).token_ids.len(), 100);
    llm.engine().shutdown(Duration::from_secs(60));
    assert!(llm.engine().stats().draft_tokens_total > 0);
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_queued() {
    let llm = llm(cpu(), |_| {});
    let wrong = Constraint::Regex("(".to_string()).into();
    let refused = llm
        .generate_ids(vec![prompt(1)], &params(&wrong, 5))
        .expect_err("no regex");
    assert!(
        matches!(
            &refused,
            SubmitError::Grammar(GrammarError::Invalid { field: "regex", .. })
        ),
        "{refused:?}"
    );
    assert_eq!(llm.engine().stats().num_waiting, 0);
    let right = regex("a{3}").asked;
    assert!(llm.engine().kept_guide(&right, &[]).is_none());
    let output = llm
        .generate_ids(vec![prompt(1)], &params(&right, 5))
        .expect("taken")
        .remove(0);
    assert_eq!(output.outputs[0].text, "aaa");
    assert!(llm.engine().kept_guide(&right, &[]).is_some());
}
