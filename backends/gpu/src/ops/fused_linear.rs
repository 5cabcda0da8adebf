//! The norm before a projection, and the gating after it, in the projection's own kernel: rms_norm → linear(s) (→
//! silu_mul or gelu_mul).
//!
//! Small batches in bf16 take one launch a projection, where the program says that no other op reads the values in
//! between. Tens of tokens take tiles with the gating; where they are rounded for it, that launch computes the norm
//! too. All other calls, types and formats run the region's ops one after another, as they would have run unclaimed,
//! over the same packed weights.

use halyard_platform_api::ops::{self, Epilogue};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{DType, Node, OpSpec, Program, Result};

use super::linear::{
    DenseTiles, Fusion, Linear, RECORD_ROWS, SmallBatch, SmallBatchCall, WeightLayout, rows_aligned, scales_at,
};
use super::names::gate_of;
use super::parts::{self, Parts};
use crate::driver::DevicePtr;
use crate::encoding::Encoding;
use crate::kernel::{Kernel, Packer, Preparation, RowSource, both};
use crate::view::View;

/// Number of nodes from `first` on that run as one op; `None`: not such a region.
pub(crate) fn matches(program: &Program, first: usize) -> Option<usize> {
    let count = extent(program, first)?;
    let nodes = &program.nodes[first..first + count];
    nodes
        .iter()
        .all(|node| super::build(&node.spec).is_ok())
        .then_some(count)
}

/// The kernel of a region that [`matches`] whole.
pub(crate) fn build(program: &Program) -> Result<Fused> {
    let plan = Plan::of(program);
    let part = |node: &Node| -> Result<Box<dyn Kernel>> {
        match &node.spec {
            OpSpec::Linear(op) if plan.is_some() => Ok(Box::new(Linear::of_a_composite(op)?)),
            spec => super::build(spec),
        }
    };
    Ok(Fused {
        parts: Parts::of(program, part)?,
        plan,
        small_batches: Vec::new(),
        most_tokens: 0,
        tiles: None,
    })
}

/// A norm, all linears that read it, and the gating of what they wrote.
fn extent(program: &Program, first: usize) -> Option<usize> {
    let norm = program.nodes.get(first)?;
    let OpSpec::RmsNorm(spec) = &norm.spec else {
        return None;
    };
    let normed = norm.operands[2];
    let storage = |t: u16| program.tensors.get(usize::from(t)).map(|decl| decl.storage);
    let mut count = 1;
    while let Some(node) = program.nodes.get(first + count) {
        let OpSpec::Linear(op) = &node.spec else { break };
        let reads = node.operands[0] == normed && op.in_features == spec.width && op.act == spec.dtype;
        if !reads || storage(node.operands[4]) == storage(normed) {
            break;
        }
        count += 1;
    }
    if count == 1 {
        return None;
    }
    if let Some(node) = program.nodes.get(first + count)
        && gate_of(&node.spec).is_some()
    {
        let written = |t: u16| {
            let mut linears = program.nodes[first + 1..first + count].iter();
            linears.any(|linear| storage(linear.operands[4]) == storage(t))
        };
        if written(node.operands[0]) && written(node.operands[1]) {
            count += 1;
        }
    }
    Some(count)
}

/// One launch instead of several nodes: tensors by their index.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    /// The linear whose block shape it takes; out_features counts output values.
    op: ops::Linear,
    layout: WeightLayout,
    gate: &'static str,
    weight: u16,
    bias: u16,
    residual: u16,
    out: u16,
    up: Up,
}

impl Step {
    /// Whether its product in tiles computes the norm, too.
    fn norms(&self) -> bool {
        DenseTiles::norms(&self.op, self.layout)
    }
}

/// Where the up part of a gated step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Up {
    None,
    /// In the same matrix, after the gate's rows: the product that is never written, and its halves.
    Below {
        product: u16,
        gate: u16,
        up: u16,
    },
    /// In a matrix of its own.
    Apart {
        weight: u16,
        bias: u16,
    },
}

/// What the launches share, or why there are none.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    x: u16,
    normed: u16,
    norm: u16,
    offset: f32,
    eps: f32,
    steps: Vec<Step>,
}

