//! Device memory of the engine: row state (one row a running request), step data, derived step tensors, result rings.
//!
//! The host writes rows and step data only through `Queue::write_step`, so it never touches memory that a submitted
//! step may read.

use std::sync::Arc;

use half::{bf16, f16};
use halyard_platform_api::ops::{RESULT_HEADER, STEP_HEADER, SamplingRow};
use halyard_platform_api::{Buffer, BufferKind, DType, Device, MAX_STEP_WRITE_BYTES, Queue, Result, StepWrite, Tensor};

use crate::row::{MAX_BAD_WORD_TOKENS, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STEP_BIASES, MAX_STOP_TOKENS};

/// Capacities that size everything.
#[derive(Clone, Debug)]
pub(crate) struct Capacities {
    /// Device rows: one a running request, then the scratch rows.
    pub rows: u32,
    /// Rows that no request gets, for checking recordings; 0: none.
    pub scratch_rows: u32,
    pub max_model_len: u32,
    pub max_seqs: u32,
    pub max_tokens: u32,
    pub vocab: u32,
    /// Blocks of a row's table, by KV group.
    pub table_blocks: Vec<u32>,
    /// Entries of the result rings: steps in flight and some.
    pub ring_entries: u32,
    /// Rows of logits computed at once.
    pub logits_chunk: u32,
    /// Most tokens that a row may gain in a step: a draft more than are verified at once.
    pub max_sampled: u32,
    /// Columns of hidden states that rows may give, and their type; `None`: rows give tokens only.
    pub hidden_states: Option<(u32, DType)>,
}

impl Capacities {
    /// Positions of a step that logits may be wanted for: those of emitting rows first, then of scored prompts and of
    /// hidden states.
    fn wanted_positions(&self) -> u32 {
        self.max_seqs * self.max_sampled + self.max_tokens
    }

    /// Words that a row has in an entry of the result ring.
    pub(crate) fn result_words(&self) -> u32 {
        1 + self.max_sampled
    }
}

/// Cuts tensors out of one buffer, each aligned.
struct Carver {
    alignment: u64,
    pieces: Vec<(u64, DType, Vec<u32>)>,
    bytes: u64,
}

impl Carver {
    fn new(device: &dyn Device) -> Carver {
        Carver {
            alignment: u64::from(device.info().offset_alignment.max(64)),
            pieces: Vec::new(),
            bytes: 0,
        }
    }

    fn piece(&mut self, dtype: DType, shape: &[u32]) -> usize {
        let bytes = shape.iter().map(|&d| u64::from(d)).product::<u64>() * dtype.bytes() as u64;
        self.pieces.push((self.bytes, dtype, shape.to_vec()));
        self.bytes = (self.bytes + bytes).next_multiple_of(self.alignment);
        self.pieces.len() - 1
    }

    fn allocate(self, device: &dyn Device, kind: BufferKind) -> Result<(Arc<dyn Buffer>, Vec<Tensor>)> {
        let buffer = device.create_buffer(self.bytes.max(self.alignment), kind)?;
        let id = buffer.id();
        let tensors = self
            .pieces
            .iter()
            .map(|(offset, dtype, shape)| Tensor::contiguous(id, *offset, *dtype, shape))
            .collect();
        Ok((buffer, tensors))
    }
}

/// The contents of a device row.
pub(crate) struct RowState {
    buffer: Arc<dyn Buffer>,
    /// Token history \[R, L\] i32.
    pub tokens: Tensor,
    /// Known tokens \[R\] i32.
    pub num_tokens: Tensor,
    /// Tokens with KV \[R\] i32.
    pub num_computed: Tensor,
    /// Sampling parameters \[R, 128\] u8.
    pub sampling: Tensor,
    /// \[R, ⌈V/32⌉\] i32.
    pub allowed_mask: Tensor,
    /// \[R, B\] i32.
    pub bias_tokens: Tensor,
    /// \[R, B\] f32.
    pub bias_values: Tensor,
    /// \[R, N\] i32.
    pub stop_tokens: Tensor,
    /// \[R, W\] i32.
    pub bad_words: Tensor,
    /// Adapter slot \[R\] i32, −1: none. Written and read only where adapters are served.
    pub lora: Tensor,
    /// Block table \[R, blocks\] i32 of each KV group.
    pub tables: Vec<Tensor>,
}

