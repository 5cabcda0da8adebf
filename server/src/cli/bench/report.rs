//! Figures: percentiles, lines of text, and a JSON file.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::ServerError;

/// The percentile of sorted values, interpolated between neighbours; 0 of none.
pub(super) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = percent / 100.0 * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// Mean, median, and the percentiles of some values.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Spread { sorted: values }
    }

    pub(super) fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len().max(1) as f64
    }

    /// Standard deviation, of all values as they are.
    pub(super) fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.sorted.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / self.sorted.len().max(1) as f64).sqrt()
    }

    pub(super) fn at(&self, percent: f64) -> f64 {
        percentile(&self.sorted, percent)
    }

    /// `{"10": …, "25": …, …}`.
    pub(super) fn percentiles(&self, percents: &[f64]) -> Value {
        let entries = percents.iter().map(|&p| (format!("{p}"), json!(self.at(p))));
        Value::Object(entries.collect::<Map<String, Value>>())
    }

    pub(super) fn best(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(0.0)
    }
}

/// Writes the figures where they were asked for; the file appears whole or not at all.
///
/// # Errors
/// [`ServerError::Io`].
pub(super) fn write_json(path: Option<&Path>, value: &Value) -> Result<(), ServerError> {
    let Some(path) = path else { return Ok(()) };
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let text = format!("{value:#}\n");
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, path))
        .map_err(ServerError::io("writing the figures"))
}

/// Writes the figures as one line behind those that the file has.
///
/// # Errors
/// [`ServerError::Io`].
pub(super) fn append_json(path: &Path, value: &Value) -> Result<(), ServerError> {
    let open = OpenOptions::new().create(true).append(true).open(path);
    open.and_then(|mut file| file.write_all(format!("{value}\n").as_bytes()))
        .map_err(ServerError::io("writing the figures"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(spread.at(0.0), 1.0);
        assert_eq!(spread.at(50.0), 2.5);
        assert_eq!(spread.at(100.0), 4.0);
        assert_eq!(spread.mean(), 2.5);
        assert_eq!(spread.best(), 1.0);
        assert_eq!(spread.deviation(), 1.25f64.sqrt());
        assert_eq!(Spread::of(Vec::new()).at(99.0), 0.0);
    }

    #[test]
    fn figures_replace_a_file_whole() {
        let folder = std::env::temp_dir().join(format!("halyard-bench-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("out.json");
        std::fs::write(&path, "old").expect("writable");
        write_json(Some(&path), &json!({"a": 1})).expect("written");
        let read: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
        assert_eq!(read, json!({"a": 1}));
        assert!(!folder.join("out.json.part").exists());
        std::fs::remove_dir_all(&folder).expect("removable");
    }
}
