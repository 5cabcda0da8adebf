//! `halyard bench serve`: sends streaming completions to a running server at a given rate and measures what a client sees. Works with any
//! OpenAI-compatible server, which makes it the bench for peers too.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::progress;
use super::report::{Spread, write_json};
use super::workload::Prompts;
use crate::client::ServerClient;
use crate::error::ServerError;

/// Flags of `halyard bench serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Bench")]
pub struct ServeBenchArgs {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    base_url: String,
    /// Key for the server
    #[arg(long, value_name = "KEY", env = "HALYARD_CLIENT_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// The model's name for the server; without it the first that the server names
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Tokens of each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    random_input_len: u32,
    /// Tokens to generate for each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    random_output_len: u32,
    /// Prompts are drawn from ids below this: the model's vocabulary, or less
    #[arg(long, value_name = "COUNT", default_value_t = 32_000, value_parser = clap::value_parser!(u32).range(1..))]
    random_vocab_size: u32,
    /// Requests
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    num_prompts: u32,
    /// Requests a second, at random (Poisson) times; inf sends all at once
    #[arg(long, value_name = "NUMBER", default_value = "inf", value_parser = parse_rate)]
    request_rate: f64,
    /// Requests that may be under way at the same time; without it any number
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_concurrency: Option<u32>,
    /// Seed of prompts and times
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Percentiles to tell, separated by commas
    #[arg(long, value_name = "PERCENT", default_value = "99", value_delimiter = ',', value_parser = parse_percent)]
    metric_percentiles: Vec<f64>,
    /// Write the figures as JSON into this file
    #[arg(long, value_name = "FILE")]
    output_json: Option<PathBuf>,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate >= LOWEST_RATE => Ok(rate),
        _ => Err(format!(
            "`{text}` is not a rate; give requests a second from {LOWEST_RATE} on, or inf"
        )),
    }
}

/// One request in three hours: less is a mistake.
const LOWEST_RATE: f64 = 1e-4;

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("`{text}` is no percentile; give a number from 0 to 100")),
    }
}

/// What a client saw of one request, in seconds.
#[derive(Debug)]
struct Seen {
    first_token: f64,
    /// Between neighbouring pieces.
    gaps: Vec<f64>,
    total: f64,
    output_tokens: u64,
}

pub(super) fn run(args: &ServeBenchArgs) -> Result<(), ServerError> {
    super::super::runtime()?.block_on(measure(args))
}

async fn measure(args: &ServeBenchArgs) -> Result<(), ServerError> {
    let client = Arc::new(ServerClient::new(&args.base_url, args.api_key.clone())?);
    let model = match &args.model {
        Some(model) => model.clone(),
        None => client.first_model().await?,
    };
    let mut prompts = Prompts::new(args.seed, args.random_vocab_size);
    let bodies: Vec<Value> = (0..args.num_prompts)
        .map(|_| body(&model, &prompts.next(args.random_input_len), args.random_output_len))
        .collect();
    // One request first: it must work, and the server's first-use costs are not the bench's.
    request(
        &client,
        &body(&model, &prompts.next(args.random_input_len), args.random_output_len),
    )
    .await?;
    let slots = Arc::new(Semaphore::new(
        args.max_concurrency
            .map_or(Semaphore::MAX_PERMITS, |most| most as usize),
    ));
    let bar = progress(u64::from(args.num_prompts), "requests");
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    let mut due = Duration::ZERO;
    for body in bodies {
        tokio::time::sleep_until((started + due).into()).await;
        if args.request_rate.is_finite() {
            due += Duration::from_secs_f64(-prompts.unit().ln() / args.request_rate);
        }
        let (client, slots) = (Arc::clone(&client), Arc::clone(&slots));
        tasks.spawn(async move {
            let _slot = slots.acquire_owned().await;
            request(&client, &body).await
        });
    }
    let (mut seen, mut failures) = (Vec::new(), Vec::new());
    while let Some(outcome) = tasks.join_next().await {
        bar.inc(1);
        match outcome {
            Ok(Ok(one)) => seen.push(one),
            Ok(Err(error)) => failures.push(error.to_string()),
            Err(error) => failures.push(error.to_string()),
        }
    }
    bar.finish_and_clear();
    let figures = summarize(args, &seen, &failures, started.elapsed().as_secs_f64());
    write_json(args.output_json.as_deref(), &figures)?;
    match failures.first() {
        Some(first) => Err(ServerError::Refused(format!(
            "{} requests failed; the first: {first}",
            failures.len()
        ))),
        None => Ok(()),
    }
}

