//! The service manager that started this server, where one did: the listening socket that it passes (`LISTEN_FDS`) and
//! what it is told (`NOTIFY_SOCKET`), by systemd's protocols. Without one nothing here does anything.

use std::net::TcpListener;

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::error::ServerError;
use crate::option_error::OptionError;

/// The socket that was passed. Takes it off the environment, so call it once, before threads start.
///
/// # Errors
/// Several sockets, or one that is no listening TCP socket.
pub fn passed_socket() -> Result<Option<TcpListener>, ServerError> {
    let mut passed = ListenFd::from_env();
    let refuse = |message: String| {
        ServerError::from(OptionError {
            option: "LISTEN_FDS",
            message,
        })
    };
    match passed.len() {
        0 => Ok(None),
        1 => passed.take_tcp_listener(0).map_err(|error| {
            refuse(format!(
                "{error}; a server takes a TCP socket, as ListenStream=127.0.0.1:8000 makes one"
            ))
        }),
        count => Err(refuse(format!(
            "{count} sockets were passed; a server takes one: leave one ListenStream= in the socket unit"
        ))),
    }
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
