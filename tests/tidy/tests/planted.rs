//! Each rule catches what it is for, and leaves alone what it is not for.

use halyard_tidy::arrows::{self, Package};
use halyard_tidy::code::{code_only, word_parts};
use halyard_tidy::tree::SourceFile;
use halyard_tidy::{Finding, circles, documents, rules, test_files, tree};

fn file(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: path.to_string(),
        text: text.to_string(),
    }
}

fn package(folder: &str, uses: &[&str], external: &[&str]) -> Package {
    let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
    Package {
        name: folder.to_string(),
        folder: folder.to_string(),
        uses: owned(uses),
        external: owned(external),
    }
}

fn lines(findings: &[Finding]) -> Vec<usize> {
    findings.iter().map(|finding| finding.line).collect()
}

#[test]
fn an_arrow_off_the_map_is_found() {
    for (from, to) in [
        ("runtime/engine", "backends/cpu"),
        ("runtime/engine", "kernels/cpu"),
        ("runtime/scheduler", "runtime/models"),
        ("runtime/plugin-host", "runtime/engine"),
        ("server", "backends/reference"),
        ("server", "kernels/cpu"),
        ("backends/cpu", "runtime/engine"),
        ("backends/cpu", "backends/reference"),
        ("kernels/cpu", "platform-api"),
        ("platform-api", "runtime/text"),
        ("plugins/stat-logger-json-lines", "runtime/engine"),
        ("runtime/engine", "tests/fixtures/backend-null"),
    ] {
        let findings = arrows::check(&[package(from, &[to], &[])]);
        assert_eq!(findings.len(), 1, "{from} -> {to}");
        assert!(findings[0].message.contains(to), "{}", findings[0]);
    }
    let fine = [
        package("server", &["runtime/engine", "runtime/plugin-host"], &["axum"]),
        package("backends/gpu", &["platform-api", "kernels/gpu"], &["libc"]),
        package(
            "tests/bench",
            &["backends/cpu", "tests/fixtures/backend-null", "kernels/cpu"],
            &["libloading"],
        ),
    ];
    assert_eq!(arrows::check(&fine), []);
}

#[test]
fn an_external_crate_out_of_its_place_is_found() {
    for (folder, name) in [
        ("runtime/engine", "libloading"),
        ("backends/cpu", "libloading"),
        ("runtime/engine", "axum"),
        ("platform-api", "tokio"),
        ("runtime/scheduler", "tokio"),
        ("kernels/cpu", "rayon"),
    ] {
        let findings = arrows::check(&[package(folder, &[], &[name])]);
        assert_eq!(findings.len(), 1, "{folder} uses {name}");
    }
}

#[test]
fn dev_dependencies_are_no_arrows() {
    let metadata = serde_json::json!({
        "workspace_root": "/r",
        "packages": [{
            "name": "engine", "manifest_path": "/r/runtime/engine/Cargo.toml",
            "dependencies": [
                { "name": "cpu", "kind": "dev", "path": "/r/backends/cpu" },
                { "name": "build", "kind": "build", "path": "/r/backends/reference" },
                { "name": "serde", "kind": null },
            ],
        }],
    });
    let packages = arrows::packages(&metadata).expect("as documented");
    assert_eq!(packages[0].folder, "runtime/engine");
    assert_eq!(
        packages[0].uses,
        ["backends/reference"],
        "a build dependency is an arrow"
    );
    assert_eq!(packages[0].external, ["serde"]);
}

#[test]
fn vendor_words_are_found_in_code_texts_comments_and_identifiers() {
    let planted = "//! x\nlet a = Cuda::new();\n// like ROCm 6\nif name == \"hip_x\" {}\nfn isNvidia() {}\nrocm6\n";
    assert_eq!(
        lines(&rules::vendor_words("runtime/engine/src/x.rs", planted)),
        [2, 3, 4, 5, 6]
    );
    assert_eq!(
        rules::vendor_words("server/Cargo.toml", "[features]\nvulkan = []\n").len(),
        1
    );
    let fine = "a chip ships whips; amd64; metallic; gpu_memory_utilization; intelligence; relationship";
    assert_eq!(rules::vendor_words("runtime/engine/src/x.rs", fine), []);
    assert_eq!(rules::vendor_words("backends/cuda/src/x.rs", planted), []);
}

