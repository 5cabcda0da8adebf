//! The device's adapter slots: matrices A and B of every group of linears, one slot behind the other, padded to the
//! largest rank. Writes whole slots; the scheduler decides when a slot may be written.

use std::sync::Arc;

use halyard_models::LoraAdapter;
use halyard_models::program::{LoraGroup, LoraOptions, ModelProgram, TensorRole, WeightPart};
use halyard_platform_api::{Buffer, BufferKind, DType, Device, Result as DeviceResult, Tensor};

use crate::error::RunnerError;
use crate::template::Template;

/// One group's slots.
struct GroupMemory {
    group: LoraGroup,
    a: Arc<dyn Buffer>,
    b: Arc<dyn Buffer>,
}

/// All slots of one device.
pub struct LoraMemory {
    options: LoraOptions,
    groups: Vec<GroupMemory>,
    scales: Arc<dyn Buffer>,
    /// Last: the device outlives its buffers, also where the loader holds them longest.
    _device: Arc<dyn Device>,
}

impl LoraMemory {
    /// Allocates the slots of a program with adapters, all empty.
    ///
    /// # Errors
    /// Slots that one buffer of the device cannot hold; what the device reports.
    pub(crate) fn allocate(
        device: &Arc<dyn Device>,
        program: &ModelProgram,
        options: LoraOptions,
    ) -> Result<LoraMemory, RunnerError> {
        let info = device.info();
        let limit = info.max_buffer_bytes.min(info.max_binding_bytes);
        let buffer = |elements: u64, dtype: DType| -> Result<Arc<dyn Buffer>, RunnerError> {
            let bytes = elements * dtype.bytes() as u64;
            if bytes > limit {
                return Err(RunnerError::Config {
                    name: "--max-loras",
                    message: format!(
                        "{} slots of rank {} need a buffer of {bytes} bytes; {} takes at most {limit}: lower it or \
                         --max-lora-rank",
                        options.num_slots, options.max_rank, info.name
                    ),
                });
            }
            Ok(device.create_buffer(bytes, BufferKind::Device)?)
        };
        let slots = u64::from(options.num_slots);
        let mut groups = Vec::with_capacity(program.lora.len());
        for group in &program.lora {
            groups.push(GroupMemory {
                a: buffer(slots * a_elements(group, &options), options.dtype)?,
                b: buffer(slots * b_elements(group, &options), options.dtype)?,
                group: group.clone(),
            });
        }
        let scales = buffer(slots, DType::F32)?;
        scales.write(0, &vec![0; 4 * options.num_slots as usize])?;
        Ok(LoraMemory {
            options,
            groups,
            scales,
            _device: device.clone(),
        })
    }

    /// Where a tensor of the program is.
    pub(crate) fn place(&self, role: TensorRole) -> Template {
        let (slots, rank) = (self.options.num_slots, self.options.max_rank);
        let tensor = |buffer: &Arc<dyn Buffer>, dtype, shape: &[u32]| Tensor::contiguous(buffer.id(), 0, dtype, shape);
        Template::fixed(match role {
            TensorRole::LoraScales => tensor(&self.scales, DType::F32, &[slots]),
            TensorRole::LoraA { group } => {
                let memory = &self.groups[group as usize];
                let width = memory.group.parts.len() as u32 * rank;
                tensor(&memory.a, self.options.dtype, &[slots, width, memory.group.in_features])
            }
            TensorRole::LoraB { group } => {
                let memory = &self.groups[group as usize];
                tensor(&memory.b, self.options.dtype, &[slots, memory.group.out_features, rank])
            }
            _ => Tensor::NONE,
        })
    }

    /// Bytes of one slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        let elements = |g: &GroupMemory| a_elements(&g.group, &self.options) + b_elements(&g.group, &self.options);
        let elements: u64 = self.groups.iter().map(elements).sum();
        elements * self.options.dtype.bytes() as u64
    }

    /// Writes an adapter into a slot that no submitted step reads. Blocks for the copies.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn write(&self, slot: u32, adapter: &LoraAdapter) -> DeviceResult<()> {
        let mut image = Vec::new();
        for memory in &self.groups {
            image_of_a(&memory.group, adapter, &self.options, &mut image);
            memory.a.write(u64::from(slot) * image.len() as u64, &image)?;
            image_of_b(&memory.group, adapter, &self.options, &mut image);
            memory.b.write(u64::from(slot) * image.len() as u64, &image)?;
        }
        self.scales.write(4 * u64::from(slot), &adapter.scale.to_le_bytes())
    }
}

fn a_elements(group: &LoraGroup, options: &LoraOptions) -> u64 {
    group.parts.len() as u64 * u64::from(options.max_rank) * u64::from(group.in_features)
}

fn b_elements(group: &LoraGroup, options: &LoraOptions) -> u64 {
    u64::from(group.out_features) * u64::from(options.max_rank)
}

/// A slot of A: each part's rows of this rank's columns, then zeros up to the largest rank.
fn image_of_a(group: &LoraGroup, adapter: &LoraAdapter, options: &LoraOptions, image: &mut Vec<u8>) {
    let size = options.dtype.bytes();
    image.clear();
    for part in &group.parts {
        let end = image.len() + options.max_rank as usize * group.in_features as usize * size;
        if let Some(module) = adapter.module(part.role) {
            let row = module.a.len() / module.rank as usize;
            let columns = part.first_column as usize * size..(part.first_column + group.in_features) as usize * size;
            for row in module.a.chunks_exact(row) {
                image.extend_from_slice(&row[columns.clone()]);
            }
        }
        image.resize(end, 0);
    }
}

/// A slot of B: this rank's rows of each part, each padded with zeros to the largest rank.
fn image_of_b(group: &LoraGroup, adapter: &LoraAdapter, options: &LoraOptions, image: &mut Vec<u8>) {
    let padded = options.max_rank as usize * options.dtype.bytes();
    image.clear();
    for part in &group.parts {
        let Some(module) = adapter.module(part.role) else {
            image.resize(image.len() + part.rows as usize * padded, 0);
            continue;
        };
        let row = module.rank as usize * options.dtype.bytes();
        let WeightPart { first_row, rows, .. } = *part;
        for row in module.b[first_row as usize * row..(first_row + rows) as usize * row].chunks_exact(row) {
            let end = image.len() + padded;
            image.extend_from_slice(row);
            image.resize(end, 0);
        }
    }
}
