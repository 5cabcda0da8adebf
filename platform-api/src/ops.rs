//! The op catalogue: name, code, descriptor, operands, formula. One file an op family member; this one holds what
//! they share.
//!
//! A descriptor holds the static parts; shapes come with the operands. Letters in the docs: T tokens of the step, S
//! sequences of the step, R device rows, V vocabulary. Index tensors are i32. A row index −1 is padding: such a
//! sequence has no tokens, and ops write nothing for it. Padding tokens have `token_seq` −1. Unless an op says
//! otherwise, an output may be the very same tensor as an input (same buffer, offset and strides), and other overlaps
//! are not allowed.
//!
//! Computation is as if in f32: inputs are widened, the result is rounded once to the output's type. Sums of sampling
//! are finer ([`Sample`]). docs/ops.md says all of this to readers of C; it is made from the ops' doc comments.

use crate::abi::{Doc, StructLayout, coded_enum};
use crate::status::{Error, Result};

coded_enum! {
    /// How an op uses an operand.
    pub enum Access {
        /// Constant while the model is loaded: weights, tables. May be prefetched before earlier work is done.
        Const = 0,
        /// Read.
        Read = 1,
        /// Written whole; old contents do not matter.
        Write = 2,
        /// Read and written, or written in part.
        Update = 3,
    }
}

impl Access {
    /// The access of a wire code. A code that is not known here stands for the most that an op can do.
    pub fn from_code(code: u8) -> Access {
        match code {
            0 => Access::Const,
            1 => Access::Read,
            2 => Access::Write,
            _ => Access::Update,
        }
    }

    /// Whether the op changes it.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::Update)
    }
}

/// A documented operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Name in docs and errors.
    pub name: &'static str,
    /// Use.
    pub access: Access,
    /// May be absent ([`crate::Tensor::NONE`]).
    pub optional: bool,
}

/// An op as the catalogue describes it.
pub struct OpLayout {
    /// Name.
    pub name: &'static str,
    /// Code on the wire.
    pub code: u32,
    /// Operands in order.
    pub operands: &'static [Operand],
    /// Type and shape of each.
    pub operand_docs: &'static [Doc],
    /// Its descriptor, described by the op's formula.
    pub descriptor: StructLayout,
    /// Types of the descriptor's fields behind the size, as Rust names them.
    pub field_types: &'static [&'static str],
}

