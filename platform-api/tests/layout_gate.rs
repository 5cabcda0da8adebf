//! The gate of the contract's growth: `abi-layout.txt` is what the sources say, and what a section of it has frozen
//! stays as it is. A draft section may change, with a decision record; a frozen one only grows.

use std::path::PathBuf;

use halyard_platform_api::abi;

/// A section of the layout file.
struct Section<'a> {
    name: &'a str,
    frozen: bool,
    lines: Vec<&'a str>,
}

/// The sections of a layout file: `NAME draft` or `NAME frozen`, and indented lines.
fn sections(text: &str) -> Vec<Section<'_>> {
    let mut all: Vec<Section<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(inner) = line.strip_prefix("  ") {
            all.last_mut().expect("a section begins").lines.push(inner);
            continue;
        }
        let (name, state) = line.rsplit_once(' ').expect("a name and a state");
        assert!(matches!(state, "draft" | "frozen"), "{name} is {state}");
        all.push(Section {
            name,
            frozen: state == "frozen",
            lines: Vec::new(),
        });
    }
    all
}

/// Of the first line of a struct or table that may grow: what stays, and the size.
fn head(line: &str) -> Option<(String, u64)> {
    let grows = line.starts_with("struct ") && !line.contains(" fixed ") || line.starts_with("table ");
    let (rest, size) = line.rsplit_once(" size ").filter(|_| grows)?;
    // A table's minor version may rise, its major not.
    let rest = match rest.split_once(" version ") {
        Some((table, version)) => format!("{table} {}", version.split_once('.')?.0),
        None => rest.to_string(),
    };
    Some((rest, size.parse().ok()?))
}

/// Whether `now` may stand where `before` stood.
fn is_kept(before: &str, now: &str) -> bool {
    match (head(before), head(now)) {
        (Some((kept, size)), Some((rest, grown))) => kept == rest && grown >= size,
        _ => before == now,
    }
}

/// What breaks existing plugins between two layout files, as "section: line".
fn broken(stored: &str, current: &str) -> Vec<String> {
    let now = sections(current);
    let mut all = Vec::new();
    for section in sections(stored).iter().filter(|section| section.frozen) {
        let mut complain = |line: &str| all.push(format!("{}: {line}", section.name));
        let Some(now) = now.iter().find(|now| now.name == section.name && now.frozen) else {
            complain("it is not frozen any more");
            continue;
        };
        for line in &section.lines {
            if !now.lines.iter().any(|now| is_kept(line, now)) {
                complain(&format!("lost `{}`", line.trim_start()));
            }
        }
        for line in now.lines.iter().filter(|line| !section.lines.contains(line)) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Of a table that was there, every older plugin lacks it.
            let is_old_table = section
                .lines
                .iter()
                .any(|old| old.starts_with(&format!("table {} ", words[0])));
            if words.get(2) == Some(&"required") && is_old_table {
                complain(&format!("a new required function `{}`", line.trim_start()));
            }
            // An older host never passes it.
            if words[0] == "operand" && words.last() != Some(&"optional") {
                complain(&format!("a new required operand `{line}`"));
            }
        }
    }
    all
}

const TOP: &str = "# Generated (test `layout_file_is_current_and_what_is_frozen_stays`). A draft section may change\n\
    # with a decision record and HALYARD_BLESS=1; a frozen one only grows.\n";

#[test]
fn layout_file_is_current_and_what_is_frozen_stays() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("abi-layout.txt");
    let current = TOP.to_string() + &abi::layout_lines();
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let broken = broken(&stored, &current);
    assert!(
        broken.is_empty(),
        "the wire changed under existing plugins, in what is frozen; append instead, as docs/abi.md says:\n{}",
        broken.join("\n")
    );
    if std::env::var_os("HALYARD_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, &current).expect("the layout file is writable");
        return;
    }
    let changed: Vec<&str> = current
        .lines()
        .filter(|line| !stored.lines().any(|old| old == *line))
        .collect();
    assert!(
        stored == current,
        "the layout changed in a draft section, or grew: write a decision record, raise the version, run with \
         HALYARD_BLESS=1. New lines:\n{}",
        changed.join("\n")
    );
}

#[test]
fn every_struct_and_every_op_stands_in_a_section() {
    let text = abi::layout_lines();
    let all = sections(&text);
    for s in abi::tables::structs() {
        let head = format!("struct {} ", s.name);
        let homes = all
            .iter()
            .filter(|section| section.lines.iter().any(|line| line.starts_with(&head)));
        assert!(homes.count() > 0, "{} is in no section", s.name);
    }
    assert_eq!(
        all.len(),
        1 + abi::tables::tables().len() + halyard_platform_api::OpSpec::NAMES.len()
    );
    for line in [
        "  operand 2 bias const optional",
        "  version 1",
        "  function halyard_log_fn void (void * context, uint32_t level, halyard_str target, halyard_str text)",
        "  struct halyard_u64s fixed size 16",
        "  constant HALYARD_WEIGHT_Q4K_BLOCK_BYTES 144",
        "  constant HALYARD_CAPABILITY_VENDORS 18446462598732840960",
    ] {
        assert!(text.lines().any(|there| there == line), "{line}");
    }
}

