//! Drives a worker turn by turn with a clock that the test sets: no threads, no sleeps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use halyard_platform_api::Result;
use halyard_platform_api::hooks::{SchedulerRecord, StartRecord};

use super::*;
use crate::report::{FailureCounts, SinkReport, SinkState};

type Behaviour = dyn FnMut(&Batch<'_>) -> Result<()> + Send;

/// The calls that loggers got.
#[derive(Default)]
struct Asked {
    made: AtomicU64,
    flushed: AtomicU64,
}

impl Asked {
    fn counts(&self) -> (u64, u64) {
        (self.made.load(Ordering::Relaxed), self.flushed.load(Ordering::Relaxed))
    }
}

/// A logger that does what the test says.
struct Scripted {
    behaviour: Arc<Mutex<Box<Behaviour>>>,
    asked: Arc<Asked>,
}

impl StatLogger for Scripted {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        (self.behaviour.lock().expect("one thread"))(batch)
    }

    fn flush(&mut self, _: Duration) -> Result<()> {
        self.asked.flushed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn expose(&mut self) -> Result<Option<String>> {
        Ok(Some("text".to_string()))
    }
}

struct Rig {
    worker: Worker,
    now: Arc<AtomicU64>,
    behaviour: Arc<Mutex<Box<Behaviour>>>,
    asked: Arc<Asked>,
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn source(behaviour: &Arc<Mutex<Box<Behaviour>>>, asked: &Arc<Asked>) -> SinkSource {
    let (behaviour, asked) = (behaviour.clone(), asked.clone());
    SinkSource {
        version: "1".to_string(),
        path: None,
        isolation: Isolation::Thread,
        make: Arc::new(move || {
            asked.made.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Scripted {
                behaviour: behaviour.clone(),
                asked: asked.clone(),
            }))
        }),
    }
}

