//! Several copies of a model behind one front: each request has one engine's answer, work is shared, prefixes are found
//! again, and what is asked of one is asked of all.

use std::time::Duration;

use crate::common::{cpu, delayed, fixtures, open};
use halyard_device_check::lora::LLAMA;
use halyard_engine::{
    AdapterError, AdapterSource, EngineConfig, OutputStream, PauseMode, Replicas, Request, RequestOutput,
    SamplingParams, SubmitError,
};

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(max_tokens)
    }
}

fn prompt(kind: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * 37 + kind * 11 + 5) % 440).collect()
}

fn request(prompt: Vec<u32>, max_tokens: u32) -> Request {
    Request::new(format!("of {} tokens", prompt.len()), prompt, greedy(max_tokens))
}

fn copies(count: usize, change: impl Fn(&mut EngineConfig)) -> Replicas {
    let engine = || open(&fixtures().join("llama"), cpu(), &change).engine().clone();
    let first = engine();
    Replicas::new(first, (1..count).map(|_| engine()).collect())
}

fn ids(output: &RequestOutput) -> &[u32] {
    &output.outputs[0].token_ids
}

/// Requests that each copy has ended.
fn shares(replicas: &Replicas) -> Vec<u64> {
    let finished = |engine: &halyard_engine::EngineHandle| engine.stats().requests_finished.iter().sum();
    replicas.engines().iter().map(finished).collect()
}

/// Ends are counted after the last token was sent.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not come to be");
}

#[test]
fn copies_share_the_work_and_answer_as_one_engine() {
    let prompts: Vec<Vec<u32>> = (0..12).map(|kind| prompt(kind, 5 + kind * 3)).collect();
    let one = open(&fixtures().join("llama"), cpu(), |_| {});
    let expected = one.generate_ids(prompts.clone(), &greedy(16)).expect("taken");
    let replicas = copies(3, |_| {});
    let streams: Vec<OutputStream> = prompts
        .into_iter()
        .map(|prompt| replicas.submit(request(prompt, 16)).expect("taken"))
        .collect();
    for (stream, expected) in streams.into_iter().zip(&expected) {
        assert_eq!(ids(&stream.blocking_collect()), ids(expected));
    }
    wait_until("the end of all", || shares(&replicas).iter().sum::<u64>() == 12);
    assert!(
        shares(&replicas).iter().all(|&share| share >= 3),
        "{:?}",
        shares(&replicas)
    );
    let stats = replicas.stats();
    assert_eq!(stats.generation_tokens_total, 12 * 16, "the sum over copies");
    assert!(stats.kv_cache_usage <= 1.0, "a mean");
}

#[test]
fn a_prompt_goes_to_the_copy_that_has_its_prefix() {
    let replicas = copies(3, |_| {});
    let long = prompt(1, 200);
    let first = replicas
        .submit(request(long.clone(), 4))
        .expect("taken")
        .blocking_collect();
    assert_eq!(first.num_cached_tokens, 0);
    // Others in between would take turns.
    for kind in 2..6 {
        replicas
            .submit(request(prompt(kind, 3), 1))
            .expect("taken")
            .blocking_collect();
        let again = [&long[..], &[kind; 5]].concat();
        let again = replicas.submit(request(again, 4)).expect("taken").blocking_collect();
        assert!(again.num_cached_tokens >= 192, "{} of 200", again.num_cached_tokens);
    }
}

#[test]
fn a_copy_with_a_full_queue_is_passed_over_and_a_stopped_one_too() {
    let replicas = copies(2, |config| {
        config.scheduler.max_num_seqs = 1;
        config.scheduler.max_waiting = 2;
    });
    let many = SamplingParams { n: 2, ..greedy(200) };
    let submit = |kind| replicas.submit(Request::new("r", prompt(kind, 4), many.clone()));
    let mut running = Vec::new();
    let refused = loop {
        match submit(running.len() as u32) {
            Ok(stream) => running.push(stream),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, SubmitError::QueueFull { .. }), "{refused}");
    assert!(running.len() >= 2, "both copies had taken some: {}", running.len());
    drop(running);
    wait_until("the cancels", || {
        let waiting = replicas.engines().iter().map(|engine| engine.stats().num_waiting);
        waiting.sum::<u64>() == 0
    });
    replicas.engines()[0].shutdown(Duration::ZERO);
    for kind in 0..3 {
        let output = replicas
            .submit(request(prompt(kind, 4), 3))
            .expect("the other takes it");
        assert_eq!(ids(&output.blocking_collect()).len(), 3);
    }
    replicas.shutdown(Duration::ZERO);
    assert!(replicas.submit(request(prompt(0, 4), 3)).is_err());
}

