//! One case: its operands into buffers, the op through the device, its outputs compared.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use halyard_platform_api::ops::{Attention, KvWrite, LatentAttention, LatentWrite};
use halyard_platform_api::{
    Access, Buffer, BufferKind, DType, Device, EncoderMode, OpSpec, PreparedOp, QueueKind, Tensor, WeightRows,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::spec::{Params, parse};

/// A tensor as the fixture holds it.
#[derive(Clone)]
struct Array {
    dtype: DType,
    shape: Vec<u32>,
    bytes: Vec<u8>,
}

/// All cases.
pub struct Fixtures {
    cases: Vec<Case>,
}

/// One case.
#[derive(Clone)]
pub struct Case {
    name: String,
    op: String,
    params: Value,
    inputs: HashMap<String, Array>,
    outputs: Vec<(String, Array)>,
}

impl Fixtures {
    /// Reads the committed files.
    pub fn load() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/ops");
        let json = std::fs::read_to_string(folder.join("ops.json")).expect("ops.json");
        let json: Value = serde_json::from_str(&json).expect("ops.json is JSON");
        let bytes = std::fs::read(folder.join("ops.safetensors")).expect("ops.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).expect("ops.safetensors is valid");
        let cases = json["cases"]
            .as_array()
            .expect("cases")
            .iter()
            .map(|c| Case::read(c, &tensors))
            .collect();
        Fixtures { cases }
    }

    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter()
    }
}