impl Rig {
    /// A worker whose logger notes what it is given and answers what `behaviour` does.
    fn new(behaviour: impl FnMut(&Batch<'_>) -> Result<()> + Send + 'static) -> Rig {
        let behaviour: Arc<Mutex<Box<Behaviour>>> = Arc::new(Mutex::new(Box::new(behaviour)));
        let (now, asked) = (Arc::new(AtomicU64::new(0)), Arc::<Asked>::default());
        let config = HubConfig {
            queue_records: 8,
            batch_records: 4,
            ..HubConfig::default()
        };
        let source = source(&behaviour, &asked);
        let logger = (source.make)().expect("made");
        let its_now = now.clone();
        let worker = Worker {
            sink: Arc::new(Sink::new("s".to_string(), source, config.queue_records)),
            logger: Some(logger),
            config,
            clock: Arc::new(move || millis(its_now.load(Ordering::Relaxed))),
            watch: Arc::default(),
            batch: Vec::new(),
            flush_at: None,
        };
        Rig {
            worker,
            now,
            behaviour,
            asked,
        }
    }

    fn send(&self, count: u32) {
        let record = |step_index| {
            StatRecord::Scheduler(SchedulerRecord {
                step_index,
                ..SchedulerRecord::default()
            })
        };
        self.worker.sink.accept((0..u64::from(count)).map(record));
    }

    fn pass(&self, ms: u64) {
        self.now.fetch_add(ms, Ordering::Relaxed);
    }

    /// Turns until there is nothing to do.
    fn run(&mut self) -> Next {
        for _ in 0..100 {
            let next = self.worker.turn();
            if next != Next::Now {
                return next;
            }
        }
        panic!("the worker never rests");
    }

    fn report(&self) -> SinkReport {
        let report = self.worker.sink.report((self.worker.clock)());
        assert_eq!(report.accepted, report.delivered + report.dropped + report.pending);
        report
    }

    fn counts(&self) -> (u64, u64, u64) {
        let report = self.report();
        (report.accepted, report.delivered, report.dropped)
    }

    fn command(&mut self, command: Command) {
        self.worker.sink.command(command);
    }

    /// Asks for the logger's text, with whatever is queued, in one turn.
    fn text(&mut self) -> Option<String> {
        let (reply, answer) = sync_channel(1);
        self.command(Command::Expose(reply));
        self.worker.turn();
        answer.try_recv().expect("answered in this turn")
    }
}

fn failing(words: &'static str) -> impl FnMut(&Batch<'_>) -> Result<()> + Send {
    let status = match words.contains("panicked: ") {
        true => Status::Panicked,
        false => Status::Internal,
    };
    move |_| Err(Error::new(status, words))
}

#[test]
fn a_full_queue_drops_and_says_so_and_batches_are_bounded() {
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = sizes.clone();
    let mut rig = Rig::new(move |batch| {
        seen.lock()
            .expect("one thread")
            .push((batch.records.len(), batch.num_dropped));
        Ok(())
    });
    rig.send(11);
    assert_eq!(rig.counts(), (11, 0, 3));
    assert_eq!(rig.report().pending, 8);
    assert_eq!(rig.run(), Next::At(millis(1000)), "a flush is due");
    assert_eq!(rig.counts(), (11, 8, 3));
    assert_eq!(*sizes.lock().expect("one thread"), [(4, 3), (4, 3)]);
    rig.pass(1000);
    assert_eq!(rig.run(), Next::Woken);
}

#[test]
fn errors_in_a_row_lead_to_quarantine_and_a_good_try_leads_out_with_the_same_logger() {
    let mut rig = Rig::new(failing("no space"));
    for _ in 0..3 {
        assert_eq!(rig.report().state, SinkState::Active);
        rig.send(1);
        rig.run();
    }
    let report = rig.report();
    assert_eq!((report.state, report.retry_in_s), (SinkState::Quarantined, Some(1.0)));
    assert_eq!(report.last_error.as_deref(), Some("log_batch: Internal: no space"));
    assert_eq!((report.failures.error, report.quarantines), (3, 1));
    rig.send(2);
    assert_eq!(rig.counts(), (5, 0, 5), "what comes during a rest is dropped");
    *rig.behaviour.lock().expect("one thread") = Box::new(|_| Ok(()));
    rig.pass(1000);
    rig.run();
    rig.send(2);
    rig.run();
    assert_eq!(rig.counts(), (7, 2, 5));
    assert_eq!(rig.report().state, SinkState::Active);
    assert_eq!(rig.asked.counts().0, 1, "an error does not spoil a logger");
}

#[test]
fn a_panic_quarantines_at_once_and_the_next_logger_gets_the_start_record_first() {
    let mut rig = Rig::new(failing("s: panicked: oh no"));
    rig.worker.sink.state().start = Some(StartRecord::default());
    rig.send(2);
    assert_eq!(rig.run(), Next::At(millis(1000)));
    assert_eq!(
        (rig.report().failures.panic, rig.report().state),
        (1, SinkState::Quarantined)
    );
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let seen = kinds.clone();
    *rig.behaviour.lock().expect("one thread") = Box::new(move |batch| {
        seen.lock()
            .expect("one thread")
            .extend(batch.records.iter().map(StatRecord::kind));
        Ok(())
    });
    rig.pass(1000);
    rig.run();
    rig.send(1);
    rig.run();
    assert_eq!(*kinds.lock().expect("one thread"), [1, 2]);
    assert_eq!(rig.counts(), (4, 2, 2), "the start record counts too");
    assert_eq!(rig.asked.counts().0, 2);
}

#[test]
fn a_process_that_died_is_counted_as_a_crash_and_a_panic_in_one_as_a_panic() {
    let died = |_: &Batch<'_>| Err(Error::new(Status::Poisoned, "its process was ended by signal 11"));
    let panicked = |_: &Batch<'_>| Err(Error::new(Status::Panicked, "s: panicked: oh no"));
    for (isolation, crash, panic) in [(Isolation::Process, 1, 1), (Isolation::Thread, 0, 2)] {
        let mut rig = Rig::new(died);
        rig.worker.sink.state().source.isolation = isolation;
        rig.send(2);
        assert_eq!(rig.run(), Next::At(millis(1000)), "it rests at once");
        rig.pass(1000);
        *rig.behaviour.lock().expect("one thread") = Box::new(panicked);
        rig.run();
        rig.send(1);
        rig.run();
        let failures = FailureCounts {
            crash,
            panic,
            ..FailureCounts::default()
        };
        assert_eq!(rig.report().failures, failures);
        assert_eq!((rig.report().isolation, rig.report().quarantines), (isolation, 2));
        assert_eq!(rig.asked.counts().0, 2, "another logger is made");
    }
}

#[test]
fn a_call_past_its_deadline_is_given_up_while_it_runs_and_its_late_success_changes_nothing() {
    let mut rig = Rig::new(|_| Ok(()));
    let (sink, now) = (rig.worker.sink.clone(), rig.now.clone());
    let seen = Arc::new(Mutex::new(None));
    let inside = seen.clone();
    *rig.behaviour.lock().expect("one thread") = Box::new(move |_| {
        // The supervisor looks at 900 ms and at 1100 ms; producers go on meanwhile.
        assert_eq!(sink.overdue(millis(900)), Some(millis(1000)));
        assert_eq!(sink.overdue(millis(1100)), None);
        assert_eq!(sink.overdue(millis(1200)), None, "given up once");
        sink.accept(std::iter::once(StatRecord::Scheduler(SchedulerRecord::default())));
        *inside.lock().expect("one thread") = Some(sink.report(millis(1200)));
        now.store(5000, Ordering::Relaxed);
        Ok(())
    });
    rig.send(6);
    rig.run();
    let stuck = seen.lock().expect("one thread").take().expect("the call ran");
    assert_eq!((stuck.state, stuck.retry_in_s), (SinkState::Stuck, None));
    assert_eq!((stuck.accepted, stuck.delivered, stuck.dropped), (7, 0, 7));
    assert_eq!(stuck.failures.timeout, 1);
    // Back after five seconds, with its rest over: it is tried again with a new logger.
    assert_eq!(rig.counts(), (7, 0, 7));
    *rig.behaviour.lock().expect("one thread") = Box::new(|_| Ok(()));
    rig.run();
    rig.send(1);
    rig.run();
    assert_eq!(rig.counts(), (8, 1, 7));
    assert_eq!(rig.asked.counts().0, 2);
}

#[test]
fn a_reload_gives_the_old_logger_what_came_before_and_the_new_one_the_rest() {
    let old = Arc::new(AtomicU64::new(0));
    let count = old.clone();
    let mut rig = Rig::new(move |batch| {
        count.fetch_add(batch.records.len() as u64, Ordering::Relaxed);
        Ok(())
    });
    let new = Arc::new(AtomicU64::new(0));
    let count = new.clone();
    let behaviour: Arc<Mutex<Box<Behaviour>>> = Arc::new(Mutex::new(Box::new(move |batch: &Batch<'_>| {
        count.fetch_add(batch.records.len() as u64, Ordering::Relaxed);
        Ok(())
    })));
    rig.send(7);
    let (reply, answer) = sync_channel(1);
    let mut source = source(&behaviour, &rig.asked);
    source.version = "2".to_string();
    let logger = (source.make)().expect("made");
    rig.command(Command::Reload { logger, source, reply });
    assert_eq!(rig.worker.turn(), Next::Now);
    rig.send(3);
    rig.run();
    let reloaded = answer.try_recv().expect("answered").expect("swapped");
    assert_eq!((reloaded.generation, reloaded.delivered_before), (2, 7));
    assert_eq!(
        (reloaded.old_version.as_str(), reloaded.new_version.as_str()),
        ("1", "2")
    );
    assert_eq!((old.load(Ordering::Relaxed), new.load(Ordering::Relaxed)), (7, 3));
    assert_eq!(rig.counts(), (10, 10, 0));
    assert_eq!((rig.report().generation, rig.report().version.as_str()), (2, "2"));
}

