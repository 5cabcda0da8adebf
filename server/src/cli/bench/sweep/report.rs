//! The report of a sweep: every run as a row, means and spreads of each combination, and plots; one HTML file that
//! needs nothing else, and the rows as JSON beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::chart::{self, Line, escaped, svg};
use super::super::report::write_json;
use crate::error::ServerError;

/// What is shown: the field of a result, its title, and its unit.
const SHOWN: [(&str, &str, &str); 8] = [
    ("output_throughput", "Output", "tokens/s"),
    ("total_token_throughput", "Prompt and output", "tokens/s"),
    ("request_throughput", "Requests", "1/s"),
    ("median_ttft_ms", "First token, median", "ms"),
    ("p99_ttft_ms", "First token, p99", "ms"),
    ("median_tpot_ms", "Time per output token, median", "ms"),
    ("p99_itl_ms", "Gap between tokens, p99", "ms"),
    ("median_e2el_ms", "Whole answer, median", "ms"),
];
/// Fields that are plotted against what varies, and one against another.
const PLOTTED: [usize; 4] = [0, 3, 4, 5];

/// A combination's runs.
struct Group {
    serve: Map<String, Value>,
    bench: Map<String, Value>,
    runs: Vec<Map<String, Value>>,
}

impl Group {
    /// Mean, least and largest value of a field; none where no run has it.
    fn figures(&self, field: &str) -> Option<(f64, f64, f64)> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(field)?.as_f64()).collect();
        let least = values.iter().copied().reduce(f64::min)?;
        let largest = values.iter().copied().reduce(f64::max)?;
        Some((values.iter().sum::<f64>() / values.len() as f64, least, largest))
    }
}

/// Writes `report.html` and `summary.json` into a sweep's folder.
///
/// # Errors
/// A folder without runs, a file that is no result or cannot be written.
pub(super) fn write(folder: &Path) -> Result<(), ServerError> {
    let groups = groups(folder)?;
    if groups.is_empty() {
        return Err(ServerError::Refused(format!(
            "{} has no runs (files run=N.json in folders SERVE-…-BENCH-…)",
            folder.display()
        )));
    }
    let rows: Vec<Value> = groups
        .iter()
        .flat_map(|group| &group.runs)
        .map(|run| json!(short(run)))
        .collect();
    write_json(Some(&folder.join("summary.json")), &Value::Array(rows))?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path = folder.join("report.html");
    std::fs::write(&path, page(&name, &groups)).map_err(ServerError::io("writing the report"))?;
    say!("report written to {}", path.display());
    Ok(())
}

/// A run without its lists, which have an entry a request.
fn short(run: &Map<String, Value>) -> Map<String, Value> {
    let entries = run.iter().filter(|(_, value)| !value.is_array());
    entries.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The runs of a folder, by combination.
fn groups(folder: &Path) -> Result<Vec<Group>, ServerError> {
    let listed = |folder: &Path| -> Result<BTreeSet<std::path::PathBuf>, ServerError> {
        let entries = std::fs::read_dir(folder).map_err(ServerError::io("reading the sweep's folder"))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths
            .collect::<Result<_, _>>()
            .map_err(ServerError::io("reading the sweep's folder"))
    };
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for place in listed(folder)?.into_iter().filter(|path| path.is_dir()) {
        let files = listed(&place)?.into_iter().filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("run=") && name.ends_with(".json")
        });
        for file in files {
            let bytes = std::fs::read(&file).map_err(ServerError::io("reading a run"))?;
            let run: Map<String, Value> = serde_json::from_slice(&bytes)
                .map_err(|error| ServerError::Refused(format!("{} is no result: {error}", file.display())))?;
            let options = |name: &str| run.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
            let (serve, bench) = (options("serve_params"), options("bench_params"));
            let key = place.to_string_lossy().into_owned();
            let group = groups.entry(key).or_insert_with(|| Group {
                serve,
                bench,
                runs: Vec::new(),
            });
            group.runs.push(run);
        }
    }
    Ok(groups.into_values().collect())
}

/// Options in words.
fn words(options: &Map<String, Value>) -> String {
    let pairs = options.iter().map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name}={value}")
    });
    let words = pairs.collect::<Vec<_>>().join(" ");
    if words.is_empty() { "as given".to_owned() } else { words }
}

/// The bench's option that varies and is a number everywhere, to plot against; the first of several.
fn axis(groups: &[Group]) -> Option<String> {
    let names: BTreeSet<&String> = groups.iter().flat_map(|group| group.bench.keys()).collect();
    let varies = |name: &&String| {
        let values: Vec<Option<f64>> = groups.iter().map(|group| group.bench.get(*name)?.as_f64()).collect();
        values.iter().all(Option::is_some) && values.iter().any(|value| *value != values[0])
    };
    names.into_iter().find(varies).cloned()
}

/// Where on the axis, and the point.
type Placed = (f64, (f64, f64));

