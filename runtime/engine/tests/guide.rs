//! Token guides: code that says after each token which may come next. Their masks come while the device works; rows
//! without guides never wait for them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::common::{delayed, fixtures, loaded, on_every_device, open, open_on, reference};
use halyard_engine::{
    CompletionOutput, EngineConfig, FinishReason, GuideConfig, GuideFactory, GuideWatch, Llm, LogitChanges,
    OutputStream, Request, SamplingParams, SpeculativeConfig, TokenGuide,
};
use halyard_platform_api::Device;

/// The token that ends a text of the toy grammar, and how many digits stand before it.
const STOP: u32 = 177;
const NUM_DIGITS: u32 = 12;

/// The digits of a request: each has others.
fn digits_of(seed: u32) -> Range<u32> {
    40 + 10 * seed..50 + 10 * seed
}

/// A fixed number of digits, then a stop.
struct Digits {
    digits: Range<u32>,
    left: u32,
    /// Waited for before each answer behind a token, where there is one.
    gate: Option<Receiver<()>>,
}

impl Digits {
    fn new(seed: u32, gate: Option<Receiver<()>>) -> Digits {
        Digits {
            digits: digits_of(seed),
            left: NUM_DIGITS,
            gate,
        }
    }
}

impl TokenGuide for Digits {
    fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
        for token in tokens {
            if !self.digits.contains(token) {
                return Err(format!("token {token} is no digit"));
            }
            self.left -= 1;
            if let Some(gate) = &self.gate {
                let _ = gate.recv();
            }
        }
        let allowed = if self.left == 0 {
            STOP..STOP + 1
        } else {
            self.digits.clone()
        };
        changes.mask.fill(0);
        allowed.for_each(|token| changes.mask[token as usize / 32] |= 1 << (token % 32));
        Ok(())
    }
}

fn digits(seed: u32) -> GuideFactory {
    GuideFactory::new(move |_| Box::new(Digits::new(seed, None)))
}

/// Digits whose masks wait for the gate; each message lets one through.
fn gated() -> (GuideFactory, Sender<()>) {
    let (open, gate) = channel();
    let gate = std::sync::Mutex::new(Some(gate));
    let make = move |_| -> Box<dyn TokenGuide> { Box::new(Digits::new(0, gate.lock().expect("one test").take())) };
    (GuideFactory::new(make), open)
}

fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        ignore_eos: true,
        stop_token_ids: vec![STOP],
        ..SamplingParams::greedy(max_tokens)
    }
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..9).map(|i| (11 * seed + 3 * i) % 200 + 3).collect()
}

fn guided(llm: &Llm, seed: u32, params: SamplingParams, guide: &GuideFactory) -> OutputStream {
    let request = Request {
        guide: Some(guide.clone()),
        ..Request::new(format!("guided {seed}"), prompt(seed), params)
    };
    llm.engine().submit(request).expect("taken")
}

fn plain(llm: &Llm, seed: u32, params: SamplingParams) -> OutputStream {
    let request = Request::new(format!("plain {seed}"), prompt(seed), params);
    llm.engine().submit(request).expect("taken")
}

fn output(stream: OutputStream) -> CompletionOutput {
    stream.blocking_collect().outputs.remove(0)
}

fn llm(device: Arc<dyn Device>, change: impl FnOnce(&mut EngineConfig)) -> Llm {
    open(&fixtures().join("llama"), device, change)
}

/// The same digits by a constant mask, which has been there longer: `allowed_token_ids`.
fn expected_digits(llm: &Llm, seed: u32) -> Vec<u32> {
    let params = SamplingParams {
        allowed_token_ids: Some(digits_of(seed).collect()),
        ..params(NUM_DIGITS)
    };
    output(plain(llm, seed, params)).token_ids
}

