//! The value of `--kv-events-config`: vLLM's keys and defaults, read strictly. `GET /kv_event_sources` shows it again.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Largest `hwm`, `buffer_steps` and `max_queue_size`.
const MAX_STEPS: usize = 1_000_000;

/// Settings of the events, with vLLM's names.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvEventsConfig {
    /// Whether there are events.
    pub enable_kv_cache_events: bool,
    /// `zmq`, or `null` for nobody; without it `zmq`.
    pub publisher: Option<String>,
    /// Where events are published.
    pub endpoint: String,
    /// Where past batches can be asked for.
    pub replay_endpoint: Option<String>,
    /// Past batches that are kept for that.
    pub buffer_steps: usize,
    /// Batches that a slow subscriber may be behind; the oldest of more are lost to it.
    pub hwm: usize,
    /// Batches that may wait to be encoded.
    pub max_queue_size: usize,
    /// The first frame of each message, which subscribers choose by.
    pub topic: String,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        KvEventsConfig {
            enable_kv_cache_events: false,
            publisher: None,
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

impl KvEventsConfig {
    /// Reads the flag's JSON.
    ///
    /// # Errors
    /// A key that is unknown, a value that cannot be meant.
    pub fn parse(text: &str) -> Result<KvEventsConfig, String> {
        let config: KvEventsConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match config.publisher.as_deref() {
            None | Some("zmq" | "null") => {}
            Some(other) => return Err(format!("publisher `{other}` is not known; known are zmq and null")),
        }
        Endpoint::of_publisher(&config.endpoint).map_err(|why| format!("endpoint: {why}"))?;
        if let Some(replay) = &config.replay_endpoint {
            Address::parse(replay).map_err(|why| format!("replay_endpoint: {why}"))?;
        }
        for (name, value, least) in [
            ("buffer_steps", config.buffer_steps, 0),
            ("hwm", config.hwm, 1),
            ("max_queue_size", config.max_queue_size, 1),
        ] {
            if !(least..=MAX_STEPS).contains(&value) {
                return Err(format!("{name}: {value} is not between {least} and {MAX_STEPS}"));
            }
        }
        if config.topic.len() > 255 {
            return Err(format!("topic: {} bytes; choose at most 255", config.topic.len()));
        }
        Ok(config)
    }

    /// The settings of a copy of the model: as in vLLM its ports are as many above these as its rank says. Port 0 stays
    /// any port, and a Unix socket gets `_dpRANK` at its end; rank 0 has these settings.
    ///
    /// # Errors
    /// No such port.
    pub fn of_rank(&self, rank: u32) -> Result<KvEventsConfig, String> {
        let moved = |place: &str| -> Result<String, String> {
            match Address::parse(place)? {
                _ if rank == 0 => Ok(place.to_owned()),
                Address::Ipc(path) => Ok(format!("ipc://{}_dp{rank}", path.display())),
                Address::Tcp(_, 0) => Ok(place.to_owned()),
                Address::Tcp(host, port) => {
                    let port = u16::try_from(u32::from(port) + rank)
                        .map_err(|_| format!("{place}: rank {rank} has no port {rank} above it; choose a lower one"))?;
                    Ok(Address::Tcp(host, port).to_string())
                }
            }
        };
        Ok(KvEventsConfig {
            endpoint: moved(&self.endpoint)?,
            replay_endpoint: self.replay_endpoint.as_deref().map(moved).transpose()?,
            ..self.clone()
        })
    }

    /// Whether somebody can listen.
    pub fn publishes(&self) -> bool {
        self.enable_kv_cache_events && self.publisher.as_deref() != Some("null")
    }
}

/// A place of ZeroMQ's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host (`*`: every IPv4 address of this machine) and port.
    Tcp(String, u16),
    /// A Unix socket.
    Ipc(PathBuf),
}

impl Address {
    /// Reads `tcp://HOST:PORT` or `ipc://PATH`.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("ipc://").filter(|path| !path.is_empty()) {
            return Ok(Address::Ipc(path.into()));
        }
        let place = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
        let port = place.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match port {
            Some((host, port)) if !host.is_empty() => {
                let host = host
                    .strip_prefix('[')
                    .and_then(|host| host.strip_suffix(']'))
                    .unwrap_or(host);
                Ok(Address::Tcp(host.to_owned(), port))
            }
            _ => Err(format!(
                "`{text}` is no place; write tcp://*:PORT, tcp://HOST:PORT or ipc://PATH"
            )),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "tcp://{host}:{port}"),
            Address::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