impl Plan {
    /// Steps stay empty where only the parts give the right result.
    fn of(program: &Program) -> Option<Plan> {
        let norm = &program.nodes[0];
        let OpSpec::RmsNorm(spec) = &norm.spec else { return None };
        let decl = |t: u16| &program.tensors[usize::from(t)];
        // In f16 the product with the norm's weight can leave the type's range before the root brings it back.
        if spec.dtype != DType::BF16 || !decl(norm.operands[2]).internal {
            return None;
        }
        let (linears, gating) = match program.nodes.last() {
            Some(last) if gate_of(&last.spec).is_some() => (&program.nodes[1..program.nodes.len() - 1], Some(last)),
            _ => (&program.nodes[1..], None),
        };
        let mut steps = Vec::new();
        for node in linears {
            let OpSpec::Linear(op) = &node.spec else { return None };
            let layout = WeightLayout::of(op);
            let known = layout != WeightLayout::Plain(DType::F32) && layout != WeightLayout::Plain(DType::F16);
            if !known || !(layout.takes_small_batches(op) || DenseTiles::may_take(op, layout)) {
                return None;
            }
            steps.push(Step {
                op: op.clone(),
                layout,
                gate: "0",
                weight: node.operands[1],
                bias: node.operands[2],
                residual: node.operands[3],
                out: node.operands[4],
                up: Up::None,
            });
        }
        if let Some(gating) = gating {
            let (width, dtype, gate) = gate_of(&gating.spec)?;
            let internal = steps.iter().all(|step| decl(step.out).internal);
            let bare = |s: &Step| s.residual == ABSENT && s.op.epilogue == Epilogue::None && s.op.out == dtype;
            if !internal || !steps.iter().all(bare) {
                return None;
            }
            let (from, up, out) = (gating.operands[0], gating.operands[1], gating.operands[2]);
            steps = vec![gated(&steps, from, up, width)?];
            steps[0].gate = gate;
            steps[0].out = out;
        }
        let x = norm.operands[0];
        // The normed tensor stays unwritten, so nothing may add it.
        let normed = decl(norm.operands[2]).storage;
        if steps
            .iter()
            .any(|step| step.residual != ABSENT && decl(step.residual).storage == normed)
        {
            return None;
        }
        // Blocks write results while others still read x.
        if steps.iter().any(|step| decl(step.out).storage == decl(x).storage) {
            return None;
        }
        Some(Plan {
            x,
            normed: norm.operands[2],
            norm: norm.operands[1],
            offset: spec.weight_offset,
            eps: spec.eps,
            steps,
        })
    }
}

/// The linears of a gate and its up part as one step.
fn gated(linears: &[Step], gate: u16, up: u16, width: u32) -> Option<Step> {
    let of = |t: u16| {
        linears
            .iter()
            .find(|step| step.out == t && step.op.out_features == width)
    };
    let (first, up) = match linears {
        [both] if both.op.out_features == 2 * width => {
            let product = both.out;
            (both, Up::Below { product, gate, up })
        }
        [_, _] if gate != up => {
            let (first, second) = (of(gate)?, of(up)?);
            if first.op.weight != second.op.weight || first.layout != second.layout {
                return None;
            }
            let (weight, bias) = (second.weight, second.bias);
            (first, Up::Apart { weight, bias })
        }
        _ => return None,
    };
    let mut step = first.clone();
    step.op.out_features = width;
    step.up = up;
    Some(step)
}

/// A claimed region.
pub(crate) struct Fused {
    parts: Parts,
    plan: Option<Plan>,
    /// Compiled, one a step of the plan; none where another kernel is better for any number of tokens.
    small_batches: Vec<SmallBatch>,
    /// Most tokens for which all of these beat the parts.
    most_tokens: u32,
    /// The product and its gating for tens of tokens, behind a norm by itself; where tokens are rounded, the launch for
    /// that also computes the norm.
    tiles: Option<DenseTiles>,
}

impl Fused {
    /// The launches of a call, or `None` where its parts must run. Depends on shapes, strides and addresses only.
    fn calls(&self, tensors: &[View]) -> Option<Vec<SmallBatchCall>> {
        let plan = self.plan.as_ref()?;
        let tokens = parts::view(tensors, plan.x).len();
        let pays = tokens <= self.most_tokens && self.small_batches.iter().all(|kernel| kernel.takes_tokens(tokens));
        pays.then(|| Fused::steps(plan, tensors)).flatten()
    }

    /// The product in tiles of a call that it pays for, with the norm where `with_norm` says so, or behind it.
    fn in_tiles(&self, tensors: &[View], with_norm: bool) -> Option<(&DenseTiles, SmallBatchCall)> {
        let (plan, tiles) = (self.plan.as_ref()?, self.tiles.as_ref()?);
        let [step] = Fused::steps(plan, tensors)?[..] else {
            return None;
        };
        let call = match with_norm {
            true => step,
            false => SmallBatchCall {
                x: parts::view(tensors, plan.normed),
                norm: 0,
                ..step
            },
        };
        (call.x.is_inner_contiguous() && tiles.takes_call(&call)).then_some((tiles, call))
    }

