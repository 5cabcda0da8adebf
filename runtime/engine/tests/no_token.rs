//! Rows without a token: models whose logits are no numbers, and constraints that leave nothing. Their request ends
//! with a reason; other requests, at the same time and later, are not affected.

use std::sync::Arc;
use std::time::Duration;

use crate::common::damaged::{Damage, Damaged};
use crate::common::{config, cpu, fixtures, on_every_device, open};
use halyard_engine::{
    FinishReason, Llm, ParamError, Request, RequestOutput, SamplingParams, StatsSnapshot, SubmitError,
};
use halyard_platform_api::{Device, Platform};

/// Its embedding is NaN. No warm-up step has it.
const DAMAGED: u32 = 321;

/// A prefix that good and bad prompts share: two blocks and a half.
fn prefix() -> Vec<u32> {
    (200..240).collect()
}

fn good_prompts() -> Vec<Vec<u32>> {
    let mut longer = prefix();
    longer.extend([7, 8, 9]);
    vec![
        vec![297, 368],
        prefix(),
        vec![5],
        longer,
        (0..55).map(|i| (i * 7 + 11) % 300).collect(),
    ]
}

fn bad_prompts() -> Vec<Vec<u32>> {
    let mut behind = prefix();
    behind.push(DAMAGED);
    // More than a step takes, the damaged token in the first one.
    let mut long: Vec<u32> = (0..60).map(|i| (i * 5 + 3) % 300).collect();
    long[40] = DAMAGED;
    let mut early = prefix();
    early[20] = DAMAGED;
    vec![behind, vec![DAMAGED], long, early]
}

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(max_tokens)
    }
}

fn sampled(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        top_k: 50,
        seed: Some(7),
        frequency_penalty: 0.2,
        ..greedy(max_tokens)
    }
}

/// What each prompt gives alone, on the model as it should be.
fn expected(model: &str, device: Arc<dyn Device>, prompts: Vec<Vec<u32>>, params: &SamplingParams) -> Vec<Vec<u32>> {
    let llm = open(&fixtures().join(model), device, |_| {});
    let alone = |prompt| llm.generate_ids(vec![prompt], params).expect("taken").remove(0);
    prompts
        .into_iter()
        .map(|prompt| alone(prompt).outputs[0].token_ids.clone())
        .collect()
}

/// Submits all prompts at once and waits for their ends.
fn together(llm: &Llm, prompts: Vec<Vec<u32>>, params: &SamplingParams) -> Vec<RequestOutput> {
    let submit = |prompt| {
        llm.engine()
            .submit(Request::new("r", prompt, params.clone()))
            .expect("taken")
    };
    let streams: Vec<_> = prompts.into_iter().map(submit).collect();
    streams.into_iter().map(|stream| stream.blocking_collect()).collect()
}

fn ids(outputs: &[RequestOutput]) -> Vec<Vec<u32>> {
    outputs.iter().map(|o| o.outputs[0].token_ids.clone()).collect()
}

/// Counters once everything has ended; readers may have their last tokens a little before.
fn final_stats(llm: &Llm) -> StatsSnapshot {
    llm.engine().shutdown(Duration::from_secs(30));
    llm.engine().stats()
}

fn nonfinite(output: &RequestOutput) -> &str {
    match &output.outputs[0].finish {
        FinishReason::NotFinite(words) => words,
        other => panic!("{other:?} after {:?}", output.outputs[0].token_ids),
    }
}

