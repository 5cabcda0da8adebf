//! VK_KHR_shader_bfloat16, which is younger than the bindings: its feature structure and its component type, from the
//! specification's registry (extension 142, so that its numbers begin at 1000141000).

use std::ffi::{CStr, c_void};

use ash::vk;

/// The extension.
pub(crate) const NAME: &CStr = c"VK_KHR_shader_bfloat16";
/// `VK_COMPONENT_TYPE_BFLOAT16_KHR`.
pub(crate) const COMPONENT: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
pub(crate) struct Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    /// `shaderBFloat16Type`.
    pub(crate) ty: vk::Bool32,
    /// `shaderBFloat16DotProduct`.
    pub(crate) dot_product: vk::Bool32,
    /// `shaderBFloat16CooperativeMatrix`.
    pub(crate) cooperative_matrix: vk::Bool32,
}

impl Default for Features {
    fn default() -> Features {
        Features {
            s_type: vk::StructureType::from_raw(1_000_141_000),
            p_next: std::ptr::null_mut(),
            ty: vk::FALSE,
            dot_product: vk::FALSE,
            cooperative_matrix: vk::FALSE,
        }
    }
}

// SAFETY: the registry says that it extends both, and it begins with its type and the next pointer as all of them do.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Features {}
