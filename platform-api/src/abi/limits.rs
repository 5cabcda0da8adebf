//! The limits that host and plugins keep: what is beyond them is refused, never cut.

use super::layout::Doc;

/// Defines limits, and lists them for the header.
macro_rules! limits {
    ($( $(#[doc = $doc:literal])* $name:ident = $value:expr ; )*) => {
        $( $(#[doc = $doc])* pub const $name: u32 = $value; )*

        /// Name, value and meaning of each.
        pub(super) const ALL: &[(&str, u32, Doc)] = &[ $( (stringify!($name), $name, &[ $( $doc ),* ]) ),* ];
    };
}

limits! {
    /// Most bytes of a struct and of an op's descriptor.
    MAX_STRUCT_BYTES = 1 << 20;
    /// Most nodes and most tensors of a program, and most operands of a node.
    MAX_PROGRAM_ENTRIES = 65_535;
    /// Most devices of a platform.
    MAX_DEVICES = 1024;
    /// Most attention backends of a device.
    MAX_ATTENTION_BACKENDS = 64;
    /// Most entries of a list of facts (shape buckets, block sizes).
    MAX_LIST = 4096;
    /// Bytes that the host gives an error's text.
    ERROR_TEXT_BYTES = 4096;
    /// Most bytes of all options of a device.
    MAX_OPTION_BYTES = 64 << 10;
    /// Most bytes of a communicator's id.
    MAX_COMMUNICATOR_ID_BYTES = 16 << 10;
    /// Most records of one batch.
    MAX_BATCH_RECORDS = 1 << 16;
    /// Most biases of one row that logits processors give together.
    MAX_LOGIT_BIASES = 1024;
    /// Most bytes that a stat logger may show at `/metrics`.
    MAX_METRICS_BYTES = 16 << 20;
}