impl RowState {
    pub(crate) fn allocate(device: &dyn Device, c: &Capacities) -> Result<RowState> {
        let mut carver = Carver::new(device);
        let r = c.rows;
        let i32s = DType::I32;
        let tokens = carver.piece(i32s, &[r, c.max_model_len]);
        let num_tokens = carver.piece(i32s, &[r]);
        let num_computed = carver.piece(i32s, &[r]);
        let sampling = carver.piece(DType::U8, &[r, size_of::<SamplingRow>() as u32]);
        let allowed_mask = carver.piece(i32s, &[r, c.vocab.div_ceil(32)]);
        let most_biases = (MAX_LOGIT_BIAS + MAX_STEP_BIASES) as u32;
        let bias_tokens = carver.piece(i32s, &[r, most_biases]);
        let bias_values = carver.piece(DType::F32, &[r, most_biases]);
        let stop_tokens = carver.piece(i32s, &[r, MAX_STOP_TOKENS as u32]);
        let bad_words = carver.piece(i32s, &[r, MAX_BAD_WORD_TOKENS as u32]);
        let lora = carver.piece(i32s, &[r]);
        let tables: Vec<usize> = c
            .table_blocks
            .iter()
            .map(|&blocks| carver.piece(i32s, &[r, blocks]))
            .collect();
        let (buffer, t) = carver.allocate(device, BufferKind::Device)?;
        Ok(RowState {
            buffer,
            tokens: t[tokens],
            num_tokens: t[num_tokens],
            num_computed: t[num_computed],
            sampling: t[sampling],
            allowed_mask: t[allowed_mask],
            bias_tokens: t[bias_tokens],
            bias_values: t[bias_values],
            stop_tokens: t[stop_tokens],
            bad_words: t[bad_words],
            lora: t[lora],
            tables: tables.into_iter().map(|i| t[i]).collect(),
        })
    }

    /// Reads `count` words of `tensor` from element `first` on. Blocks; no unfinished step may write them.
    pub(crate) fn read(&self, tensor: &Tensor, first: u32, count: u32) -> Result<Vec<u32>> {
        let mut bytes = vec![0; 4 * count as usize];
        self.buffer.read(tensor.offset + 4 * u64::from(first), &mut bytes)?;
        Ok(words_of(&bytes).collect())
    }
}

/// Little-endian words.
fn words_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// The values of floats of a type that activations may have, little endian.
pub(crate) fn floats_of(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        DType::F16 => halves().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        DType::BF16 => halves().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => words_of(bytes).map(f32::from_bits).collect(),
    }
}

/// What a step says, and what the device derives of it.
pub(crate) struct StepState {
    _buffer: Arc<dyn Buffer>,
    pub header: Tensor,
    pub rows: Tensor,
    pub query_lens: Tensor,
    pub emits: Tensor,
    /// Drafted tokens that each sequence verifies, in steps with drafts \[S\] i32.
    pub num_drafts: Tensor,
    /// Positions that logits are wanted for \[S · m + T\] i32, m = `max_sampled`: those of the emitting sequences
    /// first, in steps with drafts m a sequence, then prompt positions and hidden states.
    pub logits_index: Tensor,
    /// Tokens to score at prompt positions, parallel to `logits_index`.
    pub chosen: Tensor,
    /// Device row of each position, in steps with drafts \[S · m\] i32.
    pub logits_rows: Tensor,
    pub token_ids: Tensor,
    pub positions: Tensor,
    pub token_seq: Tensor,
    /// Adapter slot of each token \[T\] i32, −1: none.
    pub token_lora: Tensor,
    pub query_start_loc: Tensor,
    pub seq_lens: Tensor,
    pub last_token_index: Tensor,
    /// Slots \[T\] i32 of each KV group.
    pub slots: Vec<Tensor>,
    /// Sampled ids \[S · m\] i32: one a sequence, in steps with drafts m.
    pub sampled: Tensor,
    /// How many of them count, in steps with masks or drafts \[S\] i32.
    pub num_sampled: Tensor,
    /// Which tokens may come, in steps with masks \[S, ⌈V/32⌉\] i32.
    pub masks: Tensor,
}

impl StepState {
    pub(crate) fn allocate(device: &dyn Device, c: &Capacities) -> Result<StepState> {
        let mut carver = Carver::new(device);
        let (s, t) = (c.max_seqs, c.max_tokens);
        let (n, m) = (c.wanted_positions(), c.max_sampled);
        let sizes = [STEP_HEADER, s, s, s, n, n, t, t, t, s + 1, s, s, s * m, t];
        let groups = c.table_blocks.iter().map(|_| t);
        for size in sizes.into_iter().chain(groups) {
            carver.piece(DType::I32, &[size]);
        }
        let num_sampled = carver.piece(DType::I32, &[s]);
        let num_drafts = carver.piece(DType::I32, &[s]);
        let logits_rows = carver.piece(DType::I32, &[s * m]);
        let masks = carver.piece(DType::I32, &[s, c.vocab.div_ceil(32)]);
        let (buffer, tensors) = carver.allocate(device, BufferKind::Device)?;
        Ok(StepState {
            num_sampled: tensors[num_sampled],
            num_drafts: tensors[num_drafts],
            logits_rows: tensors[logits_rows],
            masks: tensors[masks],
            _buffer: buffer,
            header: tensors[0],
            rows: tensors[1],
            query_lens: tensors[2],
            emits: tensors[3],
            logits_index: tensors[4],
            chosen: tensors[5],
            token_ids: tensors[6],
            positions: tensors[7],
            token_seq: tensors[8],
            query_start_loc: tensors[9],
            seq_lens: tensors[10],
            last_token_index: tensors[11],
            sampled: tensors[12],
            token_lora: tensors[13],
            slots: tensors[sizes.len()..num_sampled].to_vec(),
        })
    }
}

