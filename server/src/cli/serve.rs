//! `halyard serve`: platform, socket, model, engine, and then HTTP until a signal. In this order, so that a misspelt
//! name or a port in use fails before anything is downloaded or loaded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use halyard_engine::kv_dtype_name;

use super::access_args::{AccessArgs, Secret, hide_keys};
use super::connection_args::ConnectionArgs;
use super::engine::ChosenDevice;
use super::listen_args::{ListenArgs, TlsArgs};
use super::responses_args::ResponsesArgs;
use super::served::{Door, Prepared, RequestHooks, ServedArgs};
use super::service_manager::{self, Passed};
use super::trace_args::TraceArgs;
use super::units::show_bytes;
use crate::error::ServerError;
use crate::http::auth::{ApiKeys, KeySources};
use crate::http::listeners::{BoundSocket, Listener, Place};
use crate::http::reload::{hangup_signal, refresh_certificates, reload_at_hangup};
use crate::http::serve::{DrainTimes, serve, stop_signal};
use crate::http::tls::Tls;
use crate::http::transport::Transport;
use crate::logging::{self, LogFormat};

/// Flags of `halyard serve`. If a flag is given twice the last one counts, as in vLLM; lists grow.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub struct ServeArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    connections: ConnectionArgs,
    #[command(flatten)]
    served: ServedArgs,
    #[command(flatten)]
    traces: TraceArgs,
    #[command(flatten)]
    responses: ResponsesArgs,
}

#[cfg(test)]
impl ServeArgs {
    /// The engine's part.
    pub fn engine(&self) -> &super::args::EngineArgs {
        &self.served.engine
    }
}

/// vLLM's variable of `--server-dev-mode`.
const VLLM_DEV_MODE_VARIABLE: &str = "VLLM_SERVER_DEV_MODE";

/// The id of `--print-config`.
pub const PRINT_CONFIG: &str = "print_config";

/// Where options come from; read before the others (`config_file`).
#[derive(Args, Debug)]
#[command(next_help_heading = "Options")]
struct FileArgs {
    /// A YAML file of options: keys are the long flags, with or without their dashes. A flag on the command line goes
    /// first, then its variable, then the file
    #[arg(long, value_name = "FILE", env = "HALYARD_CONFIG")]
    config: Option<PathBuf>,
    /// Print every option with its value and where that came from, as such a file, and end
    #[arg(long, id = PRINT_CONFIG, env = "HALYARD_PRINT_CONFIG", default_value_t = false)]
    print_config: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
struct HttpArgs {
    /// Key that requests must carry (Authorization: Bearer KEY); may be repeated, and a comma separates keys. Guards
    /// every route but /health, /ping and the files of the page. A command line is visible to every user of the machine
    /// until the server has taken the key off it: --api-key-file or HALYARD_API_KEY (or VLLM_API_KEY) show it to no
    /// other user
    #[arg(
        long = "api-key",
        value_name = "KEY",
        env = "HALYARD_API_KEY",
        hide_env_values = true,
        value_delimiter = ','
    )]
    api_keys: Vec<String>,
    /// Seconds for running requests to finish after a signal; then they are aborted
    #[arg(long, value_name = "SECONDS", env = "HALYARD_SHUTDOWN_TIMEOUT", default_value_t = 30)]
    shutdown_timeout: u32,
    /// Serve no page at /ui
    #[arg(long, env = "HALYARD_NO_UI", default_value_t = false)]
    no_ui: bool,
    /// Serve no OpenAPI document at /openapi.json and no page of it at /docs
    #[arg(long, value_name = "BOOL", env = "HALYARD_DISABLE_FASTAPI_DOCS", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    disable_fastapi_docs: bool,
    /// Serve the routes for development: /abort_requests, /pause, /resume, /is_paused, /reset_prefix_cache; and, with
    /// --enable-sleep-mode, /sleep, /wake_up, /is_sleeping, /collective_rpc.
    /// VLLM_SERVER_DEV_MODE=1 does the same
    #[arg(long, env = "HALYARD_SERVER_DEV_MODE", default_value_t = false)]
    server_dev_mode: bool,
}

impl HttpArgs {
    /// Whether routes for development are served: they let every client with a key end or hold the requests of others.
    fn has_dev_routes(&self) -> bool {
        let of_vllm = std::env::var(VLLM_DEV_MODE_VARIABLE);
        self.server_dev_mode || of_vllm.is_ok_and(|value| value.trim().parse::<i64>().is_ok_and(|on| on != 0))
    }
}

