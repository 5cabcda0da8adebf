//! Today's hooks under a later host: records, requests and queries only inform, so that fields and kinds of later are
//! passed over, and answers fit in larger structs.

mod common;
#[path = "common/rules.rs"]
mod rules;

use std::ffi::c_void;
use std::path::Path;

use common::{fresh_folder, in_c};
use halyard_future::by_hand::{enter, told};
use halyard_future::library::Library;
use halyard_future::{LATER_VALUE, Newer, UNTOUCHED};
use halyard_platform_api::abi::logits_tables::{
    LogitBias, LogitsModelWire, LogitsProcessorTable, LogitsRequestWire, LogitsRowWire,
};
use halyard_platform_api::abi::request_tables::{
    IoProcessorTable, IoRequestWire, IoVerdictWire, LoraAnswerWire, LoraQueryWire, LoraResolverTable,
};
use halyard_platform_api::abi::tables::{BatchWire, RecordRef, StatLoggerTable};
use halyard_platform_api::abi::{ErrorOut, Str};
use halyard_platform_api::hooks::{Batch, FinishedRecord, RecordBatch, ShutdownRecord, StatRecord};
use rules::gives;

/// A record with fields more, all of them used.
fn larger(record: &RecordRef) -> Vec<u64> {
    // SAFETY: a record starts with its size, and is plain data of that size.
    let bytes =
        unsafe { std::slice::from_raw_parts(record.body.cast::<u64>(), *record.body.cast::<u32>() as usize / 8) };
    let mut words = [bytes, &[UNTOUCHED; 4]].concat();
    // SAFETY: the words are plain memory.
    unsafe { *words.as_mut_ptr().cast::<u32>() = 8 * words.len() as u32 };
    words
}

/// What a logger writes of two records, given as they are or as a later host gives them.
fn written(library: &Library, folder: &Path, later: bool) -> String {
    let path = folder.join(if later { "later" } else { "today" });
    let config = format!("{{\"path\": \"{}\"}}", path.display());
    let root = enter(library.entry).expect("it starts");
    let loggers: StatLoggerTable = root.table().expect("a stat logger");
    let create = loggers.create.expect("required");
    let mut logger = std::ptr::null_mut();
    // SAFETY: a live instance, a text for the call, valid outputs.
    told(|err| unsafe { create(root.instance, Str::new(&config), &mut logger, err) }).expect("the file can be made");

    let finished = FinishedRecord {
        request_id: "cmpl-1".into(),
        total_ns: 5_000_000,
        ..FinishedRecord::default()
    };
    let records = [
        StatRecord::Finished(finished),
        StatRecord::Shutdown(ShutdownRecord::default()),
    ];
    let batch = RecordBatch::new(&Batch {
        records: &records,
        deadline: std::time::Duration::from_secs(1),
        num_dropped: 0,
    });
    let today = batch.wire();
    // SAFETY: the batch's own array.
    let refs = unsafe { std::slice::from_raw_parts(today.records, today.num_records as usize) };
    let bodies: Vec<Vec<u64>> = refs.iter().map(larger).collect();
    let newer = |(record, body): (&RecordRef, &Vec<u64>)| {
        let body = body.as_ptr().cast();
        let kind = LATER_VALUE;
        [RecordRef { kind, body, ..*record }, RecordRef { body, ..*record }]
    };
    let newer: Vec<RecordRef> = refs.iter().zip(&bodies).flat_map(newer).collect();
    let mut wire = Newer::<BatchWire>::marked(today);
    (wire.known.records, wire.known.num_records) = (newer.as_ptr(), newer.len() as u32);
    let passed = if later { wire.ptr() } else { &raw const today };
    let log_batch = loggers.log_batch.expect("required");
    // SAFETY: a live logger that this thread alone uses, a batch whose parts live.
    told(|err| unsafe { log_batch(logger, passed, err) }).expect("records only inform");
    // SAFETY: a live logger, used no more.
    unsafe { loggers.drop.expect("required")(logger) };
    std::fs::read_to_string(path).expect("it wrote its file")
}

fn check_logger(library: &Library, folder: &str) {
    let folder = fresh_folder(folder);
    let today = written(library, &folder, false);
    assert!(today.contains("cmpl-1"), "{today}");
    assert_eq!(written(library, &folder, true), today);
}

#[test]
fn a_stat_logger_passes_over_records_and_fields_of_later() {
    check_logger(&Library::built("stat_logger_json_lines"), "json-lines");
}

#[test]
fn so_does_one_in_c() {
    check_logger(&Library::open(&in_c("plugins/stat-logger-c/csv.c")), "csv");
}

#[test]
fn a_lora_resolver_answers_a_larger_query_in_a_larger_answer() {
    let folder = fresh_folder("adapters");
    std::fs::create_dir(folder.join("one")).expect("a folder");
    std::fs::write(folder.join("one/adapter_config.json"), "{}").expect("a file");
    let root = enter(Library::built("lora_resolver_filesystem").entry).expect("it starts");
    let resolvers: LoraResolverTable = root.table().expect("a LoRA resolver");
    let config = format!("{{\"root\": \"{}\"}}", folder.display());
    let (create, mut resolver) = (resolvers.create.expect("required"), std::ptr::null_mut());
    // SAFETY: a live instance, a text for the call, valid outputs.
    told(|err| unsafe { create(root.instance, Str::new(&config), &mut resolver, err) }).expect("the folder is there");
    let mut query = Newer::marked(LoraQueryWire::zeroed());
    (query.known.name, query.known.timeout_ms) = (Str::new("one"), 1000);
    let mut path = [0; 4096];
    let mut answer = LoraAnswerWire::zeroed();
    (answer.path, answer.path_capacity) = (path.as_mut_ptr(), path.len() as u32);
    let resolve = resolvers.resolve.expect("required");
    let answer = gives(answer, |out| {
        // SAFETY: a live resolver, a sized query, a sized answer over `path`.
        told(|err| unsafe { resolve(resolver, query.ptr(), out, err) })
    });
    assert_eq!(answer.found, 1);
    let found = String::from_utf8_lossy(&path[..answer.path_len as usize]);
    assert!(found.ends_with("adapters/one"), "{found}");
    // SAFETY: a live resolver, used no more.
    unsafe { resolvers.drop.expect("required")(resolver) };
}

