//! Encodes the parts of a step: inputs, head and sampling, the rows' update, and prompt scores. The same code serves
//! steps that run once and recordings: it reads a step's counts only, never its contents.

use halyard_platform_api::{Encoder, OpId, Tensor};

use crate::device_model::{DeviceModel, SampledRange, ScoredRange, TokenCounts, Wanted};
use crate::error::RunnerError;
use crate::flight::ExtraRows;
use crate::row::Sampler;
use crate::template::StepShape;

impl DeviceModel {
    /// Inputs and the model's layers, with adapters where the step has rows that use some.
    pub(crate) fn encode_forward(
        &mut self,
        encoder: &mut dyn Encoder,
        shape: StepShape,
        adapted: bool,
    ) -> Result<(), RunnerError> {
        self.encode_inputs(encoder, shape, adapted)?;
        let program = match &mut self.programs.lora_forward {
            Some(lora) if adapted => lora,
            _ => &mut self.programs.forward,
        };
        Ok(program.encode(encoder, shape)?)
    }

    fn encode_inputs(&self, encoder: &mut dyn Encoder, shape: StepShape, adapted: bool) -> Result<(), RunnerError> {
        let s = &self.memory.step;
        let seqs = |t: &Tensor| t.rows(0, shape.seqs);
        let tokens = |t: &Tensor| t.rows(0, shape.tokens);
        encoder.encode(
            self.programs.ops.prepare_inputs.id(),
            &[
                seqs(&s.rows),
                seqs(&s.query_lens),
                self.memory.rows.tokens,
                self.memory.rows.num_computed,
                if adapted { self.memory.rows.lora } else { Tensor::NONE },
                tokens(&s.token_ids),
                tokens(&s.positions),
                tokens(&s.token_seq),
                if adapted { tokens(&s.token_lora) } else { Tensor::NONE },
                s.query_start_loc.rows(0, shape.seqs + 1),
                seqs(&s.seq_lens),
                seqs(&s.last_token_index),
            ],
        )?;
        for (slots, table) in s.slots.iter().zip(&self.memory.rows.tables) {
            let operands = [
                tokens(&s.positions),
                tokens(&s.token_seq),
                seqs(&s.rows),
                *table,
                tokens(slots),
            ];
            encoder.encode(self.programs.ops.slot_mapping.id(), &operands)?;
        }
        Ok(())
    }

    /// Head and sampler of the sequences that give a token, a chunk of logits at a time.
    pub(crate) fn encode_sampling(
        &mut self,
        encoder: &mut dyn Encoder,
        shape: StepShape,
        range: SampledRange,
        wanted: Wanted,
        entry: u32,
    ) -> Result<(), RunnerError> {
        let keeps_raw = wanted.sampler == Sampler::Full && wanted.logprobs;
        let chunk = match keeps_raw {
            true => self.memory.raw_logits.shape[0],
            false => self.memory.capacities.logits_chunk,
        };
        for (first, count) in chunks(range.first, range.first + range.count, chunk) {
            self.programs.head.encode(
                encoder,
                StepShape {
                    logits: count,
                    logits_first: first,
                    ..shape
                },
            )?;
            let logits = self.memory.logits.rows(0, count);
            let rows = match range.counts() {
                TokenCounts::Drafted(_) => self.memory.step.logits_rows,
                TokenCounts::One | TokenCounts::Masked => self.memory.step.rows,
            };
            let rows = rows.rows(first, count);
            let sampled = self.memory.step.sampled.rows(first, count);
            let mut raw = logits;
            if wanted.sampler == Sampler::Full {
                if keeps_raw {
                    raw = self.memory.raw_logits.rows(0, count);
                    encoder.encode(self.programs.ops.copy_logits.id(), &[logits, raw])?;
                }
                let r = &self.memory.rows;
                encoder.encode(
                    self.programs.ops.logits_process.id(),
                    &[
                        logits,
                        rows,
                        r.sampling,
                        r.tokens,
                        r.num_tokens,
                        r.allowed_mask,
                        r.bias_tokens,
                        r.bias_values,
                        r.stop_tokens,
                        r.bad_words,
                        match range.is_masked {
                            true => self.memory.step.masks.rows(first, count),
                            false => Tensor::NONE,
                        },
                    ],
                )?;
            }
            if wanted.sampler == Sampler::Greedy {
                encoder.encode(self.programs.ops.argmax.id(), &[logits, sampled])?;
            } else {
                let operands = [
                    logits,
                    rows,
                    self.memory.rows.sampling,
                    self.memory.rows.num_tokens,
                    sampled,
                ];
                encoder.encode(self.programs.ops.sample.id(), &operands)?;
            }
            if wanted.logprobs {
                self.encode_scores(
                    encoder,
                    self.programs.ops.top_logprobs.id(),
                    raw,
                    sampled,
                    entry,
                    first,
                    count,
                )?;
            }
        }
        Ok(())
    }

