//! Every target: the committed inputs, then a fixed number of seeded cases. Longer: `tests/fuzz/run TARGET MINUTES`.

use std::process::Command;

fn halyard_fuzz(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_halyard-fuzz"))
        .args(args)
        .output()
        .expect("the fuzzer starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success(), "{args:?}: {text}");
}

macro_rules! targets {
    ($($test:ident = $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                halyard_fuzz(&["replay", $name]);
                halyard_fuzz(&["run", $name]);
            }
        )*

        #[test]
        fn no_target_is_forgotten() {
            let output = Command::new(env!("CARGO_BIN_EXE_halyard-fuzz")).arg("list").output().expect("it starts");
            let listed = String::from_utf8(output.stdout).expect("names");
            let listed: Vec<&str> = listed.lines().collect();
            assert_eq!(listed, [$($name),*]);
        }
    };
}

targets! {
    gguf_files = "gguf",
    safetensors_headers = "safetensors",
    safetensors_indexes = "safetensors-index",
    configurations = "config",
    generation_configurations = "generation-config",
    adapter_configurations = "lora-config",
    tokenizers = "tokenizer",
    tokenizer_configurations = "tokenizer-config",
    chat_templates = "template",
    answers = "answer",
    response_templates = "response-template",
    constraints = "constraint",
    grammars = "grammar",
    manifests = "manifest",
    libraries = "elf",
    op_descriptors = "op-spec",
    programs = "program",
    record_frames = "record",
    recorded_records = "record-json",
    completion_bodies = "completion",
    chat_bodies = "chat",
    tokenize_bodies = "tokenize",
    detokenize_bodies = "detokenize",
    adapter_bodies = "lora-load",
    admin_bodies = "admin",
    event_streams = "event-stream",
    zmtp = "zmtp",
}
