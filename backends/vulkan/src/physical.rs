//! The physical devices: which can run the kernels, why others cannot, and the facts of each. GPUs come first, CPU
//! devices last, so that device 0 is the fastest of its kind.

use std::ffi::{CStr, c_char};

use ash::vk;
use halyard_gpu::Facts;
use halyard_platform_api::{Error, Result, Status};

use crate::bfloat16;
use crate::env;
use crate::error::Check;
use crate::instance::{Vulkan, version_name, vulkan};
use crate::wide;

/// Lanes that kernels with subgroup operations are written for.
const SUBGROUP: u32 = 32;
/// Lanes of a processor's vector that products are written for.
const VECTOR: u32 = 8;

/// Types of which subgroups multiply matrices of 16 × 16 × 16 with sums in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Matrices {
    pub(crate) f16: bool,
    pub(crate) bf16: bool,
}

impl Matrices {
    pub(crate) fn any(self) -> bool {
        self.f16 || self.bf16
    }
}

/// What a device says of sums of four products of signed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dots {
    /// Whether kernels may use the instruction, and whether an extension has it (from 1.3 on it need not).
    pub(crate) native: bool,
    pub(crate) by_extension: bool,
    /// Whether it is faster than the plain operations.
    pub(crate) accelerated: bool,
}

/// A device that can run the kernels.
#[derive(Clone)]
pub(crate) struct Physical {
    pub(crate) handle: vk::PhysicalDevice,
    pub(crate) kind: vk::PhysicalDeviceType,
    pub(crate) facts: Facts,
    /// The subgroup size to require of each pipeline; `None`: the device has one only.
    pub(crate) required_subgroup: Option<u32>,
    /// Whether pipelines may ask for full subgroups.
    pub(crate) full_subgroups: bool,
    /// Whether it is a processor whose subgroups are vectors of 8, which pass values on.
    pub(crate) passes_in_vectors: bool,
    /// Whether that is an extension's; from 1.3 on it need not be.
    pub(crate) has_subgroup_extension: bool,
    /// Compute and transfer.
    pub(crate) queue_family: u32,
    pub(crate) num_queues: u32,
    /// Whether the driver says how much memory is free.
    pub(crate) has_memory_budget: bool,
    /// Types of which subgroups multiply matrices.
    pub(crate) matrices: Matrices,
    /// Of which types and sides whole workgroups do.
    pub(crate) wide: Vec<wide::Shape>,
    pub(crate) dots: Dots,
    pub(crate) max_allocation_bytes: u64,
    pub(crate) max_group_count: [u32; 3],
    pub(crate) max_group_size: u32,
    /// Tells caches of one driver and device from another's.
    pub(crate) identity: String,
}

impl Physical {
    /// Whether every pipeline runs in full subgroups of `facts.warp_size` lanes, so that kernels may use subgroup
    /// operations.
    pub(crate) fn counts_on_subgroups(&self) -> bool {
        self.facts.warp_size == SUBGROUP && self.full_subgroups
    }

    /// Lanes of the full subgroups that kernels may count on; `None`: they may not.
    pub(crate) fn subgroup(&self) -> Option<u32> {
        match self.passes_in_vectors {
            true => Some(VECTOR),
            false => self.counts_on_subgroups().then_some(SUBGROUP),
        }
    }

    /// Whether a grid may be larger than one dispatch.
    pub(crate) fn splits_grids(&self) -> bool {
        self.max_group_count[0] < i32::MAX as u32
    }
}

/// Every usable device, GPUs first.
///
/// # Errors
/// `Unavailable` with what was found and why it does not do.
pub(crate) fn usable_devices() -> Result<Vec<Physical>> {
    let vulkan = vulkan()?;
    // SAFETY: the instance lives.
    let handles = unsafe { vulkan.instance.enumerate_physical_devices() }.check("vkEnumeratePhysicalDevices")?;
    let (mut usable, mut others) = (Vec::new(), Vec::new());
    for handle in handles {
        match describe(vulkan, handle) {
            Ok(device) => usable.push(device),
            Err(reason) => others.push(reason.message),
        }
    }
    usable.sort_by_key(|device| rank(device.kind));
    if !usable.is_empty() {
        return Ok(usable);
    }
    let found = match others.is_empty() {
        true => "the Vulkan loader shows no device: install a driver (on Debian: apt install mesa-vulkan-drivers, \
                 which has a CPU device too), or name its file in VK_DRIVER_FILES; `vulkaninfo --summary` shows what \
                 the loader sees"
            .to_string(),
        false => format!(
            "no Vulkan device can run the kernels: {}; a newer driver may",
            others.join("; ")
        ),
    };
    Err(Error::new(Status::Unavailable, found))
}

