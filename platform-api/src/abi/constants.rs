//! The numbers that have names on the wire, in groups, with what each means.

use super::comments::paragraphs;
use super::layout::Doc;
use super::limits;
use super::logits_tables as logits;
use super::request_tables as request;
use super::tables;
use crate::communicator::CollectiveKind;
use crate::device::{BufferKind, EncoderMode, MAX_STEP_WRITE_BYTES, QueueKind};
use crate::info::Capabilities;
use crate::io_processor::IoAction;
use crate::ops::{self, Access, VendorOp};
use crate::status::Status;
use crate::{DType, WeightFormat};

/// A number as C writes it.
pub(super) enum Value {
    Unsigned(u32),
    Wide(u64),
    Negative(i32),
}

impl Value {
    /// As C writes it.
    pub(super) fn in_c(&self) -> String {
        match self {
            Value::Unsigned(value) if *value >= ops::VENDOR_CODES => format!("{value:#x}u"),
            Value::Unsigned(value) => format!("{value}u"),
            Value::Wide(value) => format!("UINT64_C({value:#x})"),
            Value::Negative(value) => format!("({value})"),
        }
    }

    /// As the layout file writes it.
    pub(super) fn plain(&self) -> String {
        match self {
            Value::Unsigned(value) => value.to_string(),
            Value::Wide(value) => value.to_string(),
            Value::Negative(value) => value.to_string(),
        }
    }
}

/// A named number.
pub(super) struct Constant {
    pub(super) name: String,
    pub(super) value: Value,
    pub(super) doc: Vec<String>,
}

/// Numbers that belong together.
pub(super) struct Group {
    /// What they are.
    pub(super) doc: Vec<String>,
    /// Sections of the layout file that they stand in; none: they stand there in another form, or move with releases.
    pub(super) sections: &'static [&'static str],
    pub(super) constants: Vec<Constant>,
}

fn constant(name: impl Into<String>, value: Value, doc: Doc) -> Constant {
    Constant {
        name: format!("HALYARD_{}", name.into()),
        value,
        doc: paragraphs(doc),
    }
}

