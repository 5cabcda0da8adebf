//! The service manager that started this server, where one did: the listening sockets that it passes (`LISTEN_FDS`) and
//! what it is told (`NOTIFY_SOCKET`), by systemd's protocols. Without one nothing here does anything.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::error::ServerError;
use crate::option_error::OptionError;

/// A listening socket that was passed.
pub enum Passed {
    /// `ListenStream=127.0.0.1:8000`
    Tcp(TcpListener),
    /// `ListenStream=/run/halyard/socket`
    Unix(UnixListener),
}

/// The sockets that were passed. Takes them off the environment, so call it once, before threads start.
///
/// # Errors
/// One that is neither a listening TCP socket nor a listening Unix socket.
pub fn passed_sockets() -> Result<Vec<Passed>, ServerError> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..passed.len() {
        let refuse = |error: std::io::Error| OptionError {
            option: "LISTEN_FDS",
            message: format!(
                "socket {index}: {error}; a server takes TCP and Unix sockets, as ListenStream=127.0.0.1:8000 and \
                 ListenStream=/run/halyard/socket make them"
            ),
        };
        if let Ok(unix) = passed.take_unix_listener(index) {
            sockets.extend(unix.map(Passed::Unix));
        } else {
            sockets.extend(passed.take_tcp_listener(index).map_err(refuse)?.map(Passed::Tcp));
        }
    }
    Ok(sockets)
}

/// Requests are served now.
pub fn ready(url: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("serving at {url}"))]);
}

/// Running answers finish, then the server ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing running answers")]);
}

/// What takes time before [`ready`].
pub fn loading(what: &str) {
    tell(&[NotifyState::Status(&format!("loading {what}"))]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}
