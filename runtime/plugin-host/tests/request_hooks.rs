//! IO processors and LoRA resolvers over their tables: every verdict crosses, and an invalid answer of a processor is
//! an error with a reason.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;

use halyard_platform_api::abi::request_tables::{
    IoProcessorTable, IoRequestWire, IoVerdictWire, KIND_IO_PROCESSOR, KIND_LORA_RESOLVER, LoraAnswerWire,
    LoraQueryWire, LoraResolverTable,
};
use halyard_platform_api::abi::tables::{ABI_MAJOR, ABI_MINOR, Host, Plugin as PluginWire};
use halyard_platform_api::abi::{ErrorOut, Str, write_struct};
use halyard_platform_api::io_processor::{IoOpened, IoOutputs, IoProcessor, IoProcessorFactory, IoRequest, IoVerdict};
use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};
use halyard_platform_api::{Error, LinkedPlugin, Result, Status};
use halyard_plugin_host::Plugin;

mod shouting {
    halyard_platform_api::export_io_processor! {
        name: "shouting", version: "1", about: "answers in capitals", factory: super::ShoutingFactory,
    }
}

struct ShoutingFactory;
struct Shouting;
struct ShoutingOutputs(String);

impl IoProcessorFactory for ShoutingFactory {
    fn create(&self, config: &str) -> Result<Arc<dyn IoProcessor>> {
        match config {
            "{}" => Ok(Arc::new(Shouting)),
            other => Err(Error::invalid(format!("configuration {other}: there are no keys"))),
        }
    }
}

impl IoProcessor for Shouting {
    fn open(&self, request: &IoRequest<'_>) -> Result<IoOpened> {
        let verdict = match request.body {
            "refuse" => IoVerdict::Reject {
                status: 422,
                reason: format!("not on {} for {}", request.route, request.id),
            },
            "teapot" => IoVerdict::Reject {
                status: 200,
                reason: String::new(),
            },
            "panic" => panic!("as asked"),
            "fail" => return Err(Error::new(Status::Unavailable, "its service is away")),
            "grow" => IoVerdict::Rewrite("x".repeat(request.max_bytes as usize + 1)),
            "silent" => {
                return Ok(IoOpened {
                    verdict: IoVerdict::Pass,
                    outputs: None,
                });
            }
            body => IoVerdict::Rewrite(body.to_uppercase()),
        };
        Ok(IoOpened {
            verdict,
            outputs: Some(Box::new(ShoutingOutputs(String::new()))),
        })
    }
}

impl IoOutputs for ShoutingOutputs {
    /// Holds the last character back.
    fn push(&mut self, choice: u32, text: &str) -> Result<String> {
        assert_ne!(text, "panic", "as asked");
        self.0.push_str(&text.to_uppercase());
        let end = self.0.char_indices().last().map_or(0, |(at, _)| at);
        Ok(format!("{choice}:{}", self.0.drain(..end).collect::<String>()))
    }

    fn finish(&mut self, choice: u32) -> Result<String> {
        Ok(format!("{choice}:{}.", std::mem::take(&mut self.0)))
    }
}

fn processor(linked: LinkedPlugin) -> Arc<dyn IoProcessor> {
    let plugin = Plugin::from_linked(linked).expect("it loads");
    let factory = plugin.io_processor_factory().expect("its kind");
    factory.create("{}").expect("it starts")
}

fn asked(body: &str) -> IoRequest<'_> {
    IoRequest {
        route: "/v1/completions",
        id: "cmpl-1",
        body,
        max_bytes: 16,
    }
}

/// The error of opening a request.
fn open_error(processor: &dyn IoProcessor, body: &str) -> Error {
    match processor.open(&asked(body)) {
        Ok(opened) => panic!("{body} was answered with {:?}", opened.verdict),
        Err(error) => error,
    }
}

