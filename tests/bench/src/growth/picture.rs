//! The curves as one SVG: a panel each, both axes logarithmic, what was measured, the law and what was before.

use std::fmt::Write as _;

use super::curve::{Curve, Growth};
use super::law::Fit;

const COLUMNS: usize = 3;
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 34.0;
const PLOT: (f64, f64) = (240.0, 116.0);

/// The whole picture.
pub fn svg(growth: &Growth) -> String {
    let rows = growth.curves.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * rows as f64 + 24.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, curve) in growth.curves.iter().enumerate() {
        let (column, row) = (index % COLUMNS, index / COLUMNS);
        panel(&mut out, WIDTH * column as f64, HEIGHT * row as f64, curve);
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\"><tspan fill=\"#1f77b4\">measured</tspan> <tspan fill=\"#888\">law \
         (dashed)</tspan> <tspan fill=\"#d62728\">before</tspan></text>\n</svg>",
        height - 8.0
    );
    out
}

/// The scale of an axis: logarithmic, and at least a decade, so that noise does not look like growth.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, least_ratio: f64) -> Axis {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, 0.0f64), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        let spare = (least_ratio / (high / low).max(1.0)).max(1.2).sqrt();
        Axis {
            low: low / spare,
            high: high * spare,
        }
    }

    fn share(&self, value: f64) -> f64 {
        (value / self.low).ln() / (self.high / self.low).ln()
    }
}

fn panel(out: &mut String, left: f64, top: f64, curve: &Curve) {
    let (left, top) = (left + LEFT, top + TOP);
    let fit = Fit::of(curve);
    let before = curve.before.iter().flat_map(|before| &before.points);
    let all = || curve.points.iter().chain(before.clone());
    // 0 of something stands where one half would.
    let place = |x: u64| (x as f64).max(0.5);
    let xs = Axis::over(all().map(|(x, _)| place(*x)), 2.0);
    let ys = Axis::over(all().map(|(_, y)| *y), 10.0);
    let at = |x: u64, y: f64| (left + PLOT.0 * xs.share(place(x)), top + PLOT.1 * (1.0 - ys.share(y)));
    let line = |points: &mut dyn Iterator<Item = (u64, f64)>| {
        points.fold(String::new(), |mut text, (x, y)| {
            let (x, y) = at(x, y);
            let _ = write!(text, "{x:.1},{y:.1} ");
            text
        })
    };
    let text = |out: &mut String, x: f64, y: f64, anchor: &str, text: &str| {
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    };
    text(
        out,
        left - 40.0,
        top - 18.0,
        "start",
        &format!("<tspan font-weight=\"bold\">{}</tspan>", curve.title),
    );
    text(
        out,
        left - 40.0,
        top - 6.0,
        "start",
        &format!("{} = {}", curve.unit, fit.formula()),
    );
    let _ = writeln!(
        out,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#bbb\"/>",
        PLOT.0, PLOT.1
    );
    for value in [ys.low, ys.high] {
        let label = if value >= 10.0 {
            format!("{value:.0}")
        } else {
            format!("{value:.1}")
        };
        text(
            out,
            left - 4.0,
            top + PLOT.1 * (1.0 - ys.share(value)) + 4.0,
            "end",
            &label,
        );
    }
    let ends = [curve.points.first(), curve.points.last()];
    for (x, _) in ends.into_iter().flatten() {
        text(out, at(*x, ys.low).0, top + PLOT.1 + 12.0, "middle", &x.to_string());
    }
    text(
        out,
        left + PLOT.0 / 2.0,
        top + PLOT.1 + 24.0,
        "middle",
        &format!("n: {}", curve.x),
    );
    let mut polyline = |points: String, style: &str| {
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" {style}/>",
            points.trim_end()
        );
    };
    if let Some(before) = &curve.before {
        polyline(line(&mut before.points.iter().copied()), "stroke=\"#d62728\"");
    }
    let law = &mut curve.points.iter().map(|(x, _)| (*x, fit.at(*x)));
    polyline(line(law), "stroke=\"#888\" stroke-dasharray=\"4 3\"");
    polyline(
        line(&mut curve.points.iter().copied()),
        "stroke=\"#1f77b4\" stroke-width=\"1.5\"",
    );
}
