//! The Vulkan platform on whatever device this machine has (Mesa's CPU driver in CI), loaded from its library and run
//! by the program that checks devices, once with each call watched by the validation layer. Skipped with the reason
//! where there is no device.

use std::path::PathBuf;
use std::process::{Command, Output};

use halyard_platform_api::{Platform, Status};

/// The program that checks devices, on the library that cargo puts into the folder of this test's binary.
fn program() -> Command {
    let library = std::env::current_exe()
        .expect("a path")
        .with_file_name("libhalyard_vulkan.so");
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models");
    let mut command = Command::new(env!("CARGO_BIN_EXE_halyard-device-check"));
    command.args(["--platform", "vulkan", "--plugin"]).arg(library);
    command.arg("--fixtures").arg(fixtures);
    // Mesa's CPU driver takes and gives back memory in each dispatch: kept by glibc, its pages are not cleared anew.
    command.env("MALLOC_MMAP_THRESHOLD_", "536870912");
    command.env("MALLOC_TRIM_THRESHOLD_", "1073741824");
    command.env("MALLOC_TOP_PAD_", "67108864");
    command
}

/// Runs checks; `None`, and a line that says why, where there is no device.
fn check(arguments: &[&str], validated: bool) -> Option<Output> {
    if let Err(e) = halyard_vulkan::VulkanPlatform.devices() {
        assert_eq!(e.status, Status::Unavailable, "{e}");
        println!("skipped: {}", e.message);
        return None;
    }
    let mut command = program();
    command.args(arguments);
    if validated {
        command.env("HALYARD_VULKAN_VALIDATION", "1");
    }
    Some(command.output().expect("the program starts"))
}

fn assert_passed(output: &Output) {
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{errors}");
    assert!(
        out.lines()
            .any(|line| line.ends_with(" 0 failed, 0 skipped") || line.contains(" 0 failed, ")),
        "{out}"
    );
    println!("{}", out.lines().last().unwrap_or_default());
}

/// Whether the layer is there, as the platform itself says.
fn layer_is_missing(output: &Output) -> bool {
    let errors = String::from_utf8_lossy(&output.stderr);
    let missing = errors.contains("vulkan-validationlayers");
    if missing {
        println!("skipped: {}", errors.trim());
    }
    missing
}

#[test]
fn every_op_conforms_with_each_call_validated() {
    let Some(output) = check(&["--jobs", "2", "--share", "conformance"], true) else {
        return;
    };
    if !layer_is_missing(&output) {
        return assert_passed(&output);
    }
    if let Some(output) = check(&["--jobs", "2", "--share", "conformance"], false) {
        assert_passed(&output);
    }
}

/// Products on processors are written for their vectors: those for GPUs are asked for. Whether tokens may be rounded
/// makes no difference where the device has no products of bytes: those rows are the next test's.
#[test]
fn products_for_gpus_conform_too() {
    let mut command = program();
    command.env("HALYARD_VULKAN_GPU_KERNELS", "1");
    command.args(["--op", "linear", "--variant", "!quantized act allowed"]);
    command.args(["--jobs", "2", "--share", "conformance"]);
    if let Err(e) = halyard_vulkan::VulkanPlatform.devices() {
        println!("skipped: {}", e.message);
        return;
    }
    assert_passed(&command.output().expect("the program starts"));
}

/// Tokens are rounded to 8 bits where the device multiplies bytes fast, which no processor's driver says: there it is
/// asked for. The formats that have such kernels; `every_op_conforms_with_each_call_validated` has the others' rows.
#[test]
fn products_of_rounded_tokens_conform() {
    let mut command = program();
    command.env("HALYARD_VULKAN_GPU_KERNELS", "1");
    command.env("HALYARD_VULKAN_INT8_DOTS", "force");
    command.args(["--op", "linear", "--variant", "quantized act allowed"]);
    command.args(["--variant", "Q4_0|Q4_1|Q5_0|Q8_0|Q4K|Q6K"]);
    command.args(["--jobs", "2", "conformance"]);
    if let Err(e) = halyard_vulkan::VulkanPlatform.devices() {
        println!("skipped: {}", e.message);
        return;
    }
    assert_passed(&command.output().expect("the program starts"));
}

#[test]
fn recorded_steps_are_one_shot_steps() {
    if let Some(output) = check(
        &[
            "--share",
            "--replays",
            "200",
            "recording",
            "drafts",
            "hidden-states",
            "replays",
        ],
        false,
    ) {
        assert_passed(&output);
    }
}

/// All of them in one type: on a processor each of the others costs another minute, and conformance has every op in
/// them.
#[test]
fn models_give_what_hugging_face_gives() {
    let model = std::env::var("HALYARD_TEST_MODEL").ok();
    let mut arguments = vec!["--share", "--dtype", "f32", "goldens", "lora"];
    match &model {
        Some(model) => arguments.extend(["--model", model]),
        None => println!("skipped: HALYARD_TEST_MODEL names no model; the tiny ones run"),
    }
    if let Some(output) = check(&arguments, false) {
        assert_passed(&output);
    }
}

/// What GPUs compute in, where rounding between ops is a platform's own: norms of heads and branches, windows, two
/// ropes; and every format of GGUF. Honest rounding on the reference platform, on this one's kernels for processors and
/// for GPUs, and on XPU's is 0.051 and 0.043 to 0.047 from Hugging Face in the mean; one more in each norm makes
/// that 0.059 and 0.052, cutting off in place of rounding 0.070 and 0.071, and neither shows in the worst.
#[test]
fn models_in_bf16_are_rounded_where_ops_end_and_nowhere_else() {
    for (model, most) in [("gemma3", 0.055), ("gguf/llama-gguf.gguf", 0.051)] {
        let Some(output) = check(&["--dtype", "bf16", "--golden", model, "goldens"], false) else {
            return;
        };
        assert_passed(&output);
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = out
            .lines()
            .find(|line| line.starts_with("ok "))
            .expect("a model passed");
        let mean = line.rsplit(' ').next().and_then(|mean| mean.parse::<f64>().ok());
        assert!(mean.expect("the last word") < most, "more than {most}: {line}");
    }
}

#[test]
fn without_a_driver_it_is_said_what_to_install() {
    let nowhere = "/nowhere/driver.json";
    let output = program()
        .args(["--op", "add", "conformance"])
        .env("VK_DRIVER_FILES", nowhere)
        .env("VK_ICD_FILENAMES", nowhere)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("install"), "{errors}");
}
