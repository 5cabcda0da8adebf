//! A sum over ranks and the norm behind it in one launch: all_reduce in place → rms_norm (→ what reads the norm, as
//! [`fused_linear`] takes it).
//!
//! One launch where the own kernel takes the sum and rows fill a block. All other calls run the sum by itself: also
//! those of so few tokens that the products behind make the norm. The numbers are the same ones in either way.

use halyard_kernels_gpu as kernels;
use halyard_platform_api::communicator::CollectiveKind;
use halyard_platform_api::ops::{Collective, RmsNorm};
use halyard_platform_api::{DType, Error, Node, OpSpec, Program, Result};

use super::collective::CollectiveKernel;
use super::fused_linear::{self, Fused};
use super::names::float_name;
use super::simple::block_of_row;
use super::{GroupOf, build as build_op};
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Packer, Preparation, RowSource};
use crate::view::View;

/// Entry points, by how many vectors of a row a thread has: 1, 2, 4.
const NAMES: [&str; 3] = ["all_reduce_norm_1", "all_reduce_norm_2", "all_reduce_norm_4"];
/// Blocks a multiprocessor: all blocks run at the same time, as each waits for the other ranks' packets.
const BLOCKS_PER_SM: u32 = 2;

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
        nodes: [program.nodes[0].clone(), program.nodes[1].clone()],
        behind: fused_linear::build(&behind)?,
        num_tensors: program.tensors.len(),
        functions: None,
        most_blocks: 1,
    }))
}

/// A claimed region.
struct FusedSum {
    sum: CollectiveKernel,
    norm: RmsNorm,
    /// The sum and the norm, for their operands.
    nodes: [Node; 2],
    /// The norm, and what reads it.
    behind: Fused,
    num_tensors: usize,
    /// Where the ranks have memory for an own kernel.
    functions: Option<[Function; 3]>,
    most_blocks: u32,
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
        let mut args = vec![
            Arg::Ptr(x.ptr),
            Arg::Ptr(weight.ptr),
            Arg::Ptr(out.ptr),
            Arg::U64(u64::from(out.strides[0])),
            Arg::U32(rows),
            Arg::U32(width),
            Arg::F32(self.norm.eps),
            Arg::F32(self.norm.weight_offset),
        ];
        args.extend(self.sum.group_args(peers));
        encoding.waits_for(self.sum.group());
        encoding.launch(functions[entry], [rows.min(self.most_blocks), 1, 1], threads, 0, &args);
        true
    }
}

impl Kernel for FusedSum {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.sum.prepare(cx)?;
        self.behind.prepare(cx)?;
        self.most_blocks = BLOCKS_PER_SM * cx.facts().num_sms.max(1);
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
