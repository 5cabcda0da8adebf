//! How cost grows: the host's time for a step against what there is of everything, each as a curve with the law that it
//! should follow. `growth` measures, `page` draws the pictures and writes the table.
//!
//! Points are measured in turn, round by round, and the least of the rounds stands: what disturbs a machine only adds.

pub mod curve;
mod law;
mod picture;
mod plans;
mod steps;
mod table;

use std::path::Path;

use crate::error::BenchError;
use crate::figures;
use crate::options::Options;
use curve::{Before, Curve, Growth};

pub use picture::svg;
pub use table::section;

/// A curve to be measured: everything but its points, and how one point is.
pub struct Planned {
    curve: Curve,
    at: Vec<u64>,
    measure: Box<dyn Fn(u64) -> Result<f64, BenchError>>,
}

impl Planned {
    fn new(curve: Curve, at: &[u64], measure: impl Fn(u64) -> Result<f64, BenchError> + 'static) -> Planned {
        Planned {
            curve,
            at: at.to_vec(),
            measure: Box::new(measure),
        }
    }
}

/// Measures every curve whose id begins with one of the words of `--only`, prints them, and writes `--json`. Points
/// that the file already has of this commit stay where they are lower. `--before FILE` lays the curves of another
/// commit's file under these.
///
/// # Errors
/// What the engine or a file refuses.
pub fn run(options: &Options) -> Result<(), BenchError> {
    let mut growth = Growth::of_today();
    let known = match &options.json {
        Some(path) if path.exists() => Some(Growth::read(path)?),
        _ => None,
    };
    let wanted = |planned: &Planned| {
        options.only.is_empty()
            || options
                .only
                .iter()
                .any(|word| planned.curve.id.starts_with(word.as_str()))
    };
    let planned: Vec<Planned> = plans::curves()
        .into_iter()
        .chain(steps::curves())
        .filter(wanted)
        .collect();
    for Planned { mut curve, at, measure } in planned {
        for _ in 0..options.rounds {
            for &x in &at {
                let y = measure(x)?;
                curve.put(x, y);
            }
        }
        println!("{}", table::line(&curve));
        growth.curves.push(curve);
    }
    if let Some(known) = known {
        growth.keep(known);
    }
    if let Some(path) = &options.before {
        lay_under(&mut growth, path)?;
    }
    match &options.json {
        Some(path) => growth.write(path),
        None => Ok(()),
    }
}

fn lay_under(growth: &mut Growth, path: &Path) -> Result<(), BenchError> {
    let before = Growth::read(path)?;
    for curve in &mut growth.curves {
        let same = before.curves.iter().find(|old| old.id == curve.id);
        curve.before = same.map(|old| Before {
            commit: before.commit.clone(),
            points: old.points.clone(),
        });
    }
    Ok(())
}

impl Growth {
    fn of_today() -> Growth {
        Growth {
            machine: figures::machine(),
            commit: figures::commit(),
            date: figures::today(),
            conditions: "The device computes nothing; one round is one point each in turn, the least of the rounds \
                         stands."
                .into(),
            curves: Vec::new(),
        }
    }
}
