//! The server of a sweep as a process: started, waited for, and ended.

use std::fs::File;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::{Client, Url};
use tokio::runtime::Runtime;

use super::words::{shown, wrong};
use crate::error::ServerError;

/// Time for a server to end after it was asked to.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at a process.
const PAUSE: Duration = Duration::from_millis(100);

/// For a server's health to answer.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);

/// The place at which the bench looks for the server.
pub(super) struct Place {
    url: Url,
    health: Url,
    reset: Url,
    client: Client,
    runtime: Runtime,
}

impl Place {
    /// The place that the flags of a bench name.
    ///
    /// # Errors
    /// An address that is none; the system gives no threads.
    pub(super) fn of(bench: &[String]) -> Result<Place, ServerError> {
        let url = url(bench)?;
        let route = |route: &str| {
            let joined = url.join(route);
            joined.map_err(|error| wrong("--bench-cmd", format!("{url}: {error}")))
        };
        Ok(Place {
            health: route("health")?,
            reset: route("reset_prefix_cache")?,
            client: client(bench)?,
            runtime: crate::cli::runtime()?,
            url,
        })
    }

    /// Whether a port is open there.
    fn is_taken(&self) -> bool {
        let (Some(host), Some(port)) = (self.url.host_str(), self.url.port_or_known_default()) else {
            return false;
        };
        let mut addresses = (host, port).to_socket_addrs().into_iter().flatten();
        addresses.any(|address| TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok())
    }

    /// Whether the server's health is good.
    fn is_ready(&self) -> bool {
        let asked = self.client.get(self.health.clone()).timeout(HEALTH_PATIENCE);
        // The timer of the deadline starts within the runtime.
        let answer = self.runtime.block_on(async { asked.send().await });
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Empties the server's prefix cache, where it can: otherwise the next run finds the prompts of this one.
    pub(super) fn reset(&self) {
        // A server without that route answers 404.
        let _ = self.runtime.block_on(self.client.post(self.reset.clone()).send());
    }
}

/// A server that is ended when dropped.
pub(super) struct Server(Child);

impl Server {
    /// Starts a server and waits until its health is good. What it writes goes into `log`; without one it is shown.
    ///
    /// # Errors
    /// Something answers there already; a command that does not start, ends, or is not ready in time.
    pub(super) fn start(
        line: &[String],
        place: &Place,
        log: Option<&Path>,
        patience: Duration,
    ) -> Result<Server, ServerError> {
        let url = &place.url;
        if place.is_taken() {
            let message = format!("{url} is in use already; end that server, or give both commands another port");
            return Err(wrong("--serve-cmd", message));
        }
        let mut command = command(line)?;
        if let Some(log) = log {
            log_to(&mut command, log)?;
        }
        let child = command.stdin(Stdio::null()).spawn();
        let mut server = Server(child.map_err(|error| wrong("--serve-cmd", format!("{}: {error}", shown(line))))?);
        let words = log.map_or_else(String::new, |log| format!("; its words are in {}", log.display()));
        let start = Instant::now();
        while !place.is_ready() {
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(wrong(
                    "--serve-cmd",
                    format!("it ended with {status} before it was ready{words}"),
                ));
            }
            if start.elapsed() > patience {
                let seconds = patience.as_secs();
                let message = format!("{url}health did not answer within {seconds} s{words}");
                return Err(wrong("--server-ready-timeout", message));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let asked = i32::try_from(self.0.id()).map(|id| kill(Pid::from_raw(id), Signal::SIGTERM));
        let start = Instant::now();
        while matches!(asked, Ok(Ok(()))) && start.elapsed() < END_PATIENCE {
            if let Ok(Some(_)) = self.0.try_wait() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        // Either fails only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command to start; `halyard` is this program.
///
/// # Errors
/// This program cannot be found.
pub(super) fn command(line: &[String]) -> Result<Command, ServerError> {
    let mut command = match line[0].as_str() {
        "halyard" => Command::new(std::env::current_exe().map_err(ServerError::io("finding this program"))?),
        other => Command::new(other),
    };
    command.args(&line[1..]);
    Ok(command)
}

/// What a command writes goes into a file.
///
/// # Errors
/// The file cannot be written.
pub(super) fn log_to(command: &mut Command, path: &Path) -> Result<(), ServerError> {
    let failed = ServerError::io("writing the command's log");
    let file = File::create(path).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, error) = file.map_err(failed)?;
    command.stdout(out).stderr(error);
    Ok(())
}

/// A client that takes the certificates that the bench takes.
fn client(bench: &[String]) -> Result<Client, ServerError> {
    let insecure = bench.iter().any(|word| word == "--insecure");
    let built = Client::builder().tls_danger_accept_invalid_certs(insecure).build();
    built.map_err(|error| wrong("--bench-cmd", error.to_string()))
}

/// Where the bench looks for the server, by its flags.
///
/// # Errors
/// An address that is none.
fn url(bench: &[String]) -> Result<Url, ServerError> {
    let value = |name: &str| {
        let at = bench
            .iter()
            .rposition(|word| word == name || word.starts_with(&format!("{name}=")))?;
        match bench[at].split_once('=') {
            Some((_, value)) => Some(value.to_owned()),
            None => bench.get(at + 1).cloned(),
        }
    };
    let host = value("--host").unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = value("--port").unwrap_or_else(|| "8000".to_owned());
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let mut text = value("--base-url").unwrap_or_else(|| format!("http://{host}:{port}"));
    if !text.ends_with('/') {
        text.push('/');
    }
    Url::parse(&text).map_err(|error| wrong("--bench-cmd", format!("{text}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::sweep::words::words;

    #[test]
    fn the_address_is_that_of_the_bench() {
        let of = |text: &str| {
            url(&words("--bench-cmd", text).expect("words"))
                .expect("an address")
                .to_string()
        };
        assert_eq!(of("vllm bench serve"), "http://127.0.0.1:8000/");
        assert_eq!(
            of("halyard bench serve --port 81 --host=::1 --port=82"),
            "http://[::1]:82/"
        );
        assert_eq!(of("b --base-url https://a.example/v"), "https://a.example/v/");
    }
}
