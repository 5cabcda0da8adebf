//! A model program compiled for a device: claimed regions and single ops are prepared, weights are packed, and each
//! operand is a template that lacks only the step's row counts. Encoding it allocates nothing.

use std::sync::Arc;

use halyard_models::program::{ActivationSlot, ModelProgram, Rows, TensorRole, WeightSpec};
use halyard_models::{ModelFiles, Weights};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{
    Buffer, BufferKind, Claim, DType, Device, Encoder, Node, OpId, OpSpec, PreparedOp, Program, Result as DeviceResult,
    Status, Tensor,
};

use crate::error::RunnerError;
use crate::preparer::Preparer;
use crate::template::{Extent, StepShape, Template};
use crate::weight_loader::{Part, Target, WeightLoader};

struct EncodedOp {
    /// For error messages.
    name: String,
    op: Arc<dyn PreparedOp>,
    id: OpId,
    operands: Vec<Template>,
    /// Left out of direct steps.
    gathers: bool,
}

/// A program on a device.
pub(crate) struct CompiledProgram {
    ops: Vec<EncodedOp>,
    scratch: Vec<Tensor>,
    /// Operands that are KV caches: op, operand, layer.
    kv_operands: Vec<(usize, usize, u32)>,
    /// Weights by the program's index, and what owns them.
    weights: LoadedWeights,
    pub scratch_bytes: u64,
    /// Why regions were left as single ops, for the log.
    pub left: String,
    /// Regions that run as one op.
    pub num_claims: usize,
}

impl CompiledProgram {
    /// Appends all ops at the step's counts.
    pub(crate) fn encode(&mut self, encoder: &mut dyn Encoder, shape: StepShape) -> DeviceResult<()> {
        for op in self.ops.iter().filter(|op| !(op.gathers && shape.direct)) {
            self.scratch.clear();
            self.scratch
                .extend(op.operands.iter().map(|template| template.at(shape)));
            encoder.encode(op.id, &self.scratch)?;
        }
        Ok(())
    }

    /// Gives the KV operands their memory, by layer.
    pub(crate) fn bind_kv(&mut self, cache_of_layer: &[Tensor]) {
        for &(op, operand, layer) in &self.kv_operands {
            self.ops[op].operands[operand] = Template::fixed(cache_of_layer[layer as usize]);
        }
    }

    pub(crate) fn num_ops(&self) -> usize {
        self.ops.len()
    }

    /// The first op that cannot be recorded.
    pub(crate) fn not_recordable(&self) -> Option<&str> {
        let op = self.ops.iter().find(|op| !op.op.info().recordable)?;
        Some(&op.name)
    }
}

/// Where the tensors of a program live: activations by slot, and the rest by role.
pub(crate) struct Places<'a> {
    pub activations: &'a [(Tensor, ActivationSlot)],
    pub role: &'a dyn Fn(TensorRole) -> Template,
}

/// Where a program's weights come from.
pub(crate) enum WeightSource<'a, 'l> {
    /// The model's files.
    Files(&'a ModelFiles, &'a mut WeightLoader<'l>),
    /// Another program whose first weights are the same ones in the same order.
    Shared(&'a CompiledProgram),
}

/// What is prepared as one op.
struct Segment {
    nodes: Claim,
    /// Of several nodes: a program of their own, and the tensors that its own stand for.
    region: Option<(Program, Vec<u16>)>,
}

/// A program cut into what is prepared as one op: the regions that the platform claims, and the nodes between them.
pub(crate) struct Cut<'m> {
    model: &'m ModelProgram,
    segments: Vec<Segment>,
    /// Regions that the platform claims.
    num_claims: usize,
    /// Why others were left.
    left: String,
}

impl<'m> Cut<'m> {
    /// Asks the platform.
    ///
    /// # Errors
    /// Errors of the device, and what is wrong with its claims.
    pub(crate) fn of(device: &dyn Device, model: &'m ModelProgram) -> Result<Cut<'m>, RunnerError> {
        model.program.validate()?;
        let report = device.ops().claim(&model.program)?;
        let program = &model.program;
        let segment = |nodes: Claim| Segment {
            region: (nodes.count > 1).then(|| program.region(nodes.first as usize, nodes.count as usize)),
            nodes,
        };
        Ok(Cut {
            model,
            segments: segments(&report.claims, program)?.into_iter().map(segment).collect(),
            num_claims: report.claims.len(),
            left: report.left,
        })
    }

    /// The single nodes.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &'m OpSpec> {
        let nodes = &self.model.program.nodes;
        let alone = self.segments.iter().filter(|segment| segment.region.is_none());
        alone.map(|segment| &nodes[segment.nodes.first as usize].spec)
    }

