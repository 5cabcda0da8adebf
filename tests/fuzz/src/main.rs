//! `halyard-fuzz`: runs mutated inputs through every reader of untrusted bytes, each target in a process of its own.
//!
//! A case may be taken or refused. A panic, an abort, an end by memory or a hang is a finding: its input is written to
//! a file
//! and named. Cases are numbered and seeded: the same number is the same input.
//!
//! `halyard-fuzz run TARGET [--cases N | --minutes M] [--seed S]`, `halyard-fuzz replay TARGET FILE…`, `halyard-fuzz
//! list`.

mod child;
mod mutate;
mod parent;
mod random;
mod target;
mod targets;

use std::process::ExitCode;
use std::time::Duration;

use parent::{Extent, Plan};
use target::{TARGETS, Target};

/// Ends a case that asks for more memory than its target may have.
#[global_allocator]
static ALLOCATOR: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|name| name == "template-child") {
        // The target `template` starts this program for its templates, as the server does.
        return halyard_server::cli::main();
    }
    match command(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("halyard-fuzz: {message}");
            ExitCode::from(2)
        }
    }
}

fn command(args: &[String]) -> Result<bool, String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            for target in TARGETS {
                println!("{}", target.name);
            }
            Ok(true)
        }
        ["run", name, options @ ..] => {
            let target = named(name)?;
            let plan = plan(target, options)?;
            parent::run(target, &plan).map_err(|error| format!("{name}: {error}"))
        }
        ["replay", name, files @ ..] => {
            let target = named(name)?;
            let files: Vec<_> = files.iter().map(|file| file.into()).collect();
            parent::replay(target, &files).map_err(|error| format!("{name}: {error}"))
        }
        ["child", name, options @ ..] => child::main(named(name)?, options),
        _ => Err("use: run TARGET [--cases N | --minutes M] [--seed S], replay TARGET FILE…, list".to_owned()),
    }
}

fn named(name: &str) -> Result<&'static Target, String> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    target::find(name).ok_or_else(|| format!("{name} is none of {}", names.join(", ")))
}

fn plan(target: &Target, options: &[&str]) -> Result<Plan, String> {
    let mut plan = Plan {
        seed: 1,
        extent: Extent::Cases(target.test_cases),
    };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or_else(|| format!("{option} needs a number"))?;
        let number: u64 = value.parse().map_err(|error| format!("{option} {value}: {error}"))?;
        match *option {
            "--cases" => plan.extent = Extent::Cases(number),
            "--minutes" => plan.extent = Extent::Time(Duration::from_secs(number * 60)),
            "--seed" => plan.seed = number,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(plan)
}