impl Case {
    fn read(case: &Value, tensors: &SafeTensors) -> Self {
        let text = |key: &str| case[key].as_str().expect("a string").to_string();
        let name = text("name");
        let arrays = |list: &str, part: &str| -> Vec<(String, Array)> {
            let names = case[list].as_array().expect("a list of names");
            let named = |n: &Value| n.as_str().expect("a name").to_string();
            names
                .iter()
                .map(|n| (named(n), Array::read(tensors, &format!("{name}/{part}/{}", named(n)))))
                .collect()
        };
        Case {
            op: text("op"),
            params: case["params"].clone(),
            inputs: arrays("inputs", "in").into_iter().collect(),
            outputs: arrays("outputs", "out"),
            name,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn op(&self) -> &str {
        &self.op
    }

    /// The same case with a bit of one expected element changed.
    pub fn nudged(&self) -> Case {
        let mut case = self.clone();
        let array = &mut case.outputs[0].1;
        // The exponent's low bit of a float, or the low bit of an integer, of the middle element.
        let (size, bit) = match array.dtype {
            DType::F32 => (4, 23),
            DType::F16 => (2, 10),
            DType::BF16 => (2, 7),
            other => (other.bytes(), 0),
        };
        let elements = array.bytes.len() / size;
        let zero = |i: usize| array.bytes[i * size..][..size].iter().all(|&b| b == 0);
        let at = (elements / 2..elements)
            .chain(0..elements)
            .find(|&i| !zero(i))
            .unwrap_or(0);
        array.bytes[at * size + bit / 8] ^= 1 << (bit % 8);
        case
    }

    /// Runs the case and compares.
    pub fn run(&self, device: &dyn Device, backend: u32, tolerance: f32) -> Result<(), String> {
        let mut spec = parse(&self.op, &self.params);
        let mut buffers: Vec<Arc<dyn Buffer>> = Vec::new();
        let mut upload = |array: &Array| -> Result<Tensor, String> {
            let buffer = device
                .create_buffer(array.bytes.len().max(1) as u64, BufferKind::Device)
                .map_err(|e| e.to_string())?;
            buffer.write(0, &array.bytes).map_err(|e| e.to_string())?;
            let tensor = Tensor::contiguous(buffer.id(), 0, array.dtype, &array.shape);
            buffers.push(buffer);
            Ok(tensor)
        };
        let mut prepared: Vec<Arc<dyn PreparedOp>> = Vec::new();
        let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
        let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(|e| e.to_string())?;
        let mut cache = None;
        let stored = match &mut spec {
            OpSpec::Attention(op) => {
                op.backend = backend;
                let plan = device.attention().plan(op).map_err(|e| e.to_string())?;
                Some((plan, OpSpec::from(kv_write(op)), ["k", "v", "slots"]))
            }
            OpSpec::LatentAttention(op) => {
                op.backend = backend;
                let plan = device.attention().plan_latent(op).map_err(|e| e.to_string())?;
                Some((plan, latent_write(op).into(), ["latent", "key", "slots"]))
            }
            _ => None,
        };
        if let Some((plan, write, names)) = stored {
            let pages = Params(&self.params).u("num_pages");
            let array = Array::poison(DType::U8, &[pages, plan.block_bytes as u32]);
            let cache_tensor = upload(&array)?;
            let mut operands = Vec::new();
            for name in names {
                operands.push(upload(&self.inputs[name])?);
            }
            operands.push(cache_tensor);
            let write = device.ops().prepare(&write).map_err(|e| e.to_string())?;
            encoder.encode(write.id(), &operands).map_err(|e| e.to_string())?;
            prepared.push(write);
            cache = Some(cache_tensor);
        }
        let op = device.ops().prepare(&spec).map_err(|e| e.to_string())?;
        let weight_bytes = op.packed_weight_bytes(0).ok();
        let mut operands = Vec::new();
        for operand in spec.operands() {
            let expected = self.outputs.iter().find(|(n, _)| n == operand.name).map(|(_, a)| a);
            let tensor = match (self.inputs.get(operand.name), expected) {
                (Some(input), _)
                    if operand.access == Access::Const && weight_bytes.is_some() && is_weight(operand.name) =>
                {
                    pack(&*op, input, weight_bytes.unwrap_or(0), &mut upload)?
                }
                (Some(input), _) => upload(input)?,
                (None, Some(expected)) => upload(&Array::poison(expected.dtype, &expected.shape))?,
                (None, None) if operand.name == "cache" => cache.ok_or("no cache")?,
                (None, None) => Tensor::NONE,
            };
            operands.push(tensor);
        }
        encoder.encode(op.id(), &operands).map_err(|e| e.to_string())?;
        let commands = encoder.finish().map_err(|e| e.to_string())?;
        let number = queue.submit(&[commands.id()], &[]).map_err(|e| e.to_string())?;
        queue.wait(number, u64::MAX).map_err(|e| e.to_string())?;
        for (name, expected) in &self.outputs {
            let index = spec
                .operands()
                .iter()
                .position(|o| o.name == name)
                .ok_or("unknown output")?;
            let mut found = expected.clone();
            let buffer = buffers
                .iter()
                .find(|b| b.id() == operands[index].buffer_id())
                .ok_or("no buffer")?;
            buffer.read(0, &mut found.bytes).map_err(|e| e.to_string())?;
            found.compare(expected, tolerance).map_err(|e| format!("{name}: {e}"))?;
        }
        Ok(())
    }
}

fn is_weight(name: &str) -> bool {
    name == "weight" || name == "table"
}

/// Packs in two calls where there are two rows, as merged matrices do.
fn pack(
    op: &dyn PreparedOp,
    weight: &Array,
    bytes: u64,
    upload: &mut impl FnMut(&Array) -> Result<Tensor, String>,
) -> Result<Tensor, String> {
    let dst = upload(&Array {
        dtype: DType::U8,
        shape: vec![bytes as u32],
        bytes: vec![0; bytes as usize],
    })?;
    let row_bytes = weight.bytes.len() / weight.rows();
    let half = weight.rows() / 2;
    for (first, count) in [(half, weight.rows() - half), (0, half)] {
        let rows = WeightRows {
            first_row: first as u32,
            num_rows: count as u32,
            bytes: &weight.bytes[first * row_bytes..][..count * row_bytes],
        };
        op.pack_weight(0, rows, &dst).map_err(|e| e.to_string())?;
    }
    Ok(dst)
}

fn latent_write(op: &LatentAttention) -> LatentWrite {
    LatentWrite {
        latent_dim: op.latent_dim,
        rope_dim: op.rope_dim,
        act: op.act,
        kv: op.kv,
        block_size: op.block_size,
        backend: op.backend,
        max_tokens: 1 << 16,
    }
}

fn kv_write(op: &Attention) -> KvWrite {
    KvWrite {
        num_kv_heads: op.num_kv_heads,
        head_dim: op.head_dim,
        act: op.act,
        kv: op.kv,
        block_size: op.block_size,
        backend: op.backend,
        max_tokens: 1 << 16,
    }
}

impl Array {
    fn read(tensors: &SafeTensors, name: &str) -> Self {
        let view = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I32 => DType::I32,
            Dtype::I8 => DType::I8,
            Dtype::U8 => DType::U8,
            Dtype::F8_E4M3 => DType::F8E4M3,
            other => panic!("{name}: {other:?} is not a type of the catalogue"),
        };
        let shape = view.shape().iter().map(|&d| d as u32).collect();
        Array {
            dtype,
            shape,
            bytes: view.data().to_vec(),
        }
    }

    /// Bytes that are NaN in every float type, so that an unwritten element is detected.
    fn poison(dtype: DType, shape: &[u32]) -> Self {
        let elements: usize = shape.iter().map(|&d| d as usize).product();
        Array {
            dtype,
            shape: shape.to_vec(),
            bytes: vec![0xFF; elements * dtype.bytes()],
        }
    }

    /// Rows of a weight: all axes but the last.
    fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().map(|&d| d as usize).product()
    }

    fn compare(&self, expected: &Array, tolerance: f32) -> Result<(), String> {
        if self.dtype != DType::F32 {
            let size = self.dtype.bytes();
            return match self
                .bytes
                .chunks(size)
                .zip(expected.bytes.chunks(size))
                .position(|(a, b)| a != b)
            {
                None => Ok(()),
                Some(i) => Err(format!(
                    "element {i} of {:?}: found {:02x?}, expected {:02x?}",
                    self.shape,
                    &self.bytes[i * size..][..size],
                    &expected.bytes[i * size..][..size]
                )),
            };
        }
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()
        };
        for (i, (a, b)) in floats(&self.bytes).into_iter().zip(floats(&expected.bytes)).enumerate() {
            let near = (a - b).abs() <= tolerance * (1.0 + b.abs());
            if !(a == b || near || (a.is_nan() && b.is_nan())) {
                return Err(format!("element {i} of {:?}: found {a}, expected {b}", self.shape));
            }
        }
        Ok(())
    }
}