fn guided_rows_follow_their_grammar_and_others_do_not_change(device: Arc<dyn Device>) {
    let alone = llm(reference(), |_| {});
    let expected: Vec<_> = (0..3).map(|seed| expected_digits(&alone, seed)).collect();
    let free: Vec<_> = (3..6)
        .map(|seed| output(plain(&alone, seed, params(20))).token_ids)
        .collect();
    let llm = llm(device, |_| {});
    // The first row draws at random, from its own seed, so that greedy rows in the same step take its sampler.
    let drawn = SamplingParams {
        temperature: 1.5,
        seed: Some(7),
        logprobs: Some(2),
        ..params(40)
    };
    let random = guided(&llm, 9, drawn, &digits(9));
    // Side by side, so that rows with masks do not stand first by themselves.
    let both = |seed: u32| {
        let other = plain(&llm, 3 + seed, params(20));
        (other, guided(&llm, seed, params(40), &digits(seed)))
    };
    let (others, guided): (Vec<_>, Vec<_>) = (0..3).map(both).unzip();
    for (stream, expected) in guided.into_iter().zip(&expected) {
        let output = output(stream);
        let (digits, stop) = output.token_ids.split_at(NUM_DIGITS as usize);
        assert_eq!((digits, stop), (&expected[..], &[STOP][..]));
        assert_eq!(output.finish, FinishReason::StopToken(STOP));
    }
    for (stream, expected) in others.into_iter().zip(&free) {
        assert_eq!(&output(stream).token_ids, expected);
    }
    let random = output(random);
    assert_eq!(random.token_ids.len() as u32, NUM_DIGITS + 1);
    assert!(
        random.token_ids[..NUM_DIGITS as usize]
            .iter()
            .all(|id| digits_of(9).contains(id))
    );
    assert_eq!(random.logprobs.map(|all| all.len()), Some(NUM_DIGITS as usize + 1));
}

on_every_device! {
    grammar => guided_rows_follow_their_grammar_and_others_do_not_change;
}

/// A guide that stands still keeps its own row from its next token, and no other.
fn rows_without_a_mask_go_on(device: Arc<dyn Device>) {
    let alone = llm(reference(), |_| {});
    let (expected, free) = (
        expected_digits(&alone, 0),
        output(plain(&alone, 1, params(60))).token_ids,
    );
    let llm = llm(device, |_| {});
    let (guide, open) = gated();
    let mut stopped = guided(&llm, 0, params(40), &guide);
    let first = stopped.blocking_next().expect("a token needs no gate");
    assert_eq!(first.token_ids, expected[..1]);
    // Its second mask does not come. A whole answer passes by meanwhile.
    assert_eq!(output(plain(&llm, 1, params(60))).token_ids, free);
    for _ in 0..NUM_DIGITS {
        open.send(()).expect("the guide waits");
    }
    let mut rest = first.token_ids;
    while let Some(chunk) = stopped.blocking_next() {
        rest.extend(chunk.token_ids);
    }
    assert_eq!(rest[..NUM_DIGITS as usize], expected);
    assert_eq!(rest[NUM_DIGITS as usize..], [STOP]);
}

on_every_device! {
    stopped => rows_without_a_mask_go_on;
}

/// Masks that come while the device works on the first half of a step cost no step: there are as many as tokens.
#[test]
fn a_step_waits_for_masks_while_nothing_else_could_run() {
    for depth in 0..3 {
        let began = Instant::now();
        let llm = llm(delayed(depth), |_| {});
        let asked = Arc::new(AtomicU32::new(0));
        let by = Arc::clone(&asked);
        let make = move |_| -> Box<dyn TokenGuide> {
            struct Slow(Digits, Arc<AtomicU32>);
            impl TokenGuide for Slow {
                fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
                    self.1.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                    self.0.next(tokens, changes)
                }
            }
            Box::new(Slow(Digits::new(0, None), Arc::clone(&by)))
        };
        let output = output(guided(&llm, 0, params(40), &GuideFactory::new(make)));
        assert_eq!(output.token_ids.len() as u32, NUM_DIGITS + 1);
        assert_eq!(asked.load(Ordering::Relaxed), NUM_DIGITS + 1, "one mask a token");
        llm.engine().shutdown(Duration::from_secs(60));
        let stats = llm.engine().stats();
        let ahead = u64::from(depth.min(1));
        // A mask that takes longer than 0.1 s costs a step: on a machine that stands still.
        let late = (began.elapsed().as_millis() / 100) as u64;
        assert!(
            (u64::from(NUM_DIGITS) + 1..=u64::from(NUM_DIGITS) + 1 + ahead + late).contains(&stats.steps_total),
            "depth {depth}: {} steps",
            stats.steps_total
        );
    }
}

