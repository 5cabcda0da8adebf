//! docs/performance.md: the text of `tests/bench/figures/performance.md.in`, with a table for each file of figures, and
//! the curves of `figures/growth` with their picture. `halyard-bench page` writes them; a test holds that page and
//! picture show what the files say.

use std::path::{Path, PathBuf};

use serde_json::Number;

use crate::error::BenchError;
use crate::figures::{Better, Column, Pair, Row, Table};
use crate::growth::{self, curve::Growth};

const PAGE: &str = "docs/performance.md";
const TEXT: &str = "performance.md.in";
const FIGURES: &str = "tests/bench/figures";
const CURVES: &str = "tests/bench/figures/growth/curves.json";
const PICTURE: &str = "docs/growth.svg";
/// Longest line of prose.
const COLUMNS: usize = 120;

/// Writes the page and its picture anew.
///
/// # Errors
/// A file that cannot be read or written, or a place without its file.
pub fn write() -> Result<(), BenchError> {
    for (path, text) in [(PAGE, page()?), (PICTURE, growth::svg(&curves()?))] {
        std::fs::write(root().join(path), text).map_err(BenchError::io(format!("writing {path}")))?;
    }
    Ok(())
}

fn curves() -> Result<Growth, BenchError> {
    Growth::read(&root().join(CURVES))
}

/// The repository's root: cargo names this package when it runs the program, else where it was built.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.join("../..")
}

/// The page as it should be.
fn page() -> Result<String, BenchError> {
    let folder = root().join(FIGURES);
    let text = std::fs::read_to_string(folder.join(TEXT)).map_err(BenchError::io(format!("reading {TEXT}")))?;
    let curves = growth::section(&curves()?, "growth.svg");
    filled(&text.replace("{{growth}}", curves.trim_end()), &tables(&folder)?)
}

/// Every file of figures: its name without `.json`, and its table.
fn tables(folder: &Path) -> Result<Vec<(String, Table)>, BenchError> {
    let listing = || BenchError::io(format!("listing {FIGURES}"));
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(listing())? {
        let path = entry.map_err(listing())?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            tables.push((name, Table::read(&path)?));
        }
    }
    Ok(tables)
}

/// The text with a table in the place of each `{{name}}`. Each table has one place, and each place its table.
fn filled(text: &str, tables: &[(String, Table)]) -> Result<String, BenchError> {
    let mut page = text.to_string();
    for (name, table) in tables {
        let place = format!("{{{{{name}}}}}");
        if text.matches(&place).count() != 1 {
            let message = format!("{FIGURES}/{TEXT} needs `{place}` once, for {name}.json");
            return Err(BenchError::Page { message });
        }
        page = page.replace(&place, rendered(table).trim_end());
    }
    match page.lines().find(|line| line.starts_with("{{")) {
        Some(line) => Err(BenchError::Page {
            message: format!("`{line}` in {FIGURES}/{TEXT} has no file of figures"),
        }),
        None => Ok(page),
    }
}

