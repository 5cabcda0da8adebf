//! The rules that one file at a time must keep. Each takes a path (relative, with `/`) and a text, and knows where it
//! applies.

use crate::Finding;
use crate::code::{code_only, has_word, word_parts};
use crate::documents;

/// Longest file of code in lines.
pub const MAX_LINES: usize = 700;
/// Longest file of a model family in lines: longer means that the description lacks an option.
pub const MAX_FAMILY_LINES: usize = 200;

/// A rule.
pub type Rule = fn(&str, &str) -> Vec<Finding>;

/// Every rule with its name.
pub const RULES: &[(&str, Rule)] = &[
    ("vendor words", vendor_words),
    ("unsafe", unsafe_code),
    ("libraries are opened in one place", library_opening),
    ("environment", environment),
    ("purity of the scheduler", scheduler_purity),
    ("hosts and machine paths", hosts_and_paths),
    ("length", length),
    ("header", header),
    ("stubs", stubs),
    ("lints", lints),
    ("width of documents", documents::width),
    ("width of code", code_width),
];

/// Names of vendors and of their interfaces. The engine asks a capability, never an identity.
const VENDOR_WORDS: &[&str] = &[
    "adreno", "amd", "apple", "ascend", "coreml", "cublas", "cublaslt", "cuda", "cudarc", "cudnn", "directml",
    "geforce", "gaudi", "hip", "hipblas", "hiprtc", "hpu", "intel", "mali", "metal", "mps", "musa", "nccl", "npu",
    "nvcc", "nvidia", "nvrtc", "oneapi", "onednn", "opencl", "ptx", "qualcomm", "radeon", "rccl", "rocm", "sycl",
    "tpu", "vulkan", "xpu",
];

/// Where `unsafe` may stand, and why.
const UNSAFE_PLACES: &[(&str, &str)] = &[
    ("platform-api/src/abi.rs", "the tables"),
    ("platform-api/src/abi/", "the tables"),
    ("platform-api/src/export.rs", "the macro that defines the entry symbol"),
    (
        "platform-api/src/hooks/",
        "records: each one's wire form next to its fields (decision 0017)",
    ),
    ("platform-api/src/log.rs", "calls the host table's log function"),
    ("platform-api/tests/", "calls the tables as a foreign plugin would"),
    ("runtime/plugin-host/", "calls foreign code"),
    ("runtime/models/src/mapping.rs", "the one module that maps files"),
    ("server/src/http/trim.rs", "has the allocator give memory back"),
    ("server/src/low_priority.rs", "sets a thread's scheduling policy"),
    ("backends/", "devices and their drivers"),
    ("kernels/", "vector instructions"),
    ("tests/", "may do anything"),
];

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

/// Languages other than Rust that are written by hand: kernels, and the C of plugins and tests.
fn is_c_like(path: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    is_kernel(path) || ["c", "cc", "cpp", "h", "hpp"].contains(&extension)
}

/// Device code, by its language; in `kernels/` also what has the extensions of C.
fn is_kernel(path: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    let device = ["cu", "cuh", "hip", "comp", "glsl", "cl"].contains(&extension);
    device || path.starts_with("kernels/") && ["c", "cpp", "h"].contains(&extension)
}

/// Whether the path is compiled only for tests, benches or examples.
fn is_test_code(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.contains("/examples/") || path.contains("/benches/")
}

/// Lines with their numbers, from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

/// Another program's flags, by the names that it gave them. Nothing there decides anything.
const NAMES_OF_OTHERS: &str = "server/src/cli/vllm_flags/";

/// No vendor's name in the runtime or the server, comments and texts included.
pub fn vendor_words(path: &str, text: &str) -> Vec<Finding> {
    let applies = (path.starts_with("runtime/") || path.starts_with("server/")) && !path.starts_with(NAMES_OF_OTHERS);
    if !applies || !(is_rust(path) || path.ends_with(".toml")) {
        return Vec::new();
    }
    let found = numbered(text).filter_map(|(line, content)| {
        let parts = word_parts(content);
        // `rocm6` and `hip_x` count; `amd64` and `x86_64` are the processor architecture's names.
        let bare = |part: &String| part.trim_end_matches(|c: char| c.is_ascii_digit()).to_string();
        let word = parts
            .iter()
            .find(|part| *part != "amd64" && VENDOR_WORDS.contains(&bare(part).as_str()))?;
        let message =
            format!("the vendor word `{word}`: ask a capability of DeviceInfo; only a backend knows its vendor");
        Some(Finding::new(path, line, message))
    });
    found.collect()
}