fn rank(kind: vk::PhysicalDeviceType) -> u32 {
    match kind {
        vk::PhysicalDeviceType::DISCRETE_GPU => 0,
        vk::PhysicalDeviceType::INTEGRATED_GPU => 1,
        vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
        vk::PhysicalDeviceType::CPU => 4,
        _ => 3,
    }
}

/// What the kernels and the driver need, by its name in the specification.
struct Features {
    core: vk::PhysicalDeviceFeatures,
    v11: vk::PhysicalDeviceVulkan11Features<'static>,
    v12: vk::PhysicalDeviceVulkan12Features<'static>,
}

impl Features {
    fn missing(&self) -> Vec<&'static str> {
        let needed = [
            ("shaderInt64", self.core.shader_int64),
            ("storageBuffer16BitAccess", self.v11.storage_buffer16_bit_access),
            ("storageBuffer8BitAccess", self.v12.storage_buffer8_bit_access),
            ("scalarBlockLayout", self.v12.scalar_block_layout),
            ("bufferDeviceAddress", self.v12.buffer_device_address),
            ("timelineSemaphore", self.v12.timeline_semaphore),
        ];
        needed
            .iter()
            .filter(|(_, there)| *there == vk::FALSE)
            .map(|(name, _)| *name)
            .collect()
    }
}

fn features(instance: &ash::Instance, handle: vk::PhysicalDevice) -> Features {
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut all = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut v11)
        .push_next(&mut v12);
    // SAFETY: the device is of this instance and speaks 1.2.
    unsafe { instance.get_physical_device_features2(handle, &mut all) };
    let core = all.features;
    (v11.p_next, v12.p_next) = (std::ptr::null_mut(), std::ptr::null_mut());
    Features { core, v11, v12 }
}

/// A device, or why it cannot run the kernels.
fn describe(vulkan: &Vulkan, handle: vk::PhysicalDevice) -> Result<Physical> {
    let instance = &vulkan.instance;
    // SAFETY: the device is of this instance.
    let plain = unsafe { instance.get_physical_device_properties(handle) };
    let name = text(&plain.device_name);
    let refuse = |why: String| Error::unsupported(format!("{name}: {why}"));
    if plain.api_version < vk::API_VERSION_1_2 {
        return Err(refuse(format!(
            "it speaks Vulkan {}, 1.2 is needed",
            version_name(plain.api_version)
        )));
    }
    let missing = features(instance, handle).missing();
    if !missing.is_empty() {
        return Err(refuse(format!("it lacks {}", missing.join(", "))));
    }
    // SAFETY: as above.
    let extensions = unsafe { instance.enumerate_device_extension_properties(handle) }
        .check("vkEnumerateDeviceExtensionProperties")?;
    let has = |wanted: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(wanted));
    let (queue_family, num_queues) =
        compute_family(instance, handle).ok_or_else(|| refuse("it has no queue that computes".to_string()))?;
    let properties = Properties::of(instance, handle, plain, &has);
    if properties.v12.shader_signed_zero_inf_nan_preserve_float32 == vk::FALSE {
        return Err(refuse(
            "it does not promise to keep infinities (shaderSignedZeroInfNanPreserveFloat32)".to_string(),
        ));
    }
    let subgroups = properties.subgroups(instance, handle);
    let (plain, limits) = (&properties.plain, &properties.plain.limits);
    Ok(Physical {
        handle,
        kind: plain.device_type,
        required_subgroup: subgroups.required,
        full_subgroups: subgroups.full,
        passes_in_vectors: subgroups.vectors,
        has_subgroup_extension: has(ash::ext::subgroup_size_control::NAME),
        queue_family,
        num_queues,
        has_memory_budget: has(ash::ext::memory_budget::NAME),
        matrices: match has(ash::khr::cooperative_matrix::NAME) {
            true => matrices(vulkan, handle, has(bfloat16::NAME)),
            false => Matrices::default(),
        },
        wide: match plain.api_version >= vk::API_VERSION_1_3
            && has(wide::NAME)
            && has(ash::khr::cooperative_matrix::NAME)
        {
            true => wide_shapes(vulkan, handle),
            false => Vec::new(),
        },
        dots: dots(instance, handle, plain.api_version, &has),
        max_allocation_bytes: properties.v11.max_memory_allocation_size,
        max_group_count: limits.max_compute_work_group_count,
        max_group_size: limits
            .max_compute_work_group_invocations
            .min(limits.max_compute_work_group_size[0]),
        identity: format!(
            "{:x} {:x} {:x} {:x?} {}",
            plain.vendor_id,
            plain.device_id,
            plain.driver_version,
            plain.pipeline_cache_uuid,
            text(&properties.v12.driver_info)
        ),
        facts: properties.facts(&subgroups, device_memory(instance, handle)),
    })
}

