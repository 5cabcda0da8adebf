//! Composites: which regions this backend claims. It claims the pairs norm + linear and runs them by their parts, to
//! show the mechanism; a real backend fuses them.

use halyard_platform_api::{Claim, ClaimReport, Error, OpSpec, Program, Result};

use crate::support;

/// Claims every pair (`rms_norm`, `linear` that reads the norm's output).
///
/// # Errors
/// `InvalidArgument` for a malformed program.
pub(crate) fn claim(program: &Program) -> Result<ClaimReport> {
    program.validate()?;
    let mut report = ClaimReport::default();
    let mut first = 0;
    let mut left = 0;
    while first < program.nodes.len() {
        if is_norm_linear(program, first) {
            report.claims.push(Claim {
                first: first as u32,
                count: 2,
            });
            first += 2;
        } else {
            left += 1;
            first += 1;
        }
    }
    if left > 0 {
        report.left = format!(
            "{left} of {} nodes: the reference backend claims pairs rms_norm + linear only",
            program.nodes.len()
        );
    }
    Ok(report)
}

fn is_norm_linear(program: &Program, first: usize) -> bool {
    let Some([norm, linear]) = program.nodes.get(first..first + 2) else {
        return false;
    };
    // rms_norm: x, weight, out; linear: x, weight, bias, residual, out.
    matches!((&norm.spec, &linear.spec), (OpSpec::RmsNorm(_), OpSpec::Linear(_)))
        && norm.operands[2] == linear.operands[0]
        && [&norm.spec, &linear.spec]
            .iter()
            .all(|spec| support::check(spec).is_ok())
}

/// Whether a program can be prepared whole: any valid one of supported ops, as its parts run one after the other.
///
/// # Errors
/// `InvalidArgument` for a malformed program; `Unsupported` with the first op's reason.
pub(crate) fn check(program: &Program) -> Result<()> {
    program.validate()?;
    for (index, node) in program.nodes.iter().enumerate() {
        support::check(&node.spec).map_err(|e| Error {
            message: format!("node {index}: {}", e.message),
            ..e
        })?;
    }
    Ok(())
}
