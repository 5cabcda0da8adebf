//! A logger in a process of its own takes batches as any other; a crash of it is an error of the call.
//!
//! This program is also the child: it starts itself with `hook-child`. So it has its own `main`, and the tests are
//! named below.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use halyard_platform_api::Status;
use halyard_platform_api::hooks::{
    Batch, FinishedRecord, IterationRecord, StartRecord, StatLogger, StatLoggerFactory, StatRecord,
};
use halyard_plugin_host::{
    AllowList, Catalog, IsolatedStatLogger, IsolatedStatLoggerFactory, IsolationOptions, Kind, SearchPath,
    run_hook_child,
};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("hook-child") => match run_hook_child() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(2)
            }
        },
        Some("orphan-maker") => make_orphan(&args.next().unwrap_or_default(), &args.next().unwrap_or_default()),
        _ => {
            let tests: &[(&str, fn())] = &[
                ("records_arrive_whole_and_in_order", records_arrive_whole_and_in_order),
                (
                    "a_batch_larger_than_the_ring_arrives",
                    a_batch_larger_than_the_ring_arrives,
                ),
                (
                    "a_crash_is_an_error_and_the_next_call_starts_anew",
                    a_crash_is_an_error_and_the_next_call_starts_anew,
                ),
                ("every_way_to_die_is_told_in_words", every_way_to_die_is_told_in_words),
                (
                    "a_hook_that_hangs_is_ended_at_the_deadline",
                    a_hook_that_hangs_is_ended_at_the_deadline,
                ),
                ("a_slow_start_goes_on_beside_calls", a_slow_start_goes_on_beside_calls),
                ("errors_of_the_hook_pass_through", errors_of_the_hook_pass_through),
                (
                    "a_hook_that_prints_and_reads_disturbs_nothing",
                    a_hook_that_prints_and_reads_disturbs_nothing,
                ),
                (
                    "texts_for_the_metrics_route_come_back",
                    texts_for_the_metrics_route_come_back,
                ),
                (
                    "a_child_has_no_socket_and_ignores_end_signals",
                    a_child_has_no_socket_and_ignores_end_signals,
                ),
                ("children_die_with_their_server", children_die_with_their_server),
                ("a_hook_that_does_not_end_is_ended", a_hook_that_does_not_end_is_ended),
                ("an_allow_list_holds_for_each_start", an_allow_list_holds_for_each_start),
                (
                    "a_child_started_by_hand_says_what_it_is",
                    a_child_started_by_hand_says_what_it_is,
                ),
            ];
            let trials = tests.iter().map(|&(name, test)| {
                Trial::test(name, move || {
                    test();
                    Ok(())
                })
            });
            libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
        }
    }
}

const DEADLINE: Duration = Duration::from_secs(20);

fn options() -> IsolationOptions {
    let program = std::env::current_exe().expect("a running test has a path");
    IsolationOptions {
        start_deadline: DEADLINE,
        call_deadline: DEADLINE,
        ..IsolationOptions::new(program, vec!["hook-child".into()])
    }
}

/// A fresh folder for one test.
fn folder(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a test folder can be made");
    path
}