#[test]
fn verdicts_and_texts_cross() {
    let processor = processor(shouting::plugin());
    let mut opened = processor.open(&asked("größe")).expect("taken");
    assert_eq!(opened.verdict, IoVerdict::Rewrite("GRÖSSE".to_owned()));
    let mut outputs = opened.outputs.take().expect("wanted");
    assert_eq!(outputs.push(3, "aé").expect("taken"), "3:A");
    assert_eq!(outputs.push(3, "b").expect("taken"), "3:É");
    assert_eq!(outputs.finish(3).expect("taken"), "3:B.");
    let refused = processor.open(&asked("refuse")).expect("answered");
    assert_eq!(
        refused.verdict,
        IoVerdict::Reject {
            status: 422,
            reason: "not on /v1/completions for cmpl-1".to_owned()
        }
    );
    let silent = processor.open(&asked("silent")).expect("answered");
    assert!(silent.outputs.is_none() && silent.verdict == IoVerdict::Pass);
}

#[test]
fn a_factory_refuses_keys_with_its_name_in_front() {
    let plugin = Plugin::from_linked(shouting::plugin()).expect("it loads");
    let factory = plugin.io_processor_factory().expect("its kind");
    let error = factory.create("{\"a\":1}").err().expect("no such key");
    assert!(
        error.message.starts_with("shouting: ") && error.message.contains("{\"a\":1}"),
        "{error}"
    );
    assert!(plugin.stat_logger_factory().is_err() && plugin.lora_resolver_factory().is_err());
}

#[test]
fn bad_answers_are_the_processors_failure() {
    let processor = processor(shouting::plugin());
    let cases = [
        ("grow", Status::Internal, "17 bytes; 16 are allowed"),
        ("teapot", Status::Internal, "status 200"),
        ("fail", Status::Unavailable, "its service is away"),
    ];
    for (body, status, words) in cases {
        let error = open_error(&*processor, body);
        assert!(
            error.status == status && error.message.contains(words),
            "{body}: {error}"
        );
        assert!(error.message.starts_with("shouting: "), "{error}");
    }
}

#[test]
fn a_panic_poisons_what_it_happened_on_and_nothing_else() {
    let first = processor(shouting::plugin());
    let mut opened = first.open(&asked("ok")).expect("taken");
    let outputs = opened.outputs.as_mut().expect("wanted");
    assert!(
        outputs
            .push(0, "panic")
            .expect_err("panics")
            .message
            .contains("as asked")
    );
    assert_eq!(outputs.push(0, "x").expect_err("poisoned").status, Status::Poisoned);
    first.open(&asked("ok")).expect("the processor itself is fine");
    assert!(open_error(&*first, "panic").message.contains("panicked"));
    assert_eq!(open_error(&*first, "ok").status, Status::Poisoned);
    processor(shouting::plugin())
        .open(&asked("ok"))
        .expect("another one is fine");
}

#[test]
fn output_texts_have_a_limit_for_the_whole_request() {
    let processor = processor(shouting::plugin());
    let mut opened = processor.open(&asked("ok")).expect("taken");
    let outputs = opened.outputs.as_mut().expect("wanted");
    outputs.push(0, "123456").expect("7 of 16 bytes");
    outputs.push(0, "123456").expect("15 of 16 bytes");
    let error = outputs.push(0, "1").expect_err("18 bytes");
    assert!(error.message.contains("1 are allowed"), "{error}");
}

/// A processor as it could be written in C: each of its bodies gives another kind of garbage.
mod garbage {
    use super::*;

    static TABLE: IoProcessorTable = IoProcessorTable {
        struct_size: size_of::<IoProcessorTable>() as u32,
        minor: 1,
        create: Some(create),
        drop: Some(nothing),
        open: Some(open),
        request_drop: Some(nothing),
        push: Some(push),
        finish: None,
    };

    unsafe extern "C" fn create(_: *mut c_void, _: Str, out: *mut *mut c_void, _: *mut ErrorOut) -> u32 {
        // SAFETY: the host's valid output.
        unsafe { *out = std::ptr::dangling_mut::<u8>().cast() };
        0
    }

    unsafe extern "C" fn nothing(_: *mut c_void) {}

