//! The ops: a descriptor becomes a kernel, or a reason why not. Construction needs no device.

mod attention;
mod collective;
pub(crate) mod formats;
mod fused_attention;
mod fused_linear;
mod fused_sum;
mod linear;
pub(crate) mod names;
mod parts;
mod routed;
mod sampling;
mod simple;

use std::sync::Arc;

use halyard_platform_api::{Claim, ClaimReport, Error, OpSpec, Program, Result};

use crate::driver::{Facts, Group};
use crate::kernel::Kernel;

pub use attention::self_test::attention as attention_self_test;
pub(crate) use attention::{
    BLOCK_SIZES, latent_plan, latent_reasons, plan as attention_plan, reasons as attention_reasons,
};
pub(crate) use collective::CollectiveKernel;

/// The group of a communicator, by its number.
pub(crate) type GroupOf<'a> = dyn Fn(u64) -> Result<Arc<dyn Group>> + 'a;

/// The kernel of a descriptor, not prepared yet. A collective's is [`CollectiveKernel`].
///
/// # Errors
/// `Unsupported` with the reason.
pub(crate) fn build(spec: &OpSpec) -> Result<Box<dyn Kernel>> {
    let families = [
        simple::build,
        sampling::build,
        routed::build,
        linear::build,
        attention::build,
    ];
    match families.into_iter().find_map(|family| family(spec)) {
        Some(kernel) => kernel,
        None => Err(Error::unsupported(format!(
            "{} is not an op of this platform",
            spec.name()
        ))),
    }
}

/// The regions that run as one op, and why the rest does not.
pub(crate) fn claim(program: &Program, facts: &Facts) -> Result<ClaimReport> {
    if !facts.matrix_units {
        return Ok(ClaimReport {
            left: "all ops: regions run on matrix units, which this device does not offer to these kernels".to_string(),
            ..ClaimReport::default()
        });
    }
    let mut report = ClaimReport::default();
    let mut left: Vec<String> = Vec::new();
    let mut first = 0;
    while first < program.nodes.len() {
        let found = fused_attention::matches(program, first)
            .or_else(|| fused_linear::matches(program, first))
            .or_else(|| routed::matches_experts(program, first))
            .or_else(|| fused_sum::matches(program, first));
        match found {
            Some(count) => {
                report.claims.push(Claim {
                    first: first as u32,
                    count: count as u32,
                });
                first += count;
            }
            None => {
                let line = format!("{}: runs as one launch of its own", program.nodes[first].spec.name());
                if !left.contains(&line) {
                    left.push(line);
                }
                first += 1;
            }
        }
    }
    report.left = left.join("\n");
    Ok(report)
}

/// The kernel of a claimed region, not prepared yet. `group_of` knows communicators by their numbers.
///
/// # Errors
/// `Unsupported` for a region that [`claim`] does not claim whole; a communicator that is not alive.
pub(crate) fn build_program(program: &Program, group_of: &GroupOf<'_>) -> Result<Box<dyn Kernel>> {
    if fused_attention::matches(program, 0) == Some(program.nodes.len()) {
        return fused_attention::build(program);
    }
    if fused_linear::matches(program, 0) == Some(program.nodes.len()) {
        return Ok(Box::new(fused_linear::build(program)?));
    }
    if routed::matches_experts(program, 0) == Some(program.nodes.len()) {
        return Ok(Box::new(routed::build_experts(program)?));
    }
    if fused_sum::matches(program, 0) == Some(program.nodes.len()) {
        return fused_sum::build(program, group_of);
    }
    Err(Error::unsupported("this region is not one that the platform claims"))
}

#[cfg(test)]
mod tests;
