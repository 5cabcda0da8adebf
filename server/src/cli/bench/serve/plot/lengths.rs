//! How long the prompts and answers of a bench are: three histograms, and the tokens of each request.

use std::fmt::Write as _;

use super::super::load::{Outcome, Seen};
use super::missing;
use crate::cli::bench::chart::{self, COLOURS, Frame};

/// Of a histogram at most, as vLLM's.
const BINS: u64 = 30;
/// Requests of the plot of each request.
const MAX_REQUESTS: usize = 20_000;

/// How many values lie in each of at most [`BINS`] ranges of one width from the least value on; that value, and the
/// width in whole tokens.
fn histogram(values: &[u64]) -> (Vec<u64>, u64, u64) {
    let least = values.iter().copied().min().unwrap_or(0);
    let span = values.iter().copied().max().unwrap_or(0) - least;
    let width = span / BINS + 1;
    let mut counts = vec![0; (span / width) as usize + 1];
    for value in values {
        counts[((value - least) / width) as usize] += 1;
    }
    (counts, least, width)
}

fn histogram_svg(title: &str, colour: &str, values: &[u64]) -> String {
    let (counts, least, width) = histogram(values);
    let most = counts.iter().copied().max().unwrap_or(0) as f64;
    let end = least + width * counts.len() as u64;
    let frame = Frame::new(end as f64, most);
    let mut out = frame.open(title, "tokens", &[]);
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let from = least + width * at as u64;
        let (x, y) = frame.place((from as f64, *count as f64));
        let (right, bottom) = frame.place(((from + width) as f64, 0.0));
        let range = match width {
            1 => format!("{from}"),
            _ => format!("{from} to {}", from + width - 1),
        };
        // Writing into a text does not fail.
        let _ = write!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{range} \
             tokens: {count} requests</title></rect>",
            (right - x).max(0.5),
            bottom - y
        );
    }
    out.push_str("</svg>");
    out
}

/// Prompt and answer of each request, one above the other.
fn requests_svg(seen: &[Seen]) -> String {
    let shown = &seen[..seen.len().min(MAX_REQUESTS)];
    let total = |one: &Seen| one.input_tokens + one.output_tokens;
    let most = shown.iter().map(total).max().unwrap_or(0) as f64;
    let frame = Frame::new(shown.len() as f64, most);
    let mut out = frame.open("Tokens of each request", "request", &["prompt", "answer"]);
    let mut paths = [String::new(), String::new()];
    for (at, one) in shown.iter().enumerate() {
        let parts = [(0, one.input_tokens), (one.input_tokens, total(one))];
        for (path, (low, high)) in paths.iter_mut().zip(parts) {
            let (left, top) = frame.place((at as f64, high as f64));
            let (right, bottom) = frame.place((at as f64 + 1.0, low as f64));
            let (width, height) = (right - left, bottom - top);
            let _ = write!(path, "M{left:.2} {top:.1}h{width:.2}v{height:.1}h-{width:.2}z");
        }
    }
    for (path, colour) in paths.iter().zip(COLOURS) {
        let _ = write!(out, "<path fill=\"{colour}\" d=\"{path}\"/>");
    }
    out.push_str("</svg>");
    out
}

/// The page.
pub(super) fn page(name: &str, outcome: &Outcome) -> String {
    let seen = &outcome.seen;
    let of = |count: fn(&Seen) -> u64| seen.iter().map(count).collect::<Vec<u64>>();
    let plots = [
        histogram_svg("Prompts, by their tokens", COLOURS[0], &of(|one| one.input_tokens)),
        histogram_svg("Answers, by their tokens", COLOURS[1], &of(|one| one.output_tokens)),
        histogram_svg(
            "Both together, by their tokens",
            COLOURS[2],
            &of(|one| one.input_tokens + one.output_tokens),
        ),
        requests_svg(seen),
    ];
    let body = format!(
        "<p>{} requests.{}</p><div class=\"plots\">{}</div>",
        seen.len(),
        missing(seen.len().min(MAX_REQUESTS), outcome),
        plots.concat()
    );
    chart::page(&format!("Lengths {name}"), &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_tokens_and_hold_every_value() {
        assert_eq!(histogram(&[5, 5]), (vec![2], 5, 1));
        let (counts, least, width) = histogram(&[0, 1, 29, 29]);
        assert_eq!((counts.len(), counts[0], counts[29], least, width), (30, 1, 2, 0, 1));
        // 31 values do not have a range each.
        let (counts, least, width) = histogram(&[100, 101, 102, 130]);
        assert_eq!(
            (counts.len(), &counts[..2], counts[15], least, width),
            (16, &[2, 1][..], 1, 100, 2)
        );
        let (counts, ..) = histogram(&[0, u64::from(u32::MAX), 17]);
        assert!(counts.len() <= 30 && counts.iter().sum::<u64>() == 3);
    }

    #[test]
    fn a_page_has_four_plots_and_needs_nothing_else() {
        let one = |input_tokens, output_tokens| Seen {
            input_tokens,
            output_tokens,
            ..Seen::default()
        };
        let outcome = Outcome {
            seconds: 1.0,
            seen: vec![one(10, 0), one(20, 0), one(20, 0)],
            failures: Vec::new(),
        };
        let shown = page("a & b", &outcome);
        assert_eq!(shown.matches("<svg").count(), 4);
        assert!(shown.contains("Lengths a &amp; b") && shown.contains("3 requests."));
        assert!(shown.contains("<title>20 tokens: 2 requests</title>"), "{shown}");
        assert!(!shown.contains("http") && !shown.contains("<script") && shown.ends_with("</html>\n"));
        let many = Outcome {
            seen: vec![one(1, 1); MAX_REQUESTS + 1],
            ..Outcome::default()
        };
        assert!(page("many", &many).contains("Only the first 20000 of 20001 requests are drawn."));
    }
}
