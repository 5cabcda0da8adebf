//! The macros that describe wire structs, tables and enums. Doc comments go into the descriptions: the header carries
//! them, so they must read well in C, too.

/// An enum whose values have numbers on the wire.
macro_rules! coded_enum {
    ($(#[doc = $doc:literal])* pub enum $name:ident {
        $( $(#[doc = $vdoc:literal])* $variant:ident = $code:literal ),* $(,)?
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types)]
        #[repr(u32)]
        pub enum $name { $( $(#[doc = $vdoc])* $variant = $code ),* }

        impl $name {
            /// Every value's name and wire code, for the header and the layout file.
            pub const CODES: &'static [(&'static str, u32)] = &[ $( (stringify!($variant), $code) ),* ];

            /// What the enum is, for the header.
            pub const DOC: $crate::abi::Doc = &[ $( $doc ),* ];

            /// Every value, in the order of `CODES`.
            pub const VARIANTS: [$name; [$( $code as u32 ),*].len()] = [ $( $name::$variant ),* ];

            /// What each value is, in the order of `CODES`.
            pub const DOCS: &'static [$crate::abi::Doc] = &[ $( &[ $( $vdoc ),* ] ),* ];
        }
    };
}

/// An enum that crosses as `u32` and is read back.
macro_rules! wire_enum {
    ($(#[doc = $doc:literal])* pub enum $name:ident {
        $( $(#[doc = $vdoc:literal])* $variant:ident = $code:literal ),* $(,)?
    }) => {
        $crate::abi::coded_enum! {
            $(#[doc = $doc])*
            pub enum $name { $( $(#[doc = $vdoc])* $variant = $code ),* }
        }

        impl $name {
            /// The value of a wire code.
            ///
            /// # Errors
            /// `Unsupported` for a code outside this side's list: a newer writer may know more.
            pub fn from_code(code: u32) -> $crate::Result<Self> {
                match code {
                    $( $code => Ok($name::$variant), )*
                    other => Err($crate::Error::unsupported(format!(
                        concat!(stringify!($name), " code {} is not in this side's list"), other
                    ))),
                }
            }
        }

        impl $crate::abi::WireField for $name {
            type Repr = u32;
            fn to_wire(&self) -> u32 { *self as u32 }
            fn from_wire(repr: u32) -> $crate::Result<Self> { $name::from_code(repr) }
        }
    };
}

/// A wire struct that starts with its size. Fields must leave no padding holes (a test checks). What is added after the
/// struct was frozen stands under `appended`; `informs from N` marks a field there that readers of an older minor
/// version are not shown, because it asks for nothing.
macro_rules! abi_struct {
    ($(#[doc = $doc:literal])* pub struct $name:ident = $cname:literal {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $ty:ty ),* $(,)?
    } $( appended {
        $( $(#[doc = $adoc:literal])* pub $afield:ident : $aty:ty $(, informs from $minor:literal)? ; )*
    } )? ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            /// Size of this struct as its writer knows it, in bytes.
            pub struct_size: u32,
            $( $(#[doc = $fdoc])* pub $field: $ty, )*
            $( $( $(#[doc = $adoc])* pub $afield: $aty, )* )?
        }

        impl $name {
            /// All zero, with the size set.
            pub fn zeroed() -> Self {
                // SAFETY: wire structs hold integers, floats and raw pointers only, for which all-zero bytes are valid.
                let mut value: Self = unsafe { ::std::mem::zeroed() };
                value.struct_size = size_of::<Self>() as u32;
                value
            }
        }

        // SAFETY: repr(C), plain data, first field is struct_size.
        unsafe impl $crate::abi::AbiLayout for $name {
            const MIN_SIZE: usize = {
                let ends = [
                    size_of::<u32>(),
                    $( ::std::mem::offset_of!($name, $field) + size_of::<$ty>(), )*
                ];
                ends[ends.len() - 1]
            };

            fn for_minor(&mut self, minor: u32) {
                let _ = minor;
                $( $( $(
                    if minor < $minor {
                        // SAFETY: wire structs hold integers, floats and raw pointers only.
                        self.$afield = unsafe { ::std::mem::zeroed() };
                    }
                )? )* )?
            }

            fn layout() -> $crate::abi::StructLayout {
                $crate::abi::StructLayout {
                    name: $cname,
                    size: size_of::<Self>(),
                    base: <Self as $crate::abi::AbiLayout>::MIN_SIZE,
                    sized: true,
                    doc: &[ $( $doc ),* ],
                    fields: vec![
                        $crate::abi::FieldLayout {
                            name: "struct_size", offset: 0, size: 4, c_type: "uint32_t".to_string(), doc: &[]
                        },
                        $( $crate::abi::FieldLayout {
                            name: stringify!($field),
                            offset: ::std::mem::offset_of!($name, $field),
                            size: size_of::<$ty>(),
                            c_type: <$ty as $crate::abi::AbiType>::c_type(),
                            doc: &[ $( $fdoc ),* ],
                        }, )*
                        $( $( $crate::abi::FieldLayout {
                            name: stringify!($afield),
                            offset: ::std::mem::offset_of!($name, $afield),
                            size: size_of::<$aty>(),
                            c_type: <$aty as $crate::abi::AbiType>::c_type(),
                            doc: &[ $( $adoc ),* ],
                        }, )* )?
                    ],
                }
            }
        }

        // SAFETY: repr(C) plain data.
        unsafe impl $crate::abi::AbiType for $name {
            fn c_type() -> String { $cname.to_string() }
        }
    };
}

/// A wire struct of fixed size: no size field, never changed within a major version.
macro_rules! abi_fixed_struct {
    ($(#[doc = $doc:literal])* pub struct $name:ident = $cname:literal {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $ty:ty ),* $(,)?
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[repr(C)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $ty, )* }

        impl $name {
            /// Layout for the header and the layout file.
            pub fn fixed_layout() -> $crate::abi::StructLayout {
                $crate::abi::StructLayout {
                    name: $cname,
                    size: size_of::<Self>(),
                    base: size_of::<Self>(),
                    sized: false,
                    doc: &[ $( $doc ),* ],
                    fields: vec![ $( $crate::abi::FieldLayout {
                        name: stringify!($field),
                        offset: ::std::mem::offset_of!($name, $field),
                        size: size_of::<$ty>(),
                        c_type: <$ty as $crate::abi::AbiType>::c_type(),
                        doc: &[ $( $fdoc ),* ],
                    } ),* ],
                }
            }
        }

        // SAFETY: repr(C) plain data.
        unsafe impl $crate::abi::AbiType for $name {
            fn c_type() -> String { $cname.to_string() }
        }
    };
}

/// A function table: `required` slots are checked at load, `optional` ones state the host's fallback.
macro_rules! abi_table {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident = $cname:literal,
        interface $id:literal $iface:literal version $major:literal . $minor:literal {
            $( $(#[doc = $fdoc:literal])* $kind:ident $([$fallback:literal])?
                fn $slot:ident ( $( $arg:ident : $aty:ty ),* $(,)? ) -> $ret:ty ; )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        #[allow(clippy::type_complexity)]
        pub struct $name {
            /// Size of this table as its writer knows it, in bytes.
            pub struct_size: u32,
            /// Minor version of the interface that the writer implements.
            pub minor: u32,
            $( $(#[doc = $fdoc])* pub $slot: Option<unsafe extern "C" fn( $( $arg: $aty ),* ) -> $ret>, )*
        }

        impl $name {
            /// Interface number.
            pub const INTERFACE: u32 = $id;
            /// Interface name.
            pub const INTERFACE_NAME: &'static str = $iface;
            /// Version of this description.
            pub const VERSION: (u32, u32) = ($major, $minor);
        }

        // SAFETY: repr(C): two u32, then nullable function pointers; all-zero bytes are a valid empty table.
        unsafe impl $crate::abi::AbiTable for $name {
            const ID: u32 = $id;

            fn table_layout() -> $crate::abi::TableLayout {
                $crate::abi::TableLayout {
                    name: $cname,
                    id: $id,
                    interface: $iface,
                    version: ($major, $minor),
                    size: size_of::<Self>(),
                    doc: &[ $( $doc ),* ],
                    slots: vec![ $( $crate::abi::Slot {
                        name: stringify!($slot),
                        offset: ::std::mem::offset_of!($name, $slot),
                        required: stringify!($kind) == "required",
                        fallback: { let words: &[&'static str] = &[$( $fallback )?]; words.first().copied() },
                        c_return: <$ret as $crate::abi::AbiType>::c_type(),
                        c_args: vec![ $( (stringify!($arg), <$aty as $crate::abi::AbiType>::c_type()) ),* ],
                        doc: &[ $( $fdoc ),* ],
                    } ),* ],
                }
            }
        }

        // SAFETY: repr(C) plain data.
        unsafe impl $crate::abi::AbiType for $name {
            fn c_type() -> String { $cname.to_string() }
        }
    };
}

pub(crate) use {abi_fixed_struct, abi_struct, abi_table, coded_enum, wire_enum};
