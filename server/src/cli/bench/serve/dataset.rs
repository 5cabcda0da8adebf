//! The prompts: random tokens, or prompts of a file. Text is counted and cut by the server's own tokenizer (/tokenize,
//! /detokenize).

use std::path::Path;

use halyard_models::SplitMix64;
use serde_json::{Value, json};

use super::options::{Backend, DatasetName, ServeBenchArgs};
use crate::cli::bench::workload::Prompts;
use crate::client::{ClientError, ServerClient};
use crate::error::ServerError;
use crate::source::SourceError;

/// Ids of random prompts where the server does not say that it has fewer.
const VOCABULARY: u32 = 32_000;

/// One request to send.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// Token ids or a text; of a chat the user's message.
    pub prompt: Value,
    /// Tokens of the prompt, where they are known before the server says.
    pub prompt_tokens: Option<u64>,
    /// Tokens to ask for.
    pub output_len: u32,
}

/// The requests of a bench and, last, those before it.
pub(super) async fn samples(
    args: &ServeBenchArgs,
    client: &ServerClient,
    model: &str,
) -> Result<Vec<Sample>, ServerError> {
    let server = Server { client, model };
    match args.dataset_name {
        DatasetName::Random => random(args, &server).await,
        DatasetName::Sharegpt => sharegpt(args, &server).await,
        DatasetName::Custom => custom(args, &server).await,
        DatasetName::PrefixRepetition => prefix_repetition(args, &server).await,
    }
}

/// A server's tokenizer.
struct Server<'a> {
    client: &'a ServerClient,
    model: &'a str,
}

impl Server<'_> {
    async fn tokenize(&self, mut body: Value) -> Result<Vec<u32>, ServerError> {
        body["model"] = json!(self.model);
        let answer = self.client.post_json("/tokenize", &body).await?;
        let tokens = serde_json::from_value(answer["tokens"].clone());
        tokens.map_err(|error| ServerError::Refused(format!("/tokenize answered no tokens: {error}")))
    }

    async fn detokenize(&self, tokens: &[u32]) -> Result<String, ClientError> {
        let body = json!({"model": self.model, "tokens": tokens});
        let answer = self.client.post_json("/detokenize", &body).await?;
        let text = answer["prompt"].as_str().map(str::to_owned);
        text.ok_or_else(|| ClientError::Broken("/detokenize answered no prompt".to_owned()))
    }

    /// Random ids are below this.
    async fn vocabulary_of(&self, args: &ServeBenchArgs) -> u32 {
        match args.random_vocab_size {
            Some(size) => size,
            None => self.vocabulary().await,
        }
    }

    /// Ids that its tokenizer surely has: the largest power of two of them, up to [`VOCABULARY`].
    async fn vocabulary(&self) -> u32 {
        let mut size = VOCABULARY;
        while size > 256 {
            match self.detokenize(&[size - 1]).await {
                Err(ClientError::Refused { status: 400, .. }) => size /= 2,
                // It has them, or has no such route: then it is asked for what most models have.
                _ => break,
            }
        }
        size
    }
}

async fn random(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let mut prompts = Prompts::new(args.seed, server.vocabulary_of(args).await);
    let prefix = prompts.next(args.random_prefix_len);
    let between = |prompts: &mut Prompts, length: u32, share: f64| {
        let low = (f64::from(length) * (1.0 - share)).floor().max(1.0) as u64;
        let high = (f64::from(length) * (1.0 + share)).ceil() as u64;
        (low + prompts.random.below(high.saturating_sub(low) + 1)) as u32
    };
    let mut samples = Vec::new();
    for _ in 0..args.num_prompts + args.num_warmups + 1 {
        let (mut input, mut output) = (args.random_input_len, args.output_len.unwrap_or(args.random_output_len));
        if args.random_range_ratio.input > 0.0 {
            input = between(&mut prompts, input, args.random_range_ratio.input);
        }
        if args.random_range_ratio.output > 0.0 {
            output = between(&mut prompts, output, args.random_range_ratio.output);
        }
        let ids: Vec<u32> = prefix.iter().copied().chain(prompts.next(input)).collect();
        let (prompt, prompt_tokens) = match args.backend {
            Backend::OpenaiChat => (json!(server.detokenize(&ids).await?), None),
            Backend::Vllm | Backend::Openai => (json!(ids), Some(ids.len() as u64)),
        };
        samples.push(Sample {
            prompt,
            prompt_tokens,
            output_len: output,
        });
    }
    Ok(samples)
}

