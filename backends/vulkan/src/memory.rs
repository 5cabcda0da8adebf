//! Device and pinned memory by address: each allocation is one buffer with memory of its own, and a map leads from any
//! address inside to buffer and offset, which copies need.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ash::vk;
use halyard_gpu::{DevicePtr, Pinned};
use halyard_platform_api::{Error, Result, Status};

use crate::core::Core;
use crate::error::Check;

/// What addresses are aligned to.
const ALIGNMENT: u64 = 256;
/// Sizes are rounded up to this: fills come in words, and vector loads may end behind the last value.
const ROUNDING: u64 = 64;

/// A buffer and its memory.
struct Block {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// From the buffer's start to the address that was given out.
    skip: u64,
    /// From there on.
    bytes: u64,
    /// What the allocation took of the device; 0 for host memory.
    counted: u64,
}

/// The allocations of a device.
pub(crate) struct Memory {
    core: Arc<Core>,
    blocks: RwLock<BTreeMap<DevicePtr, Block>>,
    used: AtomicU64,
}

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Device,
    Host,
}

/// A buffer and an offset in it.
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) buffer: vk::Buffer,
    pub(crate) offset: u64,
}

impl Memory {
    pub(crate) fn new(core: Arc<Core>) -> Memory {
        Memory {
            core,
            blocks: RwLock::default(),
            used: AtomicU64::new(0),
        }
    }

    /// Free and total bytes of the device.
    pub(crate) fn info(&self) -> (u64, u64) {
        let physical = &self.core.physical;
        let total = physical.facts.total_memory_bytes;
        let own = total.saturating_sub(self.used.load(Ordering::Relaxed));
        if !physical.has_memory_budget {
            return (own, total);
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the device is of this instance and has the extension.
        unsafe {
            let instance = &self.core.vulkan.instance;
            instance.get_physical_device_memory_properties2(physical.handle, &mut all);
        }
        let heaps = self.core.memory_types.memory_heaps_as_slice();
        let heap = (0..heaps.len())
            .filter(|&heap| heaps[heap].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
            .max_by_key(|&heap| heaps[heap].size);
        let free = heap.map_or(0, |heap| {
            budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap])
        });
        (free.min(own), total)
    }

