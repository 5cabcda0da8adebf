//! A platform in plain C, built by cc from the files of `halyard plugins new` and the rest of the ops, loaded from its
//! library and run by the program that checks devices. (Its ops are in the conformance suite.)

use std::path::PathBuf;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models");
    let mut command = Command::new(env!("CARGO_BIN_EXE_halyard-device-check"));
    command.args(["--platform", halyard_platform_plain_c::NAME, "--plugin"]);
    command.arg(halyard_platform_plain_c::complete());
    command.arg("--fixtures").arg(fixtures).args(arguments);
    command.output().expect("the program starts")
}

/// Runs checks; all must pass, and nothing but the large model and keys and values as codes of 8 and 4 bits may be
/// skipped: this platform holds floats.
fn check(arguments: &[&str]) {
    let output = run(arguments);
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{errors}");
    let skipped: Vec<&str> = out.lines().filter(|line| line.starts_with("skipped ")).collect();
    let may_be = |line: &str| {
        line.ends_with("--model names no file") || line.contains(", kv I8: ") || line.contains(", kv U4: ")
    };
    assert!(skipped.iter().all(|line| may_be(line)), "{skipped:?}");
    println!("{}", out.lines().last().unwrap_or_default());
}

/// Models with latent attention, which this platform leaves to others.
const LATENT: [&str; 4] = [
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v3-fp8",
    "gguf/deepseek-v3-gguf.gguf",
];

#[test]
fn a_model_with_ops_that_it_lacks_is_refused_with_their_names() {
    for model in LATENT {
        let output = run(&["--dtype", "f32", "--golden", model, "goldens"]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{out}");
        assert!(out.contains("latent_attention"), "{out}");
    }
}

#[test]
fn models_give_what_hugging_face_gives() {
    let mut arguments = vec!["--share", "--dtype", "f32"];
    LATENT.iter().for_each(|model| arguments.extend(["--except", model]));
    arguments.extend(["goldens", "lora"]);
    check(&arguments);
}

#[test]
fn models_in_half_precision_are_near_it() {
    for dtype in ["f16", "bf16"] {
        check(&[
            "--dtype",
            dtype,
            "--golden",
            "llama",
            "--golden",
            "gguf/llama-gguf.gguf",
            "goldens",
        ]);
    }
}
