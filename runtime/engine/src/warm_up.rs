//! A device's first steps, while loading: short prompts whose logits must be numbers. They also fill what checks of recordings read.

use std::time::Instant;

use halyard_platform_api::ops::RESULT_HEADER;
use halyard_platform_api::{Error, Status};

use crate::compile::StepShape;
use crate::error::EngineError;
use crate::no_token::{NoToken, REMEDY};
use crate::recording::decode_shape;
use crate::runner::Runner;
use crate::self_check::{PATIENCE, Scratch};
use crate::sequence::Sampler;
use crate::state::Capacities;

/// Tokens of the prompt where nothing is recorded: enough to meet attention's sum over several keys, few enough to cost no more than a
/// decode step where reading the weights is what takes time.
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

impl Runner {
    /// Runs a prompt on each row of the recordings' scratch rows, or on `first` where there are none.
    ///
    /// # Errors
    /// What the device reports; logits that are no numbers, by the name of `model`.
    pub(crate) fn warm_up(&mut self, first: &Scratch, model: &str) -> Result<(), EngineError> {
        let num_rows = self.recordings.as_ref().map_or(first.num_rows, |r| r.scratch.num_rows);
        for row in 0..num_rows {
            let scratch = self.next_scratch().unwrap_or_else(|| first.clone());
            self.write_scratch(&scratch, &[(row, 0)], scratch.num_tokens, 0, None)?;
            let shape = StepShape {
                tokens: scratch.num_tokens,
                direct: false,
                ..decode_shape(1)
            };
            // A last one by the program of steps with adapters, where there is one, which without an adapter must do the same.
            let adapted = self.lora.is_some() && num_rows > 1 && row + 1 == num_rows;
            let number = self.run_anew(shape, adapted, 1, Sampler::Greedy)?;
            let start = Instant::now();
            self.wait_done(number, || start.elapsed() > PATIENCE)?;
            self.check_numbers(&scratch, model)?;
        }
        Ok(())
    }

    /// Whether the warm-up step that has just run gave a token.
    fn check_numbers(&mut self, scratch: &Scratch, model: &str) -> Result<(), EngineError> {
        let entry = self.capacities.ring_entries;
        let entry = self.ring.results.rows(entry, 1).columns(0, RESULT_HEADER + 2);
        let mut words = Vec::new();
        self.ring.read(&entry, &mut words)?;
        let tag = u64::from(words[0]) | u64::from(words[1]) << 32;
        if tag != scratch.tag() {
            let message = format!("the warm-up's result has tag {tag:#x}, not {:#x}", scratch.tag());
            return Err(Error::new(Status::Internal, message).into());
        }
        match NoToken::read(words[RESULT_HEADER as usize + 1], self.capacities.vocab) {
            Ok(_) => Ok(()),
            Err(why) => Err(EngineError::NotFinite {
                model: model.to_string(),
                reason: format!("{}; {REMEDY}", why.seen()),
            }),
        }
    }
}
