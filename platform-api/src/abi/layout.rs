//! What the header generator, the layout file and the loader read of the wire descriptions.

use std::fmt::Write as _;

use super::tables;
use crate::status::{Error, Result};

/// A field of a wire struct.
#[derive(Clone, Debug)]
pub struct FieldLayout {
    /// Name.
    pub name: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Spelling in C.
    pub c_type: String,
}

/// A wire struct.
#[derive(Clone, Debug)]
pub struct StructLayout {
    /// Name in C.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Starts with its size and may grow.
    pub sized: bool,
    /// Fields in order.
    pub fields: Vec<FieldLayout>,
}

/// A slot of a function table.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Name.
    pub name: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// A table without it is refused.
    pub required: bool,
    /// What the host does without it.
    pub fallback: Option<&'static str>,
    /// Return type in C.
    pub c_return: String,
    /// Arguments: name and type in C.
    pub c_args: Vec<(&'static str, String)>,
}

/// A function table.
#[derive(Clone, Debug)]
pub struct TableLayout {
    /// Name in C.
    pub name: &'static str,
    /// Interface number.
    pub id: u32,
    /// Interface name.
    pub interface: &'static str,
    /// Version of this description.
    pub version: (u32, u32),
    /// Bytes.
    pub size: usize,
    /// Slots in order.
    pub slots: Vec<Slot>,
}

/// A sized wire struct.
///
/// # Safety
/// repr(C), plain data, any byte pattern valid, first field `struct_size: u32`, no padding holes.
pub unsafe trait AbiLayout: Copy {
    /// The description.
    fn layout() -> StructLayout;
}

/// A function table.
///
/// # Safety
/// repr(C): `struct_size: u32`, `minor: u32`, then nullable function pointers.
pub unsafe trait AbiTable: Copy {
    /// Interface number.
    const ID: u32;

    /// The description.
    fn table_layout() -> TableLayout;

    /// Copies another side's table of any size into a full one and checks its required slots.
    ///
    /// # Errors
    /// `Incompatible` naming every missing slot; `InvalidArgument` for null.
    ///
    /// # Safety
    /// `ptr` is null, or starts with a u32 that is the number of readable bytes there.
    unsafe fn load(ptr: *const Self) -> Result<Self> {
        let layout = Self::table_layout();
        if ptr.is_null() {
            return Err(Error::invalid(format!("{}: null table", layout.name)));
        }
        // SAFETY: as the caller promises.
        let size = unsafe { *ptr.cast::<u32>() } as usize;
        // SAFETY: tables are sizes and nullable pointers, for which zero bytes are valid.
        let mut table: Self = unsafe { std::mem::zeroed() };
        let taken = size.min(size_of::<Self>());
        // SAFETY: `taken` is within both.
        unsafe { std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), std::ptr::from_mut(&mut table).cast::<u8>(), taken) };
        let is_null = |slot: &&Slot| {
            // SAFETY: `offset` is a pointer-sized slot inside `table`.
            slot.required && unsafe { *std::ptr::from_ref(&table).cast::<u8>().add(slot.offset).cast::<usize>() } == 0
        };
        let missing: Vec<&str> = layout.slots.iter().filter(is_null).map(|slot| slot.name).collect();
        if missing.is_empty() {
            Ok(table)
        } else {
            Err(Error::new(
                crate::Status::Incompatible,
                format!(
                    "interface {} ({} of {} bytes) lacks required functions: {}",
                    layout.interface,
                    size,
                    layout.size,
                    missing.join(", ")
                ),
            ))
        }
    }
}

pub(crate) fn layout_of_wire<Op, W: AbiLayout>(_: fn(&Op) -> W) -> StructLayout {
    W::layout()
}

