//! Each request as a row: from sending to the first piece, then its pieces, coloured by the time between them.

use std::fmt::Write as _;

use super::super::load::{Outcome, Seen};
use super::super::plot_args::Thresholds;
use super::missing;
use crate::cli::bench::chart::{self, label, ticks};

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
/// Above and below the rows, for the axis.
const AXIS: f64 = 24.0;
/// Of all rows, while they are neither below the least nor above the largest height.
const HEIGHT: f64 = 640.0;
const ROW_HEIGHT: (f64, f64) = (3.0, 18.0);
/// Bounds the page: some 25 bytes each.
const MAX_SPANS: usize = 200_000;
/// First token, and gaps below, between and above the thresholds; for people who see few colours too (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#009e73", "#e69f00", "#d55e00"];

/// A part of a row.
#[derive(Debug, PartialEq)]
struct Span {
    /// Seconds from the bench's start.
    from: f64,
    to: f64,
    /// The place of its colour.
    kind: usize,
}

/// The parts of a request; neighbouring gaps of a kind are one.
fn spans(seen: &Seen, thresholds: Thresholds) -> Vec<Span> {
    let first = seen.start + seen.first_token;
    let mut spans = vec![Span {
        from: seen.start,
        to: first,
        kind: 0,
    }];
    let mut at = first;
    for gap in &seen.gaps {
        let kind = match gap * 1e3 {
            ms if ms < thresholds.low_ms => 1,
            ms if ms < thresholds.high_ms => 2,
            _ => 3,
        };
        let to = at + gap;
        match spans.last_mut().filter(|last| last.kind == kind) {
            Some(last) => last.to = to,
            None => spans.push(Span { from: at, to, kind }),
        }
        at = to;
    }
    spans
}

/// The rows that are drawn: as many as have no more than [`MAX_SPANS`] parts, one at least.
fn rows(outcome: &Outcome, thresholds: Thresholds) -> Vec<Vec<Span>> {
    let mut count = 0;
    let all = outcome.seen.iter().map(|seen| spans(seen, thresholds));
    let mut rows: Vec<Vec<Span>> = Vec::new();
    for row in all {
        count += row.len();
        if count > MAX_SPANS && !rows.is_empty() {
            break;
        }
        rows.push(row);
    }
    rows
}

/// The page.
pub(super) fn page(name: &str, outcome: &Outcome, thresholds: Thresholds) -> String {
    let rows = rows(outcome, thresholds);
    let Thresholds { low_ms, high_ms } = thresholds;
    let names = [
        "first token".to_owned(),
        format!("gap < {low_ms} ms"),
        format!("{low_ms} ms ≤ gap < {high_ms} ms"),
        format!("gap ≥ {high_ms} ms"),
    ];
    let mut body = format!(
        "<p>Each row is a request, from its sending to its last piece, in seconds from the start of the bench.{}</p>\
         <p>",
        missing(rows.len(), outcome)
    );
    for (name, colour) in names.iter().zip(COLOURS) {
        let name = chart::escaped(name);
        let _ = write!(body, "<span style=\"color:{colour}\">■</span> {name} &nbsp; ");
    }
    body.push_str("</p>");
    body.push_str(&svg(&rows, &outcome.seen));
    chart::page(&format!("Timeline {name}"), &body)
}

