//! API keys. Compares every given key with every known one in constant time; knows nothing of users or rights. The
//! comparison never stops early, so that its duration tells nothing about how much of a key was right.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::error::ApiError;
use super::state::AppState;

/// Routes that answer without a key: load balancers probe them.
pub const OPEN_ROUTES: [&str; 2] = ["/health", "/ping"];

/// The accepted keys; none: every request passes.
#[derive(Clone, Default)]
pub struct ApiKeys {
    digests: Arc<[[u8; 32]]>,
}

impl ApiKeys {
    /// Accepts these keys, without the blanks around them (requests cannot send those). Digests are kept, so that lengths do not show in the time a comparison takes.
    pub fn new<S: AsRef<str>>(keys: &[S]) -> Self {
        ApiKeys {
            digests: keys
                .iter()
                .map(|key| Sha256::digest(key.as_ref().trim()).into())
                .collect(),
        }
    }

    /// Whether a request with these headers passes.
    ///
    /// # Errors
    /// 401 that says which of the two is wrong: no key, or an unknown one.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.digests.is_empty() {
            return Ok(());
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
        for accepted in self.digests.iter() {
            known |= accepted.ct_eq(&digest);
        }
        if bool::from(known) {
            Ok(())
        } else {
            Err(unauthorized("the API key is not one that this server accepts"))
        }
    }
}

fn strip_bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// Refuses what carries no accepted key, unknown paths included: without a key nobody learns which routes exist.
pub async fn require_key(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let open = OPEN_ROUTES.contains(&path) || (path == "/metrics" && state.serving.metrics_without_key);
    if !open && let Err(error) = state.api_keys.check(request.headers()) {
        return error.into_response();
    }
    next.run(request).await
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
        for wrong in ["Bearer firs", "Bearer firstt", "Bearer ", "Basic first", "first", "B"] {
            let error = keys.check(&with(wrong)).expect_err(wrong);
            assert_eq!(error.status, 401, "{wrong}");
        }
        assert_eq!(keys.check(&HeaderMap::new()).expect_err("no key").status, 401);
    }

    #[test]
    fn without_keys_everything_passes() {
        assert!(ApiKeys::default().check(&HeaderMap::new()).is_ok());
    }
}
