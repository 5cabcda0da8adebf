//! The second tier of the prefix cache on a device: KV blocks in host memory, and the ops that copy them. When they are
//! copied: `host_copies`. It does not decide which block lies where: the scheduler does.
//!
//! A copy is `gather_rows` into device memory and `scatter_rows` out of it: two ops a page slot for all blocks of a
//! step, which every platform that runs a model's head has. Host memory is [`BufferKind::HostVisible`], which ops read
//! and write in place.

use std::sync::Arc;

use halyard_platform_api::ops::{GatherRows, ScatterRows};
use halyard_platform_api::{Buffer, BufferKind, DType, Device, Encoder, OpSpec, PreparedOp, Tensor};

use crate::config::CacheConfig;
use crate::error::RunnerError;
use crate::host_memory::{OFFLOADING_SIZE, show_bytes};
use crate::plan::Plan;

/// Device memory between the two ops of a copy: blocks of this many bytes, of one page slot, are under way at once.
const STAGING_BYTES: u64 = 32 << 20;
/// Most blocks that are copied by one op.
const MAX_COPIES: u64 = 1024;

/// Blocks of host memory that all ranks together have room for; 0: there is no second tier.
///
/// # Errors
/// A size that holds no block, or more than buffers of the platform hold; no prefix cache.
pub(crate) fn num_blocks(cache: &CacheConfig, plan: &Plan, device: &dyn Device) -> Result<u32, RunnerError> {
    let bytes = cache.kv_offloading_bytes;
    if bytes == 0 {
        return Ok(0);
    }
    let refuse = |message| {
        let name = OFFLOADING_SIZE;
        Err(RunnerError::Config { name, message })
    };
    if !cache.enable_prefix_caching {
        return refuse("it keeps what the prefix cache loses, and prefix caching is off; leave one out".to_string());
    }
    let (page_slots, ranks) = (u64::from(plan.kv.page_slots), u64::from(plan.options.shard.size));
    let page_bytes = plan.block_bytes * page_slots * ranks;
    let blocks = bytes / page_bytes.max(1);
    let size = show_bytes(bytes);
    if blocks == 0 {
        return refuse(format!(
            "{size} hold no KV block, which takes {page_bytes} bytes over {ranks} devices; give at least that, or 0"
        ));
    }
    let info = device.info();
    let per_buffer = info.max_buffer_bytes.min(info.max_binding_bytes) / plan.block_bytes.max(1);
    let most = per_buffer.min(1 << 30);
    if blocks > most {
        return refuse(format!(
            "{size} are {blocks} KV blocks, and a buffer of {} holds {most}; give at most {}",
            info.name,
            show_bytes(most * page_bytes)
        ));
    }
    Ok(blocks as u32)
}

/// The ops of a copy, and the device memory that they need.
pub(crate) struct BlockCopier {
    gather: Arc<dyn PreparedOp>,
    scatter: Arc<dyn PreparedOp>,
    dtype: DType,
    /// Elements of a block.
    width: u32,
    /// \[N, width\].
    staging: Tensor,
    /// Which block each copy reads, \[N\] i32, and which one it writes.
    pub(crate) from: Tensor,
    pub(crate) to: Tensor,
    _buffers: Vec<Arc<dyn Buffer>>,
}

impl BlockCopier {
    /// Prepares copies of blocks of `block_bytes`.
    ///
    /// # Errors
    /// A platform without the ops, by name and reason; memory that is short.
    pub(crate) fn prepare(device: &dyn Device, block_bytes: u64) -> Result<BlockCopier, RunnerError> {
        let dtype = match block_bytes.is_multiple_of(4) {
            true => DType::I32,
            false => DType::U8,
        };
        let width = (block_bytes / dtype.bytes() as u64) as u32;
        let op = |spec: OpSpec| {
            if let Err(why) = device.ops().support(&spec) {
                let message = format!(
                    "{} has no op {} for KV blocks ({}); leave the option out",
                    device.info().name,
                    spec.name(),
                    why.message
                );
                let name = OFFLOADING_SIZE;
                return Err(RunnerError::Config { name, message });
            }
            Ok(device.ops().prepare(&spec)?)
        };
        let (gather, scatter) = (
            op(GatherRows { width, dtype }.into())?,
            op(ScatterRows { width, dtype }.into())?,
        );
        let copies = (STAGING_BYTES / block_bytes.max(1)).clamp(1, MAX_COPIES) as u32;
        let mut buffers = Vec::new();
        let mut tensor = |dtype: DType, shape: &[u32]| -> Result<Tensor, RunnerError> {
            let elements: u64 = shape.iter().map(|&d| u64::from(d)).product();
            let buffer = device.create_buffer(elements * dtype.bytes() as u64, BufferKind::Device)?;
            let tensor = Tensor::contiguous(buffer.id(), 0, dtype, shape);
            buffers.push(buffer);
            Ok(tensor)
        };
        let staging = tensor(dtype, &[copies, width])?;
        let (from, to) = (tensor(DType::I32, &[copies])?, tensor(DType::I32, &[copies])?);
        Ok(BlockCopier {
            gather,
            scatter,
            dtype,
            width,
            staging,
            from,
            to,
            _buffers: buffers,
        })
    }

    /// Most scratch of the ops.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        let of = |op: &Arc<dyn PreparedOp>| op.info().scratch_bytes;
        of(&self.gather).max(of(&self.scatter))
    }

    /// Most blocks that are copied at once.
    pub(crate) fn capacity(&self) -> usize {
        self.staging.shape[0] as usize
    }

    /// Copies rows of one tensor to rows of another; `from` and `to` say which.
    pub(crate) fn encode(
        &self,
        encoder: &mut dyn Encoder,
        count: u32,
        source: Tensor,
        out: Tensor,
    ) -> Result<(), RunnerError> {
        let staging = self.staging.rows(0, count);
        encoder.encode(self.gather.id(), &[source, self.from.rows(0, count), staging])?;
        encoder.encode(self.scatter.id(), &[staging, self.to.rows(0, count), out])?;
        Ok(())
    }
}

/// KV blocks in host memory beside those on the device.
pub(crate) struct HostTier {
    pub(crate) copier: BlockCopier,
    /// Of each page slot \[blocks, width\], on the device and in host memory.
    pub(crate) device: Vec<Tensor>,
    pub(crate) host: Vec<Tensor>,
    pub(crate) buffers: Vec<Arc<dyn Buffer>>,
}

impl HostTier {
    /// Allocates `num_blocks` of host memory beside the device's pages, one tensor a page slot.
    ///
    /// # Errors
    /// Host memory that is short.
    pub(crate) fn allocate(
        device: &dyn Device,
        copier: BlockCopier,
        pages: &[Tensor],
        num_blocks: u32,
    ) -> Result<HostTier, RunnerError> {
        let (dtype, width) = (copier.dtype, copier.width);
        let (mut host, mut buffers) = (Vec::new(), Vec::new());
        for _ in pages {
            let bytes = u64::from(num_blocks) * u64::from(width) * dtype.bytes() as u64;
            let buffer = device.create_buffer(bytes, BufferKind::HostVisible)?;
            host.push(Tensor::contiguous(buffer.id(), 0, dtype, &[num_blocks, width]));
            buffers.push(buffer);
        }
        let as_words = |page: &Tensor| Tensor::contiguous(page.buffer_id(), 0, dtype, &[page.shape[0], width]);
        Ok(HostTier {
            device: pages.iter().map(as_words).collect(),
            copier,
            host,
            buffers,
        })
    }
}
