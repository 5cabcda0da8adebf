//! A stranger's bytes at the ports of KV cache events: a greeting, READY, subscriptions and requests for past batches.

use std::path::Path;

use halyard_server::zmtp::{Peer, SocketKind, ZmtpError};
use tokio::io::AsyncWriteExt as _;

use crate::target::{Case, Outcome};

pub fn seeds() -> Vec<Vec<u8>> {
    let begun = |kind: &str, rest: &[u8]| {
        let mut bytes = vec![0; 64];
        (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
        bytes[12..16].copy_from_slice(b"NULL");
        bytes.extend([4, 22 + kind.len() as u8]);
        bytes.extend(b"\x05READY\x0bSocket-Type\0\0\0");
        bytes.push(kind.len() as u8);
        bytes.extend(kind.as_bytes());
        bytes.extend(rest);
        bytes
    };
    vec![
        begun(
            "SUB",
            b"\x00\x06\x01topic\x00\x01\x01\x00\x06\x00topic\x04\x0f\x09SUBSCRIBEtopic",
        ),
        begun("DEALER", b"\x01\x00\x00\x08\0\0\0\0\0\0\0\x05"),
        begun("REQ", b"\x01\x00\x02\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x05"),
    ]
}

/// What is read does not depend on how it arrives, and an announced length makes nothing grow.
pub fn peer(_: &Path) -> Case {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    Box::new(move |input| {
        let step = input.first().map_or(1, |byte| 1 + usize::from(*byte) % 97);
        for own in [SocketKind::Publisher, SocketKind::Router] {
            let [whole, cut] = [input.len().max(1), step].map(|step| runtime.block_on(read(input, step, own)));
            assert_eq!(whole, cut, "it depends on how bytes arrive");
            if whole.1.is_none() {
                return Outcome::Accepted;
            }
        }
        Outcome::Refused
    })
}

/// What a peer sent, and why the connection was given up before it ended.
async fn read(input: &[u8], step: usize, own: SocketKind) -> (Vec<String>, Option<String>) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 12);
    let write = async move {
        for part in input.chunks(step) {
            if theirs.write_all(part).await.is_err() {
                break;
            }
        }
        let _ = theirs.shutdown().await;
        theirs
    };
    let read = async move {
        let mut received = Vec::new();
        let mut peer = match Peer::connect(ours, own).await {
            Ok(peer) => peer,
            Err(error) => return (received, Some(error.to_string())),
        };
        loop {
            match peer.recv().await {
                Ok(next) => received.push(format!("{next:?}")),
                Err(ZmtpError::Io(_)) => return (received, None),
                Err(error) => return (received, Some(error.to_string())),
            }
        }
    };
    tokio::join!(write, read).1
}
