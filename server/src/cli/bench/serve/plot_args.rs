//! Flags of the pages that show a bench.

use clap::Args;

/// Which pages are written.
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Write a page that shows each request over time, beside the result or where it would be: NAME.timeline.html
    #[arg(long)]
    pub(super) plot_timeline: bool,
    /// Milliseconds between pieces of an answer at which the timeline's colour changes
    #[arg(long, value_name = "MS,MS", default_value = "25,50", value_parser = parse_thresholds)]
    pub(super) timeline_itl_thresholds: Thresholds,
    /// Write a page of the lengths of prompts and answers, beside the result or where it would be:
    /// NAME.dataset_stats.html
    #[arg(long)]
    pub(super) plot_dataset_stats: bool,
}

/// Two times between pieces, in milliseconds, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    pub(super) low_ms: f64,
    pub(super) high_ms: f64,
}

fn parse_thresholds(text: &str) -> Result<Thresholds, String> {
    let bad = || format!("`{text}` is not two rising numbers of milliseconds with a comma between, such as 25,50");
    let (low, high) = text.split_once(',').ok_or_else(bad)?;
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms > 0.0);
    match (number(low), number(high)) {
        (Some(low_ms), Some(high_ms)) if low_ms < high_ms => Ok(Thresholds { low_ms, high_ms }),
        _ => Err(bad()),
    }
}

impl PlotArgs {
    /// Whether there is a page to write.
    pub(super) fn is_asked(&self) -> bool {
        self.plot_timeline || self.plot_dataset_stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_two_and_rise() {
        assert_eq!(
            parse_thresholds("25, 50.5"),
            Ok(Thresholds {
                low_ms: 25.0,
                high_ms: 50.5
            })
        );
        for bad in ["25", "50,25", "1,2,3", "x,1", "0,5", "1,inf", "1,1", ""] {
            assert!(parse_thresholds(bad).is_err(), "{bad}");
        }
    }
}
