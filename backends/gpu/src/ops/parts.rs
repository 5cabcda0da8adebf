//! A claimed region as the ops that it consists of: what its own launches do not take runs by them, over the same
//! packed weights.

use std::ops::RangeBounds;

use halyard_platform_api::{Error, Node, Program, Result};

use crate::driver::DevicePtr;
use crate::encoding::Encoding;
use crate::kernel::{Kernel, Packer, Preparation, RowSource, ended};
use crate::view::View;

/// A kernel a node, and what each works on.
pub(super) struct Parts {
    kernels: Vec<Box<dyn Kernel>>,
    operands: Vec<Vec<u16>>,
    num_tensors: usize,
}

impl Parts {
    /// The nodes of a region; `build` makes the kernel of one.
    ///
    /// # Errors
    /// Errors of `build`.
    pub(super) fn of(program: &Program, build: impl Fn(&Node) -> Result<Box<dyn Kernel>>) -> Result<Parts> {
        Ok(Parts {
            kernels: program.nodes.iter().map(build).collect::<Result<_>>()?,
            operands: program.nodes.iter().map(|node| node.operands.clone()).collect(),
            num_tensors: program.tensors.len(),
        })
    }

    pub(super) fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        prepare_all(self.kernels.iter_mut(), cx)
    }

    pub(super) fn scratch_bytes(&self) -> u64 {
        self.kernels
            .iter()
            .map(|kernel| kernel.scratch_bytes())
            .max()
            .unwrap_or(0)
    }

    /// Checks that a call has the region's tensors.
    ///
    /// # Errors
    /// `InvalidArgument` with both numbers.
    pub(super) fn check(&self, tensors: &[View]) -> Result<()> {
        match tensors.len() == self.num_tensors {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "a region of {} tensors got {} operands",
                self.num_tensors,
                tensors.len()
            ))),
        }
    }

    /// Runs the ops of some nodes, one after another.
    pub(super) fn encode(
        &self,
        nodes: impl RangeBounds<usize>,
        encoding: &mut Encoding,
        tensors: &[View],
    ) -> Result<()> {
        let parts = self.kernels.iter().zip(&self.operands).enumerate();
        for (_, (kernel, indices)) in parts.filter(|(node, _)| nodes.contains(node)) {
            let views: Vec<View> = indices.iter().map(|&t| view(tensors, t)).collect();
            kernel.encode(encoding, &views)?;
        }
        Ok(())
    }

    pub(super) fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        self.kernel(node)?.packed_weight_bytes(0)
    }

    pub(super) fn pack_weight(
        &self,
        packer: &dyn Packer,
        node: u32,
        first_row: u32,
        num_rows: u32,
        source: RowSource<'_>,
        dst: DevicePtr,
    ) -> Result<()> {
        self.kernel(node)?
            .pack_weight(packer, 0, first_row, num_rows, source, dst)
    }

    fn kernel(&self, node: u32) -> Result<&dyn Kernel> {
        let kernel = self.kernels.get(node as usize).map(|kernel| &**kernel);
        kernel.ok_or_else(|| Error::invalid(format!("node {node} of a region of {} nodes", self.kernels.len())))
    }
}

/// Prepares several kernels at once.
///
/// # Errors
/// The first of theirs.
pub(super) fn prepare_all<'k>(
    kernels: impl Iterator<Item = &'k mut Box<dyn Kernel>>,
    cx: &Preparation<'_>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = kernels.map(|kernel| scope.spawn(|| kernel.prepare(cx))).collect();
        let outcomes: Vec<Result<()>> = threads.into_iter().map(ended).collect();
        outcomes.into_iter().collect()
    })
}

/// Tensor `t` of a call; an absent one is [`View::NONE`].
pub(super) fn view(tensors: &[View], t: u16) -> View {
    tensors.get(usize::from(t)).copied().unwrap_or(View::NONE)
}