    /// Device memory.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<DevicePtr> {
        let physical = &self.core.physical;
        if bytes > physical.max_allocation_bytes {
            return Err(Error::new(
                Status::OutOfMemory,
                format!(
                    "{bytes} bytes of device memory on {} asked; its driver allows {} in one allocation",
                    physical.facts.name, physical.max_allocation_bytes
                ),
            ));
        }
        let (free, total) = self.info();
        if bytes > free {
            return Err(Error::new(
                Status::OutOfMemory,
                format!(
                    "{bytes} bytes of device memory on {} asked ({free} of {total} free)",
                    physical.facts.name
                ),
            ));
        }
        let (address, _) = self.make(bytes, Place::Device)?;
        Ok(address)
    }

    /// Host memory that the device reads and writes in place.
    pub(crate) fn allocate_pinned(&self, bytes: u64) -> Result<Pinned> {
        let (device, host) = self.make(bytes, Place::Host)?;
        Ok(Pinned { host, device })
    }

    fn make(&self, bytes: u64, place: Place) -> Result<(DevicePtr, *mut u8)> {
        let core = &*self.core;
        let device = &core.device;
        let kind = match place {
            Place::Device => "device",
            Place::Host => "pinned host",
        };
        let rounded = bytes.max(1).next_multiple_of(ROUNDING);
        let name = |error: Error| Error {
            message: format!(
                "{bytes} bytes of {kind} memory on {} asked: {}",
                core.physical.facts.name, error.message
            ),
            ..error
        };
        // Some drivers align memory to less than the trait promises; only they pay for the gap.
        let mut slack = 0;
        loop {
            let block = self.try_make(rounded + slack, place).map_err(name)?;
            let info = vk::BufferDeviceAddressInfo::default().buffer(block.0);
            // SAFETY: a buffer with memory and with the usage for addresses.
            let start = unsafe { device.get_buffer_device_address(&info) };
            let address = start.next_multiple_of(ALIGNMENT);
            if address - start > slack {
                // SAFETY: just made, used nowhere else.
                unsafe { destroy(device, block.0, block.1) };
                slack = ALIGNMENT;
                continue;
            }
            let skip = address - start;
            let host = match place {
                Place::Device => std::ptr::null_mut(),
                // SAFETY: host-visible memory that is not mapped yet; it stays mapped until it is freed.
                Place::Host => unsafe {
                    let mapped = device.map_memory(block.1, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
                    let mapped = mapped.check("vkMapMemory").map_err(name).inspect_err(|_| {
                        destroy(device, block.0, block.1);
                    })?;
                    mapped.cast::<u8>().add(skip as usize)
                },
            };
            let counted = if place == Place::Device { block.2 } else { 0 };
            self.used.fetch_add(counted, Ordering::Relaxed);
            let entry = Block {
                buffer: block.0,
                memory: block.1,
                skip,
                bytes: rounded,
                counted,
            };
            let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
            blocks.insert(address, entry);
            return Ok((address, host));
        }
    }

    /// A buffer, its memory, and how much that is.
    fn try_make(&self, bytes: u64, place: Place) -> Result<(vk::Buffer, vk::DeviceMemory, u64)> {
        let device = &self.core.device;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(
            vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST
                | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS,
        );
        // SAFETY: the structure lives through the call.
        let buffer = unsafe { device.create_buffer(&info, None) }.check("vkCreateBuffer")?;
        // SAFETY: just made.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let memory = self.memory_type(needs.memory_type_bits, place).and_then(|index| {
            let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(index)
                .push_next(&mut flags);
            // SAFETY: the structures live through the call.
            unsafe { device.allocate_memory(&info, None) }.check("vkAllocateMemory")
        });
        let memory = memory.inspect_err(|_| {
            // SAFETY: just made, used nowhere else.
            unsafe { device.destroy_buffer(buffer, None) };
        })?;
        // SAFETY: both just made, of fitting size and type.
        let bound = unsafe { device.bind_buffer_memory(buffer, memory, 0) };
        bound.check("vkBindBufferMemory").inspect_err(|_| {
            // SAFETY: as above.
            unsafe { destroy(device, buffer, memory) };
        })?;
        Ok((buffer, memory, needs.size))
    }

    /// The best memory type of `allowed`.
    fn memory_type(&self, allowed: u32, place: Place) -> Result<u32> {
        use vk::MemoryPropertyFlags as Flags;
        let types = self.core.memory_types.memory_types_as_slice();
        let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let unified = self.core.physical.kind == vk::PhysicalDeviceType::CPU;
        let worth = |flags: Flags| match place {
            // Memory of the device that the host sees as well is a window of its own on GPUs.
            Place::Device if flags.contains(Flags::DEVICE_LOCAL) => {
                Some(u32::from(!flags.contains(Flags::HOST_VISIBLE) || unified))
            }
            Place::Host if flags.contains(host) => Some(
                2 * u32::from(flags.contains(Flags::HOST_CACHED)) + u32::from(!flags.contains(Flags::DEVICE_LOCAL)),
            ),
            _ => None,
        };
        (0..types.len() as u32)
            .rev()
            .filter(|index| allowed >> index & 1 == 1)
            .filter_map(|index| Some((worth(types[index as usize].property_flags)?, index)))
            .max_by_key(|&(worth, index)| (worth, std::cmp::Reverse(index)))
            .map(|(_, index)| index)
            .ok_or_else(|| Error::unsupported("the device has no memory type of this kind for buffers"))
    }

    /// Gives an allocation back.
    ///
    /// # Safety
    /// No work uses it.
    pub(crate) unsafe fn free(&self, ptr: DevicePtr) {
        let block = {
            let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
            blocks.remove(&ptr)
        };
        if let Some(block) = block {
            self.used.fetch_sub(block.counted, Ordering::Relaxed);
            // SAFETY: as the caller promises; freeing unmaps.
            unsafe { destroy(&self.core.device, block.buffer, block.memory) };
        }
    }

    /// The buffer behind `bytes` bytes at `ptr`.
    pub(crate) fn locate(&self, ptr: DevicePtr, bytes: u64) -> Result<Location> {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let found = blocks.range(..=ptr).next_back();
        let inside =
            found.filter(|(start, block)| (ptr - **start).checked_add(bytes).is_some_and(|end| end <= block.bytes));
        let (start, block) = inside
            .ok_or_else(|| Error::invalid(format!("{bytes} bytes at {ptr:#x} are not in one live allocation")))?;
        Ok(Location {
            buffer: block.buffer,
            offset: block.skip + (ptr - start),
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        for block in std::mem::take(blocks).into_values() {
            // SAFETY: the last owner; nothing runs any more.
            unsafe { destroy(&self.core.device, block.buffer, block.memory) };
        }
    }
}

/// # Safety
/// Both are of this device, and no work uses them.
unsafe fn destroy(device: &ash::Device, buffer: vk::Buffer, memory: vk::DeviceMemory) {
    // SAFETY: as the caller promises.
    unsafe {
        device.destroy_buffer(buffer, None);
        device.free_memory(memory, None);
    }
}
