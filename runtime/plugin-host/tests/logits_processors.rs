//! Logits processors over their table: requests, rows and the model's functions cross, objects are dropped in order,
//! and what a processor of another language may do wrong to a row is named, and reaches no logits.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use halyard_platform_api::abi::logits_tables::{
    KIND_LOGITS_PROCESSOR, LogitBias, LogitsModelWire, LogitsProcessorTable, LogitsRequestWire, LogitsRowWire,
};
use halyard_platform_api::abi::tables::{ABI_MAJOR, ABI_MINOR, Host, Plugin as PluginWire};
use halyard_platform_api::abi::{ErrorOut, Str, write_struct};
use halyard_platform_api::logits_processor::{
    LogitsModel, LogitsProcessor, LogitsProcessorFactory, LogitsRequest, LogitsRow, RequestLogits, SequenceLogits,
};
use halyard_platform_api::{Error, LinkedPlugin, Result, Status};
use halyard_plugin_host::Plugin;

const VOCAB: u32 = 70;

/// Encodes a text as one token a byte, many of them.
struct Model;

impl LogitsModel for Model {
    fn vocab_size(&self) -> u32 {
        VOCAB
    }

    fn end_tokens(&self) -> &[u32] {
        &[2, 3]
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match text {
            "panic" => panic!("as asked"),
            "refuse" => Err(Error::invalid("no such text")),
            text => Ok(text.bytes().map(u32::from).collect()),
        }
    }

    fn token_bytes(&self, token: u32) -> Result<Vec<u8>> {
        Ok(vec![b'x'; token as usize])
    }
}

mod asking {
    halyard_platform_api::export_logits_processor! {
        name: "asking", version: "1", about: "asks for everything", factory: super::AskingFactory,
    }
}

/// What was dropped, in order.
static DROPPED: Mutex<Vec<&str>> = Mutex::new(Vec::new());

fn dropped(what: &'static str) {
    DROPPED.lock().expect("one test").push(what);
}

struct AskingFactory;
struct Asking(Arc<dyn LogitsModel>);
struct AskingRequest(String);
struct AskingSequence(u32);

impl Drop for Asking {
    fn drop(&mut self) {
        // The model is there until the end.
        assert_eq!(self.0.encode("a"), Ok(vec![97]));
        dropped("processor");
    }
}

impl Drop for AskingRequest {
    fn drop(&mut self) {
        dropped("request");
    }
}

impl Drop for AskingSequence {
    fn drop(&mut self) {
        dropped("sequence");
    }
}

impl LogitsProcessorFactory for AskingFactory {
    fn create(&self, config: &str, model: Arc<dyn LogitsModel>) -> Result<Arc<dyn LogitsProcessor>> {
        assert_eq!((model.vocab_size(), model.end_tokens()), (VOCAB, &[2, 3][..]));
        match config {
            "{}" => Ok(Arc::new(Asking(model))),
            other => Err(Error::invalid(format!("configuration {other}"))),
        }
    }
}

impl LogitsProcessor for Asking {
    fn open(&self, request: &LogitsRequest<'_>) -> Result<Option<Box<dyn RequestLogits>>> {
        match request.args {
            "none" => Ok(None),
            "denied" => Err(Error::new(Status::Denied, "not this one")),
            "bytes" => Err(Error::invalid(format!("{} bytes", self.0.token_bytes(1000)?.len()))),
            "encode" => Err(Error::invalid(format!(
                "{} tokens",
                self.0.encode(&"y".repeat(300))?.len()
            ))),
            "panic" | "refuse" => self.0.encode(request.args).map(|_| None),
            args => {
                let all = format!("{} {:?} {} {args}", request.id, request.prompt, request.max_tokens);
                Ok(Some(Box::new(AskingRequest(all))))
            }
        }
    }

    fn reads(&self, field: &str) -> bool {
        field == "known"
    }
}

impl RequestLogits for AskingRequest {
    fn start(&self, sample: u32) -> Result<Box<dyn SequenceLogits>> {
        match sample {
            9 => Err(Error::invalid(self.0.clone())),
            sample => Ok(Box::new(AskingSequence(sample))),
        }
    }
}

impl SequenceLogits for AskingSequence {
    fn process(&mut self, tokens: &[u32], row: &mut LogitsRow<'_>) -> Result<()> {
        if tokens == [66] {
            panic!("as asked");
        }
        // What was forbidden before stays so.
        row.mask_mut().fill(u32::MAX);
        row.forbid(self.0)?;
        tokens.iter().try_for_each(|&token| row.add_bias(token, 0.5))
    }
}

