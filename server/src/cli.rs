//! The command line: what each flag means, its environment variable, and the command that runs. Parsing starts no
//! runtime and loads no plugin, so that `--help` and `--version` answer at once.

/// Prints a line. A reader that has gone (`| head`) is no reason to panic, and none for a server to end.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($part)*);
    }};
}

/// Prints without ending the line, as [`say!`] does.
macro_rules! say_part {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stdout(), $($part)*);
    }};
}

mod access_args;
pub mod args;
mod bench;
mod chat;
mod chosen_hook;
mod collect_env;
pub mod command_line;
mod config_file;
mod connection_args;
mod described;
#[cfg(test)]
mod documented;
mod engine;
mod hook_child;
pub mod isolation;
mod kv_events_args;
mod listen_args;
mod load_progress;
mod logits_processor;
mod lora;
mod model_flags;
mod parser_args;
mod plugins;
mod responses_args;
mod run_batch;
mod serve;
mod served;
mod service_manager;
mod serving;
mod structured;
mod trace_args;
pub mod units;
pub mod vllm_flags;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};

use crate::error::ServerError;

/// Serves large language models over an OpenAI-compatible API; every hardware platform is a plugin.
#[derive(Debug, Parser)]
#[command(
    name = "halyard",
    version,
    about,
    disable_help_subcommand = true,
    max_term_width = 120
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP; without --model a small demo model
    Serve(Box<serve::ServeArgs>),
    /// Answer the requests of an OpenAI batch file
    RunBatch(Box<run_batch::RunBatchArgs>),
    /// Talk to a model: through a running server, or in this process when none answers
    Chat(Box<chat::ChatArgs>),
    /// Complete a text: through a running server, or in this process when none answers
    Complete(Box<chat::CompleteArgs>),
    /// Measure latency, throughput, a running server, or the start
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Show each platform with its devices, or why it has none
    Platforms(plugins::PlatformsArgs),
    /// Show what a report of a fault needs: versions, processor, memory, limits, platforms, plugins, variables
    CollectEnv(collect_env::CollectEnvArgs),
    /// Look at plugins, test them, write new ones
    #[command(subcommand)]
    Plugins(plugins::PluginsCommand),
    /// Print the completions of a shell, for its folder of them
    Completions(described::CompletionsArgs),
    /// Write a man page for each command
    Man(described::ManArgs),
    /// The process of a hook under --hook-isolation process; a server starts it
    #[command(hide = true)]
    HookChild(hook_child::HookChildArgs),
    /// The process in which chat templates run; a server starts it
    #[command(hide = true)]
    TemplateChild(crate::templates::TemplateChildArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let mut command = Cli::command();
    command.build();
    let line = match command_line::read(std::env::args_os().collect(), &command) {
        Ok(line) => line,
        Err(error) => return fail(&error, 2),
    };
    let (line, file) = match config_file::apply(line, &command, |name| std::env::var_os(name)) {
        Ok(applied) => applied,
        Err(error) => return fail(&error, 2),
    };
    let matches = Cli::command().get_matches_from(&line.args);
    if let Some(("serve", serve)) = matches.subcommand()
        && serve.get_flag(serve::PRINT_CONFIG)
        && let Some(known) = command.find_subcommand("serve")
    {
        say_part!("{}", config_file::print(known, serve, &file, &line.accepted));
        return ExitCode::SUCCESS;
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    match run(cli, &line.accepted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit_status()),
    }
}

fn fail(error: &dyn std::fmt::Display, status: u8) -> ExitCode {
    // Standard error may be closed; the exit status still says it.
    let _ = writeln!(std::io::stderr(), "halyard: {error}");
    ExitCode::from(status)
}

fn run(cli: Cli, accepted: &[(String, &'static str)]) -> Result<(), ServerError> {
    match cli.command {
        Command::Serve(args) => serve::run(*args, accepted),
        Command::RunBatch(args) => run_batch::run(*args, accepted),
        Command::Chat(args) => chat::run_chat(*args),
        Command::Complete(args) => chat::run_complete(*args),
        Command::Bench(command) => bench::run(command),
        Command::Platforms(args) => plugins::run_platforms(&args),
        Command::CollectEnv(args) => collect_env::run(&args),
        Command::Plugins(command) => plugins::run_plugins(&command),
        Command::Completions(args) => described::run_completions(&args),
        Command::Man(args) => described::run_man(&args),
        Command::HookChild(args) => hook_child::run_hook_child(&args),
        Command::TemplateChild(args) => crate::templates::run_template_child(&args),
    }
}

/// A runtime for commands that talk over the network.
fn runtime() -> Result<tokio::runtime::Runtime, ServerError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(ServerError::io("starting the runtime"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_has_a_variable_and_a_heading() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            for arg in command
                .get_arguments()
                .filter(|arg| arg.get_long().is_some_and(|long| !["help", "version"].contains(&long)))
            {
                let long = arg.get_long().unwrap_or_default();
                let variable = arg.get_env().and_then(|name| name.to_str()).unwrap_or_default();
                assert!(
                    variable.starts_with("HALYARD_"),
                    "{name} --{long} has the variable {variable:?}"
                );
                assert!(
                    arg.get_help_heading().is_some(),
                    "{name} --{long} stands under no heading"
                );
            }
        }
    }
}
