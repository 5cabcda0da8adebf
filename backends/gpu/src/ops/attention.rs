//! attention.

use halyard_platform_api::ops::Attention;
use halyard_platform_api::{AttentionPlan, Error, OpSpec, Result};

use crate::kernel::Kernel;

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    let _ = spec;
    None
}

/// Why a spec does not run.
pub(crate) fn reasons(spec: &Attention) -> Result<()> {
    let _ = spec;
    Err(Error::unsupported("not yet"))
}

/// What it needs.
pub(crate) fn plan(spec: &Attention) -> Result<AttentionPlan> {
    reasons(spec)?;
    Ok(AttentionPlan::default())
}