/// A frozen interface, a frozen op and a draft one.
const PLANTED: &str = "\
core frozen
  constant HALYARD_X 1
  function halyard_log_fn void (uint32_t level)
  struct halyard_str fixed size 16
    halyard_str +0 const uint8_t * ptr
interface i frozen
  table t interface 1 version 1.0 size 16
    t +8 required uint32_t f(void * a)
  struct s base 8 size 8
    s +0 uint32_t struct_size
    s +4 uint32_t x
op o frozen
  code 2
  version 1
  operand 0 a read
  operand 1 b const optional
op p draft
  code 3
  operand 0 a read
";

/// What the gate says of [`PLANTED`] with `old` replaced by `new`.
fn after(old: &str, new: &str) -> Vec<String> {
    assert_eq!(PLANTED.matches(old).count(), 1, "{old}");
    broken(PLANTED, &PLANTED.replace(old, new))
}

#[test]
fn the_gate_lets_pass_what_grows_and_what_is_a_draft() {
    for (old, new) in [
        ("core frozen", "core frozen\n  constant HALYARD_Y 2"),
        ("version 1.0 size 16", "version 1.1 size 24"),
        ("f(void * a)", "f(void * a)\n    t +16 optional uint32_t g()"),
        ("size 8\n", "size 12\n"),
        ("    s +4 uint32_t x", "    s +4 uint32_t x\n    s +8 uint32_t y"),
        (
            "operand 1 b const optional",
            "operand 1 b const optional\n  operand 2 c read optional",
        ),
        (
            "op p draft\n  code 3\n  operand 0 a read",
            "op p draft\n  code 4\n  operand 0 b write",
        ),
        ("op p draft\n  code 3\n  operand 0 a read\n", ""),
        (
            "op p draft",
            "interface j frozen\n  table u interface 2 version 1.0 size 8\n    u +8 required void h()\nop p frozen",
        ),
    ] {
        assert_eq!(after(old, new), Vec::<String>::new(), "{new}");
    }
}

#[test]
fn the_gate_refuses_what_breaks_plugins() {
    for (old, new, found) in [
        // A line lost or changed.
        ("HALYARD_X 1", "HALYARD_X 2", "core: lost `constant HALYARD_X 1`"),
        (
            "(uint32_t level)",
            "(uint64_t level)",
            "core: lost `function halyard_log_fn void (uint32_t level)`",
        ),
        (
            "fixed size 16",
            "fixed size 24",
            "core: lost `struct halyard_str fixed size 16`",
        ),
        (
            "const uint8_t * ptr",
            "uint8_t * ptr",
            "core: lost `halyard_str +0 const uint8_t * ptr`",
        ),
        (
            "s +4 uint32_t x",
            "s +4 int32_t x",
            "interface i: lost `s +4 uint32_t x`",
        ),
        (
            "base 8 size 8",
            "base 12 size 12",
            "interface i: lost `struct s base 8 size 8`",
        ),
        (
            "base 8 size 8",
            "base 8 size 4",
            "interface i: lost `struct s base 8 size 8`",
        ),
        (
            "required uint32_t f(",
            "optional uint32_t f(",
            "interface i: lost `t +8 required uint32_t f(void * a)`",
        ),
        (
            "version 1.0",
            "version 2.0",
            "interface i: lost `table t interface 1 version 1.0 size 16`",
        ),
        ("  code 2\n", "  code 5\n", "op o: lost `code 2`"),
        // A changed op version.
        ("  version 1\n", "  version 2\n", "op o: lost `version 1`"),
        // A reordered operand, and one whose use changed.
        (
            "operand 1 b const optional",
            "operand 1 b const",
            "op o: lost `operand 1 b const optional`",
        ),
        // A new required function or operand.
        (
            "f(void * a)",
            "f(void * a)\n    t +16 required uint32_t g()",
            "interface i: a new required function `t +16 required uint32_t g()`",
        ),
        (
            "b const optional",
            "b const optional\n  operand 2 c read",
            "op o: a new required operand `operand 2 c read`",
        ),
        // No way back.
        ("op o frozen", "op o draft", "op o: it is not frozen any more"),
        (
            "interface i frozen",
            "interface i2 frozen",
            "interface i: it is not frozen any more",
        ),
    ] {
        assert_eq!(after(old, new).first().map(String::as_str), Some(found), "{new}");
    }
    let reordered = after(
        "  operand 0 a read\n  operand 1 b const optional\nop p",
        "  operand 0 b const optional\n  operand 1 a read\nop p",
    );
    assert_eq!(
        reordered[..2],
        [
            "op o: lost `operand 0 a read`",
            "op o: lost `operand 1 b const optional`"
        ]
    );
}
