//! The map: which package may use which, and the few external crates whose place is fixed. Read from `cargo metadata`.
//!
//! Only normal and build dependencies are arrows; dependencies of tests are free.

use serde_json::Value;

use crate::Finding;

/// A package of the workspace and what it uses.
#[derive(Clone, Debug)]
pub struct Package {
    /// Name.
    pub name: String,
    /// Folder relative to the root.
    pub folder: String,
    /// Folders of the workspace packages that it uses.
    pub uses: Vec<String>,
    /// External crates that it uses.
    pub external: Vec<String>,
}

/// Every permitted arrow and why it is there. A folder ending in `/` stands for all packages in it.
pub const ARROWS: &[(&str, &str, &str)] = &[
    (
        "runtime/plugin-host",
        "platform-api",
        "implements its traits over its tables",
    ),
    (
        "runtime/hooks",
        "platform-api",
        "delivers its records to its stat loggers",
    ),
    ("runtime/engine", "runtime/hooks", "hands it records"),
    ("server", "runtime/hooks", "starts sinks, shows and reloads them"),
    (
        "server",
        "plugins/stat-logger-prometheus",
        "links what /metrics shows (decision 0018)",
    ),
    (
        "server",
        "plugins/stat-logger-log-line",
        "links the line in the log (decision 0018)",
    ),
    ("runtime/models", "platform-api", "programs are lists of its ops"),
    ("runtime/text", "platform-api", "may name its types"),
    ("runtime/scheduler", "platform-api", "may name its types"),
    ("runtime/runner", "platform-api", "drives devices through its traits"),
    ("runtime/runner", "runtime/scheduler", "runs the steps that it plans"),
    ("runtime/runner", "runtime/models", "descriptions, programs, weights"),
    (
        "runtime/engine",
        "runtime/runner",
        "a model on a device, its steps and their results",
    ),
    ("runtime/engine", "platform-api", "names devices, writes records"),
    ("runtime/engine", "runtime/scheduler", "plans steps"),
    (
        "runtime/engine",
        "runtime/models",
        "opened files, generation defaults, adapters",
    ),
    ("runtime/engine", "runtime/text", "tokenizer, stop strings"),
    ("runtime/grammar", "runtime/text", "the bytes of tokens"),
    ("runtime/engine", "runtime/grammar", "guides of structured output"),
    ("runtime/request-hooks", "platform-api", "calls its hooks"),
    ("server", "runtime/engine", "serves it"),
    (
        "server",
        "runtime/request-hooks",
        "IO processors and LoRA resolvers with their deadlines",
    ),
    (
        "server",
        "runtime/plugin-host",
        "finds plugins, lists and inspects them",
    ),
    ("server", "platform-api", "DType and DeviceInfo in flags and reports"),
    (
        "server",
        "runtime/models",
        "resolves --model to ModelFiles before the engine starts",
    ),
    (
        "server",
        "runtime/text",
        "chat messages and tokenizer behind the routes",
    ),
    (
        "server",
        "runtime/scheduler",
        "the policy that --scheduling-policy names",
    ),
    ("runtime/python", "runtime/engine", "runs it in a Python process"),
    ("runtime/python", "runtime/plugin-host", "chooses the platform"),
    (
        "runtime/python",
        "runtime/models",
        "options of the model: formats, overrides",
    ),
    ("runtime/python", "runtime/text", "chats as prompts, tokens as text"),
    ("runtime/python", "platform-api", "DType, Device and how one is opened"),
    ("backends/", "platform-api", "implements it"),
    ("backends/", "kernels/", "runs them"),
    (
        "backends/cuda",
        "backends/gpu",
        "drives the code that GPU platforms share",
    ),
    (
        "backends/rocm",
        "backends/gpu",
        "drives the code that GPU platforms share",
    ),
    (
        "backends/vulkan",
        "backends/gpu",
        "drives the code that GPU platforms share",
    ),
    (
        "backends/xpu",
        "backends/gpu",
        "drives the code that GPU platforms share",
    ),
    ("plugins/", "platform-api", "implements its hooks"),
];

