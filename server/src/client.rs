//! A small client of an OpenAI-compatible server: enough to chat with one. Streams text to a callback; retries nothing.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, Url};
use serde_json::Value;

/// Time to decide that no server is there.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(800);

/// Why talking to a server failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An address that is none.
    #[error("--url {url}: {reason}; give one such as http://127.0.0.1:8000")]
    Url {
        /// As given.
        url: String,
        /// The fault.
        reason: String,
    },
    /// A header that cannot be sent.
    #[error("header `{name}`: its name or value has characters that a header must not have")]
    Header {
        /// Its name.
        name: String,
    },
    /// Nothing answers.
    #[error("{url} cannot be reached: {}", causes(source))]
    Unreachable {
        /// The address.
        url: String,
        /// The reason.
        source: reqwest::Error,
    },
    /// The server's refusal.
    #[error("the server refused with status {status}: {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its words.
        message: String,
    },
    /// The answer broke off, or was none.
    #[error("the answer broke off: {0}")]
    Broken(String),
}

/// A piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// What the model thinks.
    Reasoning(&'a str),
    /// The answer itself.
    Text(&'a str),
}

/// A server's address and key.
pub struct ServerClient {
    client: Client,
    url: String,
    api_key: Option<String>,
    headers: HeaderMap,
}

impl ServerClient {
    /// A client for the server at `url`.
    ///
    /// # Errors
    /// [`ClientError::Url`].
    pub fn new(url: &str, api_key: Option<String>) -> Result<Self, ClientError> {
        Self::build(url, api_key, Client::builder())
    }

    /// A client that takes any certificate of an `https` server, which anyone between may have made.
    ///
    /// # Errors
    /// [`ClientError::Url`].
    pub fn insecure(url: &str, api_key: Option<String>) -> Result<Self, ClientError> {
        Self::build(url, api_key, Client::builder().tls_danger_accept_invalid_certs(true))
    }

    fn build(url: &str, api_key: Option<String>, builder: ClientBuilder) -> Result<Self, ClientError> {
        let bad = |reason: String| ClientError::Url {
            url: url.to_owned(),
            reason,
        };
        let parsed: Url = url
            .parse()
            .map_err(|error: <Url as std::str::FromStr>::Err| bad(error.to_string()))?;
        if !["http", "https"].contains(&parsed.scheme()) {
            return Err(bad(format!("scheme `{}` is not http or https", parsed.scheme())));
        }
        // reqwest's own default, said here as times between tokens are measured with it.
        let mut builder = builder.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        // A proxy for the internet has no way to this machine's own loopback.
        if matches!(parsed.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")) {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| bad(error.to_string()))?;
        Ok(ServerClient {
            client,
            url: base(url).to_owned(),
            api_key,
            headers: HeaderMap::new(),
        })
    }

    /// The same client, which sends these headers with every request.
    ///
    /// # Errors
    /// [`ClientError::Header`].
    pub fn with_headers(mut self, headers: &[(String, String)]) -> Result<Self, ClientError> {
        for (name, value) in headers {
            let bad = || ClientError::Header { name: name.clone() };
            let key: HeaderName = name.parse().map_err(|_| bad())?;
            self.headers.insert(key, value.parse().map_err(|_| bad())?);
        }
        Ok(self)
    }

    /// The first model that the server names.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn first_model(&self) -> Result<String, ClientError> {
        let request = self
            .client
            .get(format!("{}/v1/models", self.url))
            .timeout(Duration::from_secs(10));
        let value: Value = self.send(request).await?.json().await.map_err(broken)?;
        let name = value["data"][0]["id"].as_str();
        name.map(str::to_owned)
            .ok_or_else(|| ClientError::Broken("the server names no model".to_owned()))
    }

    /// The JSON that a route answers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get_json(&self, route: &str) -> Result<Value, ClientError> {
        let request = self.client.get(format!("{}{route}", self.url));
        let request = request.timeout(Duration::from_secs(10));
        self.send(request).await?.json().await.map_err(broken)
    }

    /// Posts JSON to a route that may take its time; the JSON that it answers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn post_json(&self, route: &str, body: &Value) -> Result<Value, ClientError> {
        let request = self.client.post(format!("{}{route}", self.url)).json(body);
        let request = request.timeout(Duration::from_secs(60));
        self.send(request).await?.json().await.map_err(broken)
    }

    /// Posts a streamed request and hands over each piece of text as it comes. Returns the whole text, without
    /// reasoning.
    ///
    /// # Errors
    /// [`ClientError`], also for an error that comes inside the stream.
    pub async fn stream(
        &self,
        route: &str,
        body: &Value,
        mut piece: impl FnMut(Part<'_>),
    ) -> Result<String, ClientError> {
        let mut text = String::new();
        let take = |event: &Value| {
            let choice = &event["choices"][0];
            let delta = &choice["delta"];
            // Other servers have the second name.
            let reasoning = delta["reasoning"].as_str().or(delta["reasoning_content"].as_str());
            if let Some(reasoning) = reasoning.filter(|part| !part.is_empty()) {
                piece(Part::Reasoning(reasoning));
            }
            let part = delta["content"]
                .as_str()
                .or(choice["text"].as_str())
                .unwrap_or_default();
            text.push_str(part);
            piece(Part::Text(part));
        };
        self.stream_events(route, body, None, take).await?;
        Ok(text)
    }

    /// Posts a streamed request and hands over each event as it comes, up to the stream's end.
    ///
    /// # Errors
    /// As [`ServerClient::stream`].
    pub async fn stream_events(
        &self,
        route: &str,
        body: &Value,
        id: Option<&str>,
        mut take: impl FnMut(&Value),
    ) -> Result<(), ClientError> {
        let mut request = self.client.post(format!("{}{route}", self.url)).json(body);
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        let mut response = self.send(request).await?;
        let mut events = EventReader::default();
        while let Some(bytes) = response.chunk().await.map_err(broken)? {
            for data in events.push(&bytes)? {
                if data == "[DONE]" {
                    return Ok(());
                }
                let value: Value =
                    serde_json::from_str(&data).map_err(|error| ClientError::Broken(error.to_string()))?;
                if let Some(message) = value["error"]["message"].as_str() {
                    return Err(ClientError::Broken(message.to_owned()));
                }
                take(&value);
            }
        }
        Err(ClientError::Broken(
            "the server closed the stream before its end".to_owned(),
        ))
    }

    async fn send(&self, mut request: RequestBuilder) -> Result<Response, ClientError> {
        if let Some(key) = &self.api_key {
            request = request.bearer_auth(key);
        }
        let sent = request.headers(self.headers.clone()).send().await;
        let response = sent.map_err(|source| ClientError::Unreachable {
            url: self.url.clone(),
            source,
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = response.text().await.unwrap_or_default();
        let value: Value = serde_json::from_str(&body).unwrap_or_default();
        Err(ClientError::Refused {
            status,
            message: value["error"]["message"].as_str().unwrap_or(&body).to_owned(),
        })
    }
}

/// The address before the routes: other clients are given it with the /v1 that theirs begin with.
fn base(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix("/v1").unwrap_or(url).trim_end_matches('/')
}

/// An error with what caused it, such as a certificate that is not trusted: its own words say no more than that sending
/// failed.
fn causes(error: &reqwest::Error) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !words.contains(&said) {
            words = format!("{words}: {said}");
        }
        cause = inner.source();
    }
    words
}

