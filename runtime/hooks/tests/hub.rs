//! The hub with its threads: counts add up under load from several threads, a sink that never returns harms no other,
//! reloads lose nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halyard_hooks::{HookError, Hub, HubConfig, Isolation, SinkSource, SinkSpec, SinkState};
use halyard_platform_api::Result;
use halyard_platform_api::hooks::{Batch, SchedulerRecord, StatLogger, StatRecord};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

struct Counting(Arc<AtomicU64>);

impl StatLogger for Counting {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.0.fetch_add(batch.records.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Says that it was called, then waits until it is let go.
struct Hanging {
    called: Sender<()>,
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl StatLogger for Hanging {
    fn log_batch(&mut self, _: &Batch<'_>) -> Result<()> {
        let _ = self.called.send(());
        let _ = self.go_on.lock().expect("one thread").recv();
        Ok(())
    }
}

fn source(make: impl Fn() -> Box<dyn StatLogger> + Send + Sync + 'static) -> SinkSource {
    SinkSource {
        version: "1".to_string(),
        path: None,
        isolation: Isolation::Thread,
        make: Arc::new(move || Ok(make())),
    }
}

fn counting(count: &Arc<AtomicU64>) -> SinkSource {
    let count = count.clone();
    source(move || Box::new(Counting(count.clone())))
}

fn spec(name: &str, source: SinkSource) -> SinkSpec {
    SinkSpec {
        name: name.to_string(),
        source,
    }
}

fn record() -> StatRecord {
    StatRecord::Scheduler(SchedulerRecord::default())
}

fn config() -> HubConfig {
    HubConfig {
        linger: Duration::ZERO,
        call_deadline: Duration::from_secs(20),
        ..HubConfig::default()
    }
}

#[test]
fn counts_add_up_with_four_producers_and_a_reload_in_the_middle_and_nobody_waits() {
    let (old, new, other) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    let big = HubConfig {
        queue_records: 100_000,
        ..config()
    };
    let specs = vec![spec("a", counting(&old)), spec("b", counting(&other))];
    let hub = Hub::start(specs, big).expect("starts");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let sender = hub.sender();
            scope.spawn(move || (0..5000).for_each(|_| sender.send_all(&mut vec![record(), record()])));
        }
        let reloaded = hub.reload("a", counting(&new)).expect("reloads");
        assert_eq!(reloaded.generation, 2);
        assert_eq!(reloaded.delivered_before, old.load(Ordering::Relaxed));
    });
    hub.shutdown(PATIENCE);
    let report = hub.report();
    assert_eq!(report.engine_waits, 0);
    for sink in &report.sinks {
        assert_eq!(
            (sink.accepted, sink.delivered, sink.dropped, sink.pending),
            (40_000, 40_000, 0, 0)
        );
    }
    assert_eq!(old.load(Ordering::Relaxed) + new.load(Ordering::Relaxed), 40_000);
    assert_eq!(other.load(Ordering::Relaxed), 40_000);
}

#[test]
fn a_sink_that_never_returns_keeps_one_thread_and_everybody_else_goes_on() {
    let (called, calls) = channel();
    let (let_go, go_on) = channel();
    let go_on = Arc::new(Mutex::new(go_on));
    let hanging = source(move || {
        Box::new(Hanging {
            called: called.clone(),
            go_on: go_on.clone(),
        })
    });
    let count = Arc::new(AtomicU64::new(0));
    let short = HubConfig {
        call_deadline: Duration::from_millis(20),
        ..config()
    };
    let hub = Hub::start(vec![spec("hangs", hanging), spec("counts", counting(&count))], short).expect("starts");
    let sender = hub.sender();
    sender.send(record());
    calls.recv_timeout(PATIENCE).expect("it is called");
    // The supervisor gives it up by itself; asking is all that a test can do.
    while hub.report().sinks[0].state != SinkState::Stuck {
        std::thread::yield_now();
    }
    (0..100).for_each(|_| sender.send(record()));
    assert!(matches!(
        hub.reload("hangs", counting(&count)),
        Err(HookError::Stuck(_))
    ));
    hub.shutdown(PATIENCE);
    let report = hub.report();
    assert_eq!(
        (
            report.sinks[0].accepted,
            report.sinks[0].dropped,
            report.sinks[0].pending
        ),
        (101, 101, 0)
    );
    assert_eq!(report.sinks[1].delivered + report.sinks[1].dropped, 101);
    assert_eq!(calls.try_iter().count(), 0, "it was called once");
    drop(let_go);
}

#[test]
fn reloads_of_unknown_or_broken_sinks_leave_everything_as_it_was() {
    let count = Arc::new(AtomicU64::new(0));
    let hub = Hub::start(vec![spec("a", counting(&count))], config()).expect("starts");
    let unknown = hub.reload("b", counting(&count)).map(|_| ()).expect_err("unknown");
    assert_eq!(unknown.to_string(), "no stat logger `b` runs; running: a");
    let mut broken = counting(&count);
    broken.make = Arc::new(|| Err(halyard_platform_api::Error::invalid("key `x`")));
    for _ in 0..2 {
        let refused = hub.reload("a", broken.clone()).map(|_| ()).expect_err("cannot be made");
        assert!(refused.to_string().contains("key `x`"), "{refused}");
    }
    hub.sender().send(record());
    hub.shutdown(PATIENCE);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let twice = Hub::start(vec![spec("a", counting(&count)), spec("a", counting(&count))], config());
    assert!(matches!(twice, Err(HookError::Twice(_))));
}
