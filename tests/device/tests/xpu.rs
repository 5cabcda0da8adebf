//! The XPU platform on processors by OpenCL (pocl, and Intel's own runtime where HALYARD_TEST_INTEL_OPENCL names its
//! folder), loaded from its library and run by the program that checks devices. Skipped with the reason where there is
//! no runtime.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use halyard_platform_api::{Platform, Status};

/// An OpenCL runtime: the variables that choose it.
struct Runtime {
    name: &'static str,
    env: Vec<(&'static str, PathBuf)>,
}

const INTEL: &str = "Intel's OpenCL";

/// Rows of products of whole numbers over tokens rounded to 8 bits: the formats that have such kernels. What others do
/// where tokens may be rounded is what they do elsewhere, and `every_op_conforms` has those rows.
const INT8: [&str; 4] = [
    "--variant",
    "quantized act allowed",
    "--variant",
    "Q4_0|Q4_1|Q5_0|Q8_0|Q4K|Q6K",
];

/// The system's, and Intel's by itself.
fn runtimes() -> Vec<Runtime> {
    let mut runtimes = Vec::new();
    match halyard_xpu::XpuPlatform.devices() {
        Ok(_) => runtimes.push(Runtime {
            name: "the system's OpenCL",
            env: Vec::new(),
        }),
        Err(e) => {
            assert_eq!(e.status, Status::Unavailable, "{e}");
            println!("skipped: {}", e.message);
        }
    }
    match std::env::var_os("HALYARD_TEST_INTEL_OPENCL").map(PathBuf::from) {
        Some(folder) => runtimes.push(Runtime {
            name: INTEL,
            env: vec![
                ("OCL_ICD_FILENAMES", folder.join("libintelocl.so")),
                // Nothing else: the folder holds no list of runtimes.
                ("OCL_ICD_VENDORS", folder.clone()),
                ("HALYARD_OPENCL_LIBRARY_PATH", folder.clone()),
                ("LD_LIBRARY_PATH", folder),
            ],
        }),
        None => println!("skipped: HALYARD_TEST_INTEL_OPENCL names no folder with Intel's OpenCL runtime"),
    }
    runtimes
}

/// The folder of this test's own binary, where cargo puts the library too.
fn library_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.parent().expect("in a folder").to_path_buf()
}

/// The program that checks devices, on the XPU platform.
fn program(library: &Path) -> Command {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models");
    let mut command = Command::new(env!("CARGO_BIN_EXE_halyard-device-check"));
    command.args(["--platform", "xpu", "--plugin"]).arg(library);
    command.arg("--fixtures").arg(fixtures);
    command
}

/// Runs checks on every runtime; all must pass.
fn check(arguments: &[&str]) {
    check_with(arguments, &[]);
}

fn check_with(arguments: &[&str], variables: &[(&str, &str)]) {
    for runtime in runtimes() {
        run(&runtime, arguments, variables);
    }
}

