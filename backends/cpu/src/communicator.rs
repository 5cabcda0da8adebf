//! Collectives between the ranks of one process: threads meet at a barrier and read each other's operands.
//! Sums are formed in rank order, so that every rank gets the same bits.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::{Communicator, CommunicatorDesc, CommunicatorId, DType, Error, PreparedOp, Result, Status};

use crate::device::{CpuPrepared, Inner};
use crate::kernel::{Kernel, Worker};
use crate::queue::write;
use crate::view::View;

/// How long a rank waits for the others to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a rank waits for the others in a collective.
const MEET_TIMEOUT: Duration = Duration::from_secs(60);

static GROUPS: Mutex<Option<HashMap<CommunicatorId, Arc<Group>>>> = Mutex::new(None);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Operands of one collective, by rank.
#[derive(Default)]
struct State {
    joined: BTreeSet<u32>,
    /// A rank failed, left or never came: the others would wait for ever, now and in every later collective.
    broken: bool,
    arrived: u32,
    left: u32,
    operands: Vec<Option<(View, View)>>,
    round: u64,
}

struct Group {
    size: u32,
    state: Mutex<State>,
    change: Condvar,
}

/// An id that no other group has.
pub(crate) fn unique_id() -> Result<CommunicatorId> {
    let mut bytes = NEXT_ID.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec();
    bytes.extend(std::process::id().to_le_bytes());
    CommunicatorId::new(bytes)
}

/// Joins the group of `id`; returns when all ranks have.
pub(crate) fn join(inner: Arc<Inner>, desc: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
    let (rank, size) = (desc.rank, desc.size);
    if size == 0 || rank >= size {
        return Err(Error::invalid(format!(
            "rank {rank} of a group of {size}; ranks are 0 to size − 1"
        )));
    }
    let group = {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = groups.get_or_insert_with(HashMap::new);
        groups
            .entry(desc.id.clone())
            .or_insert_with(|| Arc::new(Group::new(size)))
            .clone()
    };
    if group.size != size {
        return Err(Error::invalid(format!(
            "rank {rank} joins with size {size}, others with {}",
            group.size
        )));
    }
    let timeout = desc.timeout_or(JOIN_TIMEOUT);
    let deadline = Instant::now() + timeout;
    let mut state = group.lock();
    if !state.joined.insert(rank) {
        return Err(Error::invalid(format!(
            "rank {rank} of {size} has joined already; every rank joins once"
        )));
    }
    group.change.notify_all();
    while state.joined.len() < size as usize {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message = format!(
                "{} of {size} ranks joined in {} s",
                state.joined.len(),
                timeout.as_secs()
            );
            state.joined.remove(&rank);
            return Err(Error::new(Status::Timeout, message));
        }
        state = group
            .change
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    drop(state);
    GROUPS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_with(HashMap::new)
        .remove(&desc.id);
    Ok(Arc::new(CpuCommunicator::new(inner, Member { group, rank })))
}

impl Group {
    fn new(size: u32) -> Group {
        Group {
            size,
            state: Mutex::default(),
            change: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every rank has brought its operands, runs `work` on all of them, and waits until every rank has done
    /// so.
    ///
    /// # Panics
    /// If another rank failed or did not come within `timeout`; so does every later collective of the group.
    fn meet(&self, rank: u32, operands: (View, View), timeout: Duration, work: impl FnOnce(&[(View, View)])) {
        let _guard = BreakOnPanic(self);
        let mut state = self.wait(self.lock(), timeout, |m| m.left == 0 && !m.broken);
        state.operands.resize(self.size as usize, None);
        state.operands[rank as usize] = Some(operands);
        state.arrived += 1;
        let round = state.round;
        self.change.notify_all();
        let state = self.wait(state, timeout, |m| m.arrived == self.size || m.round != round);
        let all: Vec<(View, View)> = state.operands.iter().flatten().copied().collect();
        // Ranks take turns, so that a sum in place does not change what a later rank reads: results are copied out
        // last.
        drop(state);
        work(&all);
        let mut state = self.lock();
        state.left += 1;
        if state.left == self.size {
            (state.arrived, state.left) = (0, 0);
            state.round += 1;
            state.operands.clear();
        }
        self.change.notify_all();
        drop(self.wait(state, timeout, |m| m.round != round));
    }

    /// Sleeps until `over`; panics, which fails the queue, when that will not be.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Duration,
        over: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let deadline = Instant::now() + timeout;
        while !over(&state) {
            assert!(
                !state.broken,
                "collective given up: another rank of the group failed, left or never came; make a new group"
            );
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "collective given up: {} of {} ranks came and {} finished within {} s",
                state.arrived,
                self.size,
                state.left,
                timeout.as_secs()
            );
            state = self
                .change
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state
    }
}

/// Tells the other ranks when this one leaves a collective by a panic: its own, or for want of another rank.
struct BreakOnPanic<'a>(&'a Group);

