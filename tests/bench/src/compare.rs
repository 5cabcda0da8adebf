//! Halyard and a peer in turn (A B A B …) over HTTP on the same machine with the same weights, and the ratio of their
//! figures: a prompt of 512 tokens, decoding after 64 and after 2000, requests at once, memory, start to ready. The
//! peer is a command line that the user gives; without one, or where its program is missing, Halyard runs alone.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;

use crate::client::{Answer, complete};
use crate::error::BenchError;
use crate::figures::{self, Better, Column, Pair};
use crate::machine;
use crate::options::Options;
use crate::report::median;
use crate::server::Process;

/// A figure of one side.
struct Row {
    name: String,
    unit: &'static str,
    /// More is better.
    rate: bool,
    /// One value a round, for each side.
    values: [Vec<f64>; 2],
}

struct Table {
    rows: Vec<Row>,
}

impl Table {
    fn add(&mut self, side: usize, name: &str, unit: &'static str, rate: bool, value: f64) {
        let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.rows.push(Row {
                name: name.to_string(),
                unit,
                rate,
                values: Default::default(),
            });
            self.rows.len() - 1
        });
        self.rows[at].values[side].push(value);
    }

    /// Writes all rounds as a row of figures where a file is named.
    fn record(&self, peer: &str, options: &Options) -> Result<(), BenchError> {
        let Some(path) = &options.json else { return Ok(()) };
        let columns = self.rows.iter().map(|row| {
            let better = if row.rate { Better::Higher } else { Better::Lower };
            Column::new(row.name.as_str(), row.unit, better)
        });
        let name = options.row.as_ref().or(options.model.as_ref());
        let peer = options.peer_version.clone().unwrap_or_else(|| peer.to_string());
        let alone = self.rows.iter().all(|row| row.values[1].is_empty());
        let mut figures = figures::Row::of_today(name.map_or("demo model", String::as_str), (!alone).then_some(peer));
        for row in &self.rows {
            let [ours, theirs] = &row.values;
            figures.figures.insert(row.name.clone(), Pair::new(ours, theirs));
        }
        figures::record(path, &columns.collect::<Vec<_>>(), vec![figures])
    }

    /// A line a figure: the medians, and the ratio above 1 where Halyard is ahead.
    fn print(&mut self, names: [&str; 2], floors: &Floors) {
        println!(
            "| measure | {} | {} | ratio (above 1: ahead) | of the floor |\n|---|---|---|---|---|",
            names[0], names[1]
        );
        for row in &mut self.rows {
            let [ours, peer] = &mut row.values;
            let (a, b) = (median(ours), median(peer));
            let ratio = if peer.is_empty() {
                "–".to_string()
            } else {
                format!("{:.2}", if row.rate { a / b } else { b / a })
            };
            let peer_text = if peer.is_empty() {
                "–".to_string()
            } else {
                format!("{b:.1} {}", row.unit)
            };
            let floor = floors.best(&row.name).map_or("–".to_string(), |best| {
                format!("{:.0} % of {best:.0} {}", 100.0 * a / best, row.unit)
            });
            println!(
                "| {} | {a:.1} {} | {peer_text} | {ratio} | {floor} |",
                row.name, row.unit
            );
            println!(
                "{}",
                json!({ "bench": "compare", "measure": row.name, "unit": row.unit, "halyard": ours, "peer": peer,
                    "peer_name": names[1] })
            );
        }
    }
}

/// The machine's bounds: weights read once a token, multiply-adds at the measured peak.
struct Floors {
    decode_tok_s: Option<f64>,
    prefill_tok_s: Option<f64>,
}

impl Floors {
    /// Measured now, for the model file that is served.
    fn measure(options: &Options) -> Floors {
        let bytes = options.weight_bytes();
        let read = machine::read_bytes_per_s();
        println!(
            "read bandwidth of all threads: {:.1} GB/s; weights {:.1} MB",
            read / 1e9,
            bytes.unwrap_or(0) as f64 / 1e6
        );
        let prefill = options.layer_parameters.map(|parameters| {
            let peak = options.peak_gops * 1e9;
            peak / (2.0 * parameters as f64)
        });
        Floors {
            decode_tok_s: bytes.map(|bytes| read / bytes as f64),
            prefill_tok_s: prefill.filter(|rate| *rate > 0.0),
        }
    }

