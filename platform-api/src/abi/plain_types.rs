//! The types of the wire that no macro describes: texts, lists of numbers, and the types of functions. Each is held to
//! its Rust twin.

use std::ffi::c_void;
use std::mem::offset_of;

use super::layout::{Doc, FieldLayout, StructLayout};
use super::logits_tables::{EncodeFn, TokenBytesFn};
use super::tables::{EntryFn, Host, InterfaceFn, LogFn, Plugin};
use super::types::{AbiType, ErrorOut, Str, U64s};

/// A type of function.
pub(super) struct FunctionType {
    /// Name in C.
    pub(super) name: &'static str,
    /// Return type in C.
    pub(super) c_return: String,
    /// Arguments: name and type in C.
    pub(super) c_args: Vec<(&'static str, String)>,
    /// What it does.
    pub(super) doc: Doc,
}

/// Describes function types; does not compile where a description is not its type.
macro_rules! function_types {
    ($( $(#[doc = $doc:literal])*
        $ty:ident = $cname:literal fn( $( $arg:ident : $aty:ty ),* $(,)? ) -> $ret:ty ; )*) => {
        vec![ $( {
            let _is_the_same: fn($ty) -> unsafe extern "C" fn( $( $aty ),* ) -> $ret = |function| function;
            FunctionType {
                name: $cname,
                c_return: <$ret as AbiType>::c_type(),
                c_args: vec![ $( (stringify!($arg), <$aty as AbiType>::c_type()) ),* ],
                doc: &[ $( $doc ),* ],
            }
        } ),* ]
    };
}

/// The function types, in header order.
pub(super) fn function_types() -> Vec<FunctionType> {
    function_types! {
        /// Logs `text` at a level of HALYARD_LOG_ under `target`, the plugin's own name for a part of it. Any thread.
        /// Both texts are borrowed for the call. May block for as long as the host's log does.
        LogFn = "halyard_log_fn" fn(context: *mut c_void, level: u32, target: Str, text: Str) -> ();
        /// Finds the table of interface `id` (HALYARD_INTERFACE_) for the host's range `major`.0 to
        /// `major`.`max_minor`. The table is valid for the life of the process. One of a higher minor version is fine,
        /// as tables only grow. HALYARD_STATUS_UNSUPPORTED where the plugin has no such interface,
        /// HALYARD_STATUS_INCOMPATIBLE (with words) where its major version is another.
        InterfaceFn = "halyard_interface_fn" fn(instance: *mut c_void, id: u32, major: u32, max_minor: u32,
            out: *mut *const c_void, err: *mut ErrorOut) -> u32;
        /// The entry symbol that a plugin's manifest names. Compares ABI ranges, starts the instance and fills `out`;
        /// or refuses with HALYARD_STATUS_INCOMPATIBLE and words. Called at start; a host of several major versions
        /// calls it again with another offer, so that it may be called twice.
        EntryFn = "halyard_entry_fn" fn(host: *const Host, out: *mut Plugin, err: *mut ErrorOut) -> u32;
        /// The host's: turns a text into token ids, special tokens that stand in it included, without tokens that the
        /// tokenizer would put before or behind it. Writes at most `capacity` of them, and to `num` how many there are:
        /// ask again with room for all. Any thread. `context` is that of halyard_logits_model.
        EncodeFn = "halyard_encode_fn" fn(context: *mut c_void, text: Str, out: *mut u32, capacity: u32, num: *mut u32,
            err: *mut ErrorOut) -> u32;
        /// The host's: the bytes that a token stands for in a text, of a special token its name. Writes at most
        /// `capacity` of them, and to `num` how many there are; 0 of an id that stands for nothing. Any thread.
        /// `context` is that of halyard_logits_model.
        TokenBytesFn = "halyard_token_bytes_fn" fn(context: *mut c_void, token: u32, out: *mut u8, capacity: u32,
            num: *mut u32, err: *mut ErrorOut) -> u32;
    }
}

fn field<T: AbiType>(name: &'static str, offset: usize, _of: fn() -> T, doc: Doc) -> FieldLayout {
    FieldLayout {
        name,
        offset,
        size: size_of::<T>(),
        c_type: T::c_type(),
        doc,
    }
}

/// Texts and lists of numbers, as structs of fixed size.
pub(super) fn plain_structs() -> [StructLayout; 2] {
    let number_of = |name, size, doc, fields| StructLayout {
        name,
        size,
        base: size,
        sized: false,
        doc,
        fields,
    };
    [
        number_of(
            "halyard_str",
            size_of::<Str>(),
            &["A text in UTF-8, not terminated, that the other side owns. Empty: the pointer may be null."],
            vec![
                field::<*const u8>("ptr", offset_of!(Str, ptr), std::ptr::null, &["First byte."]),
                field::<u64>("len", offset_of!(Str, len), || 0, &["Bytes."]),
            ],
        ),
        number_of(
            "halyard_u64s",
            size_of::<U64s>(),
            &["Numbers that the other side owns. None: the pointer may be null."],
            vec![
                field::<*const u64>("ptr", offset_of!(U64s, ptr), std::ptr::null, &["First number."]),
                field::<u64>("len", offset_of!(U64s, len), || 0, &["How many."]),
            ],
        ),
    ]
}
