//! A sum over ranks and the norm behind it in one launch: all_reduce in place → rms_norm (→ what reads the norm, as
//! [`fused_linear`] takes it).
//!
//! One launch where the own kernel takes the sum and rows fill a block. All other calls run the sum by itself: also
//! those of so few tokens that the products behind make the norm. The numbers are the same ones in either way.
//!
//! While the ranks wait for each other, memory is idle. Own products ask for their first weights meanwhile; the
//! library's begin when the sum is over. So the launch that sums also brings the beginnings of the next matrix's rows
//! into the second-level cache, where a product of the library follows.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::communicator::CollectiveKind;
use halyard_platform_api::ops::{Collective, RmsNorm};
use halyard_platform_api::{DType, Error, Node, OpSpec, Program, Result};

use super::collective::CollectiveKernel;
use super::fused_linear::{self, Fused};
use super::linear::{DenseTiles, WeightLayout};
use super::names::float_name;
use super::simple::block_of_row;
use super::{GroupOf, build as build_op};
use crate::driver::{DevicePtr, Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Packer, Preparation, RowSource};
use crate::view::View;

/// Entry points, by how many vectors of a row a thread has: 1, 2, 4.
const NAMES: [&str; 3] = ["all_reduce_norm_1", "all_reduce_norm_2", "all_reduce_norm_4"];
/// Blocks a multiprocessor: all blocks run at the same time, as each waits for the other ranks' data.
const BLOCKS_PER_SM: u32 = 2;
/// Part of the second-level cache for what the next product reads first. More would push itself out: the cache keeps
/// some lines twice, once on either side of the chip.
const AHEAD_PART: u64 = 3;
/// Rows of a matrix that a multiprocessor is at work on first, in the library's products of 64 tokens and more.
const ROWS_PER_SM: u32 = 64;
/// From this capability on there are asynchronous copies into the cache.
const COPIES_FROM: u32 = 90;

/// The sum in place and the norm that reads it.
fn sum_and_norm(program: &Program, first: usize) -> Option<(&Collective, &RmsNorm)> {
    let [sum, norm] = program.nodes.get(first..first + 2)? else {
        return None;
    };
    let (OpSpec::Collective(op), OpSpec::RmsNorm(spec)) = (&sum.spec, &norm.spec) else {
        return None;
    };
    let in_place = sum.operands[0] == sum.operands[1] && sum.operands[1] == norm.operands[0];
    let named = op.kind == CollectiveKind::AllReduce && op.communicator != 0;
    (named && in_place && op.dtype == spec.dtype && build_op(&norm.spec).is_ok()).then_some((op, spec))
}

/// Number of nodes from `first` on that run as one op; `None`: not such a region.
pub(crate) fn matches(program: &Program, first: usize) -> Option<usize> {
    sum_and_norm(program, first)?;
    Some(1 + fused_linear::matches(program, first + 1).unwrap_or(1))
}

/// The kernel of a region that [`matches`] whole.
pub(crate) fn build(program: &Program, group_of: &GroupOf<'_>) -> Result<Box<dyn Kernel>> {
    let Some((sum, norm)) = sum_and_norm(program, 0) else {
        return Err(Error::unsupported("a region without a sum and a norm"));
    };
    let behind = Program {
        tensors: program.tensors.clone(),
        nodes: program.nodes[1..].to_vec(),
    };
    Ok(Box::new(FusedSum {
        sum: CollectiveKernel::new(&group_of(sum.communicator)?, sum.of_communicator())?,
        norm: norm.clone(),
        next: program.nodes.get(2).and_then(Matrix::of),
        nodes: [program.nodes[0].clone(), program.nodes[1].clone()],
        behind: fused_linear::build(&behind)?,
        ahead: Ahead::default(),
        own_tokens: 0,
        reader: program.nodes.get(2).cloned(),
        num_tensors: program.tensors.len(),
        functions: None,
        num_sms: 1,
    }))
}

/// A matrix that a product reads as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Matrix {
    /// Its tensor.
    weight: u16,
    rows: u32,
    row_bytes: u64,
}

/// Up to how many tokens an own kernel that asks for its weights early multiplies by the matrix of a linear.
fn tokens_in_tiles(node: &Node, cx: &Preparation<'_>) -> u32 {
    match &node.spec {
        OpSpec::Linear(op) => {
            let layout = WeightLayout::of(op);
            DenseTiles::most_tokens(op, layout, false, cx.facts(), cx.policy())
        }
        _ => 0,
    }
}

