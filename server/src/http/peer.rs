//! The client at the other end of a connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// An address of the network.
    Tcp(SocketAddr),
    /// A process of this machine, through a Unix socket. It has no name.
    Unix,
}

impl Peer {
    /// Its address, where it has one.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Peer::Tcp(address) => Some(address.ip()),
            Peer::Unix => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Unix => f.write_str("unix"),
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Peer::Tcp(address)
    }
}
