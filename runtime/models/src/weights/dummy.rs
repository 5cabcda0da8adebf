//! Random weights of any shape, for measuring speed without a checkpoint (`--load-format dummy`).
//! Every value is a function of (seed, weight, index) alone: neither the order of loading nor a split
//! into parts changes it. The function is the op `fill_random`'s, so that a device can make the same values.

use std::borrow::Cow;
use std::sync::Arc;

use half::bf16;
use halyard_platform_api::WeightFormat;
use halyard_platform_api::weight_format::Codes;

use super::role::{Linear, MlpLinear, Norm, Part, Role};
use super::sorting::Orders;
use super::tensor::{Change, Coding, StoredRows, WeightTensor};
use super::{Source, Weights, is_layer_matrix};
use crate::config::{ModelDescription, Quantization};
use crate::split_mix::SplitMix64;

/// Half width of the interval of matrices and biases: a standard deviation of 0.02, the usual initialisation.
const HALF_WIDTH: f32 = 0.034_641_016;

/// Bytes that are worth a thread.
const LEAST_OF_THREAD: usize = 1 << 19;

/// How dummy matrices are stored. Norms and biases are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DummyFormat {
    /// bfloat16.
    #[default]
    Bf16,
    /// 32-bit floats.
    F32,
}

/// A recipe for weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DummyWeights {
    /// Same seed, same weights.
    pub seed: u64,
    /// Format of matrices.
    pub format: DummyFormat,
}

/// How the values of a dummy matrix are made: the op `fill_random` with this key and scale, element by element in
/// row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DummyValues {
    /// Low half of the key.
    pub seed_low: u32,
    /// High half of the key.
    pub seed_high: u32,
}

impl DummyValues {
    /// Half width of the interval.
    pub const SCALE: f32 = HALF_WIDTH;

    /// All values of a matrix, `put` into their bytes; by several threads where there are many. Value `index` is the
    /// upper 24 bits of word `index` mod 4 of Philox4x32-10 with counter `index` / 4, scaled to the interval.
    fn put_all<const BYTES: usize>(self, bytes: &mut [u8], put: impl Fn(f32) -> [u8; BYTES] + Sync) {
        self.put_words(bytes, |word| {
            put(((word >> 8) as f32 / (1 << 23) as f32 - 1.0) * HALF_WIDTH)
        });
    }

    /// All words, likewise; bytes behind the last whole one stay as they are.
    fn put_words<const BYTES: usize>(self, bytes: &mut [u8], put: impl Fn(u32) -> [u8; BYTES] + Sync) {
        by_threads(bytes, 4 * BYTES, |first, bytes| {
            let first = first / BYTES;
            for (i, piece) in bytes.chunks_mut(4 * COUNTERS * BYTES).enumerate() {
                let words = philox4x32(
                    counters((first / 4 + i * COUNTERS) as u64),
                    [self.seed_low, self.seed_high],
                );
                for (out, word) in piece.chunks_exact_mut(BYTES).zip(words.iter().flatten()) {
                    out.copy_from_slice(&put(*word));
                }
            }
        });
    }
}

/// Gives threads a part of `bytes` each, with where it begins: whole units, but for a rest at the end.
fn by_threads(bytes: &mut [u8], unit: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let of_thread = bytes
        .len()
        .div_ceil(threads)
        .max(LEAST_OF_THREAD)
        .next_multiple_of(unit);
    std::thread::scope(|scope| {
        let mut parts = bytes.chunks_mut(of_thread).enumerate();
        let here = parts.next();
        for (i, part) in parts {
            let work = &work;
            scope.spawn(move || work(i * of_thread, part));
        }
        if let Some((_, part)) = here {
            work(0, part);
        }
    });
}

impl Weights {
    /// Random weights of the described shapes.
    #[must_use]
    pub fn dummy(description: Arc<ModelDescription>, dummy: DummyWeights) -> Self {
        Self::dummy_of(description, dummy, Quantization::default())
    }

    /// The same, in the formats of a checkpoint where they are blocks or groups.
    pub(crate) fn dummy_of(
        description: Arc<ModelDescription>,
        dummy: DummyWeights,
        quantization: Quantization,
    ) -> Self {
        Self {
            description,
            source: Source::Dummy { dummy, quantization },
            quantised: None,
            orders: Orders::default(),
        }
    }

