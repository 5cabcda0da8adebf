//! The tolerance table: how far a right answer may lie from the oracle's, per class of op and output type, and why.

use halyard_platform_api::DType;

/// |found − expected| ≤ abs + rel·|expected|.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute part.
    pub abs: f32,
    /// Relative part.
    pub rel: f32,
    /// Why this much.
    pub reason: &'static str,
}

/// How an op computes, which says how it may err.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Class {
    /// Moves bits, counts or draws.
    Exact,
    /// One or two roundings in f32.
    Elementwise,
    /// Calls exp, tanh, erf or the like.
    Transcendental,
    /// The same where the result is far smaller than what it is made of, and only its quotient with the right one
    /// counts.
    Tail,
    /// Divides by the root of a mean.
    Norm,
    /// Sums this many products of values up to about 1.
    Product {
        /// Terms of the sum.
        terms: usize,
        /// Type of the activations.
        act: DType,
    },
    /// As `Product`, with activations that may be rounded to 8 bits in blocks.
    QuantizedProduct {
        /// Terms of the sum.
        terms: usize,
    },
    /// As `Product`, with activations that may be rounded to 8-bit floats.
    RoundedProduct {
        /// Terms of the sum.
        terms: usize,
    },
    /// Softmax-weighted sums of values up to about 1.
    Attention,
    /// The same over keys and values in a narrower type, to which queries and probabilities may be rounded as well.
    AttentionOver {
        /// Type of the cache.
        kv: DType,
    },
    /// The same over keys that were computed, and not just stored, before they were rounded to 8 or 4 bits.
    AttentionOfRoundedKeys {
        /// Type of the cache.
        kv: DType,
    },
    /// A logarithm of a sum over the vocabulary.
    Logprob,
}

/// Half the distance of neighbours at 1.
pub fn unit_roundoff(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 2f32.powi(-11),
        DType::BF16 => 2f32.powi(-8),
        _ => 2f32.powi(-24),
    }
}

/// The tolerance of an output of `dtype`.
pub fn tolerance(class: Class, dtype: DType) -> Tolerance {
    let u = unit_roundoff(dtype);
    let of = |abs: f32, rel: f32, reason| Tolerance {
        abs,
        rel: rel + 2.0 * u,
        reason,
    };
    match class {
        Class::Exact => Tolerance {
            abs: 0.0,
            rel: 0.0,
            reason: "bits are moved, not computed",
        },
        Class::Elementwise => of(
            1e-7,
            2e-7,
            "one or two f32 roundings, then one to the type, which may tip over",
        ),
        Class::Transcendental => of(
            2e-6,
            1e-5,
            "vector exp, tanh and erf are good to a few ulp, and their arguments are rounded",
        ),
        Class::Tail => of(
            0.0,
            5e-5,
            "e to the power of 17 from an argument that is rounded: 17 units in the last place, and the function's own",
        ),
        Class::Norm => of(
            2e-6,
            1e-5,
            "the sum's order and an approximate reciprocal root with one Newton step",
        ),
        Class::Product { terms, act } => of(
            // A weight and an activation of root mean square 0.5 and 0.58, the weight rounded: 0.13 u a term at random
            // signs. Six times that, as the farthest of twenty thousand results is four away.
            (4e-7 + 0.75 * half_roundoff(act)) * (terms as f32).sqrt() + 1e-6,
            1e-6,
            "f32 sums in any order; half-precision activations may meet weights rounded to their type",
        ),
        Class::QuantizedProduct { terms } => of(
            6e-3 * (terms as f32).sqrt(),
            1e-2,
            "8-bit activations err by 1/254 of their block's largest value, at random signs",
        ),
        Class::RoundedProduct { terms } => of(
            // Of values up to 1 spread evenly, half err by up to 1/32, a quarter by up to 1/64, ...: 0.0136 at the root
            // mean square, times weights of 0.5. Six times that.
            4.1e-2 * (terms as f32).sqrt(),
            1e-2,
            "8-bit floats have three bits behind the leading one: activations err by up to a sixteenth, at random \
             signs",
        ),
        Class::Attention => of(
            1e-5 + 2.0 * half_roundoff(dtype),
            1e-5,
            "f32 softmax in any order; half-precision backends round the probabilities to their type",
        ),
        Class::AttentionOver { kv } => of(
            1e-5 + 2.0 * half_roundoff(dtype).max(half_roundoff(kv)),
            1e-5,
            "f32 softmax in any order; queries and probabilities may meet a half-precision cache in its type",
        ),
        Class::AttentionOfRoundedKeys { kv: DType::U4 } => of(
            5.0 / 32.0,
            1e-2,
            "a key's element between two codes, a fifteenth of the head's span apart (0.37 of 5.5 at a root mean \
             square of 1.15), may fall either way: that is five times E4M3's distance, and so is what a few of 64 move",
        ),
        Class::AttentionOfRoundedKeys { .. } => of(
            1.0 / 32.0,
            1e-2,
            "a key's element between two codes, 1/16 of it apart, may fall either way: a few of 64 move a score by up \
             to a hundredth",
        ),
        Class::Logprob => of(2e-5, 2e-6, "logsumexp in f32 over the vocabulary"),
    }
}

/// The roundoff of a half type, 0 for f32: what a backend that computes in it adds.
fn half_roundoff(dtype: DType) -> f32 {
    match dtype {
        DType::F16 | DType::BF16 => unit_roundoff(dtype),
        _ => 0.0,
    }
}
