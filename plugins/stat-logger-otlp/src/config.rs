//! The configuration's keys, checked with the key and value in the refusal.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use halyard_platform_api::{Error, Result};
use serde::Deserialize;

use crate::grpc;

/// How data goes to the collector.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub enum Protocol {
    /// Protobuf bodies over HTTP.
    #[default]
    #[serde(rename = "http/protobuf")]
    Http,
    /// gRPC, with TLS for `https://` and without it for `http://`.
    #[serde(rename = "grpc")]
    Grpc,
}

/// The configuration's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The collector, `http://` or `https://`. Over HTTP `/v1/metrics` and `/v1/traces` are appended; gRPC has no path.
    pub endpoint: String,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// A PEM file with the certificates to trust in the place of the system's; for `https://` only.
    pub ca_file: Option<PathBuf>,
    /// Sent with each request, such as a collector's key.
    pub headers: HashMap<String, String>,
    /// `service.name` of everything that is sent; else the one among `resource_attributes`, else `halyard`.
    pub service_name: Option<String>,
    /// Attributes of everything that is sent, such as the pod and the environment. They go before the server's own.
    pub resource_attributes: BTreeMap<String, String>,
    /// Whether to send metrics.
    pub metrics: bool,
    /// Whether to send spans.
    pub traces: bool,
    /// How often metrics are sent, milliseconds.
    pub interval_ms: u64,
    /// How long spans may wait to be sent, milliseconds.
    pub span_delay_ms: u64,
    /// How long the collector may take for one request, connecting included, milliseconds.
    pub timeout_ms: u64,
    /// Spans that may wait for the collector; more are dropped and counted.
    pub max_queued_spans: usize,
    /// Share of requests that are traced where the client sent no trace context, 0 to 1.
    pub sample_ratio: f64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            // The protocol's, see `parse`.
            endpoint: String::new(),
            protocol: Protocol::Http,
            ca_file: None,
            headers: HashMap::new(),
            service_name: None,
            resource_attributes: BTreeMap::new(),
            metrics: true,
            traces: true,
            interval_ms: 10_000,
            span_delay_ms: 1_000,
            timeout_ms: 2_000,
            max_queued_spans: 8_192,
            sample_ratio: 1.0,
        }
    }
}

impl Protocol {
    /// Where a collector of this machine listens by OpenTelemetry's convention.
    fn default_endpoint(self) -> &'static str {
        match self {
            Protocol::Http => "http://localhost:4318",
            Protocol::Grpc => "http://localhost:4317",
        }
    }
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("configuration {text}: {error}")))
}

/// The refusal of a key's value.
pub fn refused(key: &str, reason: impl std::fmt::Display) -> Error {
    Error::invalid(format!("configuration key `{key}`: {reason}"))
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// `InvalidArgument` with the key.
    pub fn parse(text: &str) -> Result<Config> {
        let given: serde_json::Map<String, serde_json::Value> = parsed(text)?;
        let mut config: Config = parsed(text)?;
        if !given.contains_key("endpoint") {
            config.endpoint = config.protocol.default_endpoint().to_string();
        }
        let endpoint = config.endpoint.as_str();
        if !endpoint.starts_with("http://") && !config.is_encrypted() {
            return Err(refused(
                "endpoint",
                format_args!("{endpoint:?} must begin with http:// or https://"),
            ));
        }
        let path = endpoint.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        if let (Protocol::Grpc, Some((_, path))) = (config.protocol, path)
            && !path.is_empty()
        {
            return Err(refused(
                "endpoint",
                format_args!(
                    "{endpoint:?} has the path /{path}, and gRPC has none: leave it out, or set `protocol` to \
                     \"http/protobuf\""
                ),
            ));
        }
        if let (Some(file), false) = (&config.ca_file, config.is_encrypted()) {
            let file = file.display();
            return Err(refused(
                "ca_file",
                format_args!("{file} has no use with {endpoint:?}: only https:// shows a certificate"),
            ));
        }
        for (key, value, most) in [
            ("interval_ms", config.interval_ms, 3_600_000),
            ("span_delay_ms", config.span_delay_ms, 60_000),
            ("timeout_ms", config.timeout_ms, 60_000),
            ("max_queued_spans", config.max_queued_spans as u64, 1 << 20),
        ] {
            if value == 0 || value > most {
                return Err(refused(key, format_args!("{value} is not 1 to {most}")));
            }
        }
        if !(0.0..=1.0).contains(&config.sample_ratio) {
            return Err(refused(
                "sample_ratio",
                format_args!("{} is not 0 to 1", config.sample_ratio),
            ));
        }
        Ok(config)
    }

    /// Whether the way to the collector is TLS.
    pub fn is_encrypted(&self) -> bool {
        self.endpoint.starts_with("https://")
    }

    /// How long the collector may take for one request.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Where `signal` is sent to.
    pub fn url(&self, signal: &str) -> String {
        let base = self.endpoint.trim_end_matches('/');
        match self.protocol {
            Protocol::Http => format!("{base}/v1/{signal}"),
            Protocol::Grpc => format!("{base}{}", grpc::path(signal)),
        }
    }
}
