//! The experts of a layer as one region: gate and up → gating → down → combine (→ add to the residual stream).
//!
//! The list of choices is made once, gate, up and gating are one launch, combine and add another. What the kernels do
//! not take (other weights, odd rows) runs op by op, over the same packed weights. Where other ranks have some of the
//! experts, their choices cost nothing: the list leaves them out, and combine does not read them.

use halyard_kernels_gpu::MOE_LIST;
use halyard_platform_api::ops;
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{Error, Node, OpSpec, Program, Result};

use super::expert_list::{Elsewhere, ExpertList};
use super::products::{Call, Products};
use super::support::{MAX_GRID_Y, THREADS};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Packer, Preparation, RowSource};
use crate::ops::build as build_op;
use crate::ops::names::{Gate, expert_gate_of, float_name};
use crate::ops::parts::{self, Parts};
use crate::view::View;

/// The nodes of a region: gate, up, gating, down, combine.
const NODES: usize = 5;

/// Number of nodes from `first` on that run as one op; `None`: not such a region.
pub(crate) fn matches(program: &Program, first: usize) -> Option<usize> {
    let plan = Plan::of(program, first)?;
    let count = NODES + usize::from(plan.add.is_some());
    let nodes = &program.nodes[first..first + count];
    nodes.iter().all(|node| build_op(&node.spec).is_ok()).then_some(count)
}

/// The kernel of a region that [`matches`] whole.
pub(crate) fn build(program: &Program) -> Result<Experts> {
    let plan = Plan::of(program, 0).ok_or_else(|| Error::unsupported("a region that is no layer's experts"))?;
    Ok(Experts {
        parts: Parts::of(program, |node| build_op(&node.spec))?,
        plan,
        compiled: None,
    })
}

/// The addition behind the experts: tensors by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Addition {
    residual: u16,
    out: u16,
}

/// What the launches need, by tensors' indices.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    gate: ops::MoeLinear,
    down: ops::MoeLinear,
    combine: ops::MoeCombine,
    joined: Gate,
    add: Option<Addition>,
    /// Of experts on other ranks: left out where combine alone reads what down writes.
    elsewhere: Elsewhere,
    /// Operands of gate, up, gating, down and combine.
    nodes: [Vec<u16>; NODES],
}

impl Plan {
    /// `None` where the nodes from `first` on are no such region, or others read what it would not write.
    fn of(program: &Program, first: usize) -> Option<Plan> {
        let nodes = program.nodes.get(first..first + NODES)?;
        let [gate, up, gating, down, combine] = nodes else {
            return None;
        };
        let (OpSpec::MoeLinear(gate_op), OpSpec::MoeLinear(up_op)) = (&gate.spec, &up.spec) else {
            return None;
        };
        let (OpSpec::MoeLinear(down_op), OpSpec::MoeCombine(combine_op)) = (&down.spec, &combine.spec) else {
            return None;
        };
        let (width, dtype, joined) = expert_gate_of(&gating.spec)?;
        let decl = |t: u16| &program.tensors[usize::from(t)];
        let same_memory = |a: u16, b: u16| decl(a).storage == decl(b).storage;
        let of = |node: &Node, index: usize| node.operands[index];
        let same_inputs = of(gate, 0) == of(up, 0) && of(gate, 2) == of(up, 2) && of(gate, 2) == of(down, 2);
        let shapes = gate_op == up_op
            && down_op.in_features == gate_op.out_features
            && (down_op.top_k, down_op.num_experts, down_op.dtype) == (gate_op.top_k, gate_op.num_experts, dtype)
            && (down_op.first_expert, down_op.total_experts) == (gate_op.first_expert, gate_op.total_experts)
            && gate_op.dtype == dtype
            && width == gate_op.top_k * gate_op.out_features;
        let chain = same_memory(of(gate, 3), of(gating, 0))
            && same_memory(of(up, 3), of(gating, 1))
            && same_memory(of(gating, 2), of(down, 0))
            && of(down, 3) == of(combine, 0)
            && combine_op.top_k == gate_op.top_k
            && (combine_op.width, combine_op.dtype) == (down_op.out_features, dtype);
        let unwritten = [of(gate, 3), of(up, 3), of(gating, 0), of(gating, 1)];
        let internal = unwritten.iter().all(|&t| decl(t).internal);
        // Blocks write what is activated while others still read x.
        if !(same_inputs && shapes && chain && internal) || same_memory(of(gate, 0), of(gating, 2)) {
            return None;
        }
        let behind = program.nodes.get(first + NODES);
        let add = behind.and_then(|node| addition(program, node, of(combine, 2)));
        let added_too = add.is_some_and(|add| same_memory(add.residual, of(down, 3)));
        let elsewhere = match decl(of(down, 3)).internal && !added_too {
            true => Elsewhere::LeftOut,
            false => Elsewhere::Zeros,
        };
        Some(Plan {
            gate: gate_op.clone(),
            down: down_op.clone(),
            combine: combine_op.clone(),
            joined,
            add,
            elsewhere,
            nodes: [gate, up, gating, down, combine].map(|node| node.operands.clone()),
        })
    }
}