fn build(folder: &Path) -> PathBuf {
    let crate_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let library = folder.join("libwild.so");
    let mut command = Command::new("cc");
    command.args(["-std=gnu99", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o"]);
    command
        .arg(&library)
        .arg("-I")
        .arg(crate_folder.join("../../platform-api/include"));
    command.arg(crate_folder.join("tests/c/wild_logger.c"));
    let output = command.output().expect("cc is needed for this test");
    assert!(
        output.status.success(),
        "cc failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    library
}

fn factory(library: &Path, allow_list: Option<AllowList>, options: IsolationOptions) -> IsolatedStatLoggerFactory {
    let catalog = Catalog::discover(&SearchPath {
        plugins: vec![library.to_path_buf()],
        allow_list,
        ..SearchPath::default()
    });
    let candidate = catalog.find(Kind::StatLogger, "wild").expect("its manifest is there");
    catalog.isolate(candidate, options).expect("a stat logger")
}

/// A logger that does `action` with each batch, and the file that it writes lines to.
fn wild(test: &str, action: &str) -> (IsolatedStatLogger, PathBuf) {
    wild_with(test, action, options())
}

fn wild_with(test: &str, action: &str, options: IsolationOptions) -> (IsolatedStatLogger, PathBuf) {
    let folder = folder(&format!("isolation_{test}_{action}"));
    let lines = folder.join("lines");
    let factory = factory(&build(&folder), None, options);
    let logger = factory.start(&config(action, &lines)).expect("it starts");
    (logger, lines)
}

fn config(action: &str, lines: &Path) -> String {
    serde_json::json!({ "do": action, "path": lines }).to_string()
}

fn step(step_index: u64) -> StatRecord {
    StatRecord::Iteration(IterationRecord {
        step_index,
        first_token_ns: [step_index * 3].into(),
        ..IterationRecord::default()
    })
}

fn start_record() -> StatRecord {
    StatRecord::Start(StartRecord {
        model: "tiny".into(),
        ..StartRecord::default()
    })
}

fn give(logger: &mut IsolatedStatLogger, records: &[StatRecord]) -> halyard_platform_api::Result<()> {
    logger.log_batch(&Batch {
        records,
        deadline: DEADLINE,
        num_dropped: 0,
    })
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Whether the system still lists a process, as a zombie too.
fn is_listed(id: u32) -> bool {
    Path::new(&format!("/proc/{id}")).exists()
}

fn records_arrive_whole_and_in_order() {
    let (mut logger, path) = wild("order", "behave");
    let finished = StatRecord::Finished(FinishedRecord {
        request_id: "cmpl-µ".into(),
        ..FinishedRecord::default()
    });
    give(
        &mut logger,
        &[start_record(), step(1), finished.clone(), step(u64::MAX / 3)],
    )
    .expect("taken");
    give(&mut logger, &[]).expect("nothing is fine too");
    for index in 2..300 {
        give(&mut logger, &[step(index)]).expect("taken");
    }
    logger.flush(DEADLINE).expect("flushed");
    let got = lines(&path);
    assert_eq!(
        got[..4],
        [
            "start tiny",
            "step 1 3",
            "finished cmpl-µ",
            "step 6148914691236517205 18446744073709551615"
        ]
    );
    assert_eq!(
        got[4..],
        (2..300).map(|i| format!("step {i} {}", i * 3)).collect::<Vec<_>>()
    );
    assert_eq!(logger.vitals().starts(), 1);
    assert!(logger.last_call() > Duration::ZERO);
}

fn a_batch_larger_than_the_ring_arrives() {
    let (mut logger, path) = wild("large", "behave");
    let text = "x".repeat(10_000);
    let records: Vec<StatRecord> = (0..300)
        .map(|index| {
            StatRecord::Finished(FinishedRecord {
                request_id: format!("{index}{text}").into(),
                ..FinishedRecord::default()
            })
        })
        .collect();
    give(&mut logger, &records).expect("3 MB through a ring of 1 MiB");
    let expected: Vec<String> = (0..300).map(|index| format!("finished {index}{text}")).collect();
    assert!(lines(&path) == expected);
    let huge = StatRecord::Finished(FinishedRecord {
        detail: "y".repeat(2 << 20).into(),
        ..FinishedRecord::default()
    });
    let error = give(&mut logger, &[huge]).expect_err("more than the ring");
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("at most 1048560 fit"), "{error}");
    give(&mut logger, &[step(1)]).expect("and it goes on");
}

fn a_crash_is_an_error_and_the_next_call_starts_anew() {
    let (mut logger, path) = wild("restart", "crash");
    let vitals = logger.vitals();
    let first = vitals.process_id().expect("it runs");
    let error = give(&mut logger, &[start_record(), step(1)]).expect_err("it crashes");
    assert_eq!((error.status, error.vendor_code), (Status::Poisoned, 11), "{error}");
    assert!(
        error
            .message
            .starts_with("wild: its process was ended by signal 11 (SIGSEGV)"),
        "{error}"
    );
    assert_eq!((vitals.starts(), vitals.process_id()), (1, None));
    assert!(!is_listed(first), "a zombie is left");
    // The new child gets the first record again, and dies of that.
    give(&mut logger, &[step(2)]).expect_err("it crashes again");
    assert_eq!(vitals.starts(), 2);
    assert_eq!(lines(&path), ["start tiny", "step 1 3", "start tiny"]);
}

fn every_way_to_die_is_told_in_words() {
    for (action, words) in [
        ("exit", "exited with status 3"),
        ("abort", "signal 6 (SIGABRT)"),
        ("scribble", "broke the memory that it shares with the server"),
    ] {
        let (mut logger, _) = wild("death", action);
        let id = logger.vitals().process_id().expect("it runs");
        let start = Instant::now();
        // One that scribbles gets through its call, and is found with the next.
        let first = give(&mut logger, &[step(1)]);
        let error = first.and_then(|()| give(&mut logger, &[step(2)])).expect_err(action);
        assert!(error.message.contains(words), "{action}: {error}");
        assert!(!is_listed(id), "{action} left a zombie");
        assert!(
            start.elapsed() < DEADLINE / 2,
            "{action} was noticed by the deadline only"
        );
    }
    let folder = folder("isolation_death_at_create");
    let error = factory(&build(&folder), None, options())
        .start(&config("crash_at_create", &folder.join("lines")))
        .map(|_| ())
        .expect_err("it dies at once");
    assert!(error.message.contains("SIGSEGV"), "{error}");
}

fn a_hook_that_hangs_is_ended_at_the_deadline() {
    for action in ["hang", "spin"] {
        let (mut logger, _) = wild("late", action);
        let id = logger.vitals().process_id().expect("it runs");
        let error = logger
            .log_batch(&Batch {
                records: &[step(1)],
                // An eighth of it is for ending the process.
                deadline: Duration::from_secs(4),
                num_dropped: 0,
            })
            .expect_err("late");
        assert_eq!(error.status, Status::Timeout, "{error}");
        assert!(error.message.contains("did not answer within 3"), "{error}");
        assert!(!is_listed(id), "it still runs");
    }
}

fn a_slow_start_goes_on_beside_calls() {
    let (mut logger, path) = wild("start", "exit");
    give(&mut logger, &[start_record()]).expect_err("it exits");
    let waits = path.with_extension("wait");
    std::fs::write(&waits, "").expect("written");
    let early = logger.log_batch(&Batch {
        records: &[step(1)],
        deadline: Duration::ZERO,
        num_dropped: 0,
    });
    let error = early.expect_err("no time at all");
    assert!(error.message.contains("still starting"), "{error}");
    std::fs::remove_file(&waits).expect("it is there");
    let id = logger.vitals().process_id();
    give(&mut logger, &[step(2)]).expect_err("it gets the first record, and exits");
    assert_eq!(logger.vitals().starts(), 2, "the start of child {id:?} was used");
    assert_eq!(lines(&path), ["start tiny", "start tiny"]);
}

fn errors_of_the_hook_pass_through() {
    let (mut logger, path) = wild("error", "error");
    let error = give(&mut logger, &[step(1)]).expect_err("its own error");
    assert_eq!((error.status, error.vendor_code), (Status::Unavailable, 42));
    assert_eq!(error.message, "wild: no luck today");
    give(&mut logger, &[step(2)]).expect_err("its own error");
    assert_eq!(logger.vitals().starts(), 1, "an error is no death");
    assert_eq!(lines(&path).len(), 2);
    // A panic that the library tells of is none of the process, which would be reported as `Poisoned`; it gets another
    // one all the same.
    let (mut logger, _) = wild("panic", "poisoned");
    for starts in 1..3 {
        let error = give(&mut logger, &[step(1)]).expect_err("its own error");
        assert!(error.status == Status::Panicked && error.is_panic(), "{error}");
        assert!(error.message.contains("an earlier call panicked"), "{error}");
        assert_eq!((logger.vitals().starts(), logger.vitals().process_id()), (starts, None));
    }
    let folder = folder("isolation_refuse");
    let refused = factory(&build(&folder), None, options()).create(&config("refuse", &folder.join("lines")));
    let error = refused.map(|_| ()).expect_err("refused");
    assert_eq!(
        (error.status, error.message.as_str()),
        (Status::InvalidArgument, "wild: key `do`: refused as asked")
    );
}

fn a_hook_that_prints_and_reads_disturbs_nothing() {
    for action in ["chatter", "fork"] {
        let (mut logger, path) = wild("prints", action);
        for index in 0..5 {
            give(&mut logger, &[step(index)]).unwrap_or_else(|error| panic!("{action}: {error}"));
        }
        let id = logger.vitals().process_id().expect("it runs");
        let stream = |number: u32| std::fs::read_link(format!("/proc/{id}/fd/{number}")).expect("open");
        assert_eq!(stream(0), Path::new("/dev/null"), "it reads nothing of the server's");
        assert_eq!(stream(1), stream(2), "what it prints goes to standard error");
        let forked = forked_by(id);
        assert_eq!(forked.len(), if action == "fork" { 5 } else { 0 });
        assert_eq!(lines(&path).len(), 5);
        let start = Instant::now();
        drop(logger);
        assert!(start.elapsed() < DEADLINE / 2, "{action}: the end was not noticed");
        while forked.iter().any(|&id| is_running(id)) {
            assert!(start.elapsed() < DEADLINE, "what the hook forked lives on");
            std::thread::yield_now();
        }
    }
}

/// Children of a process.
fn forked_by(id: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("a running process");
    children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

fn texts_for_the_metrics_route_come_back() {
    let (mut logger, _) = wild("expose", "behave");
    // A text that comes after a second is not waited for.
    let mut shown = logger.expose();
    while matches!(&shown, Err(error) if error.status == Status::Timeout) {
        shown = logger.expose();
    }
    assert_eq!(shown, Ok(Some("wild_total 1\n".to_string())));
    let (mut logger, _) = wild_with(
        "deadline",
        "deadline",
        IsolationOptions {
            call_deadline: Duration::from_secs(15),
            ..options()
        },
    );
    logger
        .flush(Duration::from_secs(100))
        .expect("the hook gets its time, not the hundred seconds");
}

fn a_child_has_no_socket_and_ignores_end_signals() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // As a library would that does not mark its descriptors.
    let inherited = rustix::io::dup(&listener).expect("a copy");
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).expect("inheritable");
    let (mut logger, _) = wild("sockets", "behave");
    let id = logger.vitals().process_id().expect("it runs");
    let open = std::fs::read_dir(format!("/proc/{id}/fd")).expect("a running child");
    let open: Vec<String> = open
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    assert!(!open.iter().any(|name| name.starts_with("socket:")), "{open:?}");
    for signal in ["-TERM", "-INT", "-HUP"] {
        let sent = Command::new("kill").args([signal, &id.to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
    give(&mut logger, &[step(1)]).expect("it goes on until the server ends it");
    assert_eq!(logger.vitals().process_id(), Some(id));
}

/// Starts a child, prints its number, lets it do `action`, and dies without a word to it.
fn make_orphan(library: &str, action: &str) -> ExitCode {
    let mut logger = factory(Path::new(library), None, options())
        .start(&config(action, Path::new("/dev/null")))
        .expect("it starts");
    println!("{}", logger.vitals().process_id().expect("it runs"));
    let _ = logger.log_batch(&Batch {
        records: &[step(1)],
        deadline: DEADLINE,
        num_dropped: 0,
    });
    std::process::abort();
}

fn children_die_with_their_server() {
    use std::io::{BufRead, BufReader};
    for action in ["behave", "spin"] {
        let library = build(&folder(&format!("isolation_orphan_{action}")));
        let mut server = Command::new(std::env::current_exe().expect("a path"))
            .arg("orphan-maker")
            .args([library.to_str().expect("UTF-8"), action])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let mut out = BufReader::new(server.stdout.take().expect("piped"));
        out.read_line(&mut line).expect("its child's number");
        let id: u32 = line.trim().parse().expect("a number");
        // One of the two dies by itself, the other one while its hook spins.
        if action == "spin" {
            server.kill().expect("it runs");
        }
        server.wait().expect("it ends");
        let start = Instant::now();
        while is_running(id) {
            assert!(start.elapsed() < DEADLINE, "{action}: child {id} lives on");
            std::thread::yield_now();
        }
    }
}

/// Whether a process runs; an orphan that no process reaps is a zombie.
fn is_running(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn a_hook_that_does_not_end_is_ended() {
    let options = IsolationOptions {
        call_deadline: Duration::from_millis(300),
        ..options()
    };
    let (logger, _) = wild_with("end", "hang_at_drop", options);
    let id = logger.vitals().process_id().expect("it runs");
    drop(logger);
    assert!(!is_listed(id));
}

fn an_allow_list_holds_for_each_start() {
    let folder = folder("isolation_allowed");
    let library = build(&folder);
    let sum = halyard_plugin_host::inspect(&library).expect("a plugin").sha256;
    let list = folder.join("plugins.lock");
    std::fs::write(&list, format!("[plugins]\nwild = \"{sum}\"\n")).expect("written");
    let allow_list = AllowList::read(&list).expect("a list");
    let mut logger = factory(&library, Some(allow_list), options())
        .start(&config("exit", &folder.join("lines")))
        .expect("it is listed");
    give(&mut logger, &[step(1)]).expect_err("it exits");
    let mut bytes = std::fs::read(&library).expect("the library");
    bytes.push(0);
    std::fs::remove_file(&library).expect("removable");
    std::fs::write(&library, bytes).expect("written");
    let error = give(&mut logger, &[step(2)]).expect_err("another file now");
    assert_eq!(error.status, Status::Denied, "{error}");
    assert_eq!(logger.vitals().starts(), 1, "nothing of it ran");
}

fn a_child_started_by_hand_says_what_it_is() {
    let output = Command::new(std::env::current_exe().expect("a path"))
        .args(["hook-child", "wild"])
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("not the shared memory of a Halyard server"), "{words}");
}
