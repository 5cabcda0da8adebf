//! The communicator over threads: ranks are threads of one process that meet in a [`Group`]. It owns the rendezvous and
//! the mailboxes; a rank that does not come is a timeout, never a hang.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use halyard_platform_api::{
    Collective, CollectiveKind, Communicator, CommunicatorDesc, CommunicatorId, DType, Error, PreparedOp, Result,
    Status,
};

use crate::device::Shared;
use crate::element::{FLOATS, read_float};
use crate::operand::Operand;
use crate::prepared::{ReferenceOp, Work};

/// Groups that ranks are joining or hold, by id.
static GROUPS: Mutex<Vec<(CommunicatorId, Weak<Group>)>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// An id that this process gives out once.
pub(crate) fn fresh_id() -> Result<CommunicatorId> {
    let mut id = NEXT_ID.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec();
    id.extend(std::process::id().to_le_bytes());
    CommunicatorId::new(id)
}

/// The meeting place of one communicator's ranks.
pub(crate) struct Group {
    size: u32,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    joined: Vec<bool>,
    /// A rank that has left: waiting for it would never end.
    left: Option<u32>,
    /// Inputs of the round that is being collected; complete when every rank has given one.
    inputs: Vec<Option<Arc<Vec<u8>>>>,
    round: u64,
    /// Inputs of the last complete round.
    complete: Vec<Arc<Vec<u8>>>,
    /// Messages in flight, by (from, to).
    mail: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
}

impl Group {
    /// Joins the group of `id` and waits for all its ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank past the size or taken, or another size; `Timeout`.
    pub(crate) fn join(desc: &CommunicatorDesc, usual: Duration) -> Result<Arc<Group>> {
        let (rank, size, timeout) = (desc.rank, desc.size, desc.timeout_or(usual));
        if rank >= size {
            return Err(Error::invalid(format!("rank {rank} of a communicator of {size}")));
        }
        let group = Group::find(&desc.id, size, timeout)?;
        let mut state = group.lock();
        if std::mem::replace(&mut state.joined[rank as usize], true) {
            return Err(Error::invalid(format!(
                "rank {rank} has joined this communicator already"
            )));
        }
        group.changed.notify_all();
        let call = || format!("joining as rank {rank} of {size}");
        drop(group.wait_until(state, call, |state| state.joined.iter().all(|&j| j))?);
        Ok(group)
    }

