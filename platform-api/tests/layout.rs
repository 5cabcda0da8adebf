//! Holds the description of the wire: no holes, everything is described, the header and docs/ops.md are current, and
//! the header compiles.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use halyard_platform_api::abi::tables::{MemoryInfoWire, OpSpecWire, ProgramWire};
use halyard_platform_api::abi::{self, StructLayout, limits, read_known, read_program, read_spec, tables};
use halyard_platform_api::ops;

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

/// What has no description, as "where: what".
fn undescribed() -> Vec<String> {
    let mut missing = Vec::new();
    let mut need = |place: String, doc: &[&str]| {
        if doc.iter().all(|line| line.trim().is_empty()) {
            missing.push(place);
        }
    };
    for s in tables::structs() {
        need(s.name.to_string(), s.doc);
        // The size is described once, at the header's top.
        for field in s.fields.iter().filter(|field| field.name != "struct_size") {
            need(format!("{}.{}", s.name, field.name), field.doc);
        }
    }
    for t in tables::tables() {
        need(t.name.to_string(), t.doc);
        t.slots
            .iter()
            .for_each(|slot| need(format!("{}.{}", t.name, slot.name), slot.doc));
    }
    for op in ops::layouts() {
        for (operand, doc) in op.operands.iter().zip(op.operand_docs) {
            need(format!("{} of {}", operand.name, op.name), doc);
        }
    }
    missing
}

#[test]
fn everything_that_crosses_is_described() {
    assert_eq!(undescribed(), Vec::<String>::new());
}

/// Words of `text` that begin with `HALYARD_`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("HALYARD_"))
}

#[test]
fn every_name_of_the_header_and_of_the_ops_is_defined_once_and_those_in_texts_are_there() {
    let header = abi::header();
    let mut defined: Vec<&str> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split([' ', '(']).next())
        .collect();
    let total = defined.len();
    defined.sort_unstable();
    defined.dedup();
    assert_eq!(defined.len(), total, "a name is defined twice");
    for text in [&header, &abi::ops_page()] {
        // `HALYARD_STATUS_` stands for all that begin with it.
        let is_there = |name: &str| match name.ends_with('_') {
            true => defined.iter().any(|known| known.starts_with(name)),
            false => defined.contains(&name) || name == "HALYARD_H",
        };
        let missing: Vec<&str> = names(text).filter(|name| !is_there(name)).collect();
        assert_eq!(missing, Vec::<&str>::new());
        let rust: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("[`") || line.contains("::"))
            .collect();
        assert_eq!(rust, Vec::<&str>::new(), "words of Rust in what is for readers of C");
    }
    let wide: Vec<&str> = header.lines().filter(|line| line.chars().count() > 120).collect();
    assert_eq!(wide, Vec::<&str>::new());
}

#[test]
fn limits_are_those_that_readers_keep() {
    // SAFETY: larger than its size word, which alone is read before it is refused.
    let read = |size: u32| unsafe { read_known::<MemoryInfoWire>([size; 16].as_ptr().cast()) }.map(|_| ());
    let refused = read(limits::MAX_STRUCT_BYTES + 1).expect_err("a byte too many");
    assert!(
        refused.message.contains(&limits::MAX_STRUCT_BYTES.to_string()),
        "{refused}"
    );
    let mut spec = OpSpecWire::zeroed();
    spec.descriptor_len = u64::from(limits::MAX_STRUCT_BYTES) + 1;
    // SAFETY: refused before the descriptor is read.
    let refused = unsafe { read_spec(&spec) }.expect_err("a byte too many");
    assert!(
        refused.message.contains(&limits::MAX_STRUCT_BYTES.to_string()),
        "{refused}"
    );
    let mut program = ProgramWire::zeroed();
    program.num_nodes = limits::MAX_PROGRAM_ENTRIES + 1;
    // SAFETY: refused before a node is read.
    let refused = unsafe { read_program(&program) }.expect_err("a node too many");
    assert!(
        refused.message.contains(&limits::MAX_PROGRAM_ENTRIES.to_string()),
        "{refused}"
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

/// Holds a generated file to what is generated now.
fn is_current(path: PathBuf, current: &str) {
    if blessing() {
        std::fs::write(&path, current).expect("the file is writable");
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == current,
        "{} is stale: run with HALYARD_BLESS=1",
        path.display()
    );
}

#[test]
fn header_is_current() {
    is_current(crate_file("include/halyard.h"), &abi::header());
}

#[test]
fn ops_page_is_current() {
    is_current(crate_file("../docs/ops.md"), &abi::ops_page());
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
    check("HALYARD_CAPABILITY_VENDORS >> 48 == 0xffff && HALYARD_OP_VENDOR == HALYARD_VENDOR_CODES".to_string());
    check(
        "HALYARD_LINEAR_OUT == 4 && HALYARD_LINEAR_NUM_OPERANDS == 5 && HALYARD_WEIGHT_Q4K_BLOCK_BYTES == 144".into(),
    );
    check("sizeof(halyard_str) == 16 && sizeof(halyard_u64s) == 16".to_string());
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