    /// The rows after the emitting rows' logits.
    pub(crate) fn encode_extra(
        &mut self,
        encoder: &mut dyn Encoder,
        shape: StepShape,
        extra: ExtraRows,
        entry: u32,
    ) -> Result<(), RunnerError> {
        self.encode_prompt_logprobs(encoder, shape, extra.scored, entry)?;
        self.encode_hidden_states(encoder, shape, extra.hidden_states, entry)
    }

    /// Hidden states into the ring.
    fn encode_hidden_states(
        &mut self,
        encoder: &mut dyn Encoder,
        shape: StepShape,
        wanted: Option<ScoredRange>,
        entry: u32,
    ) -> Result<(), RunnerError> {
        let Some(range) = wanted else {
            return Ok(());
        };
        let ring = self.memory.ring.hidden_states.get(entry as usize);
        let (Some((program, states)), Some(copy), Some(ring)) =
            (&mut self.programs.hidden_states, &self.programs.ops.copy_states, ring)
        else {
            return Err(RunnerError::Internal(
                "rows give hidden states, which were not asked for at start",
            ));
        };
        for (first, count) in chunks(
            range.first,
            range.first + range.count,
            self.memory.capacities.logits_chunk,
        ) {
            let shape = StepShape {
                logits: count,
                logits_first: first,
                direct: false,
                ..shape
            };
            program.encode(encoder, shape)?;
            encoder.encode(
                copy.id(),
                &[states.rows(0, count), ring.rows(first - range.first, count)],
            )?;
        }
        Ok(())
    }

    fn encode_prompt_logprobs(
        &mut self,
        encoder: &mut dyn Encoder,
        shape: StepShape,
        scored: Option<ScoredRange>,
        entry: u32,
    ) -> Result<(), RunnerError> {
        let Some(range) = scored else {
            return Ok(());
        };
        for (first, count) in chunks(
            range.first,
            range.first + range.count,
            self.memory.capacities.logits_chunk,
        ) {
            self.programs.head.encode(
                encoder,
                StepShape {
                    logits: count,
                    logits_first: first,
                    direct: false,
                    ..shape
                },
            )?;
            let chosen = self.memory.step.chosen.rows(first, count);
            let logits = self.memory.logits.rows(0, count);
            self.encode_scores(
                encoder,
                self.programs.ops.top_logprobs.id(),
                logits,
                chosen,
                entry,
                first,
                count,
            )?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn encode_scores(
        &self,
        encoder: &mut dyn Encoder,
        op: OpId,
        logits: Tensor,
        chosen: Tensor,
        entry: u32,
        first: u32,
        count: u32,
    ) -> Result<(), RunnerError> {
        let t = &self.memory.ring.logprobs[entry as usize];
        let outputs = [t.chosen, t.ranks, t.top_tokens, t.top_logprobs].map(|t| t.rows(first, count));
        encoder.encode(op, &[logits, chosen, outputs[0], outputs[1], outputs[2], outputs[3]])?;
        Ok(())
    }

    /// Tokens and counts into the rows and the ring.
    pub(crate) fn encode_update(
        &self,
        encoder: &mut dyn Encoder,
        shape: StepShape,
        counts: TokenCounts,
    ) -> Result<(), RunnerError> {
        let s = &self.memory.step;
        let seqs = |t: &Tensor| t.rows(0, shape.seqs);
        let (stride, num_drafts, num_sampled) = match counts {
            TokenCounts::One => (1, Tensor::NONE, Tensor::NONE),
            TokenCounts::Masked => (1, Tensor::NONE, seqs(&s.num_sampled)),
            TokenCounts::Drafted(most) => (most, seqs(&s.num_drafts), seqs(&s.num_sampled)),
        };
        // Of each row the columns past its count are not read.
        let max_sampled = self.memory.capacities.max_sampled;
        encoder.encode(
            self.programs.ops.update_rows.id(),
            &[
                s.header,
                seqs(&s.rows),
                seqs(&s.query_lens),
                seqs(&s.emits),
                num_drafts,
                s.sampled.view(0, &[shape.seqs, max_sampled], &[stride, 1]),
                num_sampled,
                self.memory.rows.tokens,
                self.memory.rows.num_tokens,
                self.memory.rows.num_computed,
                self.memory.ring.results,
            ],
        )?;
        Ok(())
    }
}

/// Pieces of at most `size` of `first .. end`.
fn chunks(first: u32, end: u32, size: u32) -> impl Iterator<Item = (u32, u32)> {
    (first..end)
        .step_by(size as usize)
        .map(move |at| (at, size.min(end - at)))
}