/// Runs the server until a signal ends it. `accepted`: flags of the command line that have no effect here, each with
/// the reason.
///
/// # Errors
/// [`ServerError`].
pub fn run(mut args: ServeArgs, accepted: &[(String, &'static str)]) -> Result<(), ServerError> {
    let start = Instant::now();
    logging::start(&args.served.log.log_level, args.served.log.log_format)?;
    if let Some(path) = &args.file.config {
        tracing::info!(path = %path.display(), "options read from a file");
    }
    let keys = args.access.keys(&args.http.api_keys)?;
    let token = args
        .served
        .engine
        .model
        .overrides
        .hf_token
        .iter()
        .filter(|token| !token.is_empty());
    hide_keys(&[
        Secret::api_keys(&args.http.api_keys),
        Secret {
            flag: "--hf-token",
            variable: "HALYARD_HF_TOKEN",
            values: token.cloned().collect(),
        },
    ]);
    if !accepted.is_empty() {
        let names: Vec<&str> = accepted.iter().map(|(name, _)| name.as_str()).collect();
        tracing::info!("accepted, needs nothing here: {}", names.join(", "));
    }
    for (name, why) in accepted {
        tracing::debug!("{name}: {why}");
    }
    args.served.parsers.check()?;
    let loggers = &mut args.served.engine.platform.stat_loggers;
    loggers.extend(args.traces.stat_logger(loggers, |name| std::env::var(name).ok())?);
    let passed = service_manager::passed_sockets()?;
    let tls = args.tls.tls()?;
    let chosen = args.served.engine.choose_device()?;
    let hooks = args.served.load_hooks(&chosen)?;
    let runtime = super::runtime()?;
    let result = runtime.block_on(serve_model(args, chosen, hooks, Given { keys, passed, tls }, start));
    // After a signal while loading, the loading thread must not hold the process.
    runtime.shutdown_background();
    result
}

/// What was read before the model is.
struct Given {
    keys: KeySources,
    passed: Vec<Passed>,
    tls: Option<Arc<Tls>>,
}

async fn serve_model(
    args: ServeArgs,
    chosen: ChosenDevice,
    hooks: RequestHooks,
    Given { keys, passed, tls }: Given,
    start: Instant,
) -> Result<(), ServerError> {
    let hangup = hangup_signal().map_err(ServerError::io("installing signal handlers"))?;
    let mut stop = Box::pin(stop_signal().map_err(ServerError::io("installing signal handlers"))?);
    let sockets = args.listen.bind(passed)?;
    let is_local = sockets.iter().all(BoundSocket::is_local);
    service_manager::loading(args.served.engine.model.model.as_deref().unwrap_or("the demo model"));
    // A signal while the model is fetched or loaded ends the process at once: no request runs yet.
    let prepared = tokio::select! {
        prepared = args.prepare(chosen, hooks, (&keys, is_local, tls.clone())) => prepared?,
        () = &mut stop => return Ok(()),
    };
    let listeners = sockets.into_iter().map(BoundSocket::listen);
    let listeners: Vec<Listener> = listeners.collect::<Result<_, _>>()?;
    let places = listeners.iter().map(Listener::place).collect::<Result<Vec<Place>, _>>();
    let places = places.map_err(ServerError::io("asking for the address"))?;
    let urls: Vec<String> = places.iter().map(|place| reachable(place, tls.is_some())).collect();
    prepared.announce(&urls, args.served.log.log_format, start.elapsed());
    service_manager::ready(&urls.join(" and "));
    let stop = async move {
        stop.await;
        service_manager::stopping();
    };
    tokio::spawn(reload_at_hangup(
        hangup,
        keys,
        prepared.state.api_keys.clone(),
        tls.clone(),
    ));
    if let Some(tls) = tls.filter(|_| args.tls.refreshes()) {
        tokio::spawn(refresh_certificates(tls));
    }
    let times = DrainTimes {
        delay: args.connections.drain_delay(),
        drain: Duration::from_secs(u64::from(args.http.shutdown_timeout)),
    };
    let hooks = prepared.state.hooks.clone();
    serve(listeners, prepared.state, stop, times).await;
    // The engine has ended: sinks get its last records.
    let ended = tokio::task::spawn_blocking(move || hooks.shutdown()).await;
    if let Err(error) = ended {
        tracing::error!("ending the stat loggers failed: {error}");
    }
    Ok(())
}

/// The address for a client on this machine: 0.0.0.0 and :: become loopback.
fn reachable(place: &Place, is_tls: bool) -> String {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    let address = match place {
        Place::Tcp(address) => address,
        Place::Unix(path) => return format!("unix:{}", path.display()),
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

impl ServeArgs {
    async fn prepare(
        &self,
        chosen: ChosenDevice,
        hooks: RequestHooks,
        (keys, is_local, tls): (&KeySources, bool, Option<Arc<Tls>>),
    ) -> Result<Prepared, ServerError> {
        let hosts = self.listen.host_rules(is_local, &self.access.allowed_hosts());
        let mut transport = Transport::new(self.connections.limits()?, hosts, self.access.cors()?);
        transport.root_path = self.listen.root_path();
        transport.tls = tls;
        let door = Door {
            api_keys: ApiKeys::new(&keys.read()?),
            transport,
            responses: self.responses.store(),
            has_ui: !self.http.no_ui,
            dev_mode: self.http.has_dev_routes(),
            has_docs: !self.http.disable_fastapi_docs,
        };
        self.served.prepare(chosen, hooks, door).await
    }
}

impl Prepared {
    /// Says what is served and where: a banner in a text log, one event in a JSON log.
    fn announce(&self, urls: &[String], format: LogFormat, elapsed: Duration) {
        let has_keys = !self.state.api_keys.is_empty();
        // An address, if there is one: pages and clients want it.
        let first = urls.iter().find(|url| url.starts_with("http")).or(urls.first());
        let url = first.map_or("", String::as_str);
        let info = self.state.engine.info();
        let name = &self.state.model_names[0];
        let seconds = elapsed.as_secs_f64();
        tracing::info!(url, model = name, platform = self.platform, ready_s = seconds, "ready");
        if format == LogFormat::Json {
            return;
        }
        let demo = if self.is_demo {
            " (demo model: small and quick to fetch, not clever; --model chooses another)"
        } else {
            ""
        };
        let kv_bytes = u64::from(info.num_blocks) * info.block_bytes;
        say!("Halyard {}", env!("CARGO_PKG_VERSION"));
        say!("  model     {name}{demo}");
        say!(
            "            {}, {}, {:?}, context {} tokens",
            info.architecture,
            show_bytes(info.weight_bytes),
            info.dtype,
            info.max_model_len
        );
        say!("  platform  {}", self.platform);
        say!(
            "  KV cache  {} in {} blocks of {} tokens, {}",
            show_bytes(kv_bytes),
            info.num_blocks,
            info.block_size,
            kv_dtype_name(info.kv_cache_dtype)
        );
        say!("  ready     {url} after {seconds:.2} s");
        for other in urls.iter().filter(|other| *other != url) {
            say!("            {other}");
        }
        if self.state.ui.is_some() && url.starts_with("http") {
            say!("  page      {url}/ui/");
        }
        say!("\nTry{}:", if has_keys { ", with one of the keys in KEY" } else { "" });
        let unix = url
            .strip_prefix("unix:")
            .map(|path| format!("--unix-socket {path} http://localhost"));
        let curl = unix.as_deref().unwrap_or(url);
        let key = if has_keys {
            r#" -H "Authorization: Bearer $KEY""#
        } else {
            ""
        };
        if self.has_template {
            say!("  curl -N {curl}/v1/chat/completions -H 'Content-Type: application/json'{key} \\");
            say!(
                "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"What is the capital of France? Answer \
                 in one sentence.\"}}], \"temperature\": 0, \"max_tokens\": 64, \"stream\": true}}'"
            );
            let key = if has_keys { r#" --api-key "$KEY""# } else { "" };
            if unix.is_none() {
                say!("or: halyard chat --url {url}{key}");
            }
        } else {
            say!("  curl -N {curl}/v1/completions -H 'Content-Type: application/json'{key} \\");
            say!("    -d '{{\"prompt\": \"The capital of France is\", \"max_tokens\": 32, \"stream\": true}}'");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_every_interface_becomes_one_that_answers() {
        for (bound, printed) in [
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("10.1.2.3:80", "http://10.1.2.3:80"),
        ] {
            let place = Place::Tcp(bound.parse().expect("an address"));
            assert_eq!(reachable(&place, false), printed);
            assert_eq!(reachable(&place, true), printed.replace("http:", "https:"));
        }
    }
}
