//! Tensor parallelism of a model: which rows or columns of each weight one rank holds, and the sizes that it computes
//! with.
//!
//! Heads, feed-forward columns and the vocabulary are divided; the residual stream, norms and the embedding stand on
//! every rank. Of experts each rank has some columns of all, or all of some (expert parallelism): every rank routes
//! every token, as it has the whole hidden state. What a rank computes of a divided sum is a part: a node `collective`
//! makes it whole.

use crate::config::{LayerDescription, MlpDescription, ModelDescription, QkNorm};
use crate::error::{ModelError, Result};
use crate::weights::MlpLinear::{Down, Gate, Up};
use crate::weights::{Linear, Part, Role};

/// Ranks' slices of the vocabulary are a multiple of this, where the vocabulary is that large: wide stores of products
/// want it.
const VOCAB_MULTIPLE: usize = 16;

/// One rank of a tensor-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// This rank, below `size`.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
}

impl Shard {
    /// The whole model on one device.
    pub const WHOLE: Shard = Shard { rank: 0, size: 1 };

    /// Whether it adds what must be added once: residuals, and biases of divided sums.
    pub(super) fn is_first(self) -> bool {
        self.rank == 0
    }

    pub(super) fn is_whole(self) -> bool {
        self.size == 1
    }
}

impl Default for Shard {
    fn default() -> Self {
        Shard::WHOLE
    }
}

/// A part of a weight: rows and columns of a matrix; of a vector, values as rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub first_row: u32,
    pub rows: u32,
    pub first_column: u32,
    /// 0 for a vector.
    pub columns: u32,
}

/// The sizes of one rank's part of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalLayer {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub first_head: usize,
    /// First of its KV heads: ranks share heads where there are fewer heads than ranks.
    pub first_kv_head: usize,
    pub head_dim: usize,
    /// Of the MLP, or of each expert.
    pub intermediate_size: usize,
    /// Of the expert that every token takes; 0 without one.
    pub shared_size: usize,
    /// The first of its experts.
    pub first_expert: usize,
    /// Experts that it has: all of them, but for expert parallelism.
    pub num_experts: usize,
}

/// The sizes of one rank's part of a model.
#[derive(Clone, Debug)]
pub(super) struct LocalSizes {
    shard: Shard,
    expert_parallel: bool,
    pub layers: Vec<LocalLayer>,
    /// Rows of the output projection.
    pub vocab: usize,
}

impl LocalLayer {
    fn of(layer: &LayerDescription, shard: Shard, expert_parallel: bool) -> Result<LocalLayer> {
        let (rank, size) = (shard.rank as usize, shard.size as usize);
        let divide = |quantity: &'static str, value: usize| {
            if value.is_multiple_of(size) {
                return Ok(value / size);
            }
            Err(indivisible(
                quantity,
                value,
                shard,
                "the number of ranks must divide it",
            ))
        };
        let mixer = layer.mixer;
        if size > 1 && mixer.qk_norm == Some(QkNorm::Whole) {
            let limit = "their norm is over all heads together: serve it on one device";
            return Err(indivisible("num_attention_heads", mixer.num_heads, shard, limit));
        }
        let num_heads = divide("num_attention_heads", mixer.num_heads)?;
        let shared = mixer.num_kv_heads < size && size.is_multiple_of(mixer.num_kv_heads);
        let num_kv_heads = if shared {
            1
        } else {
            divide("num_key_value_heads", mixer.num_kv_heads)?
        };
        let intermediate_size = match layer.mlp {
            MlpDescription::Dense(mlp) => divide("intermediate_size", mlp.intermediate_size)?,
            MlpDescription::Experts(mlp) if expert_parallel => mlp.intermediate_size,
            MlpDescription::Experts(mlp) => divide("moe_intermediate_size", mlp.intermediate_size)?,
        };
        let experts = layer.mlp.num_experts();
        let has_experts = matches!(layer.mlp, MlpDescription::Experts(_));
        if expert_parallel && has_experts && experts < size {
            let limit = "with --enable-expert-parallel each rank has one expert or more";
            return Err(indivisible("num_experts", experts, shard, limit));
        }
        let (first_expert, num_experts) = match expert_parallel {
            true => experts_of(experts, shard),
            false => (0, experts),
        };
        let shared = layer.mlp.shared().map_or(0, |shared| shared.intermediate_size);
        Ok(LocalLayer {
            num_heads,
            num_kv_heads,
            first_head: rank * num_heads,
            first_kv_head: rank * mixer.num_kv_heads / size,
            head_dim: mixer.head_dim,
            intermediate_size,
            shared_size: divide("shared_expert_intermediate_size", shared)?,
            first_expert,
            num_experts,
        })
    }

    pub(super) fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    pub(super) fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
}

impl LocalSizes {
    /// This rank's sizes.
    ///
    /// # Errors
    /// [`ModelError::Indivisible`] naming the model's number and the ranks.
    pub(super) fn of(model: &ModelDescription, shard: Shard, expert_parallel: bool) -> Result<LocalSizes> {
        let layers = model.layers.iter();
        let layers = layers.map(|layer| LocalLayer::of(layer, shard, expert_parallel));
        Ok(LocalSizes {
            shard,
            expert_parallel,
            layers: layers.collect::<Result<_>>()?,
            vocab: vocab_part(model.vocab_size, shard.size as usize),
        })
    }