#[test]
fn the_first_half_of_recorded_steps_is_replayed() {
    for depth in 0..3 {
        let llm = llm(delayed(depth), |_| {});
        let streams: Vec<_> = (0..3)
            .map(|seed| guided(&llm, seed, params(40), &digits(seed)))
            .chain((3..6).map(|seed| plain(&llm, seed, params(30))))
            .collect();
        streams.into_iter().for_each(|stream| drop(output(stream)));
        llm.engine().shutdown(Duration::from_secs(60));
        let stats = llm.engine().stats();
        let (replayed, all) = (stats.replayed_steps_total, stats.steps_total);
        assert!(
            2 * replayed > all,
            "depth {depth}: {replayed} of {all} steps were replayed"
        );
    }
}

/// A step has drafts or masks, not both: while there are guided rows nothing is drafted, and afterwards again.
#[test]
fn rows_that_may_draft_stand_beside_guided_ones() {
    let alone = llm(reference(), |_| {});
    let expected = expected_digits(&alone, 0);
    let free = output(plain(&alone, 1, params(60))).token_ids;
    for depth in 0..3 {
        let llm = llm(delayed(depth), |config| {
            config.speculative = Some(SpeculativeConfig {
                num_speculative_tokens: 2,
                prompt_lookup_min: 1,
                prompt_lookup_max: 2,
            });
        });
        let mut other = plain(&llm, 1, params(60));
        let mut tokens = other.blocking_next().expect("a token").token_ids;
        let guided = output(guided(&llm, 0, params(40), &digits(0)));
        assert_eq!(guided.token_ids[..NUM_DIGITS as usize], expected);
        while let Some(chunk) = other.blocking_next() {
            tokens.extend(chunk.token_ids);
        }
        assert_eq!(tokens, free);
        assert_eq!(output(plain(&llm, 1, params(60))).token_ids, free);
        llm.engine().shutdown(Duration::from_secs(60));
        assert!(llm.engine().stats().draft_tokens_total > 0);
    }
}

#[test]
fn ranks_take_the_same_masks() {
    let path = fixtures().join("qwen2");
    let expected = expected_digits(&open(&path, reference(), |_| {}), 0);
    let llm = open_on(&path, &[delayed(1), delayed(1)], |_| {});
    let output = output(guided(&llm, 0, params(40), &digits(0)));
    assert_eq!(output.token_ids[..NUM_DIGITS as usize], expected);
}

#[test]
fn a_guide_that_fails_ends_its_own_request() {
    let llm = llm(loaded("cpu"), |_| {});
    struct Failing(bool);
    impl TokenGuide for Failing {
        fn next(&mut self, tokens: &[u32], _: &mut LogitChanges) -> Result<(), String> {
            match (tokens.is_empty(), self.0) {
                (true, _) => Ok(()),
                (false, true) => panic!("planned"),
                (false, false) => Err("no way on".to_string()),
            }
        }
    }
    for (panics, words) in [(false, "no way on"), (true, "panicked")] {
        let unguided = plain(&llm, 1, params(30));
        let failing = GuideFactory::new(move |_| Box::new(Failing(panics)));
        let output_of_failing = output(guided(&llm, 0, params(40), &failing));
        assert_eq!(output_of_failing.token_ids.len(), 1);
        let reason = output_of_failing.finish;
        assert!(
            matches!(&reason, FinishReason::Error(why) if why.contains(words)),
            "{reason:?}"
        );
        assert_eq!(output(unguided).token_ids.len(), 30);
    }
    let nothing = GuideFactory::new(|_| {
        struct Nothing;
        impl TokenGuide for Nothing {
            fn next(&mut self, _: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
                changes.mask.fill(0);
                Ok(())
            }
        }
        Box::new(Nothing)
    });
    let reason = output(guided(&llm, 0, params(40), &nothing)).finish;
    assert!(
        matches!(&reason, FinishReason::NoTokenAllowed(why) if why.contains("the guide of")),
        "{reason:?}"
    );
}

