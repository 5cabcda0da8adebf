//! Composites: a flat list of catalogue ops over numbered tensors. A model's step is one; so is any region of it that a
//! backend claims to run as one op.

use crate::dtype::DType;
use crate::ops::{Access, OpSpec};
use crate::status::{Error, Result};

/// The operand index that says "absent" for an optional operand.
pub const ABSENT: u16 = u16::MAX;

/// One op of a program over tensor indices.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op.
    pub spec: OpSpec,
    /// One tensor index per operand of the op, in its documented order; [`ABSENT`] for an optional one left out.
    pub operands: Vec<u16>,
}

/// A tensor of a program. Shapes come with the operands at encoding; a program fixes types and roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorDecl {
    /// Element type.
    pub dtype: DType,
    /// Nobody outside the program reads it afterwards: an implementation may leave its memory untouched.
    pub internal: bool,
    /// Tensors with the same number share memory (q, k and v are slices of one product); others never overlap.
    pub storage: u32,
}

/// A flat list of ops. Node order is execution order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The tensors that nodes name by index.
    pub tensors: Vec<TensorDecl>,
    /// The ops.
    pub nodes: Vec<Node>,
}

impl Program {
    /// Checks indices, operand counts and that required operands are there.
    ///
    /// # Errors
    /// `InvalidArgument` naming the node and the operand.
    pub fn validate(&self) -> Result<()> {
        for (i, node) in self.nodes.iter().enumerate() {
            let expected = node.spec.operands();
            if node.operands.len() != expected.len() {
                return Err(Error::invalid(format!(
                    "node {i} ({}) has {} operands, the op takes {}",
                    node.spec.name(),
                    node.operands.len(),
                    expected.len()
                )));
            }
            for (operand, &tensor) in expected.iter().zip(&node.operands) {
                let absent_allowed = tensor == ABSENT && operand.optional;
                if !absent_allowed && usize::from(tensor) >= self.tensors.len() {
                    return Err(Error::invalid(format!(
                        "node {i} ({}): operand `{}` names tensor {tensor} of {}",
                        node.spec.name(),
                        operand.name,
                        self.tensors.len()
                    )));
                }
            }
        }
        Ok(())
    }

    /// The sub-program of nodes `first .. first + count`, with its tensors renumbered in order of first use, and the
    /// original index of each. A tensor is internal in it when the region writes it first and no later node reads it.
    pub fn region(&self, first: usize, count: usize) -> (Program, Vec<u16>) {
        let mut original = Vec::new();
        let mut nodes = Vec::with_capacity(count);
        for node in &self.nodes[first..first + count] {
            let operands = node.operands.iter().map(|&t| renumber(t, &mut original)).collect();
            nodes.push(Node {
                spec: node.spec.clone(),
                operands,
            });
        }
        let mut storages = Vec::new();
        let tensors = original
            .iter()
            .map(|&t| {
                let decl = self.tensors[usize::from(t)];
                let internal = decl.internal && self.dies_within(t, first, count);
                let storage = storages.iter().position(|&s| s == decl.storage).unwrap_or_else(|| {
                    storages.push(decl.storage);
                    storages.len() - 1
                });
                TensorDecl {
                    internal,
                    storage: storage as u32,
                    ..decl
                }
            })
            .collect();
        (Program { tensors, nodes }, original)
    }

    /// Whether what the region leaves in tensor `t` is never read: its memory is first written inside, and afterwards read by
    /// nobody before `t` is written again.
    fn dies_within(&self, t: u16, first: usize, count: usize) -> bool {
        let storage = self.tensors[usize::from(t)].storage;
        let shares = |o: u16| o != ABSENT && self.tensors[usize::from(o)].storage == storage;
        let accesses = |range: std::ops::Range<usize>| {
            self.nodes[range].iter().flat_map(move |node| {
                let both = node
                    .operands
                    .iter()
                    .copied()
                    .zip(node.spec.operands().iter().map(|operand| operand.access));
                both.filter(move |&(o, _)| shares(o))
            })
        };
        let born = accesses(first..first + count)
            .next()
            .is_some_and(|(_, access)| access == Access::Write);
        let next = accesses(first + count..self.nodes.len()).find(|&(o, access)| access != Access::Write || o == t);
        born && next.is_none_or(|(_, access)| access == Access::Write)
    }
}

fn renumber(tensor: u16, original: &mut Vec<u16>) -> u16 {
    if tensor == ABSENT {
        return ABSENT;
    }
    let at = original.iter().position(|&o| o == tensor).unwrap_or_else(|| {
        original.push(tensor);
        original.len() - 1
    });
    at as u16
}

/// A region that a backend wants whole: nodes `first .. first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Index of the first node.
    pub first: u32,
    /// Number of nodes, at least 2.
    pub count: u32,
}

/// The answer to a program: disjoint claims in order, and in words what was left and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimReport {
    /// Disjoint, ascending.
    pub claims: Vec<Claim>,
    /// Why the rest is left, one reason a line.
    pub left: String,
}

impl ClaimReport {
    /// No claims, with the reason.
    pub fn nothing(reason: impl Into<String>) -> Self {
        ClaimReport {
            claims: Vec::new(),
            left: reason.into(),
        }
    }
}
