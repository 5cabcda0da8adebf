//! Measures the budgets that the design promises, and says by what ratio each is kept. Run it in release on an idle machine.
//!
//! `encode`, `schedule` and `step` run in this process; `version`, `startup` and `idle` measure the `halyard` binary from outside. Each
//! prints a line of JSON and a line for people. `perplexity` and `compare` (Halyard beside a peer) print tables and judge nothing.
//! It judges only when asked (`--check`): timings on a busy machine say nothing.

mod client;
mod compare;
mod encode;
mod error;
mod machine;
mod options;
mod perplexity;
mod report;
mod schedule;
mod server;
mod step;

use std::process::ExitCode;

use error::BenchError;
use options::{Bench, Options};
use report::Report;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("halyard-bench: a budget is not kept");
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("halyard-bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs what was asked. False: `--check`, and a budget is exceeded.
fn run() -> Result<bool, BenchError> {
    let options = Options::parse(std::env::args().skip(1))?;
    if cfg!(debug_assertions) {
        eprintln!(
            "halyard-bench: this is a debug build; its figures mean nothing (cargo run --release -p halyard-bench)"
        );
    }
    let mut kept = true;
    for bench in &options.benches {
        for report in measure(*bench, &options)? {
            report.print();
            kept &= report.kept();
        }
    }
    Ok(kept || !options.check)
}

fn measure(bench: Bench, options: &Options) -> Result<Vec<Report>, BenchError> {
    match bench {
        Bench::Encode => encode::measure(),
        Bench::Schedule => schedule::measure(),
        Bench::Step => step::measure(),
        Bench::Version => Ok(vec![server::version(options)?]),
        Bench::Startup => Ok(vec![server::startup(options)?]),
        Bench::Idle => Ok(vec![server::idle(options)?]),
        Bench::Perplexity => perplexity::run(options).map(|()| Vec::new()),
        Bench::Compare => compare::run(options).map(|()| Vec::new()),
    }
}