    /// The format in blocks that a dummy matrix is made in; `None`: a plain one.
    pub(super) fn dummy_blocks(&self, role: Role) -> Option<WeightFormat> {
        match &self.source {
            Source::Dummy { quantization, .. } if is_layer_matrix(role) => {
                let of_expert = matches!(role, Role::Layer(_, Part::Weight(Linear::Expert(..))));
                quantization.block_format(self.columns(role), of_expert)
            }
            _ => None,
        }
    }

    /// The plain format that dummy matrices are made in, where they are not made in blocks.
    #[must_use]
    pub fn dummy_format(&self, role: Role) -> Option<WeightFormat> {
        match &self.source {
            Source::Dummy { dummy, .. } if self.dummy_blocks(role).is_none() => {
                Some(dummy.format_of(self.stored_role(role)))
            }
            _ => None,
        }
    }

    /// How the matrix with a role is made, where it is a dummy of plain values; `None` for weights of files, norms and
    /// biases.
    #[must_use]
    pub fn dummy_values(&self, role: Role) -> Option<DummyValues> {
        match &self.source {
            Source::Dummy { dummy, .. } if role.is_matrix() && self.dummy_blocks(role).is_none() => {
                Some(dummy.values(self.stored_role(role)))
            }
            _ => None,
        }
    }
}

impl DummyWeights {
    /// How the matrix with a role is made; norms and biases are small and come from the host.
    pub(super) fn values(self, role: Role) -> DummyValues {
        let spread = |seed| SplitMix64(seed).word();
        let key = spread(self.seed ^ spread(role_number(role)));
        DummyValues {
            seed_low: key as u32,
            seed_high: (key >> 32) as u32,
        }
    }

    pub(super) fn format_of(self, role: Role) -> WeightFormat {
        match (role.is_matrix(), self.format) {
            (true, DummyFormat::Bf16) => WeightFormat::BF16,
            _ => WeightFormat::F32,
        }
    }

    /// A matrix in blocks: every code is random, every scale is such that values stay in the interval of plain ones.
    /// `format`: canonical, or MXFP4.
    pub(super) fn blocks(
        self,
        name: String,
        role: Role,
        shape: Vec<usize>,
        format: WeightFormat,
    ) -> WeightTensor<'static> {
        let layout = format.layout();
        let blocks = shape.iter().product::<usize>() / layout.block_values;
        let mut bytes = vec![0; blocks * layout.block_bytes];
        self.values(role).put_words(&mut bytes, u32::to_le_bytes);
        let scale = HALF_WIDTH / largest_number(layout.codes);
        // Of the power of two below it, as MXFP4 stores it.
        let exponent = (scale.to_bits() >> 23) as u8;
        let head: &[u8] = &match layout.codes {
            // Eight is the code of zero.
            Codes::Integer { low: 0 } => [scale, -8.0 * scale].map(f32::to_le_bytes).concat(),
            Codes::Integer { .. } => [scale, 0.0].map(f32::to_le_bytes).concat(),
            _ if format == WeightFormat::Mxfp4 => vec![exponent],
            _ => scale.to_le_bytes().to_vec(),
        };
        by_threads(&mut bytes, layout.block_bytes, |_, bytes| {
            for block in bytes.chunks_exact_mut(layout.block_bytes) {
                let (own, codes) = block.split_at_mut(head.len());
                own.copy_from_slice(head);
                if layout.codes == Codes::E4m3 {
                    // Exponents of the upper half: weights have few smaller numbers, which take processors longer. The
                    // two codes that are no numbers become their neighbours.
                    for code in codes {
                        *code |= 0x40;
                        *code -= u8::from(*code & 0x7f == 0x7f);
                    }
                }
            }
        });
        made(name, bytes, format, shape)
    }

    /// Norm weights give a factor of 1; everything else is uniform around 0.
    pub(super) fn tensor(
        self,
        name: String,
        role: Role,
        shape: Vec<usize>,
        model: &ModelDescription,
    ) -> WeightTensor<'static> {
        let num_values: usize = shape.iter().product();
        let values = self.values(role);
        let format = self.format_of(role);
        let mut bytes = vec![0; num_values * format.block_bytes()];
        if role.is_norm() {
            let value = (1.0 - model.norm.weight_offset).to_le_bytes();
            bytes.chunks_exact_mut(4).for_each(|out| out.copy_from_slice(&value));
        } else if format == WeightFormat::BF16 {
            values.put_all(&mut bytes, |value| bf16::from_f32(value).to_le_bytes());
        } else {
            values.put_all(&mut bytes, f32::to_le_bytes);
        }
        made(name, bytes, format, shape)
    }
}

