//! TLS: the certificate, its key and the certificates that clients must show, read from files and read again while
//! serving. Performs no handshake; `handshake.rs` does.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};

/// Bytes of each file: bundles of all public authorities have 250 KB.
const MAX_BYTES: u64 = 4 << 20;

/// Whether clients show certificates; the numbers of Python's `ssl.VerifyMode`, which vLLM takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// 0: they are not asked for one.
    #[default]
    None,
    /// 1: one that is shown must be right.
    Optional,
    /// 2: none, none served.
    Required,
}

/// The files of `--ssl-certfile`, `--ssl-keyfile` and `--ssl-ca-certs`.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, then those that lead to its authority.
    pub certificates: PathBuf,
    /// Its key; without it the key is in the file of certificates.
    pub key: Option<PathBuf>,
    /// Authorities of clients.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients show certificates.
    pub clients: ClientCertificates,
}

/// Why TLS cannot start, or not go on with new files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The system's refusal.
    #[error("{flag} {}: {source}", path.display())]
    Read {
        /// The flag.
        flag: &'static str,
        /// Its file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file of another kind.
    #[error("{flag} {}: it is larger than {MAX_BYTES} bytes; is it a PEM file?", path.display())]
    Large {
        /// The flag.
        flag: &'static str,
        /// Its file.
        path: PathBuf,
    },
    /// Nothing of what is needed is in the file.
    #[error("{flag} {}: {reason}", path.display())]
    Content {
        /// The flag.
        flag: &'static str,
        /// Its file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The key is another certificate's, or of a kind that is not known.
    #[error("--ssl-keyfile {} and --ssl-certfile {}: {reason}", key.display(), certificates.display())]
    Pair {
        /// The file of the key.
        key: PathBuf,
        /// The file of certificates.
        certificates: PathBuf,
        /// In the library's words.
        reason: String,
    },
}

const CERTFILE: &str = "--ssl-certfile";
const KEYFILE: &str = "--ssl-keyfile";
const CA_CERTS: &str = "--ssl-ca-certs";

/// What the files held.
struct Contents {
    certificates: Vec<u8>,
    key: Option<Vec<u8>>,
    client_authorities: Option<Vec<u8>>,
}

impl Contents {
    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [
            Some(&self.certificates),
            self.key.as_ref(),
            self.client_authorities.as_ref(),
        ] {
            let bytes = part.map(Vec::as_slice).unwrap_or_default();
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        }
        digest.finalize().into()
    }
}

impl TlsFiles {
    fn read(&self) -> Result<Contents, TlsError> {
        let optional = |flag, path: &Option<PathBuf>| path.as_deref().map(|path| read(flag, path)).transpose();
        Ok(Contents {
            certificates: read(CERTFILE, &self.certificates)?,
            key: optional(KEYFILE, &self.key)?,
            client_authorities: optional(CA_CERTS, &self.client_authorities)?,
        })
    }

    fn config(&self, contents: &Contents) -> Result<ServerConfig, TlsError> {
        let chain = certificates(CERTFILE, &self.certificates, &contents.certificates)?;
        let (flag, path) = match &self.key {
            Some(path) => (KEYFILE, path),
            None => (CERTFILE, &self.certificates),
        };
        let key = private_key(flag, path, contents.key.as_ref().unwrap_or(&contents.certificates))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Content {
                flag: CERTFILE,
                path: self.certificates.clone(),
                reason: error.to_string(),
            })?;
        let builder = match (&self.client_authorities, &contents.client_authorities) {
            (Some(path), Some(bytes)) if self.clients != ClientCertificates::None => {
                builder.with_client_cert_verifier(self.verifier(path, bytes, provider)?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| TlsError::Pair {
            key: path.clone(),
            certificates: self.certificates.clone(),
            reason: error.to_string(),
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn verifier(
        &self,
        path: &Path,
        bytes: &[u8],
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
        let refuse = |reason: String| TlsError::Content {
            flag: CA_CERTS,
            path: path.to_owned(),
            reason,
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(CA_CERTS, path, bytes)? {
            roots
                .add(authority)
                .map_err(|error| refuse(format!("an authority's certificate cannot be used: {error}")))?;
        }
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if self.clients == ClientCertificates::Optional {
            verifier = verifier.allow_unauthenticated();
        }
        verifier
            .build()
            .map(|verifier| verifier as Arc<_>)
            .map_err(|error| refuse(error.to_string()))
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    file.map_err(|source| TlsError::Read {
        flag,
        path: path.to_owned(),
        source,
    })?;
    if bytes.len() as u64 > MAX_BYTES {
        let path = path.to_owned();
        return Err(TlsError::Large { flag, path });
    }
    Ok(bytes)
}

fn certificates(flag: &'static str, path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refuse = |reason: String| TlsError::Content {
        flag,
        path: path.to_owned(),
        reason,
    };
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    let read = read.map_err(|error| refuse(format!("it is not PEM: {error}")))?;
    if read.is_empty() {
        let reason = "there is no certificate in it; a PEM file has lines -----BEGIN CERTIFICATE-----";
        return Err(refuse(reason.to_owned()));
    }
    Ok(read)
}

fn private_key(flag: &'static str, path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let refuse = |reason: String| TlsError::Content {
        flag,
        path: path.to_owned(),
        reason,
    };
    let text = String::from_utf8_lossy(bytes);
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        let reason = "the key is locked with a password, which cannot be asked for here; write it without one \
                      (openssl pkey -in FILE -out NEW) and let only the server's user read it";
        return Err(refuse(reason.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            refuse("there is no private key in it; name its file with --ssl-keyfile".to_owned())
        }
        error => refuse(format!("it is not PEM: {error}")),
    })
}

/// The configuration of new connections.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Loaded>,
    /// Of two readings at once, the one that read first must not be the one that stays.
    pub(super) turn: Turn,
}

/// The turn to read files again and to use them.
pub(super) type Turn = Arc<tokio::sync::Mutex<()>>;

/// What the files held when they were read.
#[derive(Debug)]
pub(super) struct Loaded {
    config: Arc<ServerConfig>,
    /// Of the files.
    digest: [u8; 32],
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn start(files: TlsFiles) -> Result<Tls, TlsError> {
        let contents = files.read()?;
        let loaded = Loaded {
            config: Arc::new(files.config(&contents)?),
            digest: contents.digest(),
        };
        Ok(Tls {
            current: RwLock::new(loaded),
            files,
            turn: Turn::default(),
        })
    }

    /// For the next connection.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().config)
    }

    fn current(&self) -> RwLockReadGuard<'_, Loaded> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files again. `None`: they are as they were. Blocks.
    ///
    /// # Errors
    /// [`TlsError`], for files that cannot be used.
    pub(super) fn read_again(&self) -> Result<Option<Loaded>, TlsError> {
        let contents = self.files.read()?;
        let digest = contents.digest();
        if self.current().digest == digest {
            return Ok(None);
        }
        let config = Arc::new(self.files.config(&contents)?);
        Ok(Some(Loaded { config, digest }))
    }

    /// Connections from now on have what was read. Those that are open keep what they have.
    pub(super) fn renew(&self, loaded: Loaded) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
pub(super) mod tests;