/// Bytes of the device's largest heap of its own.
fn device_memory(instance: &ash::Instance, handle: vk::PhysicalDevice) -> u64 {
    // SAFETY: the device is of this instance.
    let memory = unsafe { instance.get_physical_device_memory_properties(handle) };
    let heaps = memory.memory_heaps_as_slice().iter();
    let own = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.map(|heap| heap.size).max().unwrap_or(0)
}

/// The facts of a device.
struct Properties {
    plain: vk::PhysicalDeviceProperties,
    v11: vk::PhysicalDeviceVulkan11Properties<'static>,
    v12: vk::PhysicalDeviceVulkan12Properties<'static>,
    /// `None`: the device knows nothing of subgroup sizes.
    sizes: Option<vk::PhysicalDeviceSubgroupSizeControlProperties<'static>>,
    /// 0: the device does not tell.
    num_sms: u32,
}

/// In which subgroups pipelines run.
struct Subgroups {
    /// The size to ask for.
    required: Option<u32>,
    /// Whether full ones can be asked for, and do what kernels ask of them.
    full: bool,
    /// The size; 1: it may differ from pipeline to pipeline, so no kernel can be written for it.
    size: u32,
    /// Whether they are full vectors of a processor, of the one size that [`VECTOR`] says.
    vectors: bool,
}

impl Properties {
    fn of(
        instance: &ash::Instance,
        handle: vk::PhysicalDevice,
        plain: vk::PhysicalDeviceProperties,
        has: &dyn Fn(&CStr) -> bool,
    ) -> Properties {
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut sms = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut cores = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
        let mut all = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut v11)
            .push_next(&mut v12);
        let has_sizes = plain.api_version >= vk::API_VERSION_1_3 || has(ash::ext::subgroup_size_control::NAME);
        if has_sizes {
            all = all.push_next(&mut sizes);
        }
        if has(ash::nv::shader_sm_builtins::NAME) {
            all = all.push_next(&mut sms);
        }
        if has(ash::amd::shader_core_properties::NAME) {
            all = all.push_next(&mut cores);
        }
        // SAFETY: the chain holds structures that the device knows.
        unsafe { instance.get_physical_device_properties2(handle, &mut all) };
        for next in [&mut v11.p_next, &mut v12.p_next, &mut sizes.p_next] {
            *next = std::ptr::null_mut();
        }
        let units =
            cores.shader_engine_count * cores.shader_arrays_per_engine_count * cores.compute_units_per_shader_array;
        Properties {
            plain,
            v11,
            v12,
            sizes: has_sizes.then_some(sizes),
            num_sms: sms.shader_sm_count.max(units),
        }
    }

    fn subgroups(&self, instance: &ash::Instance, handle: vk::PhysicalDevice) -> Subgroups {
        let Some(sizes) = &self.sizes else {
            return Subgroups {
                required: None,
                full: false,
                size: self.v11.subgroup_size,
                vectors: false,
            };
        };
        let (control, full) = subgroup_control(instance, handle);
        use vk::SubgroupFeatureFlags as Operations;
        let operations = Operations::BASIC
            | Operations::VOTE
            | Operations::BALLOT
            | Operations::SHUFFLE
            | Operations::ARITHMETIC
            | Operations::CLUSTERED;
        let vectors = full
            && control
            && self.plain.device_type == vk::PhysicalDeviceType::CPU
            && !env::gpu_kernels_are_asked()
            && (sizes.min_subgroup_size, sizes.max_subgroup_size) == (VECTOR, VECTOR)
            && (self.v11.subgroup_supported_operations).contains(Operations::BASIC | Operations::BALLOT);
        let full = full && self.v11.subgroup_supported_operations.contains(operations);
        let one_size = sizes.min_subgroup_size == sizes.max_subgroup_size;
        let range = sizes.min_subgroup_size..=sizes.max_subgroup_size;
        let stages = sizes.required_subgroup_size_stages;
        let can_require = control && stages.contains(vk::ShaderStageFlags::COMPUTE) && range.contains(&SUBGROUP);
        let required = (can_require && !one_size).then_some(SUBGROUP);
        Subgroups {
            required,
            full: full && control,
            size: match required {
                Some(size) => size,
                None if one_size => self.v11.subgroup_size,
                None => 1,
            },
            vectors,
        }
    }

    fn facts(&self, subgroups: &Subgroups, total_memory_bytes: u64) -> Facts {
        let (driver, version) = (text(&self.v12.driver_name), text(&self.v12.driver_info));
        Facts {
            name: text(&self.plain.device_name),
            detail: format!(
                "Vulkan {}, {driver} {version}, subgroups of {}",
                version_name(self.plain.api_version),
                self.v11.subgroup_size
            ),
            arch: format!(
                "vulkan1.2 subgroup{} full{} vectors{}",
                subgroups.size,
                u32::from(subgroups.full),
                u32::from(subgroups.vectors)
            ),
            capability: 0,
            num_sms: match self.plain.device_type {
                _ if self.num_sms > 0 => self.num_sms,
                vk::PhysicalDeviceType::CPU => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
                // Vulkan does not report it: enough to fill a medium GPU.
                _ => 32,
            },
            warp_size: subgroups.size,
            matrix_units: false,
            struct_params: false,
            max_shared_bytes: self.plain.limits.max_compute_shared_memory_size,
            // Vulkan does not report it; nothing here depends on it.
            l2_bytes: 4 << 20,
            total_memory_bytes,
        }
    }
}

