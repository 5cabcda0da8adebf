//! The first steps on a device, while loading: short prompts whose logits must be finite. They also fill the rows that
//! checks of recordings read.

use std::time::Instant;

use halyard_platform_api::{Error, Status};

use crate::buckets::decode_shape;
use crate::device_model::DeviceModel;
use crate::error::RunnerError;
use crate::result::{NoToken, REMEDY};
use crate::row::Sampler;
use crate::scratch::{PATIENCE, Scratch};
use crate::self_test::{run_anew, write_scratch};
use crate::template::StepShape;

/// Runs a prompt on each of the scratch rows.
///
/// # Errors
/// Errors of the device; logits that are no numbers, by the model's `name`.
pub(crate) fn warm_up(model: &mut DeviceModel, scratch: &mut Scratch, name: &str) -> Result<(), RunnerError> {
    for row in 0..scratch.num_rows {
        write_scratch(model, scratch, &[(row, 0)], (scratch.num_tokens, 0), None)?;
        let shape = StepShape {
            tokens: scratch.num_tokens,
            direct: false,
            ..decode_shape(1)
        };
        // A last one by the program of steps with adapters, where there is one, which without an adapter must do the
        // same.
        let has_adapters = model.programs.lora_forward.is_some();
        let adapted = has_adapters && scratch.num_rows > 1 && row + 1 == scratch.num_rows;
        let number = run_anew(model, shape, adapted, 1, Sampler::Greedy)?;
        let start = Instant::now();
        model.wait_done(number, || start.elapsed() > PATIENCE)?;
        check_numbers(model, scratch, name)?;
    }
    Ok(())
}

/// Whether the warm-up step that has just run gave a token.
fn check_numbers(model: &mut DeviceModel, scratch: &Scratch, name: &str) -> Result<(), RunnerError> {
    let (entry, vocab) = (model.capacities().ring_entries, model.capacities().vocab);
    let Some(words) = model.read_entry(entry, scratch.tag(), 1)? else {
        let message = format!("the warm-up's result is another step's than {:#x}", scratch.tag());
        return Err(Error::new(Status::Internal, message).into());
    };
    match NoToken::read(words[1], vocab) {
        Ok(_) => Ok(()),
        Err(why) => Err(RunnerError::NotFinite {
            model: name.to_string(),
            reason: format!("{}; {REMEDY}", why.seen()),
        }),
    }
}
