//! Certificates made here, for collectors over TLS.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// An authority of our own, and its certificate as a file.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Its certificate.
    pub file: PathBuf,
}

impl Authority {
    /// One of this name, which is its file's too.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let file = in_file(name, &issuer.pem());
        Authority { issuer, file }
    }

    /// A server with a certificate for `host`; `expired`: of long ago.
    pub fn server(&self, host: &str, expired: bool) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        if expired {
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        serving(certificate.der().clone(), &key)
    }
}

/// A server with this certificate.
pub fn serving(certificate: CertificateDer<'static>, key: &KeyPair) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider's")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    Arc::new(config.expect("a pair"))
}

/// A text as a PEM file.
pub fn in_file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.pem"));
    std::fs::write(&path, text).expect("written");
    path
}