/// The checked-in layout file: one line per constant, struct, field, table and slot.
pub fn layout_lines() -> String {
    let mut out = String::new();
    for (name, value) in tables::constants() {
        // Its own version moves with every release of the contract.
        if name != "HALYARD_ABI_MINOR" {
            let _ = writeln!(out, "constant {name} {value}");
        }
    }
    for s in tables::structs() {
        let _ = writeln!(
            out,
            "struct {} size {}{}",
            s.name,
            s.size,
            if s.sized { "" } else { " fixed" }
        );
        for f in &s.fields {
            let _ = writeln!(out, "  {} +{} {} {}", s.name, f.offset, f.c_type, f.name);
        }
    }
    for t in tables::tables() {
        let _ = writeln!(
            out,
            "table {} interface {} version {}.{} size {}",
            t.name, t.interface, t.version.0, t.version.1, t.size
        );
        for slot in &t.slots {
            let args: Vec<String> = slot.c_args.iter().map(|(name, ty)| format!("{ty} {name}")).collect();
            let need = if slot.required { "required" } else { "optional" };
            let _ = writeln!(
                out,
                "  {} +{} {need} {} {}({})",
                t.name,
                slot.offset,
                slot.c_return,
                slot.name,
                args.join(", ")
            );
        }
    }
    out
}

/// The C header.
pub fn header() -> String {
    let mut out = String::from(HEADER_TOP);
    for (name, code) in tables::constants() {
        let _ = writeln!(out, "#define {name} {code}u");
    }
    out.push('\n');
    for s in tables::structs() {
        let _ = writeln!(out, "typedef struct {} {{", s.name);
        for f in &s.fields {
            let _ = writeln!(out, "    {};", declare(&f.c_type, f.name));
        }
        let _ = writeln!(out, "}} {};\n", s.name);
    }
    for t in tables::tables() {
        let _ = writeln!(
            out,
            "/* interface {} {}.{} */\ntypedef struct {} {{",
            t.interface, t.version.0, t.version.1, t.name
        );
        let _ = writeln!(out, "    uint32_t struct_size;\n    uint32_t minor;");
        for slot in &t.slots {
            let args: Vec<String> = slot.c_args.iter().map(|(name, ty)| declare(ty, name)).collect();
            let args = if args.is_empty() {
                "void".to_string()
            } else {
                args.join(", ")
            };
            let note = match (slot.required, slot.fallback) {
                (true, _) => "required".to_string(),
                (false, Some(fallback)) => format!("optional: {fallback}"),
                (false, None) => "optional".to_string(),
            };
            let _ = writeln!(out, "    {} (*{})({args}); /* {note} */", slot.c_return, slot.name);
        }
        let _ = writeln!(out, "}} {};\n", t.name);
    }
    out.push_str(HEADER_END);
    out
}

/// A C declaration of `name`, with an array's bounds after the name.
fn declare(c_type: &str, name: &str) -> String {
    match c_type.split_once('[') {
        Some((element, bounds)) => format!("{element} {name}[{bounds}"),
        None if c_type.ends_with('*') => format!("{c_type}{name}"),
        None => format!("{c_type} {name}"),
    }
}

const HEADER_TOP: &str =
    "/* halyard.h: the plugin contract in C. Generated by platform-api (test `header_is_current`); do not edit.
 * Rules and meaning: docs/abi.md. C99 and C++17. */
#ifndef HALYARD_H
#define HALYARD_H

#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif

typedef struct halyard_str {
    const uint8_t *ptr;
    uint64_t len;
} halyard_str;

typedef struct halyard_u64s {
    const uint64_t *ptr;
    uint64_t len;
} halyard_u64s;

/* Logs text under target at level 1 error, 2 warn, 3 info, 4 debug, 5 trace. */
typedef void (*halyard_log_fn)(void *context, uint32_t level, halyard_str target, halyard_str text);

/* Finds the table of an interface for the host's range major.0 to major.max_minor. Returns a status. */
struct halyard_error;
typedef uint32_t (*halyard_interface_fn)(void *instance, uint32_t id, uint32_t major, uint32_t max_minor,
                                         const void **out, struct halyard_error *err);

";

const HEADER_END: &str = "/* The entry symbol that a plugin's manifest names. Returns a status. */
typedef uint32_t (*halyard_entry_fn)(const halyard_host *host, halyard_plugin *out, halyard_error *err);

/* Puts a manifest, one JSON object (docs/abi.md), where the host reads it before it runs any code of the library. */
#if defined(__GNUC__)
#define HALYARD_MANIFEST(json) \\
    __attribute__((section(\".halyard.manifest\"), used)) static const char halyard_manifest[] = json \"\\n\"
#endif

#ifdef __cplusplus
}
#endif

#endif
";
