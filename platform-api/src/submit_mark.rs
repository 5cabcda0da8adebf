//! What a backend notes of a command buffer, to refuse a submit that the contract does not allow.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{EncoderMode, QueueId};
use crate::status::{Error, Result};

/// The queue and the submits of one command buffer.
#[derive(Debug)]
pub struct SubmitMark {
    queue: QueueId,
    mode: EncoderMode,
    submitted: AtomicBool,
}

impl SubmitMark {
    /// Of a command buffer that is encoded for `queue`.
    pub fn new(queue: QueueId, mode: EncoderMode) -> SubmitMark {
        SubmitMark {
            queue,
            mode,
            submitted: AtomicBool::new(false),
        }
    }

    /// Notes a submit of all of `marks` to `queue`; after an error, of none.
    ///
    /// # Errors
    /// `InvalidArgument` for a command buffer of another queue, and for a one-shot one that was submitted before or
    /// stands there twice.
    pub fn submit<'a>(marks: impl Iterator<Item = &'a SubmitMark> + Clone, queue: QueueId) -> Result<()> {
        for (position, mark) in marks.clone().enumerate() {
            let wrong = if mark.queue != queue {
                format!(
                    "it was encoded for queue {:#x} and is submitted to queue {:#x}",
                    mark.queue.0, queue.0
                )
            } else if mark.submitted.swap(true, Ordering::AcqRel) && mark.mode == EncoderMode::OneShot {
                "it is one-shot and is submitted a second time: encode it as reusable".to_string()
            } else {
                continue;
            };
            // A reusable one forgets that it was submitted, which nobody asks it.
            marks
                .clone()
                .take(position)
                .for_each(|mark| mark.submitted.store(false, Ordering::Release));
            return Err(Error::invalid(format!(
                "command buffer {position} of the submit: {wrong}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_submit_leaves_no_mark() {
        let [here, there] = [QueueId(1), QueueId(2)];
        let (once, again) = (
            SubmitMark::new(here, EncoderMode::OneShot),
            SubmitMark::new(here, EncoderMode::Reusable),
        );
        let foreign = SubmitMark::new(there, EncoderMode::OneShot);
        for marks in [vec![&once, &foreign], vec![&once, &once], vec![&again, &once, &foreign]] {
            let refused = SubmitMark::submit(marks.iter().copied(), here);
            assert!(refused.is_err_and(|e| !e.message.is_empty()));
        }
        let all = [&once, &again, &again];
        assert!(
            SubmitMark::submit(all.into_iter(), here).is_ok(),
            "nothing was noted before"
        );
        assert!(
            SubmitMark::submit(all.into_iter(), here).is_err(),
            "the first is one-shot"
        );
        assert!(SubmitMark::submit([&again].into_iter(), here).is_ok());
        assert!(SubmitMark::submit([&foreign].into_iter(), there).is_ok());
    }
}