fn processor(linked: LinkedPlugin) -> Arc<dyn LogitsProcessor> {
    let plugin = Plugin::from_linked(linked).expect("it loads");
    assert!(plugin.io_processor_factory().is_err(), "it is of another kind");
    let factory = plugin.logits_processor_factory().expect("its kind");
    factory.create("{}", Arc::new(Model)).expect("it starts")
}

fn request(args: &str) -> LogitsRequest<'_> {
    LogitsRequest {
        id: "7",
        prompt: &[1, 2],
        max_tokens: 5,
        args,
    }
}

fn open_error(processor: &dyn LogitsProcessor, args: &str) -> Error {
    processor.open(&request(args)).err().expect(args)
}

#[test]
fn requests_rows_and_the_model_cross() {
    let asking = processor(asking::plugin());
    assert!(asking.reads("known") && !asking.reads("other"));
    assert!(asking.open(&request("none")).expect("answered").is_none());
    assert_eq!(open_error(&*asking, "denied").status, Status::Denied);
    assert!(open_error(&*asking, "bytes").message.contains("1000 bytes"));
    assert!(open_error(&*asking, "encode").message.contains("300 tokens"));
    assert!(open_error(&*asking, "refuse").message.contains("asking: no such text"));
    assert!(open_error(&*asking, "panic").message.contains("the host panicked"));
    let opened = asking.open(&request("args")).expect("answered").expect("takes part");
    let words = opened.start(9).err().expect("as asked").message;
    assert!(words.contains("7 [1, 2] 5 args"), "{words}");
    let mut sequence = opened.start(33).expect("begins");
    // Dropped by their users first, they stay until what is made of them goes.
    drop((opened, asking));
    let (mut mask, mut room) = ([u32::MAX; 3], [LogitBias::default(); 2]);
    let mut row = LogitsRow::new(VOCAB, &mut mask, &mut room).expect("three words");
    row.forbid(5).expect("known");
    sequence.process(&[8, 9], &mut row).expect("goes on");
    assert!(!row.allows(33) && !row.allows(5) && row.allows(6));
    let biases: Vec<_> = row.biases().iter().map(|of| (of.token, of.bias)).collect();
    assert_eq!(biases, [(8, 0.5), (9, 0.5)]);
    let error = sequence.process(&[8], &mut row).expect_err("there is no more room");
    assert!(error.message.contains("asking: "), "{error}");
    assert_eq!(
        sequence.process(&[66], &mut row).expect_err("panics").status,
        Status::Panicked
    );
    assert_eq!(
        sequence.process(&[], &mut row).expect_err("after it").status,
        Status::Poisoned
    );
    assert!(DROPPED.lock().expect("one test").is_empty());
    drop(sequence);
    assert_eq!(*DROPPED.lock().expect("one test"), ["sequence", "request", "processor"]);
}

/// A plugin that no Rust type holds back: its answers are rubbish, chosen by the request's arguments.
mod rubbish {
    use super::*;

    pub static CASE: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn create(
        _: *mut c_void,
        _: Str,
        model: *const LogitsModelWire,
        out: *mut *mut c_void,
        _: *mut ErrorOut,
    ) -> u32 {
        // SAFETY: the host's sized model and valid output.
        unsafe {
            let model = &*model;
            let (mut tokens, mut num) = ([0u32; 2], 0);
            let encode = model.encode.expect("the host has it");
            let text = Str::new("abc");
            let code = encode(
                model.context,
                text,
                tokens.as_mut_ptr(),
                2,
                &mut num,
                std::ptr::null_mut(),
            );
            assert_eq!((code, num, tokens), (0, 3, [97, 98]), "as many as there is room for");
            let code = encode(
                model.context,
                text,
                std::ptr::null_mut(),
                2,
                &mut num,
                std::ptr::null_mut(),
            );
            assert_eq!(code, Status::InvalidArgument as u32);
            *out = std::ptr::dangling_mut::<u8>().cast();
        }
        0
    }

    unsafe extern "C" fn nothing(_: *mut c_void) {}

    unsafe extern "C" fn open(
        _: *mut c_void,
        request: *const LogitsRequestWire,
        out: *mut *mut c_void,
        _: *mut ErrorOut,
    ) -> u32 {
        // SAFETY: the host's sized request and valid output.
        unsafe {
            if (*request).args.to_text() == "status" {
                return 4711;
            }
            *out = std::ptr::dangling_mut::<u8>().cast();
        }
        0
    }

    unsafe extern "C" fn sequence_create(_: *mut c_void, sample: u32, out: *mut *mut c_void, _: *mut ErrorOut) -> u32 {
        if sample == 0 {
            // SAFETY: the host's valid output.
            unsafe { *out = std::ptr::dangling_mut::<u8>().cast() };
        }
        0
    }

