//! Holds the checked-in description of the wire: no holes, the layout file only grows, the header is current and
//! compiles.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use halyard_platform_api::abi::{self, StructLayout, tables};

fn crate_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn blessing() -> bool {
    std::env::var_os("HALYARD_BLESS").is_some_and(|v| v == "1")
}

/// Bytes of a struct that no field covers, as (after which field, how many).
fn holes(layout: &StructLayout) -> Vec<(&'static str, usize)> {
    let mut end = 0;
    let mut last = "the start";
    let mut found = Vec::new();
    for field in &layout.fields {
        if field.offset > end {
            found.push((last, field.offset - end));
        }
        end = field.offset + field.size;
        last = field.name;
    }
    if layout.size > end {
        found.push((last, layout.size - end));
    }
    found
}

#[test]
fn no_wire_struct_has_padding_holes() {
    let all = tables::structs();
    assert!(all.len() > 40, "only {} structs are listed", all.len());
    let with_holes: Vec<String> = all
        .iter()
        .flat_map(|s| {
            holes(s)
                .into_iter()
                .map(|(after, bytes)| format!("{}: {bytes} bytes after `{after}`", s.name))
        })
        .collect();
    assert!(
        with_holes.is_empty(),
        "padding holes cross with whatever was in memory; add a reserved field: {with_holes:?}"
    );
}

#[test]
fn a_hole_is_found_and_named() {
    let mut layout = tables::structs()
        .into_iter()
        .find(|s| s.name == "halyard_memory_info")
        .expect("the struct is listed");
    layout.fields.remove(1);
    assert_eq!(holes(&layout), vec![("struct_size", 4)]);
}

#[test]
fn tables_are_packed_and_named_once() {
    for t in tables::tables() {
        assert_eq!(t.size, 8 + t.slots.len() * size_of::<usize>(), "{}", t.name);
        for (i, slot) in t.slots.iter().enumerate() {
            assert_eq!(slot.offset, 8 + i * size_of::<usize>(), "{}.{}", t.name, slot.name);
            assert!(
                slot.required || slot.fallback.is_some(),
                "{}.{} is optional and names no fallback",
                t.name,
                slot.name
            );
        }
    }
    let mut names: Vec<&str> = tables::structs().iter().map(|s| s.name).collect();
    names.extend(tables::tables().iter().map(|t| t.name));
    let total = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), total, "a C name is used twice");
}

/// A summary line ("struct NAME size N …", "table NAME … size N"): its identity without the size, and the size.
fn summary(line: &str) -> Option<(String, u64)> {
    if !line.starts_with("struct ") && !line.starts_with("table ") {
        return None;
    }
    let words: Vec<&str> = line.split(' ').collect();
    let at = words.iter().position(|w| *w == "size")? + 1;
    let size = words.get(at)?.parse().ok()?;
    let mut rest = words.clone();
    rest.remove(at);
    // A table's minor version may rise, its major not.
    if let Some(version) = rest.iter().position(|w| *w == "version") {
        rest[version + 1] = rest[version + 1].split('.').next()?;
    }
    Some((rest.join(" "), size))
}

/// Lines of `stored` that `current` changed or lost. A struct or table may become larger.
fn broken_lines(stored: &str, current: &str) -> Vec<String> {
    let grown = |old: &str| {
        summary(old).is_some_and(|(name, size)| {
            current
                .lines()
                .filter_map(summary)
                .any(|(n, s)| n == name && s >= size && !old.ends_with("fixed"))
        })
    };
    stored
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .filter(|line| !current.lines().any(|now| now == *line) && !grown(line))
        .map(str::to_string)
        .collect()
}

const DRAFT: &str = "# draft: interfaces are 0.x, a decision record may reset this file (HALYARD_BLESS=1). When 1.0 \
    freezes, this line becomes `# frozen`.\n";

#[test]
fn layout_file_is_current_and_only_grows() {
    let path = crate_file("abi-layout.txt");
    let current = abi::layout_lines();
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let frozen = stored.starts_with("# frozen");
    let broken = broken_lines(&stored, &current);
    if blessing() && (!frozen || broken.is_empty()) {
        let first = if frozen {
            format!("{}\n", stored.lines().next().unwrap_or_default())
        } else {
            DRAFT.to_string()
        };
        std::fs::write(&path, first + &current).expect("the layout file is writable");
        return;
    }
    assert!(
        broken.is_empty(),
        "the wire changed under existing plugins. Fields and slots are only appended; these lines of abi-layout.txt \
         no longer hold:\n{}\n{}",
        broken.join("\n"),
        if frozen {
            "The layout is frozen: append instead."
        } else {
            "In 0.x a decision record may reset it: write one, raise the version, then run with HALYARD_BLESS=1."
        }
    );
    let body: String = stored
        .lines()
        .filter(|l| !l.starts_with('#'))
        .fold(String::new(), |mut all, line| {
            let _ = writeln!(all, "{line}");
            all
        });
    assert_eq!(
        body, current,
        "the wire grew: run with HALYARD_BLESS=1 and commit abi-layout.txt"
    );
}

