//! Plots as SVG, with ticks at round numbers: lines over a common axis with a legend, and the frame for others; and the
//! page around them. No script, no foreign host.

use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;
/// Of every page.
const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;\
    color:#1b1b1b;background:#fff}table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}\
    td,th{border-bottom:1px solid #ccc;padding:.3rem .7rem;text-align:right;white-space:nowrap}\
    td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}\
    .plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:1.5rem}\
    svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:currentColor}\
    svg .title{font-size:14px;font-weight:600}svg .grid{stroke:#8884}\
    @media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}td,th{border-color:#444}}";
/// Colours that people who see few colours can tell apart (Okabe and Ito).
pub(super) const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666",
];

/// A line of a plot.
pub(super) struct Line {
    pub name: String,
    /// In the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}

/// Round steps from 0 to the largest value: at most six.
pub(super) fn ticks(largest: f64) -> Vec<f64> {
    let largest = if largest > 0.0 && largest.is_finite() {
        largest
    } else {
        1.0
    };
    let rough = largest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
    let count = (largest / step * 0.999).ceil() as u32;
    (0..=count).map(|at| f64::from(at) * step).collect()
}

/// A number of an axis.
pub(super) fn label(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", value / 1e6),
        v if v >= 1e4 => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

/// Text within SVG and HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A page that needs nothing else; the title is text, the body HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>{body}</html>\n"
    )
}

/// The axes of a plot, both from 0 to a round number.
pub(super) struct Frame {
    x_ticks: Vec<f64>,
    y_ticks: Vec<f64>,
}

impl Frame {
    /// Axes that reach these values.
    pub(super) fn new(x_largest: f64, y_largest: f64) -> Frame {
        let (x_ticks, y_ticks) = (ticks(x_largest), ticks(y_largest));
        Frame { x_ticks, y_ticks }
    }

    /// Where a point lies in the SVG.
    pub(super) fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let end = |ticks: &[f64]| ticks.last().copied().unwrap_or(1.0);
        let x = LEFT + x / end(&self.x_ticks) * (WIDTH - LEFT - RIGHT);
        let y = HEIGHT - BOTTOM - y / end(&self.y_ticks) * (HEIGHT - TOP - BOTTOM);
        (x, y)
    }

    /// The beginning of a plot with a legend of these names, in the order of [`COLOURS`]; `</svg>` ends it.
    pub(super) fn open(&self, title: &str, x_name: &str, names: &[&str]) -> String {
        let height = HEIGHT + 18.0 * names.len() as f64;
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\"><text x=\"{LEFT}\" y=\"16\" \
             class=\"title\">{0}</text>",
            escaped(title)
        );
        // Writing into a text does not fail.
        for tick in &self.y_ticks {
            let (_, y) = self.place((0.0, *tick));
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                label(*tick)
            );
        }
        for tick in &self.x_ticks {
            let (x, y) = self.place((*tick, 0.0));
            let text = label(*tick);
            let _ = write!(
                out,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                y + 16.0
            );
        }
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 10.0,
            escaped(x_name)
        );
        for (at, name) in names.iter().enumerate() {
            let y = HEIGHT + 18.0 * at as f64 + 6.0;
            let _ = write!(
                out,
                "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" \
                 y=\"{:.1}\">{}</text>",
                y - 10.0,
                COLOURS[at % COLOURS.len()],
                LEFT + 18.0,
                y,
                escaped(name)
            );
        }
        out
    }
}

/// The plot of lines.
pub(super) fn svg(title: &str, x_name: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let frame = Frame::new(
        all().map(|point| point.0).fold(0.0, f64::max),
        all().map(|point| point.1).fold(0.0, f64::max),
    );
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    let mut out = frame.open(title, x_name, &names);
    for (at, line) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let points: Vec<String> = line
            .points
            .iter()
            .map(|point| frame.place(*point))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = write!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        for (point, (x, y)) in line
            .points
            .iter()
            .zip(line.points.iter().map(|point| frame.place(*point)))
        {
            let _ = write!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}: {}, {}</title></circle>",
                escaped(&line.name),
                label(point.0),
                label(point.1)
            );
        }
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.07).len(), 5, "{:?}", ticks(0.07));
        for largest in [1e-9, 0.3, 7.0, 64.0, 12_345.0, 9e9] {
            let found = ticks(largest);
            assert!(
                found.len() <= 7 && *found.last().expect("some") >= largest * 0.999,
                "{largest}: {found:?}"
            );
        }
        assert_eq!(ticks(f64::NAN), ticks(1.0), "nothing to show");
    }

    #[test]
    fn a_plot_is_whole_and_names_are_text() {
        let line = Line {
            name: "<script>".to_owned(),
            points: vec![(1.0, 5.0), (2.0, 10.0)],
        };
        let plot = svg("a & b", "rate", &[line]);
        assert!(plot.starts_with("<svg") && plot.ends_with("</svg>"));
        assert!(plot.contains("a &amp; b") && plot.contains("&lt;script&gt;") && !plot.contains("<script>"));
        // The largest point lies at the end of both axes.
        assert!(plot.contains("544.0,28.0"), "{plot}");
    }
}
