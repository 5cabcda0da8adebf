//! `halyard bench sweep`: starts a server for each combination of its options, and runs a bench against it for each
//! combination of the bench's. Every run is a file; a sweep that was broken off goes on where it stood. Options and
//! files are those of `vllm bench sweep serve`; the commands may be any server's and any bench's that take vLLM's.

mod combinations;
mod report;
mod server;
mod words;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::report::write_json;
use crate::clock::unix_seconds;
use crate::error::ServerError;
use combinations::{Combination, flags, linked, read};
use server::{Place, Server};
use words::{shown, words, wrong};

/// What a sweep does.
#[derive(Debug, Subcommand)]
pub enum SweepCommand {
    /// Run every combination, and write the report
    Serve(Box<SweepServeArgs>),
    /// Write the report of runs that are there: one HTML file with tables and plots, and the rows as JSON
    Report(ReportArgs),
}

/// Flags of `halyard bench sweep serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sweep")]
pub struct SweepServeArgs {
    /// The command that starts the server, such as "halyard serve --model M". Without it, a server runs already
    #[arg(long, value_name = "COMMAND")]
    serve_cmd: Option<String>,
    /// The command of the bench, such as "halyard bench serve --dataset-name random"; its --base-url, or --host and
    /// --port, say where the server is
    #[arg(long, value_name = "COMMAND", default_value = "halyard bench serve")]
    bench_cmd: String,
    /// Combinations of the server's options: a JSON list of objects, or an object of them by name; a file, or the text
    /// itself
    #[arg(long, value_name = "JSON")]
    serve_params: Option<String>,
    /// The same of the bench's options. Each is run with each combination of the server's
    #[arg(long, value_name = "JSON")]
    bench_params: Option<String>,
    /// Options that must be equal in both, such as max_num_seqs=max_concurrency; a comma separates several
    #[arg(long, value_name = "SERVE=BENCH", value_delimiter = ',')]
    link_vars: Vec<String>,
    /// Where results go; each sweep has a folder of its own there
    #[arg(short, long, value_name = "FOLDER", default_value = "results")]
    output_dir: PathBuf,
    /// The sweep's name, and that of its folder. Without it the time
    #[arg(short, long, value_name = "NAME")]
    experiment_name: Option<String>,
    /// Runs of each combination
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    num_runs: u32,
    /// After each run, instead of emptying the server's prefix cache (POST /reset_prefix_cache, where it has that)
    #[arg(long, value_name = "COMMAND")]
    after_bench_cmd: Option<String>,
    /// Seconds that a server may take to be ready
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    server_ready_timeout: u64,
    /// Say what would be run, and end
    #[arg(long)]
    dry_run: bool,
    /// Go on with the sweep of --experiment-name: runs whose results are there are not made again
    #[arg(long)]
    resume: bool,
    /// Show what the commands write; otherwise it goes into files beside the results
    #[arg(long)]
    show_stdout: bool,
}

/// Flags of `halyard bench sweep report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The sweep's folder
    folder: PathBuf,
}

pub(super) fn run(command: &SweepCommand) -> Result<(), ServerError> {
    match command {
        SweepCommand::Serve(args) => serve(args),
        SweepCommand::Report(args) => report::write(&args.folder),
    }
}

/// The commands of a sweep as words, and where its server is.
struct Commands {
    serve: Option<Vec<String>>,
    bench: Vec<String>,
    after: Option<Vec<String>>,
    place: Place,
}

impl Commands {
    fn of(args: &SweepServeArgs) -> Result<Commands, ServerError> {
        let given =
            |option, command: &Option<String>| command.as_ref().map(|command| words(option, command)).transpose();
        let bench = words("--bench-cmd", &args.bench_cmd)?;
        Ok(Commands {
            serve: given("--serve-cmd", &args.serve_cmd)?,
            after: given("--after-bench-cmd", &args.after_bench_cmd)?,
            place: Place::of(&bench)?,
            bench,
        })
    }
}

/// A run to make.
struct Run<'a> {
    bench: &'a Combination,
    index: u32,
    /// Its result.
    file: PathBuf,
}

