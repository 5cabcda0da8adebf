//! `halyard bench startup`: starts `halyard serve` as a process of its own with the engine flags given, and takes the
//! time until it says that it is ready. Cold runs begin with an empty folder for compiled kernels and tuning choices;
//! the files of the model stay where they are.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use super::EngineBenchArgs;
use super::report::{Spread, write_json};
use crate::cli::args::CACHE_VARIABLE;
use crate::error::ServerError;

/// Flags of `halyard bench startup`.
#[derive(Args, Debug)]
pub struct StartupArgs {
    /// Starts with empty caches
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Bench")]
    num_iters_cold: u32,
    /// Starts with the caches that the last cold start left (or, without one, the user's)
    #[arg(long, value_name = "COUNT", default_value_t = 3, help_heading = "Bench")]
    num_iters_warm: u32,
    #[command(flatten)]
    common: EngineBenchArgs,
}

/// A server that is ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Either fails only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn run(args: &StartupArgs) -> Result<(), ServerError> {
    let flags = serve_flags(std::env::args_os().skip(3));
    let caches = std::env::temp_dir().join(format!("halyard-bench-startup-{}", std::process::id()));
    let outcome = measure(args, &flags, &caches);
    let removed = match caches.exists() {
        true => std::fs::remove_dir_all(&caches).map_err(ServerError::io("removing the bench's caches")),
        false => Ok(()),
    };
    let (cold, warm) = outcome?;
    removed?;
    let mut figures = json!({});
    for (name, seconds) in [("cold", cold), ("warm", warm)] {
        if seconds.is_empty() {
            continue;
        }
        let spread = Spread::of(seconds.clone());
        say!(
            "{name}: avg {:.3} s, best {:.3} s, {} starts",
            spread.mean(),
            spread.best(),
            seconds.len()
        );
        figures[format!("avg_{name}_startup_time")] = json!(spread.mean());
        figures[format!("{name}_startup_times")] = json!(seconds);
    }
    write_json(args.common.output_json.as_deref(), &figures)
}

fn measure(args: &StartupArgs, flags: &[OsString], caches: &Path) -> Result<(Vec<f64>, Vec<f64>), ServerError> {
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..args.num_iters_cold {
        if caches.exists() {
            std::fs::remove_dir_all(caches).map_err(ServerError::io("emptying the bench's caches"))?;
        }
        std::fs::create_dir_all(caches).map_err(ServerError::io("making the bench's caches"))?;
        cold.push(start_once(flags, Some(caches))?);
    }
    for _ in 0..args.num_iters_warm {
        warm.push(start_once(flags, (args.num_iters_cold > 0).then_some(caches))?);
    }
    Ok((cold, warm))
}

/// Seconds from starting the process to its line that says `ready`.
fn start_once(flags: &[OsString], caches: Option<&Path>) -> Result<f64, ServerError> {
    let program = std::env::current_exe().map_err(ServerError::io("finding this program"))?;
    let mut command = Command::new(program);
    command.arg("serve").args(flags);
    command.args(["--port", "0", "--log-format", "json", "--log-level", "info"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if let Some(caches) = caches {
        command.env(CACHE_VARIABLE, caches);
    }
    let started = Instant::now();
    let mut server = Server(command.spawn().map_err(ServerError::io("starting halyard serve"))?);
    let Some(errors) = server.0.stderr.take() else {
        return Err(ServerError::Refused("the server's log cannot be read".to_owned()));
    };
    let mut last = String::new();
    for line in BufReader::new(errors).lines() {
        let line = line.map_err(ServerError::io("reading the server's log"))?;
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        if event["fields"]["message"] == "ready" || event["message"] == "ready" {
            return Ok(started.elapsed().as_secs_f64());
        }
        last = line;
    }
    Err(ServerError::Refused(format!(
        "halyard serve ended before it was ready: {last}"
    )))
}

/// The flags of this command line that `halyard serve` takes too: all but this bench's own and the log's.
fn serve_flags(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const OWN: [&str; 5] = [
        "--num-iters-cold",
        "--num-iters-warm",
        "--output-json",
        "--log-level",
        "--log-format",
    ];
    let mut flags = Vec::new();
    let mut skip_value = false;
    for arg in args {
        if std::mem::take(&mut skip_value) {
            continue;
        }
        let text = arg.to_string_lossy();
        let name = text.split_once('=').map_or(&*text, |(name, _)| name);
        if OWN.contains(&name) {
            skip_value = !text.contains('=');
        } else {
            flags.push(arg);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_gets_every_flag_but_the_bench_s_own() {
        let args = [
            "--num-iters-cold",
            "2",
            "--platform=cpu",
            "--output-json=x.json",
            "--model",
            "m",
            "--log-level",
            "debug",
        ];
        let flags = serve_flags(args.into_iter().map(OsString::from));
        assert_eq!(flags, ["--platform=cpu", "--model", "m"]);
    }
}
