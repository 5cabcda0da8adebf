//! The C header: every number, struct, function and op with its description.

use super::comments::{WIDTH, comment, described, paragraphs, wrap};
use super::constants::{groups, screaming};
use super::layout::{Slot, StructLayout, TableLayout};
use super::plain_types::{FunctionType, function_types, plain_structs};
use super::tables;
use crate::ops::{Access, OpLayout, layouts};

/// The C header.
pub fn header() -> String {
    let mut out = String::from(HEADER_TOP);
    let (major, minor) = (tables::ABI_MAJOR, tables::ABI_MINOR);
    out +=
        &format!("/** The contract's version, for a manifest's `abi`. */\n#define HALYARD_ABI \"{major}.{minor}\"\n\n");
    for group in groups() {
        // Of the whole group, not of its first number.
        out += &comment(&group.doc, "").replacen("/**", "/*", 1);
        for constant in &group.constants {
            let line = format!("#define {} {}", constant.name, constant.value.in_c());
            out += &described(&line, "", &constant.doc);
        }
        out.push('\n');
    }
    let ops = layouts();
    // What the functions' types name comes before them.
    let (first, rest): (Vec<StructLayout>, Vec<StructLayout>) =
        tables::structs().into_iter().partition(|s| s.name == "halyard_error");
    plain_structs().iter().chain(&first).for_each(|s| out += &structure(s));
    let (entry, others): (Vec<FunctionType>, Vec<FunctionType>) =
        function_types().into_iter().partition(|f| f.name == "halyard_entry_fn");
    others.iter().for_each(|f| out += &function_type(f));
    for s in rest
        .iter()
        .filter(|s| ops.iter().all(|op| op.descriptor.name != s.name))
    {
        out += &structure(s);
    }
    entry.iter().for_each(|f| out += &function_type(f));
    tables::tables().iter().for_each(|t| out += &table(t));
    ops.iter().for_each(|o| out += &op(o));
    out + HEADER_END
}

/// A C declaration of `name`, with an array's bounds after the name.
fn declare(c_type: &str, name: &str) -> String {
    match c_type.split_once('[') {
        Some((element, bounds)) => format!("{element} {name}[{bounds}"),
        None if c_type.ends_with('*') => format!("{}{name}", c_type.replace("* *", "**")),
        None => format!("{c_type} {name}"),
    }
}

