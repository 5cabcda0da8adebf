//! A command buffer being recorded: dispatches, copies and fills in order, each behind a barrier that makes earlier
//! writes visible.
//!
//! A barrier precedes every command but the first, unless the caller marks the command as independent
//! ([`Recorder::mark_independent`]). Only the caller knows the operands: parameters are plain addresses, which do not
//! say whether a kernel reads or writes there.

use std::sync::Arc;

use ash::vk;
use halyard_gpu::{DevicePtr, Param, Pinned};
use halyard_platform_api::{Error, Result};

use crate::core::Core;
use crate::error::Check;
use crate::memory::{Location, Memory};
use crate::params::Block;

/// Bytes of a chunk of parameters that do not fit the push constants.
const CHUNK_BYTES: u64 = 64 << 10;
/// Most regions of one copy command.
pub(crate) const MAX_REGIONS: usize = 4096;

/// The objects that a launch binds.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) pipeline: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
}

/// A command buffer that takes commands.
pub(crate) struct Recorder {
    core: Arc<Core>,
    commands: vk::CommandBuffer,
    pipeline: vk::Pipeline,
    /// Whether something may have written since the last barrier.
    dirty: bool,
    /// Whether the next command needs no barrier.
    is_independent: bool,
    /// Barriers between commands so far.
    pub(crate) barriers: u32,
    /// Commands so far.
    pub(crate) count: u32,
    /// Parameter memory: filled ones, the last one in use.
    chunks: Vec<Pinned>,
    used: u64,
}

impl Recorder {
    /// Begins `commands`, which is in its initial state.
    pub(crate) fn begin(
        core: &Arc<Core>,
        commands: vk::CommandBuffer,
        usage: vk::CommandBufferUsageFlags,
    ) -> Result<Recorder> {
        let info = vk::CommandBufferBeginInfo::default().flags(usage);
        // SAFETY: the caller owns it and its pool.
        unsafe { core.device.begin_command_buffer(commands, &info) }.check("vkBeginCommandBuffer")?;
        Ok(Recorder {
            core: core.clone(),
            commands,
            pipeline: vk::Pipeline::null(),
            dirty: true,
            is_independent: false,
            barriers: 0,
            count: 0,
            chunks: Vec::new(),
            used: 0,
        })
    }

    /// Ends it: the command buffer and the parameter memory that it names.
    pub(crate) fn end(self) -> Result<(vk::CommandBuffer, Vec<Pinned>)> {
        // SAFETY: in recording.
        unsafe { self.core.device.end_command_buffer(self.commands) }.check("vkEndCommandBuffer")?;
        Ok((self.commands, self.chunks))
    }

    /// The next command needs no barrier.
    pub(crate) fn mark_independent(&mut self) {
        self.is_independent = true;
    }

    fn order(&mut self) {
        let independent = std::mem::take(&mut self.is_independent);
        if !std::mem::replace(&mut self.dirty, true) || independent {
            return;
        }
        self.barriers += 1;
        use vk::{AccessFlags as Access, PipelineStageFlags as Stage};
        let stages = Stage::COMPUTE_SHADER | Stage::TRANSFER;
        let writes = Access::SHADER_WRITE | Access::TRANSFER_WRITE;
        let all = writes | Access::SHADER_READ | Access::TRANSFER_READ;
        self.barrier((stages, writes), (stages, all));
    }

    fn barrier(
        &self,
        (from, written): (vk::PipelineStageFlags, vk::AccessFlags),
        (to, used): (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(written)
            .dst_access_mask(used)];
        // SAFETY: in recording.
        unsafe {
            let none = vk::DependencyFlags::empty();
            self.core
                .device
                .cmd_pipeline_barrier(self.commands, from, to, none, &barrier, &[], &[]);
        }
    }

    /// Makes everything so far visible to the host, once its end is waited for.
    pub(crate) fn show_host(&self) {
        use vk::{AccessFlags as Access, PipelineStageFlags as Stage};
        self.barrier(
            (
                Stage::COMPUTE_SHADER | Stage::TRANSFER,
                Access::SHADER_WRITE | Access::TRANSFER_WRITE,
            ),
            (Stage::HOST, Access::HOST_READ | Access::HOST_WRITE),
        );
    }