/// A line for each combination of all options but the axis.
fn lines(groups: &[Group], point: impl Fn(&Group) -> Option<(f64, f64)>, axis: &str) -> Vec<Line> {
    let mut lines: BTreeMap<String, Vec<Placed>> = BTreeMap::new();
    for group in groups {
        let mut rest = group.bench.clone();
        let at = rest.remove(axis).and_then(|value| value.as_f64()).unwrap_or(0.0);
        let name = match rest.is_empty() {
            true => words(&group.serve),
            false => format!("{}; {}", words(&group.serve), words(&rest)),
        };
        if let Some(point) = point(group) {
            lines.entry(name).or_default().push((at, point));
        }
    }
    let sorted = lines.into_iter().map(|(name, mut points)| {
        points.sort_by(|one, two| one.0.total_cmp(&two.0));
        Line {
            name,
            points: points.into_iter().map(|(_, point)| point).collect(),
        }
    });
    sorted.collect()
}

fn page(name: &str, groups: &[Group]) -> String {
    let mut out = String::new();
    let runs: usize = groups.iter().map(|group| group.runs.len()).sum();
    out.push_str(&format!(
        "<p>{runs} runs of {} combinations. Numbers are means; where runs differ, least to largest follow.</p>",
        groups.len()
    ));
    if let Some(axis) = axis(groups) {
        out.push_str("<div class=\"plots\">");
        for (field, title, unit) in PLOTTED.map(|at| SHOWN[at]) {
            let of_axis = |group: &Group| Some((group.bench.get(&axis)?.as_f64()?, group.figures(field)?.0));
            out.push_str(&svg(&format!("{title}, {unit}"), &axis, &lines(groups, of_axis, &axis)));
        }
        let both = |group: &Group| Some((group.figures(SHOWN[0].0)?.0, group.figures(SHOWN[4].0)?.0));
        let title = format!("{}, {}, against throughput", SHOWN[4].1, SHOWN[4].2);
        out.push_str(&svg(&title, "output tokens/s", &lines(groups, both, &axis)));
        out.push_str("</div>");
    }
    out.push_str("<table><tr><th>server<th>bench<th>runs");
    for (_, title, unit) in SHOWN {
        out.push_str(&format!("<th>{title}, {unit}"));
    }
    out.push_str("</tr>");
    for group in groups {
        let (serve, bench) = (escaped(&words(&group.serve)), escaped(&words(&group.bench)));
        out.push_str(&format!("<tr><td>{serve}<td>{bench}<td>{}", group.runs.len()));
        for (field, ..) in SHOWN {
            out.push_str(&match group.figures(field) {
                None => "<td>–".to_owned(),
                Some((mean, least, largest)) if largest - least <= mean.abs() * 1e-3 => format!("<td>{mean:.1}"),
                Some((mean, least, largest)) => format!("<td>{mean:.1} ({least:.1} to {largest:.1})"),
            });
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>");
    chart::page(&format!("Sweep {name}"), &out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(serve: &str, bench: &str, throughputs: &[f64]) -> Group {
        let options = |text: &str| serde_json::from_str(text).expect("an object");
        let run = |value: &f64| options(&json!({"output_throughput": value, "p99_ttft_ms": 2.0}).to_string());
        Group {
            serve: options(serve),
            bench: options(bench),
            runs: throughputs.iter().map(run).collect(),
        }
    }

    #[test]
    fn a_page_has_a_row_for_each_combination_and_plots_what_varies() {
        let groups = [
            group("{}", r#"{"request_rate": 8, "seed": 1}"#, &[30.0, 50.0]),
            group("{}", r#"{"request_rate": 2, "seed": 1}"#, &[10.0]),
            group(r#"{"x": "<b>"}"#, r#"{"request_rate": 2, "seed": 1}"#, &[11.0]),
        ];
        assert_eq!(
            axis(&groups).as_deref(),
            Some("request_rate"),
            "the seed is the same everywhere"
        );
        let plotted = lines(
            &groups,
            |group| Some((0.0, group.figures("output_throughput")?.0)),
            "request_rate",
        );
        let of_first = plotted
            .iter()
            .find(|line| line.name == "as given; seed=1")
            .expect("a line");
        assert_eq!(of_first.points, [(0.0, 10.0), (0.0, 40.0)], "by the rate");
        let page = page("name & more", &groups);
        assert!(
            page.contains("40.0 (30.0 to 50.0)") && page.contains("name &amp; more"),
            "{page}"
        );
        assert_eq!(page.matches("<svg").count(), 5);
        assert!(!page.contains("<b>") && !page.contains("http"), "{page}");
        // Without one value for each combination there is no axis.
        assert_eq!(
            axis(&[group("{}", r#"{"a": 1}"#, &[]), group("{}", r#"{"b": 1}"#, &[])]),
            None
        );
    }

    #[test]
    fn lists_are_left_out_of_the_summary() {
        let run = serde_json::from_str(r#"{"a": 1, "latencies": [1, 2]}"#).expect("an object");
        assert_eq!(short(&run).keys().collect::<Vec<_>>(), ["a"]);
    }
}
