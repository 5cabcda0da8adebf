//! Collectives of a program as prepared ops with operand templates: all-reduce in place, and all-gather of columns.
//! Owns the layout of a gathered tensor; the model program says between which nodes a collective runs.

use std::sync::Arc;

use halyard_models::program::{CollectiveOp, ModelProgram, TensorRole};
use halyard_platform_api::ops::Copy;
use halyard_platform_api::{CollectiveKind, Communicator, DType, PreparedOp};

use crate::error::RunnerError;
use crate::preparer::Preparer;
use crate::template::{Extent, Template};

/// An op with its operands, to be encoded after `after` nodes of the program.
pub(crate) struct CollectiveStep {
    pub after: u32,
    pub name: &'static str,
    pub op: Arc<dyn PreparedOp>,
    pub operands: Vec<Template>,
}

/// Prepares every collective of a program, in order. What the platform lacks is noted by `preparer`.
///
/// # Errors
/// A program for several ranks without a communicator; what the device reports.
pub(crate) fn collective_steps(
    model: &ModelProgram,
    communicator: Option<&dyn Communicator>,
    preparer: &mut Preparer<'_>,
    template: &dyn Fn(u16) -> Template,
) -> Result<Vec<CollectiveStep>, RunnerError> {
    let mut steps = Vec::new();
    let Some(communicator) = communicator else {
        if model.collectives.is_empty() {
            return Ok(steps);
        }
        return Err(RunnerError::Internal("a program for several ranks has no communicator"));
    };
    for node in &model.collectives {
        let mut push = |name, op: Option<Arc<dyn PreparedOp>>, operands| {
            steps.extend(op.map(|op| CollectiveStep {
                after: node.after,
                name,
                op,
                operands,
            }));
        };
        match &node.op {
            CollectiveOp::AllReduce { tensor } => {
                let x = template(*tensor);
                let op = preparer.collective(communicator, CollectiveKind::AllReduce, x.tensor.dtype())?;
                push("all_reduce", op, vec![x, x]);
            }
            CollectiveOp::GatherColumns {
                shard,
                gathered,
                out,
                starts,
            } => {
                let (from, gathered, to) = (template(*shard), template(*gathered), template(*out));
                let op = preparer.collective(communicator, CollectiveKind::AllGather, DType::F32)?;
                push("all_gather", op, vec![from, gathered]);
                let width = slot_width(model, *shard);
                for (first, count) in runs(starts, width) {
                    let copy = preparer.op(&Copy { dtype: DType::F32 }.into())?;
                    push(
                        "copy",
                        copy,
                        columns_of_ranks(&gathered, &to, width, first, count, starts),
                    );
                }
            }
        }
    }
    Ok(steps)
}

fn slot_width(model: &ModelProgram, tensor: u16) -> u32 {
    match model.roles[usize::from(tensor)] {
        TensorRole::Activation { width, .. } => width,
        _ => 0,
    }
}

/// Neighbouring ranks whose columns stand side by side, as (first rank, number of ranks).
fn runs(starts: &[u32], width: u32) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (rank, &start) in starts.iter().enumerate() {
        match runs.last_mut() {
            Some((_, count)) if start == starts[rank - 1] + width => *count += 1,
            _ => runs.push((rank as u32, 1)),
        }
    }
    runs
}

/// Operands of the copy that turns ranks' [N, width] into columns: both seen as [ranks, N, width].
fn columns_of_ranks(
    gathered: &Template,
    to: &Template,
    width: u32,
    first: u32,
    count: u32,
    starts: &[u32],
) -> Vec<Template> {
    let rows = gathered.tensor.shape[0];
    let by_rank = gathered
        .tensor
        .view(0, &[count, rows, width], &[rows * width, width, 1]);
    let columns = to.tensor.view(
        u64::from(starts[first as usize]),
        &[count, rows, width],
        &[width, to.tensor.strides[0], 1],
    );
    vec![
        Template::new(by_rank, Extent::GatheredRanks { first }),
        Template::new(columns, Extent::LogitsInner),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_copied_together() {
        assert_eq!(runs(&[0, 4, 8, 12], 4), [(0, 4)]);
        assert_eq!(runs(&[0, 288, 274], 288), [(0, 2), (2, 1)]);
        assert_eq!(runs(&[0, 0, 0], 10), [(0, 1), (1, 1), (2, 1)]);
    }
}
