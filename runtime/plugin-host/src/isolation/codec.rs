//! Records on their way to a hook's process, and in recordings: the wire struct's bytes with its texts and lists copied
//! behind it.
//!
//! Driven by the layouts that platform-api publishes of its records, so a new record or field needs nothing here. Both
//! ends of the ring are the same program; a recording outlives it and is therefore JSON, by the fields' names.

use std::sync::OnceLock;
use std::time::Duration;

use halyard_platform_api::abi::tables::{self, BatchWire, RecordRef};
use halyard_platform_api::abi::{Str, U64s};
use halyard_platform_api::hooks::{
    Batch, FINISH_REASONS, REJECTION_REASONS, RESIDENCIES, RecordBatch, SHUTDOWN_REASONS, StatRecord, read_batch,
};
use halyard_platform_api::{Error, Result, Status};
use serde_json::{Map, Value};

/// A record kind: its wire struct.
struct Kind {
    name: &'static str,
    code: u32,
    size: usize,
    fields: Vec<Field>,
}

struct Field {
    name: &'static str,
    offset: usize,
    form: Form,
}

/// How a field crosses.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    U32,
    I32,
    U64,
    F64,
    Text,
    Numbers,
}

fn kinds() -> &'static [Kind] {
    static KINDS: OnceLock<Vec<Kind>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let layouts = tables::structs();
        let kind = |(name, code): &(&'static str, u32)| {
            let struct_name = format!("halyard_{}_record", name.to_lowercase());
            let layout = layouts.iter().find(|layout| layout.name == struct_name)?;
            let fields = layout.fields.iter().filter(|field| field.name != "struct_size");
            let fields = fields.map(|field| {
                let form = match field.c_type.as_str() {
                    "uint32_t" => Form::U32,
                    "int32_t" => Form::I32,
                    "uint64_t" => Form::U64,
                    "double" => Form::F64,
                    "halyard_str" => Form::Text,
                    "halyard_u64s" => Form::Numbers,
                    _ => return None,
                };
                Some(Field {
                    name: field.name,
                    offset: field.offset,
                    form,
                })
            });
            Some(Kind {
                name,
                code: *code,
                size: layout.size,
                fields: fields.collect::<Option<_>>()?,
            })
        };
        StatRecord::KINDS.iter().filter_map(kind).collect()
    })
}

fn kind_of(code: u32) -> Result<&'static Kind> {
    let found = kinds().iter().find(|kind| kind.code == code);
    found.ok_or_else(|| Error::unsupported(format!("records of kind {code} have no form between processes")))
}

fn broken() -> Error {
    Error::new(Status::Internal, "a record lost its form on the way")
}