/// Defines an op: descriptor, wire struct, operands. Its doc comment is the formula, an operand's its type and shape.
/// Fields that came after the op was first released stand under `appended`: zero asks for what the op did before, as
/// older writers leave them out, and an older reader refuses any other value. `=> informs from N` marks a permission
/// that nobody has to use: readers of an older minor version of the ops interface are shown zero.
macro_rules! op {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident = $code:literal $op_name:literal, wire $wire:ident = $cname:literal {
            $( $(#[doc = $fdoc:literal])* $field:ident : $ty:ty ),* $(,)?
        } $( appended {
            $( $(#[doc = $adoc:literal])* $afield:ident : $aty:ty $(=> informs from $minor:literal)? ),* $(,)?
        } )?
        operands { $( $(#[doc = $odoc:literal])* $operand:ident : $access:ident $(? $optional:tt)? ),* $(,)? }
    ) => {
        $(#[doc = $doc])*
        #[doc = ""]
        #[doc = "Operands:"]
        $( #[doc = concat!("- `", stringify!($operand), "`:", $( "\n ", $odoc ),*)] )*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( $(#[doc = $fdoc])* pub $field: $ty, )*
            $( $( $(#[doc = $adoc])* pub $afield: $aty, )* )?
        }

        $crate::abi::abi_struct! {
            $(#[doc = $doc])*
            pub struct $wire = $cname {
                $( $(#[doc = $fdoc])* pub $field: <$ty as $crate::abi::WireField>::Repr, )*
            } $( appended {
                $( $(#[doc = $adoc])*
                    pub $afield: <$aty as $crate::abi::WireField>::Repr $(, informs from $minor)? ; )*
            } )?
        }

        impl $name {
            /// Code on the wire.
            pub const CODE: u32 = $code;
            /// Name in docs, logs and errors.
            pub const NAME: &'static str = $op_name;
            /// Operands in order.
            pub const OPERANDS: &'static [$crate::ops::Operand] = &[ $( $crate::ops::Operand {
                name: stringify!($operand),
                access: $crate::ops::Access::$access,
                optional: $crate::ops::op!(@optional $($optional)?),
            } ),* ];
            /// Type of each field, as Rust names it.
            pub const FIELD_TYPES: &'static [&'static str] = &[
                $( stringify!($ty), )*
                $( $( stringify!($aty), )* )?
            ];
            /// Type and shape of each operand.
            pub const OPERAND_DOCS: &'static [$crate::abi::Doc] = &[ $( &[ $( $odoc ),* ] ),* ];

            /// The wire form.
            pub fn to_wire(&self) -> $wire {
                #[allow(unused_mut)]
                let mut wire = $wire::zeroed();
                $( wire.$field = $crate::abi::WireField::to_wire(&self.$field); )*
                $( $( wire.$afield = $crate::abi::WireField::to_wire(&self.$afield); )* )?
                wire
            }

            /// From the wire form.
            ///
            /// # Errors
            /// `InvalidArgument` or `Unsupported` (a code of a newer list), naming the field and the value.
            pub fn from_wire(wire: &$wire) -> $crate::Result<Self> {
                let _ = wire;
                Ok($name {
                    $( $field: $crate::ops::op!(@read $op_name wire $field $ty), )*
                    $( $( $afield: $crate::ops::op!(@read $op_name wire $afield $aty), )* )?
                })
            }
        }
    };
    (@optional) => { false };
    (@optional $t:tt) => { true };
    (@read $op_name:literal $wire:ident $field:ident $ty:ty) => {
        <$ty as $crate::abi::WireField>::from_wire($wire.$field).map_err(|e| $crate::Error {
            message: format!(concat!($op_name, ".", stringify!($field), ": {}"), e.message),
            ..e
        })?
    };
}
pub(crate) use op;

/// Lists the ops once: modules, the enum over them, and its dispatch.
macro_rules! catalogue {
    ($( $module:ident :: $name:ident ),* $(,)?) => {
        $( pub use $module::$name; )*

        /// A descriptor of any op.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum OpSpec { $( $name($module::$name), )* Vendor(VendorOp), Unknown(UnknownOp) }

        impl OpSpec {
            /// Names of the catalogue, in code order of definition.
            pub const NAMES: &'static [&'static str] = &[ $( $module::$name::NAME ),* ];

            /// Every catalogue op's name and wire code.
            pub const CODES: &'static [(&'static str, u32)] = &[ $( ($module::$name::NAME, $module::$name::CODE) ),* ];

            /// Names whose codes and descriptors stay while no backend of this repository has the op: nothing asks for
            /// them (decision 0052).
            pub const RESERVED: &'static [&'static str] = &[data::Cast::NAME, data::CopyBlocks::NAME, data::Fill::NAME];

            /// The op's name.
            pub fn name(&self) -> &str {
                match self {
                    $( OpSpec::$name(_) => $module::$name::NAME, )*
                    OpSpec::Vendor(op) => &op.name,
                    OpSpec::Unknown(op) => &op.name,
                }
            }

            /// The op's wire code.
            pub fn code(&self) -> u32 {
                match self {
                    $( OpSpec::$name(_) => $module::$name::CODE, )*
                    OpSpec::Vendor(_) => VendorOp::CODE,
                    OpSpec::Unknown(op) => op.code,
                }
            }

            /// The descriptor's version: 1 for ever of a catalogue op, as what means something else has another code.
            pub fn version(&self) -> u32 {
                match self {
                    $( OpSpec::$name(_) => 1, )*
                    OpSpec::Vendor(op) => op.version,
                    OpSpec::Unknown(op) => op.version,
                }
            }

            /// The operands in order; empty: the catalogue here does not list them, and a node says how each is used.
            pub fn operands(&self) -> &'static [Operand] {
                match self {
                    $( OpSpec::$name(_) => $module::$name::OPERANDS, )*
                    OpSpec::Vendor(_) | OpSpec::Unknown(_) => &[],
                }
            }

            /// The descriptor's wire bytes (a struct that starts with its size). Equal specs have equal bytes.
            pub fn wire_bytes(&self) -> Vec<u8> {
                self.wire_bytes_for(u32::MAX)
            }

            /// The same for a reader of minor version `minor` of the ops interface.
            pub(crate) fn wire_bytes_for(&self, minor: u32) -> Vec<u8> {
                match self {
                    $( OpSpec::$name(op) => {
                        let mut wire = op.to_wire();
                        $crate::abi::AbiLayout::for_minor(&mut wire, minor);
                        $crate::abi::struct_bytes(&wire)
                    } )*
                    OpSpec::Vendor(op) => op.descriptor.clone(),
                    OpSpec::Unknown(op) => op.descriptor.clone(),
                }
            }

            /// Reads a descriptor from wire bytes: fields that were appended later may be missing and are zero then;
            /// what lies past those known here must be zero.
            ///
            /// # Errors
            /// `Unsupported` for an unknown code, a newer version, an unknown enum value or non-zero unknown bytes;
            /// `InvalidArgument` for bad values and for fewer bytes than the op ever had.
            pub fn from_wire(code: u32, version: u32, name: &str, bytes: &[u8]) -> Result<OpSpec> {
                match code {
                    $( $module::$name::CODE => {
                        if version > 1 {
                            return Err(Error::unsupported(format!(
                                "op {} version {version}: this side knows version 1", $module::$name::NAME
                            )));
                        }
                        let wire = $crate::abi::struct_from_bytes(bytes)?;
                        Ok(OpSpec::$name($module::$name::from_wire(&wire)?))
                    } )*
                    VendorOp::CODE => Ok(OpSpec::Vendor(VendorOp { name: name.to_string(), version,
                        descriptor: bytes.to_vec() })),
                    other => Err(Error::unsupported(format!("op code {other} is not in this side's catalogue"))),
                }
            }
        }

        $( impl From<$module::$name> for OpSpec { fn from(op: $module::$name) -> OpSpec { OpSpec::$name(op) } } )*

        /// Every op, for the header, the layout file and docs/ops.md.
        pub fn layouts() -> Vec<OpLayout> {
            vec![ $( OpLayout {
                name: $module::$name::NAME,
                code: $module::$name::CODE,
                operands: $module::$name::OPERANDS,
                operand_docs: $module::$name::OPERAND_DOCS,
                descriptor: $crate::abi::layout_of_wire($module::$name::to_wire),
                field_types: $module::$name::FIELD_TYPES,
            }, )* ]
        }
    };
}

mod attention;
mod collective;
mod data;
mod embedding;
mod latent;
mod linear;
mod lora;
mod moe;
mod norm;
mod pointwise;
mod rope;
mod sampling;
mod step;

pub use data::{PoolMode, QuantizeScheme};
pub use linear::Epilogue;
pub use moe::Scoring;
pub use pointwise::GeluKind;
pub use rope::RopeStyle;
pub use sampling::{NO_TOKEN, NOT_FINITE, SamplingRow};
pub use step::{RESULT_HEADER, STEP_HEADER};

catalogue! {
    embedding::Embedding,
    linear::Linear,
    lora::LoraShrink,
    lora::LoraExpand,
    norm::RmsNorm,
    norm::LayerNorm,
    rope::Rope,
    attention::KvWrite,
    attention::Attention,
    pointwise::SiluMul,
    pointwise::GeluMul,
    pointwise::Gelu,
    pointwise::Add,
    pointwise::Scale,
    pointwise::Softcap,
    data::GatherRows,
    data::ScatterRows,
    step::PrepareInputs,
    step::SlotMapping,
    step::UpdateRows,
    data::QuantizeAct,
    moe::MoeRoute,
    moe::MoeLinear,
    moe::MoeCombine,
    sampling::LogitsProcess,
    sampling::Argmax,
    sampling::Sample,
    sampling::TopLogprobs,
    data::Pool,
    data::Cast,
    data::Copy,
    data::CopyBlocks,
    data::Fill,
    data::FillRandom,
    collective::Collective,
    pointwise::ReluSquared,
    latent::HeadLinear,
    latent::LatentWrite,
    latent::LatentAttention,
}

impl OpSpec {
    /// What of it is not known here; `None`: it is known.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            OpSpec::Unknown(op) => Some(&op.reason),
            _ => None,
        }
    }
}

/// An op of a program that this side cannot read: of a newer catalogue, or with a value or a field that is newer. It
/// passes on as it came; nobody here can run it.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownOp {
    /// Its code on the wire.
    pub code: u32,
    /// Its version.
    pub version: u32,
    /// Its name.
    pub name: String,
    /// Its descriptor's bytes.
    pub descriptor: Vec<u8>,
    /// What of it is not known here.
    pub reason: String,
}

/// A vendor's own op, `vendor.name`: found by name at load, used by a plugin's own fusion rules.
#[derive(Clone, Debug, PartialEq)]
pub struct VendorOp {
    /// `vendor.name`.
    pub name: String,
    /// The vendor's version.
    pub version: u32,
    /// The vendor's descriptor bytes.
    pub descriptor: Vec<u8>,
}

/// First code, of ops, types, formats, kinds, interfaces, collectives and statuses alike, that this contract never
/// gives out: experiments and vendors take theirs from here on. Capability bits 48 to 63 are theirs, too.
pub const VENDOR_CODES: u32 = 0x8000_0000;

impl VendorOp {
    /// Code on the wire of every vendor op.
    pub const CODE: u32 = VENDOR_CODES;
}
