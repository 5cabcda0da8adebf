//! Logs to standard error as the server does, with the filter and format that the server passes at the start.

use tracing_subscriber::EnvFilter;

/// The filter without the hub's client: the server reports its errors itself, one line each. A filter that names
/// `hf_hub` keeps it.
fn quiet(filter: &str) -> String {
    const HUB: &str = "hf_hub";
    if filter.contains(HUB) || ["debug", "trace"].contains(&filter.to_ascii_lowercase().as_str()) {
        return filter.to_owned();
    }
    match filter.is_empty() {
        true => format!("{HUB}=off"),
        false => format!("{filter},{HUB}=off"),
    }
}

/// Starts logging. The server has refused a filter that does not parse; it cannot come here.
pub fn start(filter: &str, format: &str) {
    let builder = tracing_subscriber::fmt().with_writer(std::io::stderr);
    let builder = builder.with_env_filter(EnvFilter::new(quiet(filter)));
    match format {
        "json" => builder.json().flatten_event(true).init(),
        _ => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            builder.with_ansi(colours).with_target(false).init();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hubs_client_is_heard_where_it_is_asked_for() {
        assert_eq!(quiet("info"), "info,hf_hub=off");
        assert_eq!(
            quiet("warn,halyard_engine=debug"),
            "warn,halyard_engine=debug,hf_hub=off"
        );
        for as_it_is in ["debug", "TRACE", "info,hf_hub=warn"] {
            assert_eq!(quiet(as_it_is), as_it_is);
        }
        assert!(EnvFilter::try_new(quiet("info")).is_ok());
    }
}
