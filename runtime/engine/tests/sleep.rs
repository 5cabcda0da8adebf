//! Sleeping and waking: the device's memory goes and comes back, and so do the same tokens; what becomes of requests;
//! wakes that fail. Weights of another folder are in `reload.rs`.

use std::path::Path;
use std::sync::Arc;

use crate::common::answers::{alone, begin, rest, submit};
use crate::common::damaged::Damaged;
use crate::common::{cpu, delayed, fixtures, loaded, open, open_on, paced, reference};
use halyard_device_check::goldens::{self, F32, Free};
use halyard_device_check::lora::LLAMA;
use halyard_engine::{
    ControlError, EngineConfig, EngineHandle, FinishReason, Llm, PauseMode, SleepLevel, SleepState, WakeTags,
};
use halyard_platform_api::Device;

/// Tokens of a long answer.
const LONG: u32 = 150;
const PROMPT: [u32; 40] = [17; 40];
const OTHER: [u32; 3] = [297, 368, 5];
const LEVELS: [(SleepLevel, SleepState); 2] = [
    (SleepLevel::One, SleepState::WeightsOffloaded),
    (SleepLevel::Two, SleepState::DiscardAll),
];

fn can_sleep(config: &mut EngineConfig) {
    config.sleep_mode = true;
}

/// One row, so that a second request waits.
fn llm(device: Arc<dyn Device>) -> Llm {
    open(&fixtures().join("llama"), device, |config| {
        can_sleep(config);
        config.scheduler.max_num_seqs = 1;
    })
}

fn sleep(engine: &EngineHandle, level: SleepLevel) {
    assert_eq!(engine.sleep(level, PauseMode::Abort).blocking_wait(), Ok(()));
}

fn wake(engine: &EngineHandle) {
    assert_eq!(engine.wake_up(WakeTags::ALL).blocking_wait(), Ok(()));
}

fn used(device: &Arc<dyn Device>) -> u64 {
    device.memory().expect("a report").used_bytes
}

fn check_goldens(llm: &Llm, golden: &str) {
    goldens::check(llm, &fixtures().join(golden), F32, Free::All).unwrap_or_else(|why| panic!("{golden}: {why}"));
}

/// Memory and tokens over both levels, twice.
fn comes_and_goes(device: Arc<dyn Device>) {
    let before = used(&device);
    let llm = open(&fixtures().join("llama"), device.clone(), can_sleep);
    let awake = used(&device);
    assert!(awake > before + (1 << 20), "{before} {awake}");
    check_goldens(&llm, "llama/goldens.json");
    for (level, state) in LEVELS.into_iter().chain(LEVELS) {
        let engine = llm.engine();
        assert_eq!(engine.sleep_state(), SleepState::Awake);
        sleep(engine, level);
        assert_eq!(used(&device), before, "{level:?}");
        assert_eq!((engine.sleep_state(), engine.is_paused()), (state, true));
        assert_eq!(engine.health(), Ok(()));
        assert_eq!(engine.stats().kv_cache_usage, 0.0);
        wake(engine);
        assert_eq!((engine.sleep_state(), engine.is_paused()), (SleepState::Awake, false));
        assert_eq!(used(&device), awake, "{level:?}");
        check_goldens(&llm, "llama/goldens.json");
    }
}

#[test]
fn memory_goes_and_comes_back_with_the_same_tokens_on_cpu() {
    comes_and_goes(cpu());
}

#[test]
fn memory_goes_and_comes_back_with_the_same_tokens_on_reference() {
    comes_and_goes(reference());
}

#[test]
fn memory_goes_and_comes_back_with_the_same_tokens_on_a_loaded_library() {
    comes_and_goes(loaded("cpu"));
}

/// Steps are in flight, and decode steps are recorded: the recordings go too, and new ones are made.
#[test]
fn memory_goes_and_comes_back_with_steps_in_flight_and_recordings() {
    let device = delayed(2);
    comes_and_goes(device.clone());
    let llm = open(&fixtures().join("llama"), device, can_sleep);
    let expected = alone(&llm, &PROMPT, LONG);
    let replayed = llm.engine().stats().replayed_steps_total;
    assert!(replayed > 0);
    sleep(llm.engine(), SleepLevel::One);
    wake(llm.engine());
    assert_eq!(alone(&llm, &PROMPT, LONG), expected);
    assert!(
        llm.engine().stats().replayed_steps_total > replayed,
        "nothing was recorded after the wake"
    );
}

