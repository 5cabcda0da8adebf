//! Flags that say where a server listens: hosts and a port, a Unix socket, the path of a proxy, TLS.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::service_manager::Passed;
use crate::error::ServerError;
use crate::http::host_check::HostRules;
use crate::http::listeners::BoundSocket;
use crate::http::root_path::RootPath;
use crate::http::tls::{ClientCertificates, Tls, TlsFiles};

/// Where a server listens unless it is told.
const DEFAULT_HOST: &str = "127.0.0.1";

/// Flags of `halyard serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
pub(super) struct ListenArgs {
    /// Address to listen on; without it, and without --uds, 127.0.0.1; 0.0.0.0 opens the server to the network. May be
    /// repeated, and a comma separates addresses: the server listens on each of them, on the same port
    #[arg(long = "host", value_name = "ADDRESS", env = "HALYARD_HOST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", env = "HALYARD_PORT", default_value_t = 8000)]
    port: u16,
    /// Unix socket to listen on, in place of an address, or besides those of --host. A socket that a server of this
    /// user left behind is replaced; who may use it is the process's umask's to say
    #[arg(long, value_name = "PATH", env = "HALYARD_UDS")]
    uds: Option<PathBuf>,
    /// Path under which a proxy serves this server, such as /llm; requests are answered with it and without it
    #[arg(long, value_name = "PATH", env = "HALYARD_ROOT_PATH", default_value = "", hide_default_value = true,
        value_parser = RootPath::new)]
    root_path: RootPath,
}

/// Flags of `halyard serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    /// PEM file of the server's certificate and those that lead to its authority; all listeners speak TLS 1.2 or 1.3
    /// then, and no plain HTTP
    #[arg(long, value_name = "FILE", env = "HALYARD_SSL_CERTFILE")]
    ssl_certfile: Option<PathBuf>,
    /// PEM file of the certificate's key, without a password; without it the key is in --ssl-certfile
    #[arg(long, value_name = "FILE", env = "HALYARD_SSL_KEYFILE")]
    ssl_keyfile: Option<PathBuf>,
    /// PEM file of the authorities whose certificates clients may show
    #[arg(long, value_name = "FILE", env = "HALYARD_SSL_CA_CERTS")]
    ssl_ca_certs: Option<PathBuf>,
    /// Certificates of clients: 0 none is asked for, 1 one that is shown must be right, 2 each client must show one
    #[arg(long, value_name = "NUMBER", env = "HALYARD_SSL_CERT_REQS", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=2))]
    ssl_cert_reqs: u8,
    /// Read the files again when they change, every two seconds; without it SIGHUP does. Open connections go on
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_SSL_REFRESH", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_ssl_refresh: bool,
}

impl ListenArgs {
    /// Binds all sockets; those of a service manager take the place of --host and --port. Must be called inside a
    /// runtime.
    ///
    /// # Errors
    /// A place that cannot be had.
    pub(super) fn bind(&self, passed: Vec<Passed>) -> Result<Vec<BoundSocket>, ServerError> {
        let mut bound = Vec::new();
        if let Some(path) = &self.uds {
            bound.push(BoundSocket::bind_unix(path)?);
        }
        if passed.is_empty() {
            bound.extend(BoundSocket::bind_all(&self.hosts(), self.port)?);
        }
        for socket in passed {
            bound.push(match socket {
                Passed::Tcp(listener) => BoundSocket::passed(listener)?,
                Passed::Unix(listener) => BoundSocket::passed_unix(listener)?,
            });
        }
        Ok(bound)
    }

    fn hosts(&self) -> Vec<String> {
        let hosts: Vec<String> = self.hosts.iter().map(|host| host.trim().to_owned()).collect();
        match hosts.is_empty() && self.uds.is_none() {
            true => vec![DEFAULT_HOST.to_owned()],
            false => hosts,
        }
    }

    /// The names that are answered, beside `allowed`.
    pub(super) fn host_rules(&self, is_local: bool, allowed: &[String]) -> HostRules {
        let hosts = self.hosts();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        HostRules::new(&hosts, is_local, allowed)
    }

    /// `--root-path`.
    pub(super) fn root_path(&self) -> RootPath {
        self.root_path.clone()
    }
}

impl TlsArgs {
    /// TLS, where a certificate is given.
    ///
    /// # Errors
    /// Files that cannot be used, or flags without those that they need.
    pub(super) fn tls(&self) -> Result<Option<Arc<Tls>>, ServerError> {
        let refuse = |option: &'static str, message: &str| {
            Err(ServerError::Option {
                option,
                message: message.to_owned(),
            })
        };
        let clients = match self.ssl_cert_reqs {
            0 => ClientCertificates::None,
            1 => ClientCertificates::Optional,
            _ => ClientCertificates::Required,
        };
        let Some(certificates) = self.ssl_certfile.clone() else {
            let needs = "without --ssl-certfile there is no TLS; give the server's certificate too";
            return match self {
                TlsArgs {
                    ssl_keyfile: Some(_), ..
                } => refuse("--ssl-keyfile", needs),
                TlsArgs {
                    ssl_ca_certs: Some(_), ..
                } => refuse("--ssl-ca-certs", needs),
                TlsArgs {
                    enable_ssl_refresh: true,
                    ..
                } => refuse("--enable-ssl-refresh", needs),
                _ if clients != ClientCertificates::None => refuse("--ssl-cert-reqs", needs),
                _ => Ok(None),
            };
        };
        if clients != ClientCertificates::None && self.ssl_ca_certs.is_none() {
            let message = "certificates of clients are checked against --ssl-ca-certs; give it too";
            return refuse("--ssl-cert-reqs", message);
        }
        if clients == ClientCertificates::None && self.ssl_ca_certs.is_some() {
            tracing::warn!("--ssl-ca-certs without --ssl-cert-reqs 1 or 2: no client is asked for a certificate");
        }
        let tls = Tls::start(TlsFiles {
            certificates,
            key: self.ssl_keyfile.clone(),
            client_authorities: self.ssl_ca_certs.clone(),
            clients,
        })?;
        Ok(Some(Arc::new(tls)))
    }

    /// Whether files are watched.
    pub(super) fn refreshes(&self) -> bool {
        self.enable_ssl_refresh
    }
}