    unsafe extern "C" fn process(
        _: *mut c_void,
        _: *const u32,
        _: u32,
        row: *mut LogitsRowWire,
        _: *mut ErrorOut,
    ) -> u32 {
        // SAFETY: the host's sized row over its mask and room.
        unsafe {
            let row = &mut *row;
            let first = &mut *row.biases;
            row.num_biases = 1;
            match CASE.load(Ordering::Relaxed) {
                0 => row.num_biases = row.biases_capacity + 1,
                1 => row.num_biases = u32::MAX,
                2 => first.bias = f32::NAN,
                3 => first.bias = -2e9,
                4 => first.token = VOCAB,
                5 => return 999,
                // It means what the host does not know: the host's own fields are what counts.
                _ => {
                    (row.vocab_size, row.biases_capacity) = (u32::MAX, u32::MAX);
                    std::slice::from_raw_parts_mut(row.mask, 3).fill(u32::MAX);
                    (row.mask, row.biases) = (std::ptr::null_mut(), std::ptr::null_mut());
                    *first = LogitBias { token: 1, bias: 2.0 };
                }
            }
        }
        0
    }

    static TABLE: LogitsProcessorTable = LogitsProcessorTable {
        struct_size: size_of::<LogitsProcessorTable>() as u32,
        minor: 1,
        create: Some(create),
        drop: Some(nothing),
        open: Some(open),
        request_drop: Some(nothing),
        sequence_create: Some(sequence_create),
        sequence_drop: Some(nothing),
        process: Some(process),
        reads: None,
    };

    unsafe extern "C" fn interface(
        _: *mut c_void,
        _: u32,
        _: u32,
        _: u32,
        out: *mut *const c_void,
        _: *mut ErrorOut,
    ) -> u32 {
        // SAFETY: the host's valid output.
        unsafe { *out = (&raw const TABLE).cast() };
        0
    }

    pub unsafe extern "C" fn enter(_: *const Host, out: *mut PluginWire, _: *mut ErrorOut) -> u32 {
        let mut plugin = PluginWire::zeroed();
        plugin.abi_major = ABI_MAJOR;
        plugin.abi_minor = ABI_MINOR;
        plugin.kind = KIND_LOGITS_PROCESSOR;
        plugin.name = Str::new("rubbish");
        plugin.version = Str::new("1");
        plugin.find_interface = Some(interface);
        // SAFETY: the host's sized output.
        unsafe { write_struct(out, &plugin) }.map_or(12, |()| 0)
    }
}

#[test]
fn rubbish_on_the_wire_is_named_and_never_believed() {
    let manifest = format!(
        r#"{{"manifest":1,"kind":"logits-processor","name":"rubbish","version":"1","abi":"{}.{}","entry":"e"}}"#,
        ABI_MAJOR, ABI_MINOR
    );
    let rubbish = processor(LinkedPlugin {
        manifest: manifest.leak(),
        entry: rubbish::enter,
    });
    assert!(!rubbish.reads("known"), "it has no such function");
    assert!(
        open_error(&*rubbish, "status")
            .message
            .contains("4711, which is no status")
    );
    let opened = rubbish.open(&request("")).expect("answered").expect("takes part");
    assert!(opened.start(1).err().expect("refused").message.contains("null handle"));
    let mut sequence = opened.start(0).expect("begins");
    let (mut mask, mut room) = ([0b110, 0, 0], [LogitBias::default(); 4]);
    let mut row = LogitsRow::new(VOCAB, &mut mask, &mut room).expect("three words");
    let words = [
        "gave 5 biases where there is room for 4",
        "gave 4294967295 biases",
        "the bias NaN of token 0",
        "the bias -2000000000 of token 0",
        "token 70 is outside",
        "999, which is no status",
    ];
    for (case, words) in (0..).zip(words) {
        rubbish::CASE.store(case, Ordering::Relaxed);
        let error = sequence.process(&[], &mut row).expect_err(words);
        assert_eq!(error.status, Status::Internal, "{error}");
        assert!(
            error.message.starts_with("rubbish: ") && error.message.contains(words),
            "{error}"
        );
    }
    rubbish::CASE.store(99, Ordering::Relaxed);
    sequence.process(&[], &mut row).expect("what counts is right");
    assert!(
        row.allows(1) && row.allows(2) && !row.allows(3),
        "no bit is set that was cleared"
    );
    assert_eq!((row.biases().len(), row.biases()[0].token), (1, 1));
}
