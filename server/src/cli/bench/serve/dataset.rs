//! The prompts: random tokens, or prompts of a file. Text is counted and cut by the server's own tokenizer (/tokenize,
//! /detokenize).

mod burstgpt;
mod texts;

use std::time::Duration;

use halyard_models::SplitMix64;
use serde_json::{Value, json};

use super::dataset_file::DatasetFile;
use super::options::{Backend, DatasetName, ServeBenchArgs};
use crate::cli::bench::workload::Prompts;
use crate::client::{ClientError, ServerClient};
use crate::error::ServerError;

/// Ids of random prompts where the server does not say that it has fewer.
const VOCABULARY: u32 = 32_000;

/// A prompt; of a chat the user's message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prompt {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl Prompt {
    /// As a field of a request.
    pub(super) fn json(&self) -> Value {
        match self {
            Prompt::Text(text) => json!(text),
            Prompt::Ids(ids) => json!(ids),
        }
    }
}

/// One request to send.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// What it asks.
    pub prompt: Prompt,
    /// Tokens of the prompt, where they are known before the server says.
    pub prompt_tokens: Option<u64>,
    /// Tokens to ask for.
    pub output_len: u32,
    /// Its own time after the bench's start, in a trace.
    pub at: Option<Duration>,
}

impl Sample {
    fn new(prompt: Prompt, prompt_tokens: Option<u64>, output_len: u32) -> Sample {
        Sample {
            prompt,
            prompt_tokens,
            output_len,
            at: None,
        }
    }
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
        DatasetName::Sharegpt => texts::sharegpt(args, &server).await,
        DatasetName::Custom => texts::custom(args, &server).await,
        DatasetName::SpecBench => texts::spec_bench(args, &server).await,
        DatasetName::PrefixRepetition => prefix_repetition(args, &server).await,
        DatasetName::Burstgpt => burstgpt(args, &server).await,
        DatasetName::TimedTrace => timed_trace(args, &server).await,
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

    /// A request of a prompt of tokens: as they are, or for a chat as the text that they are.
    async fn sample(&self, backend: Backend, ids: Vec<u32>, output_len: u32) -> Result<Sample, ServerError> {
        let (prompt, prompt_tokens) = match backend {
            Backend::OpenaiChat => (Prompt::Text(self.detokenize(&ids).await?), None),
            Backend::Vllm | Backend::Openai => {
                let count = ids.len() as u64;
                (Prompt::Ids(ids), Some(count))
            }
        };
        Ok(Sample::new(prompt, prompt_tokens, output_len))
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
    for _ in 0..args.num_prompts as usize + before(args) {
        let (mut input, mut output) = (args.random_input_len, args.output_len.unwrap_or(args.random_output_len));
        if args.random_range_ratio.input > 0.0 {
            input = between(&mut prompts, input, args.random_range_ratio.input);
        }
        if args.random_range_ratio.output > 0.0 {
            output = between(&mut prompts, output, args.random_range_ratio.output);
        }
        let ids: Vec<u32> = prefix.iter().copied().chain(prompts.next(input)).collect();
        samples.push(server.sample(args.backend, ids, output).await?);
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
    all.extend((0..before(args)).map(|_| prompts.next(own.prompt_len())));
    let mut samples = Vec::with_capacity(all.len());
    for ids in all {
        let output_len = args.output_len.unwrap_or(own.prefix_repetition_output_len);
        samples.push(server.sample(args.backend, ids, output_len).await?);
    }
    Ok(samples)
}

/// Lengths of a service's requests. Those before the bench are further ones, which begin like none of it.
async fn burstgpt(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let file = DatasetFile::new(args.dataset_path.as_deref());
    let mut rows = burstgpt::rows(&file)?;
    if !args.disable_shuffle {
        shuffle(&mut rows, args.seed);
    }
    let count = count(args, &file, rows.len())?;
    let vocab_size = server.vocabulary_of(args).await;
    let (mut samples, mut tokens) = (Vec::new(), 0);
    for (index, row) in rows.iter().cycle().take(count + before(args)).enumerate() {
        tokens += u64::from(row.prompt);
        file.check_tokens(tokens)?;
        let ids = burstgpt::prompt(index, row.prompt, vocab_size);
        let output_len = args.output_len.unwrap_or(row.answer);
        samples.push(server.sample(args.backend, ids, output_len).await?);
    }
    Ok(samples)
}

/// A trace, as long as it is. The requests before the bench begin like none of it, and find nothing cached.
async fn timed_trace(args: &ServeBenchArgs, server: &Server<'_>) -> Result<Vec<Sample>, ServerError> {
    let path = args.dataset_path.as_deref();
    let vocab_size = server.vocabulary_of(args).await;
    let asked = args.num_prompts as usize;
    let trace = args.timed_trace.read(path, asked, args.seed, vocab_size)?;
    let Some(last) = trace.iter().map(|one| one.at).max() else {
        return Err(DatasetFile::new(path).bad("no request in it"));
    };
    if trace.len() < asked {
        eprintln!(
            "{} requests in the trace; {asked} were asked for (--num-prompts)",
            trace.len()
        );
    }
    if args.timed_trace.is_self_timed() {
        eprintln!("the requests of the trace come over {} s", last.as_secs());
    }
    let mut prompts = Prompts::new(args.seed, vocab_size);
    let warmups: Vec<(Vec<u32>, u32)> = trace
        .iter()
        .cycle()
        .take(before(args))
        .map(|one| (prompts.next(one.prompt.len() as u32), one.output_len))
        .collect();
    let mut samples = Vec::with_capacity(trace.len() + warmups.len());
    for one in trace {
        let output_len = args.output_len.unwrap_or(one.output_len);
        let sample = server.sample(args.backend, one.prompt, output_len).await?;
        samples.push(Sample {
            at: Some(one.at),
            ..sample
        });
    }
    for (ids, output_len) in warmups {
        samples.push(
            server
                .sample(args.backend, ids, args.output_len.unwrap_or(output_len))
                .await?,
        );
    }
    Ok(samples)
}

/// Fisher-Yates.
fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut random = SplitMix64(seed);
    for last in (1..list.len()).rev() {
        list.swap(last, random.index(last + 1));
    }
}

/// Requests before the bench: one always.
fn before(args: &ServeBenchArgs) -> usize {
    args.num_warmups as usize + 1
}

/// Requests of a bench whose file has `found` prompts: as many as are asked for, unless none may be sent twice.
fn count(args: &ServeBenchArgs, file: &DatasetFile, found: usize) -> Result<usize, ServerError> {
    if found == 0 {
        return Err(file.bad("no prompt in it can be used"));
    }
    let asked = args.num_prompts as usize;
    if found < asked && args.no_oversample {
        eprintln!("{found} prompts, {asked} were asked for (--no-oversample)");
    }
    Ok(if args.no_oversample { asked.min(found) } else { asked })
}

/// As many as are asked for, repeated where there are fewer, and those that come before the bench.
fn fill(args: &ServeBenchArgs, file: &DatasetFile, samples: &[Sample]) -> Result<Vec<Sample>, ServerError> {
    let count = count(args, file, samples.len())?;
    Ok(samples.iter().cycle().take(count + before(args)).cloned().collect())
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
