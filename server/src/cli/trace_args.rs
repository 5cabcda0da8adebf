//! `--otlp-traces-endpoint`, vLLM's flag for traces, and OpenTelemetry's variables: they become a `--stat-logger otlp`
//! that sends spans and no metrics. Names and values only; the plugin reads and checks its configuration.

use clap::Args;
use serde_json::{Map, Value, json};

use super::chosen_hook::ChosenHook;
use crate::error::ServerError;

/// The stat logger that sends spans.
const LOGGER: &str = "otlp";
const FLAG: &str = "--otlp-traces-endpoint";
/// What the plugin appends to its endpoint over HTTP.
const PATH: &str = "v1/traces";
/// Protocols as OpenTelemetry and the plugin name them.
const GRPC: &str = "grpc";
const HTTP: &str = "http/protobuf";
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Where traces go.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Statistics")]
pub struct TraceArgs {
    /// Send a span of each request, with spans of its queue, prefill and decode, to this OTLP collector: over gRPC
    /// (http://HOST:4317, grpc://HOST:4317, https:// for TLS), or over HTTP where the address has a path or port 4318
    /// (http://HOST:4318/v1/traces). OTEL_EXPORTER_OTLP_TRACES_PROTOCOL (grpc, http/protobuf) decides otherwise.
    /// Without the flag OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT say where.
    /// OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE and _TIMEOUT, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and
    /// OTEL_TRACES_SAMPLER count too. --stat-logger otlp has more settings
    #[arg(long, value_name = "URL", env = "HALYARD_OTLP_TRACES_ENDPOINT")]
    otlp_traces_endpoint: Option<String>,
}

impl TraceArgs {
    /// The `--stat-logger` that sends traces, if they are asked for. `named` are those of the command line; a logger
    /// that was named goes before the variables.
    ///
    /// # Errors
    /// An endpoint that is none, a variable that cannot be followed, or a flag beside a named `otlp`. Variables alone
    /// may be meant for other programs: what is wrong with them is a warning, and nothing is sent.
    pub fn stat_logger(
        &self,
        named: &[String],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<String>, ServerError> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_named = named
            .iter()
            .any(|text| text.parse::<ChosenHook>().is_ok_and(|hook| hook.name == LOGGER));
        let logger = |endpoint: &str, name: &str| {
            let config = configuration(endpoint, &variable)?;
            let (to, protocol) = (&config["endpoint"], &config["protocol"]);
            tracing::info!("traces are sent to {to} over {protocol}, as {name} says");
            Ok(format!("{LOGGER}={config}"))
        };
        let refused = |message: String| ServerError::Option { option: FLAG, message };
        if let Some(endpoint) = &self.otlp_traces_endpoint {
            if is_named {
                let message = "--stat-logger otlp is given too; give its endpoint there, or leave it out";
                return Err(refused(message.to_owned()));
            }
            return logger(endpoint, FLAG).map(Some).map_err(refused);
        }
        let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        let Some((name, endpoint)) = endpoints.iter().find_map(|&name| Some((name, variable(name)?))) else {
            return Ok(None);
        };
        if is_named || is_off(&variable) {
            return Ok(None);
        }
        Ok(logger(&endpoint, name)
            .inspect_err(|message| tracing::warn!("no traces are sent, although {name} is set: {message}"))
            .ok())
    }
}

/// Whether variables say that this program sends no traces.
fn is_off(variable: &impl Fn(&str) -> Option<String>) -> bool {
    let says = |name: &str, word: &str| variable(name).is_some_and(|value| value.trim().eq_ignore_ascii_case(word));
    says("OTEL_SDK_DISABLED", "true") || says("OTEL_TRACES_EXPORTER", "none")
}