/// A driver's text, which ends in 0.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The first family that computes, and how many queues of it there are. Families that compute also copy.
fn compute_family(instance: &ash::Instance, handle: vk::PhysicalDevice) -> Option<(u32, u32)> {
    // SAFETY: the device is of this instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(handle) };
    let computes = |family: &&vk::QueueFamilyProperties| {
        family.queue_flags.contains(vk::QueueFlags::COMPUTE) && family.queue_count > 0
    };
    let (at, family) = families
        .iter()
        .enumerate()
        .filter(|(_, family)| computes(family))
        // A family that draws as well is scheduled with the desktop's work.
        .min_by_key(|(_, family)| family.queue_flags.contains(vk::QueueFlags::GRAPHICS))?;
    Some((at as u32, family.queue_count))
}

/// Whether pipelines may name their subgroup size, and ask for full subgroups.
fn subgroup_control(instance: &ash::Instance, handle: vk::PhysicalDevice) -> (bool, bool) {
    let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
    let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut control);
    // SAFETY: the device knows the structure.
    unsafe { instance.get_physical_device_features2(handle, &mut all) };
    (
        control.subgroup_size_control == vk::TRUE,
        control.compute_full_subgroups == vk::TRUE,
    )
}

/// What it makes of sums of four products of signed bytes.
fn dots(instance: &ash::Instance, handle: vk::PhysicalDevice, version: u32, has: &dyn Fn(&CStr) -> bool) -> Dots {
    let by_extension = version < vk::API_VERSION_1_3;
    if by_extension && !has(ash::khr::shader_integer_dot_product::NAME) {
        return Dots::default();
    }
    let mut feature = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut feature);
    let mut speeds = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut speeds);
    // SAFETY: the device is of this instance and knows both structures.
    unsafe {
        instance.get_physical_device_features2(handle, &mut features);
        instance.get_physical_device_properties2(handle, &mut properties);
    }
    let native = feature.shader_integer_dot_product == vk::TRUE;
    Dots {
        native,
        by_extension,
        accelerated: native && speeds.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
    }
}

/// What subgroups multiply, among what the device's features allow.
fn matrices(vulkan: &Vulkan, handle: vk::PhysicalDevice, has_bfloat16: bool) -> Matrices {
    let mut cooperative = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut bfloat = bfloat16::Features::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut all = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut v12)
        .push_next(&mut cooperative);
    if has_bfloat16 {
        all = all.push_next(&mut bfloat);
    }
    // SAFETY: the device has the extensions of all structures.
    unsafe { vulkan.instance.get_physical_device_features2(handle, &mut all) };
    let usable = cooperative.cooperative_matrix == vk::TRUE
        && v12.vulkan_memory_model == vk::TRUE
        && v12.shader_float16 == vk::TRUE;
    let extension = ash::khr::cooperative_matrix::Instance::new(&vulkan.entry, &vulkan.instance);
    // SAFETY: as above.
    let Ok(shapes) = (unsafe { extension.get_physical_device_cooperative_matrix_properties(handle) }) else {
        return Matrices::default();
    };
    let has = |ty: vk::ComponentTypeKHR| {
        usable
            && shapes.iter().any(|shape| {
                (shape.m_size, shape.n_size, shape.k_size) == (16, 16, 16)
                    && (shape.a_type, shape.b_type) == (ty, ty)
                    && (shape.c_type, shape.result_type)
                        == (vk::ComponentTypeKHR::FLOAT32, vk::ComponentTypeKHR::FLOAT32)
                    && shape.scope == vk::ScopeKHR::SUBGROUP
            })
    };
    Matrices {
        f16: has(vk::ComponentTypeKHR::FLOAT16),
        bf16: bfloat.ty == vk::TRUE && bfloat.cooperative_matrix == vk::TRUE && has(bfloat16::COMPONENT),
    }
}

/// What workgroups multiply, where the device has all that the kernels use.
fn wide_shapes(vulkan: &Vulkan, handle: vk::PhysicalDevice) -> Vec<wide::Shape> {
    let mut features = wide::Features::default();
    let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut features);
    // SAFETY: the device has the extension.
    unsafe { vulkan.instance.get_physical_device_features2(handle, &mut all) };
    match features.suffice() {
        true => wide::shapes(vulkan, handle),
        false => Vec::new(),
    }
}
