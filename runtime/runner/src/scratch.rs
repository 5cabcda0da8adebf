//! Device rows and KV pages for the runner's own steps: warm-up, and checks of recordings.

use std::time::Duration;

use crate::memory::Capacities;

/// Rows that no request gets.
pub(crate) const SCRATCH_ROWS: u32 = 2;
/// A device that takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Tags of check steps: no step of the scheduler has this bit.
const TAG: u64 = 1 << 63;

/// Where check steps run.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    /// First of the device rows.
    pub first_row: u32,
    /// Number of rows; for checks [`SCRATCH_ROWS`].
    pub num_rows: u32,
    /// First of as many pages for each KV group.
    pub first_page: u32,
    /// Tokens of a row's history, all within one block.
    pub num_tokens: u32,
    /// Steps run so far.
    pub steps: u64,
}

/// One row of a check step: which scratch row, and how many of its tokens are computed.
pub(crate) type Decode = (u32, u32);

impl Scratch {
    /// Tag of the step that was written last.
    pub(crate) fn tag(&self) -> u64 {
        TAG | self.steps
    }

    /// Two steps: two rows (as many as the bucket holds) near and in the middle of their history, then one row alone.
    pub(crate) fn contents(&self, bucket: u32) -> [Vec<Decode>; 2] {
        let (last, middle) = (self.num_tokens - 1, self.num_tokens / 2);
        let mut first = vec![(0, last), (1, middle)];
        first.truncate(bucket as usize);
        [first, vec![(1, last)]]
    }
}

/// Tokens of the prompt where nothing is recorded: enough to meet attention's sum over several keys, few enough to cost
/// no more than a decode step where reading the weights is what takes time.
const NUM_TOKENS: u32 = 4;

/// Row and pages of the warm-up where no recording has any: the first ones, which no request owns yet.
pub(crate) fn first_row(capacities: &Capacities, block_size: u32) -> Scratch {
    Scratch {
        first_row: 0,
        num_rows: 1,
        first_page: 0,
        num_tokens: NUM_TOKENS
            .min(block_size)
            .min(capacities.max_tokens)
            .min(capacities.max_model_len),
        steps: 0,
    }
}
