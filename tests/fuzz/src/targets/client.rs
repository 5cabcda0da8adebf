//! A server's bytes to `halyard chat` and `halyard bench serve`: an event stream, cut into chunks anywhere.

use std::path::Path;

use halyard_server::client::EventReader;

use crate::target::{Case, Outcome};

pub fn seeds() -> Vec<Vec<u8>> {
    let event =
        |text: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    vec![
        format!("{}{}data: [DONE]\n\n", event("Hel"), event("lo")).into_bytes(),
        b": keep-alive\r\n\r\nevent: message\r\nid: 1\r\ndata: {\"a\":1}\r\ndata: {\"b\":2}\r\n\r\n".to_vec(),
        b"data:{\"error\":{\"message\":\"no\",\"code\":500}}\n\ndata: [DONE]\n\n".to_vec(),
    ]
}

/// The lines of a stream are the same however it is cut, and what is held is bounded.
pub fn events(_: &Path) -> Case {
    Box::new(|input| {
        let mut whole = EventReader::default();
        let all = whole.push(input);
        let step = input.first().map_or(1, |byte| 1 + usize::from(*byte) % 7);
        let mut cut = EventReader::default();
        let mut pieces = Vec::new();
        for piece in input.chunks(step) {
            match cut.push(piece) {
                Ok(found) => pieces.extend(found),
                Err(_) => return Outcome::Refused,
            }
        }
        match all {
            Ok(all) => {
                assert_eq!(all, pieces, "the stream depends on how it is cut");
                for data in &all {
                    let _: Result<serde_json::Value, _> = serde_json::from_str(data);
                }
                Outcome::Accepted
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                Outcome::Refused
            }
        }
    })
}
