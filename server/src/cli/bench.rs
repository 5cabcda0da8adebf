//! `halyard bench`: measures this machine with this engine. Commands, options and JSON keys are named as in vLLM's
//! bench, so that figures can be laid side by side; where an option takes several values, one start of the engine
//! serves them all.

mod chart;
mod latency;
mod report;
mod serve;
mod startup;
mod sweep;
mod throughput;
mod workload;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use halyard_engine::{Replicas, kv_dtype_name};
use indicatif::{ProgressBar, ProgressStyle};

use super::args::{EngineArgs, LogArgs};
use crate::error::ServerError;
use crate::logging;

/// The benches.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time of one batch from its first prompt token to its last output token, and of a decode step
    Latency(Box<latency::LatencyArgs>),
    /// Requests and tokens a second when all requests are there at once
    Throughput(Box<throughput::ThroughputArgs>),
    /// A running server under load: time to first token, time per token, throughput
    Serve(Box<serve::ServeBenchArgs>),
    /// Time from starting the process until the server is ready
    Startup(Box<startup::StartupArgs>),
    /// Many runs: a grid over options of the server and of the bench, with a report
    #[command(subcommand)]
    Sweep(sweep::SweepCommand),
}

/// Runs a bench.
///
/// # Errors
/// [`ServerError`].
pub fn run(command: BenchCommand) -> Result<(), ServerError> {
    match command {
        BenchCommand::Latency(args) => latency::run(&args),
        BenchCommand::Throughput(args) => throughput::run(&args),
        BenchCommand::Serve(args) => serve::run(&args),
        BenchCommand::Startup(args) => startup::run(&args),
        BenchCommand::Sweep(command) => sweep::run(&command),
    }
}

/// Flags of each bench that starts an engine.
#[derive(Args, Debug)]
struct EngineBenchArgs {
    /// Write the figures as JSON into this file
    #[arg(long, value_name = "FILE", help_heading = "Bench")]
    output_json: Option<PathBuf>,
    /// Serve this many LoRA adapters of random values, which requests use in turn; 0: LoRA is enabled, but no request
    /// uses an adapter. --max-loras is at least as many, unless it is given
    #[arg(long, value_name = "COUNT", help_heading = "Bench", value_parser = clap::value_parser!(u32).range(0..=1024))]
    lora: Option<u32>,
    /// Rank of these adapters
    #[arg(long, value_name = "RANK", help_heading = "Bench", default_value_t = 16)]
    lora_rank: u32,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    log: LogArgs,
}

impl EngineBenchArgs {
    /// Dummy adapters that requests use in turn.
    fn num_loras(&self) -> u32 {
        self.lora.unwrap_or(0)
    }

    fn start_engine(&self) -> Result<Replicas, ServerError> {
        // Figures are what a bench prints: of the log only what is wrong, unless more was asked for.
        let level = match self.log.log_level.as_str() {
            "info" => "warn",
            other => other,
        };
        logging::start(level, self.log.log_format)?;
        if cfg!(debug_assertions) {
            say!("This is a debug build: its figures mean nothing (cargo build --release).");
        }
        let chosen = self.engine.choose_device()?;
        let model = super::runtime()?.block_on(self.engine.resolve_model())?;
        let mut args = self.engine.clone();
        args.lora.serve_dummies(self.lora, self.lora_rank);
        let hooks = args.hooks(&chosen, Vec::new(), |_| None)?;
        let engine = args.start(&chosen, &model, &hooks, &model.name)?;
        let info = engine.info();
        say!(
            "{} on {}, {} ({:?}, KV {}, {} blocks of {} tokens)",
            model.name,
            chosen.platform,
            chosen.device_name,
            info.dtype,
            kv_dtype_name(info.kv_cache_dtype),
            info.num_blocks,
            info.block_size
        );
        for note in &info.notes {
            say!("  {note}");
        }
        Ok(engine)
    }
}

/// A bar that counts `label`; hidden where standard error is no terminal.
fn progress(total: u64, label: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {elapsed}");
    ProgressBar::new(total)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(label)
}
