//! No circles among the modules of a package: a module that two others need stands below both. A module is a file; an
//! edge is a path that begins with `crate`, `super`, `self` or a child's name. A `pub use` is no edge: the module only
//! re-exports names and does not use them. Code of tests does not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::code::code_only;
use crate::tree::SourceFile;

/// Circles that were there when the rule came. A line goes when its circle is opened; none is added.
pub const LEFT: &[(&str, &[&str])] = &[
    ("backends/cpu", &["communicator", "device", "queue"]),
    ("backends/cpu", &["kernel", "objects", "view"]),
    (
        "backends/gpu",
        &["commands", "communicator", "device", "objects", "queue"],
    ),
    ("backends/reference", &["attention_registry", "support"]),
    (
        "backends/reference",
        &[
            "communicator",
            "device",
            "encoder",
            "memory",
            "operand",
            "ops",
            "prepared",
            "queue",
        ],
    ),
    ("kernels/cpu", &["act", "pack", "simd"]),
    ("plugins/stat-logger-otlp", &["", "instruments", "spans"]),
    ("plugins/stat-logger-otlp", &["outbox", "transport"]),
    ("runtime/hooks", &["hub", "sender", "sink", "worker"]),
    ("runtime/plugin-host", &["catalog", "load"]),
    (
        "runtime/plugin-host",
        &[
            "wire::attention",
            "wire::communicator",
            "wire::device",
            "wire::encoder",
            "wire::memory",
            "wire::ops",
            "wire::platform",
            "wire::queue",
        ],
    ),
    (
        "tests/fixtures/backend-delayed",
        &["buffer", "device", "encoder", "progress", "queue", "ring", "tracking"],
    ),
    (
        "tests/fuzz",
        &[
            "target",
            "targets::answer",
            "targets::client",
            "targets::grammar",
            "targets::http",
            "targets::models",
            "targets::plugins",
            "targets::response_template",
            "targets::text",
            "targets::zmtp",
        ],
    ),
    ("tests/hip-on-cuda", &["", "cuda"]),
];

/// A module's path inside its package, such as `["lora", "registry"]`; the root has none.
type Module = Vec<String>;

/// The circles of every package among these files that [`LEFT`] does not name, and its lines that are no circle any
/// more.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    check_against(files, LEFT)
}

/// The same for another list.
pub fn check_against(files: &[SourceFile], left: &[(&str, &[&str])]) -> Vec<Finding> {
    let mut packages: BTreeMap<&str, BTreeMap<Module, &SourceFile>> = BTreeMap::new();
    for file in files {
        if let Some((package, module)) = place(&file.path) {
            packages.entry(package).or_default().insert(module, file);
        }
    }
    let mut findings = Vec::new();
    let mut seen: Vec<(&str, Vec<String>)> = Vec::new();
    for (package, modules) in &packages {
        for circle in circles(modules) {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            let known = left.iter().any(|(of, set)| of == package && *set == names);
            seen.push((package, names.clone()));
            if !known {
                let message = format!(
                    "these modules import each other in a circle: {}; move what they share below them",
                    names
                        .iter()
                        .map(|name| if name.is_empty() { "the root" } else { name })
                        .collect::<Vec<_>>()
                        .join(", ")
                );
                findings.push(Finding::new(&modules[&circle[0]].path, 0, message));
            }
        }
    }
    for (package, set) in left {
        if !seen.iter().any(|(of, names)| of == package && *set == names) {
            let message = format!("the circle {set:?} of {package} is not there any more: take or narrow its line");
            findings.push(Finding::new("tests/tidy/src/circles.rs", 0, message));
        }
    }
    findings
}

/// The package's folder and the module of a source file.
fn place(path: &str) -> Option<(&str, Module)> {
    let (package, inside) = path.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    if package.contains("/tests") || inside.ends_with("tests") || inside.starts_with("bin/") || inside == "main" {
        return None;
    }
    let mut module: Module = inside.split('/').map(str::to_string).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
        module.pop();
    }
    Some((package, module))
}

