//! Every kernel file compiles to valid SPIR-V: each entry point under each definition set that the file's first comment
//! lists as `// check: entry .. -DNAME=value ..`, for subgroups of any size and of 32, or of the size given. Parameters
//! lie as launches write them. Needs no device: the compiler and the validator of the system (glslangValidator,
//! spirv-val); without them the test says so and passes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use halyard_kernels_gpu::{Language, files};

const LANGUAGE: Language = Language::Glsl;

/// Bytes of push constants that every device takes.
const PUSH_BYTES: usize = 128;

/// The entry points and definitions of each `// check:` line.
fn checks(text: &str) -> Vec<(Vec<&str>, Vec<&str>)> {
    text.lines()
        .filter_map(|line| line.strip_prefix("// check:"))
        .map(|words| words.split_whitespace().partition(|word| !word.starts_with('-')))
        .collect()
}

/// Runs a tool; its output where it fails.
fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

/// The reason why the test cannot run.
fn missing() -> Option<String> {
    ["glslangValidator", "spirv-val"]
        .into_iter()
        .find_map(|tool| run(tool, &["--version"]).err().map(|why| format!("{tool}: {why}")))
}

/// A folder with the headers in it, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn with_headers(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("halyard-glsl-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        for (name, text) in LANGUAGE.headers() {
            std::fs::write(path.join(name), text).expect("the temporary folder is writable");
        }
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Best effort: what is left over lies in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The extension that a file requires and the compiler does not know.
fn lacks(folder: &Path, text: &str) -> Option<String> {
    let required = text
        .lines()
        .filter_map(|line| line.strip_prefix("#extension ")?.strip_suffix(" : require"));
    required.map(str::to_string).find(|extension| {
        let probe = format!("#version 460\n#extension {extension} : require\nvoid main() {{}}\n");
        compile(folder, &probe, "probe", &[]).is_err()
    })
}

/// One entry point to SPIR-V, validated.
fn compile(folder: &Path, text: &str, entry: &str, defines: &[&str]) -> Result<(), String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("{entry}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let (source, image) = (folder.join(format!("{name}.comp")), folder.join(format!("{name}.spv")));
    std::fs::write(&source, text).map_err(|e| e.to_string())?;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let (source, image, include) = (path(&source), path(&image), format!("-I{}", path(folder)));
    let entry = format!("-DENTRY_{entry}");
    let mut arguments = vec!["-V", "--target-env", "vulkan1.2", &include, &entry];
    arguments.extend(defines);
    arguments.extend([source.as_str(), "-o", &image]);
    run("glslangValidator", &arguments)?;
    run(
        "spirv-val",
        &["--target-env", "vulkan1.2", "--scalar-block-layout", &image],
    )
}

#[test]
fn every_entry_point_compiles_as_it_is_used() {
    if let Some(why) = missing() {
        println!("skipped: {why}; apt packages glslang-tools and spirv-tools have them");
        return;
    }
    let folder = Folder::with_headers("all");
    let mut jobs = Vec::new();
    for (name, text) in files(LANGUAGE) {
        if let Some(extension) = lacks(&folder.0, text) {
            println!("skipped: {name}.comp, as this glslangValidator does not know {extension}");
            continue;
        }
        let talks = ["lanes.glsl", "logits.glsl"].iter().any(|header| text.contains(header));
        for (entries, defines) in checks(text) {
            // Elsewhere the size changes nothing, and where it is given it stays.
            let given = defines.iter().any(|define| define.starts_with("-DSUBGROUP"));
            let subgroups = if talks && !given {
                &[None, Some("-DSUBGROUP=32")][..]
            } else {
                &[None]
            };
            for entry in entries {
                for &subgroup in subgroups {
                    let defines: Vec<&str> = defines.iter().copied().chain(subgroup).collect();
                    jobs.push((name, text, entry, defines));
                }
            }
        }
    }
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((name, text, entry, defines)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = compile(&folder.0, text, entry, defines) {
                        let line = format!("{name}.comp, {entry} {}: {why}", defines.join(" "));
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(line);
                    }
                }
            });
        }
    });
    println!("{} compilations", jobs.len());
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_tools_report_a_planted_error() {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return;
    }
    let folder = Folder::with_headers("planted");
    let text = "#version 460\n#extension GL_GOOGLE_include_directive : enable\n#include \"common.glsl\"\n\
                void main() { Words(0ul).at[0] = missing; }\n";
    let why = compile(&folder.0, text, "planted", &[]).expect_err("`missing` is not declared");
    assert!(why.contains("missing"), "{why}");
}

/// Bytes of a parameter block: members such as `u64 x;` in order, each at its natural alignment.
fn block_bytes(members: &str) -> usize {
    members
        .split(';')
        .filter(|m| !m.trim().is_empty())
        .fold(0, |end, member| {
            let size = match member.split_whitespace().next() {
                Some("u64") => 8,
                Some("u32" | "i32" | "float") => 4,
                other => panic!("{other:?} is no type of a parameter, in `{member}`"),
            };
            usize::next_multiple_of(end, size) + size
        })
}

#[test]
fn parameters_beyond_the_push_constants_lie_in_memory() {
    let mut found = 0;
    for (name, text) in files(LANGUAGE) {
        for (start, _) in text.match_indices("\nPARAMETERS") {
            let (kind, rest) = text[start + 1..].split_once('(').expect("a block has members");
            let (members, _) = rest.split_once(";)").expect("a block ends");
            let bytes = block_bytes(members);
            assert_eq!(
                kind == "PARAMETERS_IN_MEMORY",
                bytes > PUSH_BYTES,
                "{name}.comp: {kind} with {bytes} bytes"
            );
            found += 1;
        }
        assert!(
            text.contains("\nPARAMETERS") && text.starts_with("#version 460\n"),
            "{name}.comp: a kernel has parameters, and names its language first"
        );
    }
    assert!(found > files(LANGUAGE).count(), "{found} blocks");
    assert_eq!(block_bytes("u64 a; u32 b; u64 c; float d"), 28);
}

#[test]
fn every_file_lists_its_entry_points_and_known_headers() {
    for (name, text) in files(LANGUAGE) {
        let checks = checks(text);
        let listed: BTreeSet<&str> = checks.iter().flat_map(|(entries, _)| entries.iter().copied()).collect();
        assert!(
            !listed.is_empty(),
            "{name}.comp: list its entry points, as in `// check: add -DACT=bf16`"
        );
        for part in text.split("ENTRY_").skip(1) {
            let entry = part
                .split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
                .next()
                .unwrap_or("");
            assert!(listed.contains(entry), "{name}.comp: {entry} is in no `// check:` line");
        }
    }
    let headers = LANGUAGE.headers();
    for (name, text) in files(LANGUAGE).chain(headers.iter().copied()) {
        let included = text.lines().filter_map(|line| line.strip_prefix("#include \""));
        for header in included.map(|rest| rest.trim_end_matches('"')) {
            assert!(
                headers.iter().any(|(known, _)| *known == header),
                "{name} includes {header}, which is no header of the list"
            );
        }
    }
}
