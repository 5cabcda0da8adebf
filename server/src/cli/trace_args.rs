//! `--otlp-traces-endpoint`, vLLM's flag for traces, and OpenTelemetry's variables: they become a `--stat-logger otlp`
//! that sends spans and no metrics. Names and values only; the plugin reads and checks its configuration.

use clap::Args;
use serde_json::{Map, Value, json};

use super::chosen_hook::ChosenHook;
use crate::error::ServerError;

/// The stat logger that sends spans.
const LOGGER: &str = "otlp";
const FLAG: &str = "--otlp-traces-endpoint";
/// What the plugin appends to its endpoint.
const PATH: &str = "/v1/traces";

/// Where traces go.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Statistics")]
pub struct TraceArgs {
    /// Send a span of each request, with spans of its queue, prefill and decode, to this OTLP collector, over HTTP with
    /// protobuf: http://HOST:4318/v1/traces (the path may be left out). Without it OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
    /// or OTEL_EXPORTER_OTLP_ENDPOINT say where. OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE and _TIMEOUT,
    /// OTEL_SERVICE_NAME and OTEL_TRACES_SAMPLER count too. --stat-logger otlp has more settings
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
        let config =
            |endpoint: &str| Some(configuration(endpoint, &variable).map(|config| format!("{LOGGER}={config}")));
        let refused = |message: String| ServerError::Option { option: FLAG, message };
        if let Some(endpoint) = &self.otlp_traces_endpoint {
            if is_named {
                let message = "--stat-logger otlp is given too; give its endpoint there, or leave it out";
                return Err(refused(message.to_owned()));
            }
            return config(endpoint).transpose().map_err(refused);
        }
        let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        let Some((name, endpoint)) = endpoints.iter().find_map(|&name| Some((name, variable(name)?))) else {
            return Ok(None);
        };
        if is_named || is_off(&variable) {
            return Ok(None);
        }
        match config(&endpoint).transpose() {
            Ok(logger) => {
                tracing::info!("traces are sent to {endpoint}, as {name} says");
                Ok(logger)
            }
            Err(message) => {
                tracing::warn!("no traces are sent, although {name} is set: {message}");
                Ok(None)
            }
        }
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
    if let Some((protocol, name)) = exporter("PROTOCOL")
        && protocol.trim() != "http/protobuf"
    {
        return Err(format!("{name} is {protocol}; spans are sent as http/protobuf only"));
    }
    let endpoint = base(endpoint)?;
    let mut config = Map::new();
    if let Some((file, _)) = exporter("CERTIFICATE").filter(|_| endpoint.starts_with("https://")) {
        config.insert("ca_file".to_owned(), file.into());
    }
    if let Some((headers, name)) = exporter("HEADERS") {
        let headers = headers.split(',').filter(|pair| !pair.trim().is_empty());
        let headers: Option<Map<String, Value>> = headers.map(header).collect();
        // Its value may be a secret.
        let headers =
            headers.ok_or_else(|| format!("{name} is not NAME=VALUE,NAME=VALUE with percent-encoded values"))?;
        config.insert("headers".to_owned(), headers.into());
    }
    if let Some((timeout, name)) = exporter("TIMEOUT") {
        let milliseconds = timeout.trim().parse::<u64>();
        let milliseconds = milliseconds.map_err(|_| format!("{name} is {timeout}, no number of milliseconds"))?;
        config.insert("timeout_ms".to_owned(), milliseconds.into());
    }
    if let Some(name) = variable("OTEL_SERVICE_NAME") {
        config.insert("service_name".to_owned(), name.into());
    }
    if let Some(sampler) = variable("OTEL_TRACES_SAMPLER") {
        let ratio = ratio(sampler.trim(), variable("OTEL_TRACES_SAMPLER_ARG").as_deref())?;
        config.insert("sample_ratio".to_owned(), json!(ratio));
    }
    config.insert("endpoint".to_owned(), endpoint.into());
    config.insert("metrics".to_owned(), false.into());
    Ok(config.into())
}

/// A collector's URL without the path of traces.
fn base(endpoint: &str) -> Result<&str, String> {
    let endpoint = endpoint.trim();
    if !["http://", "https://"]
        .iter()
        .any(|scheme| endpoint.starts_with(scheme))
    {
        return Err(format!(
            "{endpoint} is no http:// or https:// address; spans are sent over HTTP, not gRPC: a collector takes them \
             at http://HOST:4318"
        ));
    }
    let base = endpoint.trim_end_matches('/');
    Ok(base.strip_suffix(PATH).unwrap_or(base))
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

/// `name=value`, the value percent-encoded.
fn header(pair: &str) -> Option<(String, Value)> {
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
        let plain = Ok(Some(json!({"endpoint": HOST, "metrics": false})));
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
        assert_eq!(under, Ok(Some(json!({"endpoint": "https://x/otel", "metrics": false}))));
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
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ];
        let expected = json!({
            "endpoint": "https://x", "metrics": false, "ca_file": "/ca.pem", "timeout_ms": 1500,
            "service_name": "chat", "sample_ratio": 0.25,
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
            ("grpc://collector:4317", &[][..], "4318"),
            ("collector:4318", &[], "http://"),
            (HOST, &[(protocol, "grpc")], protocol),
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
