//! The open connections: the phase of each, the times from which its deadlines count, and which one is closed first
//! when there are too many. Reads no bytes and closes no socket itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::limits::{CLOSING_CONNECTIONS, ConnectionLimits, PROBE_CONNECTIONS};
use super::peer::Peer;

/// The value of a time that is not set.
const NEVER: u64 = u64::MAX;
/// A connection beyond the bound is closed after this time in any case.
const PROBE_LIFETIME: Duration = Duration::from_secs(5);

/// Why the server ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The head of a request did not come in time.
    HeaderTimeout,
    /// No request came for too long.
    Idle,
    /// The client takes no bytes.
    WriteTimeout,
    /// Another connection needed the place.
    Evicted,
    /// Served beyond the bound, and its time is over.
    ProbeTimeout,
}

impl EndReason {
    /// Every reason with its label.
    pub const ALL: [(EndReason, &'static str); 5] = [
        (EndReason::HeaderTimeout, "header_timeout"),
        (EndReason::Idle, "idle"),
        (EndReason::WriteTimeout, "write_timeout"),
        (EndReason::Evicted, "evicted"),
        (EndReason::ProbeTimeout, "probe_timeout"),
    ];

    /// The label of metrics and log lines.
    pub fn label(self) -> &'static str {
        EndReason::ALL[self as usize].1
    }
}

/// The state of one connection that its tasks and the accept loop share. Times are milliseconds since the server's
/// start.
#[derive(Debug)]
pub struct Connection {
    epoch: Instant,
    /// The client.
    pub peer: Peer,
    /// Served beyond the bound: one request, of a probe.
    pub is_probe: bool,
    accepted: u64,
    /// Requests from their complete head to the end of their answer.
    active: AtomicUsize,
    /// Of these, the ones whose body is still arriving.
    receiving: AtomicUsize,
    last_read: AtomicU64,
    /// The first byte since the last answer.
    head_since: AtomicU64,
    idle_since: AtomicU64,
    served: AtomicBool,
    is_http2: AtomicBool,
    /// A request came with a key that is accepted.
    is_trusted: AtomicBool,
    write_blocked: AtomicU64,
    /// For each answer, since when its client has not asked for more.
    answers: Mutex<Vec<Arc<AtomicU64>>>,
    evicted: AtomicBool,
    evict: Notify,
}

impl Connection {
    fn new(epoch: Instant, peer: Peer, is_probe: bool) -> Connection {
        let now = millis_since(epoch);
        Connection {
            epoch,
            peer,
            is_probe,
            accepted: now,
            active: AtomicUsize::new(0),
            receiving: AtomicUsize::new(0),
            last_read: AtomicU64::new(now),
            head_since: AtomicU64::new(NEVER),
            idle_since: AtomicU64::new(now),
            served: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            is_trusted: AtomicBool::new(false),
            write_blocked: AtomicU64::new(NEVER),
            answers: Mutex::new(Vec::new()),
            evicted: AtomicBool::new(false),
            evict: Notify::new(),
        }
    }

    fn now(&self) -> u64 {
        millis_since(self.epoch)
    }

    /// Bytes came.
    pub(super) fn has_read(&self) {
        let now = self.now();
        self.last_read.store(now, Ordering::Relaxed);
        if self.active.load(Ordering::Relaxed) == 0 && self.head_since.load(Ordering::Relaxed) == NEVER {
            self.head_since.store(now, Ordering::Relaxed);
        }
    }

    /// Whether the socket takes bytes.
    pub(super) fn has_written(&self, blocked: bool) {
        if !blocked {
            self.write_blocked.store(NEVER, Ordering::Relaxed);
        } else if self.write_blocked.load(Ordering::Relaxed) == NEVER {
            self.write_blocked.store(self.now(), Ordering::Relaxed);
        }
    }

    /// A request of this connection had an accepted key.
    pub fn trust(&self) {
        self.is_trusted.store(true, Ordering::Relaxed);
    }

    /// Whether nothing of a request has come since the last answer, or ever.
    pub(super) fn is_silent(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 0 && self.head_since.load(Ordering::Relaxed) == NEVER
    }