/// Runs checks on a runtime; all must pass. What was printed, and then what was logged.
fn run(runtime: &Runtime, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = program(&library_folder().join("libhalyard_xpu.so"));
    command.args(arguments).envs(runtime.env.iter().cloned());
    command.envs(variables.iter().copied());
    let output = command.output().expect("the program starts");
    let (out, errors) = text(&output);
    assert!(
        output.status.success(),
        "{}: {}\n{out}\n{errors}",
        runtime.name,
        output.status
    );
    for line in out.lines().filter(|line| line.starts_with("skipped")) {
        println!("{}: {line}", runtime.name);
    }
    let last = out.lines().last().unwrap_or_default();
    assert!(last.contains(" passed, 0 failed, "), "{out}");
    println!("{}: {last}", runtime.name);
    out + &errors
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_op_conforms() {
    check(&["--jobs", "2", "--share", "conformance"]);
}

/// By the runtime's own instruction where it has one, by plain operations elsewhere.
#[test]
fn products_of_rounded_tokens_conform() {
    let rounding = [("HALYARD_OPENCL_INT8_DOTS", "force")];
    let arguments = ["--op", "linear", "--jobs", "2", "conformance"];
    check_with(&[&INT8[..], &arguments].concat(), &rounding);
}

/// Products of bytes, one of them in every type; of five parts one a commit, as the compiler takes ten seconds for each
/// row. (No part would be all rows: an empty filter.)
fn dots_of_this_run() -> String {
    let parts = [
        "Q4_0 x F32",
        "Q4_1 x ",
        "Q5_0 x F32|Q8_0 x F32",
        "Q4K x F32",
        "Q6K x F32",
    ];
    of_this_run(&parts).copied().collect::<Vec<_>>().join("|")
}

/// The share of a list that `HALYARD_TEST_SHARE` names: at least one of them, each one in some run.
fn of_this_run<T>(list: &[T]) -> impl Iterator<Item = &T> {
    let (part, of) = halyard_conformance::Options::of_test_run().share;
    list.iter().skip(part % list.len()).step_by(of.min(list.len()))
}

/// What GPUs run, on the one runtime at hand that has subgroups of a required size: processors' kernels do not use
/// them.
#[test]
fn kernels_with_subgroups_conform() {
    let dots = dots_of_this_run();
    let int8 = [&["--op", "linear", "--variant", &dots][..], &INT8].concat();
    for (size, arguments) in [
        ("16", &["--op", "rms_norm"][..]),
        ("32", &["--op", "rms_norm"][..]),
        ("16", &["--op", "argmax"][..]),
        ("32", &["--op", "argmax"][..]),
        ("16", &["--share", "--op", "attention", "--variant", "F32, kv F32"][..]),
        ("16", &["--op", "linear", "--variant", "Q4_1 x F32"][..]),
        ("16", &["--op", "linear", "--variant", "U4G128 x F32"][..]),
        ("32", &int8),
    ] {
        let variables = [
            ("HALYARD_OPENCL_GPU_KERNELS", "1"),
            ("HALYARD_OPENCL_SUBGROUP", size),
            ("HALYARD_OPENCL_INT8_DOTS", "force"),
        ];
        let intels = runtimes().into_iter().filter(|runtime| runtime.name == INTEL);
        let arguments = [arguments, &["--jobs", "2", "conformance"]].concat();
        let Some(out) = intels.map(|intel| run(&intel, &arguments, &variables)).next() else {
            return;
        };
        assert!(out.contains(&format!("subgroups of {size}")), "{out}");
    }
}

/// Kernels on matrix units with their products by plain operations, in the subgroups of either kind of GPU that has
/// such units. (What the compiler for those GPUs makes of them: kernels/gpu/tests/intel.rs.) One row a commit, as
/// compiling one takes up to half a minute.
#[test]
fn kernels_on_matrix_units_conform() {
    let rows = [
        ("8", &["--op", "linear", "--variant", "BF16 x BF16"][..]),
        ("16", &["--op", "linear", "--variant", "F16 x F16"][..]),
        ("8", &["--op", "linear", "--variant", "Q4_1 x F16"][..]),
        (
            "8",
            &[
                "--op",
                "attention",
                "--variant",
                "BF16, kv BF16 gqa 3:1",
                "--variant",
                "block 64",
            ][..],
        ),
        (
            "16",
            &[
                "--op",
                "attention",
                "--variant",
                "F16, kv F16 sinks",
                "--variant",
                "block 16",
            ][..],
        ),
        (
            "8",
            &[
                "--op",
                "attention",
                "--variant",
                "F16, kv F16 window",
                "--variant",
                "block 8",
            ][..],
        ),
    ];
    for &(columns, arguments) in of_this_run(&rows) {
        let intels = runtimes().into_iter().filter(|runtime| runtime.name == INTEL);
        let arguments = [arguments, &["--jobs", "2", "conformance"]].concat();
        let variables = [("HALYARD_OPENCL_MATRIX", columns)];
        let Some(out) = intels.map(|intel| run(&intel, &arguments, &variables)).next() else {
            return;
        };
        assert!(out.contains(&format!("plain operations of {columns} columns")), "{out}");
        assert!(!out.contains("\n0 rows, "), "nothing ran: {out}");
        // Kernels that fail their test at load are not used, and those that are used instead conform as well.
        let op = if arguments.contains(&"attention") {
            "attention of "
        } else {
            "products of "
        };
        let tested = |line: &&str| line.contains(op) && line.contains(" on matrix units");
        let lines: Vec<&str> = out.lines().filter(tested).collect();
        let all_right = lines.iter().all(|line| line.contains("tested, and right"));
        assert!(all_right && !lines.is_empty(), "{lines:#?}");
    }
}

#[test]
fn recorded_steps_are_one_shot_steps() {
    check(&[
        "--share",
        "--replays",
        "200",
        "recording",
        "drafts",
        "hidden-states",
        "replays",
    ]);
}

#[test]
fn models_give_what_hugging_face_gives() {
    let model = std::env::var("HALYARD_TEST_MODEL").ok();
    // What processors compute in by preference; the other types take as long again.
    let mut arguments = vec!["--share", "--dtype", "f32", "goldens", "lora"];
    match &model {
        Some(model) => arguments.extend(["--model", model]),
        None => println!("skipped: HALYARD_TEST_MODEL names no model; the tiny ones run"),
    }
    check(&arguments);
}

/// The errors on a machine without a loader library, without a runtime, or with a foreign library of that name.
#[test]
fn what_is_missing_is_named_with_its_remedy() {
    let folder = std::env::temp_dir().join(format!("halyard-no-opencl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let library = library_folder().join("libhalyard_xpu.so");
    let message_with = |env: &[(&str, &Path)]| {
        let mut command = program(&library);
        command.args(["--op", "copy", "conformance"]).envs(env.iter().copied());
        let output = command.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{:?}", text(&output));
        text(&output).1
    };

    // A file of the loader library's name that is no library.
    std::fs::write(folder.join("libOpenCL.so.1"), b"not a library").expect("written");
    let empty = folder.join("empty");
    std::fs::create_dir_all(&empty).expect("a folder");
    let has_loader =
        !matches!(halyard_xpu::XpuPlatform.devices(), Err(e) if e.message.contains("no OpenCL loader library"));
    if has_loader {
        // A loader library that knows no runtime.
        let message = message_with(&[("OCL_ICD_VENDORS", &empty)]);
        assert!(
            message.contains("knows no runtime") && message.contains("intel-opencl-icd"),
            "{message}"
        );
    } else {
        let message = message_with(&[("HALYARD_OPENCL_LIBRARY_PATH", &folder)]);
        assert!(
            message.contains("libOpenCL.so.1") && message.contains("ocl-icd-libopencl1"),
            "{message}"
        );
    }
    // A library without OpenCL's functions.
    std::fs::copy(&library, folder.join("libOpenCL.so.1")).expect("copied");
    let message = message_with(&[("HALYARD_OPENCL_LIBRARY_PATH", &folder)]);
    assert!(
        message.contains("lacks clGetPlatformIDs") && message.contains("newer loader library"),
        "{message}"
    );
    std::fs::remove_dir_all(&folder).expect("ours");
}
