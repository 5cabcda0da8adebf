//! Encoding. An op's number on the wire carries how many operands this side knows, so that a host with fewer or more of
//! them is served without looking the op up.

use std::ffi::c_void;

use super::{CommandHandle, Handle, QueueHandle, no_flags, put, slice};
use crate::abi::tables::EncoderDescWire;
use crate::abi::types::{ErrorOut, read_struct};
use crate::device::{Encoder, EncoderMode};
use crate::prepared::OpId;
use crate::status::{Error, Result, Status};
use crate::tensor::Tensor;

/// Empty once finished.
pub(super) type EncoderHandle = Handle<Option<Box<dyn Encoder>>>;

/// Low bits of an op's number on the wire that hold its number of operands.
const COUNT_BITS: u32 = 16;
const MAX_OPERANDS: u64 = (1 << COUNT_BITS) - 1;
/// Of an op whose operands the catalogue does not list: all are passed on as they come.
const ANY_NUMBER: usize = 0;

/// The number on the wire of an op with `operands` operands.
pub(super) fn wire_id(op: OpId, operands: usize) -> Result<u64> {
    if op.0 >> (u64::BITS - COUNT_BITS) != 0 || operands as u64 > MAX_OPERANDS {
        return Err(Error::new(
            Status::Internal,
            format!(
                "op {} of {operands} operands: numbers are below 2^48, operands at most {MAX_OPERANDS}",
                op.0
            ),
        ));
    }
    Ok(op.0 << COUNT_BITS | operands as u64)
}

/// Encodes with as many operands as are known here: what the host left out at the end is absent, and what it passes
/// beyond them must be.
#[cold]
fn encode_other(encoder: &mut dyn Encoder, op: OpId, operands: &[Tensor], known: usize) -> Result<()> {
    let (taken, beyond) = operands.split_at(known.min(operands.len()));
    if let Some(at) = beyond.iter().position(|operand| !operand.is_none()) {
        return Err(Error::unsupported(format!(
            "operand {} of op {}: this side knows {known}",
            known + at,
            op.0
        )));
    }
    if taken.len() == known {
        return encoder.encode(op, taken);
    }
    let mut all = taken.to_vec();
    all.resize(known, Tensor::NONE);
    encoder.encode(op, &all)
}

pub(super) unsafe extern "C" fn encoder_create(
    queue: *mut c_void,
    desc: *const EncoderDescWire,
    out: *mut *mut c_void,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live queue, a valid descriptor and valid outputs.
    unsafe {
        QueueHandle::with(queue, err, |queue| {
            let desc = read_struct(desc)?;
            no_flags("an encoder", desc.flags)?;
            let mode = match desc.mode {
                0 => EncoderMode::OneShot,
                1 => EncoderMode::Reusable,
                other => return Err(Error::unsupported(format!("encoder mode {other}"))),
            };
            let encoder = queue.create_encoder(mode)?;
            put(out, EncoderHandle::into_raw(Some(encoder)))
        })
    }
}

pub(super) unsafe extern "C" fn encode(
    encoder: *mut c_void,
    op: u64,
    operands: *const Tensor,
    num: u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live encoder that this thread alone uses, and `num` tensors.
    unsafe {
        EncoderHandle::with_mut(encoder, err, |encoder| match encoder {
            Some(encoder) => {
                let operands = slice(operands, u64::from(num))?;
                match (op & MAX_OPERANDS) as usize {
                    known if known == operands.len() || known == ANY_NUMBER => {
                        encoder.encode(OpId(op >> COUNT_BITS), operands)
                    }
                    known => encode_other(&mut **encoder, OpId(op >> COUNT_BITS), operands, known),
                }
            }
            None => Err(Error::invalid("this encoder was finished")),
        })
    }
}

pub(super) unsafe extern "C" fn encoder_finish(
    encoder: *mut c_void,
    handle: *mut *mut c_void,
    id: *mut u64,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live encoder, which this call consumes, and valid outputs.
    unsafe {
        let code = EncoderHandle::with_mut(encoder, err, |slot| {
            let encoder = slot.take().ok_or_else(|| Error::invalid("this encoder was finished"))?;
            let command = encoder.finish()?;
            put(id, command.id().0)?;
            put(handle, CommandHandle::into_raw(command))
        });
        EncoderHandle::release(encoder);
        code
    }
}