impl Drop for BreakOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().broken = true;
            self.0.change.notify_all();
        }
    }
}

/// One rank of a group.
pub(crate) struct Member {
    group: Arc<Group>,
    rank: u32,
}

impl Member {
    /// A collective of this rank.
    ///
    /// # Errors
    /// `Unsupported` with the reason; `InvalidArgument` for a peer past the end.
    pub(crate) fn collective(&self, spec: Collective) -> Result<Arc<dyn Kernel>> {
        let named = matches!(
            spec.kind,
            CollectiveKind::Broadcast | CollectiveKind::Send | CollectiveKind::Recv
        );
        if named && spec.peer >= self.group.size {
            return Err(Error::invalid(format!(
                "peer {} of a group of {}",
                spec.peer, self.group.size
            )));
        }
        if matches!(spec.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) && spec.dtype != DType::F32 {
            return Err(Error::unsupported(format!(
                "{:?} of {:?}: sums are formed in F32 here",
                spec.kind, spec.dtype
            )));
        }
        if matches!(spec.kind, CollectiveKind::Send | CollectiveKind::Recv) && self.group.size != 2 {
            return Err(Error::unsupported(
                "send and recv meet in groups of 2 here; use a group of the two ranks",
            ));
        }
        Ok(Arc::new(CollectiveKernel {
            group: self.group.clone(),
            rank: self.rank,
            spec,
        }))
    }
}

struct CpuCommunicator {
    inner: Arc<Inner>,
    member: Arc<Member>,
    number: u64,
}

impl CpuCommunicator {
    fn new(inner: Arc<Inner>, member: Member) -> CpuCommunicator {
        let member = Arc::new(member);
        let number = write(&inner.members).insert(member.clone());
        CpuCommunicator { inner, member, number }
    }
}

impl Communicator for CpuCommunicator {
    fn rank(&self) -> u32 {
        self.member.rank
    }

    fn size(&self) -> u32 {
        self.member.group.size
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>> {
        Ok(CpuPrepared::register(
            self.inner.clone(),
            self.member.collective(*spec)?,
        ))
    }
}

/// Ranks that still wait in a collective must not wait for this one.
impl Drop for CpuCommunicator {
    fn drop(&mut self) {
        let member = write(&self.inner.members).remove(self.number);
        drop(member);
        self.member.group.lock().broken = true;
        self.member.group.change.notify_all();
    }
}

struct CollectiveKernel {
    group: Arc<Group>,
    rank: u32,
    spec: Collective,
}

impl Kernel for CollectiveKernel {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        if worker.rank != 0 {
            return;
        }
        let mut result = Vec::new();
        self.group
            .meet(self.rank, (operands[0], operands[1]), MEET_TIMEOUT, |all| {
                result = self.compute(all);
            });
        // All ranks have read; now each writes its own output.
        if !operands[1].is_none() {
            // SAFETY: the output holds exactly what the collective gives; contiguous by contract.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    result.as_ptr(),
                    operands[1].ptr(),
                    result.len().min(operands[1].all().len()),
                )
            };
        }
    }
}

