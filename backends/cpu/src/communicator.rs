//! Collectives between the ranks of one process: threads meet at a barrier and read each other's operands.
//! Sums are formed in rank order, so that every rank gets the same bits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::{Communicator, CommunicatorId, DType, Error, PreparedOp, Result, Status};

use crate::device::{CpuPrepared, Inner};
use crate::kernel::{Kernel, Worker};
use crate::view::View;

/// How long a rank waits for the others to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

static GROUPS: Mutex<Option<HashMap<[u8; 128], Arc<Group>>>> = Mutex::new(None);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Operands of one collective, by rank.
#[derive(Default)]
struct Meeting {
    joined: u32,
    arrived: u32,
    left: u32,
    operands: Vec<Option<(View, View)>>,
    round: u64,
}

struct Group {
    size: u32,
    meeting: Mutex<Meeting>,
    change: Condvar,
}

/// An id that no other group has.
pub(crate) fn unique_id() -> CommunicatorId {
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&NEXT_ID.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    CommunicatorId(bytes)
}

/// Joins the group of `id`; returns when all ranks have.
pub(crate) fn join(inner: Arc<Inner>, id: &CommunicatorId, rank: u32, size: u32) -> Result<Arc<dyn Communicator>> {
    if size == 0 || rank >= size {
        return Err(Error::invalid(format!(
            "rank {rank} of a group of {size}; ranks are 0 to size − 1"
        )));
    }
    let group = {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = groups.get_or_insert_with(HashMap::new);
        groups.entry(id.0).or_insert_with(|| Arc::new(Group::new(size))).clone()
    };
    if group.size != size {
        return Err(Error::invalid(format!(
            "rank {rank} joins with size {size}, others with {}",
            group.size
        )));
    }
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let mut meeting = group.lock();
    meeting.joined += 1;
    group.change.notify_all();
    while meeting.joined < size {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            meeting.joined -= 1;
            let message = format!(
                "{} of {size} ranks joined in {} s",
                meeting.joined + 1,
                JOIN_TIMEOUT.as_secs()
            );
            return Err(Error::new(Status::Timeout, message));
        }
        meeting = group
            .change
            .wait_timeout(meeting, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    drop(meeting);
    GROUPS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_with(HashMap::new)
        .remove(&id.0);
    Ok(Arc::new(CpuCommunicator { inner, group, rank }))
}

impl Group {
    fn new(size: u32) -> Group {
        Group {
            size,
            meeting: Mutex::default(),
            change: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every rank has brought its operands, runs `work` on all of them, and waits until every rank has done so.
    fn meet(&self, rank: u32, operands: (View, View), work: impl FnOnce(&[(View, View)])) {
        let mut meeting = self.lock();
        while meeting.left > 0 {
            meeting = self.change.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        meeting.operands.resize(self.size as usize, None);
        meeting.operands[rank as usize] = Some(operands);
        meeting.arrived += 1;
        let round = meeting.round;
        self.change.notify_all();
        while meeting.arrived < self.size && meeting.round == round {
            meeting = self.change.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        let all: Vec<(View, View)> = meeting.operands.iter().flatten().copied().collect();
        // Ranks take turns, so that a sum in place does not change what a later rank reads: results are copied out last.
        drop(meeting);
        work(&all);
        let mut meeting = self.lock();
        meeting.left += 1;
        if meeting.left == self.size {
            (meeting.arrived, meeting.left) = (0, 0);
            meeting.round += 1;
            meeting.operands.clear();
        }
        self.change.notify_all();
        while meeting.round == round {
            meeting = self.change.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct CpuCommunicator {
    inner: Arc<Inner>,
    group: Arc<Group>,
    rank: u32,
}

impl Communicator for CpuCommunicator {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.group.size
    }

    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>> {
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
        let kernel = CollectiveKernel {
            group: self.group.clone(),
            rank: self.rank,
            spec: *spec,
        };
        Ok(CpuPrepared::register(self.inner.clone(), Arc::new(kernel)))
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
            .meet(self.rank, (operands[0], operands[1]), |all| result = self.compute(all));
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
        // SAFETY: every rank waits in `meet` until all have read, so nobody writes.
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