#[test]
fn layout_comparison_allows_growth_and_refuses_change() {
    let old = "struct a size 8\n  a +0 uint32_t struct_size\n  a +4 uint32_t x\ntable t interface i version 0.1 size \
        16\n  t +8 required uint32_t f()\n";
    let grown = "struct a size 12\n  a +0 uint32_t struct_size\n  a +4 uint32_t x\n  a +8 uint32_t y\ntable t \
        interface i version 0.2 size 24\n  t +8 required uint32_t f()\n  t +16 optional uint32_t g()\n";
    assert!(broken_lines(old, grown).is_empty());
    let retyped = old.replace("uint32_t x", "int32_t x");
    assert_eq!(broken_lines(old, &retyped), ["  a +4 uint32_t x"]);
    let shrunk = old.replace("size 8", "size 4");
    assert_eq!(broken_lines(old, &shrunk), ["struct a size 8"]);
    let major = old.replace("version 0.1", "version 1.0");
    assert_eq!(broken_lines(old, &major), ["table t interface i version 0.1 size 16"]);
    let fixed = "struct f size 8 fixed\n";
    assert_eq!(
        broken_lines(fixed, "struct f size 12 fixed\n"),
        ["struct f size 8 fixed"]
    );
}

#[test]
fn every_field_of_every_record_stands_in_the_authors_page() {
    let page = std::fs::read_to_string(crate_file("../docs/hooks.md")).expect("docs/hooks.md is there");
    let records: Vec<StructLayout> = tables::structs()
        .into_iter()
        .filter(|s| s.name.ends_with("_record"))
        .collect();
    assert_eq!(records.len(), halyard_platform_api::hooks::StatRecord::KINDS.len());
    for record in records {
        let start = page.find(&format!("(`{}`)", record.name)).expect(record.name);
        let section = page[start..].split("\n### ").next().unwrap_or_default();
        for field in record.fields.iter().filter(|field| field.name != "struct_size") {
            let row = format!("| `{}` |", field.name);
            assert!(section.contains(&row), "{} lacks a row for {}", record.name, field.name);
        }
    }
}

#[test]
fn header_is_current() {
    let path = crate_file("include/halyard.h");
    let current = abi::header();
    if blessing() {
        std::fs::create_dir_all(crate_file("include")).expect("the include folder is writable");
        std::fs::write(&path, &current).expect("the header is writable");
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(stored, current, "include/halyard.h is stale: run with HALYARD_BLESS=1");
}

/// A source that checks every size and offset at compile time, in C99 (which has no static assertion) and in C++.
fn checking_source() -> String {
    let mut out = String::from(
        "#include \"halyard.h\"\n#include <stddef.h>\n#ifdef __cplusplus\n#define CHECK(n, c) static_assert(c, \
         #c)\n#else\n#define CHECK(n, c) typedef char check_##n[(c) ? 1 : -1]\n#endif\n",
    );
    let mut n = 0;
    let mut check = |condition: String| {
        n += 1;
        let _ = writeln!(out, "CHECK({n}, {condition});");
    };
    for s in tables::structs() {
        check(format!("sizeof({}) == {}", s.name, s.size));
        for f in &s.fields {
            check(format!("offsetof({}, {}) == {}", s.name, f.name, f.offset));
            check(format!("sizeof((({} *)0)->{}) == {}", s.name, f.name, f.size));
        }
    }
    for t in tables::tables() {
        check(format!("sizeof({}) == {}", t.name, t.size));
        for slot in &t.slots {
            check(format!("offsetof({}, {}) == {}", t.name, slot.name, slot.offset));
        }
    }
    out.push_str(
        "HALYARD_MANIFEST(\"{}\");\nhalyard_entry_fn entry_is_a_type;\nint first_byte(void);\nint first_byte(void) { \
         return halyard_manifest[0]; }\n",
    );
    out
}

fn compile(compiler: &str, file: &str, standard: &str, source: &str) -> Result<(), String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(file);
    std::fs::write(&path, source).expect("the scratch folder is writable");
    let output = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"])
        .arg("-I")
        .arg(crate_file("include"))
        .arg(&path)
        .output()
        .unwrap_or_else(|e| panic!("{compiler} is needed for this test: {e}"));
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn header_compiles_as_c99_with_the_same_layout() {
    assert_eq!(compile("cc", "header.c", "c99", &checking_source()), Ok(()));
}

#[test]
fn header_compiles_as_cpp17_with_the_same_layout() {
    assert_eq!(compile("g++", "header.cpp", "c++17", &checking_source()), Ok(()));
}

#[test]
fn a_wrong_offset_fails_to_compile() {
    let wrong = checking_source().replacen(
        "offsetof(halyard_tensor, offset) == 8",
        "offsetof(halyard_tensor, offset) == 16",
        1,
    );
    let error = compile("cc", "wrong.c", "c99", &wrong).expect_err("the check must bite");
    assert!(error.contains("check_"), "{error}");
}
