//! Renders many templates and compares with another implementation's prompts.
//!
//! `chat_check CASES.json`: a file in the format of `tests/golden/chat.json`. Prints each template that differs. Writes
//! nothing.

use std::process::ExitCode;

use halyard_text::{ChatInput, ChatTemplate, LocalTime, SpecialTokens};
use serde_json::Value;

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chat_check: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<usize, Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: chat_check CASES.json")?;
    let golden: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let token = |name: &str| golden["special_tokens"][name].as_str().map(str::to_owned);
    let special_tokens = SpecialTokens {
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        pad_token: token("pad_token"),
        unk_token: token("unk_token"),
    };
    let (mut equal, mut both_fail, mut different) = (0, 0, 0);
    for template in golden["templates"].as_array().ok_or("no templates")? {
        let name = template["name"].as_str().unwrap_or_default();
        let chat = match ChatTemplate::new(template["source"].as_str().unwrap_or_default(), &special_tokens) {
            Ok(chat) => chat,
            Err(error) => {
                different += 1;
                println!("{name}: {error}");
                continue;
            }
        };
        for case in template["cases"].as_array().ok_or("no cases")? {
            let input = ChatInput {
                messages: case["messages"].as_array().ok_or("no messages")?,
                tools: case.get("tools"),
                add_generation_prompt: case["add_generation_prompt"] == true,
                extra: case["extra"].as_object(),
                // 2024-07-26 12:00 UTC, the time in the goldens.
                now: Some(LocalTime {
                    unix_seconds: 1_721_995_200,
                    utc_offset_seconds: 0,
                }),
                ..ChatInput::default()
            };
            match (chat.render(&input), case["expected"].as_str()) {
                (Ok(found), Some(expected)) if found == expected => equal += 1,
                (Err(_), None) => both_fail += 1,
                (found, expected) => {
                    different += 1;
                    let other = &case["raises"];
                    println!(
                        "{name} {}:\n  expected {expected:?} {other}\n  found    {found:?}",
                        case["name"]
                    );
                }
            }
        }
    }
    println!("{equal} equal, {both_fail} refused by both, {different} different");
    Ok(different)
}
