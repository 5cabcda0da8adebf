//! Operand templates: operands of a step's ops, complete except for the step's counts.

use halyard_platform_api::Tensor;

/// Which of the step's counts an operand's outermost extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// As the template says.
    Fixed,
    /// Tokens.
    Tokens,
    /// Sequences.
    Seqs,
    /// Sequences and one.
    SeqsPlusOne,
    /// Positions that logits are wanted for.
    Logits,
    /// The same, starting at the step's `logits_first`.
    LogitsIndex,
    /// [ranks, positions that logits are wanted for, width] of densely gathered parts, from rank `first` on.
    GatheredRanks {
        /// First rank.
        first: u32,
    },
    /// Positions that logits are wanted for, along the middle axis.
    LogitsInner,
}

/// The counts of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepShape {
    pub tokens: u32,
    pub seqs: u32,
    pub logits: u32,
    /// First of the positions that logits are wanted for; a multiple of the chunk.
    pub logits_first: u32,
    /// Position i of those that logits are wanted for is token i: nothing needs to be gathered.
    pub direct: bool,
}

/// An operand but for its extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    pub tensor: Tensor,
    pub extent: Extent,
    /// Of gathered rows: the rows that they are gathered from.
    pub direct: Option<Tensor>,
}

impl Template {
    pub(crate) fn new(tensor: Tensor, extent: Extent) -> Template {
        Template {
            tensor,
            extent,
            direct: None,
        }
    }

    pub(crate) fn fixed(tensor: Tensor) -> Template {
        Template::new(tensor, Extent::Fixed)
    }

    pub(crate) fn at(&self, shape: StepShape) -> Tensor {
        if let Some(direct) = self.direct.filter(|_| shape.direct) {
            return direct.rows(shape.logits_first, shape.logits);
        }
        let mut tensor = self.tensor;
        match self.extent {
            Extent::Fixed => {}
            Extent::Tokens => tensor.shape[0] = shape.tokens,
            Extent::Seqs => tensor.shape[0] = shape.seqs,
            Extent::SeqsPlusOne => tensor.shape[0] = shape.seqs + 1,
            Extent::Logits => tensor.shape[0] = shape.logits,
            Extent::LogitsIndex => tensor = tensor.rows(shape.logits_first, shape.logits),
            Extent::GatheredRanks { first } => {
                let part = shape.logits * tensor.shape[2];
                (tensor.shape[1], tensor.strides[0]) = (shape.logits, part);
                tensor.offset += u64::from(first) * u64::from(part) * tensor.dtype().bytes() as u64;
            }
            Extent::LogitsInner => tensor.shape[1] = shape.logits,
        }
        tensor
    }
}