/// External crates whose users are listed, and why.
const PLACES: &[(&str, &[&str], &str)] = &[
    ("libloading", &["runtime/plugin-host"], "one crate opens libraries"),
    ("axum", &["server"], "HTTP lives in the server"),
    ("clap", &["server"], "the command line lives in the server"),
    (
        "hf-hub",
        &["server/hub"],
        "90 crates that only a download needs (decision 0054)",
    ),
    (
        "reqwest",
        &["plugins/stat-logger-otlp", "server"],
        "HTTP lives in the server; a collector is reached from its stat logger",
    ),
    ("tokenizers", &["runtime/text"], "text owns tokenizing"),
    ("pyo3", &["runtime/python"], "one crate knows Python"),
    ("listenfd", &["server"], "a service manager starts the server"),
    ("sd-notify", &["server"], "a service manager starts the server"),
    (
        "llguidance",
        &["runtime/grammar"],
        "one crate knows the grammar library",
    ),
    (
        "memmap2",
        &["runtime/models", "runtime/plugin-host"],
        "one module maps files, one the memory shared with a hook's process",
    ),
];

/// Packages that stay small, with all that they may use from outside.
const SMALL: &[(&str, &[&str], &str)] = &[
    ("platform-api", &[], "every vendor compiles the contract"),
    (
        "runtime/scheduler",
        &["sha2", "thiserror"],
        "it is a pure state machine, which names blocks",
    ),
    ("kernels/", &["half"], "kernels are device code and nothing else"),
];

/// Whether `folder` is `pattern`, or lies in it where it ends in `/`.
fn matches(pattern: &str, folder: &str) -> bool {
    pattern == folder || (pattern.ends_with('/') && folder.starts_with(pattern))
}

/// The packages of `cargo metadata`'s answer.
///
/// # Errors
/// The key that is not as documented.
pub fn packages(metadata: &Value) -> Result<Vec<Package>, String> {
    let text = |value: &Value, key: &str| {
        value[key]
            .as_str()
            .map(str::to_string)
            .ok_or(format!("no text `{key}`"))
    };
    let root = text(metadata, "workspace_root")?;
    let relative = |path: &str| {
        path.strip_prefix(&root)
            .map_or(path, |p| p.trim_start_matches('/'))
            .to_string()
    };
    let list = metadata["packages"].as_array().ok_or("no list `packages`")?;
    let mut packages = Vec::new();
    for package in list {
        let manifest = relative(&text(package, "manifest_path")?);
        let (mut uses, mut external) = (Vec::new(), Vec::new());
        for dependency in package["dependencies"].as_array().ok_or("no list `dependencies`")? {
            if dependency["kind"].as_str() == Some("dev") {
                continue;
            }
            match dependency["path"].as_str() {
                Some(path) => uses.push(relative(path)),
                None => external.push(text(dependency, "name")?),
            }
        }
        packages.push(Package {
            name: text(package, "name")?,
            folder: manifest
                .trim_end_matches("Cargo.toml")
                .trim_end_matches('/')
                .to_string(),
            uses,
            external,
        });
    }
    Ok(packages)
}

/// Arrows that are not on the map, and external crates out of their place.
pub fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let is_test = package.folder.starts_with("tests/");
        for used in &package.uses {
            let known = ARROWS
                .iter()
                .any(|(from, to, _)| matches(from, &package.folder) && matches(to, used));
            if !is_test && !known {
                let remedy = if used.starts_with("tests/") {
                    "nothing uses tests/*: move the dependency to [dev-dependencies]"
                } else {
                    "the map has no such arrow: go through a package that it has, or change the map \
                     (tests/tidy/src/arrows.rs) with a decision record"
                };
                findings.push(Finding::new(
                    &manifest,
                    0,
                    format!("{} uses {used}; {remedy}", package.name),
                ));
            }
        }
        for name in package.external.iter().filter(|_| !is_test) {
            for (_, places, why) in PLACES.iter().filter(|(placed, _, _)| placed == name) {
                if !places.iter().any(|place| matches(place, &package.folder)) {
                    let message = format!(
                        "{} uses {name}, which only {} may: {why}",
                        package.name,
                        places.join(", ")
                    );
                    findings.push(Finding::new(&manifest, 0, message));
                }
            }
            for (_, allowed, why) in SMALL.iter().filter(|(small, _, _)| matches(small, &package.folder)) {
                if !allowed.contains(&name.as_str()) {
                    let message = format!(
                        "{} may use only {} from outside, not {name}: {why}",
                        package.name,
                        allowed.join(", ")
                    );
                    findings.push(Finding::new(&manifest, 0, message));
                }
            }
        }
    }
    findings
}
