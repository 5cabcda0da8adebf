//! Shader modules and the pipelines made of them: one for each size of workgroup and shared memory that is launched,
//! through a pipeline cache that is kept on disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ash::vk;
use halyard_gpu::write_whole;
use halyard_platform_api::{Error, Result};
use sha2::{Digest, Sha256};

use crate::core::Core;
use crate::error::Check;
use crate::params::MAX_PUSH_BYTES;
use crate::recorder::Bound;

/// Between two writes of the cache while pipelines are made.
const SAVE_EVERY: Duration = Duration::from_secs(5);
const HASH_BYTES: usize = 32;

/// A shader module.
pub(crate) struct ModuleCore {
    core: Arc<Core>,
    module: vk::ShaderModule,
}

impl Drop for ModuleCore {
    fn drop(&mut self) {
        // SAFETY: the last holder; pipelines do not need it any more.
        unsafe { self.core.device.destroy_shader_module(self.module, None) };
    }
}

impl ModuleCore {
    /// From SPIR-V.
    pub(crate) fn load(core: &Arc<Core>, image: &[u8]) -> Result<ModuleCore> {
        let words: Vec<u32> = image
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        if words.len() * 4 != image.len() || words.first() != Some(&0x0723_0203) {
            return Err(Error::invalid(format!(
                "an image of {} bytes that is no SPIR-V",
                image.len()
            )));
        }
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: whole words that begin as SPIR-V does; they are the compiler's, by way of a cache that checks its
        // hash.
        let module = unsafe { core.device.create_shader_module(&info, None) }.check("vkCreateShaderModule")?;
        Ok(ModuleCore {
            core: core.clone(),
            module,
        })
    }
}

/// An entry point with its pipelines.
pub(crate) struct FunctionCore {
    name: String,
    module: Arc<ModuleCore>,
    /// By threads of a workgroup and bytes of shared memory.
    made: RwLock<Vec<((u32, u32), vk::Pipeline)>>,
}

impl FunctionCore {
    pub(crate) fn new(name: &str, module: Arc<ModuleCore>) -> FunctionCore {
        FunctionCore {
            name: name.to_string(),
            module,
            made: RwLock::default(),
        }
    }

    /// For errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for FunctionCore {
    fn drop(&mut self) {
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, pipeline) in made.drain(..) {
            // SAFETY: the driver ends after all work.
            unsafe { self.module.core.device.destroy_pipeline(pipeline, None) };
        }
    }
}

/// Makes pipelines.
pub(crate) struct Pipelines {
    core: Arc<Core>,
    layout: vk::PipelineLayout,
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    /// Since when there are unsaved pipelines.
    unsaved: Mutex<Option<Instant>>,
}

