//! Runs kernels for AMD's GPUs, and some of NVIDIA's alone, on the processor, lane by lane, and compares their results
//! with sums in double precision. `nvidia/` has headers in place of those with PTX, for the kernels of latent
//! attention. Needs no GPU, only a clang for this machine (the usual names, or the file that HALYARD_CLANG names);
//! without it the test says so and passes. `emulator.cpp` has the operand layouts from both vendors' documents: these
//! tests check the kernels against the documents, not the documents against the hardware.

#[path = "../share/mod.rs"]
mod share;

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
    // What compilers may take for impossible, and a device's does: traps.
    let undefined = [
        "-fsanitize=signed-integer-overflow,shift-exponent",
        "-fsanitize-trap=all",
    ];
    let of_kernel = ["-include", &device, "-c", &source, "-o", &object];
    run(clang, &[&common[..], defines, &undefined, &of_kernel].concat())?;
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

/// Checks a kernel under those sets of definitions that are of this test run's share.
fn check_all(kernel: &str, sets: &[&[&str]]) {
    let clang = match clang() {
        Ok(clang) => clang,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let of_share = |defines: &&&[&str]| share::is_ours(&format!("{kernel} {}", defines.join(" ")));
    for defines in sets.iter().filter(of_share) {
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

/// Bias and residual around a library's product.
#[test]
fn what_follows_a_product_is_right() {
    check_all(
        "linear_plain",
        &[
            &["-DACT=bf16", "-DWEIGHT=bf16", "-DOUT=bf16", "-DEPILOGUE=0"],
            &["-DACT=f16", "-DWEIGHT=f16", "-DOUT=f32", "-DEPILOGUE=0"],
        ],
    );
}

/// GGUF's formats, and of canonical ones every kind of codes, and the smallest and the largest groups.
#[test]
fn linears_of_formats_in_blocks_are_right() {
    for format in [3, 4, 5, 6, 7, 8, 40, 43, 45, 48, 50, 55] {
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

/// Of whole numbers, four and eight bits, and of small floats; groups with more than one scale a chunk, and with one.
#[test]
fn products_over_groups_are_right_on_matrix_units() {
    let sets = |kernel: &str, sets: &[(u32, &str)], shapes: &str| {
        for (format, act) in sets {
            let of = format!("-DEMULATED_WAVE=32 -DFORMAT={format} -DACT={act} -DOUT={act} -DEPILOGUE=0 {shapes}");
            check_all(kernel, &[&of.split(' ').collect::<Vec<_>>()]);
        }
    };
    let few = "linear_groups_small";
    let formats = [
        (43, "bf16"),
        (40, "bf16"),
        (42, "f16"),
        (45, "bf16"),
        (47, "f16"),
        (48, "f16"),
        (49, "bf16"),
    ];
    let plain = "-DTILES=1 -DMOST=8 -DWARPS=3 -DSPAN=2 -DSTAGES=2 -DMIN_BLOCKS=1 -DGATE=0 -DNORM=0";
    sets(few, &formats, plain);
    sets(few, &[(55, "bf16"), (53, "f16")], plain);
    let of_files = [
        (3, "bf16"),
        (4, "f16"),
        (5, "bf16"),
        (6, "bf16"),
        (7, "bf16"),
        (7, "f16"),
        (8, "bf16"),
    ];
    sets(few, &of_files, plain);
    let gated = "-DTILES=1 -DMOST=1 -DWARPS=2 -DSPAN=4 -DSTAGES=3 -DMIN_BLOCKS=1 -DGATE=1 -DNORM=1";
    sets(few, &[(43, "bf16"), (48, "bf16"), (7, "bf16")], gated);
    let wide = "-DTILES=2 -DMOST=16 -DWARPS=4 -DSPAN=1 -DSTAGES=4 -DMIN_BLOCKS=1 -DGATE=0 -DNORM=1";
    sets(few, &[(43, "bf16")], wide);
    // By Hopper's copy engine.
    for shape in [plain, gated, wide] {
        sets(
            few,
            &[(43, "bf16")],
            &format!("{shape} -DLATE=1 -D__CUDA_ARCH_FEAT_SM90_ALL"),
        );
    }
    sets(few, &[(47, "f16")], &format!("{plain} -D__CUDA_ARCH_FEAT_SM90_ALL"));
    let tile = "-DTOKENS=32 -DROW_WARPS=2 -DTOKEN_WARPS=2 -DSTAGES=3 -DMIN_BLOCKS=1";
    sets("linear_groups_tile", &formats, tile);
    sets("linear_groups_tile", &[(55, "bf16")], tile);
    sets("linear_groups_tile", &of_files, tile);
    let one = "-DTOKENS=16 -DROW_WARPS=2 -DTOKEN_WARPS=1 -DSTAGES=2 -DMIN_BLOCKS=1";
    sets("linear_groups_tile", &[(43, "bf16")], one);
    let hopper = "-DTOKENS=32 -DGROUPS=1 -DSTAGES=3 -D__CUDA_ARCH_FEAT_SM90_ALL";
    let few_scales = [
        (43, "bf16"),
        (42, "f16"),
        (45, "bf16"),
        (47, "f16"),
        (49, "bf16"),
        (55, "bf16"),
    ];
    sets("linear_groups_hopper", &few_scales, hopper);
    sets("linear_groups_hopper", &of_files, hopper);
    let more = "-DTOKENS=64 -DGROUPS=2 -DSTAGES=2 -D__CUDA_ARCH_FEAT_SM90_ALL";
    sets("linear_groups_hopper", &[(43, "f16")], more);
}

/// Rows and tokens as a library's product of 128 depths a scale takes them.
#[test]
fn codes_and_scales_stand_where_the_library_reads_them() {
    let of = |act| [act, "-DKEPT=1", "-DNORM=0", "-DRECORDS=1"];
    check_all("linear_scaled_tokens", &[&of("-DACT=bf16"), &of("-DACT=f16")]);
}

/// Of the formats that checkpoints of experts have, and one with fine groups and minima.
#[test]
fn products_of_experts_over_groups_are_right_on_matrix_units() {
    let sets = |kernel: &str, sets: &[(u32, &str, u32)], shapes: &str| {
        for (format, act, gate) in sets {
            let of = format!("-DEMULATED_WAVE=32 -DFORMAT={format} -DACT={act} -DGATE={gate} {shapes}");
            check_all(kernel, &[&of.split(' ').collect::<Vec<_>>()]);
        }
    };
    let few = "-DTILES=1 -DWARPS=2 -DROW_TILES=2 -DDEPTH=1";
    sets(
        "moe_groups_few",
        &[
            (43, "bf16", 1),
            (48, "bf16", 0),
            (55, "bf16", 1),
            (7, "bf16", 1),
            (8, "bf16", 0),
        ],
        few,
    );
    let more = "-DTILES=2 -DWARPS=3 -DROW_TILES=1 -DDEPTH=2";
    sets(
        "moe_groups_few",
        &[(49, "bf16", 1), (40, "f16", 0), (47, "f16", 1)],
        more,
    );
    let bounds = "-DGATE_LIMIT=2e0f -DGATE_ALPHA=1.702e0f -DGATE_OFFSET=1e0f";
    sets("moe_groups_few", &[(49, "bf16", 4)], &format!("{few} {bounds}"));
    let hopper = "-DTOKENS=32 -DGROUPS=1 -DSTAGES=3 -D__CUDA_ARCH_FEAT_SM90_ALL";
    sets("moe_groups_hopper", &[(49, "bf16", 4)], &format!("{hopper} {bounds}"));
    let formats = [(43, "bf16", 1), (49, "bf16", 1), (48, "bf16", 0), (55, "bf16", 0)];
    sets("moe_groups_hopper", &formats, hopper);
    sets(
        "moe_groups_hopper",
        &[(7, "bf16", 1), (8, "bf16", 0), (6, "f16", 1)],
        hopper,
    );
    let act = |format| if format % 2 == 0 { "f16" } else { "bf16" };
    let all = [3, 4, 5, 6, 7, 8, 40, 43, 47, 48, 55].map(|format| (format, act(format), 0));
    sets("moe_unpack", &all, "-DPARTS=2");
    let two = "-DTOKENS=32 -DGROUPS=2 -DSTAGES=2 -D__CUDA_ARCH_FEAT_SM90_ALL";
    sets("moe_groups_hopper", &[(43, "f16", 0), (55, "bf16", 1)], two);
}

/// Two and more ranks, as processes: what they send each other, and what they leave behind.
#[test]
fn sums_over_ranks_are_those_in_rank_order() {
    check_all(
        "all_reduce",
        &[
            &["-DACT=bf16", "-DRANKS=2"],
            &["-DACT=f16", "-DRANKS=3"],
            &["-DACT=f32", "-DRANKS=8"],
        ],
    );
}

/// Heads of whole rows and of parts of one, turned as a whole and in runs.
#[test]
fn codes_of_keys_and_values_are_those_of_the_contract() {
    check_all(
        "kv_write",
        &[
            &["-DACT=bf16", "-DKV=code8", "-DHEAD_DIM=128", "-DBLOCK=64"],
            &["-DACT=f32", "-DKV=code8", "-DHEAD_DIM=20", "-DBLOCK=8"],
            &["-DACT=bf16", "-DKV=code4", "-DHEAD_DIM=128", "-DBLOCK=64"],
            &["-DACT=f32", "-DKV=code4", "-DHEAD_DIM=80", "-DBLOCK=16"],
            &["-DACT=f16", "-DKV=code4", "-DHEAD_DIM=64", "-DBLOCK=8"],
        ],
    );
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

/// Compiles latent attention's kernels under definitions, with the headers of `nvidia/` beside them, and runs them.
fn check_latent(clang: &str, kernel: &str, rows: u32, defines: &[&str]) -> Result<String, String> {
    let folder = folder(&format!("{kernel}{}", defines.join("")));
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let nvidia = std::fs::read_dir(format!("{HERE}/nvidia")).expect("its folder");
    let stand_ins = nvidia.map(|entry| entry.expect("an entry").path());
    let own = [
        "include/latent_work.cuh".to_string(),
        format!("ops/{kernel}.cu"),
        "ops/latent_join.cu".to_string(),
    ];
    let own = own.map(|file| PathBuf::from(format!("{KERNELS}/cuda/{file}")));
    for file in stand_ins.chain(own) {
        std::fs::copy(&file, folder.join(file.file_name().expect("a file"))).expect("a copy");
    }
    let common = ["-x", "c++", "-std=c++17", "-O2", "-w"];
    let (rows, name) = (format!("-DROWS={rows}"), format!("-DKERNEL={kernel}"));
    let compile = |file: &str, object: &str, more: &[&str]| {
        let files = ["-c", file, "-o", object];
        run(clang, &[&common[..], defines, more, &files].concat())
    };
    let objects = ["kernel.o", "join.o", "check.o", "emulator.o"].map(path);
    // The kernels' shared memory is the emulator's; what a join's threads share is what all share, as one block runs.
    compile(&path(&format!("{kernel}.cu")), &objects[0], &["-D__shared__="])?;
    compile(&path("latent_join.cu"), &objects[1], &["-D__shared__=static", &rows])?;
    compile(&path("latent.cpp"), &objects[2], &[&rows, &name])?;
    compile(&path("emulator32.cpp"), &objects[3], &[])?;
    let program = path("program");
    let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
    run(clang, &[&objects[..], &["-lstdc++", "-lm", "-o", &program]].concat())?;
    let said = run(&program, &[])?;
    // Best effort: it lies in the build's temporary folder.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(said)
}

/// Both kernels, with `mma` and with `wgmma`, for small and for the usual latents.
#[test]
fn latent_attention_is_right_on_matrix_units() {
    let clang = match clang() {
        Ok(clang) => clang,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let usual = ["-DACT=bf16", "-DLATENT=512", "-DROPE=64", "-DBLOCK=64"];
    let small = ["-DACT=f16", "-DLATENT=128", "-DROPE=32", "-DBLOCK=16"];
    let hopper: &[&str] = &["-DKEYS=64", "-D__CUDA_ARCH_FEAT_SM90_ALL"];
    for (kernel, rows, common, more) in [
        ("latent_decode", 16, usual, &["-DSTAGES=5"][..]),
        ("latent_decode", 16, small, &["-DSTAGES=2"]),
        ("latent_tiles", 64, usual, hopper),
        ("latent_tiles", 64, usual, &["-DKEYS=32"]),
        ("latent_tiles", 64, small, &["-DKEYS=64"]),
    ] {
        let defines = [&common[..], more].concat();
        if !share::is_ours(&format!("{kernel} {}", defines.join(" "))) {
            continue;
        }
        match check_latent(&clang, kernel, rows, &defines) {
            Ok(said) => println!("{kernel} {}: {said}", defines.join(" ")),
            Err(why) => panic!("{kernel} {}: {why}", defines.join(" ")),
        }
    }
}