#[test]
fn requests_that_come_while_it_sleeps_are_answered_after_the_wake() {
    for device in [cpu(), delayed(2)] {
        let llm = llm(device);
        let expected = (alone(&llm, &PROMPT, 20), alone(&llm, &OTHER, 4));
        for (level, _) in LEVELS {
            sleep(llm.engine(), level);
            let streams = (submit(&llm, &PROMPT, 20), submit(&llm, &OTHER, 4));
            let steps = llm.engine().stats().steps_total;
            // Each of these passes through the engine's thread.
            for _ in 0..20 {
                assert_eq!(llm.engine().reset_prefix_cache(false).blocking_wait(), Ok(true));
            }
            let stats = llm.engine().stats();
            assert_eq!((stats.steps_total, stats.num_running, stats.num_waiting), (steps, 0, 2));
            assert_eq!(llm.engine().resume().blocking_wait(), Err(ControlError::Asleep));
            let hits = stats.prefix_cache_hits_total;
            wake(llm.engine());
            assert_eq!((rest(streams.0).0, rest(streams.1).0), expected);
            let stats = llm.engine().stats();
            assert_eq!(stats.prefix_cache_hits_total, hits, "nothing was found of before");
        }
    }
}

#[test]
fn what_is_kept_goes_on_after_the_wake() {
    for (device, pace) in [paced(0), paced(2)] {
        let llm = llm(device);
        let expected = (alone(&llm, &PROMPT, LONG), alone(&llm, &OTHER, 4));
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        let waiting = submit(&llm, &OTHER, 4);
        assert_eq!(
            llm.engine().sleep(SleepLevel::One, PauseMode::Keep).blocking_wait(),
            Ok(())
        );
        assert_eq!(llm.engine().stats().num_waiting, 2);
        pace.quick();
        wake(llm.engine());
        tokens.extend(rest(long).0);
        assert_eq!((tokens, rest(waiting).0), expected);
    }
}

#[test]
fn a_sleep_that_waits_is_there_when_what_ran_has_ended() {
    for (device, pace) in [paced(0), paced(2)] {
        let llm = llm(device);
        let expected = (alone(&llm, &PROMPT, LONG), alone(&llm, &OTHER, 4));
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        let waiting = submit(&llm, &OTHER, 4);
        let asked = llm.engine().sleep(SleepLevel::Two, PauseMode::Wait);
        pace.quick();
        assert_eq!(asked.blocking_wait(), Ok(()));
        let (later, finish) = rest(long);
        tokens.extend(later);
        assert_eq!((tokens, finish), (expected.0, FinishReason::Length));
        wake(llm.engine());
        assert_eq!(rest(waiting).0, expected.1);
    }
}

#[test]
fn a_sleep_that_aborts_ends_what_is_there() {
    for (device, pace) in [paced(0), paced(2)] {
        let llm = llm(device);
        let expected = alone(&llm, &PROMPT, LONG);
        let (long, _) = begin(&llm, &pace, &PROMPT, LONG);
        let waiting = submit(&llm, &OTHER, 4);
        sleep(llm.engine(), SleepLevel::One);
        assert_eq!(
            (rest(long).1, rest(waiting).1),
            (FinishReason::Paused, FinishReason::Paused)
        );
        pace.quick();
        wake(llm.engine());
        assert_eq!(alone(&llm, &PROMPT, LONG), expected);
    }
}

#[test]
fn a_resume_or_a_wake_gives_up_a_sleep_that_waits() {
    for wakes in [false, true] {
        let (device, pace) = paced(2);
        let llm = llm(device);
        let expected = alone(&llm, &PROMPT, LONG);
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        let asked = llm.engine().sleep(SleepLevel::One, PauseMode::Wait);
        let ended = match wakes {
            false => llm.engine().resume(),
            true => llm.engine().wake_up(WakeTags::ALL),
        };
        assert_eq!(ended.blocking_wait(), Ok(()));
        assert_eq!(asked.blocking_wait(), Err(ControlError::Resumed));
        assert_eq!(
            (llm.engine().sleep_state(), llm.engine().is_paused()),
            (SleepState::Awake, false)
        );
        pace.quick();
        tokens.extend(rest(long).0);
        assert_eq!(tokens, expected);
    }
}

