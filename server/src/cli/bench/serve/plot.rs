//! Pages that show a bench, beside its result: each request over time, and how long prompts and answers are. Names are
//! those of vLLM's, whose second plot is an image.

mod lengths;
mod timeline;

use std::path::Path;

use super::load::Outcome;
use super::plot_args::PlotArgs;
use crate::error::ServerError;

/// Writes the pages beside `result`. A bench in which no request was answered has none.
///
/// # Errors
/// [`ServerError::Io`].
pub(super) fn write(args: &PlotArgs, result: &Path, outcome: &Outcome) -> Result<(), ServerError> {
    if !args.is_asked() {
        return Ok(());
    }
    if outcome.seen.is_empty() {
        eprintln!("no request was answered: there is nothing to plot");
        return Ok(());
    }
    let name = result.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let put = |ending: &str, page: String| {
        let path = result.with_extension(ending);
        std::fs::write(&path, page).map_err(ServerError::io("writing a plot"))?;
        say!("plot written to {}", path.display());
        Ok::<(), ServerError>(())
    };
    if args.plot_timeline {
        put(
            "timeline.html",
            timeline::page(&name, outcome, args.timeline_itl_thresholds),
        )?;
    }
    if args.plot_dataset_stats {
        put("dataset_stats.html", lengths::page(&name, outcome))?;
    }
    Ok(())
}

/// What a page says of the requests that it does not show.
fn missing(shown: usize, outcome: &Outcome) -> String {
    let mut words = String::new();
    if shown < outcome.seen.len() {
        words.push_str(&format!(
            " Only the first {shown} of {} requests are drawn.",
            outcome.seen.len()
        ));
    }
    if !outcome.failures.is_empty() {
        words.push_str(&format!(
            " {} requests failed and are not drawn.",
            outcome.failures.len()
        ));
    }
    words
}
