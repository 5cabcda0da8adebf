//! The lines of a file of requests, one at a time and each of bounded length.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

use crate::api_error::clip;

/// Routes that a line may name.
pub const URLS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
];
/// A line, and the request in it or why there is none.
#[derive(Debug)]
pub(super) struct Line {
    /// From 1.
    pub number: u64,
    /// Known even where the rest is wrong.
    pub custom_id: Option<String>,
    /// The request.
    pub asked: Result<Asked, String>,
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The caller's name of it.
    pub custom_id: String,
    /// The route.
    pub url: String,
    /// What is posted to it.
    pub body: Value,
}

pub(super) struct Input<R> {
    reader: BufReader<R>,
    line_bytes: usize,
    number: u64,
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(super) fn new(reader: R, line_bytes: usize) -> Self {
        Input {
            reader: BufReader::new(reader),
            line_bytes,
            number: 0,
        }
    }

    /// The next line that is not empty.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let (found, fits) = self.read_line(&mut bytes).await?;
            if !found {
                return Ok(None);
            }
            self.number += 1;
            let number = self.number;
            if !fits {
                let asked = Err(format!(
                    "it is longer than {} bytes (--max-body-bytes, and 64 KiB more)",
                    self.line_bytes
                ));
                return Ok(Some(Line {
                    number,
                    custom_id: None,
                    asked,
                }));
            }
            // A file from Windows begins with a byte order mark and ends its lines with two characters.
            let start = if number == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
                3
            } else {
                0
            };
            let text = bytes[start..].trim_ascii();
            if !text.is_empty() {
                let (custom_id, asked) = read(text);
                return Ok(Some(Line {
                    number,
                    custom_id,
                    asked,
                }));
            }
        }
    }

    /// Reads one line, of which no more than the bound is kept: whether there was one, and whether it fits.
    async fn read_line(&mut self, bytes: &mut Vec<u8>) -> io::Result<(bool, bool)> {
        let (mut found, mut fits) = (false, true);
        loop {
            let part = self.reader.fill_buf().await?;
            if part.is_empty() {
                return Ok((found, fits));
            }
            found = true;
            let end = part.iter().position(|byte| *byte == b'\n');
            let piece = &part[..end.unwrap_or(part.len())];
            fits &= bytes.len() + piece.len() <= self.line_bytes;
            if fits {
                bytes.extend_from_slice(piece);
            }
            let taken = end.map_or(part.len(), |end| end + 1);
            self.reader.consume(taken);
            if end.is_some() {
                return Ok((found, fits));
            }
        }
    }
}

fn read(text: &[u8]) -> (Option<String>, Result<Asked, String>) {
    let mut line: Value = match serde_json::from_slice(text) {
        Ok(line) => line,
        Err(error) => return (None, Err(format!("it is not JSON: {error}"))),
    };
    let custom_id = line["custom_id"].as_str().map(str::to_owned);
    let asked = request(custom_id.clone(), &mut line);
    (custom_id, asked)
}

fn request(custom_id: Option<String>, line: &mut Value) -> Result<Asked, String> {
    if !line.is_object() {
        return Err("it is no object; write {\"custom_id\", \"method\", \"url\", \"body\"}".to_owned());
    }
    let custom_id = custom_id.ok_or("custom_id must be a string")?;
    if line["method"] != "POST" {
        return Err(format!(
            "method must be \"POST\", found {}",
            clip(&line["method"].to_string())
        ));
    }
    let url = line["url"].as_str().unwrap_or_default().to_owned();
    if !URLS.contains(&url.as_str()) {
        return Err(format!(
            "url must be one of {}, found {}",
            URLS.join(", "),
            clip(&line["url"].to_string())
        ));
    }
    let body = line["body"].take();
    if !body.is_object() {
        return Err("body must be an object: the request".to_owned());
    }
    if body["stream"] == true {
        return Err("body.stream cannot be true: an answer is one line".to_owned());
    }
    if body["background"] == true {
        return Err("body.background cannot be true: the answer is what is written".to_owned());
    }
    Ok(Asked { custom_id, url, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    async fn lines(text: &[u8], bound: usize) -> Vec<Line> {
        let mut input = Input::new(text, bound);
        let mut lines = Vec::new();
        while let Some(line) = input.next().await.expect("in memory") {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn lines_are_read_whatever_ends_them() {
        let line = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}"#;
        let text = format!("\u{feff}{line}\r\n\n  \n{line}");
        let lines = lines(text.as_bytes(), 1000).await;
        let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [1, 4]);
        let asked = Asked {
            custom_id: "a".to_owned(),
            url: "/v1/completions".to_owned(),
            body: json!({"prompt": "x"}),
        };
        assert!(lines.iter().all(|line| line.asked.as_ref() == Ok(&asked)), "{lines:?}");
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_one_error_and_takes_no_memory() {
        let long = "x".repeat(100_000);
        let lines = lines(format!("{long}\n1\n").as_bytes(), 1000).await;
        assert_eq!(lines.len(), 2);
        assert!(lines[0].asked.as_ref().expect_err("long").contains("1000 bytes"));
        assert_eq!(lines[1].number, 2);
    }

    #[tokio::test]
    async fn what_is_no_request_says_why() {
        for (text, word) in [
            ("{", "not JSON"),
            ("[]", "no object"),
            ("{}", "custom_id"),
            (r#"{"custom_id": 5}"#, "custom_id"),
            (r#"{"custom_id": "a"}"#, "method"),
            (r#"{"custom_id": "a", "method": "GET"}"#, "\"GET\""),
            (r#"{"custom_id": "a", "method": "POST", "url": "/metrics"}"#, "/metrics"),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": "x"}"#,
                "body",
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"stream": true}}"#,
                "stream",
            ),
        ] {
            let lines = lines(text.as_bytes(), 1000).await;
            let reason = lines[0].asked.as_ref().expect_err(text);
            assert!(reason.contains(word), "{text}: {reason}");
        }
    }
}