/// The beginnings of some of its rows: how many, and bytes of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ahead {
    rows: u32,
    bytes: u32,
}

impl Matrix {
    /// The matrix of a linear, unless it is packed.
    fn of(node: &Node) -> Option<Matrix> {
        let OpSpec::Linear(op) = &node.spec else { return None };
        let WeightLayout::Plain(dtype) = WeightLayout::of(op) else {
            return None;
        };
        Some(Matrix {
            weight: node.operands[1],
            rows: op.out_features,
            row_bytes: u64::from(op.in_features) * dtype.bytes() as u64,
        })
    }

    /// What of it fits the cache; nothing where the device does not bring it there.
    fn ahead(self, facts: &Facts) -> Ahead {
        let rows = self.rows.min(ROWS_PER_SM * facts.num_sms);
        let bytes = (facts.l2_bytes / AHEAD_PART / u64::from(rows.max(1))).min(self.row_bytes) / 128 * 128;
        match facts.capability >= COPIES_FROM && self.row_bytes.is_multiple_of(16) && bytes > 0 {
            true => Ahead {
                rows,
                bytes: bytes as u32,
            },
            false => Ahead::default(),
        }
    }
}

/// A claimed region.
struct FusedSum {
    sum: CollectiveKernel,
    norm: RmsNorm,
    /// The sum and the norm, for their operands.
    nodes: [Node; 2],
    /// The norm, and what reads it.
    behind: Fused,
    /// What the first op behind the norm reads, and how much of it the sum brings.
    next: Option<Matrix>,
    ahead: Ahead,
    /// Up to how many tokens that op asks for its weights by itself.
    own_tokens: u32,
    /// That op.
    reader: Option<Node>,
    num_tensors: usize,
    /// Where the ranks have memory for an own kernel.
    functions: Option<[Function; 3]>,
    num_sms: u32,
}

impl FusedSum {
    /// Sum and norm in one launch; false where they do not run so. Depends on shapes, strides and addresses only, and
    /// other ranks need not do the same: what is sent is.
    fn encode_at_once(&self, encoding: &mut Encoding, tensors: &[View]) -> bool {
        let view = |t: u16| tensors.get(usize::from(t)).copied().unwrap_or(View::NONE);
        let (x, weight) = (view(self.nodes[0].operands[1]), view(self.nodes[1].operands[1]));
        let out = view(self.nodes[1].operands[2]);
        let (width, rows, element) = (self.norm.width, x.len(), self.norm.dtype.bytes() as u32);
        let per_vector = 16 / element;
        let bytes = u64::from(rows) * u64::from(width) * u64::from(element);
        let (Some(functions), Some(peers)) = (&self.functions, self.sum.in_one_shot(bytes)) else {
            return false;
        };
        let plain = |v: &View| v.rank == 2 && v.shape == [rows, width, 1, 1] && v.strides[1] == 1;
        let aligned = [x.ptr, out.ptr, weight.ptr].iter().all(|ptr| ptr.is_multiple_of(16))
            && width.is_multiple_of(per_vector)
            && out.strides[0].is_multiple_of(per_vector);
        let types = [(&x, self.norm.dtype), (&out, self.norm.dtype), (&weight, DType::F32)];
        let typed = types.iter().all(|(v, dtype)| v.dtype == *dtype);
        let dense = rows <= 1 || x.strides[0] == width;
        if !(plain(&x) && plain(&out) && dense && aligned && typed) || rows == 0 {
            return false;
        }
        let Some((entry, threads)) = block_of_row(width / per_vector) else {
            return false;
        };
        let row_blocks = rows.min(BLOCKS_PER_SM * self.num_sms);
        let matrix = self.next.filter(|_| self.ahead.rows > 0 && rows > self.own_tokens);
        let (ahead, stride) = matrix.map_or((0, 0), |matrix| (view(matrix.weight).ptr, matrix.row_bytes));
        let ahead_rows = if ahead.is_multiple_of(16) && ahead != 0 {
            self.ahead.rows
        } else {
            0
        };
        // On the multiprocessors without a row, or one of the first to be done.
        let ahead_blocks = match ahead_rows {
            0 => 0,
            _ => self.num_sms.saturating_sub(row_blocks).max(self.num_sms / 8).max(1),
        };
        let mut args = vec![
            Arg::Ptr(x.ptr),
            Arg::Ptr(weight.ptr),
            Arg::Ptr(out.ptr),
            Arg::U64(u64::from(out.strides[0])),
            Arg::U32(rows),
            Arg::U32(width),
            Arg::F32(self.norm.eps),
            Arg::F32(self.norm.weight_offset),
            Arg::Ptr(ahead),
            Arg::U64(stride),
            Arg::U32(ahead_rows),
            Arg::U32(self.ahead.bytes),
            Arg::U32(row_blocks),
        ];
        args.extend(self.sum.group_args(peers));
        encoding.waits_for(self.sum.group());
        encoding.launch(functions[entry], [row_blocks + ahead_blocks, 1, 1], threads, 0, &args);
        true
    }
}