#[test]
fn a_copy_that_fails_is_named() {
    use halyard_delayed::{DelayedPlatform, Fault};
    use halyard_platform_api::Platform as _;
    let model = fixtures().join("llama");
    // Some submits behind those of the start.
    let platform = DelayedPlatform::new(1, 7).with_fault(Fault::LostAt(60));
    let failing = open(&model, platform.open(0).expect("opens"), |_| {});
    let replicas = Replicas::new(
        open(&model, delayed(1), |_| {}).engine().clone(),
        vec![failing.engine().clone()],
    );
    assert_eq!(replicas.health(), Ok(()));
    wait_until("the failure", || {
        let streams: Vec<_> = (0..4)
            .map(|kind| replicas.submit(request(prompt(kind, 4), 8)))
            .collect();
        streams
            .into_iter()
            .flatten()
            .for_each(|stream| drop(stream.blocking_collect()));
        replicas.health().is_err()
    });
    let reason = replicas.health().expect_err("it failed");
    assert!(reason.starts_with("engine 1: "), "{reason}");
    let output = replicas.submit(request(prompt(9, 4), 4)).expect("the other goes on");
    assert_eq!(ids(&output.blocking_collect()).len(), 4);
}

#[tokio::test]
async fn a_pause_holds_all_copies_and_a_reset_empties_all_caches() {
    let replicas = copies(2, |_| {});
    let long = prompt(1, 100);
    // One copy after the other, so that both have the prefix.
    for engine in replicas.engines() {
        engine.submit(request(long.clone(), 2)).expect("taken").collect().await;
        let again = engine.submit(request(long.clone(), 2)).expect("taken").collect().await;
        assert!(again.num_cached_tokens > 0);
    }
    replicas.pause(PauseMode::Keep, false).await.expect("paused");
    assert!(replicas.is_paused() && replicas.engines().iter().all(|engine| engine.is_paused()));
    let waiting: Vec<_> = (0..2)
        .map(|_| replicas.submit(request(long.clone(), 2)).expect("queued"))
        .collect();
    assert_eq!(replicas.reset_prefix_cache(false).await, Ok(true), "nothing runs");
    replicas.resume().await.expect("goes on");
    assert!(!replicas.is_paused());
    let mut cached = Vec::new();
    for stream in waiting {
        cached.push(stream.collect().await.num_cached_tokens);
    }
    assert_eq!(cached, [0, 0], "each copy had forgotten it");
}

#[test]
fn adapters_are_on_every_copy_or_on_none() {
    let replicas = copies(2, |config| config.lora = Some(LLAMA.config(&fixtures(), 2)));
    let names = || {
        replicas
            .adapters()
            .into_iter()
            .map(|status| status.name)
            .collect::<Vec<_>>()
    };
    let before = names();
    let source = || AdapterSource::Dummy { rank: 4, seed: 7 };
    replicas.add_adapter("fresh", source()).expect("added");
    assert_eq!(names().len(), before.len() + 1);
    let streams: Vec<_> = (0..4)
        .map(|kind| {
            let mut request = request(prompt(kind, 9), 4);
            request.lora = Some("fresh".to_owned());
            replicas.submit(request).expect("taken")
        })
        .collect();
    streams.into_iter().for_each(|stream| drop(stream.blocking_collect()));
    let status = replicas.adapters().into_iter().find(|status| status.name == "fresh");
    assert_eq!(status.expect("it is there").requests_total, 4, "of both copies");
    // The second copy has the name: the first one must not keep it.
    replicas.engines()[1].add_adapter("taken", source()).expect("added");
    let error = replicas.add_adapter("taken", source()).expect_err("one has it");
    assert!(error.to_string().contains("taken"), "{error}");
    assert!(!replicas.engines()[0].has_adapter("taken"));
    replicas.remove_adapter("fresh").expect("removed");
    assert!(replicas.engines().iter().all(|engine| !engine.has_adapter("fresh")));
    assert!(matches!(
        replicas.remove_adapter("fresh"),
        Err(AdapterError::Unknown { .. })
    ));
}
