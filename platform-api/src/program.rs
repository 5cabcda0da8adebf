//! Composites: a flat list of catalogue ops over numbered tensors. A model's step is one; so is any region of it that a
//! backend claims to run as one op.

use crate::dtype::DType;
use crate::ops::{Access, OpSpec};
use crate::status::{Error, Result};

/// The operand index that says "absent" for an optional operand.
pub const ABSENT: u16 = u16::MAX;

/// One op of a program over tensor indices.
#[derive(Clone, PartialEq)]
pub struct Node {
    /// The op.
    pub spec: OpSpec,
    /// One tensor index per operand of the op, in its documented order; [`ABSENT`] for an optional one left out.
    pub operands: Vec<u16>,
    /// How the op uses each of them.
    pub access: Vec<Access>,
}

impl std::fmt::Debug for Node {
    /// Without the access that the catalogue has.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let listed = self.spec.operands().iter().map(|operand| operand.access);
        let mut node = f.debug_struct("Node");
        node.field("spec", &self.spec).field("operands", &self.operands);
        if !listed.eq(self.access.iter().copied()) {
            node.field("access", &self.access);
        }
        node.finish()
    }
}

impl Node {
    /// A node of a catalogue op. Trailing optional operands may be left out.
    pub fn new(spec: impl Into<OpSpec>, operands: impl Into<Vec<u16>>) -> Node {
        let (spec, mut operands) = (spec.into(), operands.into());
        let known = spec.operands();
        operands.extend(known.iter().skip(operands.len()).map(|_| ABSENT));
        let access = known.iter().map(|operand| operand.access).collect();
        Node { spec, operands, access }
    }

    /// A node of an op whose operands the catalogue does not list.
    pub fn with_access(spec: impl Into<OpSpec>, operands: Vec<u16>, access: Vec<Access>) -> Node {
        let spec = spec.into();
        Node { spec, operands, access }
    }

    /// Its operands with how it uses each.
    pub fn uses(&self) -> impl Iterator<Item = (u16, Access)> {
        self.operands.iter().copied().zip(self.access.iter().copied())
    }
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
    /// First of its columns in each row of the shared memory, in elements.
    pub first_column: u32,
    /// How many columns; 0: not said, it may overlap all that shares its memory.
    pub num_columns: u32,
}

impl TensorDecl {
    /// A tensor that says nothing of its columns.
    pub const fn whole(dtype: DType, internal: bool, storage: u32) -> TensorDecl {
        TensorDecl {
            dtype,
            internal,
            storage,
            first_column: 0,
            num_columns: 0,
        }
    }

