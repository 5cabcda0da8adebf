//! Shows how far loading is: a bar with rate and remaining time on a terminal, a few lines of the log elsewhere. Never
//! decides what is loaded.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use halyard_engine::LoadProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// Between lines of the log.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How loading is shown.
pub struct Shown {
    start: Instant,
    place: Place,
}

enum Place {
    Bar(ProgressBar),
    Log(Lines),
}

impl Shown {
    /// A bar where standard error is a terminal, else lines of the log.
    pub fn new() -> Shown {
        let place = match std::io::stderr().is_terminal() {
            true => Place::Bar(bar()),
            false => Place::Log(Lines::default()),
        };
        Shown {
            start: Instant::now(),
            place,
        }
    }

    /// Loading has come this far.
    pub fn show(&mut self, progress: LoadProgress) {
        match &mut self.place {
            Place::Bar(bar) => {
                bar.set_message(progress.stage);
                bar.set_length(progress.total_bytes);
                bar.set_position(progress.done_bytes);
            }
            Place::Log(lines) => {
                if let Some(line) = lines.line(progress, self.start.elapsed()) {
                    tracing::info!("{line}");
                }
            }
        }
    }

    /// Loading has ended, well or not.
    pub fn end(self) {
        if let Place::Bar(bar) = self.place {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let template = "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left";
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Lines of the log: the first bytes, the last ones, and at most one in [`LINE_EVERY`] between them.
#[derive(Default)]
struct Lines {
    /// When the first bytes came, and how many they were.
    first: Option<(Duration, u64)>,
    last: Duration,
}

impl Lines {
    /// The line of a progress at a time since the start, where one is due.
    fn line(&mut self, progress: LoadProgress, now: Duration) -> Option<String> {
        let LoadProgress {
            stage,
            done_bytes,
            total_bytes,
        } = progress;
        let Some((start, before)) = self.first else {
            (self.first, self.last) = (Some((now, done_bytes)), now);
            let all = gigabytes(total_bytes);
            return Some(format!("loading {stage}: {all:.2} GB"));
        };
        let seconds = now.saturating_sub(start).as_secs_f64();
        let rate = gigabytes(done_bytes.saturating_sub(before)) / seconds.max(1e-9);
        if done_bytes == total_bytes {
            let all = gigabytes(total_bytes);
            return Some(format!("{stage} loaded: {all:.2} GB in {seconds:.1} s, {rate:.2} GB/s"));
        }
        if now.saturating_sub(self.last) < LINE_EVERY {
            return None;
        }
        self.last = now;
        let left = gigabytes(total_bytes.saturating_sub(done_bytes)) / rate.max(1e-9);
        Some(format!(
            "loading {stage}: {:.2} of {:.2} GB, {rate:.2} GB/s, {left:.0} s left",
            gigabytes(done_bytes),
            gigabytes(total_bytes)
        ))
    }
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::*;

    /// A terminal that keeps what is written.
    #[derive(Clone, Debug, Default)]
    struct Written(Arc<Mutex<String>>);

    impl TermLike for Written {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> std::io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().expect("no panic").push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(steps: &[(u64, f64)], total: u64) -> Vec<Option<String>> {
        let mut lines = Lines::default();
        let line = |&(done_bytes, seconds): &(u64, f64)| {
            let progress = LoadProgress {
                stage: "weights",
                done_bytes,
                total_bytes: total,
            };
            lines.line(progress, Duration::from_secs_f64(seconds))
        };
        steps.iter().map(line).collect()
    }

    #[test]
    fn the_log_has_the_first_and_the_last_line_and_few_between_them() {
        let found = lines(
            &[
                (0, 1.0),
                (1 << 20, 1.5),
                (2_000_000_000, 10.9),
                (4_000_000_000, 11.0),
                (5_000_000_000, 20.9),
                (10_000_000_000, 21.0),
            ],
            10_000_000_000,
        );
        let expected = [
            Some("loading weights: 10.00 GB"),
            None,
            None,
            Some("loading weights: 4.00 of 10.00 GB, 0.40 GB/s, 15 s left"),
            None,
            Some("weights loaded: 10.00 GB in 20.0 s, 0.50 GB/s"),
        ];
        assert_eq!(found.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_small_model_has_two_lines_and_no_number_that_is_none() {
        let found = lines(&[(0, 0.0), (5, 0.0)], 5);
        assert_eq!(found[0].as_deref(), Some("loading weights: 0.00 GB"));
        let last = found[1].as_deref().expect("the last line");
        assert!(last.starts_with("weights loaded: 0.00 GB in 0.0 s, "), "{last}");
        assert!(!last.contains("NaN") && !last.contains("inf"), "{last}");
    }

    #[test]
    fn the_bar_has_rate_and_remaining_time() {
        let term = Written::default();
        let bar = bar();
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(term.clone())));
        let mut shown = Shown {
            start: Instant::now(),
            place: Place::Bar(bar.clone()),
        };
        shown.show(LoadProgress {
            stage: "weights",
            done_bytes: 2_500_000_000,
            total_bytes: 10_000_000_000,
        });
        bar.force_draw();
        let text = term.0.lock().expect("no panic").clone();
        for part in ["weights", "2.50 GB/10.00 GB", "B/s", " left"] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        shown.end();
        assert!(bar.is_finished());
    }
}
