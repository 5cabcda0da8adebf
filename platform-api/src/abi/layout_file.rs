//! The checked-in layout file: what crosses, in sections that are draft or frozen each. A section is an interface (its
//! table and the structs that it uses, which others may use, too), an op, or `core`: what all of them need.

use std::fmt::Write as _;

use super::constants::groups;
use super::header::access_word;
use super::layout::{StructLayout, TableLayout};
use super::plain_types::{function_types, plain_structs};
use super::tables;
use crate::ops::{OpLayout, layouts};

/// Sections that no release changes any more, but for what rules of growth allow; all others are draft. What becomes
/// frozen is never taken out again: the gate (tests/layout_gate.rs) sees to it.
const FROZEN: &[&str] = &[];

/// Structs of `core`.
const CORE: [&str; 5] = [
    "halyard_str",
    "halyard_u64s",
    "halyard_error",
    "halyard_host",
    "halyard_plugin",
];

/// The layout file.
pub fn layout_lines() -> String {
    let mut out = String::new();
    let mut section = |name: &str, lines: Vec<String>| {
        let state = if FROZEN.contains(&name) { "frozen" } else { "draft" };
        let _ = writeln!(out, "{name} {state}");
        for line in constant_lines(name).into_iter().chain(lines) {
            let _ = writeln!(out, "  {line}");
        }
    };
    let structs: Vec<StructLayout> = plain_structs().into_iter().chain(tables::structs()).collect();
    section("core", core_lines(&structs));
    for table in tables::tables() {
        section(&format!("interface {}", table.interface), table_lines(&table, &structs));
    }
    for op in layouts() {
        section(&format!("op {}", op.name), op_lines(&op, &structs));
    }
    out
}

fn constant_lines(section: &str) -> Vec<String> {
    let here = groups().into_iter().filter(|group| group.sections.contains(&section));
    let constants = here.flat_map(|group| group.constants);
    constants
        .map(|constant| format!("constant {} {}", constant.name, constant.value.plain()))
        .collect()
}

fn core_lines(structs: &[StructLayout]) -> Vec<String> {
    let of_function =
        |f: super::plain_types::FunctionType| format!("function {} {} ({})", f.name, f.c_return, arguments(&f.c_args));
    let mut lines: Vec<String> = function_types().into_iter().map(of_function).collect();
    lines.extend(struct_lines(structs, |s| CORE.contains(&s.name)));
    lines
}

fn arguments(args: &[(&'static str, String)]) -> String {
    let args: Vec<String> = args.iter().map(|(name, ty)| format!("{ty} {name}")).collect();
    args.join(", ")
}

fn struct_lines(structs: &[StructLayout], here: impl Fn(&StructLayout) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    for s in structs.iter().filter(|s| here(s)) {
        lines.push(match s.sized {
            true => format!("struct {} base {} size {}", s.name, s.base, s.size),
            false => format!("struct {} fixed size {}", s.name, s.size),
        });
        let fields = s.fields.iter();
        lines.extend(fields.map(|f| format!("  {} +{} {} {}", s.name, f.offset, f.c_type, f.name)));
    }
    lines
}

fn table_lines(table: &TableLayout, structs: &[StructLayout]) -> Vec<String> {
    let (major, minor) = table.version;
    let mut lines = vec![format!(
        "table {} interface {} version {major}.{minor} size {}",
        table.name, table.id, table.size
    )];
    for slot in &table.slots {
        let need = if slot.required { "required" } else { "optional" };
        lines.push(format!(
            "  {} +{} {need} {} {}({})",
            table.name,
            slot.offset,
            slot.c_return,
            slot.name,
            arguments(&slot.c_args)
        ));
    }
    let types = table
        .slots
        .iter()
        .flat_map(|slot| slot.c_args.iter().map(|(_, ty)| ty.as_str()));
    let mut used = reached(types, structs);
    if table.interface == "stat_logger" {
        // Behind untyped pointers.
        used.extend(crate::hooks::record_layouts().iter().map(|record| record.name));
    }
    lines.extend(struct_lines(structs, |s| {
        used.contains(&s.name) && !CORE.contains(&s.name)
    }));
    lines
}

/// Names of the structs that these types of C name, and of those that these use in turn.
fn reached<'s>(types: impl Iterator<Item = &'s str>, structs: &'s [StructLayout]) -> Vec<&'s str> {
    let mut next: Vec<&str> = types.collect();
    let mut found: Vec<&str> = Vec::new();
    while let Some(ty) = next.pop() {
        let named = structs.iter().find(|s| ty.split([' ', '[']).any(|word| word == s.name));
        if let Some(s) = named.filter(|s| !found.contains(&s.name)) {
            found.push(s.name);
            next.extend(s.fields.iter().map(|field| field.c_type.as_str()));
        }
    }
    found
}

fn op_lines(op: &OpLayout, structs: &[StructLayout]) -> Vec<String> {
    let mut lines = vec![format!("code {}", op.code), "version 1".to_string()];
    for (at, operand) in op.operands.iter().enumerate() {
        let optional = if operand.optional { " optional" } else { "" };
        lines.push(format!(
            "operand {at} {} {}{optional}",
            operand.name,
            access_word(operand.access)
        ));
    }
    let takes_sampling_rows = op.operands.iter().any(|operand| operand.name == "row_sampling");
    lines.extend(struct_lines(structs, |s| {
        s.name == op.descriptor.name || takes_sampling_rows && s.name == "halyard_sampling_row"
    }));
    lines
}
