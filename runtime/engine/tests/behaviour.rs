//! The behaviour that requests rely on: on the CPU platform, on `reference`, and on a device that runs steps later, at
//! async depths 0, 1 and 2.

use std::sync::Arc;

use crate::common::{Pace, cpu, delayed, fixtures, on_every_device, open, paced, reference};
use halyard_engine::{EngineConfig, FinishReason, Llm, Request, RequestOutput, SamplingParams};
use halyard_platform_api::{Device, Platform};

const PROMPTS: [&[u32]; 6] = [
    &[297, 368],
    &[12, 45, 78, 90, 101, 202, 303, 17, 29, 31, 44, 58, 63, 71, 88, 99, 110],
    &[5],
    &[
        200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221,
        222, 223, 224, 225, 226, 227, 228, 229, 230, 231, 232, 233, 234, 235, 236, 237, 238, 239, 240, 241, 242, 243,
        244, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255, 256,
    ],
    &[7, 7, 7, 7, 7, 7, 7, 7],
    &[300, 2, 300, 1, 300],
];

fn prompts() -> Vec<Vec<u32>> {
    PROMPTS.iter().map(|p| p.to_vec()).collect()
}

fn llm(device: Arc<dyn Device>, change: impl FnOnce(&mut EngineConfig)) -> Llm {
    open(&fixtures().join("llama"), device, change)
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

/// One prompt after the other, each alone.
fn alone(llm: &Llm, params: &SamplingParams) -> Vec<Vec<u32>> {
    prompts()
        .into_iter()
        .flat_map(|p| ids(&llm.generate_ids(vec![p], params).expect("taken")))
        .collect()
}

on_every_device! {
    a_batch_gives_what_each_prompt_gives_alone => |device: Arc<dyn Device>| {
        let llm = llm(device, |_| {});
        let together = llm.generate_ids(prompts(), &greedy(20)).expect("taken");
        assert_eq!(ids(&together), alone(&llm, &greedy(20)));
    };

    a_seed_gives_the_same_sample_whatever_the_batch => |device: Arc<dyn Device>| {
        let llm = llm(device, |_| {});
        let params = SamplingParams { temperature: 0.9, top_p: 0.9, top_k: 40, seed: Some(11), ..greedy(16) };
        let together = llm.generate_ids(prompts(), &params).expect("taken");
        assert_eq!(ids(&together), alone(&llm, &params));
        let other = SamplingParams { seed: Some(12), ..params };
        assert_ne!(ids(&together), alone(&llm, &other), "another seed, other samples");
    };

    a_pool_too_small_for_all_preempts_and_gives_the_same => |device: Arc<dyn Device>| {
        let roomy = llm(device.clone(), |_| {});
        let expected = ids(&roomy.generate_ids(prompts(), &greedy(60)).expect("taken"));
        let page = roomy.engine().info().block_bytes;
        drop(roomy);
        let tight = llm(device, |c| {
            c.cache.kv_cache_memory_bytes = Some(page * 11);
            c.model.max_model_len = Some(128);
        });
        let got = tight.generate_ids(prompts(), &greedy(60)).expect("taken");
        assert_eq!(ids(&got), expected);
        assert!(tight.engine().stats().preemptions_total > 0, "the pool of 11 blocks was meant to overflow");
    };

    penalties_and_limits_hold => |device: Arc<dyn Device>| {
        let llm = llm(device, |_| {});
        let banned = ids(&llm.generate_ids(prompts(), &greedy(12)).expect("taken"));
        let first: Vec<u32> = banned.iter().map(|ids| ids[0]).collect();
        let params = SamplingParams {
            bad_words_token_ids: first.iter().map(|&id| vec![id]).collect(),
            frequency_penalty: 2.0,
            ..greedy(12)
        };
        for output in llm.generate_ids(prompts(), &params).expect("taken") {
            assert!(output.outputs[0].token_ids.iter().all(|id| !first.contains(id)), "a banned token came");
        }
        let allowed = SamplingParams {
            allowed_token_ids: Some(vec![9, 10]),
            temperature: 1.0,
            seed: Some(3),
            ..greedy(12)
        };
        for output in llm.generate_ids(prompts(), &allowed).expect("taken") {
            assert!(output.outputs[0].token_ids.iter().all(|id| [9, 10].contains(id)));
            assert_eq!(output.outputs[0].finish, FinishReason::Length);
        }
        let biased = SamplingParams { logit_bias: vec![(77, 100.0)], ..greedy(3) };
        for output in llm.generate_ids(prompts(), &biased).expect("taken") {
            assert_eq!(output.outputs[0].token_ids, [77, 77, 77]);
        }
    };

    logprobs_agree_with_the_prompts_own => |device: Arc<dyn Device>| {
        let llm = llm(device, |_| {});
        let params = SamplingParams { logprobs: Some(3), ..greedy(10) };
        for output in llm.generate_ids(prompts(), &params).expect("taken") {
            let sample = &output.outputs[0];
            let sampled = sample.logprobs.as_ref().expect("asked for");
            assert_eq!(sampled.len(), sample.token_ids.len());
            let mut all = output.prompt_token_ids.clone();
            all.extend(&sample.token_ids);
            let scoring = SamplingParams { prompt_logprobs: Some(3), ..greedy(1) };
            let scored = llm.generate_ids(vec![all], &scoring).expect("taken").remove(0);
            let scored = scored.prompt_logprobs.expect("asked for");
            for (i, expected) in sampled.iter().enumerate() {
                let got = scored[output.prompt_token_ids.len() + i].as_ref().expect("after the first");
                assert_eq!((got.chosen.token, got.rank), (expected.chosen.token, expected.rank));
                assert!((got.chosen.logprob - expected.chosen.logprob).abs() < 1e-4);
                assert_eq!(expected.rank, 1, "greedy takes the most likely");
                assert_eq!(expected.top.len(), 3);
                assert_eq!(expected.top[0].token, expected.chosen.token);
            }
        }
    };

    logprobs_are_the_models_own_whatever_was_done_to_the_logits => |device: Arc<dyn Device>| {
        let llm = llm(device, |_| {});
        let params = SamplingParams { logprobs: Some(1), logit_bias: vec![(77, 100.0)], ..greedy(1) };
        for output in llm.generate_ids(prompts(), &params).expect("taken") {
            let sampled = output.outputs[0].logprobs.as_ref().expect("asked for")[0].clone();
            let mut all = output.prompt_token_ids.clone();
            all.push(77);
            let scoring = SamplingParams { prompt_logprobs: Some(1), ..greedy(1) };
            let scored = llm.generate_ids(vec![all], &scoring).expect("taken").remove(0);
            let scored = scored.prompt_logprobs.expect("asked for").pop().flatten().expect("the last position");
            assert_eq!((sampled.chosen.token, sampled.rank), (77, scored.rank));
            assert!((sampled.chosen.logprob - scored.chosen.logprob).abs() < 1e-4, "{sampled:?} against {scored:?}");
            assert_eq!(sampled.top[0].token, scored.top[0].token, "the most likely before the bias");
        }
    };
}

#[test]
fn a_dropped_stream_frees_its_blocks_and_leaves_others_alone() {
    for depth in 0..3 {
        let (device, pace) = paced(depth);
        let llm = llm(device, |c| c.cache.enable_prefix_caching = false);
        let expected = alone(&llm, &greedy(40));
        let engine = llm.engine();
        pace.slow();
        let submit = |(i, p): (usize, Vec<u32>)| {
            let request = Request::new(format!("{i}"), p, greedy(40));
            engine.submit(request).expect("taken")
        };
        let streams: Vec<_> = prompts().into_iter().enumerate().map(submit).collect();
        let mut kept = Vec::new();
        for (i, mut stream) in streams.into_iter().enumerate() {
            if i % 3 == 0 {
                assert!(stream.blocking_next().is_some());
                drop(stream);
            } else {
                kept.push((i, stream));
            }
        }
        pace.quick();
        for (i, stream) in kept {
            assert_eq!(stream.blocking_collect().outputs[0].token_ids, expected[i]);
        }
        engine.shutdown(std::time::Duration::from_secs(30));
        let stats = engine.stats();
        assert_eq!(
            (stats.num_running, stats.num_waiting, stats.kv_cache_usage),
            (0, 0, 0.0)
        );
        assert_eq!(stats.requests_finished[2], 2, "two were cancelled");
    }
}

#[test]
fn a_shared_prefix_is_computed_once() {
    let llm = llm(cpu(), |_| {});
    let prompt = PROMPTS[3].to_vec();
    let first = llm
        .generate_ids(vec![prompt.clone()], &greedy(4))
        .expect("taken")
        .remove(0);
    let second = llm
        .generate_ids(vec![prompt.clone()], &greedy(4))
        .expect("taken")
        .remove(0);
    assert_eq!(first.num_cached_tokens, 0);
    assert_eq!(second.num_cached_tokens, 48, "three full blocks of 16");
    assert_eq!(first.outputs, second.outputs);
    let mut salted = Request::new("salted", prompt, greedy(4));
    salted.cache_salt = Some("tenant".to_string());
    let salted = llm.engine().submit(salted).expect("taken").blocking_collect();
    assert_eq!(salted.num_cached_tokens, 0, "another salt shares nothing");
    assert_eq!(salted.outputs, first.outputs);
}

#[test]
fn results_do_not_depend_on_the_batch_bit_for_bit_on_reference() {
    let llm = llm(reference(), |c| c.cache.enable_prefix_caching = false);
    let params = SamplingParams {
        logprobs: Some(1),
        ..greedy(12)
    };
    let together = llm.generate_ids(prompts(), &params).expect("taken");
    for (prompt, batched) in prompts().into_iter().zip(together) {
        let single = llm.generate_ids(vec![prompt], &params).expect("taken").remove(0);
        let bits = |o: &RequestOutput| -> Vec<u32> {
            let logprobs = o.outputs[0].logprobs.as_ref().expect("asked for");
            logprobs.iter().map(|l| l.chosen.logprob.to_bits()).collect()
        };
        assert_eq!(bits(&single), bits(&batched));
    }
}

/// Steps of many tokens go by rows on the CPU platform, without waiting between ops: three threads and steps of 450
/// tokens against one thread and steps of 48.
#[test]
fn long_steps_on_cpu_give_what_short_ones_give_bit_for_bit() {
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|i| (0..90).map(|t| (t * 7 + i * 31) % 400 + 3).collect())
        .collect();
    let params = SamplingParams {
        prompt_logprobs: Some(1),
        ..greedy(2)
    };
    for (model, rounded) in [("llama", false), ("smollm2", true), ("qwen3", true), ("gemma3", false)] {
        let bits = |threads: usize, tokens: u32| -> Vec<u32> {
            let device = halyard_cpu::CpuPlatform::with_threads(threads)
                .open(0)
                .expect("a device");
            let llm = open(&fixtures().join(model), device, |c| {
                c.cache.enable_prefix_caching = false;
                c.scheduler.max_num_batched_tokens = Some(tokens);
                c.model.allow_quantized_act = rounded;
            });
            let outputs = llm.generate_ids(prompts.clone(), &params).expect("taken");
            let scored = outputs
                .iter()
                .flat_map(|o| o.prompt_logprobs.as_ref().expect("asked for").iter().flatten());
            scored.map(|entry| entry.chosen.logprob.to_bits()).collect()
        };
        let short = bits(1, 48);
        assert_eq!(short.len(), 5 * 89);
        for _ in 0..5 {
            assert_eq!(bits(3, 450), short, "{model}");
        }
    }
}