/// Sets of modules that reach each other, each sorted.
fn circles(modules: &BTreeMap<Module, &SourceFile>) -> Vec<Vec<Module>> {
    let edges: BTreeMap<&Module, BTreeSet<Module>> = modules
        .iter()
        .map(|(module, file)| (module, imports(module, &file.text, modules)))
        .collect();
    let reach = |from: &Module| {
        let mut reached: BTreeSet<&Module> = BTreeSet::new();
        let mut next: Vec<&Module> = edges[from].iter().collect();
        while let Some(module) = next.pop() {
            if reached.insert(module) {
                next.extend(&edges[module]);
            }
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = modules.keys().map(|module| (module, reach(module))).collect();
    let mut found: BTreeSet<Vec<Module>> = BTreeSet::new();
    for (module, there) in &reached {
        let circle: Vec<Module> = there
            .iter()
            .filter(|other| reached[**other].contains(module))
            .map(|m| (*m).clone())
            .collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// The package's modules that a module's code names.
fn imports(module: &Module, text: &str, modules: &BTreeMap<Module, &SourceFile>) -> BTreeSet<Module> {
    let code = code_only(text);
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for path in used_paths(code).into_iter().chain(inline_paths(code)) {
        if let Some(target) = resolve(module, &path, modules)
            && target != *module
        {
            found.insert(target);
        }
    }
    found
}

/// Every path of `use` declarations that hand nothing on, with braces taken apart.
fn used_paths(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let before = rest[..at].trim_end_matches(' ');
        let starts = before.is_empty() || before.ends_with(['\n', ';', '{', '}', ']']);
        rest = &rest[at + 4..];
        if starts && let Some((tree, behind)) = rest.split_once(';') {
            expand(tree, &[], &mut paths);
            rest = behind;
        }
    }
    paths
}

/// Takes a use tree apart.
fn expand(tree: &str, prefix: &[String], paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some((head, inner)) = tree.split_once('{') else {
        let tree = tree.split(" as ").next().unwrap_or_default();
        let segments = tree
            .split("::")
            .map(|segment| segment.trim().to_string())
            .filter(|segment| !segment.is_empty());
        paths.push(prefix.iter().cloned().chain(segments).collect());
        return;
    };
    let head = head
        .split("::")
        .map(|segment| segment.trim().to_string())
        .filter(|segment| !segment.is_empty());
    let prefix: Vec<String> = prefix.iter().cloned().chain(head).collect();
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut start) = (0, 0);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                expand(&inner[start..at], &prefix, paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inner[start..].trim().is_empty() {
        expand(&inner[start..], &prefix, paths);
    }
}

/// Paths in the code itself that begin with `crate::` or `super::`, except those of `pub use`.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for line in code
        .lines()
        .filter(|line| !line.trim_start().starts_with("pub") || !line.contains(" use "))
    {
        for start in ["crate::", "super::"] {
            for (at, _) in line.match_indices(start) {
                let inside_word =
                    line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$');
                if !inside_word {
                    let end = line[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
                    let path = &line[at..end.map_or(line.len(), |end| at + end)];
                    paths.push(path.split("::").map(str::to_string).collect());
                }
            }
        }
    }
    paths
}

/// The module in which a path of `module` ends.
fn resolve(module: &Module, path: &[String], modules: &BTreeMap<Module, &SourceFile>) -> Option<Module> {
    let mut base: Module = module.clone();
    let mut rest = path;
    match rest.first().map(String::as_str)? {
        "crate" => (base, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().map(String::as_str) == Some("super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        child => {
            base.push(child.to_string());
            if !modules.contains_key(&base) {
                return None;
            }
            rest = &rest[1..];
        }
    }
    for segment in rest {
        base.push(segment.clone());
        if !modules.contains_key(&base) {
            base.pop();
            break;
        }
    }
    modules.contains_key(&base).then_some(base)
}
