//! Biases that guides give tokens: they act like a request's own, together with it, for one token each.

use std::sync::Arc;

use crate::common::{delayed, fixtures, on_every_device, open, open_on, reference};
use halyard_engine::{
    CompletionOutput, FinishReason, GuideFactory, Llm, LogitChanges, Request, SamplingParams, TokenGuide,
};
use halyard_platform_api::Device;

/// Gives the biases of its list in turn, first those of the first token.
struct Biases {
    in_turn: Vec<Vec<(u32, f32)>>,
    given: usize,
}

impl TokenGuide for Biases {
    fn next(&mut self, _: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
        changes.biases.extend(&self.in_turn[self.given % self.in_turn.len()]);
        self.given += 1;
        Ok(())
    }
}

fn biases(in_turn: &[&[(u32, f32)]]) -> GuideFactory {
    let in_turn: Vec<Vec<_>> = in_turn.iter().map(|of_one| of_one.to_vec()).collect();
    GuideFactory::new(move |_| {
        Box::new(Biases {
            in_turn: in_turn.clone(),
            given: 0,
        })
    })
}

fn request(seed: u32, logit_bias: &[(u32, f32)], guide: Option<GuideFactory>) -> Request {
    let prompt = (0..9).map(|i| (11 * seed + 3 * i) % 200 + 3).collect();
    let params = SamplingParams {
        ignore_eos: true,
        logit_bias: logit_bias.to_vec(),
        n: if seed == 0 { 2 } else { 1 },
        logprobs: Some(2),
        ..SamplingParams::greedy(24)
    };
    Request {
        guide,
        ..Request::new(format!("{seed}"), prompt, params)
    }
}

fn run(llm: &Llm, requests: Vec<Request>) -> Vec<Vec<CompletionOutput>> {
    let streams: Vec<_> = (requests.into_iter())
        .map(|request| llm.engine().submit(request).expect("taken"))
        .collect();
    streams
        .into_iter()
        .map(|stream| stream.blocking_collect().outputs)
        .collect()
}

fn ids(outputs: &[CompletionOutput]) -> Vec<&[u32]> {
    outputs.iter().map(|output| &*output.token_ids).collect()
}

/// Tokens to prefer, and by how much.
const OWN: [(u32, f32); 2] = [(60, 5.0), (61, 3.0)];
const MORE: [(u32, f32); 3] = [(61, 4.0), (62, 7.5), (61, 0.5)];
const SUM: [(u32, f32); 3] = [(60, 5.0), (61, 7.5), (62, 7.5)];

fn they_act_as_a_requests_own(device: Arc<dyn Device>) {
    let llm = open(&fixtures().join("llama"), device, |_| {});
    let guide = || Some(biases(&[&MORE]));
    let outputs = run(
        &llm,
        vec![
            request(0, &SUM, None),
            request(1, &[], None),
            request(0, &OWN, guide()),
            request(1, &SUM, None),
            request(0, &[], Some(biases(&[&SUM]))),
            request(1, &OWN, guide()),
        ],
    );
    let [own, free, together, own_of_1, alone, together_of_1] = &outputs[..] else {
        panic!("six requests");
    };
    assert_eq!(own.len(), 2);
    assert_eq!(ids(own), ids(together));
    assert_eq!(ids(own), ids(alone));
    assert_eq!(ids(own_of_1), ids(together_of_1));
    assert_ne!(ids(free), ids(own_of_1), "the biases change something");
    // Log-probabilities are those of the model: equal texts have equal ones.
    assert_eq!(own[0].logprobs, together[0].logprobs);
}

/// Biases are for one token: the next one has those of its request alone.
fn they_are_for_one_token(device: Arc<dyn Device>) {
    let llm = open(&fixtures().join("llama"), device, |_| {});
    let guide = biases(&[&[(77, 1e9)], &[], &[(78, 1e9), (77, 5.0)], &[(79, -1e9)]]);
    let never_77 = [(77, -100.0), (78, -100.0)];
    let outputs = run(&llm, vec![request(0, &never_77, Some(guide)), request(1, &[], None)]);
    for sample in ids(&outputs[0]) {
        for (at, token) in sample.iter().enumerate() {
            let forced = [Some(77), None, Some(78), None][at % 4];
            match forced {
                Some(forced) => assert_eq!(*token, forced, "{at} of {sample:?}"),
                None => assert!(![77, 78].contains(token), "{at} of {sample:?}"),
            }
        }
    }
}

on_every_device! {
    sums => they_act_as_a_requests_own;
    in_turn => they_are_for_one_token;
}

#[test]
fn ranks_take_the_same_biases() {
    let path = fixtures().join("qwen2");
    let alone = open(&path, reference(), |_| {});
    let both = open_on(&path, &[delayed(1), delayed(1)], |_| {});
    let expected = run(&alone, vec![request(1, &SUM, None)]);
    let guided = run(&both, vec![request(1, &OWN, Some(biases(&[&MORE])))]);
    assert_eq!(ids(&expected[0]), ids(&guided[0]));
}

/// A row that loses its memory and gets it back has its biases again.
#[test]
fn rows_that_are_preempted_keep_their_biases() {
    let path = fixtures().join("llama");
    let alone = open(&path, reference(), |_| {});
    let requests = |guided: bool| -> Vec<Request> {
        let one = |seed| {
            let mut request = match guided {
                true => request(seed, &OWN, Some(biases(&[&MORE]))),
                false => request(seed, &SUM, None),
            };
            request.params.max_tokens = Some(60);
            request
        };
        (1..7).map(one).collect()
    };
    let expected = run(&alone, requests(false));
    let tight = open(&path, delayed(1), |config| {
        config.cache.num_gpu_blocks_override = Some(11);
        config.model.max_model_len = Some(128);
    });
    let guided = run(&tight, requests(true));
    for (expected, guided) in expected.iter().zip(&guided) {
        assert_eq!(ids(expected), ids(guided));
    }
    assert!(tight.engine().stats().preemptions_total > 0, "memory was short");
}

#[test]
fn what_no_device_may_see_ends_the_request() {
    let llm = open(&fixtures().join("llama"), reference(), |_| {});
    let too_many = vec![(5, 0.5); 1025];
    for (wrong, words) in [
        (&[(5, f32::NAN)][..], "the bias NaN of token 5"),
        (&[(5, f32::INFINITY)], "the bias inf of token 5"),
        (&[(100_000, 1.0)], "of token 100000; there are"),
        (&too_many, "1025 biases; at most 1024"),
    ] {
        let outputs = run(
            &llm,
            vec![request(1, &[], Some(biases(&[wrong]))), request(2, &[], None)],
        );
        let reason = &outputs[0][0].finish;
        assert!(
            matches!(reason, FinishReason::Error(why) if why.contains(words)),
            "{reason:?}"
        );
        assert_eq!(outputs[1][0].token_ids.len(), 24, "others go on");
    }
}