/// Good and bad prompts in turn, in one batch and again after it on the pages that the bad ones gave back.
fn good_ones_go_on(device: Arc<dyn Device>, params: &SamplingParams, caching: bool) {
    let expected = expected("llama", device.clone(), good_prompts(), params);
    let model = Damaged::embeddings("llama", 48, &[DAMAGED]);
    let llm = open(model.path(), device, |c| {
        c.cache.enable_prefix_caching = caching;
        // Few pages: what ends is overwritten at once.
        c.cache.kv_cache_memory_bytes = Some(1 << 18);
        c.model.max_model_len = Some(128);
    });
    for round in 0..3 {
        let mut prompts = Vec::new();
        let mut bad = bad_prompts().into_iter();
        for good in good_prompts() {
            // The bad one first where both are there, so that the good one may find what it left.
            prompts.extend(bad.next());
            prompts.push(good);
        }
        let outputs = together(&llm, prompts, params);
        let (bad, good): (Vec<_>, Vec<_>) = outputs
            .into_iter()
            .partition(|output| output.prompt_token_ids.contains(&DAMAGED));
        assert_eq!(bad.len(), 4);
        for output in &bad {
            let words = nonfinite(output);
            assert!(words.contains("output position 0") && words.contains("NaN"), "{words}");
            assert!(output.outputs[0].token_ids.is_empty());
        }
        assert_eq!(ids(&good), expected, "round {round}, together with the bad ones");
        assert_eq!(
            ids(&together(&llm, good_prompts(), params)),
            expected,
            "round {round}, after them"
        );
    }
    assert!(llm.engine().health().is_ok());
    let stats = final_stats(&llm);
    assert_eq!(stats.requests_finished, [0, 30, 0, 12]);
    assert_eq!((stats.nonfinite_logits_total, stats.empty_distributions_total), (12, 0));
    assert_eq!(
        (stats.num_running, stats.num_waiting, stats.kv_cache_usage),
        (0, 0, 0.0)
    );
}