#[test]
fn a_second_sleep_may_be_deeper_and_a_second_wake_does_nothing() {
    let device = cpu();
    let llm = llm(device.clone());
    let expected = alone(&llm, &PROMPT, 20);
    let engine = llm.engine();
    for (level, state) in [
        (SleepLevel::One, SleepState::WeightsOffloaded),
        (SleepLevel::Two, SleepState::DiscardAll),
        (SleepLevel::One, SleepState::DiscardAll),
    ] {
        sleep(engine, level);
        assert_eq!(engine.sleep_state(), state);
    }
    wake(engine);
    let awake = used(&device);
    wake(engine);
    assert_eq!(used(&device), awake);
    assert_eq!(alone(&llm, &PROMPT, 20), expected);
}

#[test]
fn a_wake_in_two_parts_goes_on_after_the_second() {
    let [weights, kv_cache] = [(true, false), (false, true)].map(|(weights, kv_cache)| WakeTags { weights, kv_cache });
    for (level, state) in LEVELS {
        let device = cpu();
        let llm = open(&fixtures().join("llama"), device.clone(), can_sleep);
        let (awake, expected) = (used(&device), alone(&llm, &PROMPT, 20));
        let engine = llm.engine();
        sleep(engine, level);
        let asleep = used(&device);
        assert_eq!(
            engine.wake_up(kv_cache).blocking_wait(),
            Err(ControlError::WeightsFirst)
        );
        assert_eq!(used(&device), asleep);
        for _ in 0..2 {
            assert_eq!(engine.wake_up(weights).blocking_wait(), Ok(()));
            let with_weights = used(&device);
            assert!(
                asleep < with_weights && with_weights + (256 << 10) < awake,
                "{asleep} {with_weights} {awake}"
            );
            assert_eq!((engine.sleep_state(), engine.is_paused()), (state, true));
        }
        // The weights go again.
        sleep(engine, level);
        assert_eq!(used(&device), asleep);
        assert_eq!(engine.wake_up(weights).blocking_wait(), Ok(()));
        let waiting = submit(&llm, &PROMPT, 20);
        assert_eq!(engine.wake_up(kv_cache).blocking_wait(), Ok(()));
        assert_eq!((engine.sleep_state(), used(&device)), (SleepState::Awake, awake));
        assert_eq!(rest(waiting).0, expected);
    }
}

#[test]
fn a_folder_that_is_gone_fails_a_wake_from_level_2_until_it_is_back() {
    let folder = Damaged::new("llama", &[]);
    let hidden = folder.path().with_extension("hidden");
    let device = cpu();
    let llm = open(folder.path(), device.clone(), can_sleep);
    let expected = alone(&llm, &PROMPT, 20);
    let engine = llm.engine();
    sleep(engine, SleepLevel::Two);
    let asleep = used(&device);
    std::fs::rename(folder.path(), &hidden).expect("moves");
    let waiting = submit(&llm, &PROMPT, 20);
    for _ in 0..2 {
        let failed = engine
            .wake_up(WakeTags::ALL)
            .blocking_wait()
            .expect_err("there is nothing");
        let words = failed.to_string();
        assert!(matches!(failed, ControlError::WakeFailed { .. }), "{words}");
        assert!(words.contains(&folder.path().display().to_string()), "{words}");
        assert_eq!((engine.sleep_state(), used(&device)), (SleepState::DiscardAll, asleep));
        assert_eq!(engine.health(), Ok(()));
    }
    std::fs::rename(&hidden, folder.path()).expect("moves");
    wake(engine);
    assert_eq!(rest(waiting).0, expected);
}