    fn find(id: &CommunicatorId, size: u32, timeout: Duration) -> Result<Arc<Group>> {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|(_, group)| group.strong_count() > 0);
        let found = groups
            .iter()
            .find(|(held, _)| held == id)
            .and_then(|(_, group)| group.upgrade());
        if let Some(group) = found {
            if group.size != size {
                return Err(Error::invalid(format!(
                    "another rank joined this communicator with size {}, this one with {size}",
                    group.size
                )));
            }
            return Ok(group);
        }
        let ranks = size as usize;
        let state = State {
            joined: vec![false; ranks],
            inputs: vec![None; ranks],
            ..State::default()
        };
        let group = Arc::new(Group {
            size,
            timeout,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        groups.push((id.clone(), Arc::downgrade(&group)));
        Ok(group)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        call: impl Fn() -> String,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        let deadline = Instant::now() + self.timeout;
        while !ready(&state) {
            if let Some(rank) = state.left {
                let message = format!("{}: rank {rank} has left; make a new communicator", call());
                return Err(Error::new(Status::Unavailable, message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(
                    Status::Timeout,
                    format!("{}: the other ranks did not come within {:?}", call(), self.timeout),
                ));
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(state)
    }

    /// Gives this rank's input and takes everybody's, in rank order.
    fn exchange(&self, rank: u32, input: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>> {
        let call = || format!("a collective on rank {rank} of {}", self.size);
        // A rank that is ahead waits until its last input was taken.
        let state = self.lock();
        let mut state = self.wait_until(state, call, |s| s.inputs[rank as usize].is_none())?;
        let round = state.round;
        state.inputs[rank as usize] = Some(Arc::new(input));
        if state.inputs.iter().all(Option::is_some) {
            state.complete = state.inputs.iter_mut().filter_map(Option::take).collect();
            state.round += 1;
            self.changed.notify_all();
            return Ok(state.complete.clone());
        }
        // The next round cannot be complete before this rank takes part in it, so `complete` is still this round's.
        let state = self.wait_until(state, call, |s| s.round > round)?;
        Ok(state.complete.clone())
    }

    fn send(&self, from: u32, to: u32, bytes: Vec<u8>) {
        self.lock().mail.entry((from, to)).or_default().push_back(bytes);
        self.changed.notify_all();
    }

    fn receive(&self, from: u32, to: u32) -> Result<Vec<u8>> {
        let call = || format!("rank {to} receives from rank {from}");
        let waiting = |s: &State| s.mail.get(&(from, to)).is_some_and(|mail| !mail.is_empty());
        let state = self.lock();
        let mut state = self.wait_until(state, call, waiting)?;
        Ok(state
            .mail
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front)
            .unwrap_or_default())
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
    pub(crate) fn collective(&self, spec: Collective) -> Result<PreparedCollective> {
        use CollectiveKind::{AllReduce, Broadcast, Recv, ReduceScatter, Send};
        if matches!(spec.kind, Broadcast | Send | Recv) && spec.peer >= self.group.size {
            return Err(Error::invalid(format!(
                "peer {} of a communicator of {}",
                spec.peer, self.group.size
            )));
        }
        if matches!(spec.kind, AllReduce | ReduceScatter) && !FLOATS.contains(&spec.dtype) {
            return Err(Error::unsupported(format!(
                "{:?} of {:?}: sums are over {FLOATS:?}",
                spec.kind, spec.dtype
            )));
        }
        Ok(PreparedCollective {
            spec,
            rank: self.rank,
            group: Arc::clone(&self.group),
        })
    }
}

/// The contract's communicator.
pub(crate) struct ReferenceCommunicator {
    shared: Arc<Shared>,
    member: Arc<Member>,
    number: u64,
}

impl ReferenceCommunicator {
    pub(crate) fn new(shared: &Arc<Shared>, group: Arc<Group>, rank: u32) -> Self {
        let member = Arc::new(Member { group, rank });
        ReferenceCommunicator {
            shared: Arc::clone(shared),
            number: shared.members.insert(Arc::clone(&member)),
            member,
        }
    }
}

impl Drop for ReferenceCommunicator {
    fn drop(&mut self) {
        self.shared.members.remove(self.number);
        let Member { group, rank } = &*self.member;
        group.lock().left.get_or_insert(*rank);
        group.changed.notify_all();
    }
}

impl Communicator for ReferenceCommunicator {
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
        let collective = self.member.collective(*spec)?;
        Ok(ReferenceOp::create(&self.shared, Work::Collective(collective)))
    }
}

/// A collective as commands hold it.
pub(crate) struct PreparedCollective {
    spec: Collective,
    rank: u32,
    group: Arc<Group>,
}

impl PreparedCollective {
    /// For errors.
    pub(crate) fn name(&self) -> &'static str {
        match self.spec.kind {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Send => "send",
            CollectiveKind::Recv => "recv",
        }
    }

    /// The operand that this rank has no use for, of input and out.
    pub(crate) fn absent_operand(&self) -> Option<usize> {
        match self.spec.kind {
            CollectiveKind::Send => Some(1),
            CollectiveKind::Recv => Some(0),
            _ => None,
        }
    }

    /// Meets the other ranks; blocks until they come.
    ///
    /// # Errors
    /// `Timeout`; `InvalidArgument` for shapes that do not fit.
    pub(crate) fn run(&self, operands: &[Operand]) -> Result<()> {
        let (rank, peer) = (self.rank as usize, self.spec.peer as usize);
        if let Some(wrong) = operands.iter().find(|o| o.is_present() && o.dtype() != self.spec.dtype) {
            return Err(Error::invalid(format!(
                "{}: an operand is {:?}, prepared for {:?}",
                self.name(),
                wrong.dtype(),
                self.spec.dtype
            )));
        }
        match self.spec.kind {
            CollectiveKind::Send => self.group.send(self.rank, self.spec.peer, operands[0].bytes()),
            CollectiveKind::Recv => {
                let bytes = self.group.receive(self.spec.peer, self.rank)?;
                self.store(&operands[1], &bytes)?;
            }
            kind => {
                let inputs = self.group.exchange(self.rank, operands[0].bytes())?;
                let out = &operands[1];
                let out_bytes = out.elements() * self.spec.dtype.bytes();
                match kind {
                    CollectiveKind::AllGather => self.store(out, &concat(inputs.iter().map(|i| &i[..])))?,
                    CollectiveKind::Broadcast => self.store(out, &inputs[peer])?,
                    CollectiveKind::AllToAll => {
                        let part = out_bytes / inputs.len();
                        self.check_inputs(&inputs, part * inputs.len())?;
                        self.store(out, &concat(inputs.iter().map(|i| &i[rank * part..][..part])))?;
                    }
                    CollectiveKind::ReduceScatter => {
                        self.check_inputs(&inputs, out_bytes * inputs.len())?;
                        let parts: Vec<&[u8]> = inputs.iter().map(|i| &i[rank * out_bytes..][..out_bytes]).collect();
                        out.store_floats(&sum(self.spec.dtype, &parts));
                    }
                    _ => {
                        self.check_inputs(&inputs, out_bytes)?;
                        let parts: Vec<&[u8]> = inputs.iter().map(|i| &i[..]).collect();
                        out.store_floats(&sum(self.spec.dtype, &parts));
                    }
                }
            }
        }
        Ok(())
    }

    fn store(&self, out: &Operand, bytes: &[u8]) -> Result<()> {
        let expected = out.elements() * self.spec.dtype.bytes();
        if bytes.len() != expected {
            return Err(Error::invalid(format!(
                "{}: {} bytes came for an output of {expected}",
                self.name(),
                bytes.len()
            )));
        }
        out.store_bytes(bytes);
        Ok(())
    }

    fn check_inputs(&self, inputs: &[Arc<Vec<u8>>], expected: usize) -> Result<()> {
        match inputs.iter().position(|input| input.len() != expected) {
            None => Ok(()),
            Some(rank) => Err(Error::invalid(format!(
                "{}: the input of rank {rank} has {} bytes, rank {} expects {expected}",
                self.name(),
                inputs[rank].len(),
                self.rank
            ))),
        }
    }
}

fn concat<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    parts.flatten().copied().collect()
}

/// The sum in rank order, in f32.
fn sum(dtype: DType, parts: &[&[u8]]) -> Vec<f32> {
    let size = dtype.bytes();
    let elements = parts.first().map_or(0, |part| part.len() / size);
    (0..elements)
        .map(|i| {
            parts
                .iter()
                .map(|part| read_float(dtype, &part[i * size..][..size]))
                .sum()
        })
        .collect()
}
