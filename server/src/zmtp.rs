//! The part of ZMTP 3.0 (ZeroMQ's protocol, rfc.zeromq.org/spec/23) that a PUB and a ROUTER socket need, over any
//! stream, without encryption. A peer is a stranger: what it sends is bounded, and nothing is allocated for a length
//! that it only announces.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest message of a peer, all frames together: a subscription, or a sequence number.
pub const MAX_MESSAGE: usize = 4096;

/// Most frames of a peer's message.
const MAX_FRAMES: usize = 8;

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// The connection's own end.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer does not speak the protocol, or speaks an old one.
    #[error("the peer speaks no ZMTP 3 without encryption ({found}); connect a ZeroMQ 4 socket without CURVE or PLAIN")]
    Greeting {
        /// What is wrong.
        found: String,
    },
    /// A socket that does not fit.
    #[error("a {found} socket is connected to a {own} socket; connect {wanted}")]
    SocketType {
        /// The peer's.
        found: String,
        /// Ours.
        own: &'static str,
        /// What fits.
        wanted: &'static str,
    },
    /// More than is taken.
    #[error("the peer sent a message of over {MAX_MESSAGE} bytes or {MAX_FRAMES} frames")]
    TooLong,
    /// A frame that the protocol does not have.
    #[error("the peer broke the protocol: {0}")]
    Broken(&'static str),
}

/// What a socket of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// Sends to everybody who subscribed.
    Publisher,
    /// Answers each peer.
    Router,
}

impl SocketKind {
    fn name(self) -> &'static str {
        match self {
            SocketKind::Publisher => "PUB",
            SocketKind::Router => "ROUTER",
        }
    }

    /// The kinds that may connect.
    fn takes(self) -> (&'static [&'static str], &'static str) {
        match self {
            SocketKind::Publisher => (&["SUB", "XSUB"], "SUB or XSUB"),
            SocketKind::Router => (&["REQ", "DEALER", "ROUTER"], "DEALER or REQ"),
        }
    }
}

/// What a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The frames of a message.
    Message(Vec<Bytes>),
    /// A command behind the handshake: its name and its data.
    Command(Bytes, Bytes),
}

/// A connection after the handshake.
#[derive(Debug)]
pub struct Peer<S> {
    stream: S,
    input: BytesMut,
    /// Frames of a message whose last one is not here yet.
    frames: Vec<Bytes>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Greets the peer and checks what it is. Has no deadline of its own.
    ///
    /// # Errors
    /// [`ZmtpError`].
    pub async fn connect(stream: S, own: SocketKind) -> Result<Peer<S>, ZmtpError> {
        let mut peer = Peer {
            stream,
            input: BytesMut::new(),
            frames: Vec::new(),
        };
        let mut greeting = [0; GREETING];
        (greeting[0], greeting[8], greeting[9], greeting[10]) = (0xff, 1, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        peer.stream.write_all(&greeting).await?;
        while peer.input.len() < GREETING {
            peer.read().await?;
            check_greeting(&peer.input)?;
        }
        peer.input.advance(GREETING);
        let mut ready = BytesMut::new();
        put_frame(
            &mut ready,
            COMMAND,
            &[b"\x05READY", &property("Socket-Type", own.name())],
        );
        peer.stream.write_all(&ready).await?;
        let found = match peer.recv().await? {
            Received::Command(name, data) if &name[..] == b"READY" => socket_type(&data)?,
            _ => return Err(ZmtpError::Broken("it began with something else than READY")),
        };
        let (kinds, wanted) = own.takes();
        if !kinds.contains(&found.as_str()) {
            let own = own.name();
            return Err(ZmtpError::SocketType { found, own, wanted });
        }
        Ok(peer)
    }

    /// The next message or command. It may be given up at any time and be called again.
    ///
    /// # Errors
    /// [`ZmtpError`].
    pub async fn recv(&mut self) -> Result<Received, ZmtpError> {
        loop {
            while let Some((flags, body)) = take_frame(&mut self.input)? {
                if flags & COMMAND != 0 {
                    let length = usize::from(*body.first().ok_or(ZmtpError::Broken("an empty command"))?);
                    if body.len() <= length {
                        return Err(ZmtpError::Broken("a command without its name"));
                    }
                    return Ok(Received::Command(body.slice(1..=length), body.slice(length + 1..)));
                }
                self.frames.push(body);
                let bytes: usize = self.frames.iter().map(Bytes::len).sum();
                if self.frames.len() > MAX_FRAMES || bytes > MAX_MESSAGE {
                    return Err(ZmtpError::TooLong);
                }
                if flags & MORE == 0 {
                    return Ok(Received::Message(std::mem::take(&mut self.frames)));
                }
            }
            self.read().await?;
        }
    }

    /// Sends bytes of [`put_message`].
    ///
    /// # Errors
    /// The connection's end.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        Ok(self.stream.write_all(bytes).await?)
    }