    /// The operands of a plan's steps, where they lie as its launches need.
    fn steps(plan: &Plan, tensors: &[View]) -> Option<Vec<SmallBatchCall>> {
        let view = |t: u16| parts::view(tensors, t);
        let (x, norm) = (view(plan.x), view(plan.norm));
        let plain = x.rank == 2 && x.is_inner_contiguous() && rows_aligned(&x, 16) && norm.ptr.is_multiple_of(16);
        if !plain {
            return None;
        }
        let one = |step: &Step| {
            let (n, k) = (u64::from(step.op.out_features), u64::from(step.op.in_features));
            let (weight, bias) = (view(step.weight).ptr, view(step.bias).ptr);
            let (out, residual) = (view(step.out), view(step.residual));
            // Rows that a matrix has above the up part, and of which matrix they are.
            let (weight_up, bias_up, above) = match step.up {
                Up::None => (0, 0, 0),
                Up::Apart { weight, bias } => (view(weight).ptr, view(bias).ptr, 0),
                Up::Below { product, gate, up } => {
                    if !halves(&view(product), &view(gate), &view(up), n) {
                        return None;
                    }
                    (weight, if bias == 0 { 0 } else { bias + 4 * n }, n)
                }
            };
            let (scale, scale_up, row_bytes) = match step.layout {
                WeightLayout::Scaled => {
                    let scales = scales_at(n + above, k);
                    (weight + scales, weight_up + scales + 4 * above, k)
                }
                // Records are found by their rows' numbers; an up part begins with one.
                WeightLayout::Planes(_) if !above.is_multiple_of(RECORD_ROWS) => return None,
                WeightLayout::Planes(_) => (0, 0, 0),
                WeightLayout::Plain(_) => (0, 0, 2 * k),
            };
            let weight_up = weight_up + above * row_bytes;
            let contiguous = out.is_inner_contiguous() && (residual.is_none() || residual.is_inner_contiguous());
            contiguous.then_some(SmallBatchCall {
                x,
                weight,
                weight_up,
                scale,
                scale_up,
                norm: norm.ptr,
                bias,
                bias_up,
                residual,
                out,
                in_features: step.op.in_features,
                out_features: step.op.out_features,
                matrix_rows: (n + above) as u32,
                first_up: above as u32,
                norm_offset: plan.offset,
                eps: plan.eps,
            })
        };
        plan.steps.iter().map(one).collect()
    }
}

/// Whether `gate` and `up` are the left and right n columns of `product`.
fn halves(product: &View, gate: &View, up: &View, n: u64) -> bool {
    let bytes = n * product.dtype.bytes() as u64;
    let same_rows = |view: &View| product.len() <= 1 || view.row_stride() == product.row_stride();
    gate.ptr == product.ptr && up.ptr == product.ptr + bytes && same_rows(gate) && same_rows(up)
}

impl Kernel for Fused {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let Some(plan) = &self.plan else {
            return self.parts.prepare(cx);
        };
        let small_batch = |step: &Step| {
            let (norm, gate) = (true, step.gate);
            SmallBatch::prepare(cx, &step.op, step.layout, &Fusion { norm, gate })
        };
        // A product without gating that leaves the norm alone is the linear's own business.
        let tiles = || match &plan.steps[..] {
            [step] if step.gate != "0" || step.norms() => {
                let (norm, gate) = (step.norms(), step.gate);
                DenseTiles::prepare(cx, &step.op, step.layout, &Fusion { norm, gate })
            }
            _ => Ok(None),
        };
        let most = |step: &Step| match step.layout.takes_small_batches(&step.op) {
            true => SmallBatch::most_tokens(&step.op, step.layout, step.gate != "0", cx.facts(), cx.policy()),
            false => 0,
        };
        let most_tokens = plan.steps.iter().map(most).min().unwrap_or(0);
        let small_batches = || match most_tokens {
            0 => Ok(Vec::new()),
            _ => plan.steps.iter().map(small_batch).collect::<Result<Vec<_>>>(),
        };
        let parts = &mut self.parts;
        let own = || both(tiles, small_batches);
        (_, (self.tiles, self.small_batches)) = both(|| parts.prepare(cx), own)?;
        self.most_tokens = most_tokens;
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        let of_tiles = self.tiles.as_ref().map_or(0, DenseTiles::scratch_bytes);
        self.parts.scratch_bytes().max(of_tiles)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        self.parts.check(operands)?;
        if let Some(calls) = self.calls(operands) {
            for (kernel, call) in self.small_batches.iter().zip(&calls) {
                kernel.encode_fused(encoding, call);
            }
            return Ok(());
        }
        self.encode_parts(0, encoding, operands)
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        self.parts.packed_weight_bytes(node)
    }

    fn pack_weight(
        &self,
        packer: &dyn Packer,
        node: u32,
        first_row: u32,
        num_rows: u32,
        source: RowSource<'_>,
        dst: DevicePtr,
    ) -> Result<()> {
        self.parts.pack_weight(packer, node, first_row, num_rows, source, dst)
    }
}

impl Fused {
    /// Whether a call runs as launches that make the norm themselves.
    pub(super) fn norms_itself(&self, tensors: &[View]) -> bool {
        self.calls(tensors).is_some()
    }

    /// Runs the region's ops from node `first` on, one after another.
    pub(super) fn encode_parts(&self, first: usize, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let with_norm = first == 0 && self.tiles.as_ref().is_some_and(DenseTiles::computes_norm);
        let Some((tiles, call)) = self.in_tiles(operands, with_norm) else {
            return self.parts.encode(first.., encoding, operands);
        };
        if !with_norm {
            self.parts.encode(first..first.max(1), encoding, operands)?;
        }
        tiles.encode_fused(encoding, &call);
        Ok(())
    }
}

#[cfg(test)]
#[path = "fused_linear/tests.rs"]
mod tests;