/// A tensor of these bytes, without a change.
fn made(name: String, bytes: Vec<u8>, format: WeightFormat, shape: Vec<usize>) -> WeightTensor<'static> {
    WeightTensor {
        name,
        bytes: Cow::Owned(bytes),
        format,
        stored_rows: StoredRows::Whole,
        shape,
        coding: Coding::AsStored,
        turned_from: None,
        change: Change::default(),
    }
}

/// The largest magnitude of random codes, without their scale.
fn largest_number(codes: Codes) -> f32 {
    match codes {
        Codes::Float => 1.0,
        Codes::Integer { low: 0 } => 7.5,
        Codes::Integer { .. } => 128.0,
        Codes::Table(table) => table.iter().fold(0.0, |max, value| value.abs().max(max)),
        Codes::E4m3 => 448.0,
    }
}

/// A number of its own for each weight of a model. Values hang on it: the numbers stay.
fn role_number(role: Role) -> u64 {
    match role {
        Role::Embedding => 1,
        Role::FinalNorm => 2,
        Role::LmHead => 3,
        Role::Positions => 4,
        Role::FinalNormBias => 5,
        Role::Layer(i, part) => (i as u64 + 1) << 8 | part_number(part),
    }
}

/// Below 256 where there are no experts; weights of expert e have e + 1 in the upper half.
fn part_number(part: Part) -> u64 {
    use Linear::{KeyRope, KeyUp, Latent, QueryLow, QueryNope, QueryRope, ValueUp};
    let of_mlp = |linear| match linear {
        MlpLinear::Gate => 0,
        MlpLinear::Up => 1,
        MlpLinear::Down => 2,
    };
    let number = match part {
        Part::Norm(Norm::Attention) => 0,
        Part::Weight(Linear::Q) => 1,
        Part::Weight(Linear::K) => 2,
        Part::Weight(Linear::V) => 3,
        Part::Weight(Linear::O) => 4,
        Part::Bias(Linear::Q) => 5,
        Part::Bias(Linear::K) => 6,
        Part::Bias(Linear::V) => 7,
        Part::Bias(Linear::O) => 8,
        Part::Norm(Norm::Query) => 9,
        Part::Norm(Norm::Key) => 10,
        Part::Norm(Norm::PostAttention) => 11,
        Part::Norm(Norm::Mlp) => 12,
        Part::Weight(Linear::Mlp(linear) | Linear::Expert(_, linear)) => 13 + of_mlp(linear),
        Part::Bias(Linear::Mlp(linear) | Linear::Expert(_, linear)) => 16 + of_mlp(linear),
        Part::Norm(Norm::PostMlp) => 19,
        Part::Weight(Linear::Router) => 20,
        Part::Bias(Linear::Router) => 21,
        Part::Weight(Linear::Shared(linear)) => 22 + of_mlp(linear),
        Part::Bias(Linear::Shared(linear)) => 25 + of_mlp(linear),
        Part::Weight(Linear::SharedWeight) => 28,
        Part::Bias(Linear::SharedWeight) => 29,
        Part::NormBias(norm) => {
            30 + match norm {
                Norm::Attention => 0,
                Norm::Query => 1,
                Norm::Key => 2,
                Norm::PostAttention => 3,
                Norm::Mlp => 4,
                Norm::PostMlp => 5,
                Norm::QueryHead(_) => 6,
                Norm::KeyHead(_) => 7,
                Norm::QueryLow => 60,
                Norm::Latent => 61,
            }
        }
        Part::Norm(Norm::QueryHead(_)) => 38,
        Part::Norm(Norm::KeyHead(_)) => 39,
        Part::Sinks => 40,
        Part::ChoiceBias => 41,
        Part::Weight(linear @ (QueryLow | QueryNope | QueryRope | KeyRope | Latent | KeyUp | ValueUp)) => {
            42 + of_latent(linear)
        }
        Part::Bias(linear @ (QueryLow | QueryNope | QueryRope | KeyRope | Latent | KeyUp | ValueUp)) => {
            50 + of_latent(linear)
        }
        Part::Norm(Norm::QueryLow) => 58,
        Part::Norm(Norm::Latent) => 59,
        // Dummy weights are in order.
        Part::Weight(Linear::Order(_)) | Part::Bias(Linear::Order(_)) => 100,
    };
    let member = match part {
        Part::Weight(Linear::Expert(index, _)) | Part::Bias(Linear::Expert(index, _)) => u64::from(index) + 1,
        Part::Norm(Norm::QueryHead(index) | Norm::KeyHead(index)) => u64::from(index) + 1,
        _ => 0,
    };
    member << 32 | number
}

