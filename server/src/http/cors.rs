//! Which web pages may ask this server (CORS). Closed by default: without `--allowed-origins` no header is sent, and
//! browsers keep pages of other origins out. The values are vLLM's.

use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, Any, CorsLayer};

use crate::option_error::OptionError;

/// The allowed origins, methods and headers. `*` allows all; methods and headers that are not named are all allowed, as
/// in vLLM.
#[derive(Clone, Debug, Default)]
pub struct CorsRules {
    /// `--allowed-origins`.
    pub origins: Vec<String>,
    /// `--allowed-methods`.
    pub methods: Vec<String>,
    /// `--allowed-headers`.
    pub headers: Vec<String>,
    /// `--allow-credentials`.
    pub credentials: bool,
}

impl CorsRules {
    /// The layer that answers preflights and marks answers; none without origins.
    ///
    /// # Errors
    /// A value that is no origin, method or header; methods, headers or credentials without origins.
    pub fn layer(&self) -> Result<Option<CorsLayer>, OptionError> {
        if self.origins.is_empty() {
            let alone = [
                (!self.methods.is_empty(), "--allowed-methods"),
                (!self.headers.is_empty(), "--allowed-headers"),
                (self.credentials, "--allow-credentials"),
            ];
            let Some((_, option)) = alone.into_iter().find(|(given, _)| *given) else {
                return Ok(None);
            };
            return Err(refused(
                option,
                "it says what pages of other origins may do, but none is allowed; add --allowed-origins",
            ));
        }
        let all = |names: &[String]| names.iter().any(|name| name == "*");
        // The standard forbids `*` together with credentials: the header repeats what the page asked for instead.
        let mirrors = self.credentials;
        let origins: AllowOrigin = match all(&self.origins) {
            true if mirrors => AllowOrigin::mirror_request(),
            true => Any.into(),
            false => self
                .origins
                .iter()
                .map(|origin| parse_origin(origin))
                .collect::<Result<Vec<_>, _>>()?
                .into(),
        };
        let methods: AllowMethods = match self.methods.is_empty() || all(&self.methods) {
            true if mirrors => AllowMethods::mirror_request(),
            true => Any.into(),
            false => parse_each::<Method>("--allowed-methods", &self.methods)?.into(),
        };
        let headers: AllowHeaders = match self.headers.is_empty() || all(&self.headers) {
            // Browsers do not count Authorization among `*`.
            true => AllowHeaders::mirror_request(),
            false => parse_each::<HeaderName>("--allowed-headers", &self.headers)?.into(),
        };
        let layer = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods(methods)
            .allow_headers(headers);
        Ok(Some(layer.allow_credentials(self.credentials)))
    }
}

fn refused(option: &'static str, message: &str) -> OptionError {
    OptionError {
        option,
        message: message.to_owned(),
    }
}

fn parse_origin(origin: &str) -> Result<HeaderValue, OptionError> {
    let is_origin = origin == "null"
        || origin
            .split_once("://")
            .is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty() && !host.contains('/'));
    let value = origin.parse::<HeaderValue>().ok().filter(|_| is_origin);
    value.ok_or_else(|| {
        let message = format!(
            "`{origin}` is no origin; write scheme, host and port as browsers do, such as \
            https://app.example:8443, or *"
        );
        refused("--allowed-origins", &message)
    })
}

fn parse_each<T: std::str::FromStr>(option: &'static str, names: &[String]) -> Result<Vec<T>, OptionError> {
    let parse = |name: &String| {
        name.parse()
            .map_err(|_| refused(option, &format!("`{name}` cannot stand in HTTP")))
    };
    names.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused() {
        let rules = |origins: &[&str], methods: &[&str]| CorsRules {
            origins: origins.iter().map(|s| (*s).to_owned()).collect(),
            methods: methods.iter().map(|s| (*s).to_owned()).collect(),
            ..CorsRules::default()
        };
        assert!(rules(&[], &[]).layer().expect("closed").is_none());
        assert!(
            rules(&["https://a.example", "null"], &["GET"])
                .layer()
                .expect("fine")
                .is_some()
        );
        for (origins, methods, part) in [
            (&["a.example"][..], &[][..], "a.example"),
            (&["https://a.example/"], &[], "https://a.example/"),
            (&["*"], &["GE T"], "GE T"),
            (&[], &["GET"], "--allowed-origins"),
        ] {
            let error = rules(origins, methods).layer().expect_err(part);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn everything_with_credentials_makes_a_layer() {
        let rules = CorsRules {
            origins: vec!["*".to_owned()],
            credentials: true,
            ..CorsRules::default()
        };
        // The layer panics on forbidden combinations when it is used.
        let layer = rules.layer().expect("fine").expect("open");
        let _ = tower::Layer::layer(&layer, axum::Router::<()>::new());
    }
}
