//! Runs kernels for AMD's GPUs on the processor, lane by lane, and compares their results with sums in double
//! precision. Needs no GPU, only a clang for this machine (the usual names, or the file that HALYARD_CLANG names);
//! without it the test says so and passes. `emulator.cpp` has the operand layouts from AMD's documents: these tests
//! check the kernels against the documents, not the documents against the hardware.

use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/emulated");
const KERNELS: &str = env!("CARGO_MANIFEST_DIR");

/// Where a test's programs lie.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulated-{name}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{program} {}: {}\n{text}", arguments.join(" "), output.status)),
    }
}

/// A compiler for this machine, or why there is none.
fn clang() -> Result<String, String> {
    let names: Vec<String> = match std::env::var("HALYARD_CLANG") {
        Ok(name) => vec![name],
        Err(_) => (17..=23)
            .rev()
            .map(|version| format!("clang-{version}"))
            .chain(["clang".to_string()])
            .collect(),
    };
    let probe = folder("probe");
    let object = probe.join("probe.o");
    let emulator = format!("{HERE}/emulator.cpp");
    let arguments = |object: &str| ["-x", "c++", "-std=c++17", "-c", &emulator, "-o", object].map(str::to_string);
    let arguments = arguments(&object.to_string_lossy());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let found = names.iter().find(|name| run(name, &arguments).is_ok()).cloned();
    found.ok_or_else(|| {
        format!(
            "no clang that compiles C++ for this machine: tried {}",
            names.join(", ")
        )
    })
}

/// Compiles a kernel file and its check under definitions and runs them: what they say.
fn check(clang: &str, kernel: &str, defines: &[&str]) -> Result<String, String> {
    let folder = folder(&format!("{kernel}{}", defines.join("")));
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (object, program) = (path("kernel.o"), path("program"));
    let [include, shared] = ["cuda/include", "shared"].map(|folder| format!("-I{KERNELS}/{folder}"));
    let common = ["-x", "c++", "-std=c++17", "-O1", "-w", &include, &shared];
    let (device, source) = (format!("{HERE}/device.h"), format!("{KERNELS}/cuda/ops/{kernel}.cu"));
    let of_kernel = ["-include", &device, "-c", &source, "-o", &object];
    run(clang, &[&common[..], defines, &of_kernel].concat())?;
    let (emulator, main) = (format!("{HERE}/emulator.cpp"), format!("{HERE}/{kernel}.cpp"));
    let of_program = [
        &emulator, &main, "-x", "none", &object, "-lstdc++", "-lm", "-o", &program,
    ];
    run(clang, &[&common[..], defines, &of_program].concat())?;
    let said = run(&program, &[])?;
    // Best effort: it lies in the build's temporary folder.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(said)
}

/// Checks a kernel under sets of definitions.
fn check_all(kernel: &str, sets: &[&[&str]]) {
    let clang = match clang() {
        Ok(clang) => clang,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    for defines in sets {
        match check(&clang, kernel, defines) {
            Ok(said) => println!("{kernel} {}: {said}", defines.join(" ")),
            Err(why) => panic!("{kernel} {}: {why}", defines.join(" ")),
        }
    }
}

#[test]
fn linears_of_many_tokens_are_right_on_matrix_units() {
    check_all(
        "linear_tiled",
        &[
            &["-DACT=bf16", "-DWEIGHT=bf16", "-DOUT=bf16", "-DEPILOGUE=0"],
            &["-DACT=f16", "-DWEIGHT=f16", "-DOUT=f32", "-DEPILOGUE=0"],
        ],
    );
}

/// Every kind of codes, and the smallest and the largest groups.
#[test]
fn linears_of_canonical_formats_are_right() {
    for format in [40, 43, 45, 48, 50, 55] {
        let (format, act) = (
            format!("-DFORMAT={format}"),
            if format % 2 == 0 { "bf16" } else { "f32" },
        );
        let (act, out) = (format!("-DACT={act}"), format!("-DOUT={act}"));
        check_all(
            "linear_quantized",
            &[&[&format, &act, &out, "-DMATRIX=0", "-DEPILOGUE=0"]],
        );
    }
}

#[test]
fn attention_of_prompts_is_right_on_matrix_units() {
    check_all(
        "attention_tiles",
        &[
            &["-DACT=bf16", "-DKV=bf16", "-DHEAD_DIM=128", "-DBLOCK=64"],
            &["-DACT=f16", "-DKV=f16", "-DHEAD_DIM=64", "-DBLOCK=16"],
            &["-DACT=bf16", "-DKV=bf16", "-DHEAD_DIM=80", "-DBLOCK=8"],
        ],
    );
}
