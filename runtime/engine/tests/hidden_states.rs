//! Steps in which some rows give a hidden state and others a token.

use std::sync::Arc;

use crate::common::{cpu, delayed, fixtures, on_every_device, open, open_on, reference};
use halyard_device_check::hidden_states::{self as checks, BOUND, Golden, MODELS, distance, request as embedded};
use halyard_engine::{FinishReason, Llm, OutputStream, Request, SamplingParams, SubmitError};
use halyard_platform_api::Device;

fn greedy(seed: u32, max_tokens: u32) -> Request {
    let prompt = (0..9).map(|i| (11 * seed + 3 * i) % 200 + 3).collect();
    let params = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(max_tokens)
    };
    Request::new(format!("text {seed}"), prompt, params)
}

fn submit(llm: &Llm, request: Request) -> OutputStream {
    llm.engine().submit(request).expect("taken")
}

fn tokens(stream: OutputStream) -> Vec<u32> {
    stream.blocking_collect().outputs.remove(0).token_ids
}

fn hidden_state(stream: OutputStream) -> Vec<f32> {
    let output = stream.blocking_collect().outputs.remove(0);
    assert_eq!((output.token_ids.len(), &output.finish), (0, &FinishReason::Length));
    output.hidden_state.expect("a hidden state")
}

fn goldens(model: &str) -> Vec<Golden> {
    checks::read_goldens(&fixtures().join(model)).expect("a golden file")
}

fn are_hugging_faces(llm: &Llm, model: &str) {
    if let Err(why) = checks::check(llm, &goldens(model)) {
        panic!("{model}, {why}");
    }
}

#[test]
fn hidden_states_are_hugging_faces() {
    for model in MODELS {
        for device in [reference(), cpu()] {
            are_hugging_faces(
                &open(&fixtures().join(model), device, |c| c.hidden_states = true),
                model,
            );
        }
    }
}

#[test]
fn ranks_give_the_whole_state() {
    let devices = [delayed(1), delayed(1)];
    are_hugging_faces(
        &open_on(&fixtures().join("qwen3"), &devices, |c| c.hidden_states = true),
        "qwen3",
    );
}

/// How many rows meet in a step is chance on a busy machine: it is tried until enough did. The states must be right
/// each time.
#[test]
fn more_rows_give_states_than_logits_are_computed_at_once() {
    let steps: Vec<u64> = (0..20)
        .map(|_| steps_of_many_states())
        .take_while(|steps| *steps >= 4)
        .collect();
    assert!(steps.len() < 20, "{steps:?} steps: too few rows stood in one");
}

/// Asks for 196 states at once and checks them; the steps that it took.
fn steps_of_many_states() -> u64 {
    let goldens = goldens("llama");
    let (ids, expected) = &goldens[0];
    let llm = open(&fixtures().join("llama"), reference(), |c| {
        c.hidden_states = true;
        c.scheduler.max_num_seqs = 200;
        c.scheduler.max_num_batched_tokens = Some(1024);
    });
    // They keep the engine busy until the others are there.
    let long = |seed: u32| embedded((0..150).map(|i| (seed + i) % 90 + 3).collect());
    let long: Vec<_> = (0..6).map(|seed| submit(&llm, long(seed))).collect();
    let prompts = (0..190u32).map(|i| match i % 2 {
        0 => ids.clone(),
        _ => vec![i + 3, 7],
    });
    let vectors: Vec<_> = prompts.map(|prompt| submit(&llm, embedded(prompt))).collect();
    for (i, stream) in vectors.into_iter().enumerate() {
        let state = hidden_state(stream);
        assert_eq!(state.len(), expected.len());
        let distance = distance(&state, expected);
        assert_eq!(distance < BOUND, i % 2 == 0, "row {i}: {distance}");
    }
    long.into_iter().for_each(|stream| drop(hidden_state(stream)));
    llm.engine().shutdown(std::time::Duration::from_secs(60));
    llm.engine().stats().steps_total
}

fn vectors_stand_beside_tokens_in_one_step(device: Arc<dyn Device>) {
    let alone = open(&fixtures().join("llama"), reference(), |_| {});
    let texts: Vec<_> = (0..3).map(|seed| tokens(submit(&alone, greedy(seed, 24)))).collect();
    let scored = || {
        let mut request = greedy(3, 6);
        request.params.prompt_logprobs = Some(1);
        request
    };
    let scores = submit(&alone, scored())
        .blocking_collect()
        .prompt_logprobs
        .expect("scores");
    let goldens = goldens("llama");
    let llm = open(&fixtures().join("llama"), device, |c| c.hidden_states = true);
    let mut streams: Vec<_> = (0..3).map(|seed| submit(&llm, greedy(seed, 24))).collect();
    // They run when the vectors come: steps decode and give vectors, and one more scores its prompt.
    let firsts: Vec<u32> = streams
        .iter_mut()
        .map(|s| s.blocking_next().expect("a token").token_ids[0])
        .collect();
    // More texts come between them, so that rows with tokens stand behind rows with vectors, too.
    let generated = |i: usize| submit(&llm, greedy(i as u32 % 3, 24));
    let asked = goldens.iter().enumerate();
    let (vectors, more): (Vec<_>, Vec<_>) = asked
        .map(|(i, (ids, _))| (submit(&llm, embedded(ids.clone())), generated(i)))
        .unzip();
    let scoring = submit(&llm, scored());
    for (stream, (_, expected)) in vectors.into_iter().zip(&goldens) {
        let distance = distance(&hidden_state(stream), expected);
        assert!(distance < BOUND, "{distance}");
    }
    for ((stream, expected), first) in streams.into_iter().zip(&texts).zip(firsts) {
        assert_eq!([vec![first], tokens(stream)].concat(), *expected);
    }
    for (i, stream) in more.into_iter().enumerate() {
        assert_eq!(tokens(stream), texts[i % 3]);
    }
    let found = scoring.blocking_collect().prompt_logprobs.expect("scores");
    for (found, expected) in found
        .iter()
        .zip(&scores)
        .filter_map(|(f, e)| f.as_ref().zip(e.as_ref()))
    {
        assert_eq!(found.chosen.token, expected.chosen.token);
        assert!((found.chosen.logprob - expected.chosen.logprob).abs() < 2e-3);
    }
}

on_every_device! {
    mixed => vectors_stand_beside_tokens_in_one_step;
}

#[test]
fn a_hidden_state_that_cannot_be_given_is_refused() {
    let path = fixtures().join("llama");
    let refused = |llm: &Llm, request| match llm.engine().submit(request) {
        Err(SubmitError::HiddenState(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("taken"),
    };
    assert!(refused(&open(&path, reference(), |_| {}), embedded(vec![5, 6])).contains("not started for it"));
    let llm = open(&path, reference(), |c| c.hidden_states = true);
    let mut twice = embedded(vec![5, 6]);
    twice.params.n = 2;
    assert!(refused(&llm, twice).contains("one sample"));
}
