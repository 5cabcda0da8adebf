//! Checks a tokenizer against lines of expected ids and prints how long loading took.
//!
//! `tokenizer_check ARRAYS.json CASES.json`: ARRAYS is a `GgufTokenizer` as JSON (or a tokenizer.json), CASES a list of
//! `{"text": …, "ids": […], "add_special_tokens": bool, "decoded": …}` made with another implementation. Never writes.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use halyard_text::{GgufTokenizer, Tokenizer};

#[derive(serde::Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    #[serde(default)]
    add_special_tokens: bool,
    decoded: Option<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tokenizer_check: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<usize, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [arrays, cases] = arguments.as_slice() else {
        return Err("usage: tokenizer_check ARRAYS.json CASES.json".into());
    };
    let json = std::fs::read(arrays)?;
    let tokenizer = match serde_json::from_slice::<GgufTokenizer>(&json) {
        Ok(gguf) if !gguf.tokens.is_empty() => {
            let start = Instant::now();
            let tokenizer = Tokenizer::from_gguf(&gguf)?;
            println!("built {} tokens in {:?}", tokenizer.vocab_size(), start.elapsed());
            tokenizer
        }
        _ => Tokenizer::from_file(Path::new(arrays))?,
    };
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(cases)?)?;
    let mut failures = 0;
    let start = Instant::now();
    for case in &cases {
        let ids = tokenizer.encode(&case.text, case.add_special_tokens)?;
        if ids != case.ids {
            failures += 1;
            println!("encode {:?}\n  expected {:?}\n  found    {ids:?}", case.text, case.ids);
        }
        let decoded = tokenizer.decode(&case.ids, false)?;
        if case.decoded.as_ref().is_some_and(|expected| *expected != decoded) {
            failures += 1;
            println!(
                "decode {:?}\n  expected {:?}\n  found    {decoded:?}",
                case.ids, case.decoded
            );
        }
    }
    println!("{} cases, {failures} failures, {:?}", cases.len(), start.elapsed());
    Ok(failures)
}
