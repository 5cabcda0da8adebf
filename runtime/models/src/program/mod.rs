//! From a description to ops: the forward step of a model and its output head as flat programs of catalogue ops, with
//! every tensor's role and every weight's origin. Knows no device, no memory and no file: the engine gives tensors a
//! place.
//!
//! Laying out a step's tokens and updating rows surround these programs and are the engine's.

mod builder;
mod kv;
mod latent;
mod layer;
mod mlp;
mod shard;
mod slots;

use halyard_platform_api::{DType, Program, WeightFormat};

use crate::config::ModelDescription;
use crate::error::Result;
use crate::lora::LoraTargets;
use crate::weights::Role;

pub use kv::{KvGroupLayout, KvLayout};
pub use shard::Shard;

/// The options of the programs.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramOptions {
    /// Type of activations.
    pub act: DType,
    /// Type of the KV cache.
    pub kv: DType,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// Index of the attention backend.
    pub attention_backend: u32,
    /// Most tokens of a step.
    pub max_tokens: u32,
    /// Most sequences of a step.
    pub max_seqs: u32,
    /// Longest sequence.
    pub max_kv_len: u32,
    /// Most rows of logits at once.
    pub max_logits_rows: u32,
    /// Lets the backend round activations of quantised linears.
    pub allow_quantized_act: bool,
    /// Leaves the last layer's second half to the head, which then computes it for the positions that logits are wanted
    /// for alone. Not for programs with adapters, which differ by token.
    pub narrow_last_layer: bool,
    /// Which part of the model: [`Shard::WHOLE`] on one device.
    pub shard: Shard,
    /// Each rank has some of the experts, and these whole; else some columns of every expert.
    pub expert_parallel: bool,
    /// The number by which ops name the ranks' communicator; 0 where the platform gives none.
    pub communicator: u64,
    /// Builds the program of steps with LoRA rows; `None`: of steps without.
    pub lora: Option<LoraOptions>,
}

/// Adapter slots of the program's linears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoraOptions {
    /// Adapters that a step may mix.
    pub num_slots: u32,
    /// Rank that slots are padded to.
    pub max_rank: u32,
    /// Type of the adapters' matrices.
    pub dtype: DType,
    /// The linears that adapters may change.
    pub targets: LoraTargets,
}

/// Rows of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One a token of the step.
    Tokens,
    /// One a position that logits are wanted for.
    Logits,
}

/// Memory for activations \[rows, width\], shared by all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationSlot {
    /// Columns.
    pub width: u32,
    /// Element type.
    pub dtype: DType,
    /// Number of rows.
    pub rows: Rows,
}

/// The role of a tensor of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// Columns `column .. column + width` of an activation slot, seen as \[rows, width\] or \[rows, heads, width /
    /// heads\].
    Activation {
        /// Index into the program's slots.
        slot: u32,
        /// First column.
        column: u32,
        /// Columns.
        width: u32,
        /// Heads of the three-axis view; 0: two axes.
        heads: u32,
    },
    /// What ranks `first .. first + count` gave to a gathering slot, which holds one rank's rows behind another's:
    /// \[count, rows, width\].
    Gathered {
        /// Index into the program's slots.
        slot: u32,
        /// First rank.
        first: u32,
        /// Ranks.
        count: u32,
        /// Columns of a rank.
        width: u32,
    },
    /// Columns `column .. column + count · width` of an activation slot, seen as \[count, rows, width\].
    RankColumns {
        /// Index into the program's slots.
        slot: u32,
        /// First column.
        column: u32,
        /// Ranks.
        count: u32,
        /// Columns of a rank.
        width: u32,
    },
    /// Token ids \[T\] i32.
    TokenIds,
    /// Positions \[T\] i32.
    Positions,
    /// Device row of each sequence \[S\] i32.
    StepRows,
    /// \[S+1\] i32.
    QueryStartLoc,
    /// \[S\] i32.
    SeqLens,
    /// Slots of a KV group \[T\] i32.
    Slots {
        /// Group.
        group: u32,
    },
    /// Block table of a KV group \[R, max_blocks\] i32.
    BlockTable {
        /// Group.
        group: u32,
    },
    /// KV blocks of a layer \[num_pages, block_bytes\] u8.
    KvCache {
        /// Layer.
        layer: u32,
    },
    /// Cosines and sines of rope `index` of the description \[max_kv_len, rotary_dim\] f32.
    RopeTable {
        /// Index.
        index: u32,
    },
    /// A weight: packed, or a vector.
    Weight {
        /// Index into the program's weights.
        index: u32,
    },
    /// Positions of the step that logits are wanted for \[N\] i32.
    LogitsIndex,
    /// Adapter slot of each token \[T\] i32, −1: none.
    TokenLora,
    /// Scale of each adapter slot \[num_slots\] f32.
    LoraScales,
    /// The slots' matrices A of a LoRA group \[num_slots, parts · max_rank, in_features\].
    LoraA {
        /// Index into the program's LoRA groups.
        group: u32,
    },
    /// The slots' matrices B of a LoRA group \[num_slots, out_features, max_rank\].
    LoraB {
        /// Index into the program's LoRA groups.
        group: u32,
    },
}

