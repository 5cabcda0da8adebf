//! fused_attention.

use halyard_platform_api::{Error, Program, Result};

use crate::kernel::Kernel;

/// Number of nodes from `first` on that run as one op; `None`: not such a region.
pub(crate) fn matches(program: &Program, first: usize) -> Option<usize> {
    let _ = (program, first);
    None
}

/// The kernel of a region that [`matches`] whole.
pub(crate) fn build(program: &Program) -> Result<Box<dyn Kernel>> {
    let _ = program;
    Err(Error::unsupported("not yet"))
}
