//! Ops, types and formats that a platform says it runs, and why it does not run others.

use halyard_conformance::{Support, support};
use serde_json::json;

use crate::command_line::SupportArgs;
use crate::loading;

/// Prints the table.
///
/// # Errors
/// A library that cannot be loaded.
pub fn run(args: &SupportArgs) -> Result<(), String> {
    let facts = loading::facts(&args.library)?;
    let rows = support(&loading::device(&args.library)?);
    if args.json {
        println!(
            "{}",
            json!({"library": facts.library, "sha256": facts.sha256, "rows": rows})
        );
        return Ok(());
    }
    println!("{}", facts.text());
    for Support { op, variant, outcome } in &rows {
        let words = match outcome {
            Ok(implementation) => format!("yes, {implementation}"),
            Err(reason) => format!("no: {}", reason.replace('\n', "; ")),
        };
        println!("{op:<16} {variant:<28} {words}");
    }
    let yes = rows.iter().filter(|row| row.outcome.is_ok()).count();
    println!("{yes} of {} run", rows.len());
    Ok(())
}
