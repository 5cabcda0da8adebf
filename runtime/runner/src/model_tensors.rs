//! Device memory of a model's programs besides weights: activations and tables of rotations.

use std::sync::Arc;

use halyard_models::ModelFiles;
use halyard_models::program::{ActivationSlot, ModelProgram, Rows};
use halyard_platform_api::{Buffer, BufferKind, DType, Device, Tensor};

use crate::error::RunnerError;
use crate::plan::Plan;

/// Allocates tensors, one buffer each, and keeps them.
pub(crate) struct ModelTensors<'a> {
    pub device: &'a dyn Device,
    pub plan: &'a Plan,
    pub buffers: Vec<Arc<dyn Buffer>>,
}

impl ModelTensors<'_> {
    pub fn tensor(&mut self, dtype: DType, shape: &[u32]) -> Result<Tensor, RunnerError> {
        let elements: u64 = shape.iter().map(|&d| u64::from(d)).product();
        let buffer = self
            .device
            .create_buffer(elements * dtype.bytes() as u64, BufferKind::Device)?;
        let tensor = Tensor::contiguous(buffer.id(), 0, dtype, shape);
        self.buffers.push(buffer);
        Ok(tensor)
    }

    /// Memory of a program's activation slots; the first ones may be another program's.
    pub fn activations(
        &mut self,
        program: &ModelProgram,
        shared: &[(Tensor, ActivationSlot)],
    ) -> Result<Vec<(Tensor, ActivationSlot)>, RunnerError> {
        let mut all = Vec::with_capacity(program.slots.len());
        for (i, slot) in program.slots.iter().enumerate() {
            let rows = match slot.rows {
                Rows::Tokens => self.plan.capacities.max_tokens,
                Rows::Logits => self.plan.capacities.logits_chunk,
            };
            let tensor = match shared.get(i) {
                Some((tensor, of)) if of == slot => *tensor,
                _ => self.tensor(slot.dtype, &[rows, slot.width])?,
            };
            all.push((tensor, *slot));
        }
        Ok(all)
    }

    pub fn rope_tables(&mut self, files: &ModelFiles) -> Result<Vec<Tensor>, RunnerError> {
        let positions = self.plan.capacities.max_model_len;
        let mut tables = Vec::new();
        for rope in &files.description.ropes {
            let tensor = self.tensor(DType::F32, &[positions, rope.rotary_dim as u32])?;
            let table = rope.table(positions as usize);
            let mut bytes = vec![0; size_of_val(&table[..])];
            for (to, value) in bytes.chunks_exact_mut(size_of::<f32>()).zip(&table) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            if let Some(buffer) = self.buffers.last() {
                buffer.write(0, &bytes)?;
            }
            tables.push(tensor);
        }
        Ok(tables)
    }
}