/// Log-probabilities of one ring entry.
#[derive(Clone, Copy)]
pub(crate) struct LogprobTensors {
    pub chosen: Tensor,
    pub ranks: Tensor,
    pub top_tokens: Tensor,
    pub top_logprobs: Tensor,
}

/// Host-visible results, `ring_entries` steps of them.
pub(crate) struct ResultRing {
    buffer: Arc<dyn Buffer>,
    /// \[E + 1, 2 + S · (1 + m)\] i32; the last entry is no step's.
    pub results: Tensor,
    pub logprobs: Vec<LogprobTensors>,
    /// \[S, hidden\] of each entry, where rows may give hidden states.
    pub hidden_states: Vec<Tensor>,
    /// Alternatives per position.
    pub k: u32,
    /// What was read last, kept for its memory.
    bytes: Vec<u8>,
}

impl ResultRing {
    pub(crate) fn allocate(device: &dyn Device, c: &Capacities) -> Result<ResultRing> {
        let mut carver = Carver::new(device);
        let k = MAX_LOGPROBS.min(c.vocab);
        let n = c.wanted_positions();
        let words = RESULT_HEADER + c.result_words() * c.max_seqs;
        carver.piece(DType::I32, &[c.ring_entries + 1, words]);
        for _ in 0..c.ring_entries {
            carver.piece(DType::F32, &[n]);
            carver.piece(DType::I32, &[n]);
            carver.piece(DType::I32, &[n, k]);
            carver.piece(DType::F32, &[n, k]);
        }
        let num_logprobs = 4 * c.ring_entries as usize;
        if let Some((width, dtype)) = c.hidden_states {
            for _ in 0..c.ring_entries {
                carver.piece(dtype, &[c.max_seqs, width]);
            }
        }
        let (buffer, t) = carver.allocate(device, BufferKind::HostVisible)?;
        let logprobs = t[1..=num_logprobs]
            .chunks_exact(4)
            .map(|t| LogprobTensors {
                chosen: t[0],
                ranks: t[1],
                top_tokens: t[2],
                top_logprobs: t[3],
            })
            .collect();
        Ok(ResultRing {
            buffer,
            results: t[0],
            logprobs,
            hidden_states: t[1 + num_logprobs..].to_vec(),
            k,
            bytes: Vec::new(),
        })
    }

    /// Reads a contiguous tensor's words.
    pub(crate) fn read(&mut self, tensor: &Tensor, words: &mut Vec<u32>) -> Result<()> {
        let bytes = self.read_bytes(tensor)?;
        words.clear();
        words.extend(words_of(bytes));
        Ok(())
    }

    /// Reads a contiguous tensor's bytes.
    pub(crate) fn read_bytes(&mut self, tensor: &Tensor) -> Result<&[u8]> {
        self.bytes.resize(tensor.span_bytes() as usize, 0);
        self.buffer.read(tensor.offset, &mut self.bytes)?;
        Ok(&self.bytes)
    }
}

/// Step writes gathered before one call: pieces of one byte arena.
#[derive(Default)]
pub(crate) struct Writes {
    bytes: Vec<u8>,
    pieces: Vec<(Tensor, u64, std::ops::Range<usize>)>,
}

impl Writes {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
    }

    /// `words` at element `first` of an i32 or f32 tensor.
    pub(crate) fn words(&mut self, tensor: &Tensor, first: u64, words: impl IntoIterator<Item = u32>) {
        let start = self.bytes.len();
        let words = words.into_iter();
        self.bytes.reserve(4 * words.size_hint().0);
        words.for_each(|word| self.bytes.extend_from_slice(&word.to_le_bytes()));
        if self.bytes.len() > start {
            self.pieces
                .push((*tensor, tensor.offset + 4 * first, start..self.bytes.len()));
        }
    }

    /// Bytes at byte `first` of a u8 tensor.
    pub(crate) fn bytes(&mut self, tensor: &Tensor, first: u64, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.pieces
            .push((*tensor, tensor.offset + first, start..self.bytes.len()));
    }

    /// Hands everything over in calls of at most [`MAX_STEP_WRITE_BYTES`]: all take effect before the submit
    /// that follows.
    pub(crate) fn submit(&self, queue: &dyn Queue) -> Result<()> {
        let mut writes: Vec<StepWrite<'_>> = Vec::with_capacity(self.pieces.len());
        let mut held = 0;
        for (tensor, offset, range) in &self.pieces {
            let mut at = *offset;
            for bytes in self.bytes[range.clone()].chunks(MAX_STEP_WRITE_BYTES) {
                if held + bytes.len() > MAX_STEP_WRITE_BYTES {
                    queue.write_step(&writes)?;
                    writes.clear();
                    held = 0;
                }
                writes.push(StepWrite {
                    buffer: tensor.buffer_id(),
                    offset: at,
                    bytes,
                });
                at += bytes.len() as u64;
                held += bytes.len();
            }
        }
        queue.write_step(&writes)
    }
}
