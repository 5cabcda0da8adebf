//! Where the ranks of a group meet before the library lets them: all in one process, each with a thread of its own. They wait for one
//! another with an end, which the library does not, and learn what each brings.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use halyard_platform_api::{CommunicatorId, Error, Result, Status};

use super::rooms::Room;

/// How long a rank waits for the others.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What a rank tells the others.
#[derive(Clone)]
pub(super) struct Card {
    /// Its device.
    pub(super) ordinal: i32,
    /// Memory in which it can be reached; `None`: not made yet, or not to be had.
    pub(super) room: Option<Arc<Room>>,
}

/// The ranks of a group by the times they meet: before the library joins them, and with their rooms made.
#[derive(Default)]
struct Meeting {
    size: u32,
    rounds: [Vec<(u32, Card)>; 2],
    /// Ranks that have read the last round.
    gone: u32,
    /// A rank gave up: nobody may go on to the library, whose wait has no end.
    failed: bool,
}

static MEETINGS: Mutex<Option<HashMap<[u8; 128], Meeting>>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<HashMap<[u8; 128], Meeting>>> {
    MEETINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An id that this process has made: its ranks meet here.
pub(super) fn announce(id: &CommunicatorId) {
    lock().get_or_insert_default().insert(id.0, Meeting::default());
}

/// A rank does not come to the next round: the others need not wait for it.
pub(super) fn give_up(id: &CommunicatorId) {
    if let Some(meeting) = lock().get_or_insert_default().get_mut(&id.0) {
        meeting.failed = true;
    }
    CHANGED.notify_all();
}

/// Waits for all ranks in a round and gives their cards in rank order; `None` for an id of another process, whose ranks are not here.
///
/// # Errors
/// `Timeout` when a rank does not come; `InvalidArgument` for a rank that comes twice or counts others.
pub(super) fn meet(id: &CommunicatorId, round: usize, rank: u32, size: u32, card: Card) -> Result<Option<Vec<Card>>> {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let mut meetings = lock();
    let Some(meeting) = meetings.get_or_insert_default().get_mut(&id.0) else {
        return Ok(None);
    };
    if meeting.size == 0 {
        meeting.size = size;
    }
    if meeting.size != size {
        let others = meeting.size;
        return Err(Error::invalid(format!(
            "rank {rank} joins with size {size}, others with {others}"
        )));
    }
    if meeting.gone > 0 || meeting.rounds[round].iter().any(|&(known, _)| known == rank) {
        return Err(Error::invalid(format!(
            "rank {rank} of {size} has joined already; every rank joins once"
        )));
    }
    meeting.rounds[round].push((rank, card));
    CHANGED.notify_all();
    loop {
        let Some(meeting) = meetings.get_or_insert_default().get_mut(&id.0) else {
            return Ok(None);
        };
        let joined = meeting.rounds[round].len();
        if joined == size as usize && !meeting.failed {
            return Ok(Some(cards(meeting, round)));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || meeting.failed {
            let message = match meeting.failed {
                true => format!("rank {rank} of {size}: another rank did not join; its own error says why"),
                false => format!(
                    "{joined} of {size} ranks joined in {} s; each rank must join from a thread of its own",
                    JOIN_TIMEOUT.as_secs()
                ),
            };
            meeting.failed = true;
            CHANGED.notify_all();
            return Err(Error::new(Status::Timeout, message));
        }
        meetings = CHANGED
            .wait_timeout(meetings, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

/// A complete round's cards. The last reader of the last round takes them away; the meeting stays, so that the id is not used again.
fn cards(meeting: &mut Meeting, round: usize) -> Vec<Card> {
    let mut ranks = meeting.rounds[round].clone();
    ranks.sort_by_key(|&(rank, _)| rank);
    if round + 1 == meeting.rounds.len() {
        meeting.gone += 1;
        if meeting.gone == meeting.size {
            meeting.rounds = Default::default();
        }
    }
    ranks.into_iter().map(|(_, card)| card).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(ordinal: i32) -> Card {
        Card { ordinal, room: None }
    }

    fn ordinals(cards: Option<Vec<Card>>) -> Vec<i32> {
        cards
            .expect("an id of this process")
            .iter()
            .map(|card| card.ordinal)
            .collect()
    }

    #[test]
    fn ranks_hear_each_other_in_rank_order_and_once() {
        let id = CommunicatorId([1; 128]);
        announce(&id);
        std::thread::scope(|scope| {
            for rank in (0..3).rev() {
                scope.spawn(move || {
                    for round in 0..2 {
                        let cards = meet(&id, round, rank, 3, card(10 + rank as i32)).expect("all come");
                        assert_eq!(ordinals(cards), [10, 11, 12]);
                    }
                });
            }
        });
        let again = meet(&id, 0, 1, 3, card(11)).err().expect("refused");
        assert!(again.message.contains("has joined already"), "{}", again.message);
    }

    #[test]
    fn a_rank_that_gives_up_releases_the_others() {
        let id = CommunicatorId([2; 128]);
        announce(&id);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| meet(&id, 0, 0, 2, card(0)).err().expect("nobody comes"));
            std::thread::sleep(Duration::from_millis(20));
            give_up(&id);
            let error = waits.join().expect("no panic");
            assert_eq!(error.status, Status::Timeout);
        });
        assert!(meet(&id, 0, 1, 2, card(1)).is_err(), "nor does the late one wait");
    }

    #[test]
    fn other_sizes_and_foreign_ids() {
        let id = CommunicatorId([3; 128]);
        assert!(meet(&id, 0, 0, 2, card(0)).expect("not here").is_none());
        announce(&id);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| meet(&id, 0, 0, 2, card(0)).is_err());
            std::thread::sleep(Duration::from_millis(20));
            let error = meet(&id, 0, 1, 3, card(1)).err().expect("refused");
            assert!(error.message.contains("others with 2"), "{}", error.message);
            give_up(&id);
            assert!(waits.join().expect("no panic"));
        });
    }
}
