//! What `tests/gpu/side-by-side` brought from a machine, as rows of a file of figures: one for each load. It measures
//! nothing: that machine has no Rust. Both sides of a row are of one run, so of one machine and one day.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::BenchError;
use crate::figures::{self, Better, Column, Pair, Row};
use crate::options::Options;

/// A figure's name and unit in the row, which direction is good, and its field in the client's result.
const FIGURES: [(&str, &str, Better, &str); 7] = [
    ("output", "tok/s", Better::Higher, "output_throughput"),
    ("first token p50", "ms", Better::Lower, "median_ttft_ms"),
    ("first token p99", "ms", Better::Lower, "p99_ttft_ms"),
    ("time per output token p50", "ms", Better::Lower, "median_tpot_ms"),
    ("time per output token p99", "ms", Better::Lower, "p99_tpot_ms"),
    ("gap between tokens p50", "ms", Better::Lower, "median_itl_ms"),
    ("gap between tokens p99", "ms", Better::Lower, "p99_itl_ms"),
];

/// The run's own description.
#[derive(Debug, Deserialize)]
struct Run {
    name: String,
    peer: String,
    commit: String,
    date: String,
    machine: String,
    boot: String,
    conditions: String,
    loads: Vec<u32>,
    rounds: u32,
}

/// Reads the folder `--figures` and writes its rows to `--json`.
///
/// # Errors
/// A missing option, a result that is missing or not whole.
pub fn run(options: &Options) -> Result<(), BenchError> {
    let (Some(folder), Some(path)) = (&options.figures, &options.json) else {
        let found = "side-by-side needs --figures FOLDER and --json FILE".to_string();
        return Err(BenchError::Usage { found });
    };
    let run: Run = figures::read_json(&folder.join("run.json"))?;
    let rows = run
        .loads
        .iter()
        .map(|&load| row(folder, &run, load))
        .collect::<Result<Vec<_>, _>>()?;
    let columns = FIGURES.map(|(name, unit, better, _)| Column::new(name, unit, better));
    println!("{} (boot {}): {}", run.machine, run.boot, run.conditions);
    figures::record(path, &columns, rows)
}

/// The row of one load, with a value of each round.
fn row(folder: &Path, run: &Run, load: u32) -> Result<Row, BenchError> {
    let side = |side: &str| -> Result<Vec<Value>, BenchError> {
        let results = (1..=run.rounds).map(|round| result(folder, side, round, load));
        results.collect()
    };
    let (ours, theirs) = (side("halyard")?, side("peer")?);
    let mut row = Row {
        date: run.date.clone(),
        commit: Some(run.commit.clone()),
        ..Row::of_today(format!("{}, {load} at once", run.name), Some(run.peer.clone()))
    };
    row.machine = Some(run.machine.clone());
    row.conditions = Some(run.conditions.clone());
    for (name, _, _, field) in FIGURES {
        let values = |side: &[Value]| {
            side.iter()
                .filter_map(|result| result[field].as_f64())
                .collect::<Vec<f64>>()
        };
        let (ours, theirs) = (values(&ours), values(&theirs));
        if !ours.is_empty() && !theirs.is_empty() {
            row.figures.insert(name.into(), Pair::new(&ours, &theirs));
        }
    }
    Ok(row)
}

/// A client's result in which every request succeeded.
fn result(folder: &Path, side: &str, round: u32, load: u32) -> Result<Value, BenchError> {
    let path = folder.join(format!("{side}-{round}-{load}.json"));
    let result: Value = figures::read_json(&path)?;
    match (result["completed"].as_u64(), result["failed"].as_u64()) {
        (Some(1..), Some(0)) => Ok(result),
        (completed, failed) => {
            let found = format!(
                "{}: {completed:?} requests completed and {failed:?} failed; a row needs a run without failures",
                path.display()
            );
            Err(BenchError::Usage { found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Table;

    #[test]
    fn a_run_is_a_row_for_each_load() {
        let folder = std::env::temp_dir().join(format!("halyard-side-by-side-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("written");
        write(
            "run.json",
            r#"{ "name": "8B bf16", "peer": "vLLM 0.24.0", "commit": "abc1234", "date": "2026-11-24",
                 "machine": "NVIDIA H200, 580; 16 threads", "boot": "1-2", "conditions": "512 in, 128 out",
                 "loads": [1, 16], "rounds": 2 }"#,
        );
        let result = |tokens: f64, failed: u32| {
            format!(r#"{{ "completed": 8, "failed": {failed}, "output_throughput": {tokens}, "p99_itl_ms": 4.0 }}"#)
        };
        for (round, load) in [(1, 1), (1, 16), (2, 1), (2, 16)] {
            write(
                &format!("halyard-{round}-{load}.json"),
                &result(100.0 * f64::from(round), 0),
            );
            write(&format!("peer-{round}-{load}.json"), &result(50.0, 0));
        }
        let options = Options {
            figures: Some(folder.clone()),
            json: Some(folder.join("out.json")),
            ..Options::default()
        };
        run(&options).expect("written");
        let table = Table::read(&folder.join("out.json")).expect("a table");
        let row = &table.rows[1];
        assert_eq!(
            (row.name.as_str(), row.peer.as_deref()),
            ("8B bf16, 16 at once", Some("vLLM 0.24.0"))
        );
        assert_eq!(
            (row.date.as_str(), row.commit.as_deref()),
            ("2026-11-24", Some("abc1234"))
        );
        assert_eq!(row.machine.as_deref(), Some("NVIDIA H200, 580; 16 threads"));
        assert_eq!(row.figures["output"], Pair::new(&[100.0, 200.0], &[50.0, 50.0]));
        assert!(
            !row.figures.contains_key("first token p50"),
            "what was not measured is left out"
        );
        write("peer-2-16.json", &result(50.0, 3));
        let error = run(&options).expect_err("three failed").to_string();
        assert!(
            error.contains("peer-2-16.json") && error.contains("Some(3) failed"),
            "{error}"
        );
        std::fs::remove_file(folder.join("peer-2-16.json")).expect("removable");
        let error = run(&options).expect_err("a round is missing").to_string();
        assert!(error.contains("peer-2-16.json"), "{error}");
        std::fs::remove_dir_all(&folder).expect("removable");
    }
}