#[test]
fn a_flush_follows_records_by_its_interval_and_comes_before_a_swap_and_an_end() {
    let mut rig = Rig::new(|_| Ok(()));
    let flushed = |rig: &Rig| rig.asked.counts().1;
    assert_eq!(rig.run(), Next::Woken, "without records there is nothing to flush");
    rig.send(2);
    assert_eq!(rig.run(), Next::At(millis(1000)));
    rig.pass(999);
    rig.run();
    assert_eq!(flushed(&rig), 0);
    rig.pass(1);
    assert_eq!(rig.run(), Next::Woken);
    assert_eq!(flushed(&rig), 1);
    rig.send(1);
    rig.run();
    let source = source(&rig.behaviour, &rig.asked);
    let (reply, answer) = sync_channel(1);
    let logger = (source.make)().expect("made");
    rig.command(Command::Reload { logger, source, reply });
    rig.run();
    assert!(answer.try_recv().expect("answered").is_ok());
    assert_eq!(flushed(&rig), 2, "the old one writes out what it holds");
    rig.send(1);
    rig.command(Command::Stop);
    assert_eq!(rig.run(), Next::End);
    assert_eq!((flushed(&rig), rig.counts()), (3, (4, 4, 0)));
}

#[test]
fn a_reload_pardons_a_quarantined_sink() {
    let mut rig = Rig::new(failing("s: panicked: oh no"));
    rig.send(1);
    rig.run();
    let good: Arc<Mutex<Box<Behaviour>>> = Arc::new(Mutex::new(Box::new(|_| Ok(()))));
    let source = source(&good, &rig.asked);
    let (reply, answer) = sync_channel(1);
    let logger = (source.make)().expect("made");
    rig.command(Command::Reload { logger, source, reply });
    rig.run();
    assert!(answer.try_recv().expect("answered").is_ok());
    rig.send(1);
    rig.run();
    assert_eq!((rig.report().state, rig.counts()), (SinkState::Active, (2, 1, 1)));
}

