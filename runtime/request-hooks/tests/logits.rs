//! Logits processors of a request: who takes part, what several of them leave each other, how failures are counted, and
//! where objects are dropped.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use halyard_platform_api::logits_processor::{
    LogitsModel, LogitsProcessor, LogitsProcessorFactory, LogitsRequest, LogitsRow, RequestLogits, SequenceLogits,
};
use halyard_platform_api::{Error, Result, Status};
use halyard_request_hooks::{Failed, LogitsProcessors, ProcessorFailure};
use prometheus_client::registry::Registry;

const VOCAB: u32 = 40;
/// Of each call.
const TIMEOUT: Duration = Duration::from_secs(4);

struct Model;

impl LogitsModel for Model {
    fn vocab_size(&self) -> u32 {
        VOCAB
    }

    fn end_tokens(&self) -> &[u32] {
        &[2]
    }

    fn encode(&self, _: &str) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    fn token_bytes(&self, _: u32) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

/// Does as the arguments say, and tells on which threads its samples are dropped.
struct Scripted(&'static str, Mutex<Sender<ThreadId>>);
struct Sample(String, Sender<ThreadId>);

impl LogitsProcessorFactory for Scripted {
    fn create(&self, config: &str, _: Arc<dyn LogitsModel>) -> Result<Arc<dyn LogitsProcessor>> {
        match config {
            "{}" => Ok(Arc::new(Scripted(self.0, Mutex::new(self.told())))),
            other => Err(Error::invalid(format!("configuration {other}"))),
        }
    }
}

impl Scripted {
    fn told(&self) -> Sender<ThreadId> {
        self.1.lock().expect("one test").clone()
    }
}

impl LogitsProcessor for Scripted {
    fn open(&self, request: &LogitsRequest<'_>) -> Result<Option<Box<dyn RequestLogits>>> {
        assert_eq!((request.id, request.prompt, request.max_tokens), ("7", &[1, 2][..], 9));
        match request.args {
            "none" => Ok(None),
            "denied" => Err(Error::new(Status::Denied, "not this one")),
            "invalid" => Err(Error::invalid("not so")),
            "error" => Err(Error::new(Status::Internal, "broken")),
            "away" => Err(Error::new(Status::Unavailable, "away")),
            "sleep" => {
                std::thread::sleep(2 * TIMEOUT);
                Ok(None)
            }
            args => Ok(Some(Box::new(Scripted(
                Box::leak(args.to_string().into()),
                Mutex::new(self.told()),
            )))),
        }
    }

    fn reads(&self, field: &str) -> bool {
        field == self.0
    }
}

impl RequestLogits for Scripted {
    fn start(&self, sample: u32) -> Result<Box<dyn SequenceLogits>> {
        Ok(Box::new(Sample(format!("{} {sample}", self.0), self.told())))
    }
}

impl SequenceLogits for Sample {
    fn process(&mut self, tokens: &[u32], row: &mut LogitsRow<'_>) -> Result<()> {
        match self.0.as_str() {
            "fill 3" => (0..600).try_for_each(|_| row.add_bias(5, 1.0)),
            "nothing 0" => row.allow_only(&[]),
            "poisoned 0" => Err(Error::new(Status::Poisoned, "an earlier call panicked")),
            _ => tokens.iter().try_for_each(|&token| row.forbid(token)),
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = self.1.send(std::thread::current().id());
    }
}

fn processors(names: &[&'static str]) -> (LogitsProcessors, Receiver<ThreadId>) {
    let (told, dropped) = channel();
    let model: Arc<dyn LogitsModel> = Arc::new(Model);
    let one = |name: &&'static str| {
        let factory: Arc<dyn LogitsProcessorFactory> = Arc::new(Scripted(name, Mutex::new(told.clone())));
        ((*name).to_owned(), factory, "{}".to_owned())
    };
    let chosen = names.iter().map(one).collect();
    let all = LogitsProcessors::create(chosen, &model, TIMEOUT, &["a", "z"]);
    (all.unwrap_or_else(|(name, error)| panic!("{name}: {error}")), dropped)
}

fn request(args: &str) -> LogitsRequest<'_> {
    LogitsRequest {
        id: "7",
        prompt: &[1, 2],
        max_tokens: 9,
        args,
    }
}

async fn failure(all: &LogitsProcessors, args: &str) -> ProcessorFailure {
    all.open(request(args)).await.err().expect(args)
}

fn shown(all: &LogitsProcessors) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    all.register_metrics(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("formats");
    text
}

#[tokio::test]
async fn a_request_meets_processors_that_refuse_fail_or_take_no_part() {
    assert_eq!(shown(&LogitsProcessors::default()), "# EOF\n");
    let (all, _dropped) = processors(&["a", "b"]);
    assert!(
        all.reads("a") && !all.reads("z") && !all.reads("b"),
        "only what was asked about"
    );
    assert!(all.open(request("none")).await.expect("asked").is_empty());
    let opened = all.open(request("part")).await.expect("asked");
    let names: Vec<String> = opened.iter().map(|logits| logits.name()).collect();
    assert_eq!(names, ["the logits processor `a`", "the logits processor `b`"]);
    for (args, status, code, words) in [
        (
            "denied",
            400,
            "logits_processor_rejected",
            "`a` refused the request: not this one",
        ),
        ("invalid", 400, "logits_processor_rejected", "not so"),
        ("error", 500, "logits_processor_failed", "`a` failed: Internal: broken"),
        ("away", 503, "logits_processor_failed", "away"),
        ("sleep", 503, "logits_processor_failed", "did not answer within 4000 ms"),
    ] {
        let failed = failure(&all, args).await;
        assert_eq!((failed.http_status(), failed.code()), (status, code), "{failed}");
        assert!(failed.to_string().contains(words), "{failed}");
        assert_eq!(
            failed.reason().is_none(),
            matches!(failed.what, Failed::Rejected { .. })
        );
    }
    let shown = shown(&all);
    for line in [
        "halyard:logits_processor_requests_total{processor=\"a\"} 7",
        "halyard:logits_processor_requests_total{processor=\"b\"} 2",
        "halyard:logits_processor_refusals_total{processor=\"a\"} 2",
        "halyard:logits_processor_errors_total{processor=\"a\",reason=\"deadline\"} 1",
        "halyard:logits_processor_errors_total{processor=\"a\",reason=\"error\"} 2",
        "halyard:logits_processor_call_seconds_count{processor=\"a\",call=\"request\"} 7",
        "halyard:logits_processor_call_seconds_count{processor=\"a\",call=\"token\"} 0",
    ] {
        assert!(shown.contains(&format!("{line}\n")), "{line} in\n{shown}");
    }
}

#[tokio::test]
async fn a_sample_is_processed_anywhere_and_dropped_on_a_blocking_thread() {
    let (all, dropped) = processors(&["a"]);
    let opened = all.open(request("fill")).await.expect("asked").remove(0);
    let poisoned = all.open(request("poisoned")).await.expect("asked").remove(0);
    let nothing = all.open(request("nothing")).await.expect("asked").remove(0);
    // As the engine does it: on a thread without a runtime.
    let processing = std::thread::spawn(move || {
        let (mut sample, mut other) = (opened.sample(3), opened.sample(4));
        let (mut mask, mut biases) = (vec![u32::MAX, 0xff], Vec::new());
        sample.process(&[], &mut mask, &mut biases).expect("there is room");
        assert_eq!((biases.len(), biases[599]), (600, (5, 1.0)));
        let error = sample
            .process(&[], &mut mask, &mut biases)
            .expect_err("the room is shared");
        assert!(
            error.contains("`a` failed") && error.contains("more than 424 biases"),
            "{error}"
        );
        other.process(&[33], &mut mask, &mut biases).expect("no biases");
        assert_eq!(mask, [u32::MAX, 0xfd]);
        let error = nothing
            .sample(0)
            .process(&[], &mut mask, &mut biases)
            .expect_err("no token is left");
        assert!(error.contains("leaves no token"), "{error}");
        let error = poisoned.sample(0).process(&[], &mut [1; 2], &mut biases);
        assert!(error.expect_err("as after a panic").contains("panicked"));
        assert!(opened.give_up().contains("did not answer within 4000 ms"));
        assert_eq!(opened.timeout(), TIMEOUT);
        drop((sample, other));
        std::thread::current().id()
    });
    let processing = tokio::task::spawn_blocking(|| processing.join().expect("it did not panic"));
    let (here, processing) = (std::thread::current().id(), processing.await.expect("joined"));
    let drops = tokio::task::spawn_blocking(move || {
        let next = || dropped.recv_timeout(Duration::from_secs(60)).expect("it is dropped");
        [next(), next(), next(), next()]
    });
    for thread in drops.await.expect("four samples") {
        assert!(thread != here && thread != processing, "on a blocking thread");
    }
    let shown = shown(&all);
    for line in [
        "halyard:logits_processor_errors_total{processor=\"a\",reason=\"error\"} 2",
        "halyard:logits_processor_errors_total{processor=\"a\",reason=\"panic\"} 1",
        "halyard:logits_processor_errors_total{processor=\"a\",reason=\"deadline\"} 1",
        "halyard:logits_processor_call_seconds_count{processor=\"a\",call=\"token\"} 5",
    ] {
        assert!(shown.contains(&format!("{line}\n")), "{line} in\n{shown}");
    }
}
