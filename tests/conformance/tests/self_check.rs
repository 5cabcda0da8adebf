//! The suite itself is red on every planted fault. (It is green on the reference backend: backends.rs.)

use std::sync::Arc;

use halyard_conformance::{Faulty, Options, oracle, run, support};
use halyard_delayed::{DelayedPlatform, Fault};
use halyard_platform_api::{Device, OpSpec, Platform, ops};

/// The ops of the catalogue that the backends of this repository have.
fn computed() -> impl Iterator<Item = &'static str> {
    let all = OpSpec::NAMES.iter().copied();
    // Collectives are checked over ranks: `check_collectives`.
    all.filter(|name| !OpSpec::RESERVED.contains(name) && *name != ops::Collective::NAME)
}

/// An op's rows; of the ops with hundreds of them, a share.
fn of_op(op: &str) -> Options {
    let share = match op {
        "linear" | "moe_linear" | "attention" | "latent_attention" => Options::of_test_run().share,
        _ => (0, 1),
    };
    Options {
        only_op: Some(op.to_string()),
        share,
        ..Options::default()
    }
}

/// On the reference, which runs them all (backends.rs).
#[test]
fn every_op_of_the_catalogue_has_cases_but_for_those_that_nobody_computes() {
    let rows = support(&oracle().unwrap());
    for op in computed() {
        let runs = rows.iter().any(|row| row.op == op && row.outcome.is_ok());
        assert!(runs, "no case of {op}");
    }
}

#[test]
fn a_planted_fault_in_each_op_turns_the_suite_red() {
    for op in computed() {
        let reference = oracle().unwrap();
        let options = of_op(op);
        let faulty: Arc<dyn Device> = Arc::new(Faulty::new(oracle().unwrap(), op).unwrap());
        let report = run(&faulty, &reference, &options);
        assert!(
            report.rows.iter().any(|row| row.op == op),
            "{op} has no row in this share"
        );
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
        let options = of_op(op);
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
