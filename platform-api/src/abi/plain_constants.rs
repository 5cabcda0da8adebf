//! Numbers of the header that no enum of the wire lists: kinds that stand in descriptors, codes and sizes of step
//! tensors, what stands in place of an operand or a token.

use crate::device::{BufferKind, EncoderMode, MAX_STEP_WRITE_BYTES, QueueKind};
use crate::ops::{Access, NO_TOKEN, NOT_FINITE, RESULT_HEADER, STEP_HEADER, VENDOR_CODES};
use crate::program::ABSENT;

/// Their names and values.
pub(super) fn numbers() -> Vec<(String, u32)> {
    [
        ("ABSENT", u32::from(ABSENT)),
        ("ACCESS_CONST", Access::Const as u32),
        ("ACCESS_READ", Access::Read as u32),
        ("ACCESS_WRITE", Access::Write as u32),
        ("ACCESS_UPDATE", Access::Update as u32),
        ("BUFFER_DEVICE", BufferKind::Device as u32),
        ("BUFFER_HOST_VISIBLE", BufferKind::HostVisible as u32),
        ("QUEUE_COMPUTE", QueueKind::Compute as u32),
        ("QUEUE_COPY", QueueKind::Copy as u32),
        ("ENCODER_ONE_SHOT", EncoderMode::OneShot as u32),
        ("ENCODER_REUSABLE", EncoderMode::Reusable as u32),
        ("MAX_STEP_WRITE_BYTES", MAX_STEP_WRITE_BYTES as u32),
        ("STEP_HEADER", STEP_HEADER),
        ("RESULT_HEADER", RESULT_HEADER),
        ("VENDOR_CODES", VENDOR_CODES),
        ("LOG_ERROR", crate::log::ERROR),
        ("LOG_WARN", crate::log::WARN),
        ("LOG_INFO", crate::log::INFO),
        ("LOG_DEBUG", crate::log::DEBUG),
        ("LOG_TRACE", crate::log::TRACE),
    ]
    .map(|(name, value)| (format!("HALYARD_{name}"), value))
    .into()
}

/// What stands in place of a token, with its name: the negative numbers of the header.
pub(super) const MARKERS: [(&str, i32); 2] = [("HALYARD_NOT_FINITE", NOT_FINITE), ("HALYARD_NO_TOKEN", NO_TOKEN)];