/// A function's declaration: what stands before its arguments, and they, broken into lines.
fn function(start: &str, args: &[(&'static str, String)], indent: &str) -> String {
    // Lines break between arguments only.
    let whole = |text: &str| text.replace(' ', "\u{a0}");
    let args: Vec<String> = args.iter().map(|(name, ty)| whole(&declare(ty, name))).collect();
    let text = match args.is_empty() {
        true => "void".to_string(),
        false => args.join(", "),
    };
    let lines = wrap(&format!("{}({text});", whole(start)), WIDTH - indent.len() - 4);
    lines.join(&format!("\n{indent}    ")).replace('\u{a0}', " ")
}

fn function_type(f: &FunctionType) -> String {
    let start = format!("typedef {} (*{})", f.c_return, f.name);
    format!(
        "{}{}\n\n",
        comment(&paragraphs(f.doc), ""),
        function(&start, &f.c_args, "")
    )
}

fn structure(s: &StructLayout) -> String {
    structure_with(s, &paragraphs(s.doc), |_| None) + "\n"
}

/// A struct with `doc` above it, and `more(i)` behind the description of its field `i`.
fn structure_with(s: &StructLayout, doc: &[String], more: impl Fn(usize) -> Option<String>) -> String {
    let mut out = comment(doc, "");
    out += &format!("typedef struct {} {{\n", s.name);
    for (i, field) in s.fields.iter().enumerate() {
        let mut doc = paragraphs(field.doc);
        if let (Some(last), Some(more)) = (doc.last_mut(), more(i)) {
            *last = format!("{} ({more}).", last.trim_end_matches('.'));
        }
        let line = format!("{};", declare(&field.c_type, field.name));
        out += &described(&line, "    ", &doc);
    }
    out += &format!("}} {};\n", s.name);
    if s.sized {
        // As it is named, for a macro that is given the type's name.
        out += &format!("#define {}_base_size {}u\n", s.name, s.base);
    }
    out
}

fn table(t: &TableLayout) -> String {
    let mut doc = paragraphs(t.doc);
    let what = format!("Interface {} {}.{}.", t.interface, t.version.0, t.version.1);
    doc.insert(0, what);
    let mut out = comment(&doc, "");
    out += &format!("typedef struct {} {{\n", t.name);
    out += "    uint32_t struct_size; /**< Size of this table as its writer knows it, in bytes. */\n";
    out += "    uint32_t minor; /**< Minor version of the interface that its writer implements. */\n";
    for slot in &t.slots {
        out += &slot_text(slot);
    }
    out + &format!("}} {};\n\n", t.name)
}

fn slot_text(slot: &Slot) -> String {
    let mut doc = paragraphs(slot.doc);
    if !slot.required {
        let without = slot.fallback.unwrap_or("it is not used");
        doc.push(format!("Optional. Null: {without}."));
    }
    let start = format!("{} (*{})", slot.c_return, slot.name);
    format!(
        "\n{}    {}\n",
        comment(&doc, "    "),
        function(&start, &slot.c_args, "    ")
    )
}

fn op(op: &OpLayout) -> String {
    let upper = op.name.to_uppercase();
    let mut doc = paragraphs(op.descriptor.doc);
    doc.insert(0, format!("Op {} (HALYARD_OP_{upper}).", op.name));
    let mut out = structure_with(&op.descriptor, &doc, |field| values_in_c(op, field));
    for (at, (operand, doc)) in op.operands.iter().zip(op.operand_docs).enumerate() {
        let mut text = paragraphs(doc);
        let optional = if operand.optional { ", optional" } else { "" };
        if let Some(first) = text.first_mut() {
            *first = format!("{:?}{optional}. {first}", operand.access);
        }
        let line = format!("#define HALYARD_{upper}_{} {at}u", operand.name.to_uppercase());
        out += &described(&line, "", &text);
    }
    out + &format!("#define HALYARD_{upper}_NUM_OPERANDS {}u\n\n", op.operands.len())
}

/// How an op uses an operand, in a word.
pub(super) fn access_word(access: Access) -> &'static str {
    match access {
        Access::Const => "const",
        Access::Read => "read",
        Access::Write => "write",
        Access::Update => "update",
    }
}

/// Which numbers a field of an op's descriptor takes, where these have names.
pub(super) fn values_in_c(op: &OpLayout, field: usize) -> Option<String> {
    // The size is no field of the op.
    let ty = op.field_types.get(field.checked_sub(1)?)?;
    match *ty {
        "u32" | "i32" | "u64" | "f32" => None,
        "bool" => Some("0 or 1".to_string()),
        "DType" => Some("HALYARD_DTYPE_".to_string()),
        "WeightFormat" => Some("HALYARD_WEIGHT_".to_string()),
        other => Some(format!("HALYARD_{}_", screaming(other))),
    }
}

const HEADER_TOP: &str =
    "/* halyard.h: the plugin contract in C. Generated by platform-api (test `header_is_current`); do not edit.
 * Rules: docs/abi.md. Ops, formats of weights, random numbers: docs/ops.md. C99 and C++17.
 *
 * What holds unless a comment says otherwise:
 *
 * Structs and tables that begin with struct_size are sized: their writer sets it to the bytes that the struct has in
 * its header, and later versions append. NAME_base_size is what a struct had from the beginning; one of fewer bytes is
 * HALYARD_STATUS_INVALID_ARGUMENT. Reserved fields are zero. `halyard_sdk.h` has the helpers that keep these rules.
 *
 * A function returns a HALYARD_STATUS_ code. On anything but HALYARD_STATUS_OK it fills `err`, which may be null, and
 * writes no other output. Any thread may call it, several at once, and it may block; what is to be used by one thread
 * at a time, the comment of its table says. Every function of a table is there, unless its comment calls it optional.
 *
 * Inputs are borrowed for the call. A handle is the plugin's pointer; the host owns it and releases it once. Ids are
 * the plugin's numbers, alive as long as what they name, and no bit of one has a meaning for the host.
 *
 * Offsets, sizes and strides of arrays are in bytes; shapes and strides of tensors in elements. Texts are UTF-8. Flags
 * are 0 or 1. Layouts are LP64, little-endian. */
#ifndef HALYARD_H
#define HALYARD_H

#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif

";

const HEADER_END: &str =
    "/** Puts a manifest, one JSON object (docs/abi.md), where the host reads it before it runs code of the library. */
#if defined(__GNUC__)
#define HALYARD_MANIFEST(json) \\
    __attribute__((section(\".halyard.manifest\"), used)) static const char halyard_manifest[] = json \"\\n\"
#endif

#ifdef __cplusplus
}
#endif

#endif
";