/// Appends `record` to `out`: kind, struct, then each text and list in the order of the fields.
///
/// # Errors
/// `Unsupported` for a record with a field of a form that is not known here.
pub fn encode(record: &StatRecord, out: &mut Vec<u8>) -> Result<()> {
    let kind = kind_of(record.kind())?;
    let records = std::slice::from_ref(record);
    let laid_out = RecordBatch::new(&Batch {
        records,
        deadline: Duration::ZERO,
        num_dropped: 0,
    });
    let wire = laid_out.wire();
    // SAFETY: a batch of one record, whose body is a struct of its kind, as large as its layout says and without holes.
    let bytes = unsafe { std::slice::from_raw_parts((*wire.records).body.cast::<u8>(), kind.size) };
    out.extend(kind.code.to_le_bytes());
    out.extend(bytes);
    for field in &kind.fields {
        let at = &bytes[field.offset..];
        match field.form {
            Form::Text => {
                // SAFETY: a text's field, which borrows from `record`.
                let text = unsafe { at.as_ptr().cast::<Str>().read_unaligned().to_text() };
                out.extend(text.as_bytes());
            }
            Form::Numbers => {
                // SAFETY: a list's field, which borrows from `record`.
                let numbers = unsafe { at.as_ptr().cast::<U64s>().read_unaligned().to_vec() };
                out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            Form::U32 | Form::I32 | Form::U64 | Form::F64 => {}
        }
    }
    Ok(())
}

/// The record of a payload.
///
/// # Errors
/// `Internal` for bytes that [`encode`] did not write.
pub fn decode(payload: &[u8]) -> Result<StatRecord> {
    let (code, rest) = payload.split_first_chunk::<4>().ok_or_else(broken)?;
    let kind = kind_of(u32::from_le_bytes(*code))?;
    let (bytes, mut tail) = rest.split_at_checked(kind.size).ok_or_else(broken)?;
    let mut body = Body::new(kind, bytes);
    for field in &kind.fields {
        let unit = match field.form {
            Form::Text => 1,
            Form::Numbers => 8,
            Form::U32 | Form::I32 | Form::U64 | Form::F64 => continue,
        };
        // Both are a pointer and a length.
        let len = body.u64_at(field.offset + 8);
        let len = usize::try_from(len).ok().and_then(|len| len.checked_mul(unit));
        let (content, rest) = tail.split_at_checked(len.ok_or_else(broken)?).ok_or_else(broken)?;
        tail = rest;
        if unit == 1 {
            body.put_text(field.offset, std::str::from_utf8(content).map_err(|_| broken())?);
        } else {
            let words = content
                .chunks_exact(8)
                .map(|word| word.try_into().map_or(0, u64::from_le_bytes));
            body.put_numbers(field.offset, words.collect());
        }
    }
    if !tail.is_empty() {
        return Err(broken());
    }
    body.record()
}

/// A wire struct being put together, with what its texts and lists point to.
struct Body {
    kind: &'static Kind,
    // Words, so that the struct is aligned.
    words: Vec<u64>,
    texts: Vec<String>,
    lists: Vec<Vec<u64>>,
}

impl Body {
    fn new(kind: &'static Kind, bytes: &[u8]) -> Body {
        let mut body = Body {
            kind,
            words: vec![0; kind.size.div_ceil(8)],
            texts: Vec::new(),
            lists: Vec::new(),
        };
        body.put(0, bytes);
        body.put(0, &(kind.size as u32).to_ne_bytes());
        body
    }

    /// Writes bytes at `offset`, within the struct.
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let capacity = self.words.len() * 8;
        assert!(offset + bytes.len() <= capacity, "a field outside its struct");
        // SAFETY: within the words, as checked; u64 may have any bytes.
        unsafe {
            let to = self.words.as_mut_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the words' own memory, of which any bytes can be read.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.words.len() * 8) }
    }

    fn u32_at(&self, offset: usize) -> u32 {
        let bytes = self.bytes();
        u32::from_ne_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
    }

    fn u64_at(&self, offset: usize) -> u64 {
        let (low, high) = (u64::from(self.u32_at(offset)), u64::from(self.u32_at(offset + 4)));
        if cfg!(target_endian = "little") {
            low | high << 32
        } else {
            high | low << 32
        }
    }

    fn put_text(&mut self, offset: usize, text: &str) {
        let owned = text.to_string();
        self.put(offset, &(owned.as_ptr() as usize as u64).to_ne_bytes());
        self.put(offset + 8, &(owned.len() as u64).to_ne_bytes());
        self.texts.push(owned);
    }

    fn put_numbers(&mut self, offset: usize, numbers: Vec<u64>) {
        self.put(offset, &(numbers.as_ptr() as usize as u64).to_ne_bytes());
        self.put(offset + 8, &(numbers.len() as u64).to_ne_bytes());
        self.lists.push(numbers);
    }

    /// The record. Pointers of texts and lists that were not put are null.
    fn record(&self) -> Result<StatRecord> {
        let reference = RecordRef {
            kind: self.kind.code,
            reserved: 0,
            body: self.words.as_ptr().cast(),
        };
        let mut wire = BatchWire::zeroed();
        wire.num_records = 1;
        wire.records = &reference;
        // SAFETY: one entry, whose body is a struct of its kind that starts with its size; its texts and lists are
        // owned by `self`.
        let mut records = unsafe { read_batch(&wire) }?;
        records.pop().ok_or_else(broken)
    }
}

/// A record as a JSON object: `kind`, then its fields by name.
///
/// # Errors
/// As [`encode`].
pub fn record_to_json(record: &StatRecord) -> Result<Value> {
    let kind = kind_of(record.kind())?;
    let mut payload = Vec::new();
    encode(record, &mut payload)?;
    let body = Body::new(kind, &payload[4..4 + kind.size]);
    let mut tail = &payload[4 + kind.size..];
    let mut next = |len: usize| {
        let (content, rest) = tail.split_at_checked(len)?;
        tail = rest;
        Some(content)
    };
    let mut object = Map::new();
    object.insert("kind".to_string(), kind.name.into());
    for field in &kind.fields {
        let at = field.offset;
        let value = match field.form {
            Form::U32 => body.u32_at(at).into(),
            Form::I32 => body.u32_at(at).cast_signed().into(),
            Form::U64 => body.u64_at(at).into(),
            Form::F64 => f64::from_bits(body.u64_at(at)).into(),
            Form::Text => {
                let content = next(body.u64_at(at + 8) as usize).ok_or_else(broken)?;
                String::from_utf8_lossy(content).into()
            }
            Form::Numbers => {
                let content = next(body.u64_at(at + 8) as usize * 8).ok_or_else(broken)?;
                let words = content.chunks_exact(8);
                words
                    .map(|word| word.try_into().map_or(0, u64::from_le_bytes))
                    .collect()
            }
        };
        object.insert(field.name.to_string(), value);
    }
    Ok(Value::Object(object))
}

/// Words that the json-lines logger writes for codes: kind, field, words in the order of the codes.
const WORDS: &[(&str, &str, &[&str])] = &[
    ("Finished", "reason", &FINISH_REASONS),
    ("Lora", "residency", &RESIDENCIES),
    ("Rejected", "reason", &REJECTION_REASONS),
    ("Shutdown", "reason", &SHUTDOWN_REASONS),
];

/// A code: a number, a truth, or the json-lines logger's word.
fn code(kind: &str, field: &str, value: &Value) -> Option<u32> {
    match value {
        Value::Bool(truth) => Some(u32::from(*truth)),
        Value::String(word) => {
            let (_, _, words) = WORDS.iter().find(|(k, f, _)| (*k, *f) == (kind, field))?;
            words.iter().position(|known| known == word).map(|code| code as u32)
        }
        number => number.as_u64().and_then(|number| u32::try_from(number).ok()),
    }
}

/// The record of a JSON object that [`record_to_json`] or the json-lines logger wrote: fields that are absent are zero
/// or empty, and `engine_index` may stand in every kind.
///
/// # Errors
/// `InvalidArgument` naming the kind or key that is unknown or of another form.
pub fn record_from_json(value: &Value) -> Result<StatRecord> {
    let object = value
        .as_object()
        .ok_or_else(|| Error::invalid("a record is a JSON object"))?;
    let of_kind = ["kind", "type"].into_iter().find_map(|key| object.get(key));
    let named = of_kind.and_then(Value::as_str).unwrap_or_default();
    let kind = kinds().iter().find(|kind| kind.name.eq_ignore_ascii_case(named));
    let kind = kind.ok_or_else(|| {
        let known: Vec<&str> = kinds().iter().map(|kind| kind.name).collect();
        Error::invalid(format!("kind {named:?} is none of {}", known.join(", ")))
    })?;
    let named = kind.name;
    let mut body = Body::new(kind, &[]);
    for (key, value) in object
        .iter()
        .filter(|(key, _)| !["kind", "type"].contains(&key.as_str()))
    {
        let Some(field) = kind.fields.iter().find(|field| field.name == key) else {
            // The json-lines logger writes it in every line; of most kinds it is no part of the record.
            if key == "engine_index" && value.is_u64() {
                continue;
            }
            return Err(Error::invalid(format!("a {named} record has no field `{key}`")));
        };
        let wrong = || Error::invalid(format!("{named} field `{key}`: {value} is not of its form"));
        let at = field.offset;
        match field.form {
            Form::U32 => {
                let number = code(named, key, value).ok_or_else(wrong)?;
                body.put(at, &number.to_ne_bytes());
            }
            Form::I32 => {
                let number = value.as_i64().and_then(|n| i32::try_from(n).ok()).ok_or_else(wrong)?;
                body.put(at, &number.to_ne_bytes());
            }
            Form::U64 => body.put(at, &value.as_u64().ok_or_else(wrong)?.to_ne_bytes()),
            Form::F64 => body.put(at, &value.as_f64().ok_or_else(wrong)?.to_ne_bytes()),
            Form::Text => body.put_text(at, value.as_str().ok_or_else(wrong)?),
            Form::Numbers => {
                let numbers = value.as_array().ok_or_else(wrong)?.iter().map(Value::as_u64);
                body.put_numbers(at, numbers.collect::<Option<_>>().ok_or_else(wrong)?);
            }
        }
    }
    body.record()
}

#[cfg(test)]
mod tests {
    use super::{decode, encode, kinds, record_from_json, record_to_json};
    use halyard_platform_api::hooks::{
        CacheRecord, FinishedRecord, IterationRecord, LoraRecord, RejectedRecord, SchedulerRecord, ShutdownRecord,
        StartRecord, StatRecord,
    };
    use serde_json::json;

    fn records() -> Vec<StatRecord> {
        let iteration = IterationRecord {
            step_index: u64::MAX,
            num_seqs: 7,
            first_token_ns: [5, u64::MAX].into(),
            inter_token_ns: [9].into(),
            inter_token_counts: [64].into(),
            ..IterationRecord::default()
        };
        let finished = FinishedRecord {
            priority: -3,
            request_id: "cmpl-µ".into(),
            detail: "END".into(),
            total_ns: 12,
            ..FinishedRecord::default()
        };
        let cache = CacheRecord {
            usage: 0.1,
            ..CacheRecord::default()
        };
        let start = StartRecord {
            model: "tiny".into(),
            version: "0.1.0".into(),
            ..StartRecord::default()
        };
        vec![
            StatRecord::Start(start),
            StatRecord::Scheduler(SchedulerRecord::default()),
            StatRecord::Iteration(iteration),
            StatRecord::Finished(finished),
            StatRecord::Cache(cache),
            StatRecord::Lora(LoraRecord::default()),
            StatRecord::Rejected(RejectedRecord::default()),
            StatRecord::Shutdown(ShutdownRecord::default()),
        ]
    }

    #[test]
    fn every_kind_has_a_form_and_survives_bytes_and_json() {
        assert_eq!(
            kinds().len(),
            StatRecord::KINDS.len(),
            "a field's form is not known here"
        );
        assert_eq!(records().len(), StatRecord::KINDS.len());
        for record in records() {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes).expect("its form is known");
            assert_eq!(decode(&bytes), Ok(record.clone()));
            let text = record_to_json(&record).expect("its form is known").to_string();
            let json = serde_json::from_str(&text).expect("JSON");
            assert_eq!(record_from_json(&json), Ok(record));
        }
    }

    #[test]
    fn bytes_that_are_cut_or_too_many_or_lie_about_lengths_are_errors() {
        for record in records() {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes).expect("its form is known");
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut]).is_err(), "{record:?} cut to {cut}");
            }
            bytes.push(0);
            assert!(decode(&bytes).is_err(), "{record:?} and a byte");
        }
        let mut bytes = Vec::new();
        encode(&records()[3], &mut bytes).expect("its form is known");
        let len = bytes.len();
        for at in (0..len).step_by(4) {
            let mut wild = bytes.clone();
            wild[at..len.min(at + 4)].fill(0xff);
            // Any outcome but a crash: numbers may be anything, lengths may not.
            let _ = decode(&wild);
        }
    }

    #[test]
    fn lines_of_the_json_lines_logger_are_read() {
        let line = json!({"type": "finished", "reason": "abort", "ends_request": true, "engine_index": 1});
        let read = record_from_json(&line);
        let expected = FinishedRecord {
            reason: 2,
            ends_request: 1,
            ..FinishedRecord::default()
        };
        assert_eq!(read, Ok(StatRecord::Finished(expected)));
    }

    #[test]
    fn json_that_is_no_record_is_refused_by_kind_and_key() {
        let refused = |value: serde_json::Value, words: &str| {
            let error = record_from_json(&value).expect_err(words);
            assert!(error.message.contains(words), "{error}");
        };
        refused(json!({"type": "finished", "reason": "tired"}), "`reason`: \"tired\"");
        refused(json!([]), "a JSON object");
        refused(json!({"kind": "Finishd"}), "none of Start, Scheduler");
        refused(json!({"kind": "Finished", "resaon": 1}), "`resaon`");
        refused(json!({"kind": "Finished", "reason": -1}), "`reason`: -1");
        refused(
            json!({"kind": "Iteration", "first_token_ns": [1, "x"]}),
            "`first_token_ns`",
        );
        refused(json!({"kind": "Start", "model": 3}), "`model`: 3");
        refused(json!({"kind": "Lora", "engine_index": "first"}), "`engine_index`");
    }
}
