//! Copies of KV blocks between the device and host memory, as a plan asks for them. They are ops of the step's own
//! queue, so a step that reads a block waits for its copy on the device.

use std::time::Instant;

use halyard_scheduler::{BlockId, HostBlockId, HostCopy, SchedulerOutput};

use crate::device_model::DeviceModel;
use crate::error::RunnerError;
use crate::host_memory::OFFLOADING_SIZE;
use crate::host_tier::HostTier;
use crate::scratch::PATIENCE;

/// Which way blocks go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToHost,
    ToDevice,
}

impl DeviceModel {
    /// Submits the copies of a plan, before its step: blocks to the host, then blocks from there.
    ///
    /// # Errors
    /// Errors of the device; a plan with copies where there is no second tier.
    pub(crate) fn copy_host_blocks(&mut self, plan: &SchedulerOutput) -> Result<(), RunnerError> {
        if plan.host_stores.is_empty() && plan.host_loads.is_empty() {
            return Ok(());
        }
        let Some(tier) = self.host_tier.clone() else {
            return Err(RunnerError::Internal(
                "a plan copies blocks to host memory, of which there is none",
            ));
        };
        self.copy_blocks(&tier, &plan.host_stores, Way::ToHost)?;
        self.copy_blocks(&tier, &plan.host_loads, Way::ToDevice)?;
        Ok(())
    }

    /// Submits the copies; the last submit's number, 0 without copies.
    fn copy_blocks(&mut self, tier: &HostTier, copies: &[HostCopy], way: Way) -> Result<u64, RunnerError> {
        let copier = &tier.copier;
        let mut last = 0;
        for copies in copies.chunks(copier.capacity()) {
            let on_device = copies.iter().map(|copy| copy.block.0);
            let on_host = copies.iter().map(|copy| copy.host.0);
            let (of_device, of_host) = match way {
                Way::ToHost => (&copier.from, &copier.to),
                Way::ToDevice => (&copier.to, &copier.from),
            };
            self.begin_writes();
            self.write_words(of_device, on_device);
            self.write_words(of_host, on_host);
            self.submit_writes()?;
            last = self.submit_once(|_, encoder| {
                for (device, host) in tier.device.iter().zip(&tier.host) {
                    let (source, out) = match way {
                        Way::ToHost => (*device, *host),
                        Way::ToDevice => (*host, *device),
                    };
                    copier.encode(encoder, copies.len() as u32, source, out)?;
                }
                Ok(())
            })?;
        }
        Ok(last)
    }

    /// Copies a block to host memory and back into another one, and compares: before any request, as a platform whose
    /// ops do not read host memory in place would give wrong answers and no error.
    ///
    /// # Errors
    /// The option, with what came back; errors of the device.
    pub(crate) fn check_host_tier(&mut self) -> Result<(), RunnerError> {
        let Some(tier) = self.host_tier.clone() else {
            return Ok(());
        };
        // The last page slot, whose buffers stand for all of them.
        let (Some(pages), Some(page), Some(host)) = (self.kv_pages.last(), tier.device.last(), tier.buffers.last())
        else {
            return Ok(());
        };
        let pages = pages.clone();
        if page.shape[0] < 2 {
            return Ok(());
        }
        let block_bytes = u64::from(page.shape[1]) * page.dtype().bytes() as u64;
        // Differs at every place and in every word.
        let pattern: Vec<u8> = (0..block_bytes).map(|i| (i * 131 + i / 256 * 7 + 1) as u8).collect();
        pages.write(0, &pattern)?;
        let copy = |block| HostCopy {
            block: BlockId(block),
            host: HostBlockId(0),
        };
        self.copy_blocks(&tier, &[copy(0)], Way::ToHost)?;
        let last = self.copy_blocks(&tier, &[copy(1)], Way::ToDevice)?;
        let start = Instant::now();
        self.wait_done(last, || start.elapsed() > PATIENCE)?;
        let mut found = vec![0; block_bytes as usize];
        let mut came_back = true;
        host.read(0, &mut found)?;
        came_back &= found == pattern;
        pages.read(block_bytes, &mut found)?;
        came_back &= found == pattern;
        let zeros = vec![0; block_bytes as usize];
        pages.write(0, &zeros)?;
        pages.write(block_bytes, &zeros)?;
        match came_back {
            true => Ok(()),
            false => Err(RunnerError::Config {
                name: OFFLOADING_SIZE,
                message: format!(
                    "a KV block that {} copied to host memory and back is another one; leave the option out",
                    self.device().info().name
                ),
            }),
        }
    }
}