on_every_device! {
    rows_beside_a_row_without_numbers_go_on => |device| good_ones_go_on(device, &greedy(12), true);

    pages_of_a_row_without_numbers_are_clean_for_others => |device| good_ones_go_on(device, &greedy(12), false);

    samples_beside_a_row_without_numbers_go_on => |device| good_ones_go_on(device, &sampled(12), true);

    a_damaged_token_that_is_generated_ends_its_request_behind_it => |device: Arc<dyn Device>| {
        let prompts = good_prompts();
        let whole = expected("llama", device.clone(), prompts.clone(), &greedy(12));
        // A token that one of them generates late, and no prompt has.
        let late = |ids: &Vec<u32>| {
            let of_prompts = |id: &u32| {
                let is_made_up = *id < 180 && (id % 7 == 1 || id % 11 == 4);
                is_made_up || prompts.iter().flatten().any(|other| other == id)
            };
            ids.iter().skip(2).find(|id| !of_prompts(id)).copied()
        };
        let damaged = whole.iter().find_map(late).expect("a token");
        let model = Damaged::embeddings("llama", 48, &[damaged]);
        let llm = open(model.path(), device, |_| {});
        let mut num_ended = 0;
        let outputs = together(&llm, prompts, &greedy(12));
        for (output, whole) in outputs.iter().zip(&whole) {
            let found = &output.outputs[0].token_ids;
            match whole[..11].iter().position(|&id| id == damaged) {
                Some(at) => {
                    assert_eq!(found, &whole[..=at], "up to the damaged token, which itself is right");
                    assert!(nonfinite(output).contains(&format!("output position {}", at + 1)));
                    num_ended += 1;
                }
                None => assert_eq!(found, whole),
            }
        }
        assert!(num_ended > 0);
        assert_eq!(final_stats(&llm).nonfinite_logits_total, num_ended);
    };

    nothing_that_a_row_without_numbers_computed_is_found => |device: Arc<dyn Device>| {
        let model = Damaged::embeddings("llama", 48, &[DAMAGED]);
        let llm = open(model.path(), device, |_| {});
        let run = |prompt| together(&llm, vec![prompt], &greedy(2)).remove(0);
        assert_eq!(run(prefix()).num_cached_tokens, 0);
        assert_eq!(run(prefix()).num_cached_tokens, 32);
        // It reads the two blocks that are there, and any block that it read may be why it failed.
        nonfinite(&run(bad_prompts().remove(0)));
        assert_eq!(run(prefix()).num_cached_tokens, 0, "blocks that it read");
        assert_eq!(run(prefix()).num_cached_tokens, 32);
        let fresh: Vec<u32> = (30..62).chain([DAMAGED]).collect();
        nonfinite(&run(fresh.clone()));
        let longer = fresh[..32].iter().copied().chain([9]).collect();
        assert_eq!(run(longer).num_cached_tokens, 0, "blocks that it computed");
    };

    a_prompt_is_not_scored_by_what_is_no_number => |device: Arc<dyn Device>| {
        let model = Damaged::embeddings("llama", 48, &[DAMAGED]);
        let llm = open(model.path(), device, |_| {});
        let params = SamplingParams { prompt_logprobs: Some(2), logprobs: Some(2), ..greedy(3) };
        let outputs = together(&llm, vec![vec![5, DAMAGED, 7], vec![5, 6, 7]], &params);
        let words = nonfinite(&outputs[0]);
        assert!(words.contains("position"), "{words}");
        assert!(outputs[0].prompt_logprobs.is_none());
        assert_eq!(outputs[1].outputs[0].finish, FinishReason::Length);
        let scored = outputs[1].prompt_logprobs.as_ref().expect("asked for");
        assert!(scored.iter().flatten().all(|entry| entry.chosen.logprob.is_finite()));
    };

    a_model_whose_logits_are_no_numbers_is_refused_at_its_start => |device: Arc<dyn Device>| {
        for (tensor, count, value) in [
            ("lm_head.weight", 1, f32::NAN),
            ("lm_head.weight", 48, f32::INFINITY),
            ("model.layers.0.self_attn.q_proj.weight", 1, f32::NAN),
            ("model.layers.1.mlp.down_proj.weight", 48, 3e38),
        ] {
            let model = Damaged::new("llama", &[Damage { tensor, first: 96, count, value }]);
            let words = match Llm::open(config(model.path()), device.clone()) {
                Ok(_) => panic!("{tensor} with {count} of {value} was started"),
                Err(error) => error.to_string(),
            };
            assert!(words.contains("logits of a warm-up step are not finite"), "{words}");
            assert!(words.contains("checksums") && words.contains("--dtype"), "{words}");
        }
    };

    constraints_that_meet_later_end_their_request_alone => |device: Arc<dyn Device>| {
        let llm = open(&fixtures().join("llama"), device.clone(), |_| {});
        let good = expected("llama", device, good_prompts(), &greedy(8));
        let bound = SamplingParams {
            allowed_token_ids: Some(vec![17]),
            bad_words_token_ids: vec![vec![17, 17, 17]],
            ..greedy(8)
        };
        let never = SamplingParams {
            bad_words_token_ids: vec![vec![5, 17]],
            temperature: 1.0,
            seed: Some(1),
            ..bound.clone()
        };
        let engine = llm.engine();
        let submit = |prompt: Vec<u32>, params: &SamplingParams| {
            engine.submit(Request::new("r", prompt, params.clone())).expect("cannot be known at once")
        };
        let late = submit(prefix(), &bound);
        let at_once = submit(vec![5], &never);
        let others = together(&llm, good_prompts(), &greedy(8));
        let (late, at_once) = (late.blocking_collect(), at_once.blocking_collect());
        assert_eq!(late.outputs[0].token_ids, [17, 17]);
        assert_eq!(at_once.outputs[0].token_ids, [0u32; 0]);
        for (output, at) in [(&late, 2), (&at_once, 0)] {
            let FinishReason::NoTokenAllowed(words) = &output.outputs[0].finish else {
                panic!("{:?}", output.outputs[0].finish)
            };
            assert!(words.contains(&format!("output position {at}")), "{words}");
            assert!(words.contains("allowed_token_ids and bad_words"), "{words}");
        }
        assert_eq!(ids(&others), good);
        // It is the request's fault, not its keys': they stay findable.
        assert_eq!(together(&llm, vec![prefix()], &greedy(2))[0].num_cached_tokens, 32);
        let stats = final_stats(&llm);
        assert_eq!((stats.empty_distributions_total, stats.nonfinite_logits_total), (2, 0));
    };
}

