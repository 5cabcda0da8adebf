//! Rotary position embeddings: the description, the frequencies under each scaling, and the table of
//! cosines and sines that the `rope` op reads. Formulas: transformers `modeling_rope_utils.py`.
//!
//! Frequencies are rounded to f32 where Hugging Face rounds, so that angles agree at long positions.

use std::f64::consts::PI;
use std::path::Path;
use std::thread::available_parallelism;

use halyard_platform_api::ops::RopeStyle;

use super::limits::bad;
use crate::error::Result;

/// Least rows of a table that a thread is worth.
const ROWS_OF_A_THREAD: usize = 1024;

/// YaRN (Peng et al. 2023, arXiv 2309.00071).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// Context extension.
    pub factor: f64,
    /// Rotations above which a frequency stays.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by `factor`.
    pub beta_slow: f64,
    /// Positions that the model was trained with.
    pub original_max_position_embeddings: usize,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
    /// Round the bounds of the ramp to whole dimensions.
    pub truncate: bool,
}

/// LongRoPE (Ding et al. 2024, arXiv 2402.13753): one set of factors for contexts as long as the training's, and one
/// for longer ones. A sequence keeps the set that the table was made with, so that it does not change under its cache.
#[derive(Clone, Debug, PartialEq)]
pub struct LongScaling {
    /// Divisors of the frequencies, `rotary_dim / 2`, where no position is past the training's.
    pub short_factors: Vec<f32>,
    /// The same where there are such positions.
    pub long_factors: Vec<f32>,
    /// Positions that the model was trained with.
    pub original_max_position_embeddings: usize,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
}

/// How frequencies are stretched for contexts longer than the training's.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by `factor`.
    Linear {
        /// Context extension.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// Context extension.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are stretched fully.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` stay.
        high_freq_factor: f64,
        /// Positions that the model was trained with.
        original_max_position_embeddings: usize,
    },
    /// YaRN.
    Yarn(YarnScaling),
    /// Each frequency divided by its own factor (GGUF's `rope_freqs.weight`); `rotary_dim / 2` of them.
    Factors(Vec<f32>),
    /// LongRoPE.
    Long(LongScaling),
}

/// A factor of what is turned, by position: 1 + beta · ln(1 + ⌊position / length⌋) (Llama 4's scaling of queries,
/// `get_llama_4_attn_scale` of transformers).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// How fast the factor grows; at least 0.
    pub beta: f64,
    /// Positions over which it stays, at least 1.
    pub length: usize,
}

/// One rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeDescription {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Values of a head that turn; even. The others stay.
    pub rotary_dim: usize,
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Stretching.
    pub scaling: RopeScaling,
    /// A factor by position. It needs a rotary_dim of the whole head: what does not turn is not scaled.
    pub position_scale: Option<PositionScale>,
}