impl Pipelines {
    pub(crate) fn new(core: &Arc<Core>, folder: Option<PathBuf>) -> Result<Pipelines> {
        let range = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(MAX_PUSH_BYTES as u32)];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&range);
        // SAFETY: the structures live through the call; every device has 128 bytes.
        let layout = unsafe { core.device.create_pipeline_layout(&info, None) }.check("vkCreatePipelineLayout")?;
        let file = folder.map(|folder| folder.join(file_name(&core.physical.identity)));
        let kept = file.as_deref().and_then(read).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&kept);
        // SAFETY: as above; the driver checks that the data is its own, the hash that it is whole.
        let cache = unsafe { core.device.create_pipeline_cache(&info, None) }.check("vkCreatePipelineCache");
        let cache = cache.inspect_err(|_| {
            // SAFETY: just made.
            unsafe { core.device.destroy_pipeline_layout(layout, None) };
        })?;
        Ok(Pipelines {
            core: core.clone(),
            layout,
            cache,
            file,
            unsaved: Mutex::new(None),
        })
    }

    /// The pipeline of `function` for workgroups of `threads` with `shared_bytes` of dynamic shared memory.
    pub(crate) fn bound(&self, function: &FunctionCore, threads: u32, shared_bytes: u32) -> Result<Bound> {
        let key = (threads, shared_bytes);
        let known =
            |made: &[((u32, u32), vk::Pipeline)]| made.iter().find(|(of, _)| *of == key).map(|&(_, pipeline)| pipeline);
        let layout = self.layout;
        if let Some(pipeline) = known(&function.made.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(Bound { pipeline, layout });
        }
        // Held while compiling: two threads that need it make it once.
        let mut made = function.made.write().unwrap_or_else(PoisonError::into_inner);
        let pipeline = match known(&made) {
            Some(pipeline) => pipeline,
            None => {
                let pipeline = self.make(function, threads, shared_bytes)?;
                made.push((key, pipeline));
                pipeline
            }
        };
        Ok(Bound { pipeline, layout })
    }

    fn make(&self, function: &FunctionCore, threads: u32, shared_bytes: u32) -> Result<vk::Pipeline> {
        let physical = &self.core.physical;
        let name = &function.name;
        if threads == 0 || threads > physical.max_group_size {
            return Err(Error::unsupported(format!(
                "{name} with {threads} threads a workgroup; {} allows 1 to {}",
                physical.facts.name, physical.max_group_size
            )));
        }
        let values = [threads, (shared_bytes / 4).max(1)];
        let entries = [0, 1].map(|id| {
            vk::SpecializationMapEntry::default()
                .constant_id(id)
                .offset(4 * id)
                .size(4)
        });
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let constants = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(physical.required_subgroup.unwrap_or(0));
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(function.module.module)
            .name(c"main")
            .specialization_info(&constants);
        let whole = physical.subgroup().map(|lanes| threads.is_multiple_of(lanes));
        if whole == Some(false) && physical.counts_on_subgroups() {
            return Err(Error::unsupported(format!(
                "{name} with {threads} threads a workgroup: no multiple of the {} of a subgroup",
                physical.facts.warp_size
            )));
        }
        // On a processor few kernels look at subgroups, and those have whole ones.
        if whole == Some(true) {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        }
        if physical.required_subgroup.is_some() {
            stage = stage.push_next(&mut size);
        }
        let flags = match physical.splits_grids() {
            true => vk::PipelineCreateFlags::DISPATCH_BASE,
            false => vk::PipelineCreateFlags::empty(),
        };
        let info = [vk::ComputePipelineCreateInfo::default()
            .stage(stage)
            .layout(self.layout)
            .flags(flags)];
        // SAFETY: the structures live through the call; the module is live.
        let made = unsafe { self.core.device.create_compute_pipelines(self.cache, &info, None) };
        let pipeline = made
            .map_err(|(_, code)| code)
            .check("vkCreateComputePipelines")
            .map_err(|e| Error {
                message: format!("{name} ({threads} threads, {shared_bytes} bytes shared): {}", e.message),
                ..e
            })?;
        self.save_now_and_then();
        Ok(pipeline[0])
    }

    fn save_now_and_then(&self) {
        let mut unsaved = self.unsaved.lock().unwrap_or_else(PoisonError::into_inner);
        match *unsaved {
            None => *unsaved = Some(Instant::now()),
            Some(since) if since.elapsed() >= SAVE_EVERY => {
                *unsaved = None;
                self.save();
            }
            Some(_) => {}
        }
    }

    /// A cache that cannot be written costs time, not correctness, so failures are not reported.
    fn save(&self) {
        let Some(file) = &self.file else { return };
        // SAFETY: the cache lives.
        if let Ok(data) = unsafe { self.core.device.get_pipeline_cache_data(self.cache) } {
            write(file, &data);
        }
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        if self.unsaved.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.save();
        }
        // SAFETY: the last owner, after all pipelines.
        unsafe {
            self.core.device.destroy_pipeline_cache(self.cache, None);
            self.core.device.destroy_pipeline_layout(self.layout, None);
        }
    }
}

/// One file for each device and driver.
fn file_name(identity: &str) -> String {
    let hash = Sha256::digest(identity);
    let hex: String = hash[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.pipelines")
}

/// The data of a cache file; `None` when there is none or it is not whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (hash, data) = bytes.split_at_checked(HASH_BYTES)?;
    (Sha256::digest(data)[..] == *hash).then(|| data.to_vec())
}

/// Keeps the data.
fn write(path: &Path, data: &[u8]) {
    write_whole(path, &[&Sha256::digest(data)[..], data].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_cache_comes_back_and_a_damaged_one_does_not() {
        let folder = std::env::temp_dir().join(format!("halyard-pipelines-{}", std::process::id()));
        let path = folder.join(file_name("some device"));
        assert_ne!(file_name("some device"), file_name("another"));
        assert_eq!(read(&path), None);
        write(&path, b"as the driver gave it");
        assert_eq!(read(&path).as_deref(), Some(&b"as the driver gave it"[..]));
        let mut damaged = std::fs::read(&path).expect("written");
        damaged[40] ^= 1;
        std::fs::write(&path, damaged).expect("written");
        assert_eq!(read(&path), None);
        std::fs::write(&path, b"short").expect("written");
        assert_eq!(read(&path), None);
        std::fs::remove_dir_all(folder).expect("ours");
    }
}