#[test]
fn unsafe_is_found_in_code_only() {
    let planted = "//! unsafe\nfn f() { unsafe { g() } }\n// unsafe\nlet s = \"unsafe\";\nunsafe impl Send for X {}\n";
    assert_eq!(lines(&rules::unsafe_code("runtime/engine/src/x.rs", planted)), [2, 5]);
    assert_eq!(
        lines(&rules::unsafe_code("platform-api/src/tensor.rs", planted)),
        [2, 5]
    );
    assert_eq!(rules::unsafe_code("runtime/models/src/mapping.rs", planted), []);
    assert_eq!(rules::unsafe_code("kernels/cpu/src/x.rs", planted), []);
}

#[test]
fn opening_a_library_is_found() {
    let planted = "use libloading::Library;\nlet h = libc::dlopen(p, 1);\n// dlopen\n";
    assert_eq!(lines(&rules::library_opening("server/src/x.rs", planted)), [1, 2]);
    assert_eq!(rules::library_opening("runtime/plugin-host/src/load.rs", planted), []);
    assert_eq!(lines(&rules::library_opening("kernels/gpu/src/x.rs", planted)), [1, 2]);
    assert_eq!(rules::library_opening("kernels/gpu/tests/x.rs", planted), []);
}

#[test]
fn reading_the_environment_below_the_server_is_found() {
    let planted = "let x = std::env::var(\"X\");\n#[cfg(test)]\nmod tests { fn f() { std::env::var_os(\"Y\"); } }\n";
    assert_eq!(lines(&rules::environment("runtime/engine/src/x.rs", planted)), [1]);
    assert_eq!(rules::environment("server/src/x.rs", planted), []);
    assert_eq!(rules::environment("runtime/engine/tests/x.rs", planted), []);
}

#[test]
fn a_clock_in_the_scheduler_is_found() {
    let planted = "use std::time::Duration;\nlet now = Instant::now();\nasync fn f() {}\n";
    assert_eq!(
        lines(&rules::scheduler_purity("runtime/scheduler/src/plan.rs", planted)),
        [2, 3]
    );
    assert_eq!(rules::scheduler_purity("runtime/scheduler/examples/x.rs", planted), []);
}

#[test]
fn hosts_and_machine_paths_are_found() {
    let host = ["https://pypi", ".org/simple"].concat();
    let path = ["cd /wo", "rk/main"].concat();
    let planted = format!("fine\n{host}\n{path}\n");
    assert_eq!(lines(&rules::hosts_and_paths("docs/x.md", &planted)), [2, 3]);
    assert_eq!(
        rules::hosts_and_paths("docs/x.md", "the framework/main crates.io /work of others /root"),
        []
    );
}

#[test]
fn long_files_are_found() {
    let text = |lines: usize| "//! x\n".repeat(lines);
    assert_eq!(
        rules::length("runtime/engine/src/x.rs", &text(rules::MAX_LINES + 1)).len(),
        1
    );
    assert_eq!(rules::length("runtime/engine/src/x.rs", &text(rules::MAX_LINES)), []);
    assert_eq!(
        rules::length("runtime/models/src/families/x.rs", &text(rules::MAX_FAMILY_LINES + 1)).len(),
        1
    );
    assert_eq!(rules::length("docs/x.md", &text(2000)), []);
    for long in [
        "kernels/gpu/cuda/ops/x.cu",
        "kernels/gpu/glsl/include/x.glsl",
        "plugins/x/x.c",
    ] {
        assert_eq!(rules::length(long, &text(rules::MAX_LINES + 1)).len(), 1, "{long}");
    }
    assert_eq!(
        rules::length("platform-api/include/halyard.h", &text(rules::MAX_LINES + 1)),
        []
    );
}

#[test]
fn a_file_without_its_idea_is_found() {
    assert_eq!(rules::header("server/src/x.rs", "use a::b;\n//! late\n").len(), 1);
    assert_eq!(rules::header("server/src/x.rs", "").len(), 1);
    assert_eq!(rules::header("server/src/x.rs", "#![allow(dead_code)]\n//! idea\n"), []);
}

#[test]
fn stubs_are_found() {
    let words = [
        ["to", "do!()"],
        ["unimpl", "emented!()"],
        ["// FIX", "ME"],
        ["#[ign", "ore]"],
    ]
    .map(|p| p.concat());
    assert_eq!(lines(&rules::stubs("server/src/x.rs", &words.join("\n"))), [1, 2, 3, 4]);
    assert_eq!(rules::stubs("server/src/x.rs", "let todo = 1; // ignore\n"), []);
}