    /// Appends a launch.
    pub(crate) fn launch(&mut self, memory: &Memory, bound: Bound, grid: [u32; 3], params: &[Param<'_>]) -> Result<()> {
        let (most, split) = (self.core.physical.max_group_count, self.core.physical.splits_grids());
        if let Some(axis) = (0..3).find(|&axis| grid[axis] > most[axis] && !split) {
            return Err(Error::unsupported(format!(
                "a grid of {grid:?} workgroups; the device allows {} along axis {axis}",
                most[axis]
            )));
        }
        let block = Block::of(params)?;
        let indirect = match block.fits_push() {
            true => None,
            false => Some(self.parameter_memory(memory, block.bytes())?.to_le_bytes()),
        };
        self.order();
        self.count += 1;
        let constants = indirect.as_ref().map_or(block.bytes(), |address| &address[..]);
        let device = &self.core.device;
        // SAFETY: in recording; pipeline and layout live as long as the driver.
        unsafe {
            if self.pipeline != bound.pipeline {
                device.cmd_bind_pipeline(self.commands, vk::PipelineBindPoint::COMPUTE, bound.pipeline);
                self.pipeline = bound.pipeline;
            }
            if !constants.is_empty() {
                device.cmd_push_constants(self.commands, bound.layout, vk::ShaderStageFlags::COMPUTE, 0, constants);
            }
        }
        self.dispatch(grid);
        Ok(())
    }

    /// The workgroups, in as many dispatches as the device's limits ask for; pipelines are made for that.
    fn dispatch(&self, grid: [u32; 3]) {
        let (device, most) = (&self.core.device, self.core.physical.max_group_count);
        if !self.core.physical.splits_grids() || (0..3).all(|axis| grid[axis] <= most[axis]) {
            // SAFETY: in recording, with pipeline and parameters bound.
            unsafe { device.cmd_dispatch(self.commands, grid[0], grid[1], grid[2]) };
            return;
        }
        let parts = |axis: usize| {
            (0..grid[axis])
                .step_by(most[axis] as usize)
                .map(move |base| (base, most[axis].min(grid[axis] - base)))
        };
        for (z, depth) in parts(2) {
            for (y, height) in parts(1) {
                for (x, width) in parts(0) {
                    // SAFETY: as above; the parts do not depend on each other, as workgroups never do.
                    unsafe { device.cmd_dispatch_base(self.commands, x, y, z, width, height, depth) };
                }
            }
        }
    }

    /// A copy of the parameters that the device can read; its address.
    fn parameter_memory(&mut self, memory: &Memory, bytes: &[u8]) -> Result<DevicePtr> {
        let length = (bytes.len() as u64).next_multiple_of(16);
        if self.chunks.is_empty() || self.used + length > CHUNK_BYTES {
            self.chunks.push(memory.allocate_pinned(CHUNK_BYTES.max(length))?);
            self.used = 0;
        }
        let chunk = self.chunks[self.chunks.len() - 1];
        // SAFETY: the bytes fit into the chunk, and the device reads it only after the submit.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), chunk.host.add(self.used as usize), bytes.len()) };
        let address = chunk.device + self.used;
        self.used += length;
        Ok(address)
    }

    /// Appends copies between two buffers.
    pub(crate) fn copy(&mut self, from: vk::Buffer, to: vk::Buffer, regions: &[vk::BufferCopy]) {
        self.order();
        self.count += 1;
        // SAFETY: in recording; the caller checked the regions.
        unsafe { self.core.device.cmd_copy_buffer(self.commands, from, to, regions) };
    }

    /// Appends a fill of whole words with `value` in each byte.
    pub(crate) fn fill(&mut self, to: Location, bytes: u64, value: u8) {
        self.order();
        self.count += 1;
        let word = u32::from_le_bytes([value; 4]);
        // SAFETY: in recording; the caller checked the range and its alignment.
        unsafe {
            self.core
                .device
                .cmd_fill_buffer(self.commands, to.buffer, to.offset, bytes, word);
        }
    }

    /// Appends the write of a word that the host watches: all that came before is visible to the host first.
    pub(crate) fn write_value(&mut self, to: Location, value: u64) {
        self.order();
        self.show_host();
        self.count += 1;
        // SAFETY: in recording; the caller checked the range and its alignment.
        unsafe {
            self.core
                .device
                .cmd_update_buffer(self.commands, to.buffer, to.offset, &value.to_le_bytes());
        }
    }
}