impl CollectiveKernel {
    /// This rank's output bytes.
    fn compute(&self, all: &[(View, View)]) -> Vec<u8> {
        // SAFETY: every rank waits in `meet` until all have read, so no thread writes.
        let input = |rank: usize| unsafe { all[rank].0.all() };
        let (rank, size) = (self.rank as usize, all.len());
        match self.spec.kind {
            CollectiveKind::AllReduce => sum((0..size).map(input)),
            CollectiveKind::ReduceScatter => {
                let parts = (0..size).map(input);
                sum(parts.map(|bytes| part(bytes, rank, size)))
            }
            CollectiveKind::AllGather => (0..size).flat_map(|r| input(r).iter().copied()).collect(),
            CollectiveKind::AllToAll => (0..size)
                .flat_map(|r| part(input(r), rank, size).iter().copied())
                .collect(),
            CollectiveKind::Broadcast | CollectiveKind::Recv => input(self.spec.peer as usize).to_vec(),
            CollectiveKind::Send => Vec::new(),
        }
    }
}

fn part(bytes: &[u8], index: usize, count: usize) -> &[u8] {
    let len = bytes.len() / count;
    &bytes[index * len..(index + 1) * len]
}

fn sum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut total: Vec<f32> = Vec::new();
    for bytes in parts {
        let values = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        if total.is_empty() {
            total.extend(values);
        } else {
            total.iter_mut().zip(values).for_each(|(t, v)| *t += v);
        }
    }
    total.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// The words of the panic that `f` ends in.
    fn words(f: impl FnOnce()) -> String {
        let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
        payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .expect("a panic with words")
    }

    const OPERANDS: (View, View) = (View::NONE, View::NONE);

    #[test]
    fn a_rank_that_fails_lets_the_others_go() {
        let group = Group::new(2);
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| words(|| group.meet(1, OPERANDS, MEET_TIMEOUT, |_| ())));
            let own = words(|| group.meet(0, OPERANDS, MEET_TIMEOUT, |_| panic!("out of luck")));
            assert_eq!(own, "out of luck");
            other.join().expect("the words")
        });
        assert!(other.contains("another rank of the group failed"), "{other}");
        let later = words(|| group.meet(1, OPERANDS, MEET_TIMEOUT, |_| ()));
        assert!(later.contains("make a new group"), "{later}");
    }

    #[test]
    fn a_rank_that_leaves_lets_the_others_go() {
        let group = Arc::new(Group::new(2));
        let device = crate::device::CpuDevice::open(1, halyard_kernels_cpu::Kernels::best()).expect("a device");
        let words = std::thread::scope(|scope| {
            let waits = scope.spawn(|| words(|| group.meet(0, OPERANDS, MEET_TIMEOUT, |_| ())));
            while group.lock().arrived == 0 {
                std::thread::yield_now();
            }
            let member = Member {
                group: group.clone(),
                rank: 1,
            };
            drop(CpuCommunicator::new(device.inner.clone(), member));
            waits.join().expect("the words")
        });
        assert!(words.contains("another rank of the group failed, left"), "{words}");
    }

    #[test]
    fn a_rank_whose_others_never_come_gives_up_and_says_who_came() {
        let group = Group::new(3);
        let alone = words(|| group.meet(0, OPERANDS, Duration::ZERO, |_| ()));
        assert!(alone.contains("1 of 3 ranks came"), "{alone}");
        let late = words(|| group.meet(1, OPERANDS, MEET_TIMEOUT, |_| ()));
        assert!(late.contains("never came"), "{late}");
    }

    #[test]
    fn a_rank_joins_once() {
        let group = Arc::new(Group::new(2));
        group.lock().joined.insert(1);
        let id = unique_id().expect("bytes");
        GROUPS
            .lock()
            .unwrap()
            .get_or_insert_with(HashMap::new)
            .insert(id.clone(), group);
        let device = crate::device::CpuDevice::open(1, halyard_kernels_cpu::Kernels::best()).expect("a device");
        let error = join(device.inner.clone(), &CommunicatorDesc::new(&id, 1, 2))
            .err()
            .expect("a refusal");
        assert_eq!(error.status, Status::InvalidArgument);
        assert!(error.message.contains("rank 1 of 2 has joined already"), "{error}");
        let joined = join(device.inner.clone(), &CommunicatorDesc::new(&id, 0, 2)).expect("the rank that was missing");
        assert_eq!((joined.rank(), joined.size()), (0, 2));
    }
}
