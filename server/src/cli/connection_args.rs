//! Flags about connections: how many, how long each part of a request may take, and how a server ends. Names are vLLM's
//! or uvicorn's where they have one.

use std::time::Duration;

use clap::{Args, value_parser};

use super::units::parse_bytes;
use crate::error::ServerError;
use crate::http::limits::{ConnectionLimits, max_connections, open_files, raise_file_limit};

/// Flags of `halyard serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connections")]
pub(super) struct ConnectionArgs {
    /// Connections at the same time; without it as many as the limit of open files allows, 8192 at most. Beyond it the
    /// connection that waits longest for a request is closed; where all are being answered, only /health, /ping and
    /// /metrics answer
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_CONNECTIONS", value_parser = value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// Seconds between two requests of a connection; then it is closed
    #[arg(long, value_name = "SECONDS", env = "HALYARD_TIMEOUT_KEEP_ALIVE", default_value_t = 75,
        value_parser = value_parser!(u32).range(1..))]
    timeout_keep_alive: u32,
    /// Seconds for the head of a request, from the connection's start or the head's first byte
    #[arg(long, value_name = "SECONDS", env = "HALYARD_REQUEST_HEADER_TIMEOUT", default_value_t = 30,
        value_parser = value_parser!(u32).range(1..))]
    request_header_timeout: u32,
    /// Seconds that the server waits for the body of a request, and one more for each --request-body-min-rate bytes
    /// that came
    #[arg(long, value_name = "SECONDS", env = "HALYARD_REQUEST_BODY_TIMEOUT", default_value_t = 30,
        value_parser = value_parser!(u32).range(1..))]
    request_body_timeout: u32,
    /// Bytes a second that a body must keep up after its first seconds
    #[arg(long, value_name = "BYTES", env = "HALYARD_REQUEST_BODY_MIN_RATE", default_value = "16KiB",
        value_parser = parse_bytes)]
    request_body_min_rate: u64,
    /// Bytes of all long bodies (over 32 KiB) that are arriving or wait to be processed; above it the slowest gets 503
    #[arg(long, value_name = "BYTES", env = "HALYARD_MAX_PENDING_BODY_BYTES", default_value = "128MiB",
        value_parser = parse_bytes)]
    max_pending_body_bytes: u64,
    /// Seconds in which a client must take a byte of an answer that waits for it
    #[arg(long, value_name = "SECONDS", env = "HALYARD_RESPONSE_WRITE_TIMEOUT", default_value_t = 300,
        value_parser = value_parser!(u32).range(1..))]
    response_write_timeout: u32,
    /// Bytes of a request's head, from 8 KiB on; also of an answer that waits for its client
    #[arg(long, value_name = "BYTES", env = "HALYARD_H11_MAX_INCOMPLETE_EVENT_SIZE", default_value = "64KiB",
        value_parser = parse_head_bytes)]
    h11_max_incomplete_event_size: u32,
    /// Headers of a request
    #[arg(long, value_name = "COUNT", env = "HALYARD_H11_MAX_HEADER_COUNT", default_value_t = 256,
        value_parser = value_parser!(u32).range(1..=65_536))]
    h11_max_header_count: u32,
    /// Requests of one HTTP/2 connection at the same time
    #[arg(long, value_name = "COUNT", env = "HALYARD_HTTP2_MAX_CONCURRENT_STREAMS", default_value_t = 256,
        value_parser = value_parser!(u32).range(1..))]
    http2_max_concurrent_streams: u32,
    /// Seconds for which the port stays open after a signal while /health answers 503, so that load balancers go
    /// elsewhere first
    #[arg(long, value_name = "SECONDS", env = "HALYARD_DRAIN_DELAY", default_value_t = 0)]
    drain_delay: u32,
}

impl ConnectionArgs {
    /// The limits. Raises this process's limit of open files as far as it may.
    ///
    /// # Errors
    /// More connections than the limit of open files allows.
    pub(super) fn limits(&self) -> Result<ConnectionLimits, ServerError> {
        let seconds = |count: u32| Duration::from_secs(u64::from(count));
        let count = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        let asked = self.max_connections.map(count);
        let (file_limit, open) = (raise_file_limit(), open_files());
        let connections = max_connections(asked, file_limit, open)?;
        tracing::debug!(connections, file_limit, open, "bound on connections");
        Ok(ConnectionLimits {
            connections,
            header_timeout: seconds(self.request_header_timeout),
            body_timeout: seconds(self.request_body_timeout),
            body_rate: self.request_body_min_rate,
            keep_alive: seconds(self.timeout_keep_alive),
            write_timeout: seconds(self.response_write_timeout),
            head_bytes: count(self.h11_max_incomplete_event_size),
            headers: count(self.h11_max_header_count),
            http2_streams: self.http2_max_concurrent_streams,
            pending_body_bytes: usize::try_from(self.max_pending_body_bytes).unwrap_or(usize::MAX),
        })
    }

    /// `--drain-delay`.
    pub(super) fn drain_delay(&self) -> Duration {
        Duration::from_secs(u64::from(self.drain_delay))
    }
}

/// hyper's buffers are no smaller than 8 KiB, and a head is no reason for more than some MB.
fn parse_head_bytes(text: &str) -> Result<u32, String> {
    const LEAST: u64 = 8 << 10;
    const MOST: u64 = 16 << 20;
    let bytes = parse_bytes(text)?;
    match u32::try_from(bytes).ok().filter(|_| (LEAST..=MOST).contains(&bytes)) {
        Some(bytes) => Ok(bytes),
        None => Err(format!("{bytes} bytes; give between 8KiB and 16MiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        connections: ConnectionArgs,
    }

    #[test]
    fn the_flags_defaults_are_the_servers() {
        let flags = Flags::try_parse_from(["serve", "--max-connections", "1"]).expect("defaults");
        let limits = flags.connections.limits().expect("one fits");
        let expected = ConnectionLimits {
            connections: 1,
            ..ConnectionLimits::default()
        };
        assert_eq!(format!("{limits:?}"), format!("{expected:?}"));
    }

    #[test]
    fn a_head_size_out_of_bounds_names_the_bounds() {
        for text in ["1", "8191", "17MiB"] {
            let error = parse_head_bytes(text).expect_err(text);
            assert!(error.contains("8KiB") && error.contains("16MiB"), "{error}");
        }
        assert_eq!(parse_head_bytes("4194304"), Ok(4 << 20));
    }
}