/// The addition of `sum`, where only that reads it.
fn addition(program: &Program, node: &Node, sum: u16) -> Option<Addition> {
    let OpSpec::Add(_) = &node.spec else { return None };
    let [first, second, out] = node.operands[..] else {
        return None;
    };
    let residual = match (first == sum, second == sum) {
        (true, false) => second,
        (false, true) => first,
        _ => return None,
    };
    let storage = |t: u16| program.tensors[usize::from(t)].storage;
    let apart = storage(residual) != storage(sum) && storage(out) != storage(sum);
    (apart && program.tensors[usize::from(sum)].internal).then_some(Addition { residual, out })
}

/// What [`Kernel::prepare`] makes.
struct Compiled {
    list: ExpertList,
    gate: Products,
    down: Products,
    combine: Function,
}

/// A claimed region.
pub(crate) struct Experts {
    parts: Parts,
    plan: Plan,
    /// `None` where matrix units do not take the experts.
    compiled: Option<Compiled>,
}

impl Experts {
    /// The operands of the two products, or `None` where the region runs op by op. Depends on shapes, strides and
    /// addresses only.
    fn calls(&self, compiled: &Compiled, view: impl Fn(u16) -> View) -> Option<[Call; 2]> {
        let Plan {
            gate,
            down,
            nodes,
            elsewhere,
            ..
        } = &self.plan;
        let operand = |node: usize, index: usize| view(nodes[node].get(index).copied().unwrap_or(ABSENT));
        let (gate_out, up_out) = (operand(0, 3), operand(1, 3));
        let same = |rows: &View, columns: &View| {
            let whole = rows.strides[1] == gate.out_features && rows.strides[2] == 1 && columns.strides[1] == 1;
            let far = rows.len() <= 1 || rows.strides[0] == columns.row_stride();
            rows.ptr == columns.ptr && whole && far
        };
        let down_x = operand(3, 0);
        let chained = same(&gate_out, &operand(2, 0)) && same(&up_out, &operand(2, 1)) && same(&down_x, &operand(2, 2));
        let biases = [operand(0, 4), operand(1, 4), operand(3, 4)];
        let dense = |bias: &View| {
            bias.is_none() || (bias.is_inner_contiguous() && (bias.rank == 1 || bias.row_stride() == bias.shape[1]))
        };
        if !chained || !biases.iter().all(dense) {
            return None;
        }
        let experts = operand(0, 2);
        let first = Call {
            x: operand(0, 0),
            weight: operand(0, 1).ptr,
            weight_up: operand(1, 1).ptr,
            experts,
            elsewhere: *elsewhere,
            out: down_x,
            bias: biases[0].ptr,
            bias_up: biases[1].ptr,
        };
        let second = Call {
            x: down_x,
            weight: operand(3, 1).ptr,
            weight_up: 0,
            experts,
            elsewhere: *elsewhere,
            out: operand(3, 3),
            bias: biases[2].ptr,
            bias_up: 0,
        };
        let added = self
            .plan
            .add
            .map_or([View::NONE; 2], |add| [view(add.residual), view(add.out)]);
        let rows = [operand(4, 2), added[0], added[1]];
        let whole = |view: &View| {
            let row = u64::from(view.row_stride()) * self.plan.combine.dtype.bytes() as u64;
            view.is_none() || (view.is_inner_contiguous() && view.ptr.is_multiple_of(16) && row.is_multiple_of(16))
        };
        let inner = first.x.strides[2] == 1 && second.out.strides[2] == 1 && experts.is_inner_contiguous();
        let eights = self.plan.combine.width.is_multiple_of(8) && rows.iter().all(whole);
        let suits = inner && eights && compiled.gate.suits(gate, &first) && compiled.down.suits(down, &second);
        suits.then_some([first, second])
    }

