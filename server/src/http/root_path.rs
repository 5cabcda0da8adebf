//! `--root-path`: the path under which a proxy serves this server. It is taken off requests that carry it, so that the
//! routes answer both behind a proxy that takes it off itself and behind one that does not.

use axum::http::{Request, Uri};

/// The path, without a slash at its end; empty: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootPath(String);

impl RootPath {
    /// Reads the flag.
    ///
    /// # Errors
    /// What is no path of an address.
    pub fn new(text: &str) -> Result<RootPath, String> {
        let path = text.trim_end_matches('/');
        let is_path = path.is_empty() || path.starts_with('/');
        let is_uri = path.is_empty()
            || path
                .parse::<Uri>()
                .is_ok_and(|uri| uri.path() == path && uri.query().is_none());
        match is_path && is_uri && !path.contains("//") {
            true => Ok(RootPath(path.to_owned())),
            false => Err(format!("`{text}` is no path; give one such as /llm")),
        }
    }

    /// The path; empty: none.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes the path off a request's address. Others stay as they are.
    pub(super) fn take_off<B>(&self, request: &mut Request<B>) {
        if self.0.is_empty() {
            return;
        }
        let uri = request.uri();
        let Some(rest) = uri.path().strip_prefix(&self.0) else {
            return;
        };
        if !(rest.is_empty() || rest.starts_with('/')) {
            return;
        }
        let path = if rest.is_empty() { "/" } else { rest };
        let target = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = target.parse().ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_taken_off_whole_and_only_where_it_stands() {
        let root = RootPath::new("/llm/a/").expect("a path");
        for (asked, answered) in [
            ("/llm/a/v1/models", "/v1/models"),
            ("/llm/a/v1/models?x=1&y", "/v1/models?x=1&y"),
            ("/llm/a", "/"),
            ("/llm/a?q", "/?q"),
            ("/v1/models", "/v1/models"),
            ("/llm/ab/v1", "/llm/ab/v1"),
            ("/llm/a/llm/a/v1", "/llm/a/v1"),
            ("https://host.example/llm/a/health", "https://host.example/health"),
            ("*", "*"),
        ] {
            let mut request = Request::get(asked).body(()).expect("a request");
            root.take_off(&mut request);
            assert_eq!(request.uri().to_string(), answered, "{asked}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for none in ["", "/"] {
            assert_eq!(RootPath::new(none), Ok(RootPath::default()));
        }
        for bad in ["llm", "/a b", "/a?b", "/a#b", "//host", "http://a/b"] {
            let error = RootPath::new(bad).expect_err(bad);
            assert!(error.contains(bad), "{error}");
        }
    }
}
