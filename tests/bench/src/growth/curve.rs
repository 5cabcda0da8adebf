//! Curves as a file: machine, commit, date, conditions, and points. Owns the file's form; it measures nothing.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::figures::read_json;

/// All curves of one machine and commit.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// The processor, in a sentence.
    pub machine: String,
    /// Halyard's commit; `None`: not known.
    pub commit: Option<String>,
    /// When, as `YYYY-MM-DD`.
    pub date: String,
    /// Conditions of every curve.
    pub conditions: String,
    /// The curves in the page's order.
    pub curves: Vec<Curve>,
}

/// A cost against what it may grow with.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Its name in files.
    pub id: String,
    /// What costs, and where.
    pub title: String,
    /// What is counted.
    pub x: String,
    /// The cost's unit.
    pub unit: String,
    /// The law that it should follow.
    pub law: Law,
    /// What was measured: count and cost, in the order of counts.
    pub points: Vec<(u64, f64)>,
    /// The same of an earlier commit, measured in turn with these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Before>,
}

/// The points of an earlier commit.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Which.
    pub commit: Option<String>,
    /// As [`Curve::points`].
    pub points: Vec<(u64, f64)>,
}

/// How a cost should grow with `n`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Law {
    /// Not at all.
    Constant,
    /// a + b n.
    Linear,
    /// a + b n log n.
    NLogN,
}

impl Curve {
    /// A curve without points.
    pub fn new(id: &str, title: &str, x: &str, unit: &str, law: Law) -> Curve {
        Curve {
            id: id.into(),
            title: title.into(),
            x: x.into(),
            unit: unit.into(),
            law,
            points: Vec::new(),
            before: None,
        }
    }

    /// Notes a measurement; the least at each count stands.
    pub fn put(&mut self, x: u64, y: f64) {
        let y = (y * 1e3).round() / 1e3;
        match self.points.binary_search_by_key(&x, |(known, _)| *known) {
            Ok(at) => self.points[at].1 = self.points[at].1.min(y),
            Err(at) => self.points.insert(at, (x, y)),
        }
    }
}

impl Growth {
    /// Reads a file of curves.
    ///
    /// # Errors
    /// A file that cannot be read, or has another form.
    pub fn read(path: &Path) -> Result<Growth, BenchError> {
        read_json(path)
    }

    /// Writes a file with one line a curve, so that a change of one is a change of one line.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        let unwritable = |source| BenchError::Figures {
            path: path.to_path_buf(),
            source,
        };
        let head = Growth {
            curves: Vec::new(),
            ..self.clone()
        };
        let head = serde_json::to_string_pretty(&head).map_err(unwritable)?;
        let lines = self
            .curves
            .iter()
            .map(serde_json::to_string)
            .collect::<Result<Vec<_>, _>>();
        let lines = lines.map_err(unwritable)?.join(",\n    ");
        let text = head.replace("\"curves\": []", &format!("\"curves\": [\n    {lines}\n  ]")) + "\n";
        std::fs::write(path, text).map_err(BenchError::io(format!("writing {}", path.display())))
    }

    /// Takes over what `known` has and these lack, and of the same commit and machine the lower points.
    pub fn keep(&mut self, known: Growth) {
        let is_same = known.commit == self.commit && known.machine == self.machine;
        for old in known.curves {
            match self.curves.iter_mut().find(|curve| curve.id == old.id) {
                Some(curve) if is_same => old.points.iter().for_each(|(x, y)| curve.put(*x, *y)),
                Some(_) => {}
                None if is_same => self.curves.push(old),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(commit: &str, ids: &[&str], y: f64) -> Growth {
        let curve = |id: &&str| {
            let mut curve = Curve::new(id, "t", "n", "us", Law::Constant);
            curve.put(10, y);
            curve
        };
        Growth {
            machine: "m".into(),
            commit: Some(commit.into()),
            date: "2026-11-24".into(),
            conditions: "c".into(),
            curves: ids.iter().map(curve).collect(),
        }
    }

    #[test]
    fn the_least_of_the_rounds_of_one_commit_stands() {
        let mut new = growth("a", &["x"], 5.0);
        new.keep(growth("a", &["x", "y"], 4.0));
        assert_eq!(new.curves.len(), 2, "a curve that was not measured again stays");
        assert_eq!(new.curves[0].points, [(10, 4.0)]);
        let mut other = growth("b", &["x"], 5.0);
        other.keep(growth("a", &["x", "y"], 4.0));
        assert_eq!(
            (other.curves.len(), other.curves[0].points[0].1),
            (1, 5.0),
            "another commit's are not mixed in"
        );
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("halyard-growth-{}.json", std::process::id()));
        let mut written = growth("a", &["x", "y"], 5.25);
        written.curves[0].before = Some(Before {
            commit: None,
            points: vec![(10, 6.0)],
        });
        written.write(&path).expect("written");
        assert_eq!(Growth::read(&path).expect("read"), written);
        let text = std::fs::read_to_string(&path).expect("text");
        assert_eq!(
            text.lines().filter(|line| line.contains("\"points\"")).count(),
            2,
            "a line each:\n{text}"
        );
        std::fs::remove_file(&path).expect("removable");
    }
}