    /// Resolves when another connection needs the place.
    pub(super) async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// The deadline of this connection in its present state, and the reason.
    pub(super) fn deadline(&self, limits: &ConnectionLimits) -> Option<(Instant, EndReason)> {
        let mut first: Option<(u64, EndReason)> = None;
        let mut at_most = |since: u64, patience: Duration, reason| {
            let at = since.saturating_add(millis(patience));
            if since != NEVER && first.is_none_or(|(known, _)| at < known) {
                first = Some((at, reason));
            }
        };
        if self.is_probe {
            at_most(self.accepted, PROBE_LIFETIME, EndReason::ProbeTimeout);
        }
        at_most(
            self.write_blocked.load(Ordering::Relaxed),
            limits.write_timeout,
            EndReason::WriteTimeout,
        );
        for answer in locked(&self.answers).iter() {
            let since = answer.load(Ordering::Relaxed);
            at_most(since, limits.write_timeout, EndReason::WriteTimeout);
        }
        if self.active.load(Ordering::Relaxed) == 0 {
            let head = self.head_since.load(Ordering::Relaxed);
            if !self.served.load(Ordering::Relaxed) {
                at_most(self.accepted, limits.header_timeout, EndReason::HeaderTimeout);
            } else if head != NEVER && !self.is_http2.load(Ordering::Relaxed) {
                at_most(head, limits.header_timeout, EndReason::HeaderTimeout);
            } else {
                // Pings of an HTTP/2 client that asks for nothing do not keep its connection.
                at_most(
                    self.idle_since.load(Ordering::Relaxed),
                    limits.keep_alive,
                    EndReason::Idle,
                );
            }
        }
        first.map(|(at, reason)| (self.epoch + Duration::from_millis(at), reason))
    }

    /// Its rank when a connection must be closed, lowest first; none while a request is being answered.
    fn rank(&self) -> Option<(u8, u64)> {
        let active = self.active.load(Ordering::Relaxed);
        let last_read = self.last_read.load(Ordering::Relaxed);
        if active == 0 {
            let since = self.idle_since.load(Ordering::Relaxed).max(last_read);
            Some((u8::from(self.is_trusted.load(Ordering::Relaxed)), since))
        } else if self.receiving.load(Ordering::Relaxed) >= active {
            Some((2, last_read))
        } else {
            None
        }
    }

    fn give_up(&self) {
        self.evicted.store(true, Ordering::Relaxed);
        self.evict.notify_one();
    }

    fn is_given_up(&self) -> bool {
        self.evicted.load(Ordering::Relaxed)
    }
}

/// A request from its complete head to the end of its answer; counted while it lives.
#[derive(Debug)]
pub(super) struct ActiveRequest {
    connection: Arc<Connection>,
    // Since when the client has not asked for more of the answer.
    untaken: Arc<AtomicU64>,
}

impl ActiveRequest {
    pub(super) fn start(connection: &Arc<Connection>, is_http2: bool) -> ActiveRequest {
        connection.active.fetch_add(1, Ordering::Relaxed);
        connection.served.store(true, Ordering::Relaxed);
        connection.is_http2.store(is_http2, Ordering::Relaxed);
        connection.head_since.store(NEVER, Ordering::Relaxed);
        let untaken = Arc::new(AtomicU64::new(NEVER));
        locked(&connection.answers).push(Arc::clone(&untaken));
        ActiveRequest {
            connection: Arc::clone(connection),
            untaken,
        }
    }

    /// A piece of the answer was handed over; until the next is asked for, the client has not taken it.
    pub(super) fn has_given(&self) {
        self.untaken.store(self.connection.now(), Ordering::Relaxed);
    }

