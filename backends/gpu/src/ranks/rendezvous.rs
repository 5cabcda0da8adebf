//! The rendezvous of a group's ranks, all in one process and each with a thread of its own, before they call the
//! library. They wait for each other with a time limit, which the library lacks, and exchange their endpoints.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use halyard_platform_api::{CommunicatorDesc, CommunicatorId, Error, Result, Status};

use super::windows::PeerWindow;

/// How long a rank waits for the others.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A rank as the others reach it.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// Its device.
    pub(super) ordinal: i32,
    /// The memory that others write to; `None`: not made yet, or the device has none.
    pub(super) window: Option<Arc<PeerWindow>>,
}

/// A group's ranks in two rounds: before the library joins them, and with their windows made.
#[derive(Default)]
struct Rendezvous {
    size: u32,
    rounds: [Vec<(u32, Endpoint)>; 2],
    /// Ranks that have read the last round.
    gone: u32,
    /// A rank gave up: no rank may call the library, which would wait for ever.
    failed: bool,
}

static RENDEZVOUS: Mutex<Option<HashMap<CommunicatorId, Rendezvous>>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<HashMap<CommunicatorId, Rendezvous>>> {
    RENDEZVOUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the rendezvous of an id that this process has made.
pub(super) fn announce(id: &CommunicatorId) {
    lock().get_or_insert_default().insert(id.clone(), Rendezvous::default());
}

/// A rank does not come to the next round: the others stop waiting.
pub(super) fn give_up(id: &CommunicatorId) {
    if let Some(rendezvous) = lock().get_or_insert_default().get_mut(id) {
        rendezvous.failed = true;
    }
    CHANGED.notify_all();
}

/// Waits for all ranks in a round and gives their endpoints in rank order; `None` for an id of another process, whose
/// ranks are not here.
///
/// # Errors
/// `Timeout` when a rank does not come; `InvalidArgument` for a rank that comes twice or counts others.
pub(super) fn meet(desc: &CommunicatorDesc, round: usize, endpoint: Endpoint) -> Result<Option<Vec<Endpoint>>> {
    let (id, rank, size) = (&desc.id, desc.rank, desc.size);
    let timeout = desc.timeout_or(JOIN_TIMEOUT);
    let deadline = Instant::now() + timeout;
    let mut all = lock();
    let Some(rendezvous) = all.get_or_insert_default().get_mut(id) else {
        return Ok(None);
    };
    if rendezvous.size == 0 {
        rendezvous.size = size;
    }
    if rendezvous.size != size {
        let others = rendezvous.size;
        return Err(Error::invalid(format!(
            "rank {rank} joins with size {size}, others with {others}"
        )));
    }
    if rendezvous.gone > 0 || rendezvous.rounds[round].iter().any(|&(known, _)| known == rank) {
        return Err(Error::invalid(format!(
            "rank {rank} of {size} has joined already; every rank joins once"
        )));
    }
    rendezvous.rounds[round].push((rank, endpoint));
    CHANGED.notify_all();
    loop {
        let Some(rendezvous) = all.get_or_insert_default().get_mut(id) else {
            return Ok(None);
        };
        let joined = rendezvous.rounds[round].len();
        if joined == size as usize && !rendezvous.failed {
            return Ok(Some(endpoints(rendezvous, round)));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || rendezvous.failed {
            let message = match rendezvous.failed {
                true => format!("rank {rank} of {size}: another rank did not join; its own error says why"),
                false => format!(
                    "{joined} of {size} ranks joined in {} s; each rank must join from a thread of its own",
                    timeout.as_secs()
                ),
            };
            rendezvous.failed = true;
            CHANGED.notify_all();
            return Err(Error::new(Status::Timeout, message));
        }
        all = CHANGED
            .wait_timeout(all, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

/// A complete round's endpoints. The last reader of the last round removes them; the rendezvous stays, so that the id
/// is not used again.
fn endpoints(rendezvous: &mut Rendezvous, round: usize) -> Vec<Endpoint> {
    let mut ranks = rendezvous.rounds[round].clone();
    ranks.sort_by_key(|&(rank, _)| rank);
    if round + 1 == rendezvous.rounds.len() {
        rendezvous.gone += 1;
        if rendezvous.gone == rendezvous.size {
            rendezvous.rounds = Default::default();
        }
    }
    ranks.into_iter().map(|(_, endpoint)| endpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(ordinal: i32) -> Endpoint {
        Endpoint { ordinal, window: None }
    }

    fn group(id: u8, rank: u32, size: u32) -> CommunicatorDesc {
        CommunicatorDesc {
            id: CommunicatorId::new([id; 128]).expect("some bytes"),
            rank,
            size,
            timeout_ns: 0,
        }
    }

    /// Until a rank has come to the first round.
    fn until_one_waits(id: &CommunicatorId) {
        while lock().get_or_insert_default()[id].rounds[0].is_empty() {
            std::thread::yield_now();
        }
    }

    fn ordinals(endpoints: Option<Vec<Endpoint>>) -> Vec<i32> {
        endpoints
            .expect("an id of this process")
            .iter()
            .map(|endpoint| endpoint.ordinal)
            .collect()
    }

    #[test]
    fn ranks_hear_each_other_in_rank_order_and_once() {
        announce(&group(1, 0, 3).id);
        std::thread::scope(|scope| {
            for rank in (0..3).rev() {
                scope.spawn(move || {
                    for round in 0..2 {
                        let endpoints = meet(&group(1, rank, 3), round, endpoint(10 + rank as i32)).expect("all come");
                        assert_eq!(ordinals(endpoints), [10, 11, 12]);
                    }
                });
            }
        });
        let again = meet(&group(1, 1, 3), 0, endpoint(11)).err().expect("refused");
        assert!(again.message.contains("has joined already"), "{}", again.message);
    }

    #[test]
    fn a_rank_that_gives_up_releases_the_others() {
        let id = group(2, 0, 2).id;
        announce(&id);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                meet(&group(2, 0, 2), 0, endpoint(0))
                    .err()
                    .expect("no other rank comes")
            });
            until_one_waits(&id);
            give_up(&id);
            let error = waits.join().expect("no panic");
            assert_eq!(error.status, Status::Timeout);
        });
        assert!(
            meet(&group(2, 1, 2), 0, endpoint(1)).is_err(),
            "nor does the late one wait"
        );
    }

    #[test]
    fn other_sizes_and_foreign_ids() {
        let id = group(3, 0, 2).id;
        assert!(meet(&group(3, 0, 2), 0, endpoint(0)).expect("not here").is_none());
        announce(&id);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| meet(&group(3, 0, 2), 0, endpoint(0)).is_err());
            until_one_waits(&id);
            let error = meet(&group(3, 1, 3), 0, endpoint(1)).err().expect("refused");
            assert!(error.message.contains("others with 2"), "{}", error.message);
            give_up(&id);
            assert!(waits.join().expect("no panic"));
        });
    }
}
