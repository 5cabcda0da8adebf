//! The pages of docs that list what is read: every architecture and every type of GGUF files, and no other.

use std::collections::BTreeSet;

use halyard_models::gguf::TensorType;
use halyard_models::{WeightQuantization, families};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/models.md");
const QUANTIZATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/quantization.md");

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_table_of_families_has_every_architecture() {
    let page = read(MODELS);
    let section = page.split("\n## ").find(|section| section.starts_with("Families"));
    let rows = section.expect("a section `Families`").lines();
    let cells = rows
        .filter_map(|row| row.strip_prefix("| "))
        .map(|row| row.split(" | ").collect::<Vec<_>>());
    let (mut classes, mut ggufs) = (BTreeSet::new(), BTreeSet::new());
    for row in cells.skip(1) {
        classes.extend(quoted(row[1]).map(str::to_owned));
        ggufs.extend(quoted(row[2]).map(str::to_owned));
    }
    let all = families::FAMILIES;
    let known = all.iter().flat_map(|family| family.hf_architectures).copied();
    let known: BTreeSet<String> = known
        .filter(|name| name.starts_with(char::is_uppercase))
        .map(str::to_owned)
        .collect();
    assert_eq!(classes, known, "docs/models.md, column `architectures`");
    let known: BTreeSet<String> = all
        .iter()
        .flat_map(|family| family.gguf_architectures)
        .map(|&name| name.to_owned())
        .collect();
    assert_eq!(ggufs, known, "docs/models.md, column GGUF");
}

/// The table of GGUF's types, which this test writes.
fn gguf_table() -> String {
    let mut table = String::from("| type | bits a weight | weights a block | read |\n|---|---|---|---|\n");
    for kind in (0..256).filter_map(TensorType::from_code) {
        let bits = 8.0 * kind.block_bytes() as f64 / kind.block_values() as f64;
        let bits = format!("{bits:.4}");
        let bits = bits.trim_end_matches('0').trim_end_matches('.');
        let state = if kind.weight_format().is_some() {
            "yes"
        } else {
            "refused by name"
        };
        table.push_str(&format!(
            "| `{}` | {bits} | {} | {state} |\n",
            kind.name(),
            kind.block_values()
        ));
    }
    table
}

#[test]
fn the_table_of_gguf_types_is_what_is_read() {
    const BEGIN: &str = "<!-- written by runtime/models/tests/pages.rs -->\n";
    const END: &str = "<!-- end -->\n";
    let page = read(QUANTIZATION);
    let (before, rest) = page.split_once(BEGIN).expect("the table's begin");
    let (written, after) = rest.split_once(END).expect("the table's end");
    if std::env::var_os("HALYARD_BLESS").is_some() {
        std::fs::write(QUANTIZATION, [before, BEGIN, &gguf_table(), END, after].concat()).expect("written");
        return;
    }
    assert_eq!(
        written,
        gguf_table(),
        "docs/quantization.md: write it anew: HALYARD_BLESS=1 cargo test -p halyard-models --test pages"
    );
}

#[test]
fn the_page_of_formats_has_every_name_of_quantization() {
    let page = read(QUANTIZATION);
    let named: BTreeSet<&str> = quoted(&page).collect();
    for name in WeightQuantization::names() {
        assert!(name.parse::<WeightQuantization>().is_ok(), "{name}");
        assert!(
            named.contains(name),
            "docs/quantization.md does not name `--quantization {name}`"
        );
    }
}
