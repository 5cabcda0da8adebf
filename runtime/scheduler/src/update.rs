//! Takes the results of a step: exact counts replace upper bounds, computed blocks enter the prefix cache, ended
//! requests return their blocks and rows. A call that is refused changes nothing.

use crate::error::Error;
use crate::ids::StepId;
use crate::output::{FinishReason, RowResult, Update};
use crate::request::State;
use crate::scheduler::{InFlightRow, InFlightStep, Scheduler};

impl Scheduler {
    /// Takes the results of the oldest step in flight: one for each row that emits, in the order of the plan's
    /// `scheduled`. Rows that do not emit and rows of ended requests may be left out (so a step that failed is read
    /// back by aborting its requests and giving no results). Returns an update for each row that emits and whose
    /// request has not ended before.
    ///
    /// # Errors
    /// [`Error::StepOutOfOrder`], [`Error::MissingResult`], [`Error::UnexpectedResult`], [`Error::TooManyTokens`].
    pub fn update(&mut self, step: StepId, results: &[RowResult<'_>]) -> Result<Vec<Update>, Error> {
        let mut updates = Vec::new();
        self.update_into(step, results, &mut updates)?;
        Ok(updates)
    }

    /// [`Self::update`] into a list that keeps its allocation; it is emptied first.
    ///
    /// # Errors
    /// As [`Self::update`].
    pub fn update_into(
        &mut self,
        step: StepId,
        results: &[RowResult<'_>],
        updates: &mut Vec<Update>,
    ) -> Result<(), Error> {
        updates.clear();
        let expected = self.in_flight.front();
        match expected {
            Some(oldest) if oldest.step == step => self.check_results(oldest, results)?,
            _ => {
                return Err(Error::StepOutOfOrder {
                    got: step,
                    expected: expected.map(|oldest| oldest.step),
                });
            }
        }
        let Some(oldest) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let mut results = results.iter().peekable();
        for row in &oldest.rows {
            let tokens = results
                .next_if(|result| result.id == row.id)
                .map_or(&[][..], |result| result.tokens);
            updates.extend(self.update_row(row, tokens));
        }
        self.spare_rows.push(oldest.rows);
        Ok(())
    }

    fn check_results(&self, oldest: &InFlightStep, results: &[RowResult<'_>]) -> Result<(), Error> {
        let step = oldest.step;
        let mut results = results.iter().peekable();
        for row in &oldest.rows {
            let limit = if row.emits { row.num_drafts + 1 } else { 0 };
            match results.next_if(|result| result.id == row.id) {
                Some(result) if result.tokens.len() > limit as usize => {
                    return Err(Error::TooManyTokens {
                        step,
                        id: row.id,
                        got: result.tokens.len(),
                        limit,
                    });
                }
                None if row.emits && self.requests[row.slot].state != State::Ended => {
                    // The next result may be one that belongs nowhere, which says more.
                    return Err(match results.peek() {
                        Some(other) if oldest.rows.iter().all(|row| row.id != other.id) => {
                            Error::UnexpectedResult { step, id: other.id }
                        }
                        _ => Error::MissingResult { step, id: row.id },
                    });
                }
                _ => {}
            }
        }
        match results.next() {
            Some(surplus) => Err(Error::UnexpectedResult { step, id: surplus.id }),
            None => Ok(()),
        }
    }

    fn update_row(&mut self, row: &InFlightRow, tokens: &[u32]) -> Option<Update> {
        let request = &mut self.requests[row.slot];
        request.num_in_flight -= 1;
        if request.state == State::Ended {
            self.release_if_drained(row.slot);
            return None;
        }
        request.num_computed += row.query_len - row.num_drafts;
        if row.emits {
            // Of k drafts and the token behind them, a came back: a-1 drafts were right, and the keys of the other
            // drafts are void. With a = 0 the last known token counts as not computed and is computed again.
            let (accepted, limit) = (tokens.len() as u32, row.num_drafts + 1);
            request.num_computed = request.num_computed + accepted - 1;
            request.num_computed_upper -= limit - accepted;
            request.num_pending -= limit;
            request.generated.extend_from_slice(tokens);
        }
        self.kv.publish(request);
        let finished = (request.num_known() >= request.max_len).then_some(FinishReason::Length);
        let update = Update {
            id: row.id,
            num_new_tokens: tokens.len() as u32,
            finished,
        };
        if finished.is_some() {
            self.end(row.slot);
        } else if request.state == State::Running {
            self.kv.trim_windows(&mut request.tables, request.num_computed);
        } else {
            self.release_if_drained(row.slot);
        }
        row.emits.then_some(update)
    }
}
