//! A measured figure with its budget, as JSON and as text.

use serde_json::{Value, json};

use crate::figures::{Better, Column, Pair, Row};

/// The figure that rows of budgets have.
const MEASURED: &str = "measured";

/// A measurement.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the figure.
    pub name: String,
    /// The figure that the budget judges.
    pub measured: f64,
    /// Its unit.
    pub unit: &'static str,
    /// At most this.
    pub budget: f64,
    /// More figures, for the JSON.
    pub details: Value,
}

impl Report {
    /// Whether the budget is kept.
    pub fn kept(&self) -> bool {
        self.measured <= self.budget
    }

    /// The JSON.
    pub fn json(&self) -> Value {
        json!({
            "bench": self.name,
            "measured": self.measured,
            "unit": self.unit,
            "budget": self.budget,
            "ratio": self.ratio(),
            "kept": self.kept(),
            "details": self.details,
        })
    }

    /// Share of the budget that is used; `None` for a budget of nothing.
    fn ratio(&self) -> Option<f64> {
        (self.budget > 0.0).then(|| self.measured / self.budget)
    }

    /// The line of text.
    pub fn line(&self) -> String {
        let verdict = if self.kept() { "kept" } else { "EXCEEDED" };
        let ratio = self
            .ratio()
            .map_or(String::new(), |ratio| format!(", ratio {ratio:.2}"));
        format!(
            "{}: {:.2} {} (budget {} {}{ratio}): {verdict}",
            self.name, self.measured, self.unit, self.budget, self.unit
        )
    }

    /// The row of a file of figures: the budget stands in the peer's place.
    pub fn row(&self) -> Row {
        let mut row = Row::of_today(format!("{}, {}", self.name, self.unit), Some("budget".into()));
        row.figures
            .insert(MEASURED.into(), Pair::new(&[self.measured], &[self.budget]));
        row
    }

    /// Prints both.
    pub fn print(&self) {
        println!("{}", self.json());
        println!("{}", self.line());
    }
}

/// The column of [`Report::row`]s.
pub fn column() -> Column {
    Column::new(MEASURED, "", Better::Lower)
}

/// The middle one of some measurements; 0 of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(measured: f64, budget: f64) -> Report {
        Report {
            name: "x".into(),
            measured,
            unit: "ms",
            budget,
            details: Value::Null,
        }
    }

    #[test]
    fn a_budget_is_kept_up_to_its_edge() {
        assert_eq!(
            report(20.0, 20.0).line(),
            "x: 20.00 ms (budget 20 ms, ratio 1.00): kept"
        );
        assert_eq!(
            report(20.1, 20.0).line(),
            "x: 20.10 ms (budget 20 ms, ratio 1.01): EXCEEDED"
        );
        assert_eq!(report(30.0, 20.0).json()["ratio"], 1.5);
    }

    #[test]
    fn a_budget_of_nothing_has_no_ratio() {
        assert_eq!(report(0.0, 0.0).line(), "x: 0.00 ms (budget 0 ms): kept");
        assert!(!report(0.1, 0.0).kept());
        assert!(report(0.1, 0.0).json()["ratio"].is_null());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut []), 0.0);
    }
}