    /// The regions.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Program> {
        let regions = self.segments.iter().filter_map(|segment| segment.region.as_ref());
        regions.map(|(region, _)| region)
    }
}

/// Prepares and loads a program. `None` when ops are missing, which `preparer` has noted.
pub(crate) fn compile(
    device: &dyn Device,
    cut: &Cut<'_>,
    weights: WeightSource<'_, '_>,
    places: &Places<'_>,
    preparer: &mut Preparer<'_>,
) -> Result<Option<CompiledProgram>, RunnerError> {
    let model = cut.model;
    let mut ops: Vec<(Arc<dyn PreparedOp>, Vec<u16>, Claim)> = Vec::new();
    let mut complete = true;
    for Segment { nodes, region } in &cut.segments {
        if let Some((region, original)) = region {
            ops.push((preparer.region(region)?, original.clone(), *nodes));
            continue;
        }
        let node = &model.program.nodes[nodes.first as usize];
        match preparer.op(&node.spec)? {
            Some(op) => ops.push((op, node.operands.clone(), *nodes)),
            None => complete = false,
        }
    }
    if !complete {
        return Ok(None);
    }
    let (weights, buffers): LoadedWeights = match weights {
        WeightSource::Files(files, loader) => load_weights(device, model, &files.weights, &ops, loader)?,
        WeightSource::Shared(other) => share_weights(model, other, &ops)?,
    };
    let gathers = gathers(model, &ops);
    let template = |t: u16| match t {
        ABSENT => Template::fixed(Tensor::NONE),
        t => match model.roles[usize::from(t)] {
            TensorRole::Weight { index } => Template::fixed(weights[index as usize]),
            TensorRole::Activation {
                slot,
                column,
                width,
                heads,
            } => Template {
                direct: gathers
                    .iter()
                    .find(|gather| gather.to == slot)
                    .map(|gather| activation(&places.activations[gather.from as usize], column, width, heads).tensor),
                ..activation(&places.activations[slot as usize], column, width, heads)
            },
            TensorRole::Gathered {
                slot,
                first,
                count,
                width,
            } => gathered(&places.activations[slot as usize], first, count, width),
            TensorRole::RankColumns {
                slot,
                column,
                count,
                width,
            } => rank_columns(&places.activations[slot as usize], column, count, width),
            TensorRole::KvCache { .. } => Template::fixed(Tensor::NONE),
            role => (places.role)(role),
        },
    };
    let kv_layer = |t: u16| match model.roles.get(usize::from(t)) {
        Some(TensorRole::KvCache { layer }) => Some(*layer),
        _ => None,
    };
    let scratch_of = |op: &Arc<dyn PreparedOp>| op.info().scratch_bytes;
    let scratch_bytes = ops.iter().map(|(op, ..)| scratch_of(op)).max().unwrap_or(0);
    let mut encoded: Vec<EncodedOp> = Vec::with_capacity(ops.len());
    let mut kv_operands = Vec::new();
    for (op, operands, segment) in ops {
        let layers = operands
            .iter()
            .enumerate()
            .filter_map(|(j, &t)| Some((j, kv_layer(t)?)));
        kv_operands.extend(layers.map(|(j, layer)| (encoded.len(), j, layer)));
        encoded.push(EncodedOp {
            gathers: gathers.iter().any(|gather| gather.node == segment.first),
            name: segment_name(&model.program, segment),
            id: op.id(),
            op,
            operands: operands.into_iter().map(template).collect(),
        });
    }
    Ok(Some(CompiledProgram {
        scratch: Vec::with_capacity(model.program.tensors.len()),
        ops: encoded,
        kv_operands,
        weights: (weights.clone(), buffers),
        scratch_bytes,
        num_claims: cut.num_claims,
        left: cut.left.clone(),
    }))
}

