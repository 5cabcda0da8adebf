//! Checks the `Host` header against the names that this server answers to. This stops DNS rebinding: a web page gives
//! its own name the address 127.0.0.1 and then reaches a server that only this machine was meant to reach. The browser
//! still sends the page's name in `Host`.

use std::net::IpAddr;

use axum::http::uri::Authority;

/// Which hosts of requests are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRules {
    /// In lower case; `*.name` stands for every name below it. None: every host is answered.
    names: Option<Vec<String>>,
}

impl HostRules {
    /// The rules of a server on `hosts`. Addresses and `localhost` always pass, and the names of `allowed`, where `*`
    /// is every name. Without `allowed` a server that listens on loopback answers to `hosts` only, and one that is open
    /// to the network to every name: its names are given by others, and a page that can reach it gains nothing by
    /// rebinding.
    pub fn new(hosts: &[&str], is_loopback: bool, allowed: &[String]) -> Self {
        if allowed.iter().any(|name| name == "*") || (allowed.is_empty() && !is_loopback) {
            return HostRules::default();
        }
        let names = allowed.iter().map(String::as_str).chain(hosts.iter().copied());
        HostRules {
            names: Some(names.map(plain).collect()),
        }
    }

    /// Whether a request for this host, perhaps with a port, is answered.
    pub(super) fn allows(&self, host: &str) -> bool {
        let Some(names) = &self.names else {
            return true;
        };
        let Some(host) = host.parse::<Authority>().ok().filter(|_| !host.contains('@')) else {
            return false;
        };
        let host = plain(host.host());
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        bare.unwrap_or(&host).parse::<IpAddr>().is_ok()
            || host == "localhost"
            || host.ends_with(".localhost")
            || names.iter().any(|name| match name.strip_prefix('*') {
                Some(suffix) if suffix.starts_with('.') => host.len() > suffix.len() && host.ends_with(suffix),
                _ => *name == host,
            })
    }
}

/// In lower case and without the dot that ends a full name.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(host: &str, is_loopback: bool, allowed: &[&str]) -> HostRules {
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        HostRules::new(&[host], is_loopback, &allowed)
    }

    #[test]
    fn on_loopback_only_addresses_localhost_and_given_names_pass() {
        let rules = rules("box.lan", true, &["Models.example", "*.corp.example"]);
        for host in [
            "127.0.0.1",
            "127.0.0.1:8000",
            "[::1]:8000",
            "10.1.2.3",
            "localhost:8000",
            "LOCALHOST.",
            "app.localhost",
            "box.lan:8000",
            "models.EXAMPLE:443",
            "a.corp.example",
        ] {
            assert!(rules.allows(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "corp.example",
            "evilcorp.example",
            "evil.example@localhost",
            "localhost@evil.example",
            "",
            "a b",
        ] {
            assert!(!rules.allows(host), "{host}");
        }
    }

    #[test]
    fn an_open_server_answers_every_name_until_it_is_told_its_own() {
        assert!(rules("0.0.0.0", false, &[]).allows("any.example"));
        assert!(!rules("0.0.0.0", false, &["mine.example"]).allows("any.example"));
        assert!(rules("127.0.0.1", true, &["*"]).allows("any.example"));
    }
}