fn svg(rows: &[Vec<Span>], seen: &[Seen]) -> String {
    let end = rows.iter().flatten().map(|span| span.to).fold(0.0, f64::max);
    let ticks = ticks(end);
    let scale = (WIDTH - LEFT - RIGHT) / ticks.last().copied().unwrap_or(1.0);
    let row_height = (HEIGHT / rows.len().max(1) as f64).clamp(ROW_HEIGHT.0, ROW_HEIGHT.1);
    let bottom = AXIS + row_height * rows.len() as f64;
    let height = bottom + AXIS;
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {height:.1}\" role=\"img\" aria-label=\"Requests over time\">");
    // Writing into a text does not fail.
    for tick in ticks {
        let (x, text) = (LEFT + tick * scale, label(tick));
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{AXIS}\" y2=\"{bottom:.1}\"/><text x=\"{x:.1}\" \
             y=\"{:.1}\" text-anchor=\"middle\">{text}</text><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{text}</text>",
            AXIS - 8.0,
            bottom + 16.0
        );
    }
    // Numbers of rows, where there is a line's height for one.
    let every = (14.0 / row_height).ceil().max(1.0) as usize;
    for (at, (row, seen)) in rows.iter().zip(seen).enumerate() {
        let y = AXIS + row_height * at as f64;
        if at % every == 0 {
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{at}</text>",
                LEFT - 6.0,
                y + row_height / 2.0 + 4.0
            );
        }
        let _ = write!(
            out,
            "<g><title>request {at}: {} prompt tokens, {} output tokens; sent at {:.3} s, first token after {:.3} s, \
             last after {:.3} s</title>",
            seen.input_tokens, seen.output_tokens, seen.start, seen.first_token, seen.total
        );
        for (kind, colour) in COLOURS.iter().enumerate() {
            let mut path = String::new();
            for span in row.iter().filter(|span| span.kind == kind) {
                // Narrower ones would not show.
                let width = ((span.to - span.from) * scale).max(0.5);
                let (x, high) = (LEFT + span.from * scale, row_height * 0.8);
                let _ = write!(path, "M{x:.1} {y:.1}h{width:.1}v{high:.1}h-{width:.1}z");
            }
            if !path.is_empty() {
                let _ = write!(out, "<path fill=\"{colour}\" d=\"{path}\"/>");
            }
        }
        out.push_str("</g>");
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: Thresholds = Thresholds {
        low_ms: 25.0,
        high_ms: 50.0,
    };

    fn seen(start: f64, gaps: &[f64]) -> Seen {
        Seen {
            start,
            first_token: 0.5,
            gaps: gaps.to_vec(),
            total: 0.5 + gaps.iter().sum::<f64>(),
            input_tokens: 7,
            output_tokens: gaps.len() as u64 + 1,
            ..Seen::default()
        }
    }

    #[test]
    fn gaps_of_a_kind_are_one_part() {
        let found = spans(&seen(1.0, &[0.010, 0.024, 0.025, 0.049, 0.050, 2.0, 0.001]), THRESHOLDS);
        let kinds: Vec<usize> = found.iter().map(|span| span.kind).collect();
        assert_eq!(kinds, [0, 1, 2, 3, 1]);
        assert_eq!((found[0].from, found[0].to), (1.0, 1.5));
        assert!(found.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert!((found[3].to - found[3].from - 2.05).abs() < 1e-9);
    }

    #[test]
    fn a_page_shows_every_request_and_needs_nothing_else() {
        let outcome = Outcome {
            seconds: 3.0,
            seen: vec![seen(0.0, &[0.01; 4]), seen(0.5, &[0.03, 0.2])],
            failures: vec!["x".to_owned()],
        };
        let page = page("run <1>", &outcome, THRESHOLDS);
        assert!(
            page.contains("Timeline run &lt;1&gt;") && !page.contains("<1>"),
            "{page}"
        );
        assert_eq!(page.matches("<g><title>request").count(), 2);
        assert!(
            page.contains("request 1: 7 prompt tokens, 3 output tokens; sent at 0.500 s, first token after 0.500 s")
        );
        assert!(page.contains("1 requests failed") && !page.contains("Only the first"));
        assert!(!page.contains("http") && !page.contains("<script") && page.ends_with("</html>\n"));
        // 0.5 s of an axis of 1.5 s, which is 1040 wide.
        assert!(page.contains("M64.0 24.0h346.7v14.4h-346.7z"), "{page}");
    }

    #[test]
    fn a_page_is_bounded_and_says_so() {
        // Each gap is a part: 400 rows of 1001 parts are too many.
        let gaps: Vec<f64> = (0..1000).map(|at| if at % 2 == 0 { 0.01 } else { 0.03 }).collect();
        let outcome = Outcome {
            seconds: 1.0,
            seen: (0..400).map(|_| seen(0.0, &gaps)).collect(),
            failures: Vec::new(),
        };
        let page = page("many", &outcome, THRESHOLDS);
        assert_eq!(page.matches("<g><title>").count(), 199);
        assert!(page.contains("Only the first 199 of 400 requests are drawn."));
        assert!(page.len() < 8 << 20, "{}", page.len());
    }
}
