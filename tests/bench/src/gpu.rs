//! Figures that `tests/gpu/run` brought from a machine with a GPU (`SHAPE-decode.json` and others, written by
//! `halyard bench`), as a row of a file of figures. It measures nothing: that machine has no Rust.

use std::path::Path;

use serde_json::Value;

use crate::error::BenchError;
use crate::figures::{self, Better, Column, Pair, Row};
use crate::options::Options;

/// A figure's name and unit in the row, the file that holds it, and where in it.
const SINGLE: [(&str, &str, &str, &str); 3] = [
    (
        "1000 requests 512 in, 128 out",
        "output tok/s",
        "throughput",
        "output_tokens_per_second",
    ),
    ("start, warm", "s", "startup", "avg_warm_startup_time"),
    ("start, cold", "s", "startup", "avg_cold_startup_time"),
];
const DECODE: &str = "decode batch ";
const PREFILL: &str = "prefill 1 × 8192";

/// Reads the files of the shape that `--model` names in the folder `--figures`, and writes a row to `--json`.
///
/// # Errors
/// A missing option, no file of the shape, or a file that is none.
pub fn run(options: &Options) -> Result<(), BenchError> {
    let (Some(folder), Some(shape), Some(path)) = (&options.figures, &options.model, &options.json) else {
        let found = "gpu needs --figures FOLDER, --model SHAPE and --json FILE".to_string();
        return Err(BenchError::Usage { found });
    };
    let mut row = Row::of_today(options.row.as_ref().unwrap_or(shape), None);
    // It was another one.
    row.machine = None;
    let mut columns = Vec::new();
    let mut add = |name: String, unit: &str, value: Option<f64>| {
        let better = if unit.ends_with("tok/s") {
            Better::Higher
        } else {
            Better::Lower
        };
        if let Some(value) = value {
            columns.push(Column::new(name.as_str(), unit, better));
            row.figures.insert(name, Pair::new(&[value], &[]));
        }
    };
    let decode = read(folder, shape, "decode")?;
    for step in decode["decode_steps"].as_array().into_iter().flatten() {
        let name = format!("{DECODE}{}", step["batch_size"]);
        add(name, "ms a step", step["decode_step_ms"].as_f64());
    }
    let prefill = read(folder, shape, "prefill")?;
    let seconds = prefill["best_latency"].as_f64();
    add(PREFILL.into(), "ms", seconds.map(|seconds| seconds * 1e3));
    for (name, unit, kind, key) in SINGLE {
        add(name.into(), unit, read(folder, shape, kind)?[key].as_f64());
    }
    if row.figures.is_empty() {
        let found = format!(
            "{}: no figures of {shape}, such as {shape}-decode.json",
            folder.display()
        );
        return Err(BenchError::Usage { found });
    }
    figures::record(path, &columns, vec![row])
}

/// A file's JSON; null where that bench did not run.
fn read(folder: &Path, shape: &str, kind: &str) -> Result<Value, BenchError> {
    let path = folder.join(format!("{shape}-{kind}.json"));
    if !path.exists() {
        return Ok(Value::Null);
    }
    figures::read_json(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Table;

    #[test]
    fn files_of_a_shape_are_a_row() {
        let folder = std::env::temp_dir().join(format!("halyard-gpu-figures-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("written");
        let options = Options {
            figures: Some(folder.clone()),
            model: Some("m".into()),
            row: Some("8B bf16".into()),
            json: Some(folder.join("out.json")),
            ..Options::default()
        };
        let error = run(&options).expect_err("nothing there").to_string();
        assert!(error.contains("m-decode.json"), "{error}");
        write(
            "m-decode.json",
            r#"{ "decode_steps": [{ "batch_size": 8, "decode_step_ms": 4.1234567 }] }"#,
        );
        write("m-prefill.json", r#"{ "best_latency": 0.2013 }"#);
        write("m-startup.json", r#"{ "avg_warm_startup_time": 1.5 }"#);
        run(&options).expect("written");
        let table = Table::read(&folder.join("out.json")).expect("a table");
        let names: Vec<&str> = table.columns.iter().map(|column| column.figure.as_str()).collect();
        assert_eq!(names, ["decode batch 8", PREFILL, "start, warm"]);
        let row = &table.rows[0];
        assert_eq!((row.name.as_str(), &row.peer), ("8B bf16", &None));
        assert_eq!(row.figures["decode batch 8"], Pair::new(&[4.123], &[]));
        assert_eq!(row.figures[PREFILL], Pair::new(&[201.3], &[]));
        std::fs::remove_dir_all(&folder).expect("removable");
    }
}