#[test]
fn more_rows_than_a_chunk_of_logits_give_what_each_gives_alone() {
    let llm = llm(delayed(1), |c| {
        c.scheduler.max_num_seqs = 512;
        c.scheduler.max_num_batched_tokens = Some(1024);
    });
    let params = SamplingParams {
        logprobs: Some(1),
        logit_bias: vec![(77, 0.5)],
        ..greedy(3)
    };
    let prompts: Vec<Vec<u32>> = (0..512).map(|i| vec![i % 300 + 3, i / 300 + 5]).collect();
    let together = llm.generate_ids(prompts.clone(), &params).expect("taken");
    let plain = llm.generate_ids(prompts.clone(), &greedy(3)).expect("taken");
    for i in [0, 63, 64, 127, 128, 300, 511] {
        let single = llm
            .generate_ids(vec![prompts[i].clone()], &params)
            .expect("taken")
            .remove(0);
        assert_eq!(single.outputs[0].token_ids, together[i].outputs[0].token_ids, "row {i}");
        let logprobs = |o: &RequestOutput| o.outputs[0].logprobs.as_ref().map(|l| l[2].chosen.logprob);
        let (one, many) = (
            logprobs(&single).expect("asked for"),
            logprobs(&together[i]).expect("asked for"),
        );
        assert!((one - many).abs() < 1e-4, "row {i}: {one} and {many}");
        let single = llm
            .generate_ids(vec![prompts[i].clone()], &greedy(3))
            .expect("taken")
            .remove(0);
        assert_eq!(single.outputs[0].token_ids, plain[i].outputs[0].token_ids, "row {i}");
    }
}

