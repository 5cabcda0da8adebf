//! Measures the budgets that the design promises, and says by what ratio each is kept. Run it in release on an idle
//! machine.
//!
//! `encode`, `schedule` and `step` run in this process; `version`, `startup` and `idle` measure the `halyard` binary
//! from outside. Each prints a line of JSON and a line of text. `perplexity`, `compare` (Halyard and a peer) and
//! `growth` (cost against what it may grow with) print tables and judge nothing. `--json FILE` writes what was measured
//! into a file of `tests/bench/figures`, and `page` renders those. It judges only when asked (`--check`): timings on a
//! busy machine say nothing.

mod client;
mod compare;
mod encode;
mod error;
mod figures;
mod gpu;
mod growth;
mod machine;
mod options;
mod page;
mod perplexity;
mod report;
mod schedule;
mod server;
mod side_by_side;
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
    if cfg!(debug_assertions) && !matches!(options.benches[..], [Bench::Page | Bench::Gpu | Bench::SideBySide]) {
        eprintln!(
            "halyard-bench: this is a debug build; its figures mean nothing (cargo run --release -p halyard-bench)"
        );
    }
    let mut kept = true;
    for bench in &options.benches {
        let reports = measure(*bench, &options)?;
        for report in &reports {
            report.print();
            kept &= report.kept();
        }
        if let (Some(path), false) = (&options.json, reports.is_empty()) {
            let rows = reports.iter().map(Report::row).collect();
            figures::record(path, &[report::column()], rows)?;
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
        Bench::Growth => growth::run(options).map(|()| Vec::new()),
        Bench::SideBySide => side_by_side::run(options).map(|()| Vec::new()),
        Bench::Gpu => gpu::run(options).map(|()| Vec::new()),
        Bench::Page => page::write().map(|()| Vec::new()),
    }
}
