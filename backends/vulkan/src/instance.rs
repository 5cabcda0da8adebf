//! The Vulkan loader and the one instance of this process. The loader is found at run time; the instance is never
//! destroyed, because layers and drivers keep threads and destructors of their own that outlive any order of ours.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use ash::vk;
use halyard_platform_api::{Error, Result, Status};

use crate::env;
use crate::error::{Check, error};

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";
/// Most messages that are kept: the first ones say what is wrong.
const MAX_MESSAGES: usize = 16;

/// The loader's functions and the instance.
pub(crate) struct Vulkan {
    /// The loader; it owns the loaded library.
    pub(crate) entry: ash::Entry,
    /// The instance.
    pub(crate) instance: ash::Instance,
}

/// Messages of the validation layer that were not reported yet.
static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The instance, made at the first call.
///
/// # Errors
/// `Unavailable` with how to get a loader or a driver; the same each time.
pub(crate) fn vulkan() -> Result<&'static Vulkan> {
    static VULKAN: OnceLock<Result<Vulkan>> = OnceLock::new();
    VULKAN.get_or_init(open).as_ref().map_err(Error::clone)
}

fn open() -> Result<Vulkan> {
    // SAFETY: loading runs the loader's initialisers only, which is what a Vulkan program asks for.
    let entry = unsafe { ash::Entry::load() }.map_err(|e| {
        Error::new(
            Status::Unavailable,
            format!(
                "the Vulkan loader libvulkan.so.1 was not found: install it with a driver (on Debian: apt install \
                 libvulkan1 mesa-vulkan-drivers; NVIDIA's driver brings its own Vulkan part) ({e})"
            ),
        )
    })?;
    let offered = instance_version(&entry)?;
    if offered < vk::API_VERSION_1_2 {
        return Err(Error::new(
            Status::Unavailable,
            format!(
                "the Vulkan loader speaks {}, and 1.2 is needed: install a newer libvulkan1",
                version_name(offered)
            ),
        ));
    }
    let validate = env::validation_is_asked();
    if validate {
        require_validation(&entry)?;
    }
    let application = vk::ApplicationInfo::default()
        .application_name(c"halyard")
        .api_version(offered.min(vk::API_VERSION_1_3));
    let layers = [VALIDATION_LAYER.as_ptr()];
    let extensions = [
        ash::ext::debug_utils::NAME.as_ptr(),
        ash::ext::validation_features::NAME.as_ptr(),
    ];
    let mut messenger = messenger_info();
    // Copies and fills that lack a barrier are reported; the layer does not see what kernels do through addresses.
    let synchronization = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
    let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&synchronization);
    let mut info = vk::InstanceCreateInfo::default().application_info(&application);
    if validate {
        info = info
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions)
            .push_next(&mut messenger)
            .push_next(&mut features);
    }
    // SAFETY: the structures live through the call.
    let instance = unsafe { entry.create_instance(&info, None) }.map_err(|code| match code {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => Error::new(
            Status::Unavailable,
            "the Vulkan loader found no driver: install one (on Debian: apt install mesa-vulkan-drivers, which has a \
             CPU device too), or name its file in VK_DRIVER_FILES",
        ),
        code => error("vkCreateInstance", code),
    })?;
    if validate {
        let utils = ash::ext::debug_utils::Instance::new(&entry, &instance);
        // SAFETY: the extension is enabled; the messenger lives as long as the instance, which is for ever.
        unsafe { utils.create_debug_utils_messenger(&messenger_info(), None) }
            .check("vkCreateDebugUtilsMessengerEXT")?;
    }
    Ok(Vulkan { entry, instance })
}

fn instance_version(entry: &ash::Entry) -> Result<u32> {
    // SAFETY: the entry is loaded.
    let version = unsafe { entry.try_enumerate_instance_version() }.check("vkEnumerateInstanceVersion")?;
    Ok(version.unwrap_or(vk::API_VERSION_1_0))
}

/// A packed version as people write it.
pub(crate) fn version_name(version: u32) -> String {
    format!(
        "{}.{}.{}",
        vk::api_version_major(version),
        vk::api_version_minor(version),
        vk::api_version_patch(version)
    )
}

fn require_validation(entry: &ash::Entry) -> Result<()> {
    // SAFETY: the entry is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.check("vkEnumerateInstanceLayerProperties")?;
    if layers
        .iter()
        .any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER))
    {
        return Ok(());
    }
    Err(Error::new(
        Status::Unavailable,
        "HALYARD_VULKAN_VALIDATION is set, and the Khronos validation layer is not installed: apt install \
         vulkan-validationlayers, or unset the variable",
    ))
}

fn messenger_info() -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Kind};
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::WARNING | Severity::ERROR)
        .message_type(Kind::VALIDATION)
        .pfn_user_callback(Some(remember))
}

unsafe extern "system" fn remember(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    _user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer lends the structure for the call.
    let text = unsafe { data.as_ref() }.filter(|data| !data.p_message.is_null());
    // SAFETY: it ends in 0.
    let text = text.map(|data| unsafe { CStr::from_ptr(data.p_message) });
    let mut messages = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
    if messages.len() < MAX_MESSAGES {
        messages.push(text.map_or_else(String::new, |text| text.to_string_lossy().into_owned()));
    }
    vk::FALSE
}

/// The validation layer's messages since the last call, as an error.
///
/// # Errors
/// `Internal` with the messages.
pub(crate) fn validated() -> Result<()> {
    let messages = std::mem::take(&mut *MESSAGES.lock().unwrap_or_else(PoisonError::into_inner));
    if messages.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Status::Internal,
        format!("the Vulkan validation layer says: {}", messages.join("\n")),
    ))
}
