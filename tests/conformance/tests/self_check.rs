//! The suite itself: green on the reference backend, red on every planted fault.

use std::sync::Arc;

use halyard_conformance::{Faulty, Options, assert_conformant, oracle, run};
use halyard_delayed::{DelayedPlatform, Fault};
use halyard_platform_api::{Device, OpSpec, Platform, ops};

/// The ops of the catalogue that the backends of this repository have.
fn computed() -> impl Iterator<Item = &'static str> {
    let all = OpSpec::NAMES.iter().copied();
    // Collectives are checked over ranks: `check_collectives`.
    all.filter(|name| !OpSpec::RESERVED.contains(name) && *name != ops::Collective::NAME)
}

#[test]
fn the_reference_backend_conforms_to_itself() {
    let report = assert_conformant!(oracle().unwrap());
    // Every op of the catalogue has cases, but for those that nobody computes.
    for op in computed() {
        let cases: u32 = report.rows.iter().filter(|row| row.op == op).map(|row| row.cases).sum();
        assert!(cases > 0, "no case of {op}");
    }
}

#[test]
fn a_planted_fault_in_each_op_turns_the_suite_red() {
    for op in computed() {
        let reference = oracle().unwrap();
        let options = Options {
            only_op: Some(op.to_string()),
            ..Options::default()
        };
        let sound = run(&reference, &reference, &options);
        assert!(sound.passed(), "{op} without a fault:\n{sound}");
        let faulty: Arc<dyn Device> = Arc::new(Faulty::new(oracle().unwrap(), op).unwrap());
        let report = run(&faulty, &reference, &options);
        assert!(!report.passed(), "the fault in {op} was not seen:\n{report}");
        // Every row of the op sees it, not one lucky case.
        for row in report.rows.iter().filter(|row| row.op == op) {
            assert!(!row.failures.is_empty(), "{op} {}: the fault was not seen", row.variant);
        }
    }
}

#[test]
fn a_recording_that_replays_what_it_first_saw_turns_the_suite_red() {
    let reference = oracle().unwrap();
    let platform = DelayedPlatform::new(0, 3);
    let stale = platform.clone().with_fault(Fault::StaleReplay).open(0).unwrap();
    let sound = platform.open(0).unwrap();
    for op in [
        "rms_norm",
        "prepare_inputs",
        "update_rows",
        "argmax",
        "attention",
        "linear",
    ] {
        let options = Options {
            only_op: Some(op.to_string()),
            ..Options::default()
        };
        let report = run(&sound, &reference, &options);
        assert!(report.passed(), "{op} without a fault:\n{report}");
        let report = run(&stale, &reference, &options);
        let recorded =
            |row: &halyard_conformance::Row| row.failures.iter().all(|why| why.contains("recorded: second replay"));
        assert!(!report.passed(), "{op}: the stale recording was not seen:\n{report}");
        assert!(
            report.rows.iter().all(recorded),
            "{op}: something else failed:\n{report}"
        );
    }
}
