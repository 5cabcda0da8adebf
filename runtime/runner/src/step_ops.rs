//! The ops around a model's own programs: inputs, slots, sampling, scores, the rows' update. Prepared once for an
//! engine's capacities.

use std::sync::Arc;

use halyard_platform_api::ops::{
    Argmax, Copy, LogitsProcess, PrepareInputs, Sample, SlotMapping, TopLogprobs, UpdateRows,
};
use halyard_platform_api::{DType, OpSpec, PreparedOp};

use crate::error::RunnerError;
use crate::memory::ResultRing;
use crate::plan::Plan;
use crate::preparer::Preparer;

/// The ops around the model's own programs.
pub(crate) struct StepOps {
    pub prepare_inputs: Arc<dyn PreparedOp>,
    pub slot_mapping: Arc<dyn PreparedOp>,
    pub update_rows: Arc<dyn PreparedOp>,
    pub argmax: Arc<dyn PreparedOp>,
    pub sample: Arc<dyn PreparedOp>,
    pub logits_process: Arc<dyn PreparedOp>,
    pub top_logprobs: Arc<dyn PreparedOp>,
    pub copy_logits: Arc<dyn PreparedOp>,
    /// For hidden states, where rows may give some.
    pub copy_states: Option<Arc<dyn PreparedOp>>,
}

impl StepOps {
    /// What they are, but for `copy_states`.
    pub(crate) fn specs(plan: &Plan, ring: &ResultRing) -> [OpSpec; 8] {
        let c = &plan.capacities;
        let (max_seqs, max_tokens, vocab) = (c.max_seqs, c.max_tokens, c.vocab);
        [
            PrepareInputs { max_seqs, max_tokens }.into(),
            SlotMapping {
                block_size: plan.options.block_size,
            }
            .into(),
            UpdateRows {
                max_seqs,
                max_sampled: c.max_sampled,
            }
            .into(),
            Argmax { vocab, max_seqs }.into(),
            Sample { vocab, max_seqs }.into(),
            LogitsProcess { vocab, max_seqs }.into(),
            TopLogprobs {
                vocab,
                k: ring.k,
                max_rows: c.logits_chunk,
            }
            .into(),
            Copy { dtype: DType::F32 }.into(),
        ]
    }

    /// Prepares them, of [`StepOps::specs`]. `None` when some are missing, which `preparer` has noted.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn prepare(
        plan: &Plan,
        specs: &[OpSpec; 8],
        preparer: &mut Preparer<'_>,
    ) -> Result<Option<StepOps>, RunnerError> {
        let mut ops = Vec::with_capacity(specs.len());
        for spec in specs {
            ops.push(preparer.op(spec)?);
        }
        let copy_states = match plan.capacities.hidden_states {
            Some((_, dtype)) => preparer.op(&Copy { dtype }.into())?,
            None => None,
        };
        let Some(ops) = ops.into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let Ok(
            [
                prepare_inputs,
                slot_mapping,
                update_rows,
                argmax,
                sample,
                logits_process,
                top_logprobs,
                copy_logits,
            ],
        ) = <[Arc<dyn PreparedOp>; 8]>::try_from(ops)
        else {
            return Err(RunnerError::Internal("as many ops as specs"));
        };
        Ok(Some(StepOps {
            prepare_inputs,
            slot_mapping,
            update_rows,
            argmax,
            sample,
            logits_process,
            top_logprobs,
            copy_logits,
            copy_states,
        }))
    }

    fn all(&self) -> [(&'static str, &Arc<dyn PreparedOp>); 8] {
        [
            ("prepare_inputs", &self.prepare_inputs),
            ("slot_mapping", &self.slot_mapping),
            ("update_rows", &self.update_rows),
            ("argmax", &self.argmax),
            ("sample", &self.sample),
            ("logits_process", &self.logits_process),
            ("top_logprobs", &self.top_logprobs),
            ("copy", &self.copy_logits),
        ]
    }

    /// Most scratch of any of them.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        let all = self.all().into_iter();
        all.map(|(_, op)| op.info().scratch_bytes).max().unwrap_or(0)
    }

    /// The first op that cannot be recorded.
    pub(crate) fn not_recordable(&self) -> Option<&'static str> {
        let mut all = self.all().into_iter();
        all.find(|(_, op)| !op.info().recordable).map(|(name, _)| name)
    }
}