/// The requests, and those before the bench: these begin like none of them, and find nothing cached.
async fn prefix_repetition(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let own = &args.prefix_repetition;
    let mut prompts = Prompts::new(args.seed, server.vocabulary_of(args).await);
    let mut all = own.prompts(args.num_prompts, &mut prompts);
    if all.len() < args.num_prompts as usize {
        let (sent, asked) = (all.len(), args.num_prompts);
        eprintln!("{sent} prompts, as many for each beginning; {asked} were asked for (--num-prompts)");
    }
    if !args.disable_shuffle {
        shuffle(&mut all, args.seed);
    }
    all.extend((0..args.num_warmups + 1).map(|_| prompts.next(own.prompt_len())));
    let mut samples = Vec::with_capacity(all.len());
    for ids in all {
        let (prompt, prompt_tokens) = match args.backend {
            Backend::OpenaiChat => (json!(server.detokenize(&ids).await?), None),
            Backend::Vllm | Backend::Openai => (json!(ids), Some(ids.len() as u64)),
        };
        samples.push(Sample {
            prompt,
            prompt_tokens,
            output_len: args.output_len.unwrap_or(own.prefix_repetition_output_len),
        });
    }
    Ok(samples)
}

fn read(path: Option<&Path>) -> Result<String, ServerError> {
    let path = path.unwrap_or(Path::new(""));
    Ok(std::fs::read_to_string(path).map_err(SourceError::io(path))?)
}

fn bad(path: Option<&Path>, reason: &str) -> ServerError {
    ServerError::Option {
        option: "--dataset-path",
        message: format!("{}: {reason}", path.unwrap_or(Path::new("")).display()),
    }
}

/// Fisher-Yates.
fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut random = SplitMix64(seed);
    for last in (1..list.len()).rev() {
        list.swap(last, random.index(last + 1));
    }
}

/// As many as are asked for, repeated where there are fewer, and those that come before the bench.
fn fill(args: &ServeBenchArgs, mut samples: Vec<Sample>) -> Result<Vec<Sample>, ServerError> {
    let path = args.dataset_path.as_deref();
    if samples.is_empty() {
        return Err(bad(path, "no prompt in it can be used"));
    }
    let (found, asked) = (samples.len(), args.num_prompts as usize);
    if found < asked && args.no_oversample {
        eprintln!("{found} prompts, {asked} were asked for (--no-oversample)");
    }
    let count = if args.no_oversample { asked.min(found) } else { asked };
    let more = count + args.num_warmups as usize + 1;
    samples = samples.iter().cycle().take(more).cloned().collect();
    Ok(samples)
}

/// Conversations of ShareGPT: the first two turns are prompt and answer. Which lengths are taken is vLLM's choice.
async fn sharegpt(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let path = args.dataset_path.as_deref();
    let all: Vec<Value> = serde_json::from_str(&read(path)?)
        .map_err(|error| bad(path, &format!("no JSON list of conversations: {error}")))?;
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
        samples.push(Sample {
            prompt: json!(prompt),
            prompt_tokens: Some(input as u64),
            output_len: output as u32,
        });
    }
    fill(args, samples)
}

/// One JSON object a line: `prompt`, and `output_tokens` where the length is not fixed.
async fn custom(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let path = args.dataset_path.as_deref();
    let text = read(path)?;
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = index + 1;
        let entry: Value = serde_json::from_str(line).map_err(|error| bad(path, &format!("line {number}: {error}")))?;
        let prompt = entry["prompt"].as_str().map(str::to_owned);
        let prompt = prompt.ok_or_else(|| bad(path, &format!("line {number}: no `prompt`")))?;
        let own = entry["output_tokens"]
            .as_u64()
            .and_then(|tokens| u32::try_from(tokens).ok());
        let fixed = u32::try_from(args.custom_output_len).ok().filter(|&length| length > 0);
        let output_len = args.output_len.or(fixed).or(own);
        let output_len = output_len.ok_or_else(|| {
            let reason = format!(
                "line {number}: no `output_tokens`, and --custom-output-len {} names none",
                args.custom_output_len
            );
            bad(path, &reason)
        })?;
        entries.push((prompt, output_len));
    }
    if !args.disable_shuffle {
        shuffle(&mut entries, args.seed);
    }
    entries.truncate(args.num_prompts as usize);
    let mut samples = Vec::new();
    for (prompt, output_len) in entries {
        let is_chat = args.backend == Backend::OpenaiChat;
        let (prompt, prompt_tokens) = if is_chat || args.skip_chat_template {
            (json!(prompt), None)
        } else {
            // The server's own template.
            let mut body = json!({"messages": [{"role": "user", "content": prompt}]});
            if let Some(settings) = &args.chat_template_kwargs {
                body["chat_template_kwargs"] = Value::Object(settings.0.clone());
            }
            let ids = server.tokenize(body).await?;
            (json!(ids), Some(ids.len() as u64))
        };
        samples.push(Sample {
            prompt,
            prompt_tokens,
            output_len,
        });
    }
    fill(args, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_keeps_everything_and_follows_the_seed() {
        let shuffled = |seed| {
            let mut list: Vec<u32> = (0..50).collect();
            shuffle(&mut list, seed);
            list
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut sorted = shuffled(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<u32>>());
    }
}
