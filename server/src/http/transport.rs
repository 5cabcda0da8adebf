//! State that the transport and the routes share: limits, open connections, counters, and whether the server is
//! shutting down. One for each server, made before it serves.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::Instant;
use tower_http::cors::CorsLayer;

use super::body_memory::BodyMemory;
use super::connections::{Connections, EndReason};
use super::host_check::HostRules;
use super::limits::ConnectionLimits;
use super::root_path::RootPath;
use super::tls::Tls;

/// The transport of one server.
#[derive(Debug)]
pub struct Transport {
    /// Bounds and deadlines.
    pub limits: Arc<ConnectionLimits>,
    /// Open connections.
    pub connections: Arc<Connections>,
    /// Memory for long bodies.
    pub body_memory: Arc<BodyMemory>,
    /// The names under which this server answers.
    pub hosts: HostRules,
    /// Pages of other origins that may ask; without it none.
    pub cors: Option<CorsLayer>,
    /// The path of a proxy before the routes.
    pub root_path: RootPath,
    /// TLS, where connections are encrypted.
    pub tls: Option<Arc<Tls>>,
    draining: AtomicBool,
    /// Bodies that came too slowly.
    pub(super) late_bodies: AtomicU64,
    handler_panics: AtomicU64,
    refused_by_limit: AtomicU64,
    accept_errors: AtomicU64,
    failed_handshakes: AtomicU64,
    ended: [AtomicU64; EndReason::ALL.len()],
}

impl Transport {
    /// The transport of a server with these bounds, names and rules for pages of other origins.
    pub fn new(limits: ConnectionLimits, hosts: HostRules, cors: Option<CorsLayer>) -> Self {
        Transport {
            connections: Arc::default(),
            body_memory: Arc::new(BodyMemory::new(limits.pending_body_bytes)),
            limits: Arc::new(limits),
            hosts,
            cors,
            root_path: RootPath::default(),
            tls: None,
            draining: AtomicBool::default(),
            late_bodies: AtomicU64::default(),
            handler_panics: AtomicU64::default(),
            refused_by_limit: AtomicU64::default(),
            accept_errors: AtomicU64::default(),
            failed_handshakes: AtomicU64::default(),
            ended: Default::default(),
        }
    }

    /// From now on the server is ending: health says so, and generation requests are refused.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether the server is ending.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// A handler panicked.
    pub fn count_panic(&self) {
        self.handler_panics.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was answered with 503, or closed unanswered, as there was no place for it.
    pub(super) fn count_refused_by_limit(&self) {
        self.refused_by_limit.fetch_add(1, Ordering::Relaxed);
    }

    /// The system refused to hand over a connection.
    pub(super) fn count_accept_error(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// A client and this server did not come to terms over TLS.
    pub(super) fn count_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// How many did not.
    #[cfg(test)]
    pub(super) fn failed_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Ordering::Relaxed)
    }

    /// A connection was ended by the server.
    pub(super) fn count_ended(&self, reason: EndReason) {
        self.ended[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Its metrics, as text for `/metrics`.
    pub fn collector(self: &Arc<Self>) -> Box<dyn Collector> {
        Box::new(Counted(Arc::clone(self)))
    }
}

impl Default for Transport {
    fn default() -> Self {
        Transport::new(ConnectionLimits::default(), HostRules::default(), None)
    }
}

#[derive(Debug)]
struct Counted(Arc<Transport>);

impl Collector for Counted {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let transport = &*self.0;
        let mut gauge = |name: &str, help: &str, value: usize| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value as i64).encode(metric)
        };
        gauge(
            "halyard:http_connections",
            "Open connections",
            transport.connections.count(),
        )?;
        gauge(
            "halyard:http_connections_limit",
            "Connections that may be open",
            transport.limits.connections,
        )?;
        let mut by_reason = |name: &str, help: &str, values: &[(&str, u64)]| {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (reason, value) in values {
                let labels = [("reason", *reason)];
                let metric = family.encode_family(&labels)?;
                ConstCounter::new(*value).encode(metric)?;
            }
            Ok::<(), fmt::Error>(())
        };
        by_reason(
            "halyard:http_connections_refused",
            "New connections that were not served: no place (limit), or the system refused them (accept_error)",
            &[
                ("limit", of(&transport.refused_by_limit)),
                ("accept_error", of(&transport.accept_errors)),
            ],
        )?;
        let ended = EndReason::ALL.map(|(reason, label)| (label, of(&transport.ended[reason as usize])));
        by_reason(
            "halyard:http_connections_ended",
            "Connections that the server ended, by reason",
            &ended,
        )?;
        by_reason(
            "halyard:http_bodies_refused",
            "Requests that ended because their body came too slowly (late), or because long bodies held too much \
             (no_room)",
            &[
                ("late", of(&transport.late_bodies)),
                ("no_room", transport.body_memory.refused()),
            ],
        )?;
        let handshakes = encoder.encode_descriptor(
            "halyard:http_tls_handshakes_failed",
            "Connections that ended in their TLS handshake: other protocols, and certificates that one side refused",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(of(&transport.failed_handshakes)).encode(handshakes)?;
        let panics = encoder.encode_descriptor(
            "halyard:handler_panics",
            "Requests whose handler panicked",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(of(&transport.handler_panics)).encode(panics)
    }
}

/// Lets one line through in a while, however often it is asked, and counts what it held back.
#[derive(Debug)]
pub(super) struct LogGate {
    every: Duration,
    last: Mutex<(Option<Instant>, u64)>,
}

impl LogGate {
    pub(super) fn new(every: Duration) -> LogGate {
        LogGate {
            every,
            last: Mutex::new((None, 0)),
        }
    }

    /// How many times it happened since the last line, if a line may be written now.
    pub(super) fn pass(&self) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.1 += 1;
        let now = Instant::now();
        if last.0.is_some_and(|at| now.duration_since(at) < self.every) {
            return None;
        }
        last.0 = Some(now);
        Some(std::mem::take(&mut last.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_one_line_with_its_count() {
        let gate = LogGate::new(Duration::from_secs(60));
        assert_eq!(gate.pass(), Some(1));
        for _ in 0..1000 {
            assert_eq!(gate.pass(), None);
        }
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(gate.pass(), Some(1001));
    }

    #[test]
    fn reasons_stand_at_their_place() {
        for (index, (reason, label)) in EndReason::ALL.into_iter().enumerate() {
            assert_eq!((reason as usize, reason.label()), (index, label));
        }
    }
}
