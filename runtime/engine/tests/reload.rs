//! Weights of another folder in place of those that are served, without a restart: its tokens afterwards, what is
//! refused, and what becomes of the old ones.

use std::path::Path;
use std::sync::Arc;

use crate::common::answers::{begin, rest, submit_to};
use crate::common::damaged::{Damage, Damaged};
use crate::common::{cpu, delayed, fixtures, open, open_on, paced, reference};
use halyard_device_check::goldens::{self, F32, Free};
use halyard_device_check::lora::LLAMA;
use halyard_engine::{
    ControlError, EngineHandle, FinishReason, Llm, OutputStream, PauseMode, Replicas, SleepLevel, SleepState, WakeTags,
};
use halyard_platform_api::{DType, Device};

const PROMPT: [u32; 40] = [17; 40];
/// Tokens of a long answer.
const LONG: u32 = 150;

/// Llama with some weights at zero: another model of the same shapes.
fn other() -> Damaged {
    let zeros = |tensor| Damage {
        tensor,
        first: 0,
        count: 48 * 64,
        value: 0.0,
    };
    let tensors = [
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    ];
    Damaged::new("llama", &tensors.map(zeros))
}

/// It opens, and its first step gives no numbers.
fn broken() -> Damaged {
    let damage = Damage {
        tensor: "model.norm.weight",
        first: 0,
        count: 48,
        value: f32::NAN,
    };
    Damaged::new("llama", &[damage])
}

fn submit(engine: &EngineHandle, max_tokens: u32) -> OutputStream {
    submit_to(engine, &PROMPT, max_tokens)
}

fn tokens(llm: &Llm) -> Vec<u32> {
    rest(submit(llm.engine(), 30)).0
}

fn of_folder(folder: &Path) -> Vec<u32> {
    tokens(&open(folder, cpu(), |_| {}))
}

