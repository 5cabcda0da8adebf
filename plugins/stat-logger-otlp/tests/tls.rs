//! Collectors over TLS, with certificates made here: a trusted one gets everything; one that is not is an error with
//! its reason, which quarantines the logger until it is mended; nothing hangs.

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use halyard_hooks::{HubConfig, Isolation, SinkSource, SinkSpec, SinkState};
use halyard_platform_api::Status;
use halyard_platform_api::hooks::StatRecord;
use rustls::ServerConfig;
use serde_json::json;

use support::authority::{Authority, in_file, serving};
use support::{
    Arrived, DEADLINE, arrived, counter, factory, finished, give, listen, logger, refusal, settled, start,
    tls_collector,
};

fn listening(config: Arc<ServerConfig>) -> (Receiver<Arrived>, String) {
    tls_collector(Arc::new(Mutex::new(config)))
}

fn request() -> StatRecord {
    StatRecord::Finished(finished())
}

#[test]
fn a_collector_of_a_trusted_authority_gets_both_signals() {
    let authority = Authority::new("trusted");
    let (receiver, url) = listening(authority.server("localhost", false));
    let mut logger = logger(json!({"endpoint": url, "ca_file": authority.file}));
    give(&mut *logger, &[start(), request()]);
    assert_eq!(settled(&mut *logger), (4, 0));
    drop(logger);
    let requests: Vec<Arrived> = receiver.try_iter().collect();
    for path in ["/v1/traces", "/v1/metrics"] {
        let of = requests.iter().filter(|arrived| arrived.path == path);
        assert!(of.clone().count() > 0, "nothing came to {path}");
        assert!(of.clone().all(|arrived| !arrived.body.is_empty()));
    }
}

#[test]
fn a_certificate_that_its_server_made_itself_can_be_trusted() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let (receiver, url) = listening(serving(made.cert.der().clone(), &made.signing_key));
    let file = in_file("self-made", &made.cert.pem());
    let mut logger = logger(json!({"endpoint": url, "ca_file": file, "metrics": false}));
    give(&mut *logger, &[start(), request()]);
    assert_eq!(settled(&mut *logger), (4, 0));
    assert_eq!(arrived(&receiver, "/v1/traces").len(), 1);
}

#[test]
fn a_collector_that_is_not_trusted_gets_nothing_and_the_error_says_why() {
    let (trusted, other) = (Authority::new("known"), Authority::new("unknown"));
    let collectors = [
        (listening(other.server("localhost", false)), "UnknownIssuer"),
        (
            listening(trusted.server("elsewhere.example", false)),
            "not valid for name",
        ),
        (listening(trusted.server("localhost", true)), "expired"),
    ];
    for ((receiver, url), words) in collectors {
        let mut logger = logger(json!({
            "endpoint": url, "ca_file": trusted.file, "span_delay_ms": 20, "interval_ms": 20,
        }));
        give(&mut *logger, &[start()]);
        let reason = refusal(&mut *logger);
        assert!(
            reason.contains(words) && reason.contains(&url) && reason.contains("`ca_file`"),
            "{words}: {reason}"
        );
        let (exported, dropped) = settled(&mut *logger);
        assert!(exported == 0 && dropped >= 4, "{exported} exported, {dropped} dropped");
        assert_eq!(
            counter(&mut *logger, "halyard:otlp_metric_exports_total{outcome=\"exported\"}"),
            0
        );
        drop(logger);
        assert_eq!(receiver.try_iter().count(), 0, "{words}: something was sent");
    }
}

#[test]
fn a_collector_that_does_not_talk_tls_is_told_too() {
    let (_receiver, address) = listen(|mut stream, _| {
        let mut hello = [0; 5];
        let _ = stream.read_exact(&mut hello);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let authority = Authority::new("plain");
    let mut logger = logger(json!({
        "endpoint": format!("https://{address}"), "ca_file": authority.file, "span_delay_ms": 20,
    }));
    give(&mut *logger, &[start()]);
    let reason = refusal(&mut *logger);
    assert!(
        reason.contains("corrupt message") || reason.contains("InvalidContentType"),
        "{reason}"
    );
}

#[test]
fn a_silent_collector_is_late_and_nothing_worse() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", silent.local_addr().expect("bound"));
    let authority = Authority::new("silent");
    let mut logger = logger(json!({
        "endpoint": url, "ca_file": authority.file, "timeout_ms": 200, "span_delay_ms": 20,
    }));
    give(&mut *logger, &[start(), request()]);
    assert_eq!(settled(&mut *logger), (0, 4));
    give(&mut *logger, &[request()]);
}

#[test]
fn a_quarantined_logger_recovers_when_the_certificate_is_mended() {
    let (trusted, other) = (Authority::new("mended"), Authority::new("broken"));
    let config = Arc::new(Mutex::new(other.server("localhost", false)));
    let (receiver, url) = tls_collector(config.clone());
    let settings =
        json!({"endpoint": url, "ca_file": trusted.file, "span_delay_ms": 20, "interval_ms": 20}).to_string();
    let source = SinkSource {
        version: "1".to_owned(),
        path: None,
        isolation: Isolation::Thread,
        make: Arc::new(move || factory().create(&settings)),
    };
    let spec = SinkSpec {
        name: "otlp".to_owned(),
        source,
    };
    let config_of_hub = HubConfig {
        call_deadline: DEADLINE,
        ..HubConfig::default()
    };
    let hub = halyard_hooks::Hub::start(vec![spec], config_of_hub).expect("it starts");
    let sender = hub.sender();
    let until = |state: &str, holds: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < DEADLINE, "not {state}: {:?}", hub.report());
            sender.send(request());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    until("quarantined", &|| hub.report().sinks[0].state == SinkState::Quarantined);
    let sink = hub.report().sinks.remove(0);
    let words = sink.last_error.expect("words");
    assert!(
        words.contains("UnknownIssuer") && words.contains("`ca_file`"),
        "{words}"
    );
    assert!(sink.failures.error >= 3, "{:?}", sink.failures);
    assert_eq!((sink.failures.panic, sink.failures.timeout), (0, 0));
    *config.lock().expect("no thread panicked") = trusted.server("localhost", false);
    let delivered = sink.delivered;
    until("active again", &|| {
        let sink = &hub.report().sinks[0];
        sink.state == SinkState::Active && sink.delivered > delivered
    });
    until("sent", &|| receiver.try_recv().is_ok());
    hub.shutdown(DEADLINE);
    let sink = hub.report().sinks.remove(0);
    assert_eq!(sink.accepted, sink.delivered + sink.dropped);
}

#[test]
fn wrong_authorities_are_refused_by_key() {
    let good = Authority::new("fine").file;
    let empty = in_file("empty", "nothing here\n");
    let broken = in_file(
        "garbage",
        "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n",
    );
    let missing = good.with_file_name("missing.pem");
    let https = "https://localhost:4318";
    for (endpoint, file, words) in [
        (https, &missing, "No such file"),
        (https, &empty, "no certificate in it"),
        (https, &broken, "BadEncoding"),
        ("http://localhost:4318", &good, "only https:// shows a certificate"),
    ] {
        let config = json!({"endpoint": endpoint, "ca_file": file}).to_string();
        let error = factory().create(&config).map(|_| ()).expect_err(words);
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
        assert!(
            error.message.contains("key `ca_file`") && error.message.contains(words),
            "{words}: {error}"
        );
        assert!(error.message.contains(file.to_str().expect("UTF-8")), "{error}");
    }
}