#[test]
fn a_package_without_the_lints_is_found() {
    let package = "[package]\nname = \"x\"\n";
    assert_eq!(rules::lints("server/Cargo.toml", package).len(), 1);
    assert_eq!(
        rules::lints("server/Cargo.toml", &format!("{package}[lints]\nworkspace = false\n")).len(),
        1
    );
    assert_eq!(
        rules::lints("server/Cargo.toml", &format!("{package}[lints]\nworkspace = true\n")),
        []
    );
    assert_eq!(rules::lints("server/Cargo.toml", "[package\n").len(), 1);
}

#[test]
fn comments_strings_and_characters_are_not_code() {
    let text = "a /* b /* c */ d */ e \"f\\\"g\" h r#\"i\"j\"# k 'l' m &'n o b\"p\" r#type '\\'' q // r\ns";
    let code: Vec<String> = word_parts(&code_only(text));
    assert_eq!(code, ["a", "e", "h", "k", "m", "n", "o", "r", "type", "q", "s"]);
    assert_eq!(code_only(text).lines().count(), 2);
    assert_eq!(
        word_parts("GpuMemory_x2 HTTPServer"),
        ["gpu", "memory", "x2", "httpserver"]
    );
}

fn files(list: &[(&str, &str)]) -> Vec<SourceFile> {
    let file = |(path, text): &(&str, &str)| SourceFile {
        path: path.to_string(),
        text: text.to_string(),
    };
    list.iter().map(file).collect()
}

#[test]
fn wide_documents_are_found() {
    let wide = format!("{} ä{}", "a".repeat(60), "b".repeat(documents::MAX_COLUMNS - 62));
    let planted = format!("{wide}\n- {wide}\n| {wide} |\n[x](https://a.b/{})\n", "c".repeat(200));
    assert_eq!(lines(&documents::width("docs/x.md", &planted)), [2]);
    assert_eq!(documents::width("src/x.rs", &planted), []);
}

#[test]
fn wide_code_is_found() {
    let (fits, wide) = (
        "·".repeat(documents::MAX_COLUMNS),
        "x".repeat(documents::MAX_COLUMNS + 1),
    );
    let planted = format!("{fits}\n{wide}\n// check: {wide}\n// {wide}\n");
    for path in [
        "kernels/gpu/opencl/include/x.h",
        "kernels/gpu/cuda/ops/x.cu",
        "backends/xpu/src/x.cl",
        "server/src/x.rs",
    ] {
        assert_eq!(lines(&rules::code_width(path, &planted)), [2, 4], "{path}");
    }
    assert_eq!(rules::code_width("docs/x.md", &planted), []);
    let raw = format!("const X: &str = r#\"{wide}\"#;\nconst Y: &str = \"{wide}\";\n");
    assert_eq!(lines(&rules::code_width("server/src/x.rs", &raw)), [2]);
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let page = "# A page\n[a](b.md) [b](../README.md#of-all-things) [c](sub) [d](#a-page) [e](https://x.y/z)\n\
        [f](c.md)\n[g](b.md#no)\n[h](../../x)\n`[i](no.md)`\n```\n[j](no.md)\n```\n[k](#none) [l](sub/)\n";
    let tree = files(&[
        ("docs/a.md", page),
        ("docs/b.md", "# B\n"),
        ("README.md", "## Of `all` things!\n"),
        ("docs/sub/x.rs", "[m](no.md)"),
    ]);
    assert_eq!(lines(&documents::links(&tree)), [3, 4, 5, 10]);
}

#[test]
fn errors_that_no_program_says_and_pages_that_no_one_finds_are_found() {
    let page = "| words | |\n|---|---|\n| `no such door` | |\n| `a long text that goes on` | |\n| `never said` | |\n\
        | `` see `x` `` | |\n| text `not looked at` | |\n";
    let tree = files(&[
        ("docs/troubleshooting.md", page),
        ("docs/SUMMARY.md", "- [a](troubleshooting.md)\n- [b](sub/c.md)\n"),
        ("docs/lost.md", "# Lost\n"),
        ("docs/sub/c.md", "# C\n"),
        (
            "server/src/x.rs",
            "fail(\"no such door: see `x`\"); fail(\"a long text \\\n     that goes on\");",
        ),
        ("tests/x.rs", "never said"),
    ]);
    assert_eq!(lines(&documents::quoted_errors(&tree)), [5]);
    assert_eq!(lines(&documents::summary(&tree)), [0]);
}

