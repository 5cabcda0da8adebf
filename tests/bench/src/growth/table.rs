//! The curves as a section of docs/performance.md.

use super::curve::{Curve, Growth, Law};
use super::law::{Fit, broken};
use crate::page::wrapped;

/// The section, with its picture and a row for each curve.
pub fn section(growth: &Growth, picture: &str) -> String {
    let commit = growth.commit.as_deref().unwrap_or("commit not noted");
    let conditions = wrapped(&format!(
        "{} {}, {commit}. {}",
        growth.machine, growth.date, growth.conditions
    ));
    let mut text = format!("## How cost grows\n![Cost against what it may grow with]({picture})\n\n{conditions}\n\n");
    text += "| cost | against n | least n: cost | greatest n: cost | before, the same | law | where it leaves the law \
             |\n|---|---|---|---|---|---|---|\n";
    for curve in &growth.curves {
        text += &line(curve);
        text.push('\n');
    }
    text
}

/// A curve's row.
pub fn line(curve: &Curve) -> String {
    let cost = |point: Option<&(u64, f64)>| point.map_or("–".into(), |(x, y)| format!("{x}: {}", number(*y)));
    let before = curve.before.as_ref().map_or("–".into(), |before| {
        let (first, last) = (before.points.first(), before.points.last());
        format!("{}, {}", cost(first), cost(last))
    });
    let law = match curve.law {
        Law::Constant => "constant: ",
        Law::Linear => "linear: ",
        Law::NLogN => "n log n: ",
    };
    format!(
        "| {}, {} | {} | {} | {} | {before} | {law}{} | {} |",
        curve.title,
        curve.unit,
        curve.x,
        cost(curve.points.first()),
        cost(curve.points.last()),
        Fit::of(curve).formula(),
        broken(curve).unwrap_or_else(|| "nowhere".into())
    )
}

fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