/// No `unsafe` outside its places.
pub fn unsafe_code(path: &str, text: &str) -> Vec<Finding> {
    if !is_rust(path) || UNSAFE_PLACES.iter().any(|(place, _)| path.starts_with(place)) {
        return Vec::new();
    }
    let places: Vec<&str> = UNSAFE_PLACES.iter().map(|(place, _)| *place).collect();
    let message = format!("`unsafe`: write it safely, or move it to one of {}", places.join(", "));
    words_in_code(path, text, &["unsafe"], &message)
}

/// Lines whose code has one of `words` as an identifier.
fn words_in_code(path: &str, text: &str, words: &[&str], message: &str) -> Vec<Finding> {
    let code = code_only(text);
    let hit = |line: &str| words.iter().any(|word| has_word(line, word));
    let found = numbered(&code).filter(|(_, line)| hit(line));
    found.map(|(line, _)| Finding::new(path, line, message)).collect()
}

/// Lines whose code has one of `fragments`, before the unit tests at the file's end.
fn fragments_in_code(path: &str, text: &str, fragments: &[&str], message: &str) -> Vec<Finding> {
    let code = code_only(text);
    let shipped = numbered(&code).take_while(|(_, line)| !line.contains("#[cfg(test)]"));
    let found = shipped.filter_map(|(line, content)| {
        let fragment = fragments.iter().find(|fragment| content.contains(**fragment))?;
        Some(Finding::new(path, line, format!("`{fragment}`: {message}")))
    });
    found.collect()
}

/// Runtime, server and contract open no library but in the plugin host. (A backend may open its own driver; a kernel's
/// test its compiler.)
pub fn library_opening(path: &str, text: &str) -> Vec<Finding> {
    let elsewhere = ["runtime/", "server/", "platform-api/", "plugins/", "kernels/"];
    let applies = elsewhere.iter().any(|place| path.starts_with(place)) && !path.starts_with("runtime/plugin-host/");
    if !is_rust(path) || !applies || (path.starts_with("kernels/") && is_test_code(path)) {
        return Vec::new();
    }
    let message = "opens a library: load plugins through halyard-plugin-host";
    words_in_code(path, text, &["libloading", "dlopen", "dlsym"], message)
}

/// The environment is read in the server only: everything below is given its configuration.
pub fn environment(path: &str, text: &str) -> Vec<Finding> {
    let below = ["runtime/", "platform-api/src/", "kernels/", "plugins/"];
    if !is_rust(path) || is_test_code(path) || !below.iter().any(|place| path.starts_with(place)) {
        return Vec::new();
    }
    let fragments = ["env::var", "env::vars", "env::current_dir", "env::args", "env::set_var"];
    fragments_in_code(
        path,
        text,
        &fragments,
        "the environment is read in server/; take the value as an argument",
    )
}

/// The scheduler has no clock, no I/O, no thread, no device.
pub fn scheduler_purity(path: &str, text: &str) -> Vec<Finding> {
    if !is_rust(path) || !path.starts_with("runtime/scheduler/src/") {
        return Vec::new();
    }
    let fragments = [
        "Instant::now",
        "SystemTime",
        "std::fs",
        "std::io",
        "std::net",
        "std::thread",
        "std::process",
        "async fn",
        "println!",
    ];
    fragments_in_code(
        path,
        text,
        &fragments,
        "the scheduler is a pure state machine: the caller passes this in or does it",
    )
}