/// A group written out here.
fn group(doc: &'static str, sections: &'static [&'static str], all: Vec<Constant>) -> Group {
    Group {
        doc: vec![doc.to_string()],
        sections,
        constants: all,
    }
}

/// The group of an enum.
macro_rules! of_enum {
    ($prefix:literal, $ty:ty, $sections:expr) => {
        Group {
            doc: paragraphs(<$ty>::DOC),
            sections: $sections,
            constants: coded($prefix, <$ty>::CODES, <$ty>::DOCS),
        }
    };
}

fn coded(prefix: &str, codes: &[(&str, u32)], docs: &[Doc]) -> Vec<Constant> {
    // Types and formats are written as they are named; the rest are CamelCase words.
    let as_named = matches!(prefix, "DTYPE" | "WEIGHT");
    let of_one = |(&(name, code), doc): (&(&str, u32), &Doc)| {
        let name = if as_named { name.to_uppercase() } else { screaming(name) };
        constant(format!("{prefix}_{name}"), Value::Unsigned(code), doc)
    };
    codes.iter().zip(docs).map(of_one).collect()
}

/// CamelCase as the names of constants are written.
pub(super) fn screaming(camel: &str) -> String {
    let mut out = String::new();
    for (i, c) in camel.chars().enumerate() {
        if i > 0 && c.is_uppercase() {
            out.push('_');
        }
        out.extend(c.to_uppercase());
    }
    out
}

/// Every group, in header order.
pub(super) fn groups() -> Vec<Group> {
    let n = |name: &str, value: u32, doc: Doc| constant(name, Value::Unsigned(value), doc);
    let mut all = vec![
        group(
            "The contract's major version: both sides have the same.",
            &["core"],
            vec![n("ABI_MAJOR", tables::ABI_MAJOR, &[])],
        ),
        versions(),
        group(
            "What a plugin is.",
            &["core"],
            vec![
                n("KIND_PLATFORM", tables::KIND_PLATFORM, &["Devices."]),
                n("KIND_STAT_LOGGER", tables::KIND_STAT_LOGGER, &["A sink of statistics."]),
                n(
                    "KIND_IO_PROCESSOR",
                    request::KIND_IO_PROCESSOR,
                    &["Sees requests and answers."],
                ),
                n(
                    "KIND_LORA_RESOLVER",
                    request::KIND_LORA_RESOLVER,
                    &["Finds LoRA adapters."],
                ),
                n(
                    "KIND_LOGITS_PROCESSOR",
                    logits::KIND_LOGITS_PROCESSOR,
                    &["Changes which tokens come."],
                ),
            ],
        ),
        of_enum!("STATUS", Status, &["core"]),
        group(
            "Codes from this one on (of ops, types, formats, kinds, interfaces, collectives and statuses alike) are \
             never given out: they are the vendors' and experiments'.",
            &["core"],
            vec![n("VENDOR_CODES", ops::VENDOR_CODES, &[])],
        ),
        group(
            "Levels of the log.",
            &["core"],
            vec![
                n("LOG_ERROR", crate::log::ERROR, &["Something failed."]),
                n(
                    "LOG_WARN",
                    crate::log::WARN,
                    &["Something is wrong, and the work goes on."],
                ),
                n("LOG_INFO", crate::log::INFO, &["An operator wants to know it once."]),
                n("LOG_DEBUG", crate::log::DEBUG, &["For a developer."]),
                n("LOG_TRACE", crate::log::TRACE, &["Every step of something."]),
            ],
        ),
        group(
            "Limits. What is beyond them is refused, never cut, except an error's text.",
            &["core"],
            limits::ALL
                .iter()
                .map(|(name, value, doc)| n(name, *value, doc))
                .collect(),
        ),
        group("Numbers of the interfaces.", &[], interface_ids()),
        of_enum!("DTYPE", DType, &["core"]),
        of_enum!("WEIGHT", WeightFormat, &["core"]),
        group(
            "Sizes of the formats: values and bytes of a block, bytes behind the blocks of a row.",
            &["core"],
            block_sizes(),
        ),
        group(
            "What a device claims to be able to do; an unclaimed one is refused with a reason.",
            &["interface platform", "interface device"],
            capabilities(),
        ),
    ];
    all.extend(of_device());
    all.extend(of_ops());
    all.extend(of_hooks());
    all
}

fn versions() -> Group {
    let n = |name: String, value: u32| constant(name, Value::Unsigned(value), &[]);
    let of_table = |t: super::TableLayout| {
        let name = t.interface.to_uppercase();
        [
            n(format!("{name}_MAJOR"), t.version.0),
            n(format!("{name}_MINOR"), t.version.1),
        ]
    };
    let mut all = vec![n("ABI_MINOR".to_string(), tables::ABI_MINOR)];
    all.extend(tables::tables().into_iter().flat_map(of_table));
    group(
        "Versions that this header describes: of the ABI, and of each interface.",
        &[],
        all,
    )
}

fn interface_ids() -> Vec<Constant> {
    let of_table = |t: &super::TableLayout| {
        let name = format!("INTERFACE_{}", t.interface.to_uppercase());
        constant(name, Value::Unsigned(t.id), &[])
    };
    tables::tables().iter().map(of_table).collect()
}

fn block_sizes() -> Vec<Constant> {
    let of_format = |format: WeightFormat| {
        let name = format!("WEIGHT_{}", format!("{format:?}").to_uppercase());
        let n = |what: &str, value: usize| constant(format!("{name}_{what}"), Value::Unsigned(value as u32), &[]);
        [
            n("BLOCK_VALUES", format.block_values()),
            n("BLOCK_BYTES", format.block_bytes()),
            n("ROW_TAIL_BYTES", format.row_tail_bytes()),
        ]
    };
    WeightFormat::ALL.into_iter().flat_map(of_format).collect()
}

fn capabilities() -> Vec<Constant> {
    let named = Capabilities::NAMES.iter().zip(Capabilities::DOCS);
    let mut all: Vec<Constant> = named
        .map(|((name, bit), doc)| constant(format!("CAPABILITY_{}", name.to_uppercase()), Value::Wide(bit.0), doc))
        .collect();
    all.push(constant(
        "CAPABILITY_VENDORS",
        Value::Wide(Capabilities::VENDORS.0),
        &["The vendors' own bits, which never get a meaning here."],
    ));
    all
}

fn of_device() -> Vec<Group> {
    const DEVICE: &[&str] = &["interface device"];
    vec![
        of_enum!("BUFFER", BufferKind, DEVICE),
        of_enum!("QUEUE", QueueKind, DEVICE),
        of_enum!("ENCODER", EncoderMode, DEVICE),
        group(
            "Bytes of one `write_step` on a queue that was created without a number of its own.",
            DEVICE,
            vec![constant(
                "MAX_STEP_WRITE_BYTES",
                Value::Unsigned(MAX_STEP_WRITE_BYTES as u32),
                &[],
            )],
        ),
        of_enum!(
            "COLLECTIVE_KIND",
            CollectiveKind,
            &["interface communicator", "op collective"]
        ),
    ]
}

fn of_ops() -> Vec<Group> {
    let code =
        |(name, code): &(&str, u32)| constant(format!("OP_{}", name.to_uppercase()), Value::Unsigned(*code), &[]);
    let mut codes: Vec<Constant> = ops::OpSpec::CODES.iter().map(code).collect();
    codes.push(constant(
        "OP_VENDOR",
        Value::Unsigned(VendorOp::CODE),
        &["Every op of a vendor: its name tells which."],
    ));
    let n = |name: &str, value: u32, doc: Doc| constant(name, Value::Unsigned(value), doc);
    let marker = |name: &str, value: i32, doc: Doc| constant(name, Value::Negative(value), doc);
    vec![
        group(
            "Codes of the ops. What each computes stands at its descriptor.",
            &[],
            codes,
        ),
        of_enum!("ACCESS", Access, &["interface ops"]),
        group(
            "In place of a tensor's index: the operand is absent.",
            &["interface ops"],
            vec![n("ABSENT", u32::from(crate::program::ABSENT), &[])],
        ),
        of_enum!("EPILOGUE", ops::Epilogue, &["op linear"]),
        of_enum!("ROPE_STYLE", ops::RopeStyle, &["op rope"]),
        of_enum!("GELU_KIND", ops::GeluKind, &["op gelu_mul", "op gelu"]),
        of_enum!("QUANTIZE_SCHEME", ops::QuantizeScheme, &["op quantize_act"]),
        of_enum!("POOL_MODE", ops::PoolMode, &["op pool"]),
        of_enum!("SCORING", ops::Scoring, &["op moe_route"]),
        group(
            "Words of the step header and of a result's header; see update_rows.",
            &["op update_rows"],
            vec![
                n(
                    "STEP_HEADER",
                    ops::STEP_HEADER,
                    &["Entry of the ring, low and high half of the tag, sequences."],
                ),
                n(
                    "RESULT_HEADER",
                    ops::RESULT_HEADER,
                    &["Low and high half of the step's tag."],
                ),
            ],
        ),
        group(
            "In place of a token: the row has no distribution.",
            &["op argmax", "op sample", "op update_rows"],
            vec![
                marker("NOT_FINITE", ops::NOT_FINITE, &["A logit of the row is NaN or +∞."]),
                marker("NO_TOKEN", ops::NO_TOKEN, &["Every logit of the row is −∞."]),
            ],
        ),
    ]
}

fn of_hooks() -> Vec<Group> {
    let record = |(name, code): &(&str, u32)| {
        let doc: Doc = &[];
        constant(format!("RECORD_{}", name.to_uppercase()), Value::Unsigned(*code), doc)
    };
    vec![
        group(
            "Kinds of records; each has a struct of its name.",
            &["interface stat_logger"],
            crate::hooks::StatRecord::KINDS.iter().map(record).collect(),
        ),
        of_enum!("IO", IoAction, &["interface io_processor"]),
    ]
}
