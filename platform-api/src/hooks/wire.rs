//! Batches on the wire: an array of (kind, pointer) pairs, each pointer to a sized record, so that a reader skips kinds
//! that it does not know and reads of the others what it knows.

use std::ffi::c_void;
use std::time::Duration;

use super::Batch;
use super::records::{
    CacheRecord, CacheWire, FinishedRecord, FinishedWire, IterationRecord, IterationWire, LoraRecord, LoraWire,
    RejectedRecord, RejectedWire, SchedulerRecord, SchedulerWire, ShutdownRecord, ShutdownWire, StartRecord, StartWire,
    StatRecord, record_kinds,
};
pub use crate::abi::limits::MAX_BATCH_RECORDS;
use crate::abi::tables::{BatchWire, RecordRef};
use crate::abi::{StructLayout, read_known};
use crate::status::{Error, Result};

macro_rules! wire_records {
    ($( $kind:ident = $code:literal, $record:ident, $wire:ident; )*) => {
        /// A record in its wire form.
        enum WireRecord { $( $kind($wire), )* }

        impl WireRecord {
            fn new(record: &StatRecord) -> WireRecord {
                match record { $( StatRecord::$kind(record) => WireRecord::$kind(record.to_wire()), )* }
            }

            fn as_ref(&self) -> RecordRef {
                match self { $( WireRecord::$kind(wire) => RecordRef {
                    kind: $code,
                    reserved: 0,
                    body: std::ptr::from_ref(wire).cast(),
                }, )* }
            }
        }

        /// The record that `reference` points to; none for a kind that this side does not know.
        ///
        /// # Safety
        /// As [`read_batch`].
        unsafe fn read_record(reference: &RecordRef) -> Result<Option<StatRecord>> {
            Ok(match reference.kind {
                $( $code => {
                    // SAFETY: as the caller promises, a sized struct of its kind.
                    let wire = unsafe { read_known::<$wire>(reference.body.cast()) }?;
                    // SAFETY: as the caller promises, with texts and lists valid during the call.
                    Some(StatRecord::$kind(unsafe { $record::from_wire(&wire) }))
                } )*
                _ => None,
            })
        }

        /// Layouts of all records, in order of their kinds.
        pub(crate) fn record_layouts() -> Vec<StructLayout> {
            vec![ $( <$wire as crate::abi::AbiLayout>::layout(), )* ]
        }
    };
}
record_kinds!(wire_records);

/// A batch laid out for the wire. Borrows the records' texts and lists.
pub struct RecordBatch<'a> {
    // The refs point into it; a moved Vec keeps its elements where they are.
    _bodies: Vec<WireRecord>,
    refs: Vec<RecordRef>,
    batch: Batch<'a>,
}

