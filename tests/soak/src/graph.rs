//! The samples as a picture: memory, descriptors and threads, requests a second, sequences, over time. Plain SVG.

use std::fmt::Write as _;

use crate::samples::Sample;

const WIDTH: f64 = 900.0;
const PANEL: f64 = 130.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
/// Points of a line at most: more are one pixel.
const MAX_POINTS: usize = 800;

/// A line of a panel: name, colour, value.
type Line<'a> = (&'a str, &'a str, Box<dyn Fn(usize) -> f64 + 'a>);

/// The whole picture.
pub fn svg(title: &str, samples: &[Sample]) -> String {
    let rate = |at: usize| {
        let before = &samples[at.saturating_sub(10)];
        let seconds = samples[at].seconds - before.seconds;
        if seconds > 0.0 {
            (samples[at].requests - before.requests) as f64 / seconds
        } else {
            0.0
        }
    };
    let panels: Vec<(&str, Vec<Line<'_>>)> = vec![
        (
            "MiB",
            vec![("resident memory", "#1f77b4", Box::new(|at| samples[at].rss_mib))],
        ),
        (
            "count",
            vec![
                ("descriptors", "#d62728", Box::new(|at: usize| samples[at].descriptors)),
                ("threads", "#2ca02c", Box::new(|at| samples[at].threads)),
            ],
        ),
        ("1/s", vec![("requests, mean of 10 s", "#9467bd", Box::new(rate))]),
        (
            "count",
            vec![
                ("running", "#ff7f0e", Box::new(|at: usize| samples[at].running)),
                ("waiting", "#17becf", Box::new(|at| samples[at].waiting)),
            ],
        ),
    ];
    let height = TOP + (PANEL + 30.0) * panels.len() as f64 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>\n"
    );
    let end = samples.last().map_or(1.0, |sample| sample.seconds).max(1.0);
    for (index, (unit, lines)) in panels.iter().enumerate() {
        panel(&mut out, TOP + (PANEL + 30.0) * index as f64, unit, lines, samples, end);
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.0} minutes</text>\n</svg>",
        WIDTH - 20.0,
        height - 8.0,
        end / 60.0
    );
    out
}

fn panel(out: &mut String, top: f64, unit: &str, lines: &[Line<'_>], samples: &[Sample], end: f64) {
    let values = |line: &Line<'_>| (0..samples.len()).map(&line.2).fold(0.0, f64::max);
    let most = lines.iter().map(values).fold(1.0, f64::max) * 1.1;
    let width = WIDTH - LEFT - 20.0;
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{PANEL}\" fill=\"none\" stroke=\"#888\"/>"
    );
    for share in [0.0, 0.5, 1.0] {
        let y = top + PANEL * (1.0 - share);
        let value = most * share;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value:.0} {unit}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    let step = samples.len().div_ceil(MAX_POINTS).max(1);
    for (number, line) in lines.iter().enumerate() {
        let (name, colour, of) = line;
        let mut points = String::new();
        for at in (0..samples.len()).step_by(step) {
            let x = LEFT + width * samples[at].seconds / end;
            let y = top + PANEL * (1.0 - of(at) / most);
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        let _ = writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\"/>");
        let x = LEFT + 10.0 + 170.0 * number as f64;
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{}\" fill=\"{colour}\">{name}</text>",
            top + PANEL + 15.0
        );
    }
}
