//! The table of outcomes: one line a check, and the counts last.

/// An outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// Outcomes in order.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<(Outcome, String, String)>,
}

impl Table {
    /// Notes a check that held, with what it measured.
    pub fn pass(&mut self, name: &str, measured: &str) {
        self.note(Outcome::Passed, name, measured);
    }

    /// Notes a check that failed.
    pub fn fail(&mut self, name: &str, why: &str) {
        self.note(Outcome::Failed, name, why);
    }

    /// Notes a check that could not run.
    pub fn skip(&mut self, name: &str, why: &str) {
        self.note(Outcome::Skipped, name, why);
    }

    fn note(&mut self, outcome: Outcome, name: &str, text: &str) {
        let text: String = text.replace('\n', "; ").chars().take(300).collect();
        self.rows.push((outcome, name.to_owned(), text));
    }

    /// Whether something ran and nothing failed.
    pub fn passed(&self) -> bool {
        self.count(Outcome::Failed) == 0 && self.count(Outcome::Passed) > 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.0 == outcome).count()
    }

    /// Prints skipped and failed rows, the models' and engine's rows, and the counts.
    pub fn print(&self) {
        for (outcome, name, text) in &self.rows {
            let word = match outcome {
                Outcome::Passed => "ok     ",
                Outcome::Failed => "FAILED ",
                Outcome::Skipped => "skipped",
            };
            println!("{word} {name}: {text}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.count(Outcome::Passed),
            self.count(Outcome::Failed),
            self.count(Outcome::Skipped)
        );
    }
}
