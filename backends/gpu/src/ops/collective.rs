//! A collective as an op: a command that the vendor's library enqueues on the queue's stream, so it is ordered and
//! recorded like any launch. Small sums are a launch of an own kernel where the ranks reach each other's memory.

use std::sync::Arc;

use halyard_kernels_gpu as kernels;
use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::{DType, Error, Result};

use super::names::float_name;
use crate::driver::{CollectiveCall, Function, Group, MAX_PEERS, PEER_CALLS_BYTES, Peers};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

/// Threads of a block of `all_reduce.cu`; each takes 16 bytes.
const THREADS: u32 = 128;
/// Blocks a multiprocessor of it: all blocks run at the same time, as each waits for the other ranks' data.
const BLOCKS_PER_SM: u32 = 2;

/// The sum as one kernel over the ranks' own memory.
struct OneShot {
    /// For operands at 16 bytes, and for any.
    functions: [Function; 2],
    most_blocks: u32,
}

/// A collective of one rank.
pub(crate) struct CollectiveKernel {
    group: Arc<dyn Group>,
    spec: Collective,
    /// For sums that fit into the peer memory windows.
    one_shot: Option<OneShot>,
}

impl CollectiveKernel {
    /// A collective of a group.
    ///
    /// # Errors
    /// `Unsupported` for sums of a type that they do not run in; `InvalidArgument` for a peer past the end.
    pub(crate) fn new(group: &Arc<dyn Group>, spec: Collective) -> Result<CollectiveKernel> {
        let sums = matches!(spec.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
        let floats = [DType::F32, DType::F16, DType::BF16];
        if sums && !floats.contains(&spec.dtype) {
            return Err(Error::unsupported(format!(
                "{:?} of {:?}: sums run in F32, F16 and BF16",
                spec.kind, spec.dtype
            )));
        }
        let named = matches!(
            spec.kind,
            CollectiveKind::Broadcast | CollectiveKind::Send | CollectiveKind::Recv
        );
        if named && spec.peer >= group.size() {
            return Err(Error::invalid(format!(
                "{:?} with rank {}: the group has {}",
                spec.kind,
                spec.peer,
                group.size()
            )));
        }
        Ok(CollectiveKernel {
            group: group.clone(),
            spec,
            one_shot: None,
        })
    }

    /// The group.
    pub(super) fn group(&self) -> &Arc<dyn Group> {
        &self.group
    }

    /// Number of ranks, where they have memory for own kernels.
    pub(super) fn ranks_in_kernels(&self) -> Option<u32> {
        self.group.peers().map(|_| self.group.size())
    }

    /// Elements of an operand, which must be one piece of memory.
    fn elements(&self, name: &str, view: &View) -> Result<u64> {
        if view.dtype != self.spec.dtype {
            return Err(Error::invalid(format!(
                "{:?}: {name} is {:?}, the collective was prepared for {:?}",
                self.spec.kind, view.dtype, self.spec.dtype
            )));
        }
        let mut expected = 1u64;
        for axis in (0..view.rank as usize).rev() {
            let (extent, stride) = (u64::from(view.shape[axis]), u64::from(view.strides[axis]));
            if extent > 1 && stride != expected {
                return Err(Error::unsupported(format!(
                    "{:?}: {name} is strided ({:?} by {:?}); copy it to contiguous memory first",
                    self.spec.kind,
                    &view.shape[..view.rank as usize],
                    &view.strides[..view.rank as usize]
                )));
            }
            expected *= extent;
        }
        Ok(expected)
    }

    /// The ranks' memory, where the own kernels take a sum of `bytes`: settled by the size alone, so that all ranks do
    /// the same.
    pub(super) fn in_one_shot(&self, bytes: u64) -> Option<&Peers> {
        self.group.peers().filter(|peers| bytes <= peers.window_bytes)
    }

    /// What every kernel of a sum takes of the group, in its order.
    pub(super) fn group_args(&self, peers: &Peers) -> impl Iterator<Item = Arg> {
        let rank = self.group.rank();
        let own = [
            Arg::U32(rank),
            Arg::Ptr(peers.memory[rank as usize]),
            Arg::Ptr(peers.host_words),
            Arg::U64(peers.limit_ticks),
            Arg::U64(peers.window_bytes),
        ];
        let window = |r| peers.memory.get(r).map_or(0, |memory| memory + PEER_CALLS_BYTES);
        let windows: Vec<Arg> = (0..MAX_PEERS).map(|r| Arg::Ptr(window(r))).collect();
        own.into_iter().chain(windows)
    }

    fn launch(&self, encoding: &mut Encoding, peers: &Peers, one_shot: &OneShot, call: &CollectiveCall) {
        let bytes = call.given * self.spec.dtype.bytes() as u64;
        let aligned = (call.input | call.out).is_multiple_of(16);
        let blocks = bytes.div_ceil(16 * u64::from(THREADS)) as u32;
        let mut args = vec![Arg::Ptr(call.input), Arg::Ptr(call.out), Arg::U32(call.given as u32)];
        args.extend(self.group_args(peers));
        encoding.waits_for(&self.group);
        let function = one_shot.functions[usize::from(!aligned)];
        encoding.launch(function, [blocks.min(one_shot.most_blocks), 1, 1], THREADS, 0, &args);
    }
}

impl Kernel for CollectiveKernel {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let sum = self.spec.kind == CollectiveKind::AllReduce;
        if let (true, Some(_), Some(act)) = (sum, self.group.peers(), float_name(self.spec.dtype)) {
            let ranks = self.group.size().to_string();
            let entry = |name| cx.function(kernels::ALL_REDUCE, &[("ACT", act), ("RANKS", &ranks)], name, 0);
            self.one_shot = Some(OneShot {
                functions: [entry("all_reduce_vector")?, entry("all_reduce_scalar")?],
                most_blocks: BLOCKS_PER_SM * cx.facts().num_sms.max(1),
            });
        }
        Ok(())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [input, out] = operands else {
            return Err(Error::invalid(format!(
                "{:?} takes an input and an output, not {} operands",
                self.spec.kind,
                operands.len()
            )));
        };
        use CollectiveKind::*;
        let (kind, size) = (self.spec.kind, u64::from(self.group.size()));
        let absent = |name: &str, view: &View| match view.is_none() {
            true => Err(Error::invalid(format!("{kind:?}: {name} is absent"))),
            false => self.elements(name, view),
        };
        let given = if kind == Recv { 0 } else { absent("the input", input)? };
        let taken = if kind == Send { 0 } else { absent("the output", out)? };
        let fits = match kind {
            AllReduce | Broadcast => given == taken,
            AllGather => given.checked_mul(size) == Some(taken),
            ReduceScatter => taken.checked_mul(size) == Some(given),
            AllToAll => given == taken && given.is_multiple_of(size),
            Send | Recv => true,
        };
        if !fits {
            return Err(Error::invalid(format!(
                "{kind:?} over {size} ranks: {given} elements in, {taken} out"
            )));
        }
        if given.max(taken) == 0 {
            return Ok(());
        }
        let call = CollectiveCall {
            spec: self.spec,
            input: input.ptr,
            given,
            out: out.ptr,
            taken,
        };
        match (self.in_one_shot(given * self.spec.dtype.bytes() as u64), &self.one_shot) {
            (Some(peers), Some(one_shot)) => self.launch(encoding, peers, one_shot, &call),
            _ => encoding.collective(&self.group, call),
        }
        Ok(())
    }
}
