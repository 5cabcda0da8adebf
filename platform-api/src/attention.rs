//! Attention backends of a platform: which there are, what each accepts, and what its plan for given bounds needs.
//!
//! The op itself is [`crate::ops::Attention`], with [`crate::ops::KvWrite`] for the same backend's page layout; both
//! are prepared and encoded like any op. The layout inside a KV block is the backend's own; blocks are addressable as
//! bytes. A backend may also run [`LatentAttention`], with [`crate::ops::LatentWrite`].

use crate::ops::{Attention, LatentAttention};
use crate::status::{Error, Result};

/// An attention backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionBackendInfo {
    /// Name for `--attention-backend`.
    pub name: String,
    /// The engine takes the highest that supports the spec.
    pub priority: i32,
    /// Block sizes (tokens) it takes; empty: any multiple of 8.
    pub block_sizes: Vec<u32>,
}

/// What a backend needs for a spec and its bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttentionPlan {
    /// Bytes of one KV block of one layer: keys and values of `block_size` tokens.
    pub block_bytes: u64,
    /// Scratch bytes at the bounds (also in the prepared op's info).
    pub scratch_bytes: u64,
    /// Decode steps can be recorded.
    pub record_decode: bool,
    /// Mixed steps of up to this many tokens can be recorded; 0: none.
    pub record_mixed_tokens: u32,
}

/// The attention backends of a device. An index is a position in [`AttentionRegistry::backends`].
pub trait AttentionRegistry: Send + Sync {
    /// All backends; none where the platform has no attention.
    fn backends(&self) -> Vec<AttentionBackendInfo>;

    /// Whether `spec.backend` runs `spec`.
    ///
    /// # Errors
    /// `Unsupported` with **all** reasons, one a line; `NotFound` for the index.
    fn support(&self, spec: &Attention) -> Result<()>;

    /// The plan of `spec.backend` for `spec` and its bounds.
    ///
    /// # Errors
    /// As [`AttentionRegistry::support`].
    fn plan(&self, spec: &Attention) -> Result<AttentionPlan>;

    /// Whether `spec.backend` runs `spec`; of a registry that does not say, none does.
    ///
    /// # Errors
    /// As [`AttentionRegistry::support`].
    fn support_latent(&self, _: &LatentAttention) -> Result<()> {
        Err(no_latent())
    }

    /// The plan of `spec.backend` for `spec` and its bounds.
    ///
    /// # Errors
    /// As [`AttentionRegistry::support`].
    fn plan_latent(&self, _: &LatentAttention) -> Result<AttentionPlan> {
        Err(no_latent())
    }
}

fn no_latent() -> Error {
    Error::unsupported("this platform has no latent attention")
}

/// What a platform without attention has.
pub struct NoAttention;

impl AttentionRegistry for NoAttention {
    fn backends(&self) -> Vec<AttentionBackendInfo> {
        Vec::new()
    }

    fn support(&self, _: &Attention) -> Result<()> {
        Err(Error::unsupported("this platform has no attention"))
    }

    fn plan(&self, _: &Attention) -> Result<AttentionPlan> {
        Err(Error::unsupported("this platform has no attention"))
    }
}
