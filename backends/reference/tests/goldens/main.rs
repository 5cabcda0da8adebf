//! The reference backend against PyTorch: every case of the fixtures (made by a script that imports nothing of ours)
//! runs through the device's own objects, and its outputs are compared with what PyTorch said.

mod case;
mod spec;

use std::collections::BTreeSet;

use halyard_platform_api::{OpSpec, Platform};
use halyard_reference::ReferencePlatform;

/// Rounding of f32 sums in another order than PyTorch's float64: relative to 1 + |expected|.
const TOLERANCE: f32 = 2e-5;

#[test]
fn every_op_computes_what_pytorch_computes() {
    let device = ReferencePlatform::new().open(0).expect("the device opens");
    let fixtures = case::Fixtures::load();
    let mut failures = Vec::new();
    let mut covered = BTreeSet::new();
    for case in fixtures.cases() {
        covered.insert(case.op().to_string());
        // Both attention backends must agree with PyTorch.
        let backends = if case.op().ends_with("attention") { 0..2 } else { 0..1 };
        for backend in backends {
            if let Err(why) = case.run(&*device, backend, TOLERANCE) {
                failures.push(format!("{} (backend {backend}): {why}", case.name()));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} cases differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
    // kv_write and latent_write are tested by attention, which reads what they wrote.
    covered.insert("kv_write".to_string());
    covered.insert("latent_write".to_string());
    // Collectives are tested over ranks, in the conformance suite.
    covered.insert("collective".to_string());
    let missing: Vec<_> = OpSpec::NAMES
        .iter()
        .filter(|name| !covered.contains(**name) && !OpSpec::RESERVED.contains(name))
        .collect();
    assert!(missing.is_empty(), "no golden covers {missing:?}");
}

#[test]
fn a_wrong_output_is_noticed_in_every_case() {
    // The comparison itself: each expected output, nudged, must differ from what the device computes.
    let device = ReferencePlatform::new().open(0).expect("the device opens");
    let fixtures = case::Fixtures::load();
    let blind: Vec<String> = fixtures
        .cases()
        .filter(|case| case.nudged().run(&*device, 0, TOLERANCE).is_ok())
        .map(|case| case.name().to_string())
        .collect();
    assert!(blind.is_empty(), "no difference seen in {blind:?}");
}
