//! A submitted step: its rows, and the facts that reading its results needs.

use halyard_scheduler::{RequestId, StepId};

use crate::device_model::{ScoredRange, Wanted};
use crate::row::RowOutput;
use crate::template::StepShape;

/// A row of a submitted step, in submission order.
#[derive(Clone, Copy, Debug)]
pub struct StepRow {
    /// Whose.
    pub id: RequestId,
    /// What it gives in this step; `None`: nothing, it computes a part of its prompt.
    pub output: Option<RowOutput>,
    /// Of the tokens computed, those of the prompt.
    pub prompt_tokens: u32,
    /// Alternatives that the token's log-probabilities are wanted for.
    pub(crate) logprobs: Option<u32>,
    /// Drafted tokens that it verifies.
    pub(crate) num_drafts: u32,
    /// Its device row.
    pub(crate) slot: u32,
}

impl StepRow {
    pub(crate) fn is_masked(&self) -> bool {
        self.output == Some(RowOutput::MaskedToken)
    }

    pub(crate) fn gives_token(&self) -> bool {
        matches!(self.output, Some(RowOutput::Token | RowOutput::MaskedToken))
    }
}

/// Prompt positions that a step scores: `count` positions of row `row` from `position` on, at ring rows `first ..`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptSpan {
    pub row: usize,
    pub position: u32,
    pub range: ScoredRange,
    pub k: u32,
}

/// A submitted step.
#[derive(Debug)]
pub struct Flight {
    pub(crate) step: StepId,
    pub(crate) number: u64,
    pub(crate) entry: u32,
    pub(crate) rows: Vec<StepRow>,
    pub(crate) spans: Vec<PromptSpan>,
    /// The place of each of `rows` in the step; empty: in this order.
    pub(crate) places: Vec<u32>,
    /// Positions of logits that each row with a token has: 1, in steps with drafts one more than the most of them.
    pub(crate) stride: u32,
    /// Drafted tokens, row after row.
    pub(crate) drafts: Vec<u32>,
    pub(crate) reads_logprobs: bool,
    pub(crate) is_replayed: bool,
    /// The rest of a step whose rows have masks.
    pub(crate) unsampled: Option<Unsampled>,
}

/// The rows that follow the emitting rows' logits in a step: prompt positions that are scored, then hidden states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtraRows {
    pub scored: Option<ScoredRange>,
    pub hidden_states: Option<ScoredRange>,
}

impl ExtraRows {
    pub(crate) fn is_nothing(&self) -> bool {
        self.scored.is_none() && self.hidden_states.is_none()
    }
}

/// The second half of a step whose first half was submitted.
#[derive(Debug)]
pub(crate) struct Unsampled {
    pub shape: StepShape,
    /// Rows that give a token; the masked ones stand first in the step.
    pub num_masked: u32,
    pub num_sampled: u32,
    /// What the rows without masks need.
    pub wanted: Wanted,
    pub extra: ExtraRows,
}

impl Flight {
    /// Which step of the scheduler's.
    pub fn step(&self) -> StepId {
        self.step
    }

    /// Its rows, those that give something first.
    pub fn rows(&self) -> &[StepRow] {
        &self.rows
    }

    /// It ran from recordings.
    pub fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// Whether it waits for [`crate::Runner::sample`].
    pub fn is_unsampled(&self) -> bool {
        self.unsampled.is_some()
    }

    /// The requests whose tokens are chosen under masks, in the order in which [`crate::Runner::sample`] takes them.
    /// Empty once the step is sampled.
    pub fn masked(&self) -> impl Iterator<Item = RequestId> + '_ {
        let is_unsampled = self.is_unsampled();
        let masked = self.rows.iter().filter(move |row| is_unsampled && row.is_masked());
        masked.map(|row| row.id)
    }

    /// Whether some of its rows give something without a mask.
    pub fn has_unmasked(&self) -> bool {
        self.rows.iter().any(|row| row.output.is_some() && !row.is_masked())
    }

    /// Prompt tokens that the step computed.
    pub fn prompt_tokens(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.prompt_tokens)).sum()
    }

    /// The place of row `i` in the step.
    pub(crate) fn place(&self, i: usize) -> usize {
        self.places.get(i).map_or(i, |&place| place as usize)
    }
}