/// From level 1 the weights come back that were there, whatever became of the folder.
#[test]
fn level_1_needs_no_folder_and_refuses_a_file_that_was_written_to() {
    let folder = Damaged::new("llama", &[]);
    let file = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("weights");
    let llm = open(folder.path(), cpu(), can_sleep);
    let expected = alone(&llm, &PROMPT, 20);
    let engine = llm.engine();
    // Gone.
    sleep(engine, SleepLevel::One);
    std::fs::remove_file(&file).expect("was there");
    wake(engine);
    assert_eq!(alone(&llm, &PROMPT, 20), expected);
    // Another file of that name.
    sleep(engine, SleepLevel::One);
    std::fs::write(&file, &bytes[..100]).expect("written");
    wake(engine);
    assert_eq!(alone(&llm, &PROMPT, 20), expected);
    // The mapped file itself.
    std::fs::write(&file, &bytes).expect("written");
    sleep(engine, SleepLevel::Two);
    wake(engine);
    sleep(engine, SleepLevel::One);
    shorten(&file);
    let failed = engine
        .wake_up(WakeTags::ALL)
        .blocking_wait()
        .expect_err("its weights are gone");
    assert!(
        failed.to_string().contains("written to since it was opened"),
        "{failed}"
    );
    assert_eq!(engine.sleep_state(), SleepState::WeightsOffloaded);
    std::fs::write(&file, &bytes).expect("written");
    sleep(engine, SleepLevel::Two);
    wake(engine);
    assert_eq!(alone(&llm, &PROMPT, 20), expected);
}

fn shorten(file: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(file).expect("opens");
    file.set_len(100).expect("shortens");
}

#[test]
fn adapters_are_loaded_again_when_they_are_asked_for() {
    for device in [cpu(), delayed(2)] {
        let llm = open(&fixtures().join("llama"), device.clone(), |config| {
            can_sleep(config);
            config.lora = Some(LLAMA.config(&fixtures(), 2));
        });
        let check = || {
            LLAMA
                .check_mixed(&llm, &fixtures(), F32, Free::All)
                .unwrap_or_else(|why| panic!("{why}"))
        };
        check();
        for (level, _) in LEVELS {
            sleep(llm.engine(), level);
            let residents = llm.engine().adapters();
            assert!(
                residents
                    .iter()
                    .all(|adapter| adapter.residency != halyard_engine::Residency::Device)
            );
            wake(llm.engine());
            check();
        }
    }
}

#[test]
fn ranks_sleep_and_wake_together() {
    for open_device in [cpu, reference, || delayed(2)] {
        let devices: Vec<Arc<dyn Device>> = (0..2).map(|_| open_device()).collect();
        let before: Vec<u64> = devices.iter().map(used).collect();
        let llm = open_on(&fixtures().join("qwen3"), &devices, can_sleep);
        let awake: Vec<u64> = devices.iter().map(used).collect();
        let expected = alone(&llm, &PROMPT, 60);
        for (level, _) in LEVELS.into_iter().chain(LEVELS) {
            let mut long = submit(&llm, &PROMPT, 60);
            let mut tokens = long.blocking_next().expect("a token").token_ids;
            assert_eq!(llm.engine().sleep(level, PauseMode::Keep).blocking_wait(), Ok(()));
            assert_eq!(devices.iter().map(used).collect::<Vec<_>>(), before);
            wake(llm.engine());
            assert_eq!(devices.iter().map(used).collect::<Vec<_>>(), awake);
            tokens.extend(rest(long).0);
            assert_eq!(tokens, expected);
            assert_eq!(llm.engine().health(), Ok(()));
        }
    }
}

#[test]
fn an_engine_that_was_not_started_for_it_stays_awake() {
    let llm = open(&fixtures().join("llama"), cpu(), |_| {});
    let refused = llm.engine().sleep(SleepLevel::One, PauseMode::Abort).blocking_wait();
    assert_eq!(refused, Err(ControlError::SleepModeOff));
    assert!(ControlError::SleepModeOff.to_string().contains("--enable-sleep-mode"));
    assert!(!llm.engine().is_paused());
    wake(llm.engine());
}

#[test]
fn an_engine_ends_while_it_sleeps() {
    let llm = llm(cpu());
    sleep(llm.engine(), SleepLevel::One);
    let waiting = submit(&llm, &OTHER, 4);
    llm.engine().shutdown(std::time::Duration::from_secs(3600));
    let FinishReason::Abort(words) = rest(waiting).1 else {
        panic!("another end");
    };
    assert!(words.contains("shut down"), "{words}");
    let late = llm.engine().wake_up(WakeTags::ALL).blocking_wait();
    assert!(matches!(late, Err(ControlError::Dead { .. })), "{late:?}");
}