    unsafe extern "C" fn open(
        _: *mut c_void,
        request: *const IoRequestWire,
        out: *mut *mut c_void,
        verdict: *mut IoVerdictWire,
        _: *mut ErrorOut,
    ) -> u32 {
        // SAFETY: the host's sized request and valid outputs.
        unsafe {
            let body = (*request).body.to_text();
            let mut answer = IoVerdictWire::zeroed();
            match body.as_str() {
                "action" => answer.action = 77,
                "status" => return 4242,
                "utf8" => {
                    answer.action = 1;
                    answer.text = Str {
                        ptr: b"\xff\xfe".as_ptr(),
                        len: 2,
                    };
                }
                "null" => {
                    answer.action = 1;
                    answer.text = Str {
                        ptr: std::ptr::null(),
                        len: 5,
                    };
                }
                "wants" => answer.wants_outputs = 9,
                "no-request" => answer.wants_outputs = 1,
                _ => {
                    answer.wants_outputs = 1;
                    *out = std::ptr::dangling_mut::<u8>().cast();
                }
            }
            write_struct(verdict, &answer).map_or(12, |()| 0)
        }
    }

    unsafe extern "C" fn push(_: *mut c_void, _: u32, _: Str, out: *mut Str, _: *mut ErrorOut) -> u32 {
        // SAFETY: the host's valid output.
        unsafe {
            *out = Str {
                ptr: std::ptr::dangling(),
                len: u64::MAX,
            };
        }
        0
    }

    unsafe extern "C" fn resolver_answer(
        _: *mut c_void,
        query: *const LoraQueryWire,
        out: *mut LoraAnswerWire,
        _: *mut ErrorOut,
    ) -> u32 {
        // SAFETY: the host's sized query and answer with its buffer.
        unsafe {
            (*out).found = 1;
            match (*query).name.to_text().as_str() {
                "long" => (*out).path_len = u32::MAX,
                "code" => (*out).found = 5,
                _ => {
                    *(*out).path = b'x';
                    (*out).path_len = 1;
                }
            }
        }
        0
    }

    static RESOLVER: LoraResolverTable = LoraResolverTable {
        struct_size: size_of::<LoraResolverTable>() as u32,
        minor: 1,
        create: Some(create),
        drop: Some(nothing),
        resolve: Some(resolver_answer),
    };

    unsafe extern "C" fn interface(
        _: *mut c_void,
        id: u32,
        _: u32,
        _: u32,
        out: *mut *const c_void,
        _: *mut ErrorOut,
    ) -> u32 {
        // SAFETY: the host's valid output.
        unsafe {
            *out = match id {
                IoProcessorTable::INTERFACE => (&raw const TABLE).cast(),
                _ => (&raw const RESOLVER).cast(),
            };
        }
        0
    }

    unsafe fn enter(out: *mut PluginWire, kind: u32, name: &'static str) -> u32 {
        let mut plugin = PluginWire::zeroed();
        plugin.abi_major = ABI_MAJOR;
        plugin.abi_minor = ABI_MINOR;
        plugin.kind = kind;
        plugin.name = Str::new(name);
        plugin.version = Str::new("1");
        plugin.find_interface = Some(interface);
        // SAFETY: the host's sized output.
        unsafe { write_struct(out, &plugin) }.map_or(12, |()| 0)
    }

    pub unsafe extern "C" fn enter_io(_: *const Host, out: *mut PluginWire, _: *mut ErrorOut) -> u32 {
        // SAFETY: as the host promises.
        unsafe { enter(out, KIND_IO_PROCESSOR, "garbage") }
    }

    pub unsafe extern "C" fn enter_resolver(_: *const Host, out: *mut PluginWire, _: *mut ErrorOut) -> u32 {
        // SAFETY: as the host promises.
        unsafe { enter(out, KIND_LORA_RESOLVER, "garbage") }
    }
}

fn manifest(kind: &str) -> String {
    format!(
        r#"{{"manifest":1,"kind":"{kind}","name":"garbage","version":"1","abi":"{ABI_MAJOR}.{ABI_MINOR}","entry":"e"}}"#
    )
}