impl Kernel for FusedSum {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.sum.prepare(cx)?;
        self.behind.prepare(cx)?;
        self.num_sms = cx.facts().num_sms.max(1);
        self.own_tokens = self.reader.as_ref().map_or(0, |node| tokens_in_tiles(node, cx));
        self.ahead = self.next.map_or(Ahead::default(), |matrix| matrix.ahead(cx.facts()));
        if let (Some(ranks), Some(act)) = (self.sum.ranks_in_kernels(), float_name(self.norm.dtype)) {
            let ranks = ranks.to_string();
            let entry = |name| cx.function(kernels::ALL_REDUCE, &[("ACT", act), ("RANKS", &ranks)], name, 0);
            self.functions = Some([entry(NAMES[0])?, entry(NAMES[1])?, entry(NAMES[2])?]);
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        self.behind.scratch_bytes()
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        if operands.len() != self.num_tensors {
            return Err(Error::invalid(format!(
                "a region of {} tensors got {} operands",
                self.num_tensors,
                operands.len()
            )));
        }
        if !self.behind.norms_itself(operands) && self.encode_at_once(encoding, operands) {
            return self.behind.encode_parts(1, encoding, operands);
        }
        let of_sum = self.nodes[0].operands.iter();
        let of_sum: Vec<View> = of_sum.map(|&t| operands[usize::from(t)]).collect();
        self.sum.encode(encoding, &of_sum)?;
        self.behind.encode(encoding, operands)
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        self.behind.packed_weight_bytes(behind(node)?)
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
        self.behind
            .pack_weight(packer, behind(node)?, first_row, num_rows, source, dst)
    }
}

/// A node's number without the sum.
fn behind(node: u32) -> Result<u32> {
    node.checked_sub(1)
        .ok_or_else(|| Error::invalid("node 0 of the region, a sum, has no weight"))
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::WeightFormat;
    use halyard_platform_api::ops::{Epilogue, Linear};

    use super::*;

    fn linear(in_features: u32, out_features: u32, weight: WeightFormat) -> Node {
        let op = Linear {
            in_features,
            out_features,
            weight,
            act: DType::BF16,
            out: DType::BF16,
            epilogue: Epilogue::None,
            max_tokens: 600,
            allow_quantized_act: false,
        };
        Node::new(op, [0, 1, u16::MAX, u16::MAX, 2])
    }

    fn facts(capability: u32) -> Facts {
        Facts {
            capability,
            matrix_units: true,
            l2_bytes: 60 << 20,
            ..crate::ops::tests::facts("", 132, 232_448)
        }
    }

    #[test]
    fn a_third_of_the_cache_gets_the_beginnings_of_the_first_rows() {
        let ahead = |k, n| Matrix::of(&linear(k, n, WeightFormat::BF16)).map(|matrix| matrix.ahead(&facts(90)));
        let of = |rows, bytes| Some(Ahead { rows, bytes });
        // An 8B model's gate and up and qkv on one of two ranks: more rows than are read at first, and fewer.
        assert_eq!(ahead(4096, 14_336), of(8448, 2432));
        assert_eq!(ahead(4096, 3072), of(3072, 6784));
        assert_eq!(ahead(2048, 128), of(128, 4096), "a router's matrix is there whole");
        assert_eq!(ahead(60, 128), of(0, 0), "rows of 120 bytes");
        let older = Matrix::of(&linear(4096, 3072, WeightFormat::BF16)).map(|matrix| matrix.ahead(&facts(80)));
        assert_eq!(older, of(0, 0));
    }

    #[test]
    fn packed_matrices_are_not_read_ahead() {
        assert_eq!(Matrix::of(&linear(4096, 4096, WeightFormat::U4G128)), None);
        assert_eq!(Matrix::of(&linear(4096, 4096, WeightFormat::F8E4M3)), None);
    }
}