    /// combine, and the addition behind it.
    fn combine(&self, function: Function, encoding: &mut Encoding, view: impl Fn(u16) -> View) {
        let Plan {
            down,
            combine,
            add,
            elsewhere,
            nodes,
            ..
        } = &self.plan;
        let (x, weights, sum) = (view(nodes[4][0]), view(nodes[4][1]), view(nodes[4][2]));
        let (residual, out) = match add {
            Some(add) => (view(add.residual), view(add.out)),
            None => (View::NONE, sum),
        };
        let unread = down.total_experts != 0 && *elsewhere == Elsewhere::LeftOut;
        let experts = if unread { view(nodes[3][2]) } else { View::NONE };
        let args = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.strides[0]),
            Arg::U32(x.strides[1]),
            Arg::Ptr(weights.ptr),
            Arg::U32(weights.row_stride()),
            Arg::Ptr(experts.ptr),
            Arg::U32(experts.strides[0]),
            Arg::U32(down.first_expert),
            Arg::U32(down.num_experts),
            Arg::Ptr(residual.ptr),
            Arg::U32(residual.strides[0]),
            Arg::Ptr(out.ptr),
            Arg::U32(out.row_stride()),
            Arg::U32(out.len()),
            Arg::U32(combine.top_k),
            Arg::U32(combine.width),
        ];
        let grid = [combine.width.div_ceil(8 * THREADS), out.len().min(MAX_GRID_Y), 1];
        encoding.launch(function, grid, THREADS, 0, &args);
    }
}

impl Kernel for Experts {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.parts.prepare(cx)?;
        let Plan { gate, down, joined, .. } = &self.plan;
        let (Some(gate), Some(down), Some(act)) = (
            Products::prepare(cx, gate, Some(joined), true)?,
            Products::prepare(cx, down, None, true)?,
            float_name(gate.dtype),
        ) else {
            return Ok(());
        };
        self.compiled = Some(Compiled {
            list: ExpertList::prepare(cx, act)?,
            gate,
            down,
            combine: cx.function(MOE_LIST, &[("ACT", act)], "moe_combine_add", 0)?,
        });
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        let Plan { gate, down, .. } = &self.plan;
        let products = match &self.compiled {
            Some(compiled) => compiled.gate.scratch_bytes(gate).max(compiled.down.scratch_bytes(down)),
            None => 0,
        };
        self.parts.scratch_bytes().max(products)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        self.parts.check(operands)?;
        let view = |t: u16| parts::view(operands, t);
        if let Some(compiled) = &self.compiled
            && let Some([first, second]) = self.calls(compiled, view)
        {
            if Products::reads_list(first.out.len()) {
                let Plan {
                    gate, elsewhere, nodes, ..
                } = &self.plan;
                let matrices = [view(nodes[0][1]), view(nodes[1][1])];
                compiled
                    .list
                    .encode(encoding, gate, &first.experts, *elsewhere, Some(matrices));
            }
            compiled.gate.encode(encoding, &self.plan.gate, &first);
            compiled.down.encode(encoding, &self.plan.down, &second);
            self.combine(compiled.combine, encoding, view);
            return Ok(());
        }
        self.parts.encode(.., encoding, operands)
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

#[cfg(test)]
#[path = "fused_experts/tests.rs"]
mod tests;
