//! The connection to the collector, for metrics and spans alike, over HTTP or gRPC: one HTTP client with the
//! certificates that it trusts, a thread that sends, and one deadline for a whole request. A failure keeps its whole
//! text, which the SDK would drop. Temporary failures are distinguished from TLS failures, which the operator must
//! repair.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use halyard_platform_api::{Error, Result, Status};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client};
use tokio::runtime::{Builder, Runtime};

use crate::config::{Config, Protocol, refused};
use crate::grpc;
use crate::outbox::Counts;

/// Sends requests to the collector and remembers how the last one failed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Transport {
    client: Client,
    protocol: Protocol,
    thread: Arc<Thread>,
    counts: Arc<Counts>,
}

/// The thread that sends: the SDK's own threads wait for it and drive nothing.
#[derive(Debug)]
struct Thread(Option<Runtime>);

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // The last user may be a task of another runtime, which may not block.
            runtime.shutdown_background();
        }
    }
}

/// How a request failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The whole chain of causes.
    pub words: String,
    /// It was TLS: a certificate, or no common way to talk. Waiting does not mend that.
    pub is_tls: bool,
}

impl Transport {
    /// A client for `config`; failures go to `counts`. Blocks for reading certificates.
    ///
    /// # Errors
    /// `InvalidArgument` naming the key `ca_file`; `Unavailable` where the system has no certificates to trust.
    pub fn new(config: &Config, counts: Arc<Counts>) -> Result<Transport> {
        let certificates = config.ca_file.as_deref().map(read_certificates).transpose()?;
        let own = certificates.is_some();
        let mut builder = Client::builder()
            .timeout(config.timeout())
            // Report a redirect, do not follow it: its target may not be encrypted.
            .redirect(Policy::none());
        if own || !config.is_encrypted() {
            // Without TLS the system's certificates are not needed, and need not be there.
            builder = builder.tls_certs_only(certificates.unwrap_or_default());
        }
        if config.protocol == Protocol::Grpc {
            builder = builder.http2_prior_knowledge();
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("otlp-client")
            .enable_all()
            .build()
            .map_err(|error| Error::new(Status::Unavailable, format!("no thread for the HTTP client: {error}")))?;
        let made = builder.build();
        let client = made.map_err(|error| {
            let words = chain(&error);
            match &config.ca_file {
                Some(file) => refused("ca_file", format_args!("{}: {words}", file.display())),
                None => Error::new(
                    Status::Unavailable,
                    format!("no HTTP client: {words}; `ca_file` names certificates to trust"),
                ),
            }
        })?;
        Ok(Transport {
            client,
            protocol: config.protocol,
            thread: Arc::new(Thread(Some(runtime))),
            counts,
        })
    }
}

/// The certificates of a PEM file.
fn read_certificates(file: &std::path::Path) -> Result<Vec<Certificate>> {
    let wrong = |reason: &dyn std::fmt::Display| refused("ca_file", format_args!("{}: {reason}", file.display()));
    let pem = std::fs::read(file).map_err(|error| wrong(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| wrong(&chain(&error)))?;
    if certificates.is_empty() {
        return Err(wrong(&"there is no certificate in it (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(certificates)
}

#[async_trait]
impl HttpClient for Transport {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        let (client, protocol) = (self.client.clone(), self.protocol);
        let sending = async move {
            match protocol {
                Protocol::Http => client.send_bytes(request).await,
                Protocol::Grpc => grpc::call(&client, request).await,
            }
        };
        let sent = match &self.thread.0 {
            Some(runtime) => runtime.spawn(sending).await.unwrap_or_else(|ended| Err(ended.into())),
            None => Err("the thread that sends has ended".into()),
        };
        self.counts.reached(sent.as_ref().err().map(|error| Failure {
            words: chain(&**error),
            is_tls: is_tls(&**error),
        }));
        sent
    }
}

/// The chain of an error's causes, down to the first.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| cause(*error))
}

/// What caused an error. An I/O error's own answer leaves out the error that it carries.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(carried) => Some(carried),
        None => error.source(),
    }
}

/// An error with its causes, each once.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut words = String::new();
    let mut last = String::new();
    for cause in causes(error) {
        let cause = cause.to_string();
        if cause != last {
            let border = if words.is_empty() { "" } else { ": " };
            let _ = write!(words, "{border}{cause}");
        }
        last = cause;
    }
    words
}

/// Whether TLS is the cause.
fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<rustls::Error>())
}
