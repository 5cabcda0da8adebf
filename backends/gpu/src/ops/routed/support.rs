//! What the routed ops share: bounds, checks of their descriptors and operands, and an entry point with its
//! definitions.

use halyard_kernels_gpu::Source;
use halyard_platform_api::{DType, Error, Result};
#[cfg(test)]
use halyard_platform_api::{WeightFormat, ops};

use crate::driver::{DevicePtr, Function};
use crate::kernel::Preparation;
use crate::ops::names::float_name;
use crate::view::View;

/// Threads of every kernel here but `moe_route`.
pub(super) const THREADS: u32 = 256;
/// Most experts: `moe_route` keeps its tokens' scores in 48 KiB of shared memory.
pub(super) const MAX_EXPERTS: u32 = 3072;
/// Features of a warp of `moe_linear`.
pub(super) const WARP_FEATURES: u32 = 4;
/// Largest second extent of a grid; kernels take strides beyond.
pub(super) const MAX_GRID_Y: u32 = 65_535;

/// The name of a float type in kernel definitions.
pub(super) fn float(op: &str, operand: &str, dtype: DType) -> Result<&'static str> {
    float_name(dtype)
        .ok_or_else(|| Error::unsupported(format!("{op} with {operand} in {dtype:?}: F32, F16 and BF16 work")))
}

/// Checks that no extent is zero.
pub(super) fn check_extents(op: &str, extents: &[(&str, u32)]) -> Result<()> {
    match extents.iter().find(|(_, extent)| *extent == 0) {
        Some((name, _)) => Err(Error::invalid(format!("{op}: {name} is 0, it must be at least 1"))),
        None => Ok(()),
    }
}

pub(super) fn wrong_count(op: &str, expected: usize, found: &[View]) -> Error {
    Error::invalid(format!("{op}: {} operands, it takes {expected}", found.len()))
}

pub(super) fn check_inner(op: &str, operands: &[(&str, &View)]) -> Result<()> {
    match operands.iter().find(|(_, view)| !view.is_inner_contiguous()) {
        Some((name, view)) => Err(Error::unsupported(format!(
            "{op}: {name} has strides {:?}; values of a row must be neighbours",
            &view.strides[..view.rank as usize]
        ))),
        None => Ok(()),
    }
}

/// The address of an optional f32 vector or dense matrix, 0 where it is absent.
pub(super) fn optional_vector(op: &str, name: &str, view: &View) -> Result<DevicePtr> {
    if view.is_none() {
        return Ok(0);
    }
    check_inner(op, &[(name, view)])?;
    if view.rank == 2 && view.shape[0] > 1 && view.row_stride() != view.shape[1] {
        return Err(Error::unsupported(format!(
            "{op}: rows of {name} lie {} values apart and have {}: they must have no gap",
            view.row_stride(),
            view.shape[1]
        )));
    }
    Ok(view.ptr)
}

/// An entry point with its definitions.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) source: Source,
    pub(super) act: &'static str,
    /// What names the weight: its type or its format.
    pub(super) define: &'static str,
    pub(super) weight: &'static str,
    pub(super) function: Option<Function>,
}

impl Entry {
    pub(super) fn new(name: &'static str, source: Source, act: &'static str, weight: &'static str) -> Entry {
        Entry {
            name,
            source,
            act,
            define: "WEIGHT",
            weight,
            function: None,
        }
    }

    pub(super) fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let defines = [("ACT", self.act), (self.define, self.weight)];
        self.function = Some(cx.function(self.source, &defines, self.name, 0)?);
        Ok(())
    }

    pub(super) fn get(&self) -> Result<Function> {
        self.function
            .ok_or_else(|| Error::invalid(format!("{} is encoded before it is prepared", self.name)))
    }
}

/// An op of tests: 8 experts, of which a token chooses 2.
#[cfg(test)]
pub(super) fn eight_experts() -> ops::MoeLinear {
    ops::MoeLinear {
        in_features: 64,
        out_features: 70,
        num_experts: 8,
        top_k: 2,
        weight: WeightFormat::BF16,
        dtype: DType::BF16,
        max_tokens: 100,
        first_expert: 0,
        total_experts: 0,
        allow_quantized_act: false,
    }
}
