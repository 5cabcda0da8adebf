//! What peers may send. That real ones are understood is tested with libzmq, in tests/e2e/tests/kv_events.rs.

use tokio::io::DuplexStream;

use super::*;

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0; GREETING];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn ready(kind: &str) -> Vec<u8> {
    let mut out = BytesMut::new();
    let identity = property("Identity", "");
    put_frame(
        &mut out,
        COMMAND,
        &[b"\x05READY", &identity, &property("socket-type", kind)],
    );
    out.to_vec()
}

/// What becomes of a connection on which a peer sends these bytes, at once or byte after byte, and then nothing.
async fn outcome(own: SocketKind, bytes: &[u8]) -> Result<Vec<Received>, ZmtpError> {
    let mut results = Vec::new();
    for step in [bytes.len().max(1), 1] {
        let (ours, mut theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 16);
        let bytes = bytes.to_vec();
        let peer = tokio::spawn(async move {
            for part in bytes.chunks(step) {
                if theirs.write_all(part).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            theirs.shutdown().await.expect("it ends");
            let mut answer = Vec::new();
            let _ = theirs.read_to_end(&mut answer).await;
        });
        let run = async {
            let mut peer = Peer::connect(ours, own).await?;
            let mut received = Vec::new();
            loop {
                match peer.recv().await {
                    Ok(next) => received.push(next),
                    Err(ZmtpError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(received),
                    Err(error) => return Err(error),
                }
            }
        };
        results.push(run.await);
        peer.await.expect("the peer");
    }
    let second = results.pop().expect("two");
    let first = results.pop().expect("two");
    assert_eq!(
        format!("{first:?}"),
        format!("{second:?}"),
        "how bytes arrive makes no difference"
    );
    first
}

#[tokio::test]
async fn messages_and_commands_arrive() {
    let mut bytes = [greeting(), ready("SUB")].concat();
    bytes.extend(b"\x00\x01\x01");
    bytes.extend(b"\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x02ab\x00\x01c");
    bytes.extend(b"\x04\x0b\x09SUBSCRIBEt");
    let received = outcome(SocketKind::Publisher, &bytes).await.expect("it is right");
    let message = |frames: &[&'static [u8]]| Received::Message(frames.iter().map(|f| Bytes::from_static(f)).collect());
    assert_eq!(
        received,
        [
            message(&[b"\x01"]),
            message(&[b"", b"ab", b"c"]),
            Received::Command(Bytes::from_static(b"SUBSCRIBE"), Bytes::from_static(b"t")),
        ]
    );
}

#[tokio::test]
async fn what_is_written_is_read() {
    let mut bytes = BytesMut::from(&[greeting(), ready("DEALER")].concat()[..]);
    let long = vec![7; 300];
    put_first_frame(&mut bytes, b"");
    put_message(&mut bytes, &[b"seq", &long]);
    let received = outcome(SocketKind::Router, &bytes).await.expect("it is right");
    let frames = [Bytes::new(), Bytes::from_static(b"seq"), Bytes::from(long)];
    assert_eq!(received, [Received::Message(frames.to_vec())]);
}

#[tokio::test]
async fn what_breaks_the_protocol_is_refused_with_the_reason() {
    let begun = |kind: &str, rest: &[u8]| [greeting(), ready(kind), rest.to_vec()].concat();
    let old = [&[0xff; 1][..], &[0; 8], &[0x7f, 1]].concat();
    let mut curve = greeting();
    curve[12..18].copy_from_slice(b"CURVE\0");
    // An announced length alone makes nothing grow.
    let huge = b"\x02\x3f\xff\xff\xff\xff\xff\xff\xff".to_vec();
    let many: Vec<u8> = b"\x01\x01a".repeat(9);
    let pieces: Vec<u8> = [b"\x03\x00\x00\x00\x00\x00\x00\x08\x00".to_vec(), vec![0; 2048]]
        .concat()
        .repeat(3);
    let cases: [(Vec<u8>, &str); 11] = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "no greeting of ZMTP"),
        (old, "version 1"),
        (curve, "mechanism CURVE"),
        (
            begun("REQ", b""),
            "a REQ socket is connected to a PUB socket; connect SUB or XSUB",
        ),
        (begun("SUB", &huge), "over 4096 bytes"),
        (begun("SUB", &many), "8 frames"),
        (begun("SUB", &pieces), "over 4096 bytes"),
        (begun("SUB", b"\x08\x01a"), "unknown flags"),
        (begun("SUB", b"\x04\x00"), "empty command"),
        (begun("SUB", b"\x04\x02\x09S"), "without its name"),
        ([greeting(), b"\x04\x0a\x05READY\x0bSoc".to_vec()].concat(), "end early"),
    ];
    for (bytes, words) in cases {
        match outcome(SocketKind::Publisher, &bytes).await {
            Err(error) => assert!(error.to_string().contains(words), "{error} / {words}"),
            Ok(received) => panic!("{words}: {received:?}"),
        }
    }
}
