//! VK_NV_cooperative_matrix2, which is younger than the bindings: matrices of a whole workgroup. Its structures and
//! numbers are from the specification's registry (extension 594, so that its numbers begin at 1000593000).

use std::ffi::{CStr, c_void};

use ash::vk;

use crate::instance::Vulkan;

/// The extension.
pub(crate) const NAME: &CStr = c"VK_NV_cooperative_matrix2";

/// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    pub(crate) workgroup_scope: vk::Bool32,
    pub(crate) flexible_dimensions: vk::Bool32,
    pub(crate) reductions: vk::Bool32,
    pub(crate) conversions: vk::Bool32,
    pub(crate) per_element_operations: vk::Bool32,
    pub(crate) tensor_addressing: vk::Bool32,
    pub(crate) block_loads: vk::Bool32,
}

impl Default for Features {
    fn default() -> Features {
        Features {
            s_type: vk::StructureType::from_raw(1_000_593_000),
            p_next: std::ptr::null_mut(),
            workgroup_scope: vk::FALSE,
            flexible_dimensions: vk::FALSE,
            reductions: vk::FALSE,
            conversions: vk::FALSE,
            per_element_operations: vk::FALSE,
            tensor_addressing: vk::FALSE,
            block_loads: vk::FALSE,
        }
    }
}

impl Features {
    /// What the product kernel uses.
    pub(crate) fn needed() -> Features {
        Features {
            workgroup_scope: vk::TRUE,
            flexible_dimensions: vk::TRUE,
            per_element_operations: vk::TRUE,
            tensor_addressing: vk::TRUE,
            ..Features::default()
        }
    }

    /// Whether all of that is there.
    pub(crate) fn suffice(&self) -> bool {
        [
            self.workgroup_scope,
            self.flexible_dimensions,
            self.per_element_operations,
            self.tensor_addressing,
        ]
        .iter()
        .all(|&there| there == vk::TRUE)
    }
}

// SAFETY: the registry says that it extends both, and it begins with its type and the next pointer as all of them do.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Features {}

/// `VkCooperativeMatrixFlexibleDimensionsPropertiesNV`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    granularity: [u32; 3],
    a_type: vk::ComponentTypeKHR,
    b_type: vk::ComponentTypeKHR,
    c_type: vk::ComponentTypeKHR,
    result_type: vk::ComponentTypeKHR,
    saturating: vk::Bool32,
    scope: vk::ScopeKHR,
    threads: u32,
}

/// Matrices that workgroups of so many threads multiply, with sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Of both factors.
    pub(crate) element: vk::ComponentTypeKHR,
    /// Of what sides and depths are multiples.
    pub(crate) granularity: [u32; 3],
    pub(crate) threads: u32,
}

impl Shape {
    /// Whether a tile of `sides` (tokens, rows, depths) is among them.
    pub(crate) fn takes(&self, sides: [u32; 3]) -> bool {
        (0..3).all(|axis| sides[axis].is_multiple_of(self.granularity[axis].max(1)))
    }
}

/// `vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV`.
type GetProperties = unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut Properties) -> vk::Result;

/// What workgroups of a device that has the extension multiply; nothing where it does not tell.
pub(crate) fn shapes(vulkan: &Vulkan, handle: vk::PhysicalDevice) -> Vec<Shape> {
    let name = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";
    // SAFETY: a live instance and a name that ends in 0.
    let Some(function) =
        (unsafe { (vulkan.entry.static_fn().get_instance_proc_addr)(vulkan.instance.handle(), name.as_ptr()) })
    else {
        return Vec::new();
    };
    // SAFETY: the loader gives the function of that name, and the registry its parameters.
    let get: GetProperties = unsafe { std::mem::transmute(function) };
    let mut count = 0;
    // SAFETY: the device has the extension; the count is asked first.
    if unsafe { get(handle, &mut count, std::ptr::null_mut()) } != vk::Result::SUCCESS {
        return Vec::new();
    }
    let empty = Properties {
        s_type: vk::StructureType::from_raw(1_000_593_001),
        p_next: std::ptr::null_mut(),
        granularity: [0; 3],
        a_type: vk::ComponentTypeKHR::FLOAT16,
        b_type: vk::ComponentTypeKHR::FLOAT16,
        c_type: vk::ComponentTypeKHR::FLOAT16,
        result_type: vk::ComponentTypeKHR::FLOAT16,
        saturating: vk::FALSE,
        scope: vk::ScopeKHR::SUBGROUP,
        threads: 0,
    };
    let mut all = vec![empty; count as usize];
    // SAFETY: memory for as many as were counted.
    let got = unsafe { get(handle, &mut count, all.as_mut_ptr()) };
    if got != vk::Result::SUCCESS && got != vk::Result::INCOMPLETE {
        return Vec::new();
    }
    all.truncate(count as usize);
    let sums = vk::ComponentTypeKHR::FLOAT32;
    all.iter()
        .filter(|p| p.scope == vk::ScopeKHR::WORKGROUP && p.saturating == vk::FALSE)
        .filter(|p| p.a_type == p.b_type && (p.c_type, p.result_type) == (sums, sums))
        .map(|p| Shape {
            element: p.a_type,
            granularity: p.granularity,
            threads: p.threads,
        })
        .collect()
}
