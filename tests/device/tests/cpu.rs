//! Adapters on the CPU platform, loaded from its library and run by the program that checks devices: by the kernels of
//! this processor, and by those of lesser ones. (What else the CPU platform promises is in the conformance suite and
//! the engine's tests.)

use std::path::PathBuf;
use std::process::Command;

/// Instruction sets whose kernels run here; `None`: the best one.
fn sets() -> Vec<Option<&'static str>> {
    let mut sets = vec![None, Some("portable")];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        sets.push(Some("avx2"));
    }
    sets
}

/// Runs a check with every set; all must pass, and something must have been checked.
fn check(arguments: &[&str]) {
    let library = std::env::current_exe()
        .expect("a path")
        .with_file_name("libhalyard_cpu.so");
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models");
    for set in sets() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halyard-device-check"));
        command.args(["--platform", "cpu", "--plugin"]).arg(&library);
        command.arg("--fixtures").arg(&fixtures).args(arguments);
        command.env("HALYARD_CPU_ISA", set.unwrap_or_default());
        let output = command.output().expect("the program starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        let last = out.lines().last().unwrap_or_default();
        assert!(output.status.success(), "{set:?}: {out}\n{errors}");
        assert!(
            last.contains(" passed, 0 failed, 0 skipped") && !last.starts_with("0 "),
            "{set:?}: {out}"
        );
        println!("{}: {last}", set.unwrap_or("best"));
    }
}

#[test]
fn adapters_products_conform() {
    for op in ["lora_shrink", "lora_expand"] {
        check(&["--op", op, "--variant", "F32 x", "conformance"]);
    }
}

#[test]
fn adapters_give_what_peft_gives() {
    check(&["--dtype", "f32", "lora"]);
}
