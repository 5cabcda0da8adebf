//! Files of certificates: what they must hold, and what a change of them does.

use rcgen::{CertificateParams, CertifiedKey, KeyPair, generate_simple_self_signed};

use super::*;

pub(in crate::http) struct Folder(pub PathBuf);

impl Folder {
    pub(in crate::http) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("halyard-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("made");
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("writes");
        path
    }

    /// Files of a new certificate for localhost, and the certificate.
    pub(in crate::http) fn server(&self) -> (TlsFiles, CertificateDer<'static>) {
        let CertifiedKey { cert, signing_key } = pair();
        let files = TlsFiles {
            certificates: self.write("cert.pem", &cert.pem()),
            key: Some(self.write("key.pem", &signing_key.serialize_pem())),
            client_authorities: None,
            clients: ClientCertificates::None,
        };
        (files, cert.der().clone())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pair() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate")
}

fn refused(files: &TlsFiles) -> String {
    Tls::start(files.clone()).expect_err("refused").to_string()
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_flag() {
    let folder = Folder::new("wrong");
    let (good, _) = folder.server();
    assert!(Tls::start(good.clone()).is_ok());
    let missing = TlsFiles {
        certificates: folder.0.join("none.pem"),
        ..good.clone()
    };
    let error = refused(&missing);
    assert!(
        error.contains("--ssl-certfile") && error.contains("none.pem") && error.contains("No such file"),
        "{error}"
    );
    let with_key = |text: &str| TlsFiles {
        key: Some(folder.write("other.pem", text)),
        ..good.clone()
    };
    let error = refused(&with_key(&pair().signing_key.serialize_pem()));
    assert!(
        error.contains("--ssl-keyfile") && error.contains("--ssl-certfile"),
        "{error}"
    );
    let error = refused(&with_key(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
    ));
    assert!(error.contains("password") && error.contains("openssl pkey"), "{error}");
    let error = refused(&with_key("nothing"));
    assert!(
        error.contains("--ssl-keyfile") && error.contains("no private key"),
        "{error}"
    );
    let no_key = TlsFiles {
        key: None,
        ..good.clone()
    };
    let error = refused(&no_key);
    assert!(
        error.contains("--ssl-certfile") && error.contains("no private key"),
        "{error}"
    );
    let no_certificate = TlsFiles {
        certificates: good.key.clone().expect("a key"),
        ..good.clone()
    };
    assert!(refused(&no_certificate).contains("no certificate"));
    let large = TlsFiles {
        certificates: folder.write("large.pem", &"x".repeat((4 << 20) + 1)),
        ..good.clone()
    };
    assert!(refused(&large).contains("larger than 4194304 bytes"));
    let authorities = TlsFiles {
        client_authorities: Some(folder.write("ca.pem", "")),
        clients: ClientCertificates::Required,
        ..good.clone()
    };
    let error = refused(&authorities);
    assert!(
        error.contains("--ssl-ca-certs") && error.contains("no certificate"),
        "{error}"
    );
    // One file may hold both.
    let both = std::fs::read_to_string(&good.certificates).expect("text")
        + &std::fs::read_to_string(good.key.as_ref().expect("a key")).expect("text");
    let both = TlsFiles {
        certificates: folder.write("both.pem", &both),
        key: None,
        ..good
    };
    assert!(Tls::start(both).is_ok());
}

#[test]
fn new_files_are_for_new_connections_and_broken_ones_for_none() {
    let folder = Folder::new("reload");
    let (files, _) = folder.server();
    let tls = Tls::start(files).expect("starts");
    let first = tls.config();
    assert!(tls.read_again().expect("as it was").is_none());
    assert!(Arc::ptr_eq(&first, &tls.config()), "nothing changed");
    let new = pair();
    folder.write("cert.pem", &new.cert.pem());
    // The key is still the old one's.
    assert!(matches!(tls.read_again(), Err(TlsError::Pair { .. })));
    assert!(Arc::ptr_eq(&first, &tls.config()), "the server goes on");
    folder.write("key.pem", &new.signing_key.serialize_pem());
    let renewed = tls.read_again().expect("they fit").expect("they are new");
    assert!(Arc::ptr_eq(&first, &tls.config()), "only once they are to be used");
    tls.renew(renewed);
    assert!(!Arc::ptr_eq(&first, &tls.config()));
    assert!(tls.read_again().expect("as it is now").is_none());
    std::fs::remove_file(folder.0.join("key.pem")).expect("was there");
    assert!(tls.read_again().is_err());
}

#[test]
fn an_authority_that_is_none_is_refused() {
    let folder = Folder::new("authority");
    let (files, _) = folder.server();
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&KeyPair::generate().expect("a key")).expect("signs");
    let with = |text: String| TlsFiles {
        client_authorities: Some(folder.write("ca.pem", &text)),
        clients: ClientCertificates::Optional,
        ..files.clone()
    };
    assert!(Tls::start(with(authority.pem())).is_ok());
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned();
    assert!(refused(&with(broken)).contains("--ssl-ca-certs"));
}