/// The logger's configuration. What concerns traces alone goes before what concerns every signal, as OpenTelemetry
/// says.
fn configuration(endpoint: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<Value, String> {
    let exporter = |suffix: &str| {
        let names = ["TRACES_", ""].map(|signal| format!("OTEL_EXPORTER_OTLP_{signal}{suffix}"));
        names.into_iter().find_map(|name| Some((variable(&name)?, name)))
    };
    let protocol = exporter("PROTOCOL");
    let named = protocol
        .as_ref()
        .map(|(protocol, name)| (protocol.trim(), name.as_str()));
    let (endpoint, protocol) = target(endpoint, named)?;
    let mut config = Map::new();
    if let Some((file, _)) = exporter("CERTIFICATE").filter(|_| endpoint.starts_with("https://")) {
        config.insert("ca_file".to_owned(), file.into());
    }
    if let Some((headers, name)) = exporter("HEADERS") {
        config.insert("headers".to_owned(), pairs(&name, &headers)?);
    }
    if let Some((timeout, name)) = exporter("TIMEOUT") {
        let milliseconds = timeout.trim().parse::<u64>();
        let milliseconds = milliseconds.map_err(|_| format!("{name} is {timeout}, no number of milliseconds"))?;
        config.insert("timeout_ms".to_owned(), milliseconds.into());
    }
    if let Some(name) = variable("OTEL_SERVICE_NAME") {
        config.insert("service_name".to_owned(), name.into());
    }
    if let Some(attributes) = variable(ATTRIBUTES) {
        config.insert("resource_attributes".to_owned(), pairs(ATTRIBUTES, &attributes)?);
    }
    if let Some(sampler) = variable("OTEL_TRACES_SAMPLER") {
        let ratio = ratio(sampler.trim(), variable("OTEL_TRACES_SAMPLER_ARG").as_deref())?;
        config.insert("sample_ratio".to_owned(), json!(ratio));
    }
    config.insert("endpoint".to_owned(), endpoint.into());
    config.insert("protocol".to_owned(), protocol.into());
    config.insert("metrics".to_owned(), false.into());
    Ok(config.into())
}

/// The address of a collector as the plugin takes it, and the protocol: the one that a variable names, else the one
/// that the address is for, else gRPC, as in vLLM. `named`: the variable's value and name.
fn target(endpoint: &str, named: Option<(&str, &str)>) -> Result<(String, &'static str), String> {
    let endpoint = endpoint.trim();
    // vLLM takes HOST:PORT too.
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_matches('/');
    let port = authority
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    let is_address = endpoint.contains("://") || port.is_some();
    if !is_address || authority.is_empty() || !["http", "https", "grpc"].contains(&scheme) {
        return Err(format!(
            "{endpoint} is no address of a collector: write http://HOST:4317 for gRPC, http://HOST:4318/v1/traces for \
             HTTP, https:// for TLS"
        ));
    }
    let protocol = match named {
        Some((GRPC, _)) => GRPC,
        Some((HTTP, name)) if scheme == "grpc" => {
            return Err(format!(
                "{endpoint} is an address for gRPC and {name} is {HTTP}: give one of the other kind"
            ));
        }
        Some((HTTP, _)) => HTTP,
        Some((other, name)) => return Err(format!("{name} is {other}; {GRPC} and {HTTP} are spoken")),
        None if scheme == "grpc" || port == Some(4317) => GRPC,
        None if port == Some(4318) || !path.is_empty() => HTTP,
        None => GRPC,
    };
    if protocol == HTTP {
        let base = format!("{scheme}://{authority}/{path}");
        let base = base.strip_suffix(PATH).unwrap_or(&base).trim_end_matches('/');
        return Ok((base.to_owned(), protocol));
    }
    // A path of HTTP's is passed over, as vLLM does.
    if !path.is_empty() && path != PATH {
        return Err(format!(
            "{endpoint} has a path, and gRPC has none: leave it out, or set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to \
             {HTTP}"
        ));
    }
    let scheme = if scheme == "https" { "https" } else { "http" };
    Ok((format!("{scheme}://{authority}"), protocol))
}

/// The share of requests that a sampler takes where the client sent no trace.
fn ratio(sampler: &str, argument: Option<&str>) -> Result<f64, String> {
    match sampler.strip_prefix("parentbased_").unwrap_or(sampler) {
        "always_on" => Ok(1.0),
        "always_off" => Ok(0.0),
        "traceidratio" => {
            let ratio = argument.map_or(Ok(1.0), |text| text.trim().parse());
            let ratio = ratio.ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or_else(|| format!("OTEL_TRACES_SAMPLER_ARG is {}, not 0 to 1", argument.unwrap_or("")))
        }
        _ => Err(format!(
            "OTEL_TRACES_SAMPLER is {sampler}; always_on, always_off and traceidratio are known, each also with \
             parentbased_ before it"
        )),
    }
}

/// The pairs of a variable, as an object. The refusal does not show them: they may be secrets.
fn pairs(variable: &str, text: &str) -> Result<Value, String> {
    let given = text.split(',').filter(|pair| !pair.trim().is_empty());
    let pairs: Option<Map<String, Value>> = given.map(pair).collect();
    pairs
        .map(Value::from)
        .ok_or_else(|| format!("{variable} is not NAME=VALUE,NAME=VALUE with percent-encoded values"))
}

/// `name=value`, the value percent-encoded.
fn pair(pair: &str) -> Option<(String, Value)> {
    let (name, value) = pair.split_once('=')?;
    let name = Some(name.trim()).filter(|name| !name.is_empty())?;
    let mut bytes = value.trim().bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        let digits = std::str::from_utf8(&digits)
            .ok()
            .filter(|_| digits.iter().all(u8::is_ascii_hexdigit))?;
        decoded.push(u8::from_str_radix(digits, 16).ok()?);
    }
    Some((name.to_owned(), String::from_utf8(decoded).ok()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a flag and variables make; the error's words otherwise.
    fn made(flag: Option<&str>, named: &[&str], variables: &[(&str, &str)]) -> Result<Option<Value>, String> {
        let args = TraceArgs {
            otlp_traces_endpoint: flag.map(str::to_owned),
        };
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        let variable = |asked: &str| {
            let found = variables.iter().find(|(name, _)| *name == asked);
            found.map(|(_, value)| (*value).to_owned())
        };
        let text = args.stat_logger(&named, variable).map_err(|error| error.to_string())?;
        Ok(text.map(|text| {
            let hook: ChosenHook = text.parse().expect("a stat logger");
            assert_eq!(hook.name, "otlp");
            serde_json::from_str(&hook.config).expect("JSON")
        }))
    }

    const HOST: &str = "http://collector:4318";
    const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

    #[test]
    fn an_endpoint_is_a_logger_of_spans_alone() {
        assert_eq!(made(None, &[], &[]), Ok(None));
        let plain = Ok(Some(
            json!({"endpoint": HOST, "protocol": "http/protobuf", "metrics": false}),
        ));
        for url in [
            HOST,
            "http://collector:4318/",
            "http://collector:4318/v1/traces",
            " http://collector:4318/v1/traces/",
        ] {
            assert_eq!(made(Some(url), &[], &[]), plain, "{url}");
            assert_eq!(made(None, &["json-lines"], &[(TRACES, url)]), plain, "{url}");
        }
        let under = made(Some("https://x/otel/v1/traces"), &[], &[]);
        let expected = json!({"endpoint": "https://x/otel", "protocol": "http/protobuf", "metrics": false});
        assert_eq!(under, Ok(Some(expected)));
    }

    #[test]
    fn the_protocol_is_the_variables_or_the_addresses_or_grpc() {
        let (http, grpc) = (Some("http/protobuf"), Some("grpc"));
        for (url, named, endpoint, protocol) in [
            ("http://c:4317", None, "http://c:4317", grpc),
            ("http://c:4317/v1/traces", None, "http://c:4317", grpc),
            ("grpc://c:4317", None, "http://c:4317", grpc),
            ("grpc://c:9/", None, "http://c:9", grpc),
            ("c:4317", None, "http://c:4317", grpc),
            ("[::1]:4317", None, "http://[::1]:4317", grpc),
            ("https://c", None, "https://c", grpc),
            ("http://c:9", None, "http://c:9", grpc),
            ("c:4318", None, "http://c:4318", http),
            ("http://c:9/v1/traces", None, "http://c:9", http),
            ("https://c/otlp", None, "https://c/otlp", http),
            ("http://c:4318/v1/traces", grpc, "http://c:4318", grpc),
            ("http://c:4317", http, "http://c:4317", http),
        ] {
            for variable in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
                let variables: Vec<_> = named.map(|named| (variable, named)).into_iter().collect();
                let made = made(Some(url), &[], &variables).expect(url).expect("a logger");
                assert_eq!(
                    (&made["endpoint"], made["protocol"].as_str()),
                    (&json!(endpoint), protocol),
                    "{url}"
                );
            }
        }
        let both = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
        ];
        let made = made(Some("http://c:9"), &[], &both).expect("taken").expect("a logger");
        assert_eq!(made["protocol"], "http/protobuf", "what concerns traces goes first");
    }

    #[test]
    fn the_flag_goes_before_variables_and_those_of_traces_before_the_others() {
        let variables = [(TRACES, "http://traces:1"), (BASE, "http://base:1")];
        let endpoint =
            |made: Result<Option<Value>, String>| made.expect("taken").expect("a logger")["endpoint"].clone();
        assert_eq!(endpoint(made(Some(HOST), &[], &variables)), HOST);
        assert_eq!(endpoint(made(None, &[], &variables)), "http://traces:1");
        assert_eq!(endpoint(made(None, &[], &variables[1..])), "http://base:1");
        assert_eq!(
            endpoint(made(None, &[], &[(TRACES, " "), variables[1]])),
            "http://base:1"
        );
    }

    #[test]
    fn the_other_variables_become_settings() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=1"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                "Authorization=Basic%20eDp5, x-team = b=c ",
            ),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_SERVICE_NAME", "chat"),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=chat-0,team=a%2Cb"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ];
        let expected = json!({
            "endpoint": "https://x", "protocol": "http/protobuf", "metrics": false, "ca_file": "/ca.pem",
            "timeout_ms": 1500, "service_name": "chat", "sample_ratio": 0.25,
            "resource_attributes": {"k8s.pod.name": "chat-0", "team": "a,b"},
            "headers": {"Authorization": "Basic eDp5", "x-team": "b=c"},
        });
        assert_eq!(made(Some("https://x"), &[], &variables), Ok(Some(expected)));
        let plain = made(Some(HOST), &[], &variables).expect("taken").expect("a logger");
        assert_eq!(plain.get("ca_file"), None, "http:// shows no certificate");
        for (sampler, ratio) in [
            ("always_off", 0.0),
            ("parentbased_always_on", 1.0),
            ("traceidratio", 1.0),
        ] {
            let made = made(Some(HOST), &[], &[("OTEL_TRACES_SAMPLER", sampler)]);
            assert_eq!(
                made.expect("taken").expect("a logger")["sample_ratio"],
                ratio,
                "{sampler}"
            );
        }
    }

    #[test]
    fn what_cannot_be_followed_stops_a_flag_and_not_variables_alone() {
        let protocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
        for (url, variables, named) in [
            ("collector", &[][..], "http://HOST:4317"),
            ("ftp://collector:4317", &[], "ftp://collector:4317"),
            ("http://", &[], "no address"),
            ("https://x/otel", &[(protocol, "grpc")], "gRPC has none"),
            ("grpc://collector:4317", &[(protocol, "http/protobuf")], protocol),
            (HOST, &[(protocol, "http/json")], "http/json; grpc and http/protobuf"),
            (
                HOST,
                &[("OTEL_EXPORTER_OTLP_HEADERS", "secret")],
                "OTEL_EXPORTER_OTLP_HEADERS",
            ),
            (HOST, &[("OTEL_EXPORTER_OTLP_HEADERS", "a=%zz")], "percent"),
            (HOST, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")], "soon"),
            (HOST, &[("OTEL_TRACES_SAMPLER", "jaeger_remote")], "jaeger_remote"),
            (
                HOST,
                &[
                    ("OTEL_TRACES_SAMPLER", "traceidratio"),
                    ("OTEL_TRACES_SAMPLER_ARG", "2"),
                ],
                "SAMPLER_ARG is 2",
            ),
        ] {
            let error = made(Some(url), &[], variables).expect_err(named);
            assert!(error.contains(named) && !error.contains("secret"), "{error}");
            let alone: Vec<_> = variables.iter().copied().chain([(TRACES, url)]).collect();
            assert_eq!(made(None, &[], &alone), Ok(None), "{named}");
        }
    }

    #[test]
    fn a_logger_that_is_named_sends_alone() {
        for named in ["otlp", r#"otlp={"endpoint": "http://x"}"#, "otlp:endpoint=http://x"] {
            let error = made(Some(HOST), &[named], &[]).expect_err("twice");
            assert!(error.contains("--stat-logger otlp"), "{error}");
            assert_eq!(made(None, &[named], &[(TRACES, HOST)]), Ok(None));
        }
        for off in [("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(made(None, &[], &[(BASE, HOST), off]), Ok(None));
        }
    }
}
