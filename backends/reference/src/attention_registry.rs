//! The two attention backends and the layout of their KV blocks. `direct` materialises all scores and takes the
//! softmax, as the formula reads; `online` walks the keys once. They share nothing but the formula, so each checks the
//! other.

use halyard_platform_api::ops::{Attention, LatentAttention};
use halyard_platform_api::{AttentionBackendInfo, AttentionPlan, AttentionRegistry, DType, Error, Result, Status};

use crate::element::{FLOATS, KV_TYPES, LATENT_TYPES};
use crate::held;
use crate::support::{Reasons, require_in};

/// Index of the backend that materialises the scores.
pub(crate) const DIRECT: u32 = 0;
/// Index of the backend with the online softmax.
pub(crate) const ONLINE: u32 = 1;
const NAMES: [&str; 2] = ["direct", "online"];

/// Where keys and values lie in a KV block.
///
/// `direct` (backend 0): \[2, block_size, num_kv_heads, head_dim\], keys then values. `online` (backend 1):
/// \[num_kv_heads, 2, block_size, head_dim\], head by head. That they differ keeps the engine from relying on either.
#[derive(Clone, Copy, Debug)]
pub struct KvLayout {
    /// Index of the attention backend.
    pub backend: u32,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Type held.
    pub kv: DType,
}

impl KvLayout {
    /// Bytes of one head's values of one token.
    pub fn head_bytes(&self) -> usize {
        held::head_bytes(self.kv, self.head_dim)
    }

    /// Bytes of a block: keys and values.
    pub fn block_bytes(&self) -> usize {
        2 * self.block_size * self.num_kv_heads * self.head_bytes()
    }

    /// First byte of the key (`part` 0) or value (`part` 1) of KV head `head` at `token` of a block.
    pub fn offset(&self, part: usize, token: usize, head: usize) -> usize {
        let index = if self.backend == ONLINE {
            (head * 2 + part) * self.block_size + token
        } else {
            (part * self.block_size + token) * self.num_kv_heads + head
        };
        index * self.head_bytes()
    }
}

/// Where latents and keys lie in a block of latent attention.
///
/// `direct` (backend 0): \[block_size, latent_dim + rope_dim\], each token's latent and then its key. `online` (backend
/// 1): \[block_size, rope_dim\] keys, then \[block_size, latent_dim\] latents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentLayout {
    /// Index of the attention backend.
    pub backend: u32,
    /// Values of a latent, and of a key.
    pub dims: [usize; 2],
    /// Tokens of a block.
    pub block_size: usize,
    /// Type held.
    pub kv: DType,
}

impl LatentLayout {
    /// Bytes of a latent (`part` 0) or a key (`part` 1).
    pub(crate) fn part_bytes(&self, part: usize) -> usize {
        self.dims[part] * self.kv.bytes()
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_size * (self.part_bytes(0) + self.part_bytes(1))
    }

    /// First byte of the latent (`part` 0) or the key (`part` 1) of `token` of a block.
    pub(crate) fn offset(&self, part: usize, token: usize) -> usize {
        let [latent, key] = [self.part_bytes(0), self.part_bytes(1)];
        match (self.backend, part) {
            (ONLINE, 0) => self.block_size * key + token * latent,
            (ONLINE, _) => token * key,
            (_, part) => token * (latent + key) + part * latent,
        }
    }
}

/// The contract's attention registry.
pub(crate) struct ReferenceAttention;

impl AttentionRegistry for ReferenceAttention {
    fn backends(&self) -> Vec<AttentionBackendInfo> {
        NAMES
            .iter()
            .zip([1, 0])
            .map(|(name, priority)| AttentionBackendInfo {
                name: (*name).to_string(),
                priority,
                block_sizes: Vec::new(),
            })
            .collect()
    }

    fn support(&self, spec: &Attention) -> Result<()> {
        check(spec)
    }

    fn plan(&self, spec: &Attention) -> Result<AttentionPlan> {
        check(spec)?;
        let layout = KvLayout {
            backend: spec.backend,
            num_kv_heads: spec.num_kv_heads as usize,
            head_dim: spec.head_dim as usize,
            block_size: spec.block_size as usize,
            kv: spec.kv,
        };
        Ok(AttentionPlan {
            block_bytes: layout.block_bytes() as u64,
            scratch_bytes: 0,
            record_decode: true,
            record_mixed_tokens: spec.max_tokens,
        })
    }

    fn support_latent(&self, spec: &LatentAttention) -> Result<()> {
        check_latent(spec)
    }

    fn plan_latent(&self, spec: &LatentAttention) -> Result<AttentionPlan> {
        check_latent(spec)?;
        let layout = LatentLayout {
            backend: spec.backend,
            dims: [spec.latent_dim as usize, spec.rope_dim as usize],
            block_size: spec.block_size as usize,
            kv: spec.kv,
        };
        Ok(AttentionPlan {
            block_bytes: layout.block_bytes() as u64,
            scratch_bytes: 0,
            record_decode: true,
            record_mixed_tokens: spec.max_tokens,
        })
    }
}

/// Checks an attention spec.
///
/// # Errors
/// `NotFound` for the backend's index; `Unsupported` with all reasons.
pub(crate) fn check(spec: &Attention) -> Result<()> {
    check_backend(spec.backend)?;
    let mut reasons = Reasons::default();
    require_in(&mut reasons, "act", spec.act, &FLOATS);
    require_in(&mut reasons, "kv", spec.kv, &KV_TYPES);
    reasons.require(spec.head_dim > 0, || "head_dim is 0".to_string());
    reasons.require(spec.block_size > 0, || "block_size is 0".to_string());
    reasons.require(
        spec.num_kv_heads > 0 && spec.num_heads.is_multiple_of(spec.num_kv_heads.max(1)),
        || {
            format!(
                "num_heads {} is not a multiple of num_kv_heads {}",
                spec.num_heads, spec.num_kv_heads
            )
        },
    );
    reasons.into_result("attention")
}

/// Checks a spec of latent attention.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_latent(spec: &LatentAttention) -> Result<()> {
    check_backend(spec.backend)?;
    let mut reasons = Reasons::default();
    require_in(&mut reasons, "act", spec.act, &FLOATS);
    require_in(&mut reasons, "kv", spec.kv, &LATENT_TYPES);
    let sizes = [
        ("num_heads", spec.num_heads),
        ("latent_dim", spec.latent_dim),
        ("rope_dim", spec.rope_dim),
        ("block_size", spec.block_size),
    ];
    for (name, size) in sizes {
        reasons.require(size > 0, || format!("{name} is 0"));
    }
    reasons.into_result("latent_attention")
}

/// Checks an attention backend's index.
///
/// # Errors
/// `NotFound`.
pub(crate) fn check_backend(backend: u32) -> Result<()> {
    if backend == DIRECT || backend == ONLINE {
        return Ok(());
    }
    Err(Error::new(
        Status::NotFound,
        format!(
            "attention backend {backend}: there are {} ({})",
            NAMES.len(),
            NAMES.join(", ")
        ),
    ))
}
