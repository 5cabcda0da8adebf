//! A small client of `/v1/completions`: sends prompts as token ids, reads the answer as it streams, and keeps the
//! clock. The same for Halyard and for every peer, so that both are measured by one ruler.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(300);

/// One answered request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Tokens that the server says it generated.
    pub tokens: usize,
    /// Seconds from the request to the first token.
    pub first_s: f64,
    /// Seconds from the request to the last token.
    pub last_s: f64,
}

/// Asks for exactly `tokens` tokens after `prompt`; blocks until they have come.
///
/// # Errors
/// The socket's, and an answer that is no stream of completions, with the server's words.
pub fn complete(address: SocketAddr, model: &str, prompt: &[u32], tokens: usize) -> Result<Answer> {
    // With ids each token is an event, also where its text waits for the rest of a character, as with random weights
    // most do.
    let body = json!({
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": { "include_usage": true }, "return_token_ids": true,
    })
    .to_string();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let start = Instant::now();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut reader = BufReader::new(stream);
    let chunked = read_head(&mut reader)?;
    if chunked {
        read_events(
            BufReader::new(Chunked {
                inner: reader,
                left: 0,
                ended: false,
            }),
            start,
        )
    } else {
        read_events(reader, start)
    }
}

/// Reads status and headers; true if the body comes in chunks.
fn read_head(reader: &mut impl BufRead) -> Result<bool> {
    let (mut chunked, mut line) = (false, String::new());
    reader.read_line(&mut line)?;
    let status = line.trim().to_string();
    let good = status.split(' ').nth(1) == Some("200");
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let header = line.to_ascii_lowercase();
        chunked |= header.starts_with("transfer-encoding:") && header.contains("chunked");
    }
    if good {
        return Ok(chunked);
    }
    let mut words = String::new();
    // The words only explain; without them the status does.
    let _ = reader.take(2000).read_to_string(&mut words);
    Err(Error::other(format!("{status}: {}", words.trim())))
}

fn read_events(mut reader: impl BufRead, start: Instant) -> Result<Answer> {
    let (mut first_s, mut last_s, mut events, mut counted) = (None, 0.0, 0, None);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            break;
        }
        let Some(data) = line.trim().strip_prefix("data:") else {
            continue;
        };
        if data.trim() == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(data).map_err(|e| Error::new(ErrorKind::InvalidData, e))?;
        if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
            counted = Some(tokens as usize);
        }
        if event["choices"].as_array().is_some_and(|choices| !choices.is_empty()) {
            last_s = start.elapsed().as_secs_f64();
            first_s.get_or_insert(last_s);
            events += 1;
        }
    }
    let first_s = first_s.ok_or_else(|| Error::new(ErrorKind::UnexpectedEof, "the stream ended without a token"))?;
    Ok(Answer {
        tokens: counted.unwrap_or(events),
        first_s,
        last_s,
    })
}

/// The body of a chunked answer (RFC 9112, 7.1), without its trailers.
struct Chunked<R> {
    inner: R,
    left: usize,
    ended: bool,
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.left == 0 && !self.ended {
            let mut line = String::new();
            // The line end after the chunk before, if there was one.
            while line.trim().is_empty() {
                line.clear();
                if self.inner.read_line(&mut line)? == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            let size = line.trim().split(';').next().unwrap_or_default();
            self.left = usize::from_str_radix(size, 16).map_err(|e| Error::new(ErrorKind::InvalidData, e))?;
            self.ended = self.left == 0;
        }
        let wanted = out.len().min(self.left);
        let count = self.inner.read(&mut out[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunked(bytes: &'static str) -> Result<String> {
        let mut out = String::new();
        let mut reader = Chunked {
            inner: bytes.as_bytes(),
            left: 0,
            ended: false,
        };
        reader.read_to_string(&mut out).map(|_| out)
    }

    #[test]
    fn chunks_are_joined_and_a_cut_is_an_error() {
        assert_eq!(
            chunked("4\r\ndata\r\nA;x=y\r\n: {\"a\":1}\n\r\n0\r\n\r\n").expect("whole"),
            "data: {\"a\":1}\n"
        );
        for cut in ["4\r\nda", "4\r\ndata\r\n", "x\r\n"] {
            assert!(chunked(cut).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn tokens_are_the_servers_count_and_times_are_of_events_with_a_choice() {
        let events = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: \
            {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
        let answer = read_events(events.as_bytes(), Instant::now()).expect("a stream");
        assert_eq!(answer.tokens, 3);
        assert!(answer.first_s == answer.last_s && answer.first_s >= 0.0);
        assert!(read_events("data: [DONE]\n".as_bytes(), Instant::now()).is_err());
    }

    #[test]
    fn a_refusal_brings_the_servers_words() {
        let answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nwords";
        let error = read_head(&mut answer.as_bytes()).expect_err("refused").to_string();
        assert!(error.contains("400") && error.contains("words"), "{error}");
        assert!(read_head(&mut "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_bytes()).expect("good"));
    }
}