#[test]
fn n_samples_differ_and_are_those_of_their_own_seeds() {
    let llm = llm(cpu(), |_| {});
    let params = SamplingParams {
        n: 3,
        temperature: 1.0,
        seed: Some(40),
        ..greedy(10)
    };
    let output = llm
        .generate_ids(vec![PROMPTS[0].to_vec()], &params)
        .expect("taken")
        .remove(0);
    assert_eq!(output.outputs.len(), 3);
    for (i, sample) in output.outputs.iter().enumerate() {
        let own = SamplingParams {
            n: 1,
            seed: Some(40 + i as u64),
            ..params.clone()
        };
        let single = llm
            .generate_ids(vec![PROMPTS[0].to_vec()], &own)
            .expect("taken")
            .remove(0);
        assert_eq!(single.outputs[0].token_ids, sample.token_ids);
    }
    assert_ne!(output.outputs[0].token_ids, output.outputs[1].token_ids);
}

#[test]
fn stops_at_tokens_and_strings_but_not_before_min_tokens() {
    let llm = llm(cpu(), |_| {});
    let free = llm
        .generate_ids(vec![PROMPTS[1].to_vec()], &greedy(20))
        .expect("taken")
        .remove(0);
    let tokens = &free.outputs[0].token_ids;
    let stop = tokens[5];
    let at = tokens.iter().position(|&t| t == stop).expect("it came");
    let params = SamplingParams {
        stop_token_ids: vec![stop],
        ..greedy(20)
    };
    let output = llm
        .generate_ids(vec![PROMPTS[1].to_vec()], &params)
        .expect("taken")
        .remove(0);
    assert_eq!(output.outputs[0].finish, FinishReason::StopToken(stop));
    assert_eq!(output.outputs[0].token_ids, tokens[..=at]);

    let later = SamplingParams {
        min_tokens: 12,
        ..params
    };
    let output = llm
        .generate_ids(vec![PROMPTS[1].to_vec()], &later)
        .expect("taken")
        .remove(0);
    assert!(
        output.outputs[0].token_ids[..12].iter().all(|&t| t != stop),
        "impossible before min_tokens"
    );

    let text = &free.outputs[0].text;
    let start = text.char_indices().nth(6).expect("some text").0;
    let end = text.char_indices().nth(9).expect("some text").0;
    let word = text[start..end].to_string();
    let params = SamplingParams {
        stop: vec![word.clone()],
        ..greedy(20)
    };
    let output = llm
        .generate_ids(vec![PROMPTS[1].to_vec()], &params)
        .expect("taken")
        .remove(0);
    assert_eq!(output.outputs[0].finish, FinishReason::StopString(word.clone()));
    assert_eq!(output.outputs[0].text, text[..text.find(&word).expect("it is there")]);
}

