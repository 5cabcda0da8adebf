//! Authorities that sign certificates of servers and of clients, for tests of TLS.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// An authority, and the file of its certificate.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// PEM.
    pub file: PathBuf,
}

impl Authority {
    /// A new one, with its file in `folder`.
    pub fn new(folder: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let file = folder.join(format!("{name}.pem"));
        std::fs::write(&file, issuer.pem()).expect("writes");
        Authority { issuer, file }
    }

    /// Writes a certificate and its key: of a server at this machine's addresses and at `name`, or of a client.
    pub fn sign(&self, folder: &Path, name: &str, use_: ExtendedKeyUsagePurpose) -> (PathBuf, PathBuf) {
        let names = ["127.0.0.1", "localhost", name].map(str::to_owned);
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![use_];
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signs");
        let (cert_file, key_file) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        std::fs::write(&key_file, key.serialize_pem()).expect("writes");
        std::fs::write(&cert_file, signed.pem()).expect("writes");
        (cert_file, key_file)
    }
}