fn check_goldens(llm: &Llm) {
    let golden = fixtures().join("llama/goldens.json");
    goldens::check(llm, &golden, F32, Free::All).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn the_other_folders_tokens_come_after_a_reload() {
    let (llama, other) = (fixtures().join("llama"), other());
    let expected = [of_folder(&llama), of_folder(other.path())];
    assert_ne!(expected[0], expected[1]);
    for device in [cpu(), reference(), delayed(2)] {
        for sleep_mode in [false, true] {
            let llm = open(other.path(), device.clone(), |config| config.sleep_mode = sleep_mode);
            let used = device.memory().expect("a report").used_bytes;
            assert_eq!(tokens(&llm), expected[1]);
            assert_eq!(llm.engine().reload_weights(&llama), Ok(other.path().to_path_buf()));
            check_goldens(&llm);
            assert_eq!(tokens(&llm), expected[0]);
            assert_eq!(llm.engine().reload_weights(other.path()), Ok(llama.clone()));
            assert_eq!(
                tokens(&llm),
                expected[1],
                "nothing of before was found in the prefix cache"
            );
            assert_eq!(device.memory().expect("a report").used_bytes, used);
        }
    }
}

#[test]
fn requests_that_run_go_on_with_the_new_weights() {
    let (llama, other) = (fixtures().join("llama"), other());
    for (device, pace) in [paced(0), paced(2)] {
        let llm = open(&llama, device, |_| {});
        let (long, mut found) = begin(&llm, &pace, &PROMPT, LONG);
        llm.engine().reload_weights(other.path()).expect("it fits");
        pace.quick();
        let (later, finish) = rest(long);
        found.extend(later);
        assert_eq!((found.len(), finish), (LONG as usize, FinishReason::Length));
        assert_eq!(llm.engine().stats().preemptions_total, 1);
        assert_eq!(tokens(&llm), of_folder(other.path()));
        // A pause holds over a reload.
        assert_eq!(llm.engine().pause(PauseMode::Wait, false).blocking_wait(), Ok(()));
        let waiting = submit(llm.engine(), 30);
        llm.engine().reload_weights(&llama).expect("it fits");
        assert!(llm.engine().is_paused());
        assert_eq!(llm.engine().resume().blocking_wait(), Ok(()));
        assert_eq!(rest(waiting).0, of_folder(&llama));
    }
}

/// The llama fixture with another text in one of its files.
fn changed(file: &str, from: &str, to: &str) -> Damaged {
    let folder = Damaged::new("llama", &[]);
    let file = folder.path().join(file);
    let text = std::fs::read_to_string(&file).expect("text");
    assert!(text.contains(from), "{}", file.display());
    std::fs::write(&file, text.replace(from, to)).expect("written");
    folder
}

#[test]
fn another_model_is_refused_with_what_differs_and_nothing_changes() {
    let (device, pace) = paced(2);
    let llm = open(&fixtures().join("llama"), device, |_| {});
    let (long, mut found) = begin(&llm, &pace, &PROMPT, LONG);
    let heads = "\"rope_theta\": 10000.0";
    let rope = changed("config.json", heads, "\"rope_theta\": 20000.0");
    let dtype = changed("config.json", "\"float32\"", "\"bfloat16\"");
    let epsilon = changed("config.json", "1e-05", "1e-04");
    let word = "\"version\"";
    let tokenizer = changed("tokenizer.json", word, word);
    add_word(&tokenizer.path().join("tokenizer.json"));
    let missing = Path::new("/there/is/no/such/folder");
    let fixture = |name: &str| fixtures().join(name);
    for (path, named) in [
        (
            fixture("qwen3"),
            vec!["architecture is Qwen3ForCausalLM", "LlamaForCausalLM is served"],
        ),
        (fixture("llama3-rope"), vec!["is served"]),
        (rope.path().to_path_buf(), vec!["theta", "20000", "10000"]),
        (dtype.path().to_path_buf(), vec!["dtype", "BF16", "F32"]),
        (epsilon.path().to_path_buf(), vec!["eps", "0.0001", "1e-5"]),
        (tokenizer.path().to_path_buf(), vec!["tokenizer", "449", "448"]),
        (
            missing.to_path_buf(),
            vec!["/there/is/no/such/folder", "nothing changed"],
        ),
        (fixture("qwen3").join("config.json"), vec!["config.json"]),
    ] {
        let error = llm.engine().reload_weights(&path).expect_err("another model");
        let words = error.to_string();
        assert!(
            named.iter().all(|part| words.contains(part)),
            "{}: {words}",
            path.display()
        );
        assert!(words.contains("nothing changed"), "{words}");
    }
    let stats = llm.engine().stats();
    assert_eq!((stats.num_running, stats.preemptions_total), (1, 0));
    pace.quick();
    found.extend(rest(long).0);
    let untouched = open(&fixtures().join("llama"), delayed(2), |_| {});
    assert_eq!(found, rest(submit(untouched.engine(), LONG)).0);
    check_goldens(&llm);
}

fn add_word(tokenizer: &Path) {
    let text = std::fs::read_to_string(tokenizer).expect("text");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let added = json["added_tokens"].as_array_mut().expect("a list");
    added.push(serde_json::json!({
        "id": 448, "content": "<more>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true
    }));
    std::fs::write(tokenizer, json.to_string()).expect("written");
}

/// The stored type of a weight alone: the configuration says the same.
#[test]
fn weights_of_another_type_are_refused_by_name() {
    let folder = Damaged::new("llama", &[]);
    let file = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("weights");
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).expect("a header");
    // Every tensor in half of its bytes: the upper half of an f32 is a bf16.
    let (mut entries, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, entry) in header
        .as_object()
        .expect("an object")
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
    {
        let range = [0, 1].map(|i| 8 + header_bytes + entry["data_offsets"][i].as_u64().expect("an offset") as usize);
        let start = data.len();
        for value in bytes[range[0]..range[1]].chunks_exact(4) {
            data.extend_from_slice(&value[2..]);
        }
        let offsets = [start, data.len()];
        let entry = serde_json::json!({"dtype": "BF16", "shape": entry["shape"], "data_offsets": offsets});
        entries.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(entries).to_string();
    let file_bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(&file, file_bytes).expect("written");
    let llm = open(&fixtures().join("llama"), cpu(), |_| {});
    let words = llm
        .engine()
        .reload_weights(folder.path())
        .expect_err("bf16")
        .to_string();
    let named = ["model.embed_tokens.weight", "is stored as", "BF16", "F32"];
    assert!(
        named
            .iter()
            .all(|part| words.to_uppercase().contains(&part.to_uppercase())),
        "{words}"
    );
    check_goldens(&llm);
}

#[test]
fn a_folder_without_a_tokenizer_is_taken() {
    let other = other();
    let expected = of_folder(other.path());
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::remove_file(other.path().join(file)).expect("was there");
    }
    let llm = open(&fixtures().join("llama"), cpu(), |_| {});
    llm.engine().reload_weights(other.path()).expect("it fits");
    assert_eq!(tokens(&llm), expected);
}

#[test]
fn weights_that_cannot_be_loaded_leave_the_old_ones() {
    let broken = broken();
    for device in [cpu(), delayed(2)] {
        for sleep_mode in [false, true] {
            let llm = open(&fixtures().join("llama"), device.clone(), |config| {
                config.sleep_mode = sleep_mode
            });
            let used = device.memory().expect("a report").used_bytes;
            let mut long = submit(llm.engine(), 60);
            let mut found = long.blocking_next().expect("a token").token_ids;
            let failed = llm.engine().reload_weights(broken.path()).expect_err("no numbers");
            let ControlError::ReloadFailed { reason, lost: None } = &failed else {
                panic!("{failed}");
            };
            assert!(reason.contains("logits"), "{reason}");
            assert!(failed.to_string().contains("former ones serve on"), "{failed}");
            found.extend(rest(long).0);
            let untouched = open(&fixtures().join("llama"), cpu(), |_| {});
            assert_eq!(found, rest(submit(untouched.engine(), 60)).0);
            assert_eq!(device.memory().expect("a report").used_bytes, used);
            check_goldens(&llm);
        }
    }
}