#[test]
fn rubbish_on_the_wire_is_named_and_never_believed() {
    let manifest = manifest("io-processor").leak();
    let garbage = processor(LinkedPlugin {
        manifest,
        entry: garbage::enter_io,
    });
    let cases = [
        ("action", "IoAction code 77"),
        ("status", "no message was given"),
        ("utf8", "not UTF-8"),
        ("null", "null pointer"),
        ("wants", "9 for wants_outputs"),
        ("no-request", "no request object"),
    ];
    for (body, words) in cases {
        let error = open_error(&*garbage, body);
        assert!(
            error.message.starts_with("garbage: ") && error.message.contains(words),
            "{body}: {error}"
        );
    }
    let mut opened = garbage.open(&asked("push")).expect("taken");
    let outputs = opened.outputs.as_mut().expect("wanted");
    let error = outputs.push(0, "text").expect_err("too long to be true");
    assert!(error.message.contains(&u64::MAX.to_string()), "{error}");
    assert_eq!(outputs.finish(0).expect("the slot is absent"), "");
}

mod shelf {
    halyard_platform_api::export_lora_resolver! {
        name: "shelf", version: "1", about: "knows one adapter", factory: super::ShelfFactory,
    }
}

struct ShelfFactory;
struct Shelf;

impl LoraResolverFactory for ShelfFactory {
    fn create(&self, _: &str) -> Result<Arc<dyn LoraResolver>> {
        Ok(Arc::new(Shelf))
    }
}

impl LoraResolver for Shelf {
    fn resolve(&self, query: &LoraQuery<'_>) -> Result<Option<PathBuf>> {
        match query.name {
            "known" => Ok(Some(PathBuf::from(format!(
                "/shelf/{}/{}",
                query.base_model, query.timeout_ms
            )))),
            "endless" => Ok(Some(PathBuf::from(format!("/{}", "x".repeat(5000))))),
            "refused" => Err(Error::new(Status::Denied, "not this one")),
            "panic" => panic!("as asked"),
            _ => Ok(None),
        }
    }
}

fn query(name: &str) -> LoraQuery<'_> {
    LoraQuery {
        name,
        base_model: "base",
        timeout_ms: 7,
    }
}

#[test]
fn a_resolvers_answers_cross() {
    let plugin = Plugin::from_linked(shelf::plugin()).expect("it loads");
    let shelf = plugin
        .lora_resolver_factory()
        .expect("its kind")
        .create("{}")
        .expect("it starts");
    let found = shelf.resolve(&query("known")).expect("answered");
    assert_eq!(found, Some(PathBuf::from("/shelf/base/7")));
    assert_eq!(shelf.resolve(&query("unknown")).expect("answered"), None);
    assert_eq!(
        shelf.resolve(&query("refused")).expect_err("refused").status,
        Status::Denied
    );
    assert!(
        shelf
            .resolve(&query("endless"))
            .expect_err("too long")
            .message
            .contains("5001 bytes")
    );
    assert!(
        shelf
            .resolve(&query("panic"))
            .expect_err("panics")
            .message
            .contains("shelf: panicked")
    );
    assert_eq!(
        shelf.resolve(&query("known")).expect_err("poisoned").status,
        Status::Poisoned
    );
}

#[test]
fn a_resolvers_rubbish_is_named() {
    let plugin = Plugin::from_linked(LinkedPlugin {
        manifest: manifest("lora-resolver").leak(),
        entry: garbage::enter_resolver,
    });
    let factory = plugin.expect("it loads").lora_resolver_factory().expect("its kind");
    let garbage = factory.create("{}").expect("it starts");
    for (name, words) in [
        ("long", "4294967295 bytes"),
        ("code", "found 5"),
        ("relative", "no absolute path"),
    ] {
        let error = garbage.resolve(&query(name)).expect_err(name);
        assert!(error.message.contains(words), "{name}: {error}");
    }
}
