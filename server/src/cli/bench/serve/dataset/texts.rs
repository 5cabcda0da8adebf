//! Prompts of files of text: ShareGPT's conversations, lines of JSON, and Spec-Bench's questions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Prompt, Sample, Server, fill, shuffle};
use crate::cli::bench::serve::dataset_file::DatasetFile;
use crate::cli::bench::serve::options::{Backend, ServeBenchArgs};
use crate::error::ServerError;

/// Conversations of ShareGPT: the first two turns are prompt and answer. Which lengths are taken is vLLM's choice.
pub(super) async fn sharegpt(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let file = DatasetFile::new(args.dataset_path.as_deref());
    let all: Vec<Value> = serde_json::from_str(&file.text()?)
        .map_err(|error| file.bad(&format!("no JSON list of conversations: {error}")))?;
    let turn = |entry: &Value, index: usize| entry["conversations"][index]["value"].as_str().map(str::to_owned);
    let mut pairs: Vec<(String, String)> = all
        .iter()
        .filter_map(|entry| Some((turn(entry, 0)?, turn(entry, 1)?)))
        .collect();
    if !args.disable_shuffle {
        shuffle(&mut pairs, args.seed);
    }
    let fixed = args.output_len.or(args.sharegpt_output_len);
    let mut samples = Vec::new();
    for (prompt, answer) in pairs {
        if samples.len() == args.num_prompts as usize {
            break;
        }
        let input = server.tokenize(json!({"prompt": prompt})).await?.len();
        let output = match fixed {
            Some(length) => length as usize,
            None => server.tokenize(json!({"prompt": answer})).await?.len(),
        };
        if input < 4 || (fixed.is_none() && output < 4) || input > 1024 || input + output > 2048 {
            continue;
        }
        samples.push(Sample::new(Prompt::Text(prompt), Some(input as u64), output as u32));
    }
    fill(args, &file, &samples)
}

/// One JSON object a line: `prompt`, and `output_tokens` where the length is not fixed.
pub(super) async fn custom(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let file = DatasetFile::new(args.dataset_path.as_deref());
    let mut entries = Vec::new();
    for line in file.lines()? {
        let (number, line) = line?;
        let bad = |reason: String| file.bad_line(number, &reason);
        let entry: Value = serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?;
        let prompt = entry["prompt"].as_str().map(str::to_owned);
        let prompt = prompt.ok_or_else(|| bad("no `prompt`".to_owned()))?;
        let own = entry["output_tokens"]
            .as_u64()
            .and_then(|tokens| u32::try_from(tokens).ok());
        let fixed = u32::try_from(args.custom_output_len).ok().filter(|&length| length > 0);
        let output_len = args.output_len.or(fixed).or(own);
        let output_len = output_len.ok_or_else(|| {
            bad(format!(
                "no `output_tokens`, and --custom-output-len {} names none",
                args.custom_output_len
            ))
        })?;
        entries.push((prompt, output_len));
    }
    questions(args, server, &file, entries).await
}

/// Questions of Spec-Bench, one JSON object a line: the first of `turns` is the prompt. One `category`, or all.
pub(super) async fn spec_bench(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let file = DatasetFile::new(args.dataset_path.as_deref());
    let wanted = args.spec_bench_category.as_deref();
    let output_len = args.output_len.unwrap_or(args.spec_bench_output_len);
    let (mut entries, mut categories) = (Vec::new(), BTreeSet::new());
    for line in file.lines()? {
        let (number, line) = line?;
        let bad = |reason: String| file.bad_line(number, &reason);
        let entry: Value = serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?;
        let prompt = entry["turns"][0].as_str();
        let prompt =
            prompt.ok_or_else(|| bad("no `turns` with a text; Spec-Bench's questions have them".to_owned()))?;
        let category = entry["category"].as_str().unwrap_or_default();
        if wanted.is_none_or(|wanted| wanted == category) {
            entries.push((prompt.to_owned(), output_len));
        } else if categories.len() < 50 {
            categories.insert(category.to_owned());
        }
    }
    if let (Some(wanted), true, false) = (wanted, entries.is_empty(), categories.is_empty()) {
        let known = categories.into_iter().collect::<Vec<_>>().join(", ");
        return Err(ServerError::Option {
            option: "--spec-bench-category",
            message: format!("no question is of `{wanted}`; the file has: {known}"),
        });
    }
    questions(args, server, &file, entries).await
}

/// Requests of texts and their answers' lengths: as a user's messages, unless they shall be sent as they are.
async fn questions(
    args: &ServeBenchArgs,
    server: &Server<'_>,
    file: &DatasetFile,
    mut entries: Vec<(String, u32)>,
) -> Result<Vec<Sample>, ServerError> {
    if !args.disable_shuffle {
        shuffle(&mut entries, args.seed);
    }
    entries.truncate(args.num_prompts as usize);
    let mut samples = Vec::new();
    for (prompt, output_len) in entries {
        let is_chat = args.backend == Backend::OpenaiChat;
        let (prompt, prompt_tokens) = if is_chat || args.skip_chat_template {
            (Prompt::Text(prompt), None)
        } else {
            // The server's own template.
            let mut body = json!({"messages": [{"role": "user", "content": prompt}]});
            if let Some(settings) = &args.chat_template_kwargs {
                body["chat_template_kwargs"] = Value::Object(settings.0.clone());
            }
            let ids = server.tokenize(body).await?;
            let count = ids.len() as u64;
            (Prompt::Ids(ids), Some(count))
        };
        samples.push(Sample::new(prompt, prompt_tokens, output_len));
    }
    fill(args, file, &samples)
}