/// Neither the new weights nor the old ones: the engine sleeps until a wake finds them.
#[test]
fn where_the_old_weights_do_not_come_back_a_wake_tries_again() {
    let (folder, broken) = (Damaged::new("llama", &[]), broken());
    let hidden = folder.path().with_extension("hidden");
    let llm = open(folder.path(), cpu(), |_| {});
    let expected = tokens(&llm);
    let mut long = submit(llm.engine(), LONG);
    long.blocking_next().expect("a token");
    std::fs::rename(folder.path(), &hidden).expect("moves");
    let failed = llm.engine().reload_weights(broken.path()).expect_err("no numbers");
    assert!(
        matches!(failed, ControlError::ReloadFailed { lost: Some(_), .. }),
        "{failed}"
    );
    assert_eq!(llm.engine().sleep_state(), SleepState::DiscardAll);
    assert!(llm.engine().wake_up(WakeTags::ALL).blocking_wait().is_err());
    std::fs::rename(&hidden, folder.path()).expect("moves");
    assert_eq!(llm.engine().wake_up(WakeTags::ALL).blocking_wait(), Ok(()));
    assert_eq!(rest(long).1, FinishReason::Length);
    assert_eq!(tokens(&llm), expected);
}

#[test]
fn an_engine_that_sleeps_wakes_with_the_other_weights() {
    let (llama, other) = (fixtures().join("llama"), other());
    let expected = of_folder(&llama);
    let weights = WakeTags {
        weights: true,
        kv_cache: false,
    };
    for level in [SleepLevel::One, SleepLevel::Two] {
        for with_weights in [false, true] {
            let llm = open(other.path(), cpu(), |config| config.sleep_mode = true);
            let engine = llm.engine();
            assert_eq!(engine.sleep(level, PauseMode::Abort).blocking_wait(), Ok(()));
            if with_weights {
                assert_eq!(engine.wake_up(weights).blocking_wait(), Ok(()));
            }
            let waiting = submit(engine, 30);
            assert_eq!(engine.reload_weights(&llama), Ok(other.path().to_path_buf()));
            assert!(engine.is_paused() && engine.sleep_state() != SleepState::Awake);
            assert_eq!(engine.wake_up(WakeTags::ALL).blocking_wait(), Ok(()));
            assert_eq!(rest(waiting).0, expected, "{level:?} {with_weights}");
            check_goldens(&llm);
        }
    }
}

#[test]
fn adapters_and_ranks_live_through_a_reload() {
    let other = other();
    let llm = open(other.path(), cpu(), |config| {
        config.lora = Some(LLAMA.config(&fixtures(), 2))
    });
    let check = || LLAMA.check_mixed(&llm, &fixtures(), F32, Free::All);
    assert!(check().is_err(), "these are other weights");
    llm.engine().reload_weights(&fixtures().join("llama")).expect("it fits");
    check().unwrap_or_else(|why| panic!("{why}"));
    let zeros = Damage {
        tensor: "model.layers.0.mlp.down_proj.weight",
        first: 0,
        count: 64,
        value: 0.0,
    };
    let smaller = Damaged::new("qwen3", &[zeros]);
    let devices: Vec<Arc<dyn Device>> = vec![cpu(), cpu()];
    let llm = open_on(smaller.path(), &devices, |_| {});
    llm.engine().reload_weights(&fixtures().join("qwen3")).expect("it fits");
    let golden = fixtures().join("qwen3/goldens.json");
    goldens::check(&llm, &golden, F32, Free::All).unwrap_or_else(|why| panic!("{why}"));
}

/// The second copy computes in f16, where a large weight gives no numbers: the first one, which has loaded it, goes
/// back.
#[test]
fn copies_have_the_same_weights_whatever_happens() {
    let (llama, other) = (fixtures().join("llama"), other());
    let large = Damage {
        tensor: "model.norm.weight",
        first: 0,
        count: 48,
        value: 1e30,
    };
    let large = Damaged::new("llama", &[large]);
    let engines = [(cpu(), DType::F32), (reference(), DType::F16)].map(|(device, dtype)| {
        let llm = open(&llama, device, |config| config.model.dtype = Some(dtype));
        llm.engine().clone()
    });
    let [first, second] = engines.clone();
    let copies = Replicas::new(first, vec![second]);
    let all = || engines.clone().map(|engine| rest(submit(&engine, 30)).0);
    let of_llama = all();
    assert_eq!(copies.reload_weights(other.path()), Ok(()));
    let expected = all();
    assert!(of_llama[0] != expected[0] && of_llama[1] != expected[1]);
    assert!(copies.reload_weights(&fixtures().join("qwen3")).is_err());
    assert_eq!(all(), expected);
    let failed = copies.reload_weights(large.path()).expect_err("no numbers in f16");
    assert!(
        matches!(failed, ControlError::ReloadFailed { lost: None, .. }),
        "{failed}"
    );
    assert_eq!(all(), expected);
    let alone = engines[0].reload_weights(large.path());
    assert_eq!(alone, Ok(other.path().to_path_buf()), "the first copy could");
}
