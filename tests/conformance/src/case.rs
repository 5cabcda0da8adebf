//! A case: tensors with their contents, and ops over them by index. The same case runs on the device and on the oracle.

use half::{bf16, f16};
use halyard_platform_api::{DType, OpSpec, WeightFormat};

use crate::tolerance::{Class, Tolerance, tolerance};

/// The tensor index of an optional operand that is left out.
pub use halyard_platform_api::program::ABSENT;

/// What a tensor starts as.
#[derive(Clone, Debug)]
pub enum Contents {
    /// These bytes, in row-major order.
    Bytes(Vec<u8>),
    /// The packed weight of node `node`: `rows` canonical rows.
    Weight {
        /// The node whose op packs it.
        node: usize,
        /// Number of rows.
        rows: u32,
        /// The rows.
        bytes: Vec<u8>,
    },
    /// A slice of an earlier tensor: of its rows, the part from element `first` on that this tensor's shape spans.
    Slice {
        /// The tensor.
        of: usize,
        /// First element of each row.
        first: u32,
    },
    /// A KV cache of this many pages, as large as the device's plan for the spec says.
    Cache {
        /// Pages.
        pages: u32,
        /// The attention that reads it, full or latent.
        spec: OpSpec,
    },
}

/// What is compared afterwards.
#[derive(Clone, Debug)]
pub enum Check {
    /// An input: must be unchanged.
    Unchanged,
    /// Opaque.
    Ignored,
    /// An output; only the listed rows of the outermost axis, or all.
    Near(Tolerance, Option<Vec<u32>>),
}

/// One tensor of a case.
#[derive(Clone, Debug)]
pub struct Arg {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<u32>,
    /// Elements between rows beyond the row itself: a slice of something wider.
    pub row_gap: u32,
    /// What it starts as.
    pub contents: Contents,
    /// What is compared.
    pub check: Check,
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The op that it tests.
    pub op: &'static str,
    /// Types and formats: the row of the report.
    pub variant: String,
    /// Shape and peculiarity, for failures.
    pub name: String,
    /// The tensors.
    pub args: Vec<Arg>,
    /// The ops over them.
    pub nodes: Vec<(OpSpec, Vec<u16>)>,
}

impl Arg {
    /// Floats, rounded to the type.
    pub fn floats(dtype: DType, shape: &[u32], values: &[f32]) -> Arg {
        Arg::bytes(dtype, shape, float_bytes(dtype, values))
    }

    /// Indices.
    pub fn ints(shape: &[u32], values: &[i32]) -> Arg {
        Arg::bytes(DType::I32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Raw bytes.
    pub fn bytes(dtype: DType, shape: &[u32], bytes: Vec<u8>) -> Arg {
        debug_assert_eq!(
            bytes.len(),
            shape.iter().map(|&d| d as usize).product::<usize>() * dtype.bytes()
        );
        Arg {
            dtype,
            shape: shape.to_vec(),
            row_gap: 0,
            contents: Contents::Bytes(bytes),
            check: Check::Unchanged,
        }
    }

    /// A weight of `rows` canonical rows, packed by node 0.
    pub fn weight(format: WeightFormat, rows: u32, width: u32, bytes: Vec<u8>) -> Arg {
        debug_assert_eq!(Some(bytes.len() / rows as usize), format.row_bytes(width as usize));
        Arg {
            contents: Contents::Weight { node: 0, rows, bytes },
            check: Check::Ignored,
            ..Arg::bytes(DType::U8, &[0], Vec::new())
        }
    }

    /// Elements `first ..` of each row of tensor `of`, seen in this shape.
    pub fn slice(dtype: DType, shape: &[u32], of: usize, first: u32) -> Arg {
        Arg {
            shape: shape.to_vec(),
            contents: Contents::Slice { of, first },
            check: Check::Ignored,
            ..Arg::bytes(dtype, &[0], Vec::new())
        }
    }

    /// An output that nobody has written: bytes that are NaN or −1.
    pub fn output(dtype: DType, shape: &[u32], class: Class) -> Arg {
        let elements: usize = shape.iter().map(|&d| d as usize).product();
        Arg::bytes(dtype, shape, vec![0xFF; elements * dtype.bytes()]).checked(class)
    }

    /// The same, compared afterwards.
    pub fn checked(mut self, class: Class) -> Arg {
        self.check = Check::Near(tolerance(class, self.dtype), None);
        self
    }

    /// The same, compared in these rows only.
    pub fn only_rows(mut self, rows: Vec<u32>) -> Arg {
        if let Check::Near(_, only) = &mut self.check {
            *only = Some(rows);
        }
        self
    }

    /// The same with gaps between rows.
    pub fn strided(mut self, row_gap: u32) -> Arg {
        self.row_gap = row_gap;
        self
    }

    /// Strides in elements.
    pub fn strides(&self) -> Vec<u32> {
        let mut strides = vec![1; self.shape.len()];
        for axis in (0..self.shape.len().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * self.shape[axis + 1];
        }
        if self.shape.len() > 1 {
            strides[0] += self.row_gap;
        }
        strides
    }
}

impl Case {
    /// A case of one op whose operands are `args` in order; `None` leaves an optional one out.
    pub fn single(spec: impl Into<OpSpec>, variant: &str, name: &str, operands: Vec<Option<Arg>>) -> Case {
        let spec = spec.into();
        let mut args = Vec::new();
        let indices = operands
            .into_iter()
            .map(|operand| match operand {
                Some(arg) => {
                    args.push(arg);
                    (args.len() - 1) as u16
                }
                None => ABSENT,
            })
            .collect();
        Case {
            op: catalogue_name(&spec),
            variant: variant.to_string(),
            name: name.to_string(),
            args,
            nodes: vec![(spec, indices)],
        }
    }

    /// The same with operand `output` standing in the tensor of operand `input`.
    pub fn in_place(mut self, input: usize, output: usize) -> Case {
        let (from, to) = (self.nodes[0].1[output], self.nodes[0].1[input]);
        self.args[usize::from(to)].check = self.args[usize::from(from)].check.clone();
        self.nodes[0].1[output] = to;
        self.name.push_str(", in place");
        // The tensor that nobody names any more stays, unchanged.
        self.args[usize::from(from)].check = Check::Unchanged;
        self
    }
}

/// The catalogue's own name of a spec.
pub fn catalogue_name(spec: &OpSpec) -> &'static str {
    OpSpec::NAMES
        .iter()
        .copied()
        .find(|name| *name == spec.name())
        .unwrap_or("vendor")
}

/// Values as elements of a float type.
pub fn float_bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// Elements as f32.
pub fn to_floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    let quads = || bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
    match dtype {
        DType::F16 => pairs().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        DType::BF16 => pairs().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        DType::F32 => quads().map(f32::from_le_bytes).collect(),
        DType::I32 => quads().map(|b| i32::from_le_bytes(b) as f32).collect(),
        _ => bytes.iter().map(|&b| f32::from(b)).collect(),
    }
}