    /// First logit of each rank. All ranks compute equally many, so the last ones begin earlier where the vocabulary
    /// does not divide: the few logits that two ranks compute are equal.
    pub(super) fn vocab_starts(&self, model: &ModelDescription) -> Vec<u32> {
        let last = model.vocab_size - self.vocab;
        (0..self.shard.size as usize)
            .map(|rank| (rank * self.vocab).min(last) as u32)
            .collect()
    }

    /// This rank's part of a weight.
    pub(super) fn slice(&self, model: &ModelDescription, role: Role) -> Slice {
        let shape = role.shape(model);
        let rank = self.shard.rank as usize;
        let whole = Slice {
            first_row: 0,
            rows: shape[0] as u32,
            first_column: 0,
            columns: shape.get(1).map_or(0, |&columns| columns as u32),
        };
        if self.shard.is_whole() {
            return whole;
        }
        let rows = |first: usize, count: usize| Slice {
            first_row: first as u32,
            rows: count as u32,
            ..whole
        };
        let columns = |count: usize| Slice {
            first_column: (rank * count) as u32,
            columns: count as u32,
            ..whole
        };
        let (index, part) = match role {
            Role::LmHead => return rows(self.vocab_starts(model)[rank] as usize, self.vocab),
            Role::Layer(index, part) => (index, part),
            Role::Embedding | Role::Positions | Role::FinalNorm | Role::FinalNormBias => return whole,
        };
        let layer = self.layers[index];
        let (q, kv, intermediate) = (layer.q_size(), layer.kv_size(), layer.intermediate_size);
        let shared = layer.shared_size;
        match part {
            Part::Weight(Linear::Expert(..)) | Part::Bias(Linear::Expert(..)) if self.expert_parallel => whole,
            Part::Weight(Linear::O) => columns(q),
            Part::Weight(Linear::Mlp(Down) | Linear::Expert(_, Down)) => columns(intermediate),
            Part::Weight(Linear::Shared(Down)) => columns(shared),
            Part::Weight(linear) | Part::Bias(linear) => match linear {
                Linear::Q => rows(rank * q, q),
                Linear::K | Linear::V => rows(layer.first_kv_head * layer.head_dim, kv),
                Linear::Mlp(Gate | Up) | Linear::Expert(_, Gate | Up) => rows(rank * intermediate, intermediate),
                Linear::Shared(Gate | Up) => rows(rank * shared, shared),
                Linear::O | Linear::Mlp(Down) | Linear::Expert(_, Down) | Linear::Shared(Down) => whole,
                Linear::Router | Linear::SharedWeight => whole,
                Linear::QueryLow | Linear::KeyRope | Linear::Latent | Linear::Order(_) => whole,
                // Heads are divided; what all of them read stands on every rank.
                Linear::QueryNope | Linear::QueryRope | Linear::KeyUp | Linear::ValueUp => {
                    let of_head = role.shape(model)[0] / model.layers[index].mixer.num_heads;
                    rows(layer.first_head * of_head, layer.num_heads * of_head)
                }
            },
            Part::Sinks => rows(layer.first_head, layer.num_heads),
            Part::Norm(_) | Part::NormBias(_) | Part::ChoiceBias => whole,
        }
    }
}

/// The first of a rank's experts, and their number: the first ranks have one more where the number does not divide.
fn experts_of(experts: usize, shard: Shard) -> (usize, usize) {
    let (rank, size) = (shard.rank as usize, shard.size as usize);
    let (each, more) = (experts / size, experts % size);
    (rank * each + rank.min(more), each + usize::from(rank < more))
}

/// Logits that a rank computes.
fn vocab_part(vocab_size: usize, size: usize) -> usize {
    if size == 1 {
        return vocab_size;
    }
    vocab_size
        .div_ceil(size)
        .next_multiple_of(VOCAB_MULTIPLE)
        .min(vocab_size)
}

/// The error of a number that the ranks cannot share.
pub(super) fn indivisible(quantity: &'static str, value: usize, shard: Shard, limit: impl Into<String>) -> ModelError {
    ModelError::Indivisible {
        quantity,
        value,
        size: shard.size,
        limit: limit.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expert_is_on_one_rank_and_ranks_differ_by_one() {
        for (experts, size) in [(8, 2), (6, 4), (256, 8), (3, 3), (5, 1), (128, 6)] {
            let parts: Vec<_> = (0..size)
                .map(|rank| experts_of(experts, Shard { rank, size }))
                .collect();
            let mut next = 0;
            for &(first, count) in &parts {
                assert_eq!(first, next, "{experts} over {size}: {parts:?}");
                assert!(count.abs_diff(experts / size as usize) <= 1 && count > 0, "{parts:?}");
                next += count;
            }
            assert_eq!(next, experts, "{experts} over {size}: {parts:?}");
        }
        assert_eq!(experts_of(6, Shard { rank: 2, size: 4 }), (4, 1));
    }

    #[test]
    fn the_parts_of_a_vocabulary_cover_it() {
        for (vocab, size) in [(562, 2), (562, 4), (448, 4), (10, 4), (128_256, 8), (3, 8), (17, 1)] {
            let part = vocab_part(vocab, size);
            let last = vocab - part;
            let mut covered = 0;
            for rank in 0..size {
                let start = (rank * part).min(last);
                assert!(start <= covered, "{vocab} over {size}: a gap at {covered}");
                covered = covered.max(start + part);
            }
            assert_eq!(covered, vocab, "{vocab} over {size}");
        }
    }
}