fn body(model: &str, prompt: &[u32], output_len: u32) -> Value {
    json!({
        "model": model,
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0.0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

/// Sends one request. One that gives another number of tokens than asked for, or does not tell how many, is a failure: its figures would mislead.
async fn request(client: &ServerClient, body: &Value) -> Result<Seen, ServerError> {
    let started = Instant::now();
    let (mut first, mut last) = (None, started);
    let (mut gaps, mut output_tokens) = (Vec::new(), None);
    client
        .stream_events("/v1/completions", body, |event| {
            if let Some(count) = event["usage"]["completion_tokens"].as_u64() {
                output_tokens = Some(count);
            }
            if event["choices"].get(0).is_none() {
                return;
            }
            let now = Instant::now();
            match first {
                None => first = Some(now),
                Some(_) => gaps.push(now.duration_since(last).as_secs_f64()),
            }
            last = now;
        })
        .await?;
    let Some(first) = first else {
        return Err(ServerError::Refused("an answer held no token".to_owned()));
    };
    let Some(output_tokens) = output_tokens else {
        let message =
            "the server sends no usage with the stream (stream_options.include_usage), so tokens cannot be counted";
        return Err(ServerError::Refused(message.to_owned()));
    };
    if Some(output_tokens) != body["max_tokens"].as_u64() {
        let message = format!(
            "an answer ended after {output_tokens} tokens, {} were asked for",
            body["max_tokens"]
        );
        return Err(ServerError::Refused(message));
    }
    Ok(Seen {
        first_token: first.duration_since(started).as_secs_f64(),
        gaps,
        total: last.duration_since(started).as_secs_f64(),
        output_tokens,
    })
}

fn summarize(args: &ServeBenchArgs, seen: &[Seen], failures: &[String], seconds: f64) -> Value {
    let output: u64 = seen.iter().map(|s| s.output_tokens).sum();
    let input = seen.len() as u64 * u64::from(args.random_input_len);
    let mut figures = json!({
        "duration": seconds,
        "completed": seen.len(),
        "failed": failures.len(),
        "total_input_tokens": input,
        "total_output_tokens": output,
        "request_throughput": seen.len() as f64 / seconds,
        "output_throughput": output as f64 / seconds,
        "total_token_throughput": (input + output) as f64 / seconds,
    });
    say!("completed {}, failed {}, {seconds:.2} s", seen.len(), failures.len());
    say!(
        "{:.2} requests/s, {:.2} output tokens/s, {:.2} total tokens/s",
        seen.len() as f64 / seconds,
        output as f64 / seconds,
        (input + output) as f64 / seconds
    );
    let per_token = |s: &Seen| (s.total - s.first_token) / (s.output_tokens.max(2) - 1) as f64;
    let spreads = [
        (
            "ttft",
            "time to first token",
            Spread::of(seen.iter().map(|s| s.first_token).collect()),
        ),
        (
            "tpot",
            "time per output token after it",
            Spread::of(seen.iter().map(per_token).collect()),
        ),
        (
            "itl",
            "time between pieces",
            Spread::of(seen.iter().flat_map(|s| s.gaps.clone()).collect()),
        ),
        (
            "e2el",
            "whole request",
            Spread::of(seen.iter().map(|s| s.total).collect()),
        ),
    ];
    for (key, name, spread) in &spreads {
        figures[format!("mean_{key}_ms")] = json!(spread.mean() * 1e3);
        figures[format!("median_{key}_ms")] = json!(spread.at(50.0) * 1e3);
        let mut line = format!(
            "{name}: mean {:.2} ms, median {:.2} ms",
            spread.mean() * 1e3,
            spread.at(50.0) * 1e3
        );
        for percent in &args.metric_percentiles {
            figures[format!("p{percent}_{key}_ms")] = json!(spread.at(*percent) * 1e3);
            line.push_str(&format!(", p{percent} {:.2} ms", spread.at(*percent) * 1e3));
        }
        say!("{line}");
    }
    figures
}