/// No host of a package registry and no path of the machine it was written on.
pub fn hosts_and_paths(path: &str, text: &str) -> Vec<Finding> {
    if path == "Cargo.lock" {
        return Vec::new();
    }
    // Written in pieces, or this file would be its own first finding.
    let hosts = [
        ["pypi", ".org"],
        ["crates", ".io/api"],
        ["registry", ".npmjs"],
        ["deb.debian", ".org"],
    ]
    .map(|p| p.concat());
    let folders = ["work", "farm", "root"].map(|name| format!("/{name}/"));
    let after = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c == '.');
    let found = numbered(text).filter_map(|(line, content)| {
        if let Some(host) = hosts.iter().find(|host| content.contains(*host)) {
            let message = format!("the registry host {host}: name packages, and let the client know its registry");
            return Some(Finding::new(path, line, message));
        }
        let folder = folders.iter().find(|folder| {
            content
                .match_indices(*folder)
                .any(|(at, _)| after(content[at + folder.len()..].chars().next()))
        })?;
        let message = format!("a path under {folder} of one machine: use a relative path or a variable");
        Some(Finding::new(path, line, message))
    });
    found.collect()
}

/// A file that a test writes; it is not read from end to end.
const GENERATED: &str = "platform-api/include/halyard.h";

/// Lines of Rust and of kernels are short enough for two files next to each other on a screen; rustfmt leaves comments,
/// texts and macros as they are. A line that tests read stays whole (`// check:`, `// matrix:`), and so does a raw
/// string, which nothing can break.
pub fn code_width(path: &str, text: &str) -> Vec<Finding> {
    if !is_kernel(path) && !is_rust(path) {
        return Vec::new();
    }
    let read_by_tests = |line: &str| line.starts_with("// check:") || line.starts_with("// matrix:");
    let is_raw = |line: &str| {
        ["r\"", "r#\"", "r##\""]
            .iter()
            .any(|start| line.contains(&format!(" {start}")))
    };
    let stays = |line: &str| read_by_tests(line) || is_raw(line);
    let wide = |line: &str| line.chars().count() > documents::MAX_COLUMNS && !stays(line);
    let message = format!("more than {} columns: break the line", documents::MAX_COLUMNS);
    numbered(text)
        .filter(|(_, line)| wide(line))
        .map(|(line, _)| Finding::new(path, line, message.as_str()))
        .collect()
}

/// Files stay readable in one sitting.
pub fn length(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    let family = path.starts_with("runtime/models/src/families/") && !path.ends_with("/mod.rs");
    let (limit, remedy) = if family {
        (
            MAX_FAMILY_LINES,
            "a family maps names; give the description the option that is missing",
        )
    } else {
        (MAX_LINES, "split it by idea")
    };
    if (is_rust(path) || is_c_like(path) && path != GENERATED) && lines > limit {
        return vec![Finding::new(
            path,
            0,
            format!("{lines} lines, more than {limit}: {remedy}"),
        )];
    }
    Vec::new()
}

/// Every Rust file says its idea first.
pub fn header(path: &str, text: &str) -> Vec<Finding> {
    let first = text
        .lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
    if is_rust(path) && !first.is_some_and(|line| line.starts_with("//!")) {
        let message = "does not start with `//!`: say what the file owns and what it must never do";
        return vec![Finding::new(path, 1, message)];
    }
    Vec::new()
}

/// Nothing unfinished and no test switched off, in comments neither.
pub fn stubs(path: &str, text: &str) -> Vec<Finding> {
    if !is_rust(path) {
        return Vec::new();
    }
    let words = [["to", "do!("], ["unimpl", "emented!("], ["FIX", "ME"], ["#[ign", "ore"]].map(|p| p.concat());
    let found = numbered(text).filter_map(|(line, content)| {
        let word = words.iter().find(|word| content.contains(*word))?;
        Some(Finding::new(
            path,
            line,
            format!("`{word}`: finish it, or say in the issue what is missing and refuse clearly here"),
        ))
    });
    found.collect()
}

/// Every package inherits the workspace's lints.
pub fn lints(path: &str, text: &str) -> Vec<Finding> {
    if !path.ends_with("/Cargo.toml") {
        return Vec::new();
    }
    let manifest: toml::Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(path, 0, format!("is not TOML: {error}"))],
    };
    let inherits = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"))
        .and_then(toml::Value::as_bool);
    if manifest.contains_key("package") && inherits != Some(true) {
        return vec![Finding::new(
            path,
            0,
            "add `[lints] workspace = true`: every package keeps the workspace's lints",
        )];
    }
    Vec::new()
}
