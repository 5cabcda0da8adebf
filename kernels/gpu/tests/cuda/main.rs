//! Every kernel file compiles, under every definition set that its first comment lists as `// check: -DNAME=value ..`
//! (one set a line, an empty one for none): as CUDA (`nvrtc.rs`) and, but for what is one vendor's hardware, as HIP
//! (`hip.rs`).

mod hip;
mod nvrtc;
#[path = "../share/mod.rs"]
mod share;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use halyard_kernels_gpu::{Language, files};

/// A kernel file.
#[derive(Clone, Copy)]
struct File {
    name: &'static str,
    text: &'static str,
}

fn cuda_files() -> impl Iterator<Item = File> {
    files(Language::Cuda).map(|(name, text)| File { name, text })
}

/// The definition sets that a file's first comment lists as `// check: -DNAME=value ..` (one set a line, an empty one
/// for none).
fn definition_sets(source: &File) -> Vec<Vec<String>> {
    source
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("// check:"))
        .map(|defines| defines.split_whitespace().map(str::to_string).collect())
        .collect()
}

/// Whether a file under these definitions is for one vendor's hardware: it includes the header of its matrix units, and
/// no definition MATRIX=0 turns that part off.
fn needs_ptx(source: &File, defines: &[String]) -> bool {
    let headers = [
        "mma.cuh",
        "few_tokens.cuh",
        "groups_product.cuh",
        "groups_hopper.cuh",
        "attention_tile.cuh",
        "hopper.cuh",
        // For matrix units alone.
        "expert_list.cuh",
        "latent_work.cuh",
        "teams.cuh",
    ];
    let includes = |name: &&str| source.text.contains(&format!("#include \"{name}\""));
    headers.iter().any(includes) && !defines.iter().any(|define| define == "-DMATRIX=0")
}

/// Compiles every set that `wanted` takes for every architecture, of this test run's share; returns how many there are
/// in all shares, and what failed.
fn compile_all(
    architectures: &[&str],
    wanted: impl Fn(&File, &[String]) -> bool,
    compile: impl Fn(&File, &[String], &str) -> Result<(), String> + Sync,
) -> (usize, Vec<String>) {
    let mut jobs = Vec::new();
    for source in cuda_files() {
        for defines in definition_sets(&source).into_iter().filter(|d| wanted(&source, d)) {
            jobs.extend(
                architectures
                    .iter()
                    .map(|&architecture| (source, defines.clone(), architecture)),
            );
        }
    }
    let count = jobs.len();
    jobs.retain(|(source, defines, architecture)| {
        share::is_ours(&format!("{} {} {architecture}", source.name, defines.join(" ")))
    });
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((source, defines, architecture)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = compile(source, defines, architecture) {
                        let line = format!("{}.cu {} for {architecture}: {why}", source.name, defines.join(" "));
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(line);
                    }
                }
            });
        }
    });
    println!("{} of {count} compilations are of this run's share", jobs.len());
    (count, failures.into_inner().unwrap_or_else(|e| e.into_inner()))
}

#[test]
fn every_file_lists_its_definition_sets_and_known_headers() {
    let kernels = cuda_files().filter(|s| s.text.contains("__global__"));
    let (listed, unlisted): (Vec<File>, Vec<File>) = kernels.partition(|s| !definition_sets(s).is_empty());
    let unlisted: Vec<&str> = unlisted.iter().map(|source| source.name).collect();
    assert!(
        unlisted.is_empty(),
        "{unlisted:?}: list each definition set in the file's first comment, as in `// check: -DACT=bf16`"
    );
    let headers = Language::Cuda.headers();
    for source in listed {
        let sets = definition_sets(&source);
        let different: BTreeSet<_> = sets.iter().collect();
        assert_eq!(different.len(), sets.len(), "{}.cu lists a set twice", source.name);
        for define in sets.iter().flatten() {
            assert!(
                define.starts_with("-D"),
                "{}.cu: {define} is no definition",
                source.name
            );
        }
        assert!(
            source.text.contains("wait_for_previous()"),
            "{}.cu: launches are chained, and nothing in it waits",
            source.name
        );
        let included = source.text.lines().filter_map(|l| l.strip_prefix("#include \""));
        for name in included.map(|rest| rest.trim_end_matches('"')) {
            assert!(
                headers.iter().any(|(header, _)| *header == name),
                "{}.cu includes {name}, which is no header of the list",
                source.name
            );
        }
    }
}
