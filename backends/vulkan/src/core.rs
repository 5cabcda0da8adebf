//! The logical device and its queues, which memory, streams and pipelines use. The last holder destroys it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;
use halyard_platform_api::Result;

use crate::bfloat16;
use crate::error::Check;
use crate::instance::{Vulkan, vulkan};
use crate::physical::Physical;
use crate::wide;

/// Queues asked of the device: streams share them when there are more.
const MAX_QUEUES: u32 = 8;

/// An open device.
pub(crate) struct Core {
    pub(crate) vulkan: &'static Vulkan,
    pub(crate) physical: Physical,
    pub(crate) device: ash::Device,
    pub(crate) memory_types: vk::PhysicalDeviceMemoryProperties,
    queues: Vec<Mutex<vk::Queue>>,
    next_queue: AtomicUsize,
}

impl Core {
    pub(crate) fn open(physical: Physical) -> Result<Core> {
        let vulkan = vulkan()?;
        let count = physical.num_queues.min(MAX_QUEUES);
        let priorities = vec![1.0; count as usize];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(physical.queue_family)
            .queue_priorities(&priorities)];
        let core = vk::PhysicalDeviceFeatures::default().shader_int64(true);
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
            .storage_buffer8_bit_access(true)
            // What cooperative matrices need besides.
            .shader_float16(physical.matrices.any())
            .vulkan_memory_model(physical.matrices.any())
            .scalar_block_layout(true)
            .buffer_device_address(true)
            .timeline_semaphore(true);
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(true)
            .compute_full_subgroups(physical.full_subgroups || physical.passes_in_vectors);
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut bfloat = bfloat16::Features::default();
        (bfloat.ty, bfloat.cooperative_matrix) = (vk::TRUE, vk::TRUE);
        let mut wide_matrices = wide::Features::needed();
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true);
        let mut extensions = Vec::new();
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_features(&core)
            .push_next(&mut v11)
            .push_next(&mut v12);
        if physical.required_subgroup.is_some() || physical.full_subgroups || physical.passes_in_vectors {
            if physical.has_subgroup_extension {
                extensions.push(ash::ext::subgroup_size_control::NAME.as_ptr());
            }
            info = info.push_next(&mut sizes);
        }
        if physical.has_memory_budget {
            extensions.push(ash::ext::memory_budget::NAME.as_ptr());
        }
        if physical.matrices.any() {
            extensions.push(ash::khr::cooperative_matrix::NAME.as_ptr());
            info = info.push_next(&mut matrices);
        }
        if physical.matrices.bf16 {
            extensions.push(bfloat16::NAME.as_ptr());
            info = info.push_next(&mut bfloat);
        }
        if physical.matrices.any() && !physical.wide.is_empty() {
            extensions.push(wide::NAME.as_ptr());
            info = info.push_next(&mut wide_matrices);
        }
        if physical.dots.native {
            if physical.dots.by_extension {
                extensions.push(ash::khr::shader_integer_dot_product::NAME.as_ptr());
            }
            info = info.push_next(&mut dots);
        }
        let info = info.enabled_extension_names(&extensions);
        // SAFETY: the device has all that is asked; the structures live through the call.
        let device = unsafe { vulkan.instance.create_device(physical.handle, &info, None) }.check("vkCreateDevice")?;
        let queues = (0..count)
            // SAFETY: asked for above.
            .map(|index| Mutex::new(unsafe { device.get_device_queue(physical.queue_family, index) }))
            .collect();
        // SAFETY: the device is of this instance.
        let memory_types = unsafe { vulkan.instance.get_physical_device_memory_properties(physical.handle) };
        Ok(Core {
            vulkan,
            physical,
            device,
            memory_types,
            queues,
            next_queue: AtomicUsize::new(0),
        })
    }

    /// A queue for one more stream.
    pub(crate) fn assign_queue(&self) -> usize {
        self.next_queue.fetch_add(1, Ordering::Relaxed) % self.queues.len()
    }

    /// A queue, alone.
    pub(crate) fn queue(&self, index: usize) -> MutexGuard<'_, vk::Queue> {
        self.queues[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: every object made of this device held it and has been destroyed; waiting covers what a lost device
        // left.
        unsafe {
            let _ = self.device.device_wait_idle();
            self.device.destroy_device(None);
        }
    }
}