    /// Its columns as a range, empty when they are not said.
    fn columns(&self) -> (u32, u32) {
        (self.first_column, self.first_column.saturating_add(self.num_columns))
    }
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
            let listed = node.spec.operands();
            let expected = match listed.len() {
                0 => node.access.len(),
                len => len,
            };
            if node.operands.len() != expected || node.access.len() != expected {
                return Err(Error::invalid(format!(
                    "node {i} ({}) has {} operands, the op takes {expected}",
                    node.spec.name(),
                    node.operands.len(),
                )));
            }
            for (at, &tensor) in node.operands.iter().enumerate() {
                let operand = listed.get(at);
                let absent_allowed = tensor == ABSENT && operand.is_none_or(|operand| operand.optional);
                if !absent_allowed && usize::from(tensor) >= self.tensors.len() {
                    return Err(Error::invalid(format!(
                        "node {i} ({}): operand `{}` names tensor {tensor} of {}",
                        node.spec.name(),
                        operand.map_or("?", |operand| operand.name),
                        self.tensors.len()
                    )));
                }
            }
        }
        Ok(())
    }

    /// The sub-program of nodes `first .. first + count`, with its tensors renumbered in order of first use, and the
    /// original index of each. A tensor is internal in it when nobody reads what the region leaves there: no later
    /// node, and after the program nobody either, as it is written again before or was internal already.
    pub fn region(&self, first: usize, count: usize) -> (Program, Vec<u16>) {
        let mut original = Vec::new();
        let mut nodes = Vec::with_capacity(count);
        for node in &self.nodes[first..first + count] {
            let operands = node.operands.iter().map(|&t| renumber(t, &mut original)).collect();
            nodes.push(Node {
                operands,
                ..node.clone()
            });
        }
        let mut storages = Vec::new();
        let tensors = original
            .iter()
            .map(|&t| {
                let decl = self.tensors[usize::from(t)];
                let internal = match self.fate(t, first + count) {
                    Fate::Read => false,
                    Fate::Overwritten => true,
                    Fate::Left => decl.internal,
                };
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

    /// How its ops use each tensor, taken together.
    pub fn tensor_access(&self) -> Vec<Access> {
        let mut access = vec![Access::Const; self.tensors.len()];
        for node in &self.nodes {
            for (tensor, used) in node.uses() {
                let Some(known) = access.get_mut(usize::from(tensor)) else {
                    continue;
                };
                *known = match used {
                    Access::Const => *known,
                    Access::Read if !known.writes() => Access::Read,
                    _ => Access::Update,
                };
            }
        }
        access
    }

    /// What comes of tensor `t`'s contents from node `next` on. It is overwritten when every one of its columns is
    /// written before it is read; where columns are not said, only a write of `t` itself counts, and every read of its
    /// memory.
    fn fate(&self, t: u16, next: usize) -> Fate {
        let decl = self.tensors[usize::from(t)];
        let mut left = vec![decl.columns()];
        for node in &self.nodes[next..] {
            for (other, used) in node.uses() {
                let Some(touched) = self
                    .tensors
                    .get(usize::from(other))
                    .filter(|o| o.storage == decl.storage)
                else {
                    continue;
                };
                let said = decl.num_columns > 0 && touched.num_columns > 0 && touched.dtype == decl.dtype;
                let (begin, end) = touched.columns();
                if used != Access::Write {
                    if !said || left.iter().any(|&(from, to)| from < end && begin < to) {
                        return Fate::Read;
                    }
                } else if other == t {
                    return Fate::Overwritten;
                } else if said {
                    left = left
                        .iter()
                        .flat_map(|&(from, to)| [(from, to.min(begin)), (from.max(end), to)])
                        .filter(|(from, to)| from < to)
                        .collect();
                    if left.is_empty() {
                        return Fate::Overwritten;
                    }
                }
            }
        }
        Fate::Left
    }
}

/// What later nodes do with a tensor's contents.
enum Fate {
    Read,
    Overwritten,
    /// Neither.
    Left,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Add, Scale};

    /// Two tensors over one product of 8 columns, one over all of it, and one elsewhere.
    fn program(nodes: &[(bool, [u16; 3])]) -> Program {
        let part = |storage, first_column, num_columns| TensorDecl {
            first_column,
            num_columns,
            ..TensorDecl::whole(DType::F32, true, storage)
        };
        let node = |&(adds, operands): &(bool, [u16; 3])| match adds {
            true => Node::new(
                Add {
                    width: 4,
                    dtype: DType::F32,
                },
                operands,
            ),
            false => Node::new(
                Scale {
                    width: 4,
                    factor: 2.0,
                    dtype: DType::F32,
                },
                &operands[..2],
            ),
        };
        Program {
            tensors: vec![part(0, 0, 4), part(0, 4, 4), part(0, 0, 8), part(1, 0, 8)],
            nodes: nodes.iter().map(node).collect(),
        }
    }

    fn is_internal(program: &Program, tensor: u16) -> bool {
        let (region, original) = program.region(0, 1);
        let at = original.iter().position(|&t| t == tensor).expect("the region names it");
        region.tensors[at].internal
    }

    #[test]
    fn a_slice_dies_when_the_whole_is_written_again() {
        // Rotated in place, then the next layer's product overwrites it, then it is read as that.
        let next_layer = [(false, [0, 0, 0]), (false, [3, 2, 0]), (true, [0, 1, 3])];
        assert!(is_internal(&program(&next_layer), 0));
        // Written in two parts: dead only once both are.
        let halves = [
            (false, [2, 2, 0]),
            (false, [3, 0, 0]),
            (false, [3, 1, 0]),
            (true, [0, 1, 3]),
        ];
        assert!(is_internal(&program(&halves), 2));
    }

    #[test]
    fn what_is_read_before_it_is_written_lives() {
        let neighbour_written = [(false, [0, 0, 0]), (false, [3, 1, 0]), (false, [0, 3, 0])];
        assert!(!is_internal(&program(&neighbour_written), 0));
        let half_written = [(false, [2, 2, 0]), (false, [3, 0, 0]), (true, [2, 2, 3])];
        assert!(!is_internal(&program(&half_written), 2));
        // A read of the other half touches nothing.
        let other_read = [(false, [0, 0, 0]), (false, [1, 3, 0])];
        assert!(is_internal(&program(&other_read), 0));
    }

    #[test]
    fn columns_that_are_not_said_may_be_anywhere() {
        let mut unsaid = program(&[(false, [0, 0, 0]), (false, [3, 2, 0]), (true, [0, 1, 3])]);
        unsaid.tensors[2].num_columns = 0;
        assert!(!is_internal(&unsaid, 0));
    }

    #[test]
    fn what_the_program_leaves_is_not_what_a_region_left_before_it_was_written_again() {
        let mut once = program(&[(false, [3, 0, 0])]);
        once.tensors[0].internal = false;
        assert!(!is_internal(&once, 0));
        let mut again = program(&[(false, [3, 0, 0]), (false, [3, 0, 0])]);
        again.tensors[0].internal = false;
        assert!(is_internal(&again, 0));
        let mut read_first = program(&[(false, [3, 0, 0]), (false, [0, 3, 0]), (false, [3, 0, 0])]);
        read_first.tensors[0].internal = false;
        assert!(!is_internal(&read_first, 0));
    }
}