fn broken(error: reqwest::Error) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// Longest line of an event stream: far more than a server's largest event, and a bound on what one without line breaks
/// makes this side hold.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Puts the `data:` lines of an event stream together, however it is cut into chunks.
#[derive(Default)]
pub struct EventReader {
    /// The beginning of a line whose end has not come.
    held: Vec<u8>,
}

impl EventReader {
    /// The data of the lines that end in `bytes`, in order.
    ///
    /// # Errors
    /// [`ClientError::Broken`] for a line above 64 MiB.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, ClientError> {
        let mut found = Vec::new();
        let mut rest = bytes;
        // Only new bytes are searched: what is held has no line break.
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.held.extend_from_slice(&rest[..=end]);
            rest = &rest[end + 1..];
            let line = String::from_utf8_lossy(&self.held);
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                found.push(data.trim_start().to_owned());
            }
            self.held.clear();
        }
        if self.held.len() + rest.len() > MAX_LINE_BYTES {
            return Err(ClientError::Broken(format!(
                "a line of its event stream has more than {MAX_LINE_BYTES} bytes"
            )));
        }
        self.held.extend_from_slice(rest);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let stream = "data: {\"a\":\"é\"}\n\n: comment\r\ndata: [DONE]\r\n\n".as_bytes();
        for size in 1..stream.len() {
            let mut reader = EventReader::default();
            let found: Vec<String> = stream
                .chunks(size)
                .flat_map(|chunk| reader.push(chunk).expect("short lines"))
                .collect();
            assert_eq!(found, ["{\"a\":\"é\"}", "[DONE]"], "chunks of {size}");
        }
    }

    #[test]
    fn an_address_may_end_with_the_version_of_the_routes() {
        for url in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
            "http://h:1//v1//",
        ] {
            assert_eq!(
                ServerClient::new(url, None).expect("an address").url,
                "http://h:1",
                "{url}"
            );
        }
        assert_eq!(
            ServerClient::new("http://h/x/v1", None).expect("an address").url,
            "http://h/x"
        );
        assert_eq!(
            ServerClient::new("http://h/v10", None).expect("an address").url,
            "http://h/v10"
        );
        let header = |name: &str| vec![(name.to_owned(), "1".to_owned())];
        let client = || ServerClient::new("http://h", None).expect("an address");
        assert!(client().with_headers(&header("x-a")).is_ok());
        assert!(client().with_headers(&header("x a")).is_err());
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        for bad in ["localhost:8000", "ftp://x", ""] {
            assert!(
                matches!(ServerClient::new(bad, None), Err(ClientError::Url { .. })),
                "{bad}"
            );
        }
    }
}
