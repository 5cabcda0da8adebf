//! The figures that docs/performance.md shows, as JSON files that stand in the tree (`tests/bench/figures`): one file a
//! machine class, one line a row. A bench writes its row with `--json FILE`. Owns their form and how a row is replaced;
//! `page` renders them. It never measures.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Number;

use crate::error::BenchError;

/// The figures of one class of machines under the same conditions: a table of the page.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// The machine, in a sentence.
    pub machine: String,
    /// Conditions of every row, in a sentence or two.
    pub conditions: String,
    /// Which figures the page shows, in order. Rows may hold more.
    pub columns: Vec<Column>,
    /// The rows in the page's order.
    pub rows: Vec<Row>,
}

/// A figure that the page shows.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its key in [`Row::figures`].
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// Which direction is good.
    pub better: Better,
}

impl Column {
    /// A column.
    pub fn new(figure: impl Into<String>, unit: &str, better: Better) -> Column {
        Column {
            figure: figure.into(),
            unit: unit.into(),
            better,
        }
    }
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// A rate.
    Higher,
    /// A time or a size.
    Lower,
}

/// One run: a model, compared with one peer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Model and weights, or what else was measured. With the peer it names the row.
    pub name: String,
    /// The peer with its version; `None`: Halyard ran alone.
    pub peer: Option<String>,
    /// When, as `YYYY-MM-DD`.
    pub date: String,
    /// Halyard's commit; `None`: it was not noted.
    pub commit: Option<String>,
    /// The machine, where it is named more closely than the table's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Conditions besides the table's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<String>,
    /// Whether the page shows it; the others are kept for comparisons.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub on_page: bool,
    /// The figures.
    pub figures: BTreeMap<String, Pair>,
}

fn yes() -> bool {
    true
}

fn is_yes(on_page: &bool) -> bool {
    *on_page
}

/// The values of both sides, one a round.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Halyard's.
    pub halyard: Vec<Number>,
    /// The peer's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer: Vec<Number>,
}

impl Pair {
    /// Measured values, rounded to four digits.
    pub fn new(halyard: &[f64], peer: &[f64]) -> Pair {
        let rounded = |values: &[f64]| values.iter().filter_map(|value| rounded(*value)).collect();
        Pair {
            halyard: rounded(halyard),
            peer: rounded(peer),
        }
    }
}

/// Four digits, and no fraction where there is none; `None` for what is no number.
fn rounded(value: f64) -> Option<Number> {
    let text = format!("{value:.3e}");
    let value: f64 = text.parse().ok()?;
    if value.fract() == 0.0 && value.abs() < 1e15 {
        Some(Number::from(value as i64))
    } else {
        Number::from_f64(value)
    }
}

impl Row {
    /// A row of today and of the commit that is checked out.
    pub fn of_today(name: impl Into<String>, peer: Option<String>) -> Row {
        Row {
            name: name.into(),
            peer,
            date: today(),
            commit: commit(),
            machine: Some(machine()),
            conditions: None,
            on_page: true,
            figures: BTreeMap::new(),
        }
    }
}

impl Table {
    /// Reads a file of figures.
    ///
    /// # Errors
    /// A file that cannot be read, or is no table.
    pub fn read(path: &Path) -> Result<Table, BenchError> {
        read_json(path)
    }

    /// Puts a row into the place of the one with its name and peer, or behind all others.
    fn put(&mut self, row: Row) {
        let same = |old: &&mut Row| old.name == row.name && old.peer == row.peer;
        match self.rows.iter_mut().find(same) {
            Some(old) => {
                *old = Row {
                    on_page: old.on_page,
                    ..row
                }
            }
            None => self.rows.push(row),
        }
    }

