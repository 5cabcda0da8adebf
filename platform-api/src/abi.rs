//! The wire: `repr(C)` structs and function tables, each described once so that the Rust type, the C header, the layout
//! file and the load-time checks come from the same lines.
//!
//! Rules (docs/abi.md): every struct starts with its size, is append-only and has no padding holes; arrays carry their
//! stride; a reader takes what it knows, and refuses non-zero bytes past that; the hot [`crate::Tensor`] is fixed.
//! Enums and bools cross as `u32` and are validated. Errors go into a caller-owned [`ErrorOut`].

mod comments;
mod constants;
mod convert;
mod header;
mod layout;
mod layout_file;
pub mod limits;
pub mod logits_tables;
mod macros;
mod ops_page;
mod plain_types;
pub mod request_tables;
pub mod shim;
mod spec;
mod structs;
pub mod tables;
mod types;

pub use header::header;
pub(crate) use layout::layout_of_wire;
pub use layout::{AbiLayout, AbiTable, Doc, FieldLayout, Slot, StructLayout, TableLayout};
pub use layout_file::layout_lines;
pub(crate) use macros::{abi_fixed_struct, abi_struct, coded_enum, wire_enum};
pub use ops_page::ops_page;
pub use spec::{ProgramBytes, SpecBytes, read_program, read_spec};
pub use types::{
    AbiType, ErrorOut, Str, U64s, WireField, check_output, read_element, read_known, read_known_element, read_struct,
    struct_bytes, struct_from_bytes, write_struct,
};
