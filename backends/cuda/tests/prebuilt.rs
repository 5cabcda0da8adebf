//! The example `prebuilt` as packaging calls it: what it would compile, and the file that it makes.

use std::path::PathBuf;
use std::process::{Command, Output};

use halyard_cuda::PREBUILT_KERNELS;
use halyard_gpu::PrebuiltKernels;

fn program(args: &[&str]) -> Output {
    // This program lies in target/…/deps, and cargo builds examples before it runs tests.
    let here = std::env::current_exe().expect("a path");
    let program = here.with_file_name("../examples/prebuilt");
    Command::new(program).args(args).output().expect("it runs")
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lines that it lists.
fn listed(args: &[&str]) -> Vec<String> {
    let output = program(&[&["--list"], args].concat());
    assert!(output.status.success(), "{}", words(&output.stderr));
    words(&output.stdout).lines().map(str::to_string).collect()
}

const SMALL: [&str; 4] = ["--model", "SmolLM2-135M", "--arch", "sm_90a"];

#[test]
fn it_lists_what_a_model_asks_for_on_a_device() {
    let kernels = listed(&SMALL);
    let has = |words: &[&str]| kernels.iter().any(|line| words.iter().all(|word| line.contains(word)));
    for words in [
        &["sm_90a sample "][..],
        &["sm_90a step_write "],
        &["sm_90a attention_decode ", "-DACT=bf16", "-DHEAD_DIM=64", "-DGROUP=3"],
        &["sm_90a attention_prefill ", "-DHEAD_DIM=64"],
        // Matrices that fit one tile of rows a block.
        &["sm_90a linear_once "],
    ] {
        assert!(has(words), "no {words:?} among {kernels:#?}");
    }
    assert!(kernels.iter().all(|line| line.starts_with("sm_90a ")), "{kernels:#?}");
    // Another generation has other kernels for prompts.
    let older = listed(&["--model", "SmolLM2-135M", "--arch", "sm_80"]);
    let has = |name: &str| older.iter().any(|line| line.starts_with(name));
    assert!(
        has("sm_80 attention_prefill_mma ") && !has("sm_80 linear_hopper "),
        "{older:#?}"
    );
}

#[test]
fn it_names_what_there_is_for_a_name_that_it_does_not_know() {
    for (args, known) in [(["--model", "Lama"], "Llama-3.1-8B"), (["--arch", "sm_75"], "sm_90a")] {
        let output = program(&[&["--list"], &args[..]].concat());
        let said = words(&output.stderr);
        assert!(
            !output.status.success() && said.contains(args[1]) && said.contains(known),
            "{said}"
        );
    }
}

#[test]
fn its_file_has_every_kernel_that_it_lists() {
    let folder = std::env::temp_dir().join(format!("halyard-prebuilt-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let out = folder.to_str().expect("a path in UTF-8");
    let output = program(&[&SMALL[..], &[out]].concat());
    let said = words(&output.stderr);
    let kernels = PrebuiltKernels::open(&PathBuf::from(out).join(PREBUILT_KERNELS));
    std::fs::remove_dir_all(&folder).expect("ours");
    if said.contains("libnvrtc") {
        assert!(!output.status.success() && kernels.is_none(), "half a file: {said}");
        println!("skipped: libnvrtc not found");
        return;
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(kernels.expect("a whole file").len(), listed(&SMALL).len());
}
