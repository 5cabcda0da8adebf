//! The report: a row for each op and variant, in words and numbers a vendor can act on.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Outcomes of one op in one variant, or of one behaviour.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The op, or the suite.
    pub op: String,
    /// Types and formats, or the behaviour.
    pub variant: String,
    /// Cases that ran.
    pub cases: u32,
    /// Cases that passed.
    pub passed: u32,
    /// What was wrong, one entry a failed case.
    pub failures: Vec<String>,
    /// Why it does not run here.
    pub unsupported: Option<String>,
    /// Largest error as a part of its tolerance (1: at the limit; 0: exact).
    pub worst: f32,
}

/// An op in one variant, and whether a device says that it runs it.
#[derive(Clone, Debug, Serialize)]
pub struct Support {
    /// The op.
    pub op: String,
    /// Types and formats.
    pub variant: String,
    /// By which implementation, or why not.
    pub outcome: Result<String, String>,
}

/// Is told how a run goes on.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// The op and variant, or suite and behaviour, whose next case begins.
    pub begins: fn(&str, &str),
    /// A row behind which another one begins. It may come again with more cases.
    pub ended: fn(&Row),
}

/// All rows.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In order of running.
    pub rows: Vec<Row>,
    /// Who is told.
    watch: Option<Watch>,
    /// The row that was asked for last.
    current: Option<usize>,
}

impl Report {
    /// No rows yet; `watch` is told of those to come.
    pub(crate) fn watched(watch: Option<Watch>) -> Report {
        Report {
            watch,
            ..Report::default()
        }
    }

    /// These rows.
    pub fn of(rows: Vec<Row>) -> Report {
        Report {
            rows,
            ..Report::default()
        }
    }

    /// The row of `op` and `variant`.
    pub(crate) fn row(&mut self, op: &str, variant: &str) -> &mut Row {
        let found = self.rows.iter().position(|r| r.op == op && r.variant == variant);
        if self.current != found {
            self.row_ends();
        }
        if let Some(watch) = self.watch {
            (watch.begins)(op, variant);
        }
        let index = found.unwrap_or_else(|| {
            self.rows.push(Row {
                op: op.to_string(),
                variant: variant.to_string(),
                ..Row::default()
            });
            self.rows.len() - 1
        });
        self.current = Some(index);
        &mut self.rows[index]
    }

    /// Nothing more comes for the row that was asked for last.
    pub(crate) fn row_ends(&mut self) {
        if let (Some(watch), Some(current)) = (self.watch, self.current.take()) {
            (watch.ended)(&self.rows[current]);
        }
    }

    /// Ops that are unsupported in every variant.
    pub fn lacking(&self) -> Vec<String> {
        let mut ran: BTreeMap<&str, bool> = BTreeMap::new();
        for row in &self.rows {
            *ran.entry(&row.op).or_default() |= row.cases > 0;
        }
        let lacking = ran.into_iter().filter(|(_, ran)| !ran);
        lacking.map(|(op, _)| op.to_string()).collect()
    }

    /// Fails ops that are unsupported in every variant and not in `may_lack`.
    pub fn check_lacking(&mut self, may_lack: &[String]) {
        let mut lacking = self.lacking();
        lacking.retain(|op| !may_lack.contains(op));
        for row in self.rows.iter_mut().filter(|row| lacking.contains(&row.op)) {
            row.failures
                .push("unsupported in every variant; name it in `may_lack` if that is meant".to_string());
        }
    }

    /// Whether nothing failed and something ran.
    pub fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.failures.is_empty()) && self.rows.iter().any(|row| row.cases > 0)
    }

    /// The rows with failures.
    pub fn failed_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.failures.is_empty())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let Row {
                op,
                variant,
                cases,
                passed,
                worst,
                ..
            } = row;
            match &row.unsupported {
                Some(reason) => writeln!(f, "{op:<16} {variant:<28} unsupported: {}", reason.replace('\n', "; "))?,
                None => writeln!(
                    f,
                    "{op:<16} {variant:<28} {passed}/{cases} passed, worst error {worst:.2} of tolerance"
                )?,
            }
            for failure in row.failures.iter().take(3) {
                writeln!(f, "    FAILED {failure}")?;
            }
            if row.failures.len() > 3 {
                writeln!(f, "    and {} more", row.failures.len() - 3)?;
            }
        }
        let cases: u32 = self.rows.iter().map(|r| r.cases).sum();
        let failed = self.failed_rows().count();
        write!(f, "{} rows, {cases} cases, {failed} rows failed", self.rows.len())
    }
}