fn serve(args: &SweepServeArgs) -> Result<(), ServerError> {
    let serves = read("--serve-params", args.serve_params.as_deref())?;
    let benches = read("--bench-params", args.bench_params.as_deref())?;
    let links = linked(&args.link_vars)?;
    if args.serve_cmd.is_none() && args.serve_params.is_some() {
        return Err(wrong(
            "--serve-params",
            "they are options of --serve-cmd, which is missing",
        ));
    }
    if args.resume && args.experiment_name.is_none() {
        return Err(wrong("--resume", "which sweep? name it by --experiment-name"));
    }
    let name = args
        .experiment_name
        .clone()
        .unwrap_or_else(|| unix_seconds().to_string());
    let folder = args.output_dir.join(&name);
    if folder.exists() && !args.resume && !args.dry_run {
        let message = format!(
            "{} is there already; choose another name, or --resume",
            folder.display()
        );
        return Err(wrong("--experiment-name", message));
    }
    let commands = Commands::of(args)?;
    let mut failed = Vec::new();
    for serve in &serves {
        let matching = benches
            .iter()
            .filter(|bench| links.iter().all(|link| link.holds(serve, bench)));
        let runs = matching.flat_map(|bench| {
            let place = folder.join(format!("SERVE-{}-BENCH-{}", serve.name, bench.name));
            (0..args.num_runs).map(move |index| Run {
                bench,
                index,
                file: place.join(format!("run={index}.json")),
            })
        });
        let runs: Vec<Run<'_>> = runs.filter(|run| !run.file.exists()).collect();
        if !runs.is_empty() {
            failed.extend(serve_one(args, &commands, (serve, &runs), &folder)?);
        }
    }
    if args.dry_run {
        return Ok(());
    }
    let written = report::write(&folder);
    match failed.first() {
        Some(first) => Err(ServerError::Refused(format!(
            "{} runs failed; the first: {first}. --resume --experiment-name {name} makes them again",
            failed.len()
        ))),
        None => written,
    }
}

/// The runs against one server. Gives what failed.
fn serve_one(
    args: &SweepServeArgs,
    commands: &Commands,
    (serve, runs): (&Combination, &[Run<'_>]),
    folder: &Path,
) -> Result<Vec<String>, ServerError> {
    let with = |command: &[String], options| [command, &flags(options)].concat();
    let command = commands.serve.as_ref().map(|command| with(command, &serve.options));
    if let Some(command) = &command {
        say!("server: {}", shown(command));
    }
    if args.dry_run {
        for run in runs {
            say!(
                "  bench {}: {}",
                run.index,
                shown(&with(&commands.bench, &run.bench.options))
            );
        }
        return Ok(Vec::new());
    }
    let log = folder.join(format!("SERVE-{}.log", serve.name));
    std::fs::create_dir_all(folder).map_err(ServerError::io("making the sweep's folder"))?;
    let patience = Duration::from_secs(args.server_ready_timeout);
    let server = match &command {
        Some(command) => Some(Server::start(
            command,
            &commands.place,
            (!args.show_stdout).then_some(&*log),
            patience,
        )?),
        None => None,
    };
    let mut failed = Vec::new();
    for run in runs {
        let what = format!("{} {} run {}", serve.name, run.bench.name, run.index);
        say!("bench: {what}");
        if let Err(error) = bench_one(args, with(&commands.bench, &run.bench.options), (serve, run)) {
            say!("  failed: {error}");
            failed.push(format!("{what}: {error}"));
        }
        match &commands.after {
            Some(command) => after(command)?,
            None => commands.place.reset(),
        }
    }
    drop(server);
    Ok(failed)
}

/// One run by its command. Its result appears whole or not at all.
fn bench_one(
    args: &SweepServeArgs,
    mut line: Vec<String>,
    (serve, run): (&Combination, &Run<'_>),
) -> Result<(), ServerError> {
    let place = run.file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(place).map_err(ServerError::io("making the run's folder"))?;
    let unfinished = format!("run={}.unfinished", run.index);
    let folder = place.display().to_string();
    line.extend(
        [
            "--save-result",
            "--result-dir",
            &folder,
            "--result-filename",
            &unfinished,
        ]
        .map(str::to_owned),
    );
    let log = place.join(format!("run={}.log", run.index));
    let mut command = server::command(&line)?;
    if !args.show_stdout {
        server::log_to(&mut command, &log)?;
    }
    let status = command.status().map_err(ServerError::io("starting --bench-cmd"))?;
    let unfinished = place.join(unfinished);
    let text = std::fs::read(&unfinished).map_err(|_| {
        ServerError::Refused(format!(
            "it wrote no result ({status}); its words are in {}",
            log.display()
        ))
    })?;
    std::fs::remove_file(&unfinished).map_err(ServerError::io("removing the unfinished result"))?;
    if !status.success() {
        return Err(ServerError::Refused(format!(
            "{status}; its words are in {}",
            log.display()
        )));
    }
    let mut result: Map<String, Value> = serde_json::from_slice(&text)
        .map_err(|error| ServerError::Refused(format!("its result is no JSON object: {error}")))?;
    result.insert("run_number".to_owned(), json!(run.index));
    result.insert("serve_params".to_owned(), json!(serve.options));
    result.insert("bench_params".to_owned(), json!(run.bench.options));
    write_json(Some(&run.file), &Value::Object(result))
}

fn after(command: &[String]) -> Result<(), ServerError> {
    let status = server::command(command)?.stdin(Stdio::null()).status();
    let status = status.map_err(ServerError::io("starting --after-bench-cmd"))?;
    match status.success() {
        true => Ok(()),
        false => Err(wrong("--after-bench-cmd", format!("it ended with {status}"))),
    }
}