/// Guides that never answer end their own requests, and no other one, guided or not.
#[test]
fn guides_that_never_answer_hold_up_nobody_else() {
    let alone = llm(reference(), |_| {});
    let expected = expected_digits(&alone, 1);
    let free = output(plain(&alone, 2, params(60))).token_ids;
    let llm = llm(delayed(1), |config| {
        config.guides.max_stuck_threads = 6;
    });
    let gates: Vec<_> = (0..6).map(|_| never()).collect();
    let mut stuck: Vec<_> = (gates.iter().take(5))
        .map(|(guide, _)| guided(&llm, 0, params(40), guide))
        .collect();
    let unguided = plain(&llm, 2, params(60));
    for stream in stuck.drain(..) {
        let output = output(stream);
        assert!(output.token_ids.is_empty(), "{output:?}");
        assert!(
            matches!(&output.finish, FinishReason::Error(why) if why.contains("500ms (max_mask_time)")),
            "{:?}",
            output.finish
        );
    }
    assert_eq!(output(unguided).token_ids, free);
    // Five threads are stuck, and others have taken their place.
    let digits_of_1 = output(guided(&llm, 1, params(40), &digits(1))).token_ids;
    assert_eq!(digits_of_1[..NUM_DIGITS as usize], expected);
    // A sixth is one too many: requests with a guide are refused, others are not.
    let last = output(guided(&llm, 0, params(40), &gates[5].0)).finish;
    assert!(
        matches!(&last, FinishReason::Error(why) if why.contains("max_mask_time")),
        "{last:?}"
    );
    let refused = output(guided(&llm, 1, params(40), &digits(1))).finish;
    assert!(
        matches!(&refused, FinishReason::Error(why) if why.contains("6 threads are stuck")),
        "{refused:?}"
    );
    assert_eq!(output(plain(&llm, 2, params(60))).token_ids, free);
    // They return at last: guides are taken again.
    drop(gates);
    let again = (0..10_000).find_map(|_| {
        let output = output(guided(&llm, 1, params(40), &digits(1)));
        (output.finish == FinishReason::StopToken(STOP)).then_some(output.token_ids)
    });
    assert_eq!(again.expect("guides are taken again")[..NUM_DIGITS as usize], expected);
}

/// A guide that gives no mask until its sender is dropped. Its calls are given up after half a second.
fn never() -> (GuideFactory, Sender<()>) {
    struct Never(Receiver<()>);
    impl TokenGuide for Never {
        fn next(&mut self, _: &[u32], _: &mut LogitChanges) -> Result<(), String> {
            let _ = self.0.recv();
            Ok(())
        }

        fn watch(&self) -> Arc<dyn GuideWatch> {
            Arc::new(HalfASecond)
        }
    }
    struct HalfASecond;
    impl GuideWatch for HalfASecond {
        fn constraint(&self) -> String {
            "a guide that never answers".to_string()
        }

        fn limit(&self) -> Option<Duration> {
            Some(Duration::from_millis(500))
        }
    }
    let (open, gate) = channel();
    let gate = std::sync::Mutex::new(Some(gate));
    let make =
        move |_| -> Box<dyn TokenGuide> { Box::new(Never(gate.lock().expect("one test").take().expect("one sample"))) };
    (GuideFactory::new(make), open)
}

/// Where every thread is stuck, what was asked before ends too.
#[test]
fn guided_sequences_end_when_no_thread_is_left() {
    let llm = llm(delayed(1), |config| config.guides.max_stuck_threads = 1);
    let gates: Vec<_> = (0..8).map(|_| never()).collect();
    let stuck: Vec<_> = gates
        .iter()
        .map(|(guide, _)| guided(&llm, 0, params(40), guide))
        .collect();
    for stream in stuck {
        let finish = output(stream).finish;
        assert!(
            matches!(&finish, FinishReason::Error(why) if why.contains("max_")),
            "{finish:?}"
        );
    }
    assert_eq!(output(plain(&llm, 2, params(20))).token_ids.len(), 20);
}

#[test]
fn bounds_of_guides_are_checked() {
    for (max_mask_time, max_stuck_threads) in [(Duration::ZERO, 1), (Duration::from_secs(1), 0)] {
        let mut config = crate::common::config(&fixtures().join("llama"));
        config.guides = GuideConfig {
            max_mask_time,
            max_stuck_threads,
        };
        let error = Llm::open(config, reference()).err().expect("refused");
        assert!(error.to_string().contains("0; choose more"), "{error}");
    }
}