    /// The file's text: one line a column and a row, so that a change of one row is a change of one line.
    fn text(&self) -> serde_json::Result<String> {
        fn lines<T: Serialize>(items: &[T]) -> serde_json::Result<String> {
            let lines: Vec<String> = items.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
            Ok(lines
                .iter()
                .map(|line| format!("\n  {line}"))
                .collect::<Vec<_>>()
                .join(","))
        }
        let text = serde_json::to_string::<str>;
        Ok(format!(
            "{{\n \"title\": {},\n \"machine\": {},\n \"conditions\": {},\n \"columns\": [{}\n ],\n \"rows\": [{}\n \
             ]\n}}\n",
            text(&self.title)?,
            text(&self.machine)?,
            text(&self.conditions)?,
            lines(&self.columns)?,
            lines(&self.rows)?
        ))
    }
}

/// Reads a file of JSON.
///
/// # Errors
/// A file that cannot be read, or has another form.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, BenchError> {
    let text = std::fs::read_to_string(path).map_err(BenchError::io(format!("reading {}", path.display())))?;
    serde_json::from_str(&text).map_err(|source| BenchError::Figures {
        path: path.to_path_buf(),
        source,
    })
}

/// Writes rows into a file of figures; a file that is not there is begun with `columns` and this machine's processor.
///
/// # Errors
/// A file that cannot be read or written, or is no table.
pub fn record(path: &Path, columns: &[Column], rows: Vec<Row>) -> Result<(), BenchError> {
    let mut table = if path.exists() {
        Table::read(path)?
    } else {
        Table {
            title: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            machine: machine(),
            conditions: String::new(),
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    };
    for row in rows {
        table.put(row);
    }
    let text = table.text().map_err(|source| BenchError::Figures {
        path: path.to_path_buf(),
        source,
    })?;
    std::fs::write(path, text).map_err(BenchError::io(format!("writing {}", path.display())))
}

/// The processor's name and how many threads this process may use.
pub fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("processor unknown", |(_, name)| name.trim());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {threads} threads.")
}

/// The commit that is checked out, with `-dirty` where tracked files differ from it; `None` without git.
pub fn commit() -> Option<String> {
    let words = ["describe", "--always", "--abbrev=7", "--dirty", "--exclude=*"];
    let output = std::process::Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_string())
}

pub fn today() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    date_of(seconds / 86_400)
}

/// The date of a day after 1970-01-01 in the Gregorian calendar, by counting in years that begin in March, whose months
/// have 153 days in five (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn date_of(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, peer: Option<&str>, value: f64) -> Row {
        Row {
            name: name.into(),
            peer: peer.map(str::to_string),
            date: "2026-11-22".into(),
            commit: None,
            machine: None,
            conditions: None,
            on_page: true,
            figures: BTreeMap::from([("x".to_string(), Pair::new(&[value], &[]))]),
        }
    }

    #[test]
    fn a_row_takes_the_place_of_the_one_with_its_name_and_peer() {
        let folder = std::env::temp_dir().join(format!("halyard-figures-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("new.json");
        let columns = [Column::new("x", "ms", Better::Lower)];
        record(&path, &columns, vec![row("a", None, 1.0), row("a", Some("p"), 2.0)]).expect("begun");
        record(&path, &[], vec![row("a", Some("p"), 2.34567), row("b", None, 4.0)]).expect("added to");
        let table = Table::read(&path).expect("read back");
        assert_eq!((table.title.as_str(), &table.columns[..]), ("new", &columns[..]));
        let expected = [row("a", None, 1.0), row("a", Some("p"), 2.346), row("b", None, 4.0)];
        assert_eq!(table.rows, expected);
        assert_eq!(table.text().expect("text").lines().count(), 13);
        std::fs::write(&path, "{\"title\": 1}").expect("written");
        let error = Table::read(&path).expect_err("no table").to_string();
        assert!(error.contains("new.json"), "{error}");
        std::fs::remove_dir_all(&folder).expect("removable");
    }

    #[test]
    fn values_keep_four_digits() {
        let texts = |values: &[f64]| -> Vec<String> {
            let pair = Pair::new(values, &[]);
            pair.halyard.iter().map(Number::to_string).collect()
        };
        assert_eq!(
            texts(&[109_459.3, 0.238_41, 77.0, f64::NAN]),
            ["109500", "0.2384", "77"]
        );
    }

    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (19_782, "2024-02-29"),
            (20_779, "2026-11-22"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date_of(days), date);
        }
    }
}