    fn best(&self, name: &str) -> Option<f64> {
        match name {
            "decode 128 after 64" => self.decode_tok_s,
            "prefill 512" => self.prefill_tok_s,
            _ => None,
        }
    }
}

/// Runs both sides in turn and prints the table.
///
/// # Errors
/// A server that does not start or refuses a request.
pub fn run(options: &Options) -> Result<(), BenchError> {
    let floors = Floors::measure(options);
    let peer = options.peer.as_deref().filter(|line| match peer_program(line) {
        Some(program) => {
            let there = program.is_file();
            if !there {
                println!("peer: {} is not there: Halyard runs alone", program.display());
            }
            there
        }
        None => false,
    });
    if options.peer.is_none() && options.peer_at.is_none() {
        println!("peer: none was given (--peer \"COMMAND … {{port}}\"): Halyard runs alone");
    }
    let mut table = Table { rows: Vec::new() };
    for round in 0..options.rounds {
        for side in 0..2 {
            let server = match origin(side, options, peer) {
                Some(Origin::Running(address)) => Server::running(address),
                Some(Origin::Halyard) => Server::started(Process::halyard(options)?),
                Some(Origin::Peer(line)) => Server::started(Process::peer(line, options)?),
                None => continue,
            };
            let model = if side == 0 { "" } else { options.peer_model.as_str() };
            measure(&mut table, side, &server, model, round as u32, options)?;
        }
    }
    let name = peer.and_then(peer_program);
    let name = name
        .as_ref()
        .and_then(|program| program.file_name())
        .map_or("peer".into(), |name| name.to_string_lossy());
    table.print(["Halyard", &name], &floors);
    table.record(&name, options)
}

/// Where a side's server comes from.
#[derive(Debug, PartialEq)]
enum Origin<'a> {
    /// It runs already.
    Running(SocketAddr),
    /// `halyard serve` is started.
    Halyard,
    /// The peer's command line is.
    Peer(&'a str),
}

/// The origin of Halyard (side 0) and of the peer (side 1), which is `peer` where its program is there; `None`: Halyard
/// runs alone.
fn origin<'a>(side: usize, options: &Options, peer: Option<&'a str>) -> Option<Origin<'a>> {
    match ([options.at, options.peer_at][side], side) {
        (Some(address), _) => Some(Origin::Running(address)),
        (None, 0) => Some(Origin::Halyard),
        (None, _) => peer.map(Origin::Peer),
    }
}

/// Prompts of which the median is a round's figure.
const PREFILLS: u32 = 5;
const PREFILL_SALT: u32 = 200_000;
const WARM_UP_SALT: u32 = 100_000;

/// A server that is measured.
struct Server {
    address: SocketAddr,
    name: String,
    /// `None` where it ran before: its memory and start are its own affair.
    process: Option<Process>,
}

impl Server {
    fn started(process: Process) -> Server {
        Server {
            address: process.address,
            name: process.name.clone(),
            process: Some(process),
        }
    }

    fn running(address: SocketAddr) -> Server {
        Server {
            address,
            name: address.to_string(),
            process: None,
        }
    }
}

fn peer_program(line: &str) -> Option<PathBuf> {
    line.split_whitespace()
        .find(|word| !word.contains('='))
        .map(PathBuf::from)
}

/// Token ids that no other request has, so that no prefix cache helps.
fn prompt(tokens: usize, salt: u32) -> Vec<u32> {
    (0..tokens as u32)
        .map(|i| 100 + (i.wrapping_mul(7919).wrapping_add(salt.wrapping_mul(104_729)) ^ (i * i)) % 30_000)
        .collect()
}