#[test]
fn texts_come_after_the_records_before_them_and_resting_sinks_show_none() {
    let mut rig = Rig::new(|_| Ok(()));
    rig.send(6);
    assert_eq!(rig.text(), Some("text".to_string()));
    assert_eq!(rig.counts(), (6, 6, 0));
    *rig.behaviour.lock().expect("one thread") = Box::new(failing("panicked: x"));
    rig.send(1);
    rig.run();
    assert_eq!(rig.text(), None);
    // One that still has its logger is left alone too: a good answer would end its rest.
    let mut rig = Rig::new(failing("no space"));
    for _ in 0..3 {
        rig.send(1);
        rig.run();
    }
    assert_eq!(rig.text(), None);
    assert_eq!(rig.report().state, SinkState::Quarantined);
}

#[test]
fn a_text_asked_for_with_the_records_that_end_a_logger_is_no_second_failure() {
    for (words, status) in [
        ("s: panicked: oh no", Status::Panicked),
        ("its process was ended by signal 11", Status::Poisoned),
    ] {
        let mut rig = Rig::new(move |_| Err(Error::new(status, words)));
        rig.worker.sink.state().source.isolation = Isolation::Process;
        rig.send(1);
        assert_eq!(rig.text(), None);
        let report = rig.report();
        assert_eq!((report.failures.start, report.quarantines), (0, 1), "{report:?}");
        assert!(
            report.last_error.as_ref().is_some_and(|error| error.contains(words)),
            "{report:?}"
        );
    }
}

#[test]
fn a_text_between_errors_does_not_excuse_them() {
    let mut rig = Rig::new(failing("no space"));
    for _ in 0..3 {
        rig.send(1);
        rig.run();
        rig.text();
    }
    assert_eq!(rig.report().state, SinkState::Quarantined);
}

#[test]
fn a_logger_that_cannot_be_made_again_rests_longer_each_time() {
    let mut rig = Rig::new(failing("panicked: x"));
    rig.worker.sink.state().source.make = Arc::new(|| Err(Error::invalid("the file is gone")));
    rig.send(1);
    assert_eq!(rig.run(), Next::At(millis(1000)));
    rig.pass(1000);
    assert_eq!(rig.run(), Next::At(millis(3000)));
    rig.pass(2000);
    assert_eq!(rig.run(), Next::At(millis(7000)));
    let report = rig.report();
    assert_eq!((report.failures.start, report.failures.panic), (2, 1));
    assert_eq!(
        report.last_error.as_deref(),
        Some("create: InvalidArgument: the file is gone")
    );
}

#[test]
fn a_stopped_sink_has_had_everything_and_takes_nothing_more() {
    let mut rig = Rig::new(|_| Ok(()));
    rig.send(8);
    rig.command(Command::Stop);
    assert_eq!(rig.run(), Next::End);
    rig.send(2);
    assert_eq!(rig.counts(), (10, 8, 2));
    assert_eq!(rig.report().state, SinkState::Ended);
}