impl RopeDescription {
    pub(super) fn check(&self, path: &Path, head_dim: usize) -> Result<()> {
        if !(self.theta.is_finite() && self.theta > 1.0) {
            return Err(bad(path, "rope_theta", self.theta, "a number above 1".into()));
        }
        let fits = self.rotary_dim.is_multiple_of(2) && (2..=head_dim).contains(&self.rotary_dim);
        if !fits {
            let limit = format!("even, from 2 to head_dim, {head_dim}");
            return Err(bad(path, "rotary dimensions", self.rotary_dim, limit));
        }
        if let Some(scale) = self.position_scale {
            scale.check(path, self.rotary_dim, head_dim)?;
        }
        let factor = match &self.scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } => *factor,
            RopeScaling::Yarn(yarn) => yarn.factor,
            RopeScaling::Factors(factors) => {
                if factors.len() != self.rotary_dim / 2 {
                    let limit = format!("{} factors, one a pair", self.rotary_dim / 2);
                    return Err(bad(path, "rope frequency factors", factors.len(), limit));
                }
                f64::from(factors.iter().copied().fold(f32::INFINITY, f32::min))
            }
            RopeScaling::Long(long) => {
                for (field, factors) in [
                    ("short_factor", &long.short_factors),
                    ("long_factor", &long.long_factors),
                ] {
                    if factors.len() != self.rotary_dim / 2 {
                        let limit = format!("{} factors, one a pair", self.rotary_dim / 2);
                        return Err(bad(path, field, format!("{} factors", factors.len()), limit));
                    }
                }
                let factors = long.short_factors.iter().chain(&long.long_factors);
                let mut all = factors.map(|factor| f64::from(*factor)).chain([long.attention_factor]);
                all.find(|factor| !(factor.is_finite() && *factor > 0.0)).unwrap_or(1.0)
            }
        };
        let is_extension = matches!(self.scaling, RopeScaling::Linear { .. } | RopeScaling::Yarn(_));
        if is_extension && factor < 1.0 {
            return Err(bad(path, "rope scaling factor", factor, "at least 1".into()));
        }
        if !(factor.is_finite() && factor > 0.0) {
            return Err(bad(path, "rope scaling factor", factor, "a number above 0".into()));
        }
        if let RopeScaling::Llama3 {
            low_freq_factor,
            high_freq_factor,
            ..
        } = self.scaling
            && !(low_freq_factor > 0.0 && high_freq_factor > low_freq_factor)
        {
            let limit = format!("above low_freq_factor, {low_freq_factor}, which is above 0");
            return Err(bad(path, "high_freq_factor", high_freq_factor, limit));
        }
        Ok(())
    }

    /// The angle per position of each pair for positions below `max_positions`, `[rotary_dim / 2]`.
    #[must_use]
    pub fn inverse_frequencies(&self, max_positions: usize) -> Vec<f32> {
        let dim = self.rotary_dim as f64;
        let pairs = 0..self.rotary_dim / 2;
        let base: Vec<f32> = pairs
            .map(|i| {
                // Hugging Face divides and raises in f32.
                let exponent = (2 * i) as f32 / self.rotary_dim as f32;
                1.0 / self.theta.powf(f64::from(exponent)) as f32
            })
            .collect();
        match &self.scaling {
            RopeScaling::None => base,
            RopeScaling::Linear { factor } => base.iter().map(|f| f / *factor as f32).collect(),
            RopeScaling::Factors(factors) => base.iter().zip(factors).map(|(f, x)| f / x).collect(),
            RopeScaling::Long(long) => {
                let is_long = max_positions > long.original_max_position_embeddings;
                let factors = if is_long {
                    &long.long_factors
                } else {
                    &long.short_factors
                };
                base.iter().zip(factors).map(|(f, x)| f / x).collect()
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let original = *original_max_position_embeddings as f64;
                let stretch = |&f: &f32| {
                    let f = f64::from(f);
                    let wavelength = 2.0 * PI / f;
                    if wavelength < original / high_freq_factor {
                        return f as f32;
                    }
                    if wavelength > original / low_freq_factor {
                        return (f / factor) as f32;
                    }
                    let smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    ((1.0 - smooth) * f / factor + smooth * f) as f32
                };
                base.iter().map(stretch).collect()
            }
            RopeScaling::Yarn(yarn) => {
                let (low, high) = yarn.ramp(self.theta, dim);
                let blend = |(i, &f): (usize, &f32)| {
                    let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    let f = f64::from(f);
                    (f / yarn.factor * stretched + f * (1.0 - stretched)) as f32
                };
                base.iter().enumerate().map(blend).collect()
            }
        }
    }

    /// The factor of cosines and sines (YaRN's and LongRoPE's; else 1).
    #[must_use]
    pub fn attention_factor(&self) -> f32 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor as f32,
            RopeScaling::Long(long) => long.attention_factor as f32,
            _ => 1.0,
        }
    }

    /// The table of the `rope` op, row-major `[max_positions, rotary_dim]` f32: in each row the cosines
    /// of all pairs, then the sines.
    #[must_use]
    pub fn table(&self, max_positions: usize) -> Vec<f32> {
        let frequencies = self.inverse_frequencies(max_positions);
        let factor = self.attention_factor();
        let fill = |position: usize, row: &mut [f32]| {
            let factor = self.position_scale.map_or(factor, |scale| factor * scale.at(position));
            let (cosines, sines) = row.split_at_mut(frequencies.len());
            for ((cosine, sine), f) in cosines.iter_mut().zip(sines).zip(&frequencies) {
                // The angle is rounded to f32, as Hugging Face's is; its cosine is then exact to the last bit.
                let (s, c) = f64::from(position as f32 * f).sin_cos();
                (*cosine, *sine) = (c as f32 * factor, s as f32 * factor);
            }
        };
        let mut table = vec![0.0; max_positions * self.rotary_dim];
        // One thread would take a fifth of a start for the table of a long context.
        let threads = available_parallelism().map_or(1, |n| n.get());
        let rows = max_positions.div_ceil(threads).max(ROWS_OF_A_THREAD);
        std::thread::scope(|scope| {
            for (part, values) in table.chunks_mut(rows * self.rotary_dim).enumerate() {
                let fill = &fill;
                scope.spawn(move || {
                    for (row, values) in values.chunks_mut(self.rotary_dim).enumerate() {
                        fill(part * rows + row, values);
                    }
                });
            }
        });
        table
    }
}

impl PositionScale {
    /// The factor at `position`, rounded where Hugging Face rounds.
    fn at(self, position: usize) -> f32 {
        1.0 + self.beta as f32 * ((1 + position / self.length) as f32).ln()
    }

    fn check(self, path: &Path, rotary_dim: usize, head_dim: usize) -> Result<()> {
        if !(self.beta.is_finite() && self.beta >= 0.0) {
            return Err(bad(path, "llama_4_scaling_beta", self.beta, "at least 0".into()));
        }
        if self.length == 0 {
            let limit = "at least 1".into();
            return Err(bad(path, "original_max_position_embeddings", self.length, limit));
        }
        if rotary_dim != head_dim {
            let limit = format!("head_dim, {head_dim}, where queries are scaled by position");
            return Err(bad(path, "rotary dimensions", rotary_dim, limit));
        }
        Ok(())
    }
}

impl YarnScaling {
    /// First and last dimension of the ramp between kept and stretched frequencies.
    fn ramp(&self, theta: f64, dim: f64) -> (f64, f64) {
        let original = self.original_max_position_embeddings as f64;
        let dimension = |rotations: f64| dim * (original / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (dimension(self.beta_fast), dimension(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001; // As Hugging Face: a ramp of no width would divide by zero.
        }
        (low, high)
    }

    /// The default factor of cosines and sines for a context extension.
    #[must_use]
    pub fn default_attention_factor(factor: f64) -> f64 {
        Self::magnitude(factor, 1.0)
    }

    /// 0.1 · m · ln(factor) + 1 (`get_mscale`).
    pub(crate) fn magnitude(factor: f64, m: f64) -> f64 {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * m * factor.ln() + 1.0
        }
    }
}