/// Claims and the single nodes between them, in order.
fn segments(claims: &[Claim], program: &Program) -> Result<Vec<Claim>, RunnerError> {
    let num_nodes = program.nodes.len();
    let mut all = Vec::with_capacity(num_nodes);
    let mut next = 0;
    let refused = |message| {
        let error = halyard_platform_api::Error::new(Status::Internal, message);
        RunnerError::Device(error)
    };
    for claim in claims {
        if claim.first < next || claim.count < 1 || (claim.first + claim.count) as usize > num_nodes {
            let message = format!(
                "the platform claimed nodes {} to {}, which overlap or pass the end {num_nodes}",
                claim.first,
                claim.first + claim.count
            );
            return Err(refused(message));
        }
        let nodes = &program.nodes[claim.first as usize..][..claim.count as usize];
        let unnamed = |node: &Node| matches!(&node.spec, OpSpec::Collective(op) if op.communicator == 0);
        if claim.count > 1 && nodes.iter().any(unnamed) {
            let message = format!(
                "the platform claimed nodes {} to {} with a collective whose communicator it gave no number",
                claim.first,
                claim.first + claim.count
            );
            return Err(refused(message));
        }
        all.extend((next..claim.first).map(|first| Claim { first, count: 1 }));
        all.push(*claim);
        next = claim.first + claim.count;
    }
    all.extend((next..num_nodes as u32).map(|first| Claim { first, count: 1 }));
    Ok(all)
}

fn segment_name(program: &Program, segment: Claim) -> String {
    let first = segment.first as usize;
    let nodes = &program.nodes[first..first + segment.count as usize];
    nodes.iter().map(|node| node.spec.name()).collect::<Vec<_>>().join("+")
}

fn activation(place: &(Tensor, ActivationSlot), column: u32, width: u32, heads: u32) -> Template {
    let (base, slot) = place;
    let columns = base.columns(column, width);
    let tensor = if heads == 0 {
        columns
    } else {
        columns.view(
            0,
            &[base.shape[0], heads, width / heads],
            &[base.strides[0], width / heads, 1],
        )
    };
    let extent = if slot.rows == Rows::Tokens {
        Extent::Tokens
    } else {
        Extent::Logits
    };
    Template::new(tensor, extent)
}

/// Ranks' parts of a slot of densely gathered rows: [ranks, rows, width].
fn gathered((base, _): &(Tensor, ActivationSlot), first: u32, count: u32, width: u32) -> Template {
    let rows = base.shape[0];
    let by_rank = base.view(0, &[count, rows, width], &[rows * width, width, 1]);
    Template::new(by_rank, Extent::GatheredRanks { first })
}

/// Columns of a slot as [ranks, rows, width].
fn rank_columns((base, _): &(Tensor, ActivationSlot), column: u32, count: u32, width: u32) -> Template {
    let shape = [count, base.shape[0], width];
    let columns = base.view(u64::from(column), &shape, &[width, base.strides[0], 1]);
    Template::new(columns, Extent::LogitsInner)
}

/// A node that copies the wanted rows of slot `from` into slot `to`.
struct Gather {
    node: u32,
    from: u32,
    to: u32,
}

/// The gathers that direct steps can do without: single ops, from slots that no other op of the program uses. What
/// follows then takes the rows where they are, and may write over them.
fn gathers(model: &ModelProgram, ops: &[(Arc<dyn PreparedOp>, Vec<u16>, Claim)]) -> Vec<Gather> {
    let role = |t: u16| model.roles.get(usize::from(t)).copied();
    let slot = |t: u16| match role(t) {
        Some(TensorRole::Activation { slot, .. }) => Some(slot),
        _ => None,
    };
    let uses = |from: u32| {
        let nodes = model.program.nodes.iter();
        nodes
            .filter(|node| node.operands.iter().any(|&t| slot(t) == Some(from)))
            .count()
    };
    let single = ops.iter().filter(|(.., segment)| segment.count == 1);
    let found = single.filter_map(|(_, operands, segment)| {
        let node = segment.first;
        match (&model.program.nodes[node as usize].spec, operands.as_slice()) {
            (OpSpec::GatherRows(_), &[x, index, out]) if role(index) == Some(TensorRole::LogitsIndex) => Some(Gather {
                node,
                from: slot(x)?,
                to: slot(out)?,
            }),
            _ => None,
        }
    });
    found.filter(|gather| uses(gather.from) == 1).collect()
}

/// Tensors of a program's weights, by index, and what owns them.
type LoadedWeights = (Vec<Tensor>, Vec<Arc<dyn Buffer>>);

