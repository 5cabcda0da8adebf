//! `halyard-soak`: runs a server under many short requests for a long time, and checks that its memory, descriptors and
//! threads do not grow.

mod ask;
mod graph;
mod process;
mod samples;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ask::Tally;
use process::Server;
use samples::Samples;

/// Clients at the same time, each with connections of its own.
const NUM_CLIENTS: u64 = 16;

struct Options {
    minutes: f64,
    platform: String,
    binary: PathBuf,
    out: PathBuf,
    commit: String,
    port: u16,
    seed: u64,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!(
                "halyard-soak: {message}; use: --binary FILE [--minutes M] [--platform P] [--out FOLDER] [--port N] \
                 [--seed S]"
            );
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    match runtime.block_on(soak(&options)) {
        Ok(faults) if faults.is_empty() => {
            println!("soak: passed");
            ExitCode::SUCCESS
        }
        Ok(faults) => {
            for fault in &faults {
                println!("soak: FAILED: {fault}");
            }
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("halyard-soak: {error}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        minutes: 60.0,
        platform: "cpu".to_owned(),
        binary: PathBuf::new(),
        out: "target/soak".into(),
        commit: "unknown".to_owned(),
        port: 8280,
        seed: 1,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let bad = |error: &dyn std::fmt::Display| format!("{name} {value}: {error}");
        match name.as_str() {
            "--minutes" => options.minutes = value.parse().map_err(|error| bad(&error))?,
            "--platform" => options.platform = value,
            "--binary" => options.binary = value.into(),
            "--out" => options.out = value.into(),
            "--commit" => options.commit = value,
            "--port" => options.port = value.parse().map_err(|error| bad(&error))?,
            "--seed" => options.seed = value.parse().map_err(|error| bad(&error))?,
            _ => return Err(format!("unknown option {name}")),
        }
    }
    if options.binary.is_file() {
        Ok(options)
    } else {
        Err(format!("--binary {}: no such file", options.binary.display()))
    }
}

/// Runs it all; what is wrong at the end.
async fn soak(options: &Options) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    std::fs::create_dir_all(&options.out)?;
    let server = Server::start(&options.binary, &options.platform, options.port, &options.out)?;
    server.ready(Duration::from_secs(120)).await?;
    println!(
        "soak: process {} at {}, {} minutes",
        server.id(),
        server.url(),
        options.minutes
    );
    let tally = Arc::new(Tally::default());
    let clients = (0..NUM_CLIENTS).map(|number| {
        let (url, tally) = (server.url().to_owned(), Arc::clone(&tally));
        tokio::spawn(ask::client(url, options.seed ^ (number << 32), tally))
    });
    let clients: Vec<_> = clients.collect();
    let mut samples = Samples::new(&options.out.join("samples.csv"))?;
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    while started.elapsed().as_secs_f64() < options.minutes * 60.0 {
        tick.tick().await;
        samples.take(&server, &tally, started.elapsed()).await?;
        if samples.len() % 60 == 0 {
            println!("soak: {}", samples.line());
        }
    }
    tally.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await?;
    }
    let mut faults = server.idle(Duration::from_secs(60)).await?;
    faults.extend(tally.faults());
    faults.extend(samples.growth());
    let (status, took) = server.stop()?;
    if status != Some(0) {
        faults.push(format!("the server ended with {status:?} after SIGTERM"));
    }
    println!("soak: {tally}");
    println!("soak: {}", samples.summary());
    println!("soak: ended {took:.1} s after SIGTERM");
    let title = format!(
        "{} requests in {:.0} s on {}, commit {}",
        tally.requests.load(Ordering::Relaxed),
        started.elapsed().as_secs_f64(),
        options.platform,
        options.commit
    );
    std::fs::write(options.out.join("soak.svg"), graph::svg(&title, samples.all()))?;
    Ok(faults)
}