impl<'a> RecordBatch<'a> {
    /// Lays out `batch`.
    pub fn new(batch: &Batch<'a>) -> RecordBatch<'a> {
        let bodies: Vec<WireRecord> = batch.records.iter().map(WireRecord::new).collect();
        let refs = bodies.iter().map(WireRecord::as_ref).collect();
        RecordBatch {
            _bodies: bodies,
            refs,
            batch: *batch,
        }
    }

    /// What crosses; valid while `self` lives.
    pub fn wire(&self) -> BatchWire {
        let mut wire = BatchWire::zeroed();
        wire.num_records = self.refs.len() as u32;
        wire.records = self.refs.as_ptr();
        wire.deadline_ns = duration_ns(self.batch.deadline);
        wire.num_dropped = self.batch.num_dropped;
        wire
    }
}

/// Whole nanoseconds; the largest number when there are more.
fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Copies the records of a batch; those of unknown kinds are left out.
///
/// # Errors
/// `InvalidArgument` for null pointers, an absurd number of records or a record of an absurd size.
///
/// # Safety
/// `wire.records` is null or valid for `wire.num_records` entries; each body is null or a record of its kind that
/// starts with its size, with texts and lists valid during the call.
pub unsafe fn read_batch(wire: &BatchWire) -> Result<Vec<StatRecord>> {
    let num = wire.num_records;
    if num == 0 {
        return Ok(Vec::new());
    }
    if num > MAX_BATCH_RECORDS || wire.records.is_null() || !wire.records.is_aligned() {
        return Err(Error::invalid(format!(
            "a batch of {num} records at {:p} (at most {MAX_BATCH_RECORDS}, aligned, not null)",
            wire.records.cast::<c_void>()
        )));
    }
    // SAFETY: as the caller promises; not null, aligned.
    let refs = unsafe { std::slice::from_raw_parts(wire.records, num as usize) };
    let mut records = Vec::with_capacity(refs.len());
    for reference in refs {
        // SAFETY: as the caller promises.
        records.extend(unsafe { read_record(reference) }?);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<StatRecord> {
        let iteration = IterationRecord {
            step_index: 7,
            first_token_ns: [5, 6].into(),
            inter_token_ns: [9].into(),
            inter_token_counts: [64].into(),
            ..IterationRecord::default()
        };
        let finished = FinishedRecord {
            priority: -3,
            request_id: "cmpl-µ".into(),
            total_ns: u64::MAX,
            ..FinishedRecord::default()
        };
        let cache = CacheRecord {
            usage: 0.25,
            ..CacheRecord::default()
        };
        vec![
            StatRecord::Start(StartRecord::default()),
            StatRecord::Scheduler(SchedulerRecord::default()),
            StatRecord::Iteration(iteration),
            StatRecord::Finished(finished),
            StatRecord::Cache(cache),
            StatRecord::Lora(LoraRecord::default()),
            StatRecord::Rejected(RejectedRecord::default()),
            StatRecord::Shutdown(ShutdownRecord::default()),
        ]
    }

    fn batch(records: &[StatRecord]) -> Batch<'_> {
        Batch {
            records,
            deadline: Duration::from_millis(3),
            num_dropped: 2,
        }
    }

    #[test]
    fn every_kind_survives_the_wire() {
        let records = records();
        assert_eq!(records.len(), StatRecord::KINDS.len());
        let laid_out = RecordBatch::new(&batch(&records));
        let wire = laid_out.wire();
        assert_eq!((wire.deadline_ns, wire.num_dropped), (3_000_000, 2));
        // SAFETY: laid out above, and its owner lives.
        assert_eq!(unsafe { read_batch(&wire) }, Ok(records));
    }

    #[test]
    fn unknown_kinds_are_skipped_and_records_cut_short_are_errors() {
        let records = records();
        let mut laid_out = RecordBatch::new(&batch(&records[3..5]));
        laid_out.refs[1].kind = 999;
        // SAFETY: laid out above; the unknown kind is not read.
        assert_eq!(unsafe { read_batch(&laid_out.wire()) }, Ok(vec![records[3].clone()]));
        let mut cut = match &records[3] {
            StatRecord::Finished(finished) => finished.to_wire(),
            other => panic!("{other:?}"),
        };
        cut.struct_size = 8;
        laid_out.refs[0].body = std::ptr::from_ref(&cut).cast();
        // SAFETY: the body is larger than the size it states.
        let error = unsafe { read_batch(&laid_out.wire()) }.expect_err("cut short");
        assert!(error.message.contains("halyard_finished_record"), "{error}");
    }

    #[test]
    fn null_pointers_and_absurd_counts_are_errors() {
        let mut wire = BatchWire::zeroed();
        // SAFETY: null with no records.
        assert_eq!(unsafe { read_batch(&wire) }, Ok(Vec::new()));
        wire.num_records = 1;
        // SAFETY: null is allowed.
        assert!(unsafe { read_batch(&wire) }.is_err());
        let null = RecordRef {
            kind: 4,
            reserved: 0,
            body: std::ptr::null(),
        };
        wire.records = &null;
        // SAFETY: one entry, whose body is null.
        let error = unsafe { read_batch(&wire) }.expect_err("a null body");
        assert!(
            error.message.contains("halyard_finished_record: null pointer"),
            "{error}"
        );
        wire.num_records = u32::MAX;
        // SAFETY: refused before anything is read.
        assert!(unsafe { read_batch(&wire) }.is_err());
    }
}