/// Rows of a file's tensor that become part of a weight. Of a matrix, [`WeightSpec::Matrix::in_features`] columns are
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightPart {
    /// Which tensor.
    pub role: Role,
    /// First row taken (a vector: first value).
    pub first_row: u32,
    /// Rows taken (a vector: values).
    pub rows: u32,
    /// First column taken, at a block's beginning; 0 for a vector.
    pub first_column: u32,
}

/// A weight operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightSpec {
    /// A matrix, packed by the op of node `node`: parts stand one after the other.
    Matrix {
        /// Node that reads it.
        node: u32,
        /// Format of every part.
        format: WeightFormat,
        /// Columns.
        in_features: u32,
        /// Sources in row order.
        parts: Vec<WeightPart>,
    },
    /// Plain f32 values: parts stand one after the other.
    Vector {
        /// Sources in order.
        parts: Vec<WeightPart>,
        /// Above 1: a matrix of so many rows of equally many values.
        rows: u32,
    },
}

/// Linears over one input, whose adapters run together: their matrices A stand one below the other, and so do their
/// matrices B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraGroup {
    /// The linears with this rank's rows of each, in the order of the outputs' columns. Of the inputs, columns
    /// `first_column ..` are this rank's.
    pub parts: Vec<WeightPart>,
    /// Columns of A.
    pub in_features: u32,
    /// Rows of B, all parts together.
    pub out_features: u32,
}

/// A program with the meaning of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelProgram {
    /// The ops.
    pub program: Program,
    /// Role of each tensor of the program.
    pub roles: Vec<TensorRole>,
    /// Activation memory.
    pub slots: Vec<ActivationSlot>,
    /// Weights.
    pub weights: Vec<WeightSpec>,
    /// Adapted linears; empty without LoRA.
    pub lora: Vec<LoraGroup>,
}

/// The stored format of a weight: [`crate::Weights::format`].
pub(crate) type FormatOf<'f> = dyn Fn(Role) -> Result<WeightFormat> + 'f;

/// Token ids → the last layer's hidden states (slot 0 \[T, hidden\], before the final norm); with `narrow_last_layer`
/// what its second half starts from: slot 0 and attention's result (slot 1 \[T, heads · head_dim\]).
///
/// Weights over one input (q, k, v; gate, up) with equal formats become one matrix; others write slices of one slot.
///
/// # Errors
/// What `format_of` finds; [`crate::ModelError::Indivisible`] when the ranks cannot share the model.
pub fn build_forward(
    model: &ModelDescription,
    kv_layout: &KvLayout,
    options: &ProgramOptions,
    format_of: &FormatOf<'_>,
) -> Result<ModelProgram> {
    builder::Builder::new(model, options, format_of)?.forward(kv_layout)
}

/// Hidden states → logits: gathers the wanted positions, with `narrow_last_layer` the last layer's second half, final
/// norm, output projection, softcap. Slots 0 and 1 are the forward program's, the last slot the logits \[N, vocab\]
/// f32, complete on every rank.
///
/// # Errors
/// As [`build_forward`].
pub fn build_head(
    model: &ModelDescription,
    options: &ProgramOptions,
    format_of: &FormatOf<'_>,
) -> Result<ModelProgram> {
    builder::Builder::new(model, options, format_of)?.head()
}

/// Hidden states → what the output projection reads: gathers the wanted positions, with `narrow_last_layer` the last
/// layer's second half, final norm (`last_hidden_state` of a Hugging Face model). Slots 0 and 1 are the forward
/// program's, slot 2 the result \[N, hidden\] of the activations' type.
///
/// # Errors
/// As [`build_forward`].
pub fn build_hidden_states(
    model: &ModelDescription,
    options: &ProgramOptions,
    format_of: &FormatOf<'_>,
) -> Result<ModelProgram> {
    builder::Builder::new(model, options, format_of)?.hidden_states()
}