/// Words in lines of at most [`COLUMNS`].
pub fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > COLUMNS {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

fn rendered(table: &Table) -> String {
    let heads = table.columns.iter().map(|column| match column.unit.as_str() {
        "" => column.figure.clone(),
        unit => format!("{}, {unit}", column.figure),
    });
    let heads: Vec<String> = heads.collect();
    let sentences = wrapped(&format!("{} {}", table.machine, table.conditions));
    let mut text = format!("## {}\n{sentences}\n\n", table.title);
    text += &format!("| | peer | {} | date, commit |\n", heads.join(" | "));
    text += &format!("|{}\n", "---|".repeat(heads.len() + 3));
    for row in table.rows.iter().filter(|row| row.on_page) {
        text += &line(row, &table.columns);
    }
    text
}

fn line(row: &Row, columns: &[Column]) -> String {
    let cells = columns.iter().map(|column| match row.figures.get(&column.figure) {
        Some(pair) => cell(pair, column.better),
        None => "–".into(),
    });
    let cells: Vec<String> = cells.collect();
    format!(
        "| {} | {} | {} | {}, {} |\n",
        row.name,
        row.peer.as_deref().unwrap_or("–"),
        cells.join(" | "),
        row.date,
        row.commit.as_deref().unwrap_or("commit not noted")
    )
}

/// `Halyard : peer (ratio)`; the ratio is of speeds, so that above 1 Halyard is ahead, and bold below.
fn cell(pair: &Pair, better: Better) -> String {
    let (ours, theirs) = (middle(&pair.halyard), middle(&pair.peer));
    let ours_text = number(&pair.halyard, ours);
    if pair.peer.is_empty() {
        return ours_text;
    }
    let ratio = match better {
        Better::Higher => ours / theirs,
        Better::Lower => theirs / ours,
    };
    let ratio = match ratio {
        ratio if !ratio.is_finite() => String::new(),
        ratio if ratio < 0.995 => format!(" (**{ratio:.2}**)"),
        ratio if ratio < 2.0 => format!(" ({ratio:.2})"),
        ratio => format!(" ({ratio:.1})"),
    };
    format!("{ours_text} : {}{ratio}", number(&pair.peer, theirs))
}

/// The median; of an even number the mean of the two in the middle.
fn middle(values: &[Number]) -> f64 {
    let mut values: Vec<f64> = values.iter().filter_map(Number::as_f64).collect();
    values.sort_by(f64::total_cmp);
    match (values.len() % 2, values.len() / 2) {
        (0, 0) => f64::NAN,
        (0, half) => (values[half - 1] + values[half]) / 2.0,
        (_, half) => values[half],
    }
}

/// One value as it was noted, the median of several in three digits; thousands apart.
fn number(values: &[Number], middle: f64) -> String {
    let text = match values {
        [only] => only.to_string(),
        _ => format!(
            "{middle:.*}",
            (3 - middle.abs().log10().floor().clamp(-1.0, 3.0) as i32 - 1).max(0) as usize
        ),
    };
    let (whole, fraction) = text
        .split_once('.')
        .map_or((text.as_str(), ""), |(whole, rest)| (whole, rest));
    let digits = whole.trim_start_matches('-').len();
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > whole.len() - digits && left.is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() {
        grouped
    } else {
        format!("{grouped}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(json: &str) -> (String, Table) {
        ("a".into(), serde_json::from_str(json).expect("a table"))
    }

    fn example() -> (String, Table) {
        table(
            r#"{ "title": "T", "machine": "M.", "conditions": "C.",
                "columns": [{ "figure": "rate", "unit": "tok/s", "better": "higher" },
                            { "figure": "time", "unit": "ms", "better": "lower" }],
                "rows": [{ "name": "w", "peer": "p 1", "date": "2026-11-22", "commit": null,
                           "figures": { "rate": { "halyard": [1982], "peer": [310] },
                                        "time": { "halyard": [5.41, 5.42, 9.9], "peer": [4.0, 4.2] } } },
                         { "name": "alone", "peer": null, "date": "2026-11-22", "commit": "abc1234",
                           "figures": { "rate": { "halyard": [109459, 1] } } },
                         { "name": "kept", "peer": null, "date": "2026-11-22", "commit": null, "on_page": false,
                           "figures": {} }] }"#,
        )
    }

    #[test]
    fn a_table_stands_in_its_place_and_the_rest_is_kept() {
        let expected = "before\n## T\nM. C.\n\n| | peer | rate, tok/s | time, ms | date, commit \
            |\n|---|---|---|---|---|\n\
             | w | p 1 | 1,982 : 310 (6.4) | 5.42 : 4.10 (**0.76**) | 2026-11-22, commit not noted |\n\
             | alone | – | 54,730 | – | 2026-11-22, abc1234 |\nafter\n";
        assert_eq!(
            filled("before\n{{a}}\nafter\n", &[example()]).expect("filled"),
            expected
        );
    }

    #[test]
    fn places_and_files_belong_together() {
        for (text, named) in [
            ("{{a}}\n{{b}}\n", "`{{b}}`"),
            ("nothing\n", "a.json"),
            ("{{a}}\n{{a}}\n", "`{{a}}` once"),
        ] {
            let error = filled(text, &[example()]).expect_err(text).to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn prose_is_wrapped() {
        assert_eq!(
            wrapped(&"word ".repeat(25)),
            format!("{}word\nword", "word ".repeat(23))
        );
    }

    #[test]
    fn ratios_are_of_speeds_and_stand_out_where_halyard_is_behind() {
        let pair = |halyard: &[f64], peer: &[f64]| Pair::new(halyard, peer);
        assert_eq!(cell(&pair(&[2.0], &[1.0]), Better::Higher), "2 : 1 (2.0)");
        assert_eq!(cell(&pair(&[2.0], &[1.0]), Better::Lower), "2 : 1 (**0.50**)");
        assert_eq!(cell(&pair(&[3.87], &[3.87]), Better::Lower), "3.87 : 3.87 (1.00)");
        assert_eq!(cell(&pair(&[0.0], &[0.01]), Better::Lower), "0 : 0.01");
        assert_eq!(cell(&pair(&[-0.01], &[]), Better::Lower), "-0.01");
        assert_eq!(cell(&pair(&[0.25, 0.27], &[]), Better::Lower), "0.260");
        assert_eq!(cell(&pair(&[1_234_000.0], &[]), Better::Lower), "1,234,000");
    }

    /// A peer's figure that stands beside Halyard's of two days was measured on one of them.
    #[test]
    fn a_peers_figures_are_of_the_day_of_their_row() {
        let tables = tables(&root().join(FIGURES)).expect("tables");
        for (name, table) in &tables {
            for (at, row) in table.rows.iter().enumerate() {
                let Some(peer) = row.peer.as_ref().filter(|peer| *peer != "budget") else {
                    let alone = row.peer.is_some() || row.figures.values().all(|pair| pair.peer.is_empty());
                    assert!(alone, "{name}.json, {}: figures of a peer without its name", row.name);
                    continue;
                };
                let others = table.rows[..at]
                    .iter()
                    .filter(|other| other.peer.as_ref() == Some(peer));
                for other in others.filter(|other| (&other.date, &other.machine) != (&row.date, &row.machine)) {
                    let same = |(figure, pair): &(&String, &Pair)| {
                        let theirs = other.figures.get(*figure);
                        !pair.peer.is_empty() && theirs.is_some_and(|theirs| theirs.peer == pair.peer)
                    };
                    let repeated: Vec<&String> = row.figures.iter().filter(same).map(|(figure, _)| figure).collect();
                    assert!(
                        repeated.is_empty(),
                        "{name}.json: {} and {} have {peer}'s {repeated:?} of another day or machine; measure it again",
                        row.name,
                        other.name
                    );
                }
            }
        }
    }

    #[test]
    fn the_page_shows_what_the_files_say() {
        let stands = std::fs::read_to_string(root().join(PAGE)).expect("the page is there");
        assert!(
            stands == page().expect("the files are tables"),
            "{PAGE} does not show what {FIGURES} says: cargo run -p halyard-bench -- page"
        );
        assert!(
            stands.lines().count() <= 145,
            "{PAGE} has more than 145 lines: what was tried belongs to docs/notes"
        );
        let stands = std::fs::read_to_string(root().join(PICTURE)).expect("the picture is there");
        assert!(
            stands == growth::svg(&curves().expect("the file has curves")),
            "{PICTURE} does not show what {CURVES} says: cargo run -p halyard-bench -- page"
        );
    }
}