    async fn read(&mut self) -> Result<(), ZmtpError> {
        if self.stream.read_buf(&mut self.input).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(())
    }
}

/// Appends a message of these frames.
pub fn put_message(out: &mut BytesMut, frames: &[&[u8]]) {
    for (index, frame) in frames.iter().enumerate() {
        let flags = if index + 1 < frames.len() { MORE } else { 0 };
        put_frame(out, flags, &[frame]);
    }
}

/// Appends a frame that others of the same message follow.
pub fn put_first_frame(out: &mut BytesMut, frame: &[u8]) {
    put_frame(out, MORE, &[frame]);
}

fn put_frame(out: &mut BytesMut, flags: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    match u8::try_from(length) {
        Ok(short) => out.extend_from_slice(&[flags, short]),
        Err(_) => {
            out.extend_from_slice(&[flags | LONG]);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Takes a whole frame off the input: flags and body.
fn take_frame(input: &mut BytesMut) -> Result<Option<(u8, Bytes)>, ZmtpError> {
    let Some(&flags) = input.first() else { return Ok(None) };
    if flags > (MORE | LONG | COMMAND) {
        return Err(ZmtpError::Broken("a frame with unknown flags"));
    }
    let header = if flags & LONG == 0 { 2 } else { 9 };
    let Some(length) = input.get(1..header) else {
        return Ok(None);
    };
    let length = length.iter().fold(0u64, |length, byte| length << 8 | u64::from(*byte));
    if length > MAX_MESSAGE as u64 {
        return Err(ZmtpError::TooLong);
    }
    if input.len() < header + length as usize {
        return Ok(None);
    }
    input.advance(header);
    Ok(Some((flags, input.split_to(length as usize).freeze())))
}

/// Refuses the beginning of a greeting as soon as it cannot become one that fits.
fn check_greeting(begun: &[u8]) -> Result<(), ZmtpError> {
    let refuse = |found: String| Err(ZmtpError::Greeting { found });
    if begun[0] != 0xff || begun.get(9).is_some_and(|byte| *byte != 0x7f) {
        return refuse("no greeting of ZMTP".to_owned());
    }
    if let Some(version) = begun.get(10).filter(|version| **version < 3) {
        return refuse(format!("version {version}"));
    }
    let mechanism = begun
        .get(12..32)
        .map(|name| name.split(|byte| *byte == 0).next().unwrap_or_default());
    match mechanism {
        Some(name) if name != b"NULL" => refuse(format!("mechanism {}", String::from_utf8_lossy(name))),
        _ => Ok(()),
    }
}

/// A property of READY.
fn property(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![name.len() as u8];
    bytes.extend(name.as_bytes());
    bytes.extend((value.len() as u32).to_be_bytes());
    bytes.extend(value.as_bytes());
    bytes
}

/// The peer's socket type among the properties of READY.
fn socket_type(mut properties: &[u8]) -> Result<String, ZmtpError> {
    const BROKEN: ZmtpError = ZmtpError::Broken("properties of READY end early");
    while let Some((&length, rest)) = properties.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(length)).ok_or(BROKEN)?;
        let (size, rest) = rest.split_first_chunk::<4>().ok_or(BROKEN)?;
        let (value, rest) = rest
            .split_at_checked(u32::from_be_bytes(*size) as usize)
            .ok_or(BROKEN)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Ok(String::from_utf8_lossy(value).into_owned());
        }
        properties = rest;
    }
    Err(ZmtpError::Broken("READY names no Socket-Type"))
}

#[cfg(test)]
mod tests;