#[test]
fn a_full_queue_refuses_and_shutdown_aborts_with_a_reason() {
    let (device, pace) = paced(0);
    let llm = llm(device, |c| c.scheduler.max_waiting = 2);
    let engine = llm.engine();
    let three = SamplingParams { n: 3, ..greedy(5) };
    let refused = engine
        .submit(Request::new("three", vec![1], three))
        .err()
        .expect("three never fit two");
    assert!(refused.to_string().contains("n is 3"), "{refused}");
    // Eight rows run at most, so the queue of two must fill.
    let two = SamplingParams { n: 2, ..greedy(100) };
    let mut streams = Vec::new();
    let refused = loop {
        match engine.submit(Request::new("two", vec![1], two.clone())) {
            Ok(stream) => streams.push(stream),
            Err(refused) => break refused.to_string(),
        }
        assert!(streams.len() < 10_000, "the queue never filled");
    };
    assert!(refused.contains("--max-waiting"), "{refused}");
    streams.into_iter().for_each(|stream| drop(stream.blocking_collect()));
    pace.slow();
    let stream = engine
        .submit(Request::new("long", vec![1, 2, 3], greedy(100)))
        .expect("taken");
    engine.shutdown(std::time::Duration::ZERO);
    let output = stream.blocking_collect();
    assert!(
        matches!(&output.outputs[0].finish, FinishReason::Abort(reason) if reason.contains("shut down")),
        "{output:?}"
    );
    let refused = engine
        .submit(Request::new("late", vec![1], greedy(1)))
        .err()
        .expect("nothing is taken any more");
    assert!(
        refused.to_string().contains("shut down") || refused.to_string().contains("shutting down"),
        "{refused}"
    );
}

