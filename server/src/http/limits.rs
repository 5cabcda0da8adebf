//! Bounds and deadlines of connections: how many, how long each part of a request may take, how much is held for one.
//! The bound on their number comes from the process's limit of open files. Accepts and closes nothing itself.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections that are served beyond the bound, so that probes and scrapes are answered at all times: each gets one
/// request, and only `/health`, `/ping` and `/metrics` are answered.
pub const PROBE_CONNECTIONS: usize = 16;
/// Closed connections whose task has not ended yet; their descriptors still count.
pub const CLOSING_CONNECTIONS: usize = 16;
/// Descriptors kept for model files, adapters, plugins, logs and their processes.
const RESERVED_FILES: usize = 128;
/// Connections at most unless more are asked for. Half-sent heads may hold [`ConnectionLimits::head_bytes`] each: 512
/// MiB.
const DEFAULT_MAX_CONNECTIONS: usize = 8192;

/// The limits of one connection, and of their number.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Connections at the same time, without [`PROBE_CONNECTIONS`].
    pub connections: usize,
    /// From a connection's start, or a later request's first byte, to the end of its head. hyper's own default.
    pub header_timeout: Duration,
    /// For a body, plus one second for each [`ConnectionLimits::body_rate`] bytes that came.
    pub body_timeout: Duration,
    /// Bytes a second that a body must keep up in the long run.
    pub body_rate: u64,
    /// Between two requests. Longer than the 60 s of common load balancers, so that the balancer closes first.
    pub keep_alive: Duration,
    /// For a client to take the next byte of an answer.
    pub write_timeout: Duration,
    /// Bytes of a request's head, and of an answer that wait in user space for the socket.
    pub head_bytes: usize,
    /// Headers of a request.
    pub headers: usize,
    /// Streams of one HTTP/2 connection at the same time.
    pub http2_streams: u32,
    /// Bytes of long bodies that are coming or wait to be worked on, all connections together.
    pub pending_body_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            connections: DEFAULT_MAX_CONNECTIONS,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            body_rate: 16 << 10,
            keep_alive: Duration::from_secs(75),
            write_timeout: Duration::from_secs(300),
            // uvicorn's; vLLM's 4 MiB would let half-sent heads hold 32 GiB.
            head_bytes: 64 << 10,
            headers: 256,
            http2_streams: 256,
            pending_body_bytes: 128 << 20,
        }
    }
}

impl ConnectionLimits {
    /// The shortest deadline: a check that often misses none.
    pub fn check_interval(&self) -> Duration {
        self.header_timeout.min(self.keep_alive).min(self.write_timeout)
    }
}

/// Why the limit of open files does not do.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileLimitError {
    /// More connections were asked for than descriptors are left.
    #[error(
        "--max-connections is {asked}, but the limit of {limit} open files allows {available}; raise it (ulimit \
         -n) or ask for fewer"
    )]
    TooMany {
        /// As given.
        asked: usize,
        /// Open files that the process may have.
        limit: usize,
        /// Connections that fit.
        available: usize,
    },
    /// Not even one connection fits.
    #[error(
        "the limit of {limit} open files is too low: {open} are open, and {reserved} are kept for files, probes and \
         plugins; \
         raise it (ulimit -n) to at least {least}"
    )]
    TooLow {
        /// Open files that the process may have.
        limit: usize,
        /// Open now.
        open: usize,
        /// Kept for other uses.
        reserved: usize,
        /// The lowest limit that does.
        least: usize,
    },
}

/// The bound on connections: the number asked for, or the default, if the limit of open files allows it.
///
/// # Errors
/// [`FileLimitError`].
pub fn max_connections(asked: Option<usize>, file_limit: usize, open: usize) -> Result<usize, FileLimitError> {
    let reserved = RESERVED_FILES.min(file_limit / 4) + PROBE_CONNECTIONS + CLOSING_CONNECTIONS;
    let available = file_limit.saturating_sub(open + reserved);
    if available == 0 {
        return Err(FileLimitError::TooLow {
            limit: file_limit,
            open,
            reserved,
            least: 2 * (open + PROBE_CONNECTIONS + CLOSING_CONNECTIONS),
        });
    }
    match asked {
        Some(asked) if asked > available => Err(FileLimitError::TooMany {
            asked,
            limit: file_limit,
            available,
        }),
        Some(asked) => Ok(asked),
        None => Ok(available.min(DEFAULT_MAX_CONNECTIONS)),
    }
}

/// Raises this process's limit of open files to the highest that it may set; the limit afterwards.
pub fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let count = |limit: Option<u64>| limit.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    if limit.current == limit.maximum {
        return count(limit.current);
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            tracing::debug!(from = ?limit.current, to = ?limit.maximum, "limit of open files raised");
            count(limit.maximum)
        }
        Err(error) => {
            tracing::debug!(limit = ?limit.current, %error, "the limit of open files stays");
            count(limit.current)
        }
    }
}

/// Descriptors that this process has open; a guess where the system does not tell.
pub fn open_files() -> usize {
    std::fs::read_dir("/dev/fd").map_or(64, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_leaves_descriptors_for_everything_else() {
        assert_eq!(max_connections(None, 1024, 20), Ok(1024 - 20 - 128 - 32));
        assert_eq!(max_connections(None, 1 << 20, 20), Ok(DEFAULT_MAX_CONNECTIONS));
        assert_eq!(max_connections(Some(20_000), 1 << 20, 20), Ok(20_000));
        assert_eq!(max_connections(Some(3), 1024, 20), Ok(3));
    }

    #[test]
    fn too_many_for_the_limit_is_an_error_with_the_room_that_there_is() {
        let error = max_connections(Some(1000), 1024, 20).expect_err("does not fit");
        assert!(
            error.to_string().contains("1000") && error.to_string().contains("844"),
            "{error}"
        );
        let error = max_connections(None, 64, 40).expect_err("nothing fits");
        let FileLimitError::TooLow { least, .. } = error else {
            panic!("{error}");
        };
        assert!(max_connections(None, least, 40).is_ok(), "the remedy works");
    }
}