#[test]
fn an_io_processor_answers_a_larger_request_in_a_larger_verdict() {
    let root = enter(Library::built("io_processor_redact").entry).expect("it starts");
    let processors: IoProcessorTable = root.table().expect("an IO processor");
    let (create, mut processor) = (processors.create.expect("required"), std::ptr::null_mut());
    // SAFETY: a live instance, a text for the call, valid outputs.
    told(|err| unsafe { create(root.instance, Str::new("{}"), &mut processor, err) }).expect("its defaults");
    let mut request = Newer::marked(IoRequestWire::zeroed());
    request.known.route = Str::new("/v1/completions");
    request.known.id = Str::new("cmpl-1");
    request.known.body = Str::new(r#"{"prompt": "write to a@example.com"}"#);
    request.known.max_bytes = 1 << 20;
    let open = processors.open.expect("required");
    let release = processors.request_drop.expect("required");
    let verdict = gives(IoVerdictWire::zeroed(), |out| {
        let mut object = std::ptr::null_mut();
        // SAFETY: a live processor, a sized request and verdict; what was made is used no more.
        told(|err| unsafe {
            let code = open(processor, request.ptr(), &mut object, out, err);
            if !object.is_null() {
                release(object);
            }
            code
        })
    });
    assert_eq!(
        (verdict.action, verdict.wants_outputs),
        (1, 1),
        "it rewrites the request"
    );
    // SAFETY: a live processor, used no more.
    unsafe { processors.drop.expect("required")(processor) };
}

/// One token for each text: its length.
unsafe extern "C" fn encode(_: *mut c_void, text: Str, out: *mut u32, _: u32, num: *mut u32, _: *mut ErrorOut) -> u32 {
    // SAFETY: valid outputs with room for one.
    unsafe {
        out.write(text.len as u32);
        num.write(1);
    }
    0
}

unsafe extern "C" fn token_bytes(_: *mut c_void, _: u32, _: *mut u8, _: u32, num: *mut u32, _: *mut ErrorOut) -> u32 {
    // SAFETY: a valid output.
    unsafe { num.write(0) };
    0
}

#[test]
fn a_logits_processor_takes_a_larger_model_request_and_row() {
    let root = enter(Library::built("logits_processor_thinking_budget").entry).expect("it starts");
    let processors: LogitsProcessorTable = root.table().expect("a logits processor");
    let mut model = Newer::marked(LogitsModelWire::zeroed());
    model.known.vocab_size = 40;
    model.known.encode = Some(encode);
    model.known.token_bytes = Some(token_bytes);
    let (create, mut processor) = (processors.create.expect("required"), std::ptr::null_mut());
    // SAFETY: a live instance, a text and a sized model for the call, valid outputs.
    told(|err| unsafe { create(root.instance, Str::new("{}"), model.ptr(), &mut processor, err) }).expect("starts");
    // The prompt's second token is `<think>`.
    let prompt = [1, 7];
    let mut request = Newer::marked(LogitsRequestWire::zeroed());
    (request.known.prompt, request.known.num_prompt) = (prompt.as_ptr(), 2);
    request.known.args = Str::new(r#"{"thinking_token_budget": 0}"#);
    let (open, mut opened) = (processors.open.expect("required"), std::ptr::null_mut());
    // SAFETY: a live processor, a sized request, a valid output.
    told(|err| unsafe { open(processor, request.ptr(), &mut opened, err) }).expect("it looks at it");
    assert!(!opened.is_null(), "it takes part");
    let (begin, mut sequence) = (processors.sequence_create.expect("required"), std::ptr::null_mut());
    // SAFETY: a live request, a valid output.
    told(|err| unsafe { begin(opened, 0, &mut sequence, err) }).expect("it begins");
    let (mut mask, mut room) = ([u32::MAX; 2], [LogitBias::default(); 3]);
    let mut row = LogitsRowWire::zeroed();
    (row.vocab_size, row.mask) = (40, mask.as_mut_ptr());
    (row.biases, row.biases_capacity) = (room.as_mut_ptr(), 3);
    let process = processors.process.expect("required");
    let row = gives(row, |out| {
        // SAFETY: a live sequence that this thread alone uses, a sized row over `mask` and `room`.
        told(|err| unsafe { process(sequence, std::ptr::null(), 0, out, err) })
    });
    assert_eq!((mask, row.num_biases), ([1 << 8, 0], 0), "`</think>` is forced");
    // SAFETY: live objects, used no more.
    unsafe {
        processors.sequence_drop.expect("required")(sequence);
        processors.request_drop.expect("required")(opened);
        processors.drop.expect("required")(processor);
    }
}