#[test]
fn ended_requests_cost_no_further_steps() {
    let steps_after = |end: &dyn Fn(&Llm, &Pace)| {
        let (device, pace) = paced(0);
        let llm = llm(device, |_| {});
        end(&llm, &pace);
        pace.quick();
        llm.engine().shutdown(std::time::Duration::from_secs(60));
        llm.engine().stats().steps_total
    };
    let free = llm(cpu(), |_| {})
        .generate_ids(vec![PROMPTS[1].to_vec()], &greedy(20))
        .expect("taken")
        .remove(0);
    let (token, text) = (free.outputs[0].token_ids[3], free.outputs[0].text.clone());
    let word: String = text.chars().take(4).collect();
    let dropped = steps_after(&|llm, pace| {
        pace.slow();
        let mut stream = llm
            .engine()
            .submit(Request::new("drop", PROMPTS[1].to_vec(), greedy(400)))
            .expect("taken");
        assert!(stream.blocking_next().is_some());
    });
    let by_token = steps_after(&|llm, _| {
        let params = SamplingParams {
            stop_token_ids: vec![token],
            ..greedy(400)
        };
        llm.generate_ids(vec![PROMPTS[1].to_vec()], &params).expect("taken");
    });
    let by_string = steps_after(&|llm, pace| {
        pace.slow();
        let params = SamplingParams {
            stop: vec![word.clone()],
            ..greedy(400)
        };
        llm.generate_ids(vec![PROMPTS[1].to_vec()], &params).expect("taken");
    });
    assert!(
        dropped < 100 && by_token <= 5 && by_string < 100,
        "{dropped}, {by_token}, {by_string} steps of 400"
    );
}

#[test]
fn a_request_cancelled_while_it_waits_gives_its_place_back() {
    let llm = llm(cpu(), |c| c.scheduler.max_num_seqs = 1);
    let first = llm
        .engine()
        .submit(Request::new("first", vec![1, 2], greedy(200)))
        .expect("taken");
    let second = llm
        .engine()
        .submit(Request::new("second", vec![3, 4], greedy(200)))
        .expect("taken");
    drop(second);
    first.blocking_collect();
    llm.engine().shutdown(std::time::Duration::from_secs(60));
    assert_eq!(llm.engine().stats().num_waiting, 0);
}