fn measure(
    table: &mut Table,
    side: usize,
    server: &Server,
    model: &str,
    round: u32,
    options: &Options,
) -> Result<(), BenchError> {
    let salt = 1000 * round + 500 * side as u32;
    let ask = |tokens: usize, salt: u32, new: usize| -> Result<Answer, BenchError> {
        complete(server.address, model, &prompt(tokens, salt), new).map_err(BenchError::io(format!(
            "asking {} for {new} tokens after {tokens}",
            server.name
        )))
    };
    ask(64, salt, 16)?;
    ask(512, salt + 1, 2)?;
    // Fills a cache of so many tokens once: memory that was never used costs its first user time.
    for i in 0..options.warm_up.div_ceil(options.max_len) as u32 {
        ask(options.max_len - 1, salt + WARM_UP_SALT + i, 1)?;
    }
    let firsts = (0..PREFILLS).map(|i| Ok(ask(512, salt + PREFILL_SALT + i, 1)?.first_s));
    let mut firsts = firsts.collect::<Result<Vec<_>, BenchError>>()?;
    table.add(side, "prefill 512", "tok/s", true, 512.0 / median(&mut firsts));
    for (name, depth, new, at) in [
        ("decode 128 after 64", 64, 128, 3),
        ("decode 64 after 2000", 2000, 64, 4),
    ] {
        if depth + new > options.max_len {
            continue;
        }
        let answer = ask(depth, salt + at, new)?;
        let rate = (answer.tokens.max(2) - 1) as f64 / (answer.last_s - answer.first_s).max(1e-9);
        table.add(side, name, "tok/s", true, rate);
    }
    for &count in &options.concurrency {
        let (rate, mut firsts) = at_once(server.address, model, count, salt + 100)
            .map_err(BenchError::io(format!("asking {} {count} times at once", server.name)))?;
        table.add(side, &format!("{count} at once, output"), "tok/s", true, rate);
        firsts.sort_by(f64::total_cmp);
        let p99 = firsts[(firsts.len() * 99 / 100).min(firsts.len() - 1)];
        table.add(
            side,
            &format!("{count} at once, first token p50"),
            "ms",
            false,
            1e3 * median(&mut firsts),
        );
        table.add(
            side,
            &format!("{count} at once, first token p99"),
            "ms",
            false,
            1e3 * p99,
        );
    }
    if let Some(process) = &server.process {
        let megabytes = process.peak_memory_bytes() as f64 / 1e6;
        table.add(side, "peak memory", "MB", false, megabytes);
        table.add(side, "start to ready", "s", false, process.ready.as_secs_f64());
    }
    Ok(())
}

/// (output tokens a second, seconds to each first token) of requests with 128 tokens in and 64 out.
fn at_once(address: SocketAddr, model: &str, count: usize, salt: u32) -> std::io::Result<(f64, Vec<f64>)> {
    let start = std::time::Instant::now();
    let answers = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|i| scope.spawn(move || complete(address, model, &prompt(128, salt + i as u32), 64)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(std::io::Error::other("a client thread panicked")))
        });
        joined.collect::<std::io::Result<Vec<_>>>()
    })?;
    let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
    let rate = tokens as f64 / start.elapsed().as_secs_f64();
    Ok((rate, answers.iter().map(|answer| answer.first_s).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_length_and_differ() {
        let (a, b) = (prompt(128, 1), prompt(128, 2));
        assert_eq!((a.len(), b.len()), (128, 128));
        assert!(a[0] != b[0] && a.iter().all(|id| (100..30_100).contains(id)));
    }

    #[test]
    fn servers_that_run_are_asked_on_their_own_side_and_others_are_started() {
        let [ours, theirs]: [SocketAddr; 2] = [([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into()];
        let sides = |at, peer_at, peer| {
            let options = Options {
                at,
                peer_at,
                ..Options::default()
            };
            [0, 1].map(|side| origin(side, &options, peer))
        };
        let (halyard, peer) = (Some(Origin::Halyard), || Some(Origin::Peer("sv")));
        assert_eq!(sides(None, None, None), [halyard, None]);
        assert_eq!(sides(None, None, Some("sv")), [Some(Origin::Halyard), peer()]);
        let running = |address| Some(Origin::Running(address));
        assert_eq!(sides(Some(ours), None, Some("sv")), [running(ours), peer()]);
        assert_eq!(
            sides(None, Some(theirs), Some("sv")),
            [Some(Origin::Halyard), running(theirs)]
        );
        assert_eq!(sides(Some(ours), Some(theirs), None), [running(ours), running(theirs)]);
    }

    #[test]
    fn the_program_of_a_peer_follows_its_variables() {
        assert_eq!(
            peer_program("A=1 B=2 bin/server --port {port}"),
            Some("bin/server".into())
        );
        assert_eq!(peer_program("A=1"), None);
    }
}