#[test]
fn decisions_with_one_number_and_dangling_ones_are_found() {
    let cites = format!("decision {}, {}/0002-b.md, decision {}0", "0003", "decisions", "0002");
    let tree = files(&[
        ("docs/decisions/0001-a.md", "# 0001: A\n"),
        ("docs/decisions/0002-b.md", "# 2: B\n"),
        ("docs/decisions/0001-c.md", "# 0001: C\n"),
        ("docs/decisions/d.md", "# D\n"),
        ("docs/decisions/README.md", "# All\n"),
        ("server/src/x.rs", &cites),
    ]);
    let found: Vec<(String, usize)> = documents::decisions(&tree)
        .into_iter()
        .map(|finding| (finding.path, finding.line))
        .collect();
    let expected = [
        ("docs/decisions/0002-b.md", 1),
        ("docs/decisions/0001-c.md", 0),
        ("docs/decisions/d.md", 0),
        ("server/src/x.rs", 1),
    ];
    assert_eq!(found, expected.map(|(path, line)| (path.to_string(), line)));
}

#[test]
fn this_repository_is_listed_without_build_output() {
    let files = tree::text_files(&tree::root()).expect("readable");
    assert!(files.iter().any(|file| file.path == "Cargo.toml"));
    assert!(files.iter().all(|file| !file.path.starts_with("target/")));
}

#[test]
fn circles_of_modules_are_found() {
    let files = |b: &str| {
        vec![
            file("runtime/x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
            file("runtime/x/src/a.rs", "use std::fmt;\nuse crate::{b::{B, C}, c};\n"),
            file("runtime/x/src/b.rs", b),
            file(
                "runtime/x/src/c/mod.rs",
                "mod d;\n#[cfg(test)]\nmod tests { use crate::a::A; }\n",
            ),
            file(
                "runtime/x/src/c/d.rs",
                "// use crate::a::A;\nfn f() { g(\"crate::a\") }\n",
            ),
            file("runtime/x/tests/t.rs", "use x::a;\n"),
        ]
    };
    assert_eq!(circles::check_against(&files("fn f() {}\n"), &[]), []);
    for b in [
        "use crate::a::A;\n",
        "use super::a;\n",
        "fn f() -> crate::a::A { todo() }\n",
        "use crate::{\n    c::D,\n    a,\n};\n",
    ] {
        let found = circles::check_against(&files(b), &[]);
        assert_eq!(found.len(), 1, "{b}: {found:?}");
        assert!(found[0].message.contains("a, b"), "{found:?}");
        assert_eq!(circles::check_against(&files(b), &[("runtime/x", &["a", "b"])]), []);
    }
    let gone = circles::check_against(&files("pub use crate::a::A;\n"), &[("runtime/x", &["a", "b"])]);
    assert!(
        gone.len() == 1 && gone[0].message.contains("not there any more"),
        "{gone:?}"
    );
}

#[test]
fn files_of_tests_that_never_run_are_found() {
    let files = |program: &str| {
        vec![
            file(
                "runtime/x/Cargo.toml",
                "[package]\nautotests = false\n\n[[test]]\nname = \"x\"\npath = \"tests/x.rs\"\n",
            ),
            file("runtime/x/tests/x.rs", program),
            file("runtime/x/tests/a.rs", "#[test]\nfn a() {}\n"),
            file("runtime/x/tests/common/mod.rs", "mod answers;\n"),
            file("runtime/x/tests/common/answers.rs", "fn f() {}\n"),
            file("runtime/y/Cargo.toml", "[package]\n"),
            file("runtime/y/tests/b.rs", "#[test]\nfn b() {}\n"),
        ]
    };
    assert_eq!(test_files::check(&files("//! X.\n\nmod a;\nmod common;\n")), []);
    let found = test_files::check(&files("//! X.\n\nmod common;\n"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].path == "runtime/x/tests/a.rs" && found[0].message.contains("mod a;"),
        "{found:?}"
    );
}