/// Where the publisher is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Subscribers connect to it.
    Bind(Address),
    /// It connects to a subscriber that waits there.
    Connect(Address),
}

impl Endpoint {
    /// By vLLM's rule: `*`, `::` and `ipc://` are listened on; any other place is connected to.
    ///
    /// # Errors
    /// As [`Address::parse`]; no port to connect to.
    pub fn of_publisher(text: &str) -> Result<Endpoint, String> {
        let address = Address::parse(text)?;
        if text.contains('*') || text.contains("::") || text.starts_with("ipc://") {
            return Ok(Endpoint::Bind(address));
        }
        match address {
            Address::Tcp(_, 0) => Err(format!(
                "`{text}` is connected to and needs a port; tcp://*:0 listens on any"
            )),
            address => Ok(Endpoint::Connect(address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_defaults_are_vllms() {
        let config = KvEventsConfig::parse("{}").expect("all defaults");
        assert_eq!(config, KvEventsConfig::default());
        assert!(!config.publishes());
        let config = KvEventsConfig::parse(
            r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:7", "replay_endpoint":
                "ipc:///tmp/r", "topic": "kv@pod@model", "buffer_steps": 0, "hwm": 1, "max_queue_size": 2}"#,
        );
        let config = config.expect("right");
        assert!(config.publishes());
        assert_eq!((config.buffer_steps, config.hwm, config.max_queue_size), (0, 1, 2));
        let none = KvEventsConfig::parse(r#"{"enable_kv_cache_events": true, "publisher": "null"}"#);
        assert!(!none.expect("right").publishes());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for (wrong, words) in [
            ("5", "invalid type"),
            (r#"{"enable": true}"#, "unknown field `enable`"),
            (r#"{"publisher": "nats"}"#, "known are zmq and null"),
            (r#"{"endpoint": "inproc://a"}"#, "endpoint: `inproc://a` is no place"),
            (r#"{"endpoint": "tcp://host"}"#, "is no place"),
            (r#"{"endpoint": "tcp://host:0"}"#, "needs a port"),
            (r#"{"replay_endpoint": "5558"}"#, "replay_endpoint: `5558`"),
            (r#"{"hwm": 0}"#, "hwm: 0 is not between 1 and 1000000"),
            (r#"{"buffer_steps": 1000001}"#, "buffer_steps: 1000001"),
        ] {
            let refused = KvEventsConfig::parse(wrong).expect_err(wrong);
            assert!(refused.contains(words), "{wrong}: {refused}");
        }
        let long = format!(r#"{{"topic": "{}"}}"#, "t".repeat(256));
        assert!(KvEventsConfig::parse(&long).is_err());
    }

    #[test]
    fn wildcards_are_listened_on_and_hosts_connected_to() {
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        for (text, endpoint) in [
            ("tcp://*:5557", Endpoint::Bind(tcp("*", 5557))),
            ("tcp://[::]:0", Endpoint::Bind(tcp("::", 0))),
            ("ipc:///run/kv", Endpoint::Bind(Address::Ipc("/run/kv".into()))),
            ("tcp://router:5557", Endpoint::Connect(tcp("router", 5557))),
        ] {
            assert_eq!(Endpoint::of_publisher(text), Ok(endpoint), "{text}");
        }
        assert_eq!(tcp("::1", 5).to_string(), "tcp://[::1]:5");
    }

    #[test]
    fn copies_have_ports_of_their_own() {
        let json = r#"{"endpoint": "tcp://*:5557", "replay_endpoint": "ipc:///run/replay"}"#;
        let config = KvEventsConfig::parse(json).expect("right");
        assert_eq!(config.of_rank(0), Ok(config.clone()));
        let third = config.of_rank(3).expect("there are ports");
        assert_eq!(third.endpoint, "tcp://*:5560");
        assert_eq!(third.replay_endpoint.as_deref(), Some("ipc:///run/replay_dp3"));
        let highest = KvEventsConfig::parse(r#"{"endpoint": "tcp://[::1]:65535"}"#).expect("right");
        assert!(highest.of_rank(1).expect_err("no port").contains("65535"));
        let any = KvEventsConfig::parse(r#"{"endpoint": "tcp://*:0"}"#).expect("right");
        assert_eq!(any.of_rank(1).expect("any port").endpoint, "tcp://*:0");
    }
}