    /// The next piece was asked for.
    pub(super) fn is_asked(&self) {
        self.untaken.store(NEVER, Ordering::Relaxed);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let connection = &self.connection;
        locked(&connection.answers).retain(|known| !Arc::ptr_eq(known, &self.untaken));
        connection.idle_since.store(connection.now(), Ordering::Relaxed);
        connection.head_since.store(NEVER, Ordering::Relaxed);
        connection.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that is still arriving; counted while it lives.
#[derive(Debug)]
pub(super) struct Receiving(Arc<Connection>);

impl Receiving {
    pub(super) fn start(connection: &Arc<Connection>) -> Receiving {
        connection.receiving.fetch_add(1, Ordering::Relaxed);
        Receiving(Arc::clone(connection))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.receiving.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All open connections of a server.
#[derive(Debug)]
pub struct Connections {
    epoch: Instant,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// Notified when one has ended.
    ended: Notify,
}

impl Default for Connections {
    fn default() -> Self {
        Connections {
            epoch: Instant::now(),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }
}

/// The outcome for a new connection.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is served, perhaps in the place of another.
    Open(Slot, Option<Peer>),
    /// There is no place, and no connection that may be closed for it.
    Refused,
}

impl Connections {
    /// How many are open.
    pub fn count(&self) -> usize {
        locked(&self.open).len()
    }

    /// Finds a place for a new connection: a free one, that of the connection that can best be spared, or one for
    /// probes.
    ///
    /// Spared first are connections that wait for a request (silent, half a head, or idle between two), the longest
    /// quiet first and those that never showed an accepted key before the others; then those whose body is still
    /// arriving. A request that is being answered is never cut.
    pub(super) fn admit(self: &Arc<Self>, peer: impl Into<Peer>, limits: &ConnectionLimits) -> Admission {
        let peer = peer.into();
        let mut open = locked(&self.open);
        let staying = |probe: bool| move |c: &&Arc<Connection>| c.is_probe == probe && !c.is_given_up();
        let mut evicted = None;
        let mut is_probe = false;
        if open.len() >= limits.connections && open.values().filter(staying(false)).count() >= limits.connections {
            let spared = |probe| {
                let ranked = open.values().filter(staying(probe));
                let ranked = ranked.filter_map(|c| c.rank().map(|rank| (rank, c)));
                ranked.min_by_key(|(rank, _)| *rank).map(|(_, c)| c)
            };
            let victim = spared(false).or_else(|| {
                is_probe = true;
                let probes = open.values().filter(staying(true)).count();
                (probes >= PROBE_CONNECTIONS).then(|| spared(true)).flatten()
            });
            if let Some(victim) = victim {
                victim.give_up();
                evicted = Some(victim.peer);
            } else if open.values().filter(staying(true)).count() >= PROBE_CONNECTIONS {
                return Admission::Refused;
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(self.epoch, peer, is_probe));
        open.insert(id, Arc::clone(&connection));
        Admission::Open(
            Slot {
                id,
                connection,
                all: Arc::clone(self),
            },
            evicted,
        )
    }

    /// Closes the connection with the lowest rank. Returns whether there was one.
    pub(super) fn spare_one(&self) -> bool {
        let open = locked(&self.open);
        let ranked = open.values().filter(|c| !c.is_given_up());
        let ranked = ranked.filter_map(|c| c.rank().map(|rank| (rank, c)));
        let victim = ranked.min_by_key(|(rank, _)| *rank);
        victim.inspect(|(_, c)| c.give_up()).is_some()
    }

    /// Waits until the descriptors of ended connections are free again, as many as the next connection needs.
    pub(super) async fn descriptors_free(&self, limits: &ConnectionLimits) {
        let most = limits.connections + PROBE_CONNECTIONS + CLOSING_CONNECTIONS;
        loop {
            let ended = self.ended.notified();
            if self.count() < most {
                return;
            }
            ended.await;
        }
    }

    /// Resolves when the next connection ends.
    pub(super) async fn one_ended(&self) {
        self.ended.notified().await;
    }
}

/// A place among the open connections; free again when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    id: u64,
    pub(super) connection: Arc<Connection>,
    all: Arc<Connections>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        locked(&self.all.open).remove(&self.id);
        self.all.ended.notify_waiters();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is one call, so a panic elsewhere cannot leave them half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NEVER - 1)
}

fn millis_since(epoch: Instant) -> u64 {
    millis(epoch.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn limits(connections: usize) -> ConnectionLimits {
        ConnectionLimits {
            connections,
            ..ConnectionLimits::default()
        }
    }

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn port_of(peer: Peer) -> u16 {
        match peer {
            Peer::Tcp(address) => address.port(),
            Peer::Unix => 0,
        }
    }

    fn admit(all: &Arc<Connections>, limits: &ConnectionLimits, port: u16) -> (Slot, Option<u16>) {
        match all.admit(peer(port), limits) {
            Admission::Open(slot, evicted) => (slot, evicted.map(port_of)),
            Admission::Refused => panic!("no place for {port}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_quiet_is_given_up_first_and_trusted_ones_after_the_others() {
        let (all, limits) = (Arc::new(Connections::default()), limits(3));
        let second = Duration::from_secs(1);
        let (trusted, _) = admit(&all, &limits, 1);
        trusted.connection.trust();
        tokio::time::advance(second).await;
        let (quiet, _) = admit(&all, &limits, 2);
        tokio::time::advance(second).await;
        let (fresh, _) = admit(&all, &limits, 3);
        tokio::time::advance(second).await;
        let (fourth, evicted) = admit(&all, &limits, 4);
        assert_eq!(evicted, Some(2));
        quiet.connection.evicted().await;
        drop(quiet);
        // What begins to speak is not the longest quiet any more.
        tokio::time::advance(second).await;
        fresh.connection.has_read();
        tokio::time::advance(second).await;
        let (_fifth, evicted) = admit(&all, &limits, 5);
        assert_eq!(evicted, Some(4));
        drop(fourth);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_never_cut_and_bodies_only_when_nothing_is_idle() {
        let (all, limits) = (Arc::new(Connections::default()), limits(2));
        let (answering, _) = admit(&all, &limits, 1);
        let request = ActiveRequest::start(&answering.connection, false);
        let (receiving, _) = admit(&all, &limits, 2);
        let upload = ActiveRequest::start(&receiving.connection, false);
        let body = Receiving::start(&receiving.connection);
        let (third, evicted) = admit(&all, &limits, 3);
        assert_eq!(evicted, Some(2));
        assert!(!third.connection.is_probe);
        drop((upload, body, receiving));
        let third_request = ActiveRequest::start(&third.connection, false);
        // Everything is being answered: from here on only probes, and of these as many as are kept for them.
        let mut probes: Vec<Slot> = (0..PROBE_CONNECTIONS as u16)
            .map(|n| admit(&all, &limits, 100 + n).0)
            .collect();
        assert!(probes.iter().all(|slot| slot.connection.is_probe));
        let (next, evicted) = admit(&all, &limits, 200);
        assert!(next.connection.is_probe && evicted.is_some());
        probes.push(next);
        let _busy: Vec<ActiveRequest> = probes
            .iter()
            .map(|slot| ActiveRequest::start(&slot.connection, false))
            .collect();
        assert!(matches!(all.admit(peer(300), &limits), Admission::Refused));
        drop((request, third_request));
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_own_deadline() {
        let all = Arc::new(Connections::default());
        let limits = ConnectionLimits {
            header_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(20),
            write_timeout: Duration::from_secs(40),
            ..limits(1)
        };
        let start = Instant::now();
        let (slot, _) = admit(&all, &limits, 1);
        let connection = &slot.connection;
        let deadline = || {
            connection
                .deadline(&limits)
                .map(|(at, reason)| ((at - start).as_secs(), reason))
        };
        assert_eq!(deadline(), Some((10, EndReason::HeaderTimeout)));
        tokio::time::advance(Duration::from_secs(5)).await;
        // Half a head does not move it.
        connection.has_read();
        assert_eq!(deadline(), Some((10, EndReason::HeaderTimeout)));
        let request = ActiveRequest::start(connection, false);
        assert_eq!(deadline(), None, "an answer may take its time");
        request.has_given();
        assert_eq!(deadline(), Some((45, EndReason::WriteTimeout)));
        request.is_asked();
        connection.has_written(true);
        tokio::time::advance(Duration::from_secs(1)).await;
        connection.has_written(true);
        assert_eq!(deadline(), Some((45, EndReason::WriteTimeout)));
        connection.has_written(false);
        drop(request);
        assert_eq!(deadline(), Some((26, EndReason::Idle)));
        tokio::time::advance(Duration::from_secs(2)).await;
        connection.has_read();
        assert_eq!(deadline(), Some((18, EndReason::HeaderTimeout)));
    }
}