/// The place of a linear of latent attention among them.
fn of_latent(linear: Linear) -> u64 {
    let all = [
        Linear::QueryLow,
        Linear::QueryNope,
        Linear::QueryRope,
        Linear::KeyRope,
        Linear::Latent,
        Linear::KeyUp,
        Linear::ValueUp,
    ];
    all.iter().position(|of| *of == linear).unwrap_or(all.len()) as u64
}

/// Counters whose words are made together: compilers turn them into vectors.
const COUNTERS: usize = 16;

/// Counters `first` and those behind it, word by word.
fn counters(first: u64) -> [[u32; COUNTERS]; 4] {
    let counter = |i: usize| first + i as u64;
    let low = std::array::from_fn(|i| counter(i) as u32);
    let high = std::array::from_fn(|i| (counter(i) >> 32) as u32);
    [low, high, [0; COUNTERS], [0; COUNTERS]]
}

/// The four words of each counter under `key`: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
/// numbers: as easy as 1, 2, 3").
fn philox4x32(mut words: [[u32; COUNTERS]; 4], mut key: [u32; 2]) -> [[u32; 4]; COUNTERS] {
    for _ in 0..10 {
        let [first, second, third, fourth] = &mut words;
        for (((a, b), c), d) in first.iter_mut().zip(second).zip(third).zip(fourth) {
            let (even, odd) = (u64::from(*a) * 0xD251_1F53, u64::from(*c) * 0xCD9E_8D57);
            (*a, *b) = ((odd >> 32) as u32 ^ *b ^ key[0], odd as u32);
            (*c, *d) = ((even >> 32) as u32 ^ *d ^ key[1], even as u32);
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    std::array::from_fn(|i| words.map(|word| word[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_known_answers_of_random123() {
        // kat_vectors of Random123 1.09, philox4x32 10.
        let zero = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(philox4x32(counters(0), [0; 2])[0], zero);
        let ones = [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd];
        let all_ones = philox4x32([[u32::MAX; COUNTERS]; 4], [u32::MAX; 2]);
        assert_eq!(all_ones, [ones; COUNTERS]);
        // Neighbours are those of other batches.
        let of = |first: u64| philox4x32(counters(first), [0x0123_4567, 0x89ab_cdef]);
        let first = u64::from(u32::MAX) - 3;
        assert_eq!(of(first)[7..], of(first + 7)[..COUNTERS - 7]);
    }

    #[test]
    fn threads_do_not_change_values() {
        let values = DummyValues {
            seed_low: 1,
            seed_high: 2,
        };
        let least = LEAST_OF_THREAD / 2;
        let mut bytes = vec![0; 2 * (3 * least + 68)];
        values.put_all(&mut bytes, |value| bf16::from_f32(value).to_le_bytes());
        for index in [0, 5, least - 1, least, 2 * least + 7, 3 * least + 67] {
            let word = philox4x32(counters(index as u64 / 4), [1, 2])[0][index % 4];
            let value = ((word >> 8) as f32 / (1 << 23) as f32 - 1.0) * HALF_WIDTH;
            assert_eq!(bytes[2 * index..][..2], bf16::from_f32(value).to_le_bytes(), "{index}");
        }
    }
}
