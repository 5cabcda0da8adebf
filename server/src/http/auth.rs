//! API keys. Compares every given key with every known one in constant time; there are no users or rights. The
//! comparison never stops early, so its duration does not show how much of a key was right.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::api_error::ApiError;

/// Routes that answer without a key: load balancers probe them.
pub const OPEN_ROUTES: [&str; 2] = ["/health", "/ping"];

/// What tells one key from another, without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDigest([u8; 32]);

/// The accepted keys; none: every request passes. Copies share them, so that a reload reaches all.
#[derive(Clone, Default)]
pub struct ApiKeys {
    digests: Arc<RwLock<Arc<[[u8; 32]]>>>,
}

impl ApiKeys {
    /// Accepts these keys, without the blanks around them (requests cannot send those). Digests are kept, so that
    /// lengths do not show in the time a comparison takes.
    pub fn new<S: AsRef<str>>(keys: &[S]) -> Self {
        ApiKeys {
            digests: Arc::new(RwLock::new(digests(keys))),
        }
    }

    /// Accepts these keys from now on, in place of all others.
    pub fn replace<S: AsRef<str>>(&self, keys: &[S]) {
        *self.digests.write().unwrap_or_else(PoisonError::into_inner) = digests(keys);
    }

    /// Whether every request passes.
    pub fn is_empty(&self) -> bool {
        self.known().is_empty()
    }

    fn known(&self) -> Arc<[[u8; 32]]> {
        Arc::clone(&self.digests.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a request with these headers pass, and says by which key; `None`: there are no keys.
    ///
    /// # Errors
    /// 401 that says which of the two is wrong: no key, or an unknown one.
    pub fn check(&self, headers: &HeaderMap) -> Result<Option<KeyDigest>, ApiError> {
        let accepted_keys = self.known();
        if accepted_keys.is_empty() {
            return Ok(None);
        }
        let unauthorized =
            |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key");
        let bearer = headers
            .get(header::AUTHORIZATION)
            .map(|value| value.as_bytes())
            .and_then(strip_bearer);
        let key = bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()));
        let Some(key) = key else {
            return Err(unauthorized("no API key; send the header `Authorization: Bearer KEY`"));
        };
        let digest: [u8; 32] = Sha256::digest(key).into();
        let mut known = Choice::from(0);
        for accepted in accepted_keys.iter() {
            known |= accepted.ct_eq(&digest);
        }
        if bool::from(known) {
            Ok(Some(KeyDigest(digest)))
        } else {
            Err(unauthorized("the API key is not one that this server accepts"))
        }
    }
}

fn digests<S: AsRef<str>>(keys: &[S]) -> Arc<[[u8; 32]]> {
    let digest = |key: &S| Sha256::digest(key.as_ref().trim()).into();
    keys.iter().map(digest).collect()
}

fn strip_bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(6)?;
    let blank = key.first().is_some_and(|byte| matches!(byte, b' ' | b'\t'));
    (blank && scheme.eq_ignore_ascii_case(b"bearer")).then(|| key.trim_ascii())
}

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("--api-key-file {}: {source}", path.display())]
    Read {
        /// As given.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It has no key; that would open the server.
    #[error("--api-key-file {}: there is no key in it; write one key a line (# begins a comment)", path.display())]
    Empty {
        /// As given.
        path: PathBuf,
    },
}

/// Where keys come from: the command line or a variable, and a file that can be read again.
#[derive(Clone, Debug, Default)]
pub struct KeySources {
    /// Keys that stay as they are.
    pub given: Vec<String>,
    /// A file with more.
    pub file: Option<PathBuf>,
}

impl KeySources {
    /// All keys as they are now.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn read(&self) -> Result<Vec<String>, KeyFileError> {
        let mut keys = self.given.clone();
        if let Some(path) = &self.file {
            keys.extend(read_keys(path)?);
        }
        Ok(keys)
    }
}

/// The keys of a file: one a line; empty lines and lines that begin with `#` do not count.
fn read_keys(path: &Path) -> Result<Vec<String>, KeyFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| KeyFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    let lines = text.lines().map(str::trim);
    let keys: Vec<String> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if keys.is_empty() {
        return Err(KeyFileError::Empty { path: path.to_owned() });
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().expect("a header value"));
        headers
    }

    #[test]
    fn accepts_each_key_and_nothing_else() {
        let keys = ApiKeys::new(&["first", "second"]);
        assert!(keys.check(&with("Bearer first")).is_ok());
        assert!(keys.check(&with("bearer second")).is_ok());
        assert!(keys.check(&with("Bearer\tsecond")).is_ok());
        for wrong in [
            "Bearerfirst",
            "Bearer",
            "Bearer firs",
            "Bearer firstt",
            "Bearer ",
            "Basic first",
            "first",
            "B",
        ] {
            let error = keys.check(&with(wrong)).expect_err(wrong);
            assert_eq!(error.status, 401, "{wrong}");
        }
        assert_eq!(keys.check(&HeaderMap::new()).expect_err("no key").status, 401);
    }

    #[test]
    fn without_keys_everything_passes() {
        assert!(ApiKeys::default().check(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_file_of_keys_is_read_again_and_an_empty_one_never_opens_the_server() {
        let path = std::env::temp_dir().join(format!("halyard-keys-{}", std::process::id()));
        std::fs::write(&path, "# staff\n  first  \r\n\nsecond\n#third\n").expect("writes");
        let sources = KeySources {
            given: vec!["fixed".to_owned()],
            file: Some(path.clone()),
        };
        let keys = ApiKeys::new(&sources.read().expect("keys"));
        let shared = keys.clone();
        for key in ["Bearer fixed", "Bearer first", "Bearer second"] {
            assert!(keys.check(&with(key)).is_ok(), "{key}");
        }
        assert!(keys.check(&with("Bearer #third")).is_err());
        std::fs::write(&path, "next\n").expect("writes");
        shared.replace(&sources.read().expect("keys"));
        assert!(keys.check(&with("Bearer next")).is_ok() && keys.check(&with("Bearer first")).is_err());
        std::fs::write(&path, "# none\n").expect("writes");
        let error = sources.read().expect_err("no key");
        assert!(error.to_string().contains("no key"), "{error}");
        std::fs::remove_file(&path).expect("was there");
        let error = sources.read().expect_err("no file");
        assert!(error.to_string().contains("halyard-keys"), "{error}");
    }
}