/// Allocates and fills every weight.
fn load_weights(
    device: &dyn Device,
    model: &ModelProgram,
    weights: &Weights,
    ops: &[(Arc<dyn PreparedOp>, Vec<u16>, Claim)],
    loader: &mut WeightLoader<'_>,
) -> Result<LoadedWeights, RunnerError> {
    let mut tensors = Vec::with_capacity(model.weights.len());
    let mut buffers = Vec::with_capacity(model.weights.len());
    for spec in &model.weights {
        let (tensor, buffer) = match spec {
            WeightSpec::Vector { parts, rows } => {
                let mut values: Vec<f32> = Vec::new();
                for part in parts {
                    let whole = weights.tensor(part.role)?.to_f32()?;
                    values.extend(&whole[part.first_row as usize..(part.first_row + part.rows) as usize]);
                }
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                let buffer = device.create_buffer(bytes.len() as u64, BufferKind::Device)?;
                buffer.write(0, &bytes)?;
                let count = values.len() as u32;
                let shape = if *rows > 1 {
                    vec![*rows, count / rows]
                } else {
                    vec![count]
                };
                (Tensor::contiguous(buffer.id(), 0, DType::F32, &shape), buffer)
            }
            WeightSpec::Matrix {
                node,
                parts,
                in_features,
                format,
            } => {
                let (op, segment) = owner_of(ops, *node)?;
                let node = node - segment.first;
                let bytes = op.packed_weight_bytes(node)?;
                let buffer = device.create_buffer(bytes, BufferKind::Device)?;
                let tensor = Tensor::opaque(buffer.id(), 0, bytes);
                let mut first_row = 0;
                for part in parts {
                    let stored = Part {
                        role: part.role,
                        rows: part.first_row..part.first_row + part.rows,
                        columns: part.first_column..part.first_column + in_features,
                        format: *format,
                    };
                    let target = Target {
                        op: &**op,
                        node,
                        first_row,
                        dst: &tensor,
                    };
                    loader.pack(weights, &stored, target)?;
                    first_row += part.rows;
                }
                (tensor, buffer)
            }
        };
        tensors.push(tensor);
        buffers.push(buffer);
    }
    Ok((tensors, buffers))
}

/// The weights of another program that has the same ones. A matrix is packed as its linear's descriptor says, whatever
/// region the linear is part of ([decision 0023](../../../docs/decisions/0023-lora-programs.md)): a platform that packs
/// otherwise is found by the size.
fn share_weights(
    model: &ModelProgram,
    other: &CompiledProgram,
    ops: &[(Arc<dyn PreparedOp>, Vec<u16>, Claim)],
) -> Result<LoadedWeights, RunnerError> {
    let (tensors, buffers) = &other.weights;
    if tensors.len() < model.weights.len() {
        return Err(RunnerError::Internal(
            "a program has more weights than the one it shares them with",
        ));
    }
    for (spec, tensor) in model.weights.iter().zip(tensors) {
        let WeightSpec::Matrix { node, .. } = spec else {
            continue;
        };
        let (op, segment) = owner_of(ops, *node)?;
        let bytes = op.packed_weight_bytes(node - segment.first)?;
        if bytes != tensor.span_bytes() {
            let message = format!(
                "a matrix takes {} bytes packed in one program of the model and {bytes} in another: this platform \
                 serves neither LoRA nor hidden states",
                tensor.span_bytes()
            );
            return Err(halyard_platform_api::Error::unsupported(message).into());
        }
    }
    Ok((tensors[..model.weights.len()].to_vec(), buffers.clone()))
}

/// The op that packs a node's matrix.
fn owner_of(
    ops: &[(Arc<dyn PreparedOp>, Vec<u16>, Claim)],
    node: u32,
) -> Result<(&Arc<dyn PreparedOp>, Claim), RunnerError> {
    let owner = ops.iter().find(|(.., s)| (s.first..s.first + s.count).contains(&node));
    let (op, _, segment) = owner.ok_or(RunnerError::Internal("a weight's node is in no segment"))?;
    Ok((op, *segment))
}

impl std::fmt::Debug for EncodedOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "op {} {} ({} operands, {:?})",
            self.id.0,
            self.name,
            self.operands.len(),
            self.op.info()
        )
    }
}
