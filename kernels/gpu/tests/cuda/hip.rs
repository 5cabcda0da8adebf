//! Every kernel file that is not for one vendor's matrix units compiles as HIP for AMD GPUs, under each of its
//! definition sets: with waves of 64 lanes (gfx90a, gfx942) and of 32 (gfx1100). Needs neither a GPU nor ROCm, only a
//! clang with the AMDGPU target: one of the usual names, or the file that HALYARD_CLANG names; without it the test says
//! so and passes.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::{compile_all, cuda_files, needs_ptx};

const ARCHITECTURES: [&str; 3] = ["gfx90a", "gfx942", "gfx1100"];

/// A compiler that knows the target, or why there is none.
fn clang() -> Result<String, String> {
    let names: Vec<String> = match std::env::var("HALYARD_CLANG") {
        Ok(name) => vec![name],
        Err(_) => (17..=23)
            .rev()
            .map(|version| format!("clang-{version}"))
            .chain(["clang".to_string(), "/opt/rocm/llvm/bin/clang".to_string()])
            .collect(),
    };
    let usable = |name: &String| {
        let probe = "__global__ void k() {}".replace("__global__", "__attribute__((global))");
        run(name, &probe, &[], "gfx942").is_ok()
    };
    let found = names.iter().find(|name| usable(name)).cloned();
    found.ok_or_else(|| {
        format!(
            "no clang that compiles for gfx942: tried {}; install clang-19, or name one in HALYARD_CLANG",
            names.join(", ")
        )
    })
}

/// Compiles a text to an object, which is thrown away: only the assembler tells whether inline assembly is of this
/// machine.
fn run(clang: &str, text: &str, defines: &[String], architecture: &str) -> Result<(), String> {
    let mut child = Command::new(clang)
        .args([
            "-x",
            "hip",
            "--cuda-device-only",
            "-nogpulib",
            "-nogpuinc",
            "-std=c++17",
            "-O1",
            "-S",
        ])
        .args([
            "-Xclang",
            "-emit-obj",
            "-Wall",
            "-Werror",
            "-Wno-unused",
            "-o",
            "/dev/null",
        ])
        .arg(format!("--offload-arch={architecture}"))
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/cuda/include"))
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/shared"))
        .args(defines)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{clang}: {e}"))?;
    // A compiler that does not read its input says why on its own.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|e| format!("{clang}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn every_portable_kernel_file_compiles_as_hip() {
    let clang = match clang() {
        Ok(clang) => clang,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let (count, failures) = compile_all(
        &ARCHITECTURES,
        |source, defines| !needs_ptx(source, defines),
        |source, defines, architecture| run(&clang, source.text, defines, architecture),
    );
    println!("{clang}: {count} compilations for {}", ARCHITECTURES.join(", "));
    assert!(count >= 3 * 100, "only {count} sets were found");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn words_of_one_vendor_are_refused() {
    let Ok(clang) = clang() else {
        println!("skipped: no clang that compiles for gfx942");
        return;
    };
    let planted = |body: &str| {
        let text = format!("#include \"common.cuh\"\nextern \"C\" __global__ void k(u32 *x) {{ {body} }}\n");
        run(&clang, &text, &[], "gfx942")
    };
    planted("x[0] = __shfl_xor_sync(~0u, x[threadIdx.x], 1);").expect("a shuffle is for all");
    let why = planted("asm volatile(\"mov.u32 %0, 1;\" : \"=r\"(x[0]));").expect_err("PTX is not");
    assert!(why.contains("mov.u32"), "{why}");
    let why = planted("x[0] = __nanosleep(1);").expect_err("nor is a function that HIP lacks");
    assert!(why.contains("__nanosleep"), "{why}");
}

#[test]
fn only_matrix_units_are_left_out() {
    let left_out = |name: &str, defines: &[&str]| {
        let defines: Vec<String> = defines.iter().map(|d| (*d).to_string()).collect();
        let source = cuda_files().find(|s| s.name == name).expect("a file");
        needs_ptx(&source, &defines)
    };
    assert!(
        left_out("linear_small", &[])
            && left_out("linear_once", &[])
            && left_out("attention_decode", &[])
            && left_out("attention_prefill", &[])
    );
    assert!(left_out("linear_quantized", &["-DMATRIX=1"]) && !left_out("linear_quantized", &["-DMATRIX=0"]));
    assert!(!left_out("linear_tiled", &[]) && !left_out("attention_plain", &[]) && !left_out("all_reduce", &[]));
}
