//! Drafted tokens: two a step by prompt lookup, verified by the model, wrong ones rolled back. What comes out is what
//! comes out without them.

use std::sync::Arc;

use crate::common::{delayed, fixtures, on_every_device, open, open_on, reference};
use halyard_device_check::drafts::{self as checks, Answer, MODEL, prompt, two_drafts};
use halyard_engine::{FinishReason, Llm, Request, SamplingParams, SpeculativeConfig, StatsSnapshot};
use halyard_platform_api::Device;

fn answers(llm: &Llm) -> (Vec<Answer>, StatsSnapshot) {
    checks::answers(llm).expect("taken")
}

fn assert_same(found: &[Answer], expected: &[Answer]) {
    if let Err(why) = checks::same(found, expected) {
        panic!("{why}");
    }
}

fn drafts_change_no_answer(device: Arc<dyn Device>) {
    let path = fixtures().join(MODEL);
    let (expected, plain) = answers(&open(&path, reference(), |_| {}));
    assert_eq!(plain.draft_tokens_total, 0);
    let (found, stats) = answers(&open(&path, device, two_drafts));
    assert_same(&found, &expected);
    let (drafted, right) = (stats.draft_tokens_total, stats.accepted_tokens_total);
    assert!(right > 20, "{right} of {drafted} drafts were right");
    assert!(
        drafted > right + 20,
        "{right} of {drafted} drafts were right: too few were rolled back"
    );
}

on_every_device! {
    drafts => drafts_change_no_answer;
}

#[test]
fn ranks_verify_the_same_drafts() {
    let path = fixtures().join(MODEL);
    let (expected, _) = answers(&open(&path, reference(), |_| {}));
    let (found, stats) = answers(&open_on(&path, &[delayed(1), delayed(1)], two_drafts));
    assert_same(&found, &expected);
    assert!(stats.accepted_tokens_total > 0);
}

#[test]
fn an_end_in_the_middle_of_what_a_step_verifies_drops_the_rest() {
    let path = fixtures().join(MODEL);
    let ask = |llm: &Llm, prompt: &[u32], stop: &[u32]| {
        let params = SamplingParams {
            ignore_eos: true,
            stop_token_ids: stop.to_vec(),
            ..SamplingParams::greedy(40)
        };
        let request = Request::new("text", prompt.to_vec(), params);
        let stream = llm.engine().submit(request).expect("taken");
        stream.blocking_collect().outputs.remove(0)
    };
    // Its output goes `a a b a | b a`: behind the a that stands before the bar, `b a` is drafted, which is right.
    let text = ask(&open(&path, reference(), |_| {}), &prompt(16), &[]).token_ids;
    let [a, b] = [text[30], text[31]];
    assert_eq!(text[29..35], [a, a, b, a, b, a]);
    let llm = open(&path, reference(), two_drafts);
    let output = ask(&llm, &[&prompt(16), &text[..32]].concat(), &[b]);
    assert_eq!(
        (&output.token_ids[..], output.finish),
        (&[a, b][..], FinishReason::StopToken(b))
    );
    llm.engine().shutdown(std::time::Duration::from_secs(60));
    assert_eq!(
        llm.engine().stats().accepted_tokens_total,
        2,
        "both drafts of the last step were right"
    );
}

#[test]
fn an_answer_that_repeats_itself_takes_fewer_steps() {
    let path = fixtures().join(MODEL);
    let (_, plain) = answers(&open(&path, delayed(0), |_| {}));
    let (_, drafted) = answers(&open(&path, delayed(0), two_drafts));
    assert_eq!(drafted.generation_tokens_total, plain.generation_tokens_total);
    assert!(
        drafted.steps_total < plain.steps_total,
        "{} steps with drafts, {} without",
        drafted.steps_total,
        plain.steps_total
    );
}

#[test]
fn numbers_that_make_no_drafts_are_refused_at_start() {
    let path = fixtures().join(MODEL);
    for (drafts, min, max, words) in [
        (0, 1, 2, "num_speculative_tokens: 0"),
        (
            33,
            1,
            2,
            "num_speculative_tokens: 33 drafted tokens a step; choose at most 32",
        ),
        (2, 0, 2, "prompt_lookup_min: 0 is not between 1 and"),
        (2, 3, 2, "prompt_lookup_min: 3 is not between 1 and prompt_lookup_max 2"),
    ] {
        let mut config = crate::common::config(&path);
        config.speculative = Some(SpeculativeConfig {
            num_speculative_tokens: drafts,
            prompt_lookup_min: min,
            prompt_lookup_max: max,
        });
        let error = Llm::open(config, reference())
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.contains(words), "{error}");
    }
}