/// A model that two ranks can share; some of its layers see a window.
const PAIRED: &str = "mistral";

#[test]
fn several_ranks_end_the_same_request() {
    let device = one_thread;
    let want = expected(PAIRED, device(), good_prompts(), &greedy(12));
    let model = Damaged::embeddings(PAIRED, 64, &[DAMAGED]);
    let llm = crate::common::open_on(model.path(), &[device(), device()], |_| {});
    let mut prompts = bad_prompts();
    prompts.extend(good_prompts());
    for _ in 0..2 {
        let outputs = together(&llm, prompts.clone(), &greedy(12));
        outputs[..4]
            .iter()
            .for_each(|output| assert!(nonfinite(output).contains("NaN")));
        assert_eq!(ids(&outputs[4..]), want);
    }
    let broken = Damaged::new(
        PAIRED,
        &[Damage {
            tensor: "lm_head.weight",
            first: 96,
            count: 1,
            value: f32::NAN,
        }],
    );
    let error = Llm::open_on(config(broken.path()), &[device(), device()])
        .err()
        .expect("refused");
    assert!(error.to_string().contains("not finite"), "{error}");
}

fn one_thread() -> Arc<dyn Device> {
    halyard_cpu::CpuPlatform::with_threads(1).open(0).expect("opens")
}

#[test]
fn contradictions_are_refused_before_anything_runs() {
    let llm = open(&fixtures().join("llama"), cpu(), |_| {});
    let eos = llm.engine().info().eos_token_ids[0];
    let refused = |params: SamplingParams| match llm.engine().submit(Request::new("r", vec![5], params)) {
        Err(SubmitError::Param(error)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("taken"),
    };
    let allowed = |ids: &[u32]| SamplingParams {
        allowed_token_ids: Some(ids.to_vec()),
        ..SamplingParams::greedy(6)
    };
    let words = refused(SamplingParams {
        bad_words_token_ids: vec![vec![17], vec![18], vec![4, 5]],
        ..allowed(&[17, 18])
    });
    assert!(
        words.contains("allowed_token_ids") && words.contains("bad_words"),
        "{words}"
    );
    let words = refused(SamplingParams {
        min_tokens: 5,
        ..allowed(&[eos])
    });
    assert!(
        words.contains("allowed_token_ids") && words.contains("min_tokens 5"),
        "{words}"
    );
    let words = refused(SamplingParams {
        min_tokens: 1,
        stop_token_ids: vec![20],
        bad_words_token_ids: vec![vec![21]],
        ignore_eos: true,
        ..allowed(&[20, 21])
    });
    assert!(words.contains("bad_words") && words.contains("min_tokens 1"), "{words}");
    let taken = [
        allowed(&[eos]),
        SamplingParams {
            min_tokens: 5,
            ignore_eos: true,
            ..allowed(&[eos])
        },
        SamplingParams {
            bad_words_token_ids: vec![vec![17]],
            ..allowed(&[17, 18])
        },
        SamplingParams {
            bad_words_token_ids: vec![vec![17, 17]],
            ..allowed(&[17])
        },
    ];
    for params in taken {
        assert!(llm.engine().submit(Request::new("r", vec![5], params)).is_ok());
    }
    for (penalty, is_taken) in [
        (0.01, true),
        (100.0, true),
        (0.009, false),
        (101.0, false),
        (1e-45, false),
        (f32::NAN, false),
        (-1.0, false),
    ] {
        let params = SamplingParams {
            repetition_penalty: penalty,
            ..SamplingParams::greedy(1)
        };
        match llm.engine().submit(Request::new("r", vec![5], params)) {
            Ok(_) => assert!(is_taken, "{penalty}"),
            Err(SubmitError::Param(ParamError::Between { name, low, high, .. })) => {
                assert!(!is_taken, "{penalty}");
                assert_eq!((name, low, high), ("repetition_penalty", 0.01, 100.0));
            }
            Err(error) => panic!("{penalty}: {error}"),
        }
    }
}