#[test]
fn presence_counts_the_output_and_not_the_prompt() {
    let llm = llm(cpu(), |_| {});
    let prompt = PROMPTS[0].to_vec();
    let last = prompt[1];
    let params = SamplingParams {
        presence_penalty: 2.0,
        logit_bias: vec![(last, 100.0), (50, 99.5)],
        ..greedy(2)
    };
    let plain = SamplingParams {
        presence_penalty: 0.0,
        ..params.clone()
    };
    let ids = |params| ids(&llm.generate_ids(vec![prompt.clone()], params).expect("taken")).remove(0);
    assert_eq!(ids(&plain)[0], last, "the bias decides");
    assert_eq!(ids(&params)[0], last, "a token of the prompt is not penalised");
}

#[test]
fn offline_batches_may_be_larger_than_the_queue_and_every_prompt_token_is_counted() {
    let llm = llm(cpu(), |c| {
        c.scheduler.max_waiting = 2;
        c.cache.enable_prefix_caching = false;
    });
    let outputs = llm.generate_ids(prompts(), &greedy(3)).expect("the oldest make room");
    assert_eq!(ids(&outputs), alone(&llm, &greedy(3)));
    llm.engine().shutdown(std::time::Duration::from_secs(30));
    let prompt_tokens: u64 = prompts().iter().map(|p| p.len() as u64).sum();
    let stats = llm.engine().stats();
    assert_eq!(stats.prompt_tokens_total, 2 * prompt_tokens, "in the batch and alone");
    assert_eq!(stats.generation_tokens_total, 2 * 3 * prompts().len() as u64);
}

#[test]
fn end_tokens_outside_the_vocabulary_are_refused_at_load() {
    let folder = std::env::temp_dir().join(format!("halyard-eos-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for entry in std::fs::read_dir(fixtures().join("llama")).expect("the fixture") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
    }
    std::fs::write(folder.join("generation_config.json"), r#"{"eos_token_id": [2, 99999]}"#).expect("written");
    let error = Llm::open(crate::common::config(&folder), cpu())
        .err()
        .map(|e| e.to_string());
    std::fs::remove_dir_all(&folder).expect("removed");
    let error = error.expect("refused");
    assert!(error.contains("99999") && error.contains("vocab_size"), "{error}");
}

#[test]
fn more_steps_in_flight_than_the_device_takes_are_refused() {
    let mut config = crate::common::config(&fixtures().join("llama"));
    config.scheduler.async_depth = Some(3);
    let error = Llm::open(config, delayed(2)).err().expect("refused").to_string();
    assert!(
        error.contains("--async-depth") && error.contains("takes 2 at most"),
        "{error}"
    );
}

#[test]
fn bad_parameters_are_named_with_their_limits() {
    let llm = llm(cpu(), |_| {});
    let engine = llm.engine();
    let vocab = engine.info().vocab_size;
    let context = engine.info().max_model_len as usize;
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = greedy(4);
        change(&mut params);
        Request::new("bad", vec![1, 2], params)
    };
    let cases = [
        (with(|p| p.temperature = -1.0), "temperature is -1"),
        (with(|p| p.top_p = 2.0), "top_p is 2"),
        (with(|p| p.n = 0), "n is 0"),
        (with(|p| p.n = 1_000_000_000), "n is 1000000000"),
        (with(|p| p.logprobs = Some(1_000_000)), "logprobs is 1000000"),
        (with(|p| p.max_tokens = Some(0)), "max_tokens is 0"),
        (with(|p| p.temperature = f32::NAN), "temperature is NaN"),
        (with(|p| p.stop = vec![String::new()]), "must not be empty"),
        (
            with(|p| p.allowed_token_ids = Some(vec![1 << 30])),
            "outside the vocabulary",
        ),
        (Request::new("empty", vec![], greedy(1)), "prompt is empty"),
        (Request::new("outside", vec![1, vocab], greedy(1)), "position 1"),
        (Request::new("long", vec![1; context], greedy(1)), "shorten the prompt"),
    ];
    for (request, words) in cases {
        let error = engine.submit(request).err().expect(words).to_string();
        assert!(error.contains(words), "{error} lacks {words}");
    }
    assert_eq!(engine.stats().num_waiting, 0, "nothing was queued");
}
