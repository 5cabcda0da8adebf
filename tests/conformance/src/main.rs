//! `halyard-conformance`: checks a platform's library from outside, as the server would load it. Each part runs in a
//! process of its own with a deadline, so that a crash or a hang is a line of the report.

mod command_line;
mod loading;
mod parts;
mod support;

use std::process::ExitCode;

use serde_json::{Value, json};

use command_line::{COLLECTIVES, Cli, Command};
use halyard_conformance::{Report, row_fits};

fn main() -> ExitCode {
    let cli = Cli::read();
    let outcome = match &cli.command {
        Command::Check(args) => check(args),
        Command::Support(args) => support::run(args).map(|()| true),
        Command::Part(args) => parts::run_one(args).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("halyard-conformance: {why}");
            ExitCode::from(2)
        }
    }
}

/// Runs every part; whether all passed.
fn check(args: &command_line::CheckArgs) -> Result<bool, String> {
    // What cannot be loaded at all is told once, and not by every part.
    let facts = loading::facts(&args.library)?;
    let mut report = Report::default();
    for part in parts::names(args) {
        if !args.json {
            eprintln!("{part} …");
        }
        let mut rows = parts::run_in_child(args, part)?.rows;
        rows.sort_by(|a, b| (&a.op, &a.variant).cmp(&(&b.op, &b.variant)));
        report.rows.extend(rows);
    }
    if args.strict {
        // With one device there is nothing to join.
        let may_lack = [&args.may_lack[..], &[COLLECTIVES.to_owned()]].concat();
        report.check_lacking(&may_lack);
    }
    if !args.filter.is_empty() {
        report
            .rows
            .retain(|row| row_fits(&format!("{} {}", row.op, row.variant), &args.filter));
        if report.rows.is_empty() {
            return Err(format!(
                "--filter {}: no row is called so",
                args.filter.join(" --filter ")
            ));
        }
    }
    let passed = report.passed();
    match args.json {
        true => println!("{}", as_json(&facts, &report)),
        false => {
            println!("{}\n{report}", facts.text());
            let mut lacking = report.lacking();
            lacking.retain(|op| op != COLLECTIVES);
            if !lacking.is_empty() {
                println!("missing in every type: {}", lacking.join(", "));
            }
        }
    }
    Ok(passed)
}

fn as_json(facts: &loading::Facts, report: &Report) -> Value {
    json!({
        "library": facts.library,
        "sha256": facts.sha256,
        "platform": facts.platform,
        "version": facts.version,
        "device": facts.device,
        "conformance": env!("CARGO_PKG_VERSION"),
        "passed": report.passed(),
        "rows": report.rows,
    })
}
